"""What to do next about the MIG mode of a GPU that switches it only by a reset, and why it cannot be done. Pure.

`kubelet_plugin.claims.mode_changes` asks here. The journal's record of `SwitchedMode` says what was begun, the
publisher says which mode the GPU should have (`dra_driver.publish.decisions`), and the GPU says which it has. One of
the steps continues what a killed process left, or takes it back.
"""

from collections.abc import Collection
from enum import Enum

from dra_driver.api.inventory import GpuFacts, ModeObstacle
from dra_driver.phrases import and_more
from kubelet_plugin.hardware.mig import Mode
from kubelet_plugin.prepare.holds import HoldState

_MOST_USERS = 8
_LONGEST = 800
"""Characters of what a program prints."""
_NO_RESET = "is not supported"
"""What nvidia-smi prints. NVML's own "Not Supported" may be that of any call, and is tried again."""
_IN_USE = "In use by another client"
"""What nvidia-smi prints. Source: issues 118 and 1606 of NVIDIA/gpu-operator, 181 of NVIDIA/mig-parted."""


class ModeStep(Enum):
    """SWITCH_ON, SWITCH_OFF: write the intent, reset, write the result. SETTLE: leave no change pending, and write
    which mode it is. NOTHING: all is as it should be, or not for this driver to change."""

    NOTHING = "nothing"
    SWITCH_ON = "switch on"
    SWITCH_OFF = "switch off"
    SETTLE = "settle"


def next_step(record: HoldState | None, asked: bool | None, mode: Mode) -> ModeStep:
    """`record` is the state of the journal's record: None if this driver has not switched the mode on. `asked` is the
    mode that the publisher lets the plugin switch to now; None: none.

    A mode that is on and has no record is an administrator's. It is never switched off.
    """
    if record is None:
        return ModeStep.SWITCH_ON if asked is True and not mode.on else ModeStep.NOTHING
    if asked is not None and mode != Mode(asked, asked):
        return ModeStep.SWITCH_ON if asked else ModeStep.SWITCH_OFF
    if record is HoldState.MADE and (mode.on or mode.pending):
        return ModeStep.NOTHING
    return ModeStep.SETTLE


def in_use(
    gpu: GpuFacts, node: str, claims: Collection[str], users: Collection[str], instances: Collection[str]
) -> ModeObstacle | None:
    """`claims` have the GPU, though perhaps only to observe it; `users` are programs that have it open; `instances` are
    GPU instances on it. None: nothing of that is in the way of a reset."""
    if claims:
        return ModeObstacle(
            reason="InUse",
            message=f"claims have the GPU: {and_more(sorted(claims), _MOST_USERS)}",
            fix="wait until the pods of these claims end, or delete them",
        )
    if users:
        return ModeObstacle(
            reason="InUse",
            message=f"programs have the GPU open: {and_more(sorted(users), _MOST_USERS)}",
            fix=f"end these programs; `kubectl label node {node} --overwrite nvidia.com/gpu.deploy.dcgm=false"
            " nvidia.com/gpu.deploy.dcgm-exporter=false` ends the GPU Operator's monitoring, `true` starts it again",
        )
    if instances:
        return ModeObstacle(
            reason="InUse",
            message=f"it has GPU instances that no claim has: {and_more(sorted(instances), _MOST_USERS)}",
            fix=f"if no program uses them, on {node}: `nvidia-smi mig -i {gpu.pci_bus_id} -dci` and `nvidia-smi mig -i"
            f" {gpu.pci_bus_id} -dgi`",
        )
    return None


def refused(gpu: GpuFacts, node: str, error: str, *, graphics: bool) -> ModeObstacle:
    """`error` says what failed. `graphics`: the kernel module nvidia_drm is loaded."""
    message = " ".join(error.split())[:_LONGEST]
    by_hand = (
        f"drain {node}, release its GPUs (docs/reset.md), and on it `nvidia-smi -i {gpu.pci_bus_id} -mig 1` (or 0)"
    )
    if _NO_RESET in error:
        fix = f"this machine cannot reset one GPU alone: {by_hand}, then reboot it"
        return ModeObstacle(reason="NotPossible", message=message, fix=fix)
    if _IN_USE in error and graphics:
        fix = f"the kernel module nvidia_drm has the GPUs of {node} open: unload it (`rmmod nvidia_drm`)"
        return ModeObstacle(reason="InUse", message=message, fix=fix)
    fix = f"if it fails again, {by_hand}, and `nvidia-smi --gpu-reset -i {gpu.pci_bus_id}`, or reboot it"
    return ModeObstacle(reason="Failed", message=message, fix=fix)
