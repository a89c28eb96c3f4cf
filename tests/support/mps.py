"""MPS of a simulated node, for tests: the effect as a plugin process has it, and programs that use its daemons."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from support.cuda_client import COMMAND

from kubelet_plugin.effects.mps import MARK, MpsDaemons, MpsPatience
from kubelet_plugin.effects.on_host import OnHost
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.driver_root import find_driver_root
from kubelet_plugin.hardware.host_programs import MarkedProcess, Processes
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.holds import GpuIdentity, HoldRecord, HoldState, Made
from kubelet_plugin.simulation.host import SimulatedHost

QUICK = MpsPatience(start_s=5.0, answer_s=5.0, quit_s=0.5, signal_s=2.0)


def effect_for(
    host: SimulatedHost, folder: Path, patience: MpsPatience = QUICK, on_host: OnHost | None = None
) -> MpsDaemons:
    """What a plugin that has just started has: nothing is remembered between two of them."""
    files = HostFiles(host.root)
    on_host = on_host or OnHost.simulated(files)
    programs = DriverPrograms(files, lambda: find_driver_root(files))
    return MpsDaemons(folder, on_host, programs, patience)


def identity(host: SimulatedHost, index: int = 0) -> GpuIdentity:
    gpu = host.state.gpus[index]
    return GpuIdentity(gpu.uuid, gpu.address)


def record(made: Made, state: HoldState = HoldState.MADE, boot_id: str = "boot-1") -> HoldRecord:
    return HoldRecord(state, boot_id, made)


def processes_below(folder: Path) -> tuple[MarkedProcess, ...]:
    processes = Processes(Path("/proc")).marked(MARK)
    return tuple(process for process in processes if process.mark.startswith(f"{folder}/"))


@contextmanager
def no_daemons_left(folder: Path) -> Iterator[None]:
    """Whatever a test does, no process of it stays."""
    try:
        yield
    finally:
        for process in processes_below(folder):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


class Client:
    """A CUDA program in a container of a claim: attached to a daemon, or refused with `error`."""

    def __init__(self, host: SimulatedHost, pipe: str, environment: Mapping[str, str] = {}) -> None:
        self.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": os.defpath, **(environment or {}), "CUDA_MPS_PIPE_DIRECTORY": pipe},
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        self.granted = json.loads(line) if line else {}
        self.error = "" if line else self.process.stderr.read()

    def end(self) -> int:
        _, self.error = self.process.communicate(timeout=10)
        return self.process.returncode

    def died(self) -> str:
        """What it says when it ends of itself, with a failure."""
        assert self.process.wait(10) == 1
        self.end()
        return self.error
