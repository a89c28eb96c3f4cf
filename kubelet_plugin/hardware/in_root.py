"""Asks programs of the host what they say, from the plugin's container: with the host's root, bounded in time.

`kubelet_plugin.hardware.hook_program` and `kubelet_plugin.doctor.looking` enter here. A host's program may be a script
that names other files of the host, or need the host's C library, so it must see the host's root. A process with threads
cannot change its own root, and the image need not have `chroot`: a small process changes its root and becomes the
program.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
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
class Answer:
    """Exit status, and what the program wrote to both outputs."""

    status: int
    output: str


type Ask = Callable[[Sequence[str]], Answer]
"""Runs a program with its words, the first of which is its absolute path on the host. Raises NodeNotReady when it
cannot be started or does not end in time."""


def asking(root: Path) -> Ask:
    """Asks programs of the host whose root is mounted at `root`; when that is not `/`, some 20 ms for each question."""

    def ask(words: Sequence[str]) -> Answer:
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


def described_program(answers: Mapping[str, Answer]) -> str:
    """The text of a file that stands for a program of a host in a folder: what it answers, by its words."""
    told = {words: [answer.status, answer.output] for words, answer in sorted(answers.items())}
    return _DESCRIBED + json.dumps(told, indent=1) + "\n"


def _described(root: Path, words: Sequence[str]) -> Answer | None:
    """The answer of a described program; None when the file is a real program, or is not there."""
    path = HostFiles(root).resolve(words[0])
    try:
        with HostFiles(root).path(path or words[0]).open("rb") as file:
            if file.read(len(_DESCRIBED)) != _DESCRIBED.encode():
                return None
            status, output = json.load(file).get(" ".join(words[1:]), (_NOT_RECORDED, "not in the record"))
    except (OSError, ValueError):
        return None
    return Answer(int(status), str(output))


def _in_root(root: Path, words: Sequence[str]) -> list[str]:
    # Isolated (-I) and without site packages (-S): nothing but the standard library, and at once.
    return [sys.executable, "-I", "-S", "-c", _BECOME, str(root), *words]


def answer_within(limit_s: float, command: Sequence[str], environment: Mapping[str, str], about: str) -> Answer:
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
    return Answer(process.returncode, output)
