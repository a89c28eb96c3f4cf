"""Programs of the host: asked what they say, with the host's root and bounded in time; and found by a mark.

A host's program may be a script that names other files of the host, or need the host's C library, so it must see the
host's root. A process with threads cannot change its own root, and the image need not have `chroot`: a small process
changes its root and becomes the program.

A daemon that an effect starts has a variable in its environment that names what it belongs to; its children inherit
that. So our daemons are found again after a restart of the plugin, with their servers, and no other process is taken
for one, however often the kernel reuses a number. Pods set variables, too, so a process counts only if it is in the PID
namespace of this process, which is the host's: a pod's container has another. Nothing here signals a process.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware.sysfs import HostFiles

ANSWER_WITHIN_S = 5.0

_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
_DESCRIBED = "recorded answers of a program\n"
_NOT_RECORDED = 127
_CANNOT = 125
"""Exit status when the program was not started, as of `chroot` and `env`."""
_EXEC_S = 1.0
"""How long a process without environment may be one that is being started: on a busy node more than 0.1 s were seen."""
_SELF = Path("/proc/self")
_PID_NAMESPACE = "ns/pid"
_BECOME = f"""\
import os, sys
try:
    os.chroot(sys.argv[1])
    os.chdir("/")
    os.execve(sys.argv[2], sys.argv[2:], {_ENVIRONMENT!r})
except OSError as error:
    print(error.strerror)
    sys.exit({_CANNOT})
"""


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """Exit status, and what the program wrote to both outputs."""

    status: int
    output: str


type Ask = Callable[[Sequence[str]], ProgramOutput]
"""Runs a program with its words, the first of which is its absolute path on the host. Raises NodeNotReady when it
cannot be started or does not end in time."""


def asking(root: Path) -> Ask:
    """Asks programs of the host whose root is mounted at `root`; when that is not `/`, some 20 ms for each question."""

    def ask(words: Sequence[str]) -> ProgramOutput:
        described = _described(root, words) if root != Path("/") else None
        if described is not None:
            return described
        command = list(words) if root == Path("/") else _in_root(root, words)
        answer = answer_within(ANSWER_WITHIN_S, command, _ENVIRONMENT, about=f"program {words[0]}")
        if answer.status == _CANNOT:
            raise NodeNotReady(
                f"cannot be started on the host: {answer.output.strip()}; it must be an executable of this machine's"
                " architecture on a file system without noexec, and asking needs root (CAP_SYS_CHROOT)",
                about=f"program {words[0]}",
            )
        return answer

    return ask


def described_program(answers: Mapping[str, ProgramOutput]) -> str:
    """The text of a file that stands for a program of a host in a folder: what it answers, by its words."""
    outputs = {words: [answer.status, answer.output] for words, answer in sorted(answers.items())}
    return _DESCRIBED + json.dumps(outputs, indent=1) + "\n"


def _described(root: Path, words: Sequence[str]) -> ProgramOutput | None:
    """The answer of a described program; None when the file is a real program, or is not there."""
    path = HostFiles(root).resolve(words[0])
    try:
        with HostFiles(root).path(path or words[0]).open("rb") as file:
            if file.read(len(_DESCRIBED)) != _DESCRIBED.encode():
                return None
            status, output = json.load(file).get(" ".join(words[1:]), (_NOT_RECORDED, "not in the record"))
    except (OSError, ValueError):
        return None
    return ProgramOutput(int(status), str(output))


def _in_root(root: Path, words: Sequence[str]) -> list[str]:
    # Isolated (-I) and without site packages (-S): nothing but the standard library, and at once.
    return [sys.executable, "-I", "-S", "-c", _BECOME, str(root), *words]


def answer_within(limit_s: float, command: Sequence[str], environment: Mapping[str, str], about: str) -> ProgramOutput:
    """Its children end with it. Raises NodeNotReady when it cannot be started or does not end in time."""
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=dict(environment),
            process_group=0,
        ) as process:
            try:
                output, _ = process.communicate(timeout=limit_s)
            except BaseException:
                # A child of a script would keep the pipe open, and us waiting for its end.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
    except subprocess.TimeoutExpired as error:
        raise NodeNotReady(f"has not ended in {limit_s:g} s", about=about) from error
    except OSError as error:
        raise NodeNotReady(f"cannot be started: {error.strerror}", about=about) from error
    return ProgramOutput(process.returncode, output)


@dataclass(frozen=True, slots=True, order=True)
class MarkedProcess:
    """`started` is in clock ticks after boot, and with `pid` the identity of a process in this boot."""

    started: int
    pid: int
    mark: str


class Processes:
    """What `proc` shows: the /proc of the host's PID namespace."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc

    def marked(self, variable: str) -> tuple[MarkedProcess, ...]:
        """All of this PID namespace with this variable in their environment, oldest first; costs some 20 ms for a
        thousand processes."""
        names = (entry.name for entry in self._proc.iterdir())
        processes = (self._process(int(name), variable) for name in names if name.isdecimal())
        return tuple(sorted(process for process in processes if process is not None))

    def runs(self, process: MarkedProcess) -> bool:
        """Whether it is there and has not ended; a zombie has."""
        return self._started(process.pid) == process.started

    def known_by(self, pid: int, mark: str) -> MarkedProcess | None:
        """The process with this number, which the caller knows to have the mark; None when it has ended."""
        started = self._started(pid)
        return MarkedProcess(started, pid, mark) if started is not None else None

    def _process(self, pid: int, variable: str) -> MarkedProcess | None:
        mark = next(self._values(pid, variable.encode()), None)
        if mark is None or not self._is_in_this_namespace(pid):
            return None
        started = self._started(pid)
        return MarkedProcess(started, pid, mark) if started is not None else None

    def _is_in_this_namespace(self, pid: int) -> bool:
        """A process that has ended is in none."""
        try:
            return (self._proc / str(pid) / _PID_NAMESPACE).readlink() == (_SELF / _PID_NAMESPACE).readlink()
        except OSError:
            return False

    def _values(self, pid: int, variable: bytes) -> Iterator[str]:
        for item in self._environment(pid).split(b"\0"):
            name, _, value = item.partition(b"=")
            if name == variable:
                yield value.decode(errors="replace")

    def _environment(self, pid: int) -> bytes:
        """Empty when it has none, has ended, or may not be read.

        Linux shows no environment while execve(2) makes a new program, even after its caller has continued. Such a
        process is looked at again. Source: proc(5), fields 50 and 51 of /proc/<pid>/stat, the environment's addresses:
        0 at first, then equal for a moment, as they stay when it is empty.
        """
        folder = self._proc / str(pid)
        deadline, before = time.monotonic() + _EXEC_S, [""]
        with contextlib.suppress(OSError):
            while True:
                environment = (folder / "environ").read_bytes()
                if environment or time.monotonic() > deadline:
                    return environment
                (folder / "exe").readlink()  # fails for a kernel thread and a zombie, which have no program
                addresses = self._status(pid)[47:49]
                if addresses == before and len(set(addresses) - {"0"}) == 1:
                    return environment
                before = addresses
                time.sleep(0.0005)
        return b""

    def _started(self, pid: int) -> int | None:
        """Source: proc(5), field 22 of /proc/<pid>/stat."""
        words = self._status(pid)
        return int(words[19]) if words and words[0] not in ("Z", "X") else None

    def _status(self, pid: int) -> list[str]:
        """The fields of /proc/<pid>/stat from the third on; the name before it may contain anything."""
        try:
            fields = (self._proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return fields.rpartition(")")[2].split()
