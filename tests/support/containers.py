"""Hosts and containers made of namespaces, for tests of what leaves a container; they need root and `unshare`.

A host's mounts end with it. Nothing of a test stays.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from support import mps_in_container
from support.mps import until

import kubelet_plugin
from kubelet_plugin.simulation.host import SimulatedHost, create_host

_CGROUPS = Path("/sys/fs/cgroup")
_UNSHARE = ("unshare", "--mount", "--propagation", "private")
_CONTAINER = ("--ipc", "--uts", "--net")


def container_obstacle() -> str:
    """Why a container cannot be made here; empty when it can."""
    if os.geteuid() != 0:
        return "needs root, to make namespaces"
    try:
        done = subprocess.run([*_UNSHARE, *_CONTAINER, "true"], capture_output=True)
    except FileNotFoundError:
        return "needs the program unshare"
    return f"namespaces cannot be made: {done.stderr.decode().strip()}" if done.returncode else ""


class Host:
    """The namespaces of this machine, but for mounts. `pid` is the process that has them, as containers see it. Its
    mounts appear in containers if it is `shared`, as systemd makes it."""

    def __init__(self, system: Path, *, shared: bool) -> None:
        mounts = f"mount --bind / {system}; mount --bind /dev {system}/dev; mount -t proc proc {system}/proc"
        script = f"mount --make-r{'shared' if shared else 'private'} /; {mounts}"
        self._process = subprocess.Popen(
            [*_UNSHARE, "sh", "-c", f"{script}; echo ready; exec sleep 300"], stdout=subprocess.PIPE
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None and self._process.stdout.readline() == b"ready\n"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Machine:
    """A host and containers on it. `system` is a driver root that is a whole system."""

    def __init__(self, place: Path, *, shared: bool = True) -> None:
        self.place = place
        self.node: SimulatedHost = create_host(place / "node", "l40s")
        _move_programs(place / "node", place / "packages")
        self.folder = place / "state" / "mps"
        self.system = place / "driver"
        self.folder.parent.mkdir()
        self.system.mkdir()
        (place / "host").mkdir()
        self.host = Host(self.system, shared=shared)
        self.cgroup = _new_cgroup()
        self.containers: list[subprocess.Popen[str]] = []

    def container(
        self, do: str, *, driver_root: str = "", made: object = (), own_pids: bool = False
    ) -> subprocess.Popen[str]:
        """A plugin in namespaces and a cgroup of its own: see `support.mps_in_container`."""
        order: dict[str, Any] = {
            "do": do,
            "hostRoot": str(self.place / "host"),
            "hostPid": self.host.pid,
            "node": str(self.node.root),
            "folder": str(self.folder),
            "gpu": self.node.state.gpus[1].uuid,
            "driverRoot": driver_root,
            "made": made,
        }
        joined = f"echo $$ > {self.cgroup}/cgroup.procs; " if self.cgroup is not None else ""
        inside = f'mount --rbind / {self.place}/host && mount -t proc proc /proc && exec "$@"'
        program = [sys.executable, "-m", mps_in_container.__name__, json.dumps(order)]
        namespaces = [*_UNSHARE[:-1], "slave", *_CONTAINER, *(("--pid", "--fork", "--kill-child") if own_pids else ())]
        words = ["nsenter", "-t", str(self.host.pid), "-m", *namespaces, "sh", "-c", inside, "sh", *program]
        process = subprocess.Popen(
            ["sh", "-c", f'{joined}exec "$@"', "sh", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if own_pids else None,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.containers.append(process)
        return process

    def on_host(self, path: str) -> Path:
        """A path of the host, as this process reaches it."""
        return Path(f"/proc/{self.host.pid}/root{path}")

    def done(self, do: str, **more: Any) -> dict[str, str]:
        """What a plugin made that did its work and ended."""
        output, _ = (process := self.container(do, **more)).communicate(timeout=60)
        assert process.returncode == 0
        return dict(json.loads(output))

    def kill(self, container: subprocess.Popen[str]) -> None:
        """What a runtime does: it kills whatever is in the container's cgroup."""
        if self.cgroup is not None:
            for pid in (self.cgroup / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(container.pid, signal.SIGKILL)
        container.wait()

    def end(self) -> None:
        for process in self.containers:
            self.kill(process)
            process.communicate()
        self.host.end()
        if self.cgroup is not None:
            _remove(self.cgroup)


def _move_programs(node: Path, packages: Path) -> None:
    """Let the node's programs run from `packages`: a clone below /tmp is not visible to a daemon with its own /tmp."""
    (source,) = kubelet_plugin.__path__
    clone = Path(source).parent
    shutil.copytree(source, packages / "kubelet_plugin", ignore=shutil.ignore_patterns("__pycache__"))
    for program in (node / "usr" / "bin").iterdir():
        if program.is_file() and (text := program.read_text(errors="ignore")).startswith("#!/bin/sh\n# simulated "):
            text = text.replace(sys.executable, os.path.realpath(sys.executable))
            program.write_text(text.replace(f" {clone} ", f" {packages} "))


def _new_cgroup() -> Path | None:
    """As a runtime gives a container; None where none can be made."""
    for hierarchy in (_CGROUPS, _CGROUPS / "pids"):
        group = hierarchy / f"gpu-dra-test-{os.getpid()}"
        with suppress(OSError):
            if (hierarchy / "cgroup.procs").exists():
                group.mkdir()
                return group
    return None


def _remove(group: Path) -> None:
    """Remove a cgroup in which nothing runs any more."""

    def removed() -> bool:
        with suppress(OSError):
            group.rmdir()
        return not group.exists()

    until(removed)
