"""What faults of a GPU mean: an Xid, a counter or an answer of the driver to a condition, conditions to taints.

The node records conditions as facts, with the severity that NVIDIA's catalog suggests; what follows from them is for
the administrator's `HealthPolicy` to say, and both sides ask here: the publisher for the device's taints, the plugin
for what kubelet shows in the pod's status.

Severity is what it means for the *next* user of the GPU. An application that crashed it (Xid 13, 31, 43, ...) is
no problem of other users; an uncontained memory error is.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from dra_driver.api.gpu_settings import HealthPolicy
from dra_driver.api.inventory import HealthCondition
from dra_driver.api.resource import Taint
from dra_driver.names import RELEASE_GPUS
from dra_driver.quantity import whole_number

type Severity = Literal["Info", "Warning", "Critical"]

_APPLICATION = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of the program that ran; the GPU serves the next one. Also what NVIDIA's own driver ignores."""

_XIDS: dict[int, tuple[Severity, str]] = {
    46: ("Critical", "the GPU stopped processing and must be reset"),
    48: ("Critical", "a double-bit memory error; the GPU must be reset"),
    62: ("Critical", "a micro-controller of the GPU halted; the GPU must be reset"),
    63: ("Info", "memory rows will be remapped at the next reset"),
    64: ("Critical", "remapping memory rows failed; the GPU must be reset"),
    74: ("Critical", "an NVLink error"),
    79: ("Critical", "the GPU fell off the bus; the machine must be restarted"),
    92: ("Info", "a high rate of corrected memory errors"),
    94: ("Warning", "a contained memory error; the program that was hit must be restarted"),
    95: ("Critical", "an uncontained memory error; the GPU must be reset"),
    110: ("Critical", "a security fault; the GPU must be reset"),
    119: ("Critical", "the GPU's system processor does not answer; the GPU must be reset"),
    120: ("Critical", "the GPU's system processor failed; the GPU must be reset"),
    136: ("Critical", "NVLink training failed; the GPU must be reset"),
    137: ("Info", "a program used peer memory that it may not use"),
    140: ("Critical", "an unrecovered memory error; the GPU must be reset"),
    143: ("Critical", "the GPU could not be initialized"),
    **dict.fromkeys(range(144, 151), ("Critical", "an NVLink unit failed")),
    151: ("Critical", "key rotation failed; the virtual machine must be restarted"),
    154: ("Info", "the recommended recovery action changed"),
    155: ("Warning", "an NVLink software event"),
    156: ("Warning", "a resource of the GPU was retired"),
    157: ("Critical", "retiring a resource of the GPU failed"),
    158: ("Critical", "a fatal time-out; the GPU must be reset"),
    171: ("Critical", "an uncorrectable error in device memory; the GPU must be reset"),
    172: ("Critical", "an uncorrectable error in on-chip memory; the GPU must be reset"),
}
"""Severity and meaning by number. Source: NVIDIA's Xid catalog; see the reference's section on Xids."""

_TAINT_KEYS = {
    "Xid": "xid",
    "GpuLost": "gpu-lost",
    "Ecc": "ecc",
    "RowRemap": "row-remap",
    "Repair": "repair",
    "NvLink": "nvlink",
    "RecoveryAction": "recovery-action",
    "Unmonitored": "unmonitored",
    "MpsDaemon": "mps-daemon",
    "NotValidated": "not-validated",
    "InstanceLost": "instance-lost",
    "Released": "released",
    "PrepareFailed": "prepare-failed",
    "DriverIncomplete": "driver-incomplete",
}
"""The part of a taint's key after the driver's name, by type of condition. The first two and `unmonitored` are those
of NVIDIA's own driver."""


_RESET = (
    f"release the GPUs (kubectl annotate node {{node}} {RELEASE_GPUS}=true), reset it on {{node}} (nvidia-smi"
    f" --gpu-reset -i {{pci}}), and resume (kubectl annotate node {{node}} {RELEASE_GPUS}-)"
)
_REBOOT = "drain and reboot {node}; if the GPU is lost again, reseat or replace it"
_REMEDIES = {
    "Xid": f"wait until its pods have ended, {_RESET}; if the error returns, reboot the node",
    "Xid 79": _REBOOT,
    "Xid 94": "restart the programs that were hit; the GPU needs no reset",
    "Xid 151": "restart the virtual machine {node}",
    "GpuLost": _REBOOT,
    "Ecc": f"wait until its pods have ended, {_RESET}",
    "RowRemap failed": "drain {node} and replace the GPU",
    "RowRemap": f"to remap rows, wait until its pods have ended, {_RESET}",
    "Repair": "wait until its pods have ended, then reboot {node} to complete the repair",
    "NvLink": "run `nvidia-smi nvlink -e -i {pci}` on {node}; reset the GPU, and check its NVLink bridge or switch",
    "RecoveryAction GpuReset": f"wait until its pods have ended, {_RESET}",
    "RecoveryAction DrainAndReset": f"wait until its pods have ended, {_RESET}",
    "RecoveryAction NodeReboot": "drain and reboot {node}",
    "RecoveryAction SystemReboot": "drain and reboot {node}",
    "RecoveryAction": "follow `GPU Recovery Action` in the output of nvidia-smi -q -i {pci} on {node}",
    "Unmonitored": "upgrade the NVIDIA driver: this version reports no events, so faults are detected late",
    "PrepareFailed": "end what the message names on {node}; after five minutes the GPU is tried again",
    "DriverIncomplete": "do what the message says; `dractl doctor --node` on {node} checks the files of the driver",
    "Released": "if this is intended, ignore it; otherwise run the command in the message",
    "NotValidated": "kubectl describe node {node} shows the result; the policy sets the validation in health.validate",
}
"""By type of condition, or by type and value."""


def remedy(condition: HealthCondition, node: str, pci: str) -> str:
    """What an administrator does about it, as a sentence without a period. `pci` is the GPU's PCI address."""
    known = _REMEDIES.get(f"{condition.type} {condition.value}") or _REMEDIES.get(condition.type)
    return (known or "run `dractl get nodes` and kubectl describe node {node}").format(node=node, pci=pci)


def xid_severity(number: int) -> Severity | None:
    """None for an application's fault, which says nothing about the GPU; an unknown Xid is a warning."""
    if number in _APPLICATION:
        return None
    return _XIDS.get(number, ("Warning", ""))[0]


def xid_condition(number: int, *, since: str, instance: str | None = None) -> HealthCondition:
    """The condition that an Xid leads to, also of an application's fault: a policy may escalate it."""
    _, meaning = _XIDS.get(number, ("", ""))
    if number in _APPLICATION:
        meaning = "a fault of the program that ran"
    return HealthCondition(
        type="Xid",
        value=str(number),
        severity=xid_severity(number) or "Info",
        message=f"Xid {number}: {meaning or 'not in the catalog known to this release'}",
        since=since,
        instance=instance,
    )


def judged(condition: HealthCondition, policy: HealthPolicy) -> Severity | None:
    """How severe a condition is under a policy; None to ignore it."""
    if condition.type == "Xid" and (number := whole_number(condition.value)) is not None:
        if number in policy.escalate_xids:
            return "Critical"
        if number in policy.ignore_xids or xid_severity(number) is None:
            return None
    return condition.severity


def worst(conditions: Iterable[HealthCondition], policy: HealthPolicy) -> HealthCondition | None:
    """The condition that makes a device unhealthy: a critical one, the oldest of several; None when there is none."""
    critical = [condition for condition in conditions if judged(condition, policy) == "Critical"]
    return min(critical, key=lambda item: (item.since, item.type, item.value or ""), default=None)


def affecting(conditions: Iterable[HealthCondition], instance: str | None) -> tuple[HealthCondition, ...]:
    """Those that a device feels: of the whole GPU always, of one MIG device only that device.

    `instance` is the device's MIG UUID. None is the whole GPU, which feels everything that happens on it, except that
    no partition could be made; a partition that does not exist yet has none of the faults of an earlier one: pass the
    empty string, which is also the instance of a condition about partitions that cannot be made.
    """
    return tuple(
        condition
        for condition in conditions
        if condition.instance is None or condition.instance == instance or (instance is None and condition.instance)
    )


def taints(conditions: Sequence[HealthCondition], policy: HealthPolicy, driver: str) -> list[Taint]:
    """The device's taints, one for each key, sorted; of several conditions with one key the worst gives the value.

    Critical: NoSchedule, or NoExecute where the policy wants running pods to be evicted. Warning: effect None, which
    keeps no pod away and can be seen. Info and ignored conditions are no taints.
    """
    by_key: dict[str, Taint] = {}
    for condition in sorted(conditions, key=lambda item: (item.since, item.value or "")):
        severity = judged(condition, policy)
        key = f"{driver}/{_TAINT_KEYS.get(condition.type, condition.type.lower())}"
        if severity == "Critical" and (key not in by_key or by_key[key].effect == "None"):
            effect = "NoExecute" if evicts(condition, policy) else "NoSchedule"
            by_key[key] = Taint(key=key, value=condition.value, effect=effect)
        elif severity == "Warning" and key not in by_key:
            by_key[key] = Taint(key=key, value=condition.value, effect="None")
    return [taint for _, taint in sorted(by_key.items())]


def evicts(condition: HealthCondition, policy: HealthPolicy) -> bool:
    """Whether pods that have the device lose it."""
    passes = condition.type in ("NotValidated", "Released", "PrepareFailed", "DriverIncomplete")
    return policy.evict and not passes and judged(condition, policy) == "Critical"
