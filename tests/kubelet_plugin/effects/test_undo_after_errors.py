"""Whatever NVML answers while a hold is undone: when it is well again, the hardware is as it was before the hold.

As `kubelet_plugin.prepare.execute` does it: a hold whose undoing raised is undone again later, one whose undoing
returned is forgotten. MPS daemons ask nothing of NVML.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.mishaps import fail_call
from support.nodes import Node, a_node
from support.rows import slow_but

from dra_driver.errors import HardwareError
from kubelet_plugin.effects.gpu_settings import ComputeModes, TimeSlices
from kubelet_plugin.effects.mig import ComputeInstances, GpuInstances, MigModes
from kubelet_plugin.hardware.calls import NvmlCode
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.driver_root import find_driver_root
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    ComputeMode,
    GpuIdentity,
    GpuInstance,
    Hold,
    HoldRecord,
    HoldState,
    MigMode,
    TimeSlice,
)

CODES = sorted({*NvmlCode, 999} - {NvmlCode.INSUFFICIENT_SIZE})
"""All that the plugin tells apart, and one that it does not."""
CALLS = (
    *("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo", "nvmlDeviceGetMemoryInfo"),
    *("nvmlDeviceGetMigMode", "nvmlDeviceSetMigMode", "nvmlDeviceGetFieldValues"),
    *("nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstancePossiblePlacements"),
    *("nvmlDeviceGetGpuInstances", "nvmlGpuInstanceGetInfo", "nvmlGpuInstanceDestroy"),
    *("nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlGpuInstanceGetComputeInstances"),
    *("nvmlComputeInstanceGetInfo_v2", "nvmlComputeInstanceDestroy", "nvmlDeviceGetAttributes_v2"),
)


class Claim:
    """One claim's holds on a node, made and undone with one NVML session, as in a plugin that runs on."""

    def __init__(self, node: Node, holds: tuple[Hold, ...]) -> None:
        self.node = node
        self.holds = holds
        hardware = self.hardware = node.hardware
        programs = DriverPrograms(node.files, lambda: find_driver_root(node.files))
        self.effects = {
            MigMode: MigModes(hardware, sleep=lambda _: None),
            GpuInstance: GpuInstances(hardware, sleep=lambda _: None),
            ComputeInstance: ComputeInstances(hardware, sleep=lambda _: None),
            ComputeMode: ComputeModes(hardware),
            TimeSlice: TimeSlices(programs, hardware),
        }
        self.records: dict[Hold, HoldRecord] = {}

    def make(self) -> None:
        boot = self.hardware.boot_id()
        for hold in self.holds:
            before = self.effects[type(hold)].before(hold, self.records)
            self.records[hold] = HoldRecord(HoldState.INTENT, boot, before)
        for hold in self.holds:
            made = self.effects[type(hold)].make(hold, self.records)
            self.records[hold] = HoldRecord(HoldState.MADE, boot, made)

    def undo(self) -> None:
        """As far as it goes: what is beneath a hold that stays has to stay, too."""
        for hold in reversed(self.holds):
            if hold in self.records:
                try:
                    self.effects[type(hold)].undo(hold, self.records, self.hardware.boot_id())
                except HardwareError:
                    return
                del self.records[hold]


def identity(node: Node) -> GpuIdentity:
    gpu = node.host.state.gpus[0]
    return GpuIdentity(gpu.uuid, gpu.address)


def in_parts(node: Node) -> Claim:
    parent = GpuInstance(identity(node), "1g.10gb", 19, 0, 1)
    return Claim(node, (MigMode(identity(node)), parent, ComputeInstance(parent)))


def divided(node: Node) -> Claim:
    """MIG mode alone, as it is when what was in it is gone."""
    return Claim(node, (MigMode(identity(node)),))


def exclusive(node: Node) -> Claim:
    return Claim(node, (ComputeMode(identity(node), 3),))


def sliced(node: Node) -> Claim:
    return Claim(node, (TimeSlice(identity(node), "Long"),))


def leftovers(claim: Claim, wrong: Callable[[], None], well: Callable[[], None]) -> Iterator[object]:
    """What differs from the start after an undo while something is wrong, and another when it is well again."""
    before = claim.node.host.snapshot(0)
    claim.make()
    wrong()
    claim.undo()
    well()
    claim.undo()
    if claim.records:
        yield list(claim.records)
    if (after := claim.node.host.snapshot(0)) != before:
        yield after


def failing_call(claim: Claim, call: str, code: int, times: int | None) -> Iterator[object]:
    host = claim.node.host
    return leftovers(
        claim, lambda: fail_call(host, 0, call, code, times=times), lambda: fail_call(host, 0, call, 0, times=None)
    )


@pytest.mark.parametrize("call", slow_but(CALLS, *CALLS[::8]))
def test_parts_of_a_gpu_are_gone_when_nvml_is_well_again(tmp_path: Path, call: str) -> None:
    claim = in_parts(a_node(tmp_path, gpus=2))
    for number, code in enumerate(CODES):
        for times in (1, None) if code in (3, 6, 15) else ((1, None)[number % 2],):
            assert not list(failing_call(claim, call, code, times)), (call, code, times)


@pytest.mark.parametrize(
    "call",
    slow_but(
        ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode", "nvmlDeviceSetMigMode"],
        "nvmlDeviceGetMigMode",
        "nvmlDeviceSetMigMode",
    ),
)
def test_mig_mode_is_off_when_nvml_is_well_again(tmp_path: Path, call: str) -> None:
    claim = divided(a_node(tmp_path))
    for code in CODES:
        for times in (1, 2, None):
            assert not list(failing_call(claim, call, code, times)), (call, code, times)


@pytest.mark.parametrize(
    "call",
    slow_but(
        ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetComputeMode", "nvmlDeviceSetComputeMode"],
        "nvmlDeviceSetComputeMode",
    ),
)
def test_a_compute_mode_is_back_when_nvml_is_well_again(tmp_path: Path, call: str) -> None:
    claim = exclusive(a_node(tmp_path, gpus=2))
    for code in CODES:
        for times in (1, None):
            assert not list(failing_call(claim, call, code, times)), (call, code, times)


@pytest.mark.parametrize("kind", slow_but([in_parts, divided, exclusive, sliced], divided))
def test_a_gpu_that_answered_nothing_is_as_before_when_it_is_well_again(
    tmp_path: Path, kind: Callable[[Node], Claim]
) -> None:
    claim = kind(a_node(tmp_path, gpus=2))
    host = claim.node.host
    for code in CODES if kind is not sliced else (1, 3, 6, 9, 15, 999):
        remains = leftovers(claim, lambda code=code: host.lose_gpu(0, code), lambda: host.lose_gpu(0, 0))
        assert not list(remains), code
