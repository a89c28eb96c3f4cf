"""What effects do on the host itself, outside the plugin's container: mounts, processes, the host's own programs.

`kubelet_plugin.effects.host_program`, a process of its own, carries out orders in about 20 ms. For a real node it joins
the namespaces of the host's first process. Only the PID namespace must be the host's already (hostPID), because
otherwise all that it starts ends with the container. For a simulated node it joins no namespaces and mounts nothing.
Every failure is a `NodeNotReady`. Calls block.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dra_driver.errors import NodeNotReady
from kubelet_plugin.effects import host_program
from kubelet_plugin.hardware.host_programs import MarkedProcess, Processes
from kubelet_plugin.hardware.sysfs import HostFiles

_NAMESPACES = "/proc/1/ns"
_CGROUPS = "/sys/fs/cgroup"
_NEEDS = "the node plugin must run as root in a privileged container, with the host's root mounted (--host-root)"


@dataclass(frozen=True, slots=True)
class Start:
    """A process to be started, and what it alone sees: `binds` are (host folder, its path), below `root`."""

    words: Sequence[str]
    environment: Mapping[str, str]
    output: Path
    """Both its outputs, appended."""
    root: str = ""
    tmpfs: Sequence[str] = ()
    binds: Sequence[tuple[str, str]] = ()


class OnHost:
    """The host below `files`; `namespaces` None for one that is simulated: a folder has none of its own."""

    def __init__(self, files: HostFiles, processes: Processes, namespaces: Path | None) -> None:
        self.files = files
        self.processes = processes
        self._namespaces = namespaces

    @classmethod
    def real(cls, files: HostFiles) -> "OnHost":
        """A node whose /proc is below `files`; this process may be in any namespaces."""
        return cls(files, Processes(files.path("/proc")), files.path(_NAMESPACES))

    @classmethod
    def simulated(cls, files: HostFiles) -> "OnHost":
        """A node in a folder. Its processes are this machine's."""
        return cls(files, Processes(Path("/proc")), None)

    @property
    def isolates(self) -> bool:
        """Whether mounts can be made, for all and for one process."""
        return self._namespaces is not None

    @property
    def confined(self) -> bool:
        """Whether SELinux is on: then containers may use only what its policy lets them."""
        return self.isolates and self.files.resolve("/sys/fs/selinux/enforce") is not None

    def mount_tmpfs(self, path: Path, options: str) -> None:
        """An empty tmpfs at `path`: a new one, or the one that is mounted there. Nothing on a simulated node."""
        if self.isolates:
            self._order({"do": "mount", "path": str(path), "options": options}, about=f"folder {path}")

    def unmount(self, path: Path) -> None:
        """Remove all mounts at `path`, even several, on the host and in this process' container.

        A container that was started later may have copies of the mount, there and below the host's root. The folder
        cannot be removed while one is left.
        """
        if not self.isolates:
            return
        about = f"folder {path}"
        self._order({"do": "unmount", "path": str(path)}, about=about)
        try:
            for copy in (path, self.files.path(str(path))):
                host_program.unmount(str(copy))
        except OSError as error:
            raise NodeNotReady(f"cannot be unmounted: {error.strerror}; {_NEEDS}", about=about) from error

    def start(self, process: Start, about: str) -> int:
        """Start it so that it outlives this process and its container; its number on the host."""
        self._check_pids(about)
        order = {
            "do": "start",
            "words": list(process.words),
            "environment": dict(process.environment),
            "output": str(process.output),
            "root": process.root,
            "cgroup": _CGROUPS if self.isolates else None,
            "tmpfs": list(process.tmpfs) if self.isolates else [],
            "binds": [list(bind) for bind in process.binds] if self.isolates else [],
        }
        pid: int = json.loads(self._order(order, about=about))["pid"]
        return pid

    def signal(self, process: MarkedProcess, number: int) -> None:
        """Signal it, unless it has ended, even when another process has its PID by now."""
        self._check_pids(f"process {process.pid}")
        with suppress(ProcessLookupError):
            # A descriptor stays with its process, so that what was compared is what is signalled.
            fd = os.pidfd_open(process.pid)
            try:
                if self.processes.runs(process):
                    signal.pidfd_send_signal(fd, number)
            except PermissionError as error:
                raise NodeNotReady("may not be signalled: run the plugin as root", about=f"{process.pid}") from error
            finally:
                os.close(fd)

    def run(
        self, words: Sequence[str], about: str, *, root: str = "", environment: Mapping[str, str] | None = None
    ) -> str:
        """What a program of the host prints; `words[0]` is its host path, or its path below `root`, a whole system."""
        order = {
            "do": "run",
            "words": list(words),
            "environment": {"PATH": "/usr/bin:/bin", **(environment or {})},
            "root": root if self.isolates else "",
        }
        return self._order(order, about=about)

    def _check_pids(self, about: str) -> None:
        if self._namespaces is None:
            return
        try:
            same = (self._namespaces / "pid").readlink() == Path("/proc/self/ns/pid").readlink()
        except OSError as error:
            raise NodeNotReady(f"the host's namespaces cannot be seen: {error}; {_NEEDS}", about=about) from error
        if not same:
            raise NodeNotReady(
                "the plugin's pod has its own PID namespace, and what it starts would end with it; set hostPID: true"
                " in its pod spec",
                about=about,
            )

    def _order(self, order: Mapping[str, object], about: str) -> str:
        text = json.dumps({**order, **({"namespaces": str(self._namespaces)} if self._namespaces is not None else {})})
        # Isolated (-I) and without site packages (-S): nothing but the standard library, and at once.
        words = [sys.executable, "-I", "-S", host_program.__file__, text]
        try:
            done = subprocess.run(words, capture_output=True, errors="replace", timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NodeNotReady(f"cannot {order['do']} on the host: {error}", about=about) from error
        if done.returncode:
            output = " ".join((done.stdout + done.stderr).split())
            # Other statuses are those of the program that was run.
            needs = f"; {_NEEDS}" if done.returncode == 1 else ""
            raise NodeNotReady(
                f"cannot {order['do']} on the host: {output or f'status {done.returncode}'}{needs}", about=about
            )
        return done.stdout
