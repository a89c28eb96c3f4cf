"""The program that finishes containers from the host's side: finds `nvidia-cdi-hook` or `nvidia-ctk`, asks what it can.

`kubelet_plugin.hardware.driver_root` enters here. A container whose spec names a sub-command that the program does not
have may fail to start, so a program is used only after it said what it has; one that cannot be asked is not used.
"""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import structlog

from dra_driver.cdi.edits import HookProgram
from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware.seen import Seen
from kubelet_plugin.hardware.sysfs import HostFiles

_log = structlog.get_logger(__name__)

_PLACES = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    "/usr/local/bin/nvidia-cdi-hook",
    "/usr/bin/nvidia-ctk",
    "/usr/local/nvidia/toolkit/nvidia-ctk",
    "/usr/local/bin/nvidia-ctk",
)
"""Packages of the container toolkit, the GPU Operator, an installation by hand. nvidia-ctk is the older spelling."""

_LDCONFIG = ("/sbin/ldconfig", "/usr/sbin/ldconfig")

_SINCE = {
    "create-symlinks": (1, 11),
    "update-ldcache": (1, 11),
    "enable-cuda-compat": (1, 17, 5),
    "disable-device-node-modification": (1, 18),
    "update-application-profile": (1, 20),
}
"""The sub-commands that we use, and the toolkit version that brought each: for a program that does not list them."""

_ANSWER_WITHIN_S = 5.0

_VERSION = re.compile(r"version v?(\d+(?:\.\d+)+)", re.IGNORECASE)
_LISTED = re.compile(r"^\s+([a-z][a-z-]+)(?:, [a-z][a-z-]*)*(?:\s{2,}\S.*)?$", re.MULTILINE)


class HookPrograms:
    """Finds the host's hook program, and remembers what it said as long as the file is the same one."""

    def __init__(self, host: HostFiles, configured: str | None = None) -> None:
        self._host = host
        self._configured = configured
        self._asked: tuple[object, HookProgram | None] | None = None

    def find(self, seen: Seen) -> HookProgram | None:
        """The program; None when the host has none that can be used. May run it, which takes some milliseconds.

        Raises NodeNotReady when the configured one is not there: whoever configured it does not want to do without.
        """
        path = self._path(seen)
        if path is None:
            return None
        file = self._file(path, seen)
        assert file is not None
        ldconfig = next((one for one in _LDCONFIG if self._file(one, seen) is not None), None)
        found = file.stat()
        identity = (path, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size, ldconfig)
        if self._asked is None or self._asked[0] != identity:
            self._asked = (identity, self._ask(path, file, ldconfig))
        return self._asked[1]

    def _path(self, seen: Seen) -> str | None:
        if self._configured is None:
            return next((path for path in _PLACES if self._file(path, seen) is not None), None)
        if self._file(self._configured, seen) is None:
            raise NodeNotReady(
                "is configured as the CDI hook program, but does not exist on the host: install the NVIDIA container"
                " toolkit there, or leave the setting empty to do without",
                about=f"file {self._configured}",
            )
        return self._configured

    def _file(self, path: str, seen: Seen) -> Path | None:
        resolved = seen.look(self._host, path)
        file = self._host.path(resolved) if resolved is not None else None
        return file if file is not None and file.is_file() else None

    def _ask(self, path: str, file: Path, ldconfig: str | None) -> HookProgram | None:
        name = PurePosixPath(path).name
        arguments = (name, "hook") if name == "nvidia-ctk" else (name,)
        try:
            version = _VERSION.search(self._output(path, file, "--version"))
            listed = frozenset(_LISTED.findall(self._output(path, file, *arguments[1:], "--help"))) & _SINCE.keys()
        except (OSError, subprocess.SubprocessError) as error:
            _log.warning("hook program cannot be asked what it can do; doing without", path=path, reason=str(error))
            return None
        if version is None and not listed:
            _log.warning("hook program says neither its version nor its commands; doing without", path=path)
            return None
        return HookProgram(
            path=path,
            arguments=arguments,
            sub_commands=listed or sub_commands_of(version[1] if version is not None else ""),
            version=version[1] if version is not None else "unknown",
            ldconfig=ldconfig,
        )

    def _output(self, path: str, file: Path, *arguments: str) -> str:
        """What the program prints. It is the host's, and may be a script that names other files of the host."""
        if self._host.root == Path("/"):
            return _run([path, *arguments])
        try:
            return _run(["chroot", str(self._host.root), path, *arguments])
        except (OSError, subprocess.SubprocessError):
            return _run([str(file), *arguments])


def sub_commands_of(version: str) -> frozenset[str]:
    """The sub-commands, of those we use, that toolkit `version` has."""
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    return frozenset(name for name, since in _SINCE.items() if numbers >= since)


def _run(command: Sequence[str]) -> str:
    """What `command` prints. It gets no environment and little time, and its children end with it."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env={}, process_group=0
    ) as process:
        try:
            output, _ = process.communicate(timeout=_ANSWER_WITHIN_S)
        except BaseException:
            # A child of a script would keep the pipe open, and us waiting for its end.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, list(command), output)
    return output
