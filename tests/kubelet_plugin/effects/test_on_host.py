"""What is done on the host: processes that outlive their starter, signals that reach the right one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dra_driver.errors import NodeNotReady
from kubelet_plugin.effects import host_program
from kubelet_plugin.effects.on_host import OnHost, Start
from kubelet_plugin.hardware.host_programs import MarkedProcess, Processes
from kubelet_plugin.hardware.sysfs import HostFiles

_VARIABLE = "GPU_DRA_TEST_MARK"


@pytest.fixture
def host(tmp_path: Path) -> OnHost:
    return OnHost.simulated(HostFiles(tmp_path))


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    for process in Processes(Path("/proc")).marked(_VARIABLE):
        if process.mark == str(tmp_path):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def _start(mark: str, *words: str) -> Start:
    return Start(words, {_VARIABLE: mark, "PATH": os.defpath}, Path(mark, "output"))


def _marked(mark: str) -> tuple[MarkedProcess, ...]:
    return tuple(process for process in Processes(Path("/proc")).marked(_VARIABLE) if process.mark == mark)


def test_what_is_started_is_nobodys_child_and_leads_a_session_of_its_own(host: OnHost, mark: str) -> None:
    pid = host.start(_start(mark, "/bin/sleep", "60"), "sleep")
    assert os.getsid(pid) == pid
    assert f"PPid:\t{os.getpid()}\n" not in Path(f"/proc/{pid}/status").read_text()
    assert [process.pid for process in _marked(mark)] == [pid]


def test_a_process_is_seen_in_the_middle_of_its_start(tmp_path: Path) -> None:
    """Linux shows it without an environment for a moment; it has not ended."""
    for _ in range(100):
        with subprocess.Popen(["/bin/sh", "-c", "exec sleep 60"], env={_VARIABLE: "x"}) as process:
            (tmp_path / str(process.pid)).symlink_to(f"/proc/{process.pid}")
            seen = [Processes(tmp_path).marked(_VARIABLE) for _ in range(20)]
            process.kill()
        (tmp_path / str(process.pid)).unlink()
        assert [[marked.pid for marked in processes] for processes in seen] == [[process.pid]] * 20


def test_a_process_without_environment_has_no_mark(tmp_path: Path) -> None:
    with subprocess.Popen(["/bin/sleep", "60"], env={}) as process:
        (tmp_path / str(process.pid)).symlink_to(f"/proc/{process.pid}")
        assert Processes(tmp_path).marked(_VARIABLE) == ()
        process.kill()


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes namespaces")
def test_a_process_of_a_container_has_no_mark_whatever_its_variables_are() -> None:
    words = ["unshare", "--pid", "--fork", "--kill-child", "/bin/sleep", "60"]
    variables = {"PATH": os.defpath, _VARIABLE: "a container's"}
    with subprocess.Popen(words, env=variables) as unshare:
        children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
        try:
            while not (inside := children.read_text().split()):
                time.sleep(0.01)
            pids = [process.pid for process in _marked("a container's")]
            assert unshare.pid in pids and int(inside[0]) not in pids
        finally:
            unshare.kill()


def test_it_outlives_its_starter(mark: str, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from kubelet_plugin.effects.on_host import OnHost, Start;"
        "from kubelet_plugin.hardware.sysfs import HostFiles;"
        f"OnHost.simulated(HostFiles(Path({mark!r}))).start("
        f"Start(('/bin/sleep', '60'), {{{_VARIABLE!r}: {mark!r}}}, Path({mark!r}, 'output')), 'x');"
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], start_new_session=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(_marked(mark)) == 1


def test_both_outputs_are_kept(host: OnHost, mark: str, tmp_path: Path) -> None:
    host.start(_start(mark, "/bin/sh", "-c", "echo out; echo err >&2"), "sh")
    deadline = time.monotonic() + 5
    while (tmp_path / "output").read_text().split() != ["out", "err"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_program_that_is_not_there_is_said_at_once(host: OnHost, mark: str) -> None:
    with pytest.raises(NodeNotReady, match=r"daemon x: cannot start on the host: No such file or directory"):
        host.start(_start(mark, "/no/such/program"), "daemon x")


def test_a_signal_reaches_the_process_that_was_meant(host: OnHost, mark: str) -> None:
    pid = host.start(_start(mark, "/bin/sleep", "60"), "sleep")
    (process,) = _marked(mark)
    # The number of a process is given out again; another start time is another process.
    host.signal(MarkedProcess(process.started - 1, pid, mark), signal.SIGKILL)
    time.sleep(0.05)  # a process that is killed would be gone by then
    assert host.processes.runs(process)
    host.signal(process, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while host.processes.runs(process):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    host.signal(process, signal.SIGKILL)


def test_a_simulated_node_mounts_nothing(host: OnHost, tmp_path: Path) -> None:
    host.mount_tmpfs(tmp_path, "size=1m")
    assert not tmp_path.is_mount()
    host.unmount(tmp_path)


def test_what_the_host_has_no_namespaces_for_says_what_the_plugin_needs(tmp_path: Path) -> None:
    host = OnHost(HostFiles(tmp_path), Processes(Path("/proc")), tmp_path / "none")
    with pytest.raises(NodeNotReady, match="privileged container, with the host's root mounted"):
        host.mount_tmpfs(tmp_path, "size=1m")


class TestOrders:
    """What the program on the host is told."""

    @pytest.fixture
    def orders(self, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
        orders: list[dict[str, Any]] = []

        def run(words: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
            orders.append(json.loads(words[-1]))
            return subprocess.CompletedProcess(words, 0, '{"pid": 7}\n', "")

        monkeypatch.setattr(subprocess, "run", run)
        return orders

    @pytest.fixture
    def real(self, tmp_path: Path) -> OnHost:
        namespaces = tmp_path / "ns"
        namespaces.mkdir()
        (namespaces / "pid").symlink_to(Path("/proc/self/ns/pid").readlink())
        return OnHost(HostFiles(tmp_path), Processes(Path("/proc")), namespaces)

    def test_a_process_leaves_the_container_and_has_mounts_on_a_real_host_only(
        self, orders: list[dict[str, Any]], real: OnHost, host: OnHost
    ) -> None:
        process = Start(("/a",), {}, Path("/out"), tmpfs=("/tmp",), binds=(("/x", "/y"),))
        assert [node.start(process, "a") for node in (real, host)] == [7, 7]
        mounts = [(order["cgroup"] is not None, order["tmpfs"], order["binds"]) for order in orders]
        assert mounts == [(True, ["/tmp"], [["/x", "/y"]]), (False, [], [])]

    def test_a_program_has_another_root_on_a_real_host_only(
        self, orders: list[dict[str, Any]], real: OnHost, host: OnHost
    ) -> None:
        for node in (real, host):
            node.run(["/a"], "a", root="/driver")
        assert [order["root"] for order in orders] == ["/driver", ""]

    def test_mounts_are_taken_away_on_the_host_and_in_the_container(
        self, orders: list[dict[str, Any]], real: OnHost, host: OnHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        gone: list[str] = []
        monkeypatch.setattr(host_program, "unmount", gone.append)
        host.unmount(Path("/pipes"))
        assert (orders, gone) == ([], [])
        real.unmount(Path("/pipes"))
        assert [(order["do"], order["path"]) for order in orders] == [("unmount", "/pipes")]
        assert gone == ["/pipes", str(tmp_path / "pipes")]

    def test_a_mount_that_stays_is_named(
        self, orders: list[dict[str, Any]], real: OnHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def busy(path: str) -> None:
            raise PermissionError(1, "Operation not permitted", path)

        monkeypatch.setattr(host_program, "unmount", busy)
        with pytest.raises(NodeNotReady, match="folder /pipes: cannot be unmounted: Operation not permitted"):
            real.unmount(Path("/pipes"))

    def test_nothing_is_started_or_signalled_from_another_pid_namespace(
        self, orders: list[dict[str, Any]], real: OnHost, tmp_path: Path, mark: str
    ) -> None:
        (tmp_path / "ns" / "pid").unlink()
        (tmp_path / "ns" / "pid").symlink_to("pid:[1]")
        with pytest.raises(NodeNotReady, match="set hostPID: true"):
            real.start(_start(mark, "/a"), "a")
        with pytest.raises(NodeNotReady, match="set hostPID: true"):
            real.signal(MarkedProcess(0, os.getpid(), mark), signal.SIGTERM)
        (tmp_path / "ns" / "pid").unlink()
        with pytest.raises(NodeNotReady, match="the host's namespaces cannot be seen"):
            real.start(_start(mark, "/a"), "a")
        assert orders == []

    def test_a_program_that_takes_too_long_is_an_error(self, real: OnHost, monkeypatch: pytest.MonkeyPatch) -> None:
        def run(words: list[str], **options: Any) -> None:
            raise subprocess.TimeoutExpired(words, 60)

        monkeypatch.setattr(subprocess, "run", run)
        with pytest.raises(NodeNotReady, match=r"a: cannot run on the host: .* timed out"):
            real.run(["/a"], "a")


def test_a_process_that_may_not_be_signalled_is_named(host: OnHost, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host.start(_start(mark, "/bin/sleep", "60"), "sleep")
    (process,) = _marked(mark)
    before = len(list(Path("/proc/self/fd").iterdir()))

    def refuse(fd: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    with pytest.raises(NodeNotReady, match=f"{process.pid}: may not be signalled"):
        host.signal(process, signal.SIGTERM)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
