"""Questions to NVML and to programs beyond what discovery asks: read only and cheap.

`ask_nvml` asks through the recording library (`kubelet_plugin.recording.take`), which keeps the answers; here they are
ignored, and so are refusals. `nvidia-smi -q` says the rest that may be useful when a defect is looked for.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pynvml

from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.hook_program import NEEDED_FLAGS
from kubelet_plugin.hardware.host_programs import ProgramOutput, answer_within, asking
from kubelet_plugin.hardware.layouts import BINARY_FOLDERS
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.simulation.recorded.format import ProgramAnswer

_PATIENCE_S = 15.0
_MOST_OUTPUT = 512 * 1024

_OF_DRIVER: tuple[tuple[str, ...], ...] = (
    ("nvidia-smi", "--version"),
    ("nvidia-smi", "-L"),
    ("nvidia-smi", "mig", "-lgip"),
    ("nvidia-smi", "mig", "-lgipp"),
    ("nvidia-smi", "topo", "-m"),
    ("nvidia-smi", "-q"),
    ("nvidia-cuda-mps-control", "-h"),
    ("nvidia-imex", "--version"),
    ("nvidia-imex-ctl", "--version"),
    ("nvidia-modprobe", "--version"),
    ("nvidia-persistenced", "--version"),
)
_HOOKS = ("nvidia-cdi-hook", "nvidia-ctk")
_OF_HOST = ("systemctl", "containerd", "crio", "runc", "crun", "kubelet")
_MORE_FOLDERS = ("/usr/local/nvidia/toolkit", "/var/lib/rancher/k3s/data/current/bin", "/usr/local/sbin")

type Progress = Callable[[str], None]


class ProgramsOfNode:
    """`host` is the host's root for this process."""

    def __init__(self, host: HostFiles, programs: DriverPrograms) -> None:
        self._host = host
        self._programs = programs
        self._ask = asking(host.root)

    def answers(self, progress: Progress) -> Iterator[ProgramAnswer]:
        """Of all programs that are there, one after the other."""
        silent: set[str] = set()
        for name, *words in _OF_DRIVER:
            if name not in silent:
                progress(f"asking {name} {' '.join(words)}")
                answer = self._of_driver(name, words)
                if answer is None or (answer.status is None and answer.problem is not None):
                    silent.add(name)  # one that hangs hangs again
                if answer is not None:
                    yield answer
        for path in self._paths((*_HOOKS, *_OF_HOST)):
            progress(f"asking {path}")
            yield from self._of_host(path)

    def _of_driver(self, name: str, words: Sequence[str]) -> ProgramAnswer | None:
        try:
            program = self._programs.find(name)
        except NodeNotReady:
            return None
        environment = {"PATH": os.defpath, "LD_PRELOAD": str(program.nvml_library)}
        return answer_of([str(program.file), *words], program.path, words, environment)

    def _paths(self, names: Sequence[str]) -> Iterator[str]:
        done = set()
        for name in names:
            for folder in (*BINARY_FOLDERS, *_MORE_FOLDERS):
                resolved = self._host.resolve(f"{folder}/{name}")
                if resolved is not None and str(resolved) not in done:
                    done.add(str(resolved))
                    yield f"{folder}/{name}"

    def _of_host(self, path: str) -> Iterator[ProgramAnswer]:
        name = path.rpartition("/")[2]
        questions = [["--version"]]
        if name in _HOOKS:
            hook = ["hook"] if name == "nvidia-ctk" else []
            questions += [[*hook, "--help"], *([*hook, command, "--help"] for command in NEEDED_FLAGS)]
        for words in questions:
            yield _timed(ProgramAnswer(path=path, words=words), partial(self._ask, [path, *words]))


def answer_of(
    command: Sequence[str],
    path: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    patience_s: float = _PATIENCE_S,
) -> ProgramAnswer:
    """Run it; its children end with it. Never raises for what the program does."""
    ask = partial(answer_within, patience_s, command, environment, about=f"program {path}")
    return _timed(ProgramAnswer(path=path, words=list(words)), ask)


def _timed(answer: ProgramAnswer, ask: Callable[[], ProgramOutput]) -> ProgramAnswer:
    """With what `ask` gets, how long that took, and why there is nothing."""
    started = time.monotonic()
    try:
        got = ask()
        answer.status, answer.output = got.status, got.output[:_MOST_OUTPUT]
    except NodeNotReady as error:
        answer.problem = error.message
    answer.ms = round(1000 * (time.monotonic() - started), 1)
    return answer


_OF_GPU = tuple(
    f"nvmlDeviceGet{name}"
    for name in (
        *("Name", "UUID", "MinorNumber", "PciInfo", "Serial", "CudaComputeCapability", "MemoryInfo", "MigMode"),
        *("ComputeMode", "PersistenceMode", "VirtualizationMode", "SupportedEventTypes"),
        *("BoardPartNumber", "InforomImageVersion", "GspFirmwareVersion", "NumaNodeId"),
    )
)
"""Each takes a handle and nothing else."""


def ask_nvml(library: Any, progress: Progress) -> None:
    """Ask what the plugin or a replayed node needs of each GPU beyond discovery, also of one that discovery gave up.

    `library` is initialized again, which NVML counts.
    """
    ask = partial(_asked, library)
    if ask("nvmlInitWithFlags", pynvml.NVML_INIT_FLAG_NO_GPUS) is _REFUSED:
        return
    count = ask("nvmlDeviceGetCount")
    for index in range(count if isinstance(count, int) else 0):
        progress(f"asking NVML about GPU {index + 1} of {count}")
        gpu = ask("nvmlDeviceGetHandleByIndex", index)
        for name in _OF_GPU if gpu is not _REFUSED else ():
            ask(name, gpu)
    ask("nvmlShutdown")


_REFUSED = object()


def _asked(library: Any, name: str, *args: Any) -> Any:
    if not hasattr(library, name):
        return _REFUSED
    try:
        return getattr(library, name)(*args)
    except (library.NVMLError, UnicodeDecodeError, ValueError, TypeError):
        return _REFUSED
