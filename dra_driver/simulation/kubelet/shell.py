"""The few commands that containers of a simulated cluster understand, for `kubectl logs` and `exec`. Pure.

Programs of containers do not run. Those that people use to look at their devices are answered from what the container
got: `nvidia-smi`, `ls`, `env` and some others, alone or in a script of the shell. The log of any other program
describes what it would see.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from posixpath import normpath
from string import Template

from dra_driver.api.meta import JsonObject

_SHELLS = ("sh", "bash", "ash", "dash", "/bin/sh", "/bin/bash")
_SEPARATORS = (";", "&&", "&", "\n", ";;")
_SILENT = ("trap", "set", "export", "cd", "wait", ":", "true", "sleep")
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)s?")
NOT_UNDERSTOOD = 127
"""Exit status of a shell for a command that it does not find."""


@dataclass(frozen=True, slots=True)
class SmiGpu:
    """One line of `nvidia-smi -L`. `profile` and `parent` (a UUID) are those of a MIG device."""

    product: str
    uuid: str
    profile: str = ""
    parent: str = ""


@dataclass(frozen=True, slots=True)
class ContainerView:
    """What the programs of one container would find."""

    hostname: str
    image: str
    command: tuple[str, ...]
    env: tuple[str, ...]
    files: tuple[str, ...]
    """Paths of device nodes and mounts."""
    gpus: tuple[SmiGpu, ...]
    now: str = ""
    """What `date` prints."""


@dataclass(frozen=True, slots=True)
class Printed:
    """What a command printed, and its exit status."""

    text: str
    status: int = 0


class NotUnderstood(Exception):
    """A command that does not run here, by its first word."""


def command_of(container: JsonObject) -> tuple[str, ...]:
    return (*(container.get("command") or ()), *(container.get("args") or ()))


def lifetime_s(command: Sequence[str]) -> float | None:
    """Seconds after which a program with this command line has ended; None for one that is endless or not known."""
    try:
        known = [words if words[0] in UNDERSTOOD else ["wait"] for words in _commands(command)]
    except NotUnderstood:
        return None
    slept = [_slept_s(words) for words in known]
    return sum(item for item in slept if item is not None) if slept and None not in slept else None


def _slept_s(words: list[str]) -> float | None:
    """How long a command takes; None if it has no end."""
    if words[0] == "sleep":
        match = _SECONDS.fullmatch(" ".join(words[1:]))
        return float(match[1]) if match else None
    return None if words[0] == "wait" else 0.0


def exit_status(command: Sequence[str]) -> int:
    """Of a program that ends by itself, see `lifetime_s`; what it finds does not matter."""
    try:
        return run(ContainerView("", "", (), (), (), (SmiGpu("", ""),)), command).status
    except NotUnderstood:
        return 0


def run(view: ContainerView, command: Sequence[str]) -> Printed:
    """A command line of `kubectl exec`, or of the container itself. Raises NotUnderstood."""
    text, status = "", 0
    variables = dict(item.partition("=")[::2] for item in view.env)
    for words in _commands(command):
        words = [Template(word).safe_substitute(variables) for word in words]
        if words[0] == "exit":
            return Printed(text, int(words[1]) if len(words) > 1 else status)
        if _slept_s(words) is None:
            return Printed(text)
        first, *filters = [list(part) for bar, part in groupby(words, "|".__eq__) if not bar]
        printed, status = _run(view, first, variables)
        for wanted in filters:
            printed, status = _grep(printed, wanted)
        text += printed
    return Printed(text, status)


def described(view: ContainerView) -> str:
    """The log of a program that does not run here."""
    lines = [
        f"simulated: the program of image {view.image} does not run here. It would see:",
        f"command: {shlex.join(view.command) or '(of the image)'}",
        *(_smi_list(view).splitlines() or ["no GPU"]),
        *(f"device file: {path}" for path in view.files if path.startswith("/dev/")),
        f"other files: {sum(not path.startswith('/dev/') for path in view.files)}",
        *(f"env: {item}" for item in view.env),
    ]
    return "\n".join(lines) + "\n"


def _commands(command: Sequence[str]) -> Iterator[list[str]]:
    """The commands of a script, or the one that there is, without `exec` and redirections."""
    if command and command[0] in _SHELLS:
        flags = [word for word in command[1:] if word.startswith("-")]
        scripts = [word for word in command[1:] if not word.startswith("-")]
        if not any("c" in flag for flag in flags) or not scripts:
            raise NotUnderstood(command[0])
        yield from _script(scripts[0])
    elif command:
        yield _plain(list(command))


def _script(text: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(text.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for token in (*lexer, ";"):
            if token not in _SEPARATORS:
                words.append(token)
            elif words:
                yield _plain(words)
                words = []
    except ValueError as error:  # a quote that is not closed
        raise NotUnderstood(text) from error


def _plain(words: list[str]) -> list[str]:
    if words[0] == "exec" and len(words) > 1:
        words = words[1:]
    words = [word for word in words if word not in ("2", "1")] if ">&" in words else words
    if any(word != "|" and set(word) & set("|<>()`") for word in words) or any("$(" in word for word in words):
        raise NotUnderstood(" ".join(words))
    return [words[0].rpartition("/")[2], *words[1:]]


def _grep(text: str, words: list[str]) -> tuple[str, int]:
    if words[0] != "grep" or len(words) != 2:
        raise NotUnderstood(words[0])
    lines = [line for line in text.splitlines(keepends=True) if re.search(words[1], line)]
    return "".join(lines), int(not lines)


def _run(view: ContainerView, words: list[str], variables: dict[str, str]) -> tuple[str, int]:
    name, rest = words[0], words[1:]
    if name in _SILENT:
        return "", 0
    if name == "false":
        return "", 1
    if name == "nvidia-smi":
        return _smi(view, rest)
    if name == "ls":
        return _ls(view, [word for word in rest if not word.startswith("-")])
    if name == "echo":
        return " ".join(rest[1:] if rest[:1] == ["-n"] else rest) + "\n", 0
    if name in ("hostname", "date"):
        return f"{view.hostname if name == 'hostname' else view.now}\n", 0
    if name == "printenv" and rest:
        return "".join(f"{variables[item]}\n" for item in rest if item in variables), int(rest[0] not in variables)
    if name in ("env", "printenv") and not rest:
        return "".join(f"{item}\n" for item in view.env), 0
    raise NotUnderstood(name)


UNDERSTOOD = ("nvidia-smi", "ls", "env", "printenv", "echo", "hostname", "date", "exit", "false", *_SILENT)


def _smi(view: ContainerView, rest: list[str]) -> tuple[str, int]:
    if not view.gpus:
        return "No devices were found\n", 6
    if rest in ([], ["-L"], ["--list-gpus"]):
        return _smi_list(view), 0
    raise NotUnderstood("nvidia-smi with other options than -L")


def _smi_list(view: ContainerView) -> str:
    whole = {gpu.parent or gpu.uuid: gpu for gpu in view.gpus}
    lines = []
    for number, (uuid, gpu) in enumerate(whole.items()):
        lines.append(f"GPU {number}: {gpu.product} (UUID: {uuid})")
        parts = [part for part in view.gpus if part.parent == uuid]
        lines += [f"  MIG {part.profile:<11} Device {at:>2}: (UUID: {part.uuid})" for at, part in enumerate(parts)]
    return "".join(f"{line}\n" for line in lines)


def _ls(view: ContainerView, patterns: list[str]) -> tuple[str, int]:
    lines: list[str] = []
    status = 0
    for pattern in patterns or ["/"]:
        wanted = normpath(pattern)
        known = [path for path in view.files if fnmatchcase(path, wanted) and path.count("/") == wanted.count("/")]
        inside = [path for path in view.files if path.startswith(f"{wanted.rstrip('/')}/")]
        status = status if known or inside else 2
        lines += known or dict.fromkeys(
            path.removeprefix(f"{wanted.rstrip('/')}/").partition("/")[0] for path in inside
        )
        if not known and not inside:
            lines.append(f"ls: cannot access '{pattern}': No such file or directory")
    return "".join(f"{line}\n" for line in lines), status
