"""The driver's programs on a simulated node, run as processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cuda_client import COMMAND
from support.mishaps import unload_driver
from support.mps import Client

from kubelet_plugin.simulation.host import SimulatedHost, create_host

_MODPROBE = "usr/bin/nvidia-modprobe"
_SMI = "usr/bin/nvidia-smi"
_CONTROL = "usr/bin/nvidia-cuda-mps-control"


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return create_host(tmp_path / "host", "l40s")


def _run(host: SimulatedHost, program: str, *words: str, asked: str = "", **more: str) -> tuple[int, str]:
    done = subprocess.run(
        [host.root / program, *words],
        input=asked,
        capture_output=True,
        text=True,
        env=_environment(host) | more,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def _cuda(host: SimulatedHost, *words: str) -> tuple[int, str]:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, env=_environment(host), check=False)
    return done.returncode, done.stdout + done.stderr


def _environment(host: SimulatedHost) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "CUDA_MPS_PIPE_DIRECTORY": str(host.root / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(host.root / "log"),
        "CUDA_VISIBLE_DEVICES": host.state.gpus[1].uuid,
    }


def _ask(host: SimulatedHost, command: str) -> tuple[int, str]:
    return _run(host, _CONTROL, asked=command + "\n")


@pytest.fixture
def daemon(host: SimulatedHost) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([host.root / _CONTROL, "-f"], env=_environment(host))
    _until(lambda: _ask(host, "get_default_active_thread_percentage")[0] == 0)
    yield process
    process.kill()
    process.wait()


def _until(true: object, seconds: float = 10.0) -> None:
    assert callable(true)
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def _client(host: SimulatedHost, **environment: str) -> Client:
    return Client(host, str(host.root / "pipe"), environment)


def test_a_time_slice_is_set_and_kept_by_the_hardware(host: SimulatedHost) -> None:
    uuid = host.state.gpus[2].uuid
    assert _run(host, _SMI, "compute-policy", "-i", uuid, "--set-timeslice", "3")[0] == 0
    assert [gpu.time_slice for gpu in host.state.gpus[:4]] == [0, 0, 3, 0]
    assert f"{uuid}: Timeslice: Long" in _run(host, _SMI, "compute-policy", "-l")[1]
    assert _run(host, _SMI, "compute-policy", "-i", uuid, "--set-timeslice=0")[0] == 0
    assert host.state.gpus[2].time_slice == 0


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("compute-policy", "-i", "GPU-none", "--set-timeslice", "1"), 6, "No devices were found"),
        (("compute-policy", "-i", "0", "--set-timeslice", "4"), 2, "Invalid timeslice"),
        (("compute-policy", "-i", "0", "--frob", "4"), 2, "Invalid combination"),
        (("-i", "0", "--frob", "1"), 2, "Invalid argument"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    host: SimulatedHost, words: tuple[str, ...], status: int, message: str
) -> None:
    before = host.state
    answer = _run(host, _SMI, *words)
    assert answer[0] == status and message in answer[1]
    assert host.state == before


def test_a_lost_gpu_and_an_unloaded_driver_are_said_so(host: SimulatedHost) -> None:
    host.lose_gpu(0)
    assert _run(host, _SMI, "-i", "0", "-pm", "1")[0] == 15
    unload_driver(host)
    assert _run(host, _SMI, "-L")[0] == 9


def test_commands_without_a_daemon_fail(host: SimulatedHost) -> None:
    status, output = _ask(host, "get_default_active_thread_percentage")
    assert status == 1 and "Cannot find MPS control daemon" in output


@pytest.mark.usefixtures("daemon")
def test_a_second_daemon_for_a_pipe_directory_is_refused(host: SimulatedHost) -> None:
    status, output = _run(host, _CONTROL, "-f")
    assert status == 1 and "already running" in output


@pytest.mark.usefixtures("daemon")
def test_limits_are_checked_and_reach_the_clients(host: SimulatedHost) -> None:
    for command in (
        "set_default_active_thread_percentage 0",
        "set_default_active_thread_percentage 101",
        "set_default_device_pinned_mem_limit 0 512K",
        "set_default_device_pinned_mem_limit 7 512M",
        "set_default_device_pinned_mem_limit 0 much",
    ):
        assert _ask(host, command)[0] == 1, command
    assert _ask(host, "set_default_active_thread_percentage 50") == (0, "")
    assert _ask(host, "set_default_device_pinned_mem_limit 0 1024M") == (0, "")
    uuid = host.state.gpus[1].uuid
    client = _client(host)
    assert (client.granted["threads"], client.granted["memory"]) == (50.0, {uuid: 1 << 30})
    lower = _client(host, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="20", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=2G")
    assert (lower.granted["threads"], lower.granted["memory"]) == (20.0, {uuid: 1 << 30})
    assert (client.end(), lower.end()) == (0, 0)
    assert "out of memory" in _cuda(host, "--seconds", "0", "--allocate", "2G")[1]


@pytest.mark.usefixtures("daemon")
@pytest.mark.slow
def test_a_device_serves_48_clients_and_refuses_one_more(host: SimulatedHost) -> None:
    clients = [_client(host) for _ in range(48)]
    assert all(client.granted for client in clients)
    assert "limit of 48 clients" in _client(host).error
    assert clients.pop().end() == 0
    _until(lambda: _cuda(host, "--seconds", "0")[0] == 0)
    for client in clients:
        client.process.kill()
        client.end()


def test_a_killed_daemon_leaves_its_server_to_the_clients_it_has(
    host: SimulatedHost, daemon: subprocess.Popen[bytes]
) -> None:
    client = _client(host)
    server = client.granted["server"]
    daemon.kill()
    daemon.wait()
    assert "no MPS daemon" in _client(host).error
    assert client.process.poll() is None
    os.kill(server, signal.SIGKILL)
    assert "server died" in client.died()


def test_quitting_ends_the_clients_too(host: SimulatedHost, daemon: subprocess.Popen[bytes]) -> None:
    client = _client(host)
    assert _ask(host, "quit -t 0.1")[0] == 0
    assert daemon.wait(10) == 0
    assert "server died" in client.died()
    assert not (host.root / "pipe/control").exists()


def test_a_reboot_ends_the_daemon(host: SimulatedHost, daemon: subprocess.Popen[bytes]) -> None:
    host.reboot()
    assert daemon.wait(10) == 0


def test_programs_are_run_by_whoever_uses_the_node_now_whoever_made_them(host: SimulatedHost) -> None:
    """The node outlives images of the plugin, which have Pythons at other places."""
    for name in (_SMI, _CONTROL, _MODPROBE):
        program = host.root / name
        program.write_text(program.read_text().replace(sys.executable, "/opt/older/bin/python3"))
    assert _run(host, _SMI, "-L")[0] == 127
    (host.root / _MODPROBE).unlink()
    host.adopt_programs()
    assert _run(host, _SMI, "-L")[0] == 0
    assert os.access(host.root / _CONTROL, os.X_OK)
    assert not (host.root / _MODPROBE).exists(), "what was taken away stays away"
