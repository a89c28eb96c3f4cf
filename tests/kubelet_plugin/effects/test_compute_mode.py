"""Compute modes of simulated GPUs, through the NVML session that discovery has."""

from pathlib import Path

import pytest
from support.mishaps import bind_gpu, fail_call, unload_driver
from support.mps import identity

from dra_driver.errors import HardwareError
from kubelet_plugin.effects.gpu_settings import ComputeModes
from kubelet_plugin.facts.hardware import Hardware, NvmlSource
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.holds import ComputeMode, HoldRecord, HoldState, Made
from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.nvml import SimulatedNvml


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return create_host(tmp_path / "host", "l40s")


@pytest.fixture
def files(host: SimulatedHost) -> HostFiles:
    return HostFiles(host.root)


@pytest.fixture
def effect(host: SimulatedHost, files: HostFiles) -> ComputeModes:
    return ComputeModes(Hardware(files, lambda: NvmlSource(SimulatedNvml(host.root), "/")))


def _mode(host: SimulatedHost, index: int = 0) -> int:
    return host.state.gpus[index].compute_mode


def _choose(host: SimulatedHost, mode: int) -> None:
    """What an administrator does."""
    with host.edit() as state:
        state.gpus[0].compute_mode = mode


@pytest.mark.parametrize("was", [0, 2, 3])
def test_the_mode_is_put_back_to_what_an_administrator_had_set(
    host: SimulatedHost, files: HostFiles, effect: ComputeModes, was: int
) -> None:
    hold, boot = ComputeMode(identity(host), 3), files.boot_id()
    _choose(host, was)
    before = effect.before(hold, {})
    assert before == Made((("was", str(was)),)) and _mode(host) == was
    for state in (HoldState.INTENT, HoldState.MADE):  # the second time the mode is ours, and what was is still known
        assert effect.make(hold, {hold: HoldRecord(state, boot, before)}) == before
        assert _mode(host) == 3
    for _ in range(2):
        effect.undo(hold, {hold: HoldRecord(HoldState.UNDOING, boot, before)}, boot)
        assert _mode(host) == was
    assert [gpu.compute_mode for gpu in host.state.gpus[1:]] == [0] * 7


def test_an_intent_that_was_never_carried_out_changes_nothing(
    host: SimulatedHost, files: HostFiles, effect: ComputeModes
) -> None:
    hold, boot = ComputeMode(identity(host), 3), files.boot_id()
    record = HoldRecord(HoldState.INTENT, boot, effect.before(hold, {}))
    effect.undo(hold, {hold: record}, boot)
    assert _mode(host) == 0


def test_a_mode_that_somebody_chose_meanwhile_stays(
    host: SimulatedHost, files: HostFiles, effect: ComputeModes
) -> None:
    hold, boot = ComputeMode(identity(host), 3), files.boot_id()
    record = HoldRecord(HoldState.MADE, boot, Made((("was", "0"),)))
    effect.make(hold, {hold: record})
    _choose(host, 2)
    effect.undo(hold, {hold: record}, boot)
    assert _mode(host) == 2


def test_after_a_reboot_the_mode_is_made_again_and_a_released_one_is_left_alone(
    host: SimulatedHost, files: HostFiles, effect: ComputeModes
) -> None:
    hold, boot = ComputeMode(identity(host), 3), files.boot_id()
    _choose(host, 2)
    record = HoldRecord(HoldState.MADE, boot, effect.before(hold, {}))
    host.reboot()
    effect.undo(hold, {hold: record}, files.boot_id())
    assert _mode(host) == 0
    _choose(host, 3)  # the same mode as ours, chosen by somebody since
    effect.undo(hold, {hold: record}, files.boot_id())
    assert _mode(host) == 3
    _choose(host, 0)
    assert effect.make(hold, {hold: record}) == Made((("was", "0"),))
    assert _mode(host) == 3


def test_a_refused_change_is_an_error_about_the_gpu(
    host: SimulatedHost, files: HostFiles, effect: ComputeModes
) -> None:
    hold = ComputeMode(identity(host), 3)
    record = HoldRecord(HoldState.INTENT, files.boot_id(), effect.before(hold, {}))
    fail_call(host, 0, "nvmlDeviceSetComputeMode", 4)
    with pytest.raises(HardwareError, match="must run as root") as caught:
        effect.make(hold, {hold: record})
    assert hold.gpu.uuid in str(caught.value)
    assert _mode(host) == 0


@pytest.mark.parametrize("gone", ["driver", "bus"])
def test_a_gpu_that_is_gone_has_no_mode_to_take_back(
    host: SimulatedHost, files: HostFiles, effect: ComputeModes, gone: str
) -> None:
    hold, boot = ComputeMode(identity(host), 3), files.boot_id()
    record = HoldRecord(HoldState.UNDOING, boot, Made((("was", "0"),)))
    effect.make(hold, {hold: record})
    {"driver": lambda: unload_driver(host), "bus": lambda: bind_gpu(host, 0, "vfio-pci")}[gone]()
    effect.undo(hold, {hold: record}, boot)
