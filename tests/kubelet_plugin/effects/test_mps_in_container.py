"""The real way out of a container: a daemon that a plugin in other namespaces started belongs to the host."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.containers import Machine, container_obstacle
from support.mps import Client, no_daemons_left, processes_below, until
from support.rows import slow_but

from kubelet_plugin.hardware.host_programs import Processes

pytestmark = pytest.mark.skipif(bool(container_obstacle()), reason=container_obstacle() or "-")


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    # Not below /tmp: a daemon sees a /tmp of its own.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place, no_daemons_left(Path(place)):
        machine = Machine(Path(place), shared=getattr(request, "param", True))
        try:
            yield machine
        finally:
            for process in processes_below(Path(place)):
                os.kill(process.pid, signal.SIGKILL)
            machine.end()


def _namespace(pid: int | str, name: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{name}").readlink())


@pytest.mark.parametrize("whole_system", slow_but([False, True], True), ids=["libraries only", "a system of its own"])
def test_a_daemon_outlives_the_container_that_started_it(machine: Machine, whole_system: bool) -> None:
    driver_root = str(machine.system) if whole_system else ""
    plugin = machine.container("make and stay", driver_root=driver_root)
    assert plugin.stdout is not None
    made = dict(json.loads(plugin.stdout.readline()))
    machine.kill(plugin)
    (daemon,) = processes_below(machine.folder)
    assert str(daemon.pid) == made["pid"], "the number is the host's"
    for name in ("pid", "ipc", "uts", "net"):
        assert _namespace(daemon.pid, name) == _namespace("self", name)
    if machine.cgroup is not None:
        assert machine.cgroup.name not in Path(f"/proc/{daemon.pid}/cgroup").read_text()
    client = Client(machine.node, str(machine.on_host(made["pipe"])))
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


@pytest.mark.slow
@pytest.mark.parametrize("whole_system", slow_but([False, True], True), ids=["libraries only", "a system of its own"])
def test_nvidia_smi_runs_where_the_host_or_the_drivers_own_system_has_it(machine: Machine, whole_system: bool) -> None:
    made = machine.done("persistence off", driver_root=str(machine.system) if whole_system else "")
    assert made == {"persistent": "False"}
    assert not machine.node.state.gpus[1].persistenced


def test_a_container_with_pids_of_its_own_says_what_it_needs(machine: Machine) -> None:
    plugin = machine.container("make", own_pids=True)
    _, error_text = plugin.communicate(timeout=60)
    assert plugin.returncode == 1 and "set hostPID: true" in error_text
    assert processes_below(machine.folder) == () and list(machine.folder.iterdir()) == []


def test_a_daemon_sees_its_own_folders_in_the_usual_places(machine: Machine) -> None:
    made = machine.done("make")
    root = Path(f"/proc/{made['pid']}/root")
    assert sorted(entry.name for entry in (root / "tmp").iterdir()) == ["nvidia-mps", "nvidia-mps-log"]
    assert (root / "tmp/nvidia-mps").stat().st_ino == machine.on_host(made["pipe"]).stat().st_ino
    (root / "dev/shm/segment").touch()
    host = Path(f"/proc/{machine.host.pid}/root")
    assert (host / made["shm"].lstrip("/") / "segment").exists()
    mounts = Path(f"/proc/{made['pid']}/mountinfo").read_text().splitlines()
    line = next(line for line in reversed(mounts) if " /dev/shm " in line)
    (memory,) = (line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line)
    assert " tmpfs " in line and all(option in line for option in ("nosuid", "nodev", "noexec"))
    # Of its mounts: the kernel shows no size that is its default.
    there = os.statvfs(root / "dev/shm")
    assert abs(there.f_blocks * there.f_frsize - int(memory) * 1024 // 2) <= 4096


def test_what_containers_write_into_the_pipe_folder_is_limited_and_not_on_the_nodes_disk(machine: Machine) -> None:
    made = machine.done("make")
    pipe = machine.on_host(made["pipe"])
    there = os.statvfs(pipe)
    assert (there.f_blocks * there.f_frsize, there.f_files) == (16 << 20, 4096)
    with pytest.raises(OSError, match="No space left"), (pipe / "large").open("wb") as file:
        for _ in range(17):
            file.write(bytes(1 << 20))
            file.flush()
    os.kill(int(made["pid"]), signal.SIGKILL)
    until(lambda: not processes_below(machine.folder))
    again = machine.done("make", made=list(made.items()))
    assert not (pipe / "large").exists()
    mounts = Path(f"/proc/{machine.host.pid}/mountinfo").read_text()
    assert mounts.count(f" {made['pipe']} ") == 1
    machine.done("undo", made=list(again.items()))
    assert list(machine.folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("machine", [False], indirect=True)
def test_on_a_host_whose_mounts_do_not_appear_in_containers_the_pipe_folder_is_on_the_disk(machine: Machine) -> None:
    made = machine.done("make")
    mounts = Path(f"/proc/{machine.host.pid}/mountinfo").read_text()
    assert f" {made['pipe']} " not in mounts
    assert Client(machine.node, str(machine.on_host(made["pipe"]))).end() == 0
    machine.done("undo", made=list(made.items()))
    assert list(machine.folder.iterdir()) == []


@pytest.mark.slow
def test_a_pipe_folder_that_an_earlier_release_made_on_the_disk_stays(machine: Machine) -> None:
    """Containers have it mounted, and would not find the socket of a new daemon in another folder."""
    made = machine.done("make")
    os.kill(int(made["pid"]), signal.SIGKILL)
    until(lambda: not processes_below(machine.folder))
    subprocess.run(["nsenter", f"--mount=/proc/{machine.host.pid}/ns/mnt", "umount", made["pipe"]], check=True)
    again = machine.done("make", made=list(made.items()))
    mounts = Path(f"/proc/{machine.host.pid}/mountinfo").read_text()
    assert f" {made['pipe']} " not in mounts and f" {made['shm']} " in mounts
    machine.done("undo", made=list(again.items()))
    assert list(machine.folder.iterdir()) == []


@pytest.mark.slow
def test_a_tmpfs_is_not_mounted_over_another_and_is_emptied_with_a_new_daemon(machine: Machine) -> None:
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


@pytest.mark.slow
def test_a_daemon_that_ignores_everything_is_killed_from_inside_the_container(machine: Machine) -> None:
    made = machine.done("make")
    os.kill(int(made["pid"]), signal.SIGSTOP)
    (daemon,) = processes_below(machine.folder)
    machine.done("undo", made=list(made.items()))
    assert not Processes(Path("/proc")).runs(daemon)
