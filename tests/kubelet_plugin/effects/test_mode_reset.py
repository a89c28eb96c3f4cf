"""The order of a reset that switches MIG mode, against a GPU that answers as it is told: effects/mode_reset.py. Against
the simulated NVML and programs: tests/kubelet_plugin/test_mode_changes.py."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dra_driver.errors import HardwareError
from kubelet_plugin.effects.mode_reset import ModeResets
from kubelet_plugin.hardware.calls import NvmlCode
from kubelet_plugin.hardware.mig import Mode
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.holds import GpuIdentity

GPU = GpuIdentity("GPU-0", "0000:10:00.0")
OFF, ON = Mode(False, False), Mode(True, True)


@dataclass
class OneGpu:
    """NVML, its sessions, and nvidia-smi. `nvml_resets` and `smi_resets`: the reset that each tries succeeds."""

    now: Mode | None = OFF
    nvml_resets: bool = False
    smi_resets: bool = True
    done: list[str] = field(default_factory=list)

    def use(self, gpu: GpuIdentity, work: Callable[[Any], Any]) -> Any:
        assert gpu == GPU
        return work(self)

    def mig(self, uuid: str) -> "OneGpu":
        return self

    def mode(self) -> Mode | None:
        return self.now

    def set_mode(self, on: bool) -> None:
        assert self.now is not None
        self.done.append(f"set {on}")
        self.now = Mode(on if self.nvml_resets else self.now.on, on)

    def instances(self, *, sure: bool) -> list[str]:
        assert sure
        return ["1g.5gb"]

    def without_nvml(self, work: Callable[[], None]) -> None:
        self.done.append("no session")
        work()

    def reset(self, gpu: GpuIdentity) -> None:
        self.done.append("nvidia-smi")
        if self.smi_resets and self.now is not None:
            self.now = Mode(self.now.pending, self.now.pending)


class Resets(ModeResets):
    programs: tuple[str, ...] = ()

    def users(self, gpu: GpuIdentity) -> tuple[str, ...]:
        return self.programs


def resets(gpu: OneGpu, folder: Path) -> Resets:
    nvml: Any = gpu
    return Resets(HostFiles(folder), nvml, gpu, gpu)


@pytest.mark.parametrize(
    ("gpu", "done"),
    [
        (OneGpu(now=ON), []),
        (OneGpu(nvml_resets=True), ["set True", "no session"]),
        (OneGpu(), ["set True", "no session", "no session", "nvidia-smi"]),
    ],
)
def test_no_more_is_done_than_the_gpu_needs(gpu: OneGpu, done: list[str], tmp_path: Path) -> None:
    resets(gpu, tmp_path).switch(GPU, on=True)
    assert gpu.done == done
    assert gpu.now == ON


def test_a_program_that_comes_in_between_is_not_harmed(tmp_path: Path) -> None:
    gpu = OneGpu()
    changes = resets(gpu, tmp_path)
    changes.programs = ("python3 (7)",)
    with pytest.raises(HardwareError, match=r"programs have the GPU open: python3 \(7\)") as refused:
        changes.switch(GPU, on=True)
    assert refused.value.code == NvmlCode.IN_USE
    assert "nvidia-smi" not in gpu.done


@pytest.mark.parametrize(("now", "on", "word"), [(OFF, True, "off"), (ON, False, "on")])
def test_a_reset_that_changes_nothing_is_an_error(now: Mode, on: bool, word: str, tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match=f"MIG mode is {word} after the reset"):
        resets(OneGpu(now=now, smi_resets=False), tmp_path).switch(GPU, on=on)


def test_nothing_is_switched_while_the_mode_is_not_known(tmp_path: Path) -> None:
    gpu = OneGpu(now=None)
    changes = resets(gpu, tmp_path)
    for act in (
        lambda: changes.switch(GPU, on=True),
        lambda: changes.cancel(GPU),
        lambda: changes.instances(GPU),
    ):
        with pytest.raises(HardwareError, match="NVML does not say now"):
            act()
    assert gpu.done == []


@pytest.mark.parametrize(("now", "instances"), [(OFF, ()), (ON, ("1g.5gb",))])
def test_instances_are_asked_for_in_mig_mode_alone(now: Mode, instances: tuple[str, ...], tmp_path: Path) -> None:
    assert resets(OneGpu(now=now), tmp_path).instances(GPU) == instances


@pytest.mark.parametrize(
    ("now", "done"), [(Mode(False, True), ["set False"]), (Mode(True, False), ["set True"]), (ON, []), (OFF, [])]
)
def test_a_change_that_is_canceled_is_not_pending(now: Mode, done: list[str], tmp_path: Path) -> None:
    gpu = OneGpu(now=now)
    assert resets(gpu, tmp_path).cancel(GPU) is now.on
    assert gpu.done == done
    assert gpu.now == Mode(now.on, now.on)
