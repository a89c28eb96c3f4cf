"""What is done on the host: processes that outlive their starter, signals that reach the right one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dra_driver.errors import NodeNotReady
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
    return tuple(one for one in Processes(Path("/proc")).marked(_VARIABLE) if one.mark == mark)


def test_what_is_started_is_nobodys_child_and_leads_a_session_of_its_own(host: OnHost, mark: str) -> None:
    pid = host.start(_start(mark, "/bin/sleep", "60"), "sleep")
    assert os.getsid(pid) == pid
    assert f"PPid:\t{os.getpid()}\n" not in Path(f"/proc/{pid}/status").read_text()
    assert [process.pid for process in _marked(mark)] == [pid]


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
