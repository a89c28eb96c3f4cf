"""The real way out of a container: a daemon that a plugin in other namespaces started belongs to the host."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support import mps_in_container
from support.mps import Client, no_daemons_left, processes_below, until

from kubelet_plugin.hardware.processes import Processes
from kubelet_plugin.simulation.host import SimulatedHost, create_host

_CGROUPS = Path("/sys/fs/cgroup")
_UNSHARE = ("unshare", "--mount", "--propagation", "private")
_CONTAINER = ("--ipc", "--uts", "--net")


def _obstacle() -> str:
    """Why a container cannot be made here; empty when it can."""
    if os.geteuid() != 0:
        return "needs root, to make namespaces"
    try:
        done = subprocess.run([*_UNSHARE, *_CONTAINER, "true"], capture_output=True)
    except FileNotFoundError:
        return "needs the program unshare"
    return f"namespaces cannot be made: {done.stderr.decode().strip()}" if done.returncode else ""


pytestmark = pytest.mark.skipif(bool(_obstacle()), reason=_obstacle() or "-")


class _Machine:
    """A host, whose mounts end with it, and containers on it. `system` is a driver root that is a whole system."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.node: SimulatedHost = create_host(place / "node", "l40s")
        self.folder = place / "state" / "mps"
        self.system = place / "driver"
        self.folder.parent.mkdir()
        self.system.mkdir()
        (place / "host").mkdir()
        script = f"mount --bind / {self.system}; mount --bind /dev {self.system}/dev; mount -t proc proc"
        self.host = subprocess.Popen(
            [*_UNSHARE, "sh", "-c", f"{script} {self.system}/proc; echo ready; exec sleep 300"], stdout=subprocess.PIPE
        )
        assert self.host.stdout is not None and self.host.stdout.readline() == b"ready\n"
        self.cgroup = self._cgroup()
        self.containers: list[subprocess.Popen[str]] = []

    def container(
        self, do: str, *, driver_root: str = "", made: object = (), own_pids: bool = False
    ) -> subprocess.Popen[str]:
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
        namespaces = [*_UNSHARE, *_CONTAINER, *(("--pid", "--fork", "--kill-child") if own_pids else ())]
        process = subprocess.Popen(
            ["sh", "-c", f'{joined}exec "$@"', "sh", *namespaces, "sh", "-c", inside, "sh", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if own_pids else None,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.containers.append(process)
        return process

    def done(self, do: str, **more: Any) -> dict[str, str]:
        said, _ = (process := self.container(do, **more)).communicate(timeout=60)
        assert process.returncode == 0
        return dict(json.loads(said))

    def end(self) -> None:
        self.host.kill()
        self.host.wait()
        if self.cgroup is not None:
            for pid in (self.cgroup / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        for process in self.containers:
            process.kill()
            process.communicate()
        if self.cgroup is not None:
            until(lambda: self.cgroup is None or not (self.cgroup / "cgroup.procs").read_text())
            self.cgroup.rmdir()

    def _cgroup(self) -> Path | None:
        """A cgroup as a runtime gives a container; None where none can be made."""
        for hierarchy in (_CGROUPS, _CGROUPS / "pids"):
            group = hierarchy / f"gpu-dra-test-{os.getpid()}"
            with suppress(OSError):
                if (hierarchy / "cgroup.procs").exists():
                    group.mkdir()
                    return group
        return None


@pytest.fixture
def machine() -> Iterator[_Machine]:
    # Not below /tmp: a daemon sees a /tmp of its own.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place, no_daemons_left(Path(place)):
        machine = _Machine(Path(place))
        try:
            yield machine
        finally:
            for process in processes_below(Path(place)):
                os.kill(process.pid, signal.SIGKILL)
            machine.end()


def _namespace(pid: int | str, name: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{name}").readlink())


@pytest.mark.parametrize("whole_system", [False, True], ids=["libraries only", "a system of its own"])
def test_a_daemon_outlives_the_container_that_started_it(machine: _Machine, whole_system: bool) -> None:
    driver_root = str(machine.system) if whole_system else ""
    plugin = machine.container("make and stay", driver_root=driver_root)
    assert plugin.stdout is not None
    made = dict(json.loads(plugin.stdout.readline()))
    # What a runtime does: it kills whatever is in the container's cgroup.
    if machine.cgroup is not None:
        for pid in (machine.cgroup / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    os.killpg(plugin.pid, signal.SIGKILL)
    plugin.wait()
    (daemon,) = processes_below(machine.folder)
    assert str(daemon.pid) == made["pid"], "the number is the host's"
    for name in ("pid", "ipc", "uts", "net"):
        assert _namespace(daemon.pid, name) == _namespace("self", name)
    if machine.cgroup is not None:
        assert machine.cgroup.name not in Path(f"/proc/{daemon.pid}/cgroup").read_text()
    client = Client(machine.node, made["pipe"])
    assert client.granted["threads"] == 50.0
    assert client.end() == 0

    # Another container of the plugin finds it, and stops it.
    again = machine.done("make", driver_root=driver_root, made=list(made.items()))
    assert again == made
    machine.done("undo", driver_root=driver_root, made=list(made.items()))
    assert processes_below(machine.folder) == ()
    assert list(machine.folder.iterdir()) == []
    mounts = Path(f"/proc/{machine.host.pid}/mountinfo").read_text()
    assert str(machine.folder) not in mounts


def test_a_container_with_pids_of_its_own_says_what_it_needs(machine: _Machine) -> None:
    plugin = machine.container("make", own_pids=True)
    _, said = plugin.communicate(timeout=60)
    assert plugin.returncode == 1 and "set hostPID: true" in said
    assert processes_below(machine.folder) == () and list(machine.folder.iterdir()) == []


def test_a_daemon_sees_its_own_folders_in_the_usual_places(machine: _Machine) -> None:
    made = machine.done("make")
    root = Path(f"/proc/{made['pid']}/root")
    assert sorted(entry.name for entry in (root / "tmp").iterdir()) == ["nvidia-mps", "nvidia-mps-log"]
    assert (root / "tmp/nvidia-mps").stat().st_ino == Path(made["pipe"]).stat().st_ino
    (root / "dev/shm/segment").touch()
    host = Path(f"/proc/{machine.host.pid}/root")
    assert (host / made["shm"].lstrip("/") / "segment").exists()
    mounts = Path(f"/proc/{made['pid']}/mountinfo").read_text().splitlines()
    line = next(line for line in reversed(mounts) if " /dev/shm " in line)
    (memory,) = (line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line)
    assert " tmpfs " in line and all(option in line for option in ("nosuid", "nodev", "noexec"))
    size = int(line.rpartition("size=")[2].partition("k")[0])
    assert abs(size - int(memory) // 2) <= 4


def test_a_tmpfs_is_not_mounted_over_another_and_is_emptied_with_a_new_daemon(machine: _Machine) -> None:
    made = machine.done("make")
    shm = Path(f"/proc/{machine.host.pid}/root") / made["shm"].lstrip("/")
    (shm / "left-over").touch()
    os.kill(int(made["pid"]), signal.SIGKILL)
    until(lambda: not processes_below(machine.folder))
    again = machine.done("make", made=list(made.items()))
    assert again["pid"] != made["pid"]
    mounts = Path(f"/proc/{machine.host.pid}/mountinfo").read_text()
    assert mounts.count(f" {made['shm']} ") == 1
    assert not (shm / "left-over").exists()


def test_a_daemon_that_ignores_everything_is_killed_from_inside_the_container(machine: _Machine) -> None:
    made = machine.done("make")
    os.kill(int(made["pid"]), signal.SIGSTOP)
    (daemon,) = processes_below(machine.folder)
    machine.done("undo", made=list(made.items()))
    assert not Processes(Path("/proc")).runs(daemon)
