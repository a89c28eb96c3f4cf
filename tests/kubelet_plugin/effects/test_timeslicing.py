"""Time slices, set by the nvidia-smi of a simulated driver root."""

from pathlib import Path
from typing import get_args

import pytest
from support.mishaps import bind_gpu, remove_driver_files, run_persistenced, unload_driver
from support.nodes import Node
from support.rows import slow_but

from dra_driver.errors import HardwareError, NodeNotReady
from kubelet_plugin.effects.gpu_settings import TimeSlices
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.driver_root import find_driver_root
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.execute import _is_out_of_reach
from kubelet_plugin.prepare.holds import GpuIdentity, HoldRecord, HoldState, TimeSlice
from kubelet_plugin.simulation.driver_files import PLACES
from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.state import Layout

_BOOT = "boot-1"


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return create_host(tmp_path / "host", "l40s")


def _effect(host: SimulatedHost) -> TimeSlices:
    files = HostFiles(host.root)
    return TimeSlices(DriverPrograms(files, lambda: find_driver_root(files)), Node(host).hardware)


def _gpu(host: SimulatedHost, index: int = 0) -> GpuIdentity:
    gpu = host.state.gpus[index]
    return GpuIdentity(gpu.uuid, gpu.address)


def _slices(host: SimulatedHost) -> list[int]:
    return [gpu.time_slice for gpu in host.state.gpus]


def _made(hold: TimeSlice) -> dict[TimeSlice, HoldRecord]:
    return {hold: HoldRecord(HoldState.UNDOING, _BOOT)}


@pytest.mark.parametrize(
    ("interval", "number"),
    slow_but([("Default", 0), ("Short", 1), ("Medium", 2), ("Long", 3)], ("Default", 0), ("Long", 3)),
)
def test_the_interval_is_set_on_one_gpu_and_taken_back(host: SimulatedHost, interval: str, number: int) -> None:
    assert interval in get_args(TimeSlice.__annotations__["interval"])
    hold = TimeSlice(_gpu(host, 3), interval)
    effect = _effect(host)
    effect.before(hold, {})
    assert not any(_slices(host))
    for _ in range(2):
        effect.make(hold, {})
        assert _slices(host) == [number if index == 3 else 0 for index in range(8)]
    for _ in range(2):
        effect.undo(hold, _made(hold), _BOOT)
        assert not any(_slices(host))


def test_a_gpu_that_is_not_persistent_keeps_it_while_we_have_it_open(host: SimulatedHost) -> None:
    run_persistenced(host, running=False)
    effect = _effect(host)
    effect.make(TimeSlice(_gpu(host), "Long"), {})
    Node(host).nvml().stop()  # somebody looks
    assert _slices(host)[0] == 3


def test_it_is_not_set_while_the_gpus_are_released(host: SimulatedHost) -> None:
    hardware = Node(host).hardware
    files = HostFiles(host.root)
    effect = TimeSlices(DriverPrograms(files, lambda: find_driver_root(files)), hardware)
    hardware.release("somebody resets them")
    with pytest.raises(NodeNotReady, match="somebody resets them"):
        effect.undo(TimeSlice(_gpu(host), "Long"), _made(TimeSlice(_gpu(host), "Long")), _BOOT)


@pytest.mark.parametrize("layout", slow_but(PLACES, "root", "operator", "gke"))
def test_nvidia_smi_is_found_in_every_layout_of_a_driver_root(tmp_path: Path, layout: Layout) -> None:
    host = create_host(tmp_path / "host", "t4", layout=layout)
    _effect(host).make(TimeSlice(_gpu(host), "Long"), {})
    assert _slices(host)[0] == 3


def test_a_gpu_that_cannot_do_it_is_named_with_what_the_driver_said(host: SimulatedHost) -> None:
    with host.edit() as state:
        state.model.compute_capability = (6, 1)
    with pytest.raises(HardwareError) as caught:
        _effect(host).make(TimeSlice(_gpu(host), "Short"), {})
    assert caught.value.code == 3
    assert str(_gpu(host)) in str(caught.value)
    assert "Not Supported" in caught.value.message and "remove the setting" in caught.value.message
    assert not any(_slices(host))


def test_a_lost_gpu_cannot_be_set_and_what_it_has_is_taken_back_when_it_is_well_again(host: SimulatedHost) -> None:
    hold = TimeSlice(_gpu(host), "Short")
    host.lose_gpu(0)
    with pytest.raises(HardwareError, match="lost"):
        _effect(host).make(hold, {})
    with pytest.raises(HardwareError, match="lost"):
        _effect(host).undo(hold, _made(hold), _BOOT)
    host.lose_gpu(0, 0)
    _effect(host).undo(hold, _made(hold), _BOOT)


def test_a_gpu_that_is_divided_has_none_to_take_back(tmp_path: Path) -> None:
    """The record of an earlier claim can come back into the journal from the log of holds, when it was lost."""
    host = create_host(tmp_path / "divided", "dgx-h100")
    host.set_mig(0, 1)
    hold = TimeSlice(_gpu(host), "Long")
    _effect(host).undo(hold, _made(hold), _BOOT)
    with pytest.raises(HardwareError, match="Not Supported"):
        _effect(host).make(hold, {})


def test_one_that_refuses_for_another_reason_keeps_its_record(host: SimulatedHost) -> None:
    with host.edit() as state:
        state.model.compute_capability = (6, 1)
    hold = TimeSlice(_gpu(host), "Short")
    with pytest.raises(HardwareError, match="Not Supported"):
        _effect(host).undo(hold, _made(hold), _BOOT)


@pytest.mark.parametrize("gone", ["driver", "gpu"])
def test_what_left_the_driver_needs_no_undoing(host: SimulatedHost, gone: str) -> None:
    hold = TimeSlice(_gpu(host), "Short")
    if gone == "driver":
        unload_driver(host)
    else:
        bind_gpu(host, 0, "vfio-pci")
    _effect(host).undo(hold, _made(hold), _BOOT)


def test_without_a_driver_it_is_left_for_later(tmp_path: Path) -> None:
    """A driver container that is replaced takes the driver's files with it; its successor may wait for the pods."""
    host = create_host(tmp_path / "host", "l40s")
    effect, hold = _effect(host), TimeSlice(_gpu(host), "Short")
    effect.make(hold, {})
    remove_driver_files(host)
    with pytest.raises(NodeNotReady, match="is in no library folder") as caught:
        effect.undo(hold, _made(hold), _BOOT)
    assert _is_out_of_reach(caught.value)


def test_after_a_reboot_nothing_is_undone(host: SimulatedHost) -> None:
    hold = TimeSlice(_gpu(host), "Short")
    with host.edit() as state:
        state.gpus[0].time_slice = 2  # somebody else's, since the boot
    _effect(host).undo(hold, _made(hold), "boot-2")
    assert _slices(host)[0] == 2


def test_a_driver_root_without_programs_says_where_they_were_looked_for(host: SimulatedHost) -> None:
    (host.root / "usr/bin/nvidia-smi").unlink()
    with pytest.raises(NodeNotReady, match=r"nvidia-smi is in none of .*/usr/bin.* below the driver root /"):
        _effect(host).before(TimeSlice(_gpu(host), "Short"), {})


def test_a_program_that_hangs_is_given_up(host: SimulatedHost) -> None:
    program = host.root / "usr/bin/nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    files = HostFiles(host.root)
    programs = DriverPrograms(files, lambda: find_driver_root(files))
    with pytest.raises(HardwareError, match=r"`nvidia-smi -L` has not ended for 0.2 s"):
        programs.run("nvidia-smi", ("-L",), about="driver", timeout_s=0.2)


def test_a_program_that_needs_another_dynamic_linker_says_so(host: SimulatedHost) -> None:
    program = host.root / "usr/bin/nvidia-smi"
    program.write_text("#!/no/such/loader\n")
    files = HostFiles(host.root)
    programs = DriverPrograms(files, lambda: find_driver_root(files))
    with pytest.raises(HardwareError, match=r"cannot be started: .* must have the C library"):
        programs.run("nvidia-smi", ("-L",), about="driver")
