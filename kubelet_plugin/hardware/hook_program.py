"""The program that finishes containers from the host's side: finds `nvidia-cdi-hook` or `nvidia-ctk`, asks what it can.

`kubelet_plugin.hardware.driver_root` and `kubelet_plugin.doctor.looking` enter here. A container whose spec names a
sub-command or a flag that the program does not have may fail to start, so a program is used only for what it lists.

The host's own program goes first: its administrator keeps it, and the runtime may use it, too. If it lacks a hook that
every container should have, or cannot be used, the program that comes with the plugin's image takes its place.
`ShippedHook` puts that on the host, beside the plugin's journal: a folder that the plugin has for itself and that the
host can execute from (a kubelet's folder always is). It has one name for all releases, and a new one takes its place at
once: CDI files that name it stay right, and a container that starts meanwhile runs the old program or the new one.
During a rolling update the plugin that started last decides. Uninstalling leaves it there, because pods keep their GPUs
and their containers may start again.
"""

import re
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from dra_driver.api.inventory import NO_HOOK_PROGRAM, Problem
from dra_driver.cdi.edits import HookProgram
from dra_driver.errors import NodeNotReady
from dra_driver.runtime.files import is_there, make_folder, read_if_present, remove_temporaries, write_durably
from kubelet_plugin.hardware.host_programs import Ask, asking
from kubelet_plugin.hardware.sysfs import HostFiles, Seen

IN_IMAGE = Path(sys.prefix) / "libexec" / "nvidia-cdi-hook"
"""Where the Dockerfile puts it."""


class InstalledHook:
    """The one that a plugin has put into `folder`, for those who only look."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / IN_IMAGE.name

    @property
    def path(self) -> str:
        """Where it lies on the host."""
        return str(self._file)

    def install(self) -> None:
        """Nothing is written. Raises NodeNotReady when there is none, or when that cannot be seen."""
        if not is_there(self._file):
            raise NodeNotReady("is not there: no plugin of an image with nvidia-cdi-hook has run here", about=self.path)


class ShippedHook(InstalledHook):
    """The program of the plugin's image. `folder` has the same path here and on the host."""

    def __init__(self, folder: Path, image_file: Path = IN_IMAGE) -> None:
        super().__init__(folder)
        self._image_file = image_file
        self._installed = False

    def install(self) -> None:
        """Put it there, unless this process has done so. Raises NodeNotReady."""
        if self._installed and is_there(self._file):
            return
        content = read_if_present(self._image_file)
        if content is None:
            raise NodeNotReady("has no nvidia-cdi-hook: build it with the project's Dockerfile", about="plugin's image")
        if read_if_present(self._file) != content or not self._file.stat().st_mode & 0o111:
            make_folder(self._file.parent)
            remove_temporaries(self._file.parent, self._file.name)
            write_durably(self._file, content, mode=0o755)
        self._installed = True


PLACES = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    "/usr/local/bin/nvidia-cdi-hook",
    "/run/current-system/sw/bin/nvidia-cdi-hook",
    "/usr/bin/nvidia-ctk",
    "/usr/local/nvidia/toolkit/nvidia-ctk",
    "/usr/local/bin/nvidia-ctk",
    "/run/current-system/sw/bin/nvidia-ctk",
)
"""Packages of the container toolkit, the GPU Operator, Talos, NixOS. nvidia-ctk is the older spelling."""

NONE = "none"
"""Instead of a path: containers are finished without a program."""

_LDCONFIG = ("/sbin/ldconfig", "/usr/sbin/ldconfig", "/usr/bin/ldconfig", "/usr/local/glibc/sbin/ldconfig")
"""The last are those of Talos."""

_ASK_AGAIN_S = 300.0
"""A program that could not be used may be one that is just being installed: what it names can come after it."""

NEEDED_FLAGS = {
    "create-symlinks": frozenset({"--link"}),
    "update-ldcache": frozenset({"--folder"}),
    "enable-cuda-compat": frozenset({"--host-driver-version"}),
    "disable-device-node-modification": frozenset[str](),
    "update-application-profile": frozenset[str](),
}
"""The sub-commands that we use, and the flags without which they are of no use. They came with the toolkit's releases
1.11, 1.11, 1.17.5, 1.18 and 1.20; `update-ldcache --ldconfig-path` came with 1.15."""

_EVERY_CONTAINER = ("create-symlinks", "update-ldcache", "enable-cuda-compat", "disable-device-node-modification")

_VERSION = re.compile(r"version v?(\d+(?:\.\d+)+)", re.IGNORECASE)
_LISTED = re.compile(r"^\s+([a-z][a-z-]+)(?:, [a-z][a-z-]*)*(?:\s{2,}\S.*)?$", re.MULTILINE)
_FLAG = re.compile(r"^\s+(--[a-z][a-z-]+)", re.MULTILINE)


class HookMode(StrEnum):
    """Who finishes containers."""

    HOST = "host"
    """A program of the host."""
    SHIPPED = "shipped"
    """The program of the plugin's image, which the plugin has put on the host."""
    OFF = "off"
    """No program, because the settings say so."""
    NONE = "none"
    """No program, because none can be used."""


@dataclass(frozen=True, slots=True)
class HookChoice:
    """What finishes containers; `problem` says why it is not the host's program, or not any. None when all is well."""

    mode: HookMode
    program: HookProgram | None = None
    problem: str | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """The hooks that containers go without, of those that every container should have."""
        return _missing(self.program)


_LOST = {
    "create-symlinks": "the linker's cache does not list the driver's libraries",
    "update-ldcache": "the linker's cache does not list the driver's libraries",
    "enable-cuda-compat": "programs for a newer CUDA than the driver's do not start (no forward compatibility)",
    "disable-device-node-modification": "the driver's libraries may make device nodes in containers",
}
"""What happens without a hook."""


def hook_warning(choice: HookChoice) -> Problem | None:
    """What containers go without, for the inventory; None when they have every hook."""
    if not choice.missing:
        return None
    lost = ", ".join(dict.fromkeys(_LOST[name] for name in choice.missing))
    if choice.mode is HookMode.OFF:
        return Problem(subject="hook program", reason="HookProgramOff", message=f"the settings ask for none: {lost}")
    reason = "HookProgramLacks" if choice.program is not None else NO_HOOK_PROGRAM
    advice = "install the NVIDIA container toolkit 1.18 or newer on the node"
    if choice.program is not None and choice.program.ldconfig is None:
        advice = "install glibc's ldconfig there"
    message = f"{choice.problem}: {lost}; {advice}"
    return Problem(subject="hook program", reason=reason, message=message)


class HookPrograms:
    """Chooses the hook program, and remembers what each said as long as its file is the same. Not for several threads.

    `configured` is a host path, `NONE`, or None to search; without `shipped`, only the host's programs are there.
    """

    def __init__(self, host: HostFiles, configured: str | None = None, shipped: InstalledHook | None = None) -> None:
        self._host = host
        self._configured = configured
        self._shipped = shipped
        self._ask = asking(host.root)
        self._asked: dict[str, tuple[object, HookProgram | NodeNotReady, float]] = {}
        """By path: the identity of the file, what it answered, and when that was."""

    def find(self, seen: Seen) -> HookChoice:
        """The choice now. May run programs: some 20 ms for each question, never longer than seconds.

        Raises NodeNotReady when the configured one is not there: who configured it does not want to do without.
        """
        if self._configured == NONE:
            return HookChoice(HookMode.OFF)
        own, problem = self._of_host(seen)
        if own is not None and (self._configured is not None or not _missing(own)):
            return HookChoice(HookMode.HOST, own)
        if self._configured is not None:
            return HookChoice(HookMode.NONE, problem=problem)
        shipped, obstacle = self._of_image(seen)
        if shipped is not None and len(_missing(shipped)) < len(_missing(own)):
            return HookChoice(HookMode.SHIPPED, shipped, problem)
        why = "; ".join(part for part in (problem, obstacle or (shipped and _shortcoming(shipped))) if part) or None
        return HookChoice(HookMode.HOST if own is not None else HookMode.NONE, own, why)

    def _of_host(self, seen: Seen) -> tuple[HookProgram | None, str | None]:
        path = self._configured or next((path for path in PLACES if self._file(path, seen) is not None), None)
        if path is None:
            return None, "the host has no nvidia-cdi-hook or nvidia-ctk in any of the usual places"
        file = self._file(path, seen)
        if file is None:
            raise NodeNotReady(
                "is configured as the CDI hook program, but does not exist on the host: install the NVIDIA container"
                " toolkit there, or leave the setting empty",
                about=f"file {path}",
            )
        program, problem = self._answered(path, file, seen)
        return program, problem if program is None else _shortcoming(program)

    def _of_image(self, seen: Seen) -> tuple[HookProgram | None, str | None]:
        if self._shipped is None:
            return None, None
        try:
            self._shipped.install()
        except NodeNotReady as error:
            return None, str(error)
        path = self._shipped.path
        file = self._file(path, seen)
        if file is None:
            return None, f"{path} is not below the host's root"
        return self._answered(path, file, seen)

    def _file(self, path: str, seen: Seen) -> Path | None:
        resolved = seen.look(self._host, path)
        if resolved is None or not stat.S_ISREG(self._host.mode(resolved) or 0):
            return None
        return self._host.path(resolved)

    def _answered(self, path: str, file: Path, seen: Seen) -> tuple[HookProgram | None, str | None]:
        """What the program at `path` can do, or why it cannot be used; `file` is where it lies for this process."""
        ldconfig = next((place for place in _LDCONFIG if self._file(place, seen) is not None), None)
        try:
            state = file.stat()
        except OSError as error:
            return None, f"{path} cannot be read: {error.strerror}"  # it is just being replaced, perhaps
        identity = (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size, ldconfig)
        known = self._asked.get(path)
        if known is None or known[0] != identity or _is_doubtful(known):
            try:
                answer: HookProgram | NodeNotReady = hook_program(path, ldconfig, self._ask)
            except NodeNotReady as error:
                answer = error
            self._asked[path] = known = (identity, answer, time.monotonic())
        return (known[1], None) if isinstance(known[1], HookProgram) else (None, str(known[1]))


def _is_doubtful(known: tuple[object, HookProgram | NodeNotReady, float]) -> bool:
    return isinstance(known[1], NodeNotReady) and time.monotonic() - known[2] > _ASK_AGAIN_S


def hook_program(path: str, ldconfig: str | None, ask: Ask) -> HookProgram:
    """The program at the host's `path`, by its own account. Raises NodeNotReady: why it cannot be used.

    `ldconfig` is the host's; None when it has none.
    """
    name = PurePosixPath(path).name
    arguments = (name, "hook") if name == "nvidia-ctk" else (name,)
    version = next(iter(_VERSION.findall(_output_of(ask, path, "--version"))), "unknown")
    if version.startswith("1.11."):
        # Its links are `target:link`, which has no place for a PCI address; by its help it is like its successor.
        raise NodeNotReady(
            "is of release 1.11, which makes links in another way: upgrade the NVIDIA container toolkit",
            about=f"program {path}",
        )
    listed = set(_LISTED.findall(_output_of(ask, path, *arguments[1:], "--help")))
    # Releases before 1.15 always run /sbin/ldconfig.
    sub_commands = {
        command: flags
        for command, flags in _flags(path, arguments[1:], listed, ask)
        if command != "update-ldcache" or "--ldconfig-path" in flags or ldconfig in (_LDCONFIG[0], None)
    }
    if not sub_commands:
        raise NodeNotReady("lists none of the hooks that containers need", about=f"program {path}")
    return HookProgram(path, arguments, sub_commands, version, ldconfig)


def _flags(path: str, arguments: tuple[str, ...], listed: set[str], ask: Ask) -> Iterator[tuple[str, frozenset[str]]]:
    """The sub-commands that are listed, each with its flags. From 1.18 on a program answers for any name."""
    for command, needed in NEEDED_FLAGS.items():
        if command in listed:
            flags = frozenset(_FLAG.findall(_output_of(ask, path, *arguments, command, "--help")))
            if needed <= flags:
                yield command, flags


def _output_of(ask: Ask, path: str, *arguments: str) -> str:
    answer = ask([path, *arguments])
    if answer.status != 0:
        output = " ".join(answer.output.split())[:200] or "nothing"
        raise NodeNotReady(
            f"`{' '.join(arguments)}` ends with status {answer.status} and says {output}: reinstall the NVIDIA"
            " container toolkit",
            about=f"program {path}",
        )
    return answer.output


def _missing(program: HookProgram | None) -> tuple[str, ...]:
    if program is None:
        return _EVERY_CONTAINER
    usable = program.sub_commands.keys() - (() if program.places_libraries else {"update-ldcache"})
    return tuple(name for name in _EVERY_CONTAINER if name not in usable)


def _shortcoming(program: HookProgram) -> str | None:
    """Why containers go without something although there is a program; None when they do not."""
    if program.ldconfig is None:
        return f"{program.path} needs an ldconfig, and the host has none in any of {', '.join(_LDCONFIG)}"
    missing = _missing(program)
    return f"{program.path} is of release {program.version} and lacks {', '.join(missing)}" if missing else None
