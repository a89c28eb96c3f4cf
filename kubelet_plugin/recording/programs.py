"""What programs of the node answer to harmless questions: their versions, their options, and what nvidia-smi lists.

Nothing here asks a program to change anything, none gets any input, and each has a limit of time and of output.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.in_root import Answer as Said
from kubelet_plugin.hardware.in_root import answer_within, asking
from kubelet_plugin.hardware.layouts import BINARY_FOLDERS
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.record.format import Answer

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
_HOOK_COMMANDS = (
    *("create-symlinks", "update-ldcache", "enable-cuda-compat", "disable-device-node-modification"),
    "update-application-profile",
)
_OF_HOST = ("systemctl", "containerd", "crio", "runc", "crun", "kubelet")
_MORE_FOLDERS = ("/usr/local/nvidia/toolkit", "/var/lib/rancher/k3s/data/current/bin", "/usr/local/sbin")

type Progress = Callable[[str], None]


class ProgramsOfNode:
    """`host` is the host's root for this process."""

    def __init__(self, host: HostFiles, programs: DriverPrograms) -> None:
        self._host = host
        self._programs = programs
        self._ask = asking(host.root)

    def answers(self, progress: Progress) -> Iterator[Answer]:
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

    def _of_driver(self, name: str, words: Sequence[str]) -> Answer | None:
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

    def _of_host(self, path: str) -> Iterator[Answer]:
        name = path.rpartition("/")[2]
        questions = [["--version"]]
        if name in _HOOKS:
            hook = ["hook"] if name == "nvidia-ctk" else []
            questions += [[*hook, "--help"], *([*hook, command, "--help"] for command in _HOOK_COMMANDS)]
        for words in questions:
            yield _timed(Answer(path=path, words=words), partial(self._ask, [path, *words]))


def answer_of(
    command: Sequence[str],
    path: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    patience_s: float = _PATIENCE_S,
) -> Answer:
    """Run it; its children end with it. Never raises for what the program does."""
    ask = partial(answer_within, patience_s, command, environment, about=f"program {path}")
    return _timed(Answer(path=path, words=list(words)), ask)


def _timed(answer: Answer, ask: Callable[[], Said]) -> Answer:
    """With what `ask` gets, how long that took, and why there is nothing."""
    started = time.monotonic()
    try:
        got = ask()
        answer.status, answer.output = got.status, got.output[:_MOST_OUTPUT]
    except NodeNotReady as error:
        answer.problem = error.message
    answer.ms = round(1000 * (time.monotonic() - started), 1)
    return answer
