"""How daemons are started, as words: of systemd, of a process alone, in every kind of driver root."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.systemd_bus import first_call

from dra_driver.errors import NodeNotReady
from kubelet_plugin.effects.mps_process import (
    DaemonProcess,
    launch,
    plain_start,
    systemd_words,
)
from kubelet_plugin.effects.on_host import OnHost, Start
from kubelet_plugin.hardware.driver_programs import DriverProgram, DriverPrograms
from kubelet_plugin.hardware.driver_root import find_driver_root
from kubelet_plugin.hardware.host_programs import Processes
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.simulation.driver_files import PLACES
from kubelet_plugin.simulation.host import create_host
from kubelet_plugin.simulation.state import Layout

_ON_HOST = DriverProgram(
    name="nvidia-cuda-mps-control",
    file=Path("/host/usr/bin/nvidia-cuda-mps-control"),
    path="/usr/bin/nvidia-cuda-mps-control",
    root="/",
    library_folder="/usr/lib/x86_64-linux-gnu",
    nvml_library=Path("/host/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.1"),
    whole_system=False,
)
_IN_OPERATOR = replace(
    _ON_HOST,
    path="/run/nvidia/driver/usr/bin/nvidia-cuda-mps-control",
    root="/run/nvidia/driver",
    library_folder="/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    whole_system=True,
)
_ON_GKE = replace(
    _ON_HOST,
    path="/home/kubernetes/bin/nvidia/bin/nvidia-cuda-mps-control",
    root="/home/kubernetes/bin/nvidia",
    library_folder="/home/kubernetes/bin/nvidia/lib64",
)
_FOLDER = Path("/var/lib/kubelet/plugins/gpu.nvidia.com/mps/claim-a")


def _daemon(program: DriverProgram) -> DaemonProcess:
    return DaemonProcess(
        unit="gpu-dra-mps-claim-a",
        about="MPS daemon claim-a",
        program=program,
        words=("-f", "-M"),
        environment={"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"},
        pipe=_FOLDER / "pipe",
        log=_FOLDER / "log",
        shm=_FOLDER / "shm",
    )


@pytest.mark.parametrize("program", [_ON_HOST, _IN_OPERATOR, _ON_GKE], ids=["host", "operator", "gke"])
def test_a_daemon_has_its_folders_in_the_usual_places_wherever_its_driver_is(program: DriverProgram) -> None:
    start = plain_start(_daemon(program), isolated=True)
    assert start.binds == (
        (f"{_FOLDER}/pipe", "/tmp/nvidia-mps"),
        (f"{_FOLDER}/log", "/tmp/nvidia-mps-log"),
        (f"{_FOLDER}/shm", "/dev/shm"),
    )
    assert start.environment["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"
    assert start.environment["CUDA_MPS_LOG_DIRECTORY"] == "/tmp/nvidia-mps-log"
    assert start.environment["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    assert start.output == _FOLDER / "log/daemon.log"


def test_a_driver_root_that_is_a_system_is_the_daemons_root() -> None:
    start = plain_start(_daemon(_IN_OPERATOR), isolated=True)
    assert (start.root, start.words) == ("/run/nvidia/driver", ("/usr/bin/nvidia-cuda-mps-control", "-f", "-M"))
    assert "LD_LIBRARY_PATH" not in start.environment


def test_a_driver_root_with_libraries_alone_is_found_by_its_paths() -> None:
    start = plain_start(_daemon(_ON_GKE), isolated=True)
    assert (start.root, start.words[0]) == ("", "/home/kubernetes/bin/nvidia/bin/nvidia-cuda-mps-control")
    assert start.environment["LD_LIBRARY_PATH"] == "/home/kubernetes/bin/nvidia/lib64"
    assert start.environment["PATH"].split(":")[0] == "/home/kubernetes/bin/nvidia/bin"


def test_on_a_simulated_node_the_folders_are_where_they_are() -> None:
    start = plain_start(_daemon(_ON_HOST), isolated=False)
    assert start.environment["CUDA_MPS_PIPE_DIRECTORY"] == f"{_FOLDER}/pipe"
    assert (start.root, start.binds, start.tmpfs) == ("", (), ())
    assert start.words[0] == "/host/usr/bin/nvidia-cuda-mps-control"


def test_a_unit_of_systemd_has_the_same_folders_environment_and_root() -> None:
    words = systemd_words("/usr/bin/systemd-run", _daemon(_IN_OPERATOR))
    start = plain_start(_daemon(_IN_OPERATOR), isolated=True)
    assert words[:2] == ("/usr/bin/systemd-run", "--unit=gpu-dra-mps-claim-a")
    assert words[-3:] == tuple(start.words)
    assert {word.removeprefix("--setenv=") for word in words if word.startswith("--setenv=")} == {
        f"{name}={value}" for name, value in start.environment.items()
    }
    properties = dict(
        word.removeprefix("--property=").split("=", 1) for word in words if word.startswith("--property=")
    )
    assert properties["BindPaths"].split() == [f"{source}:{target}" for source, target in start.binds]
    assert properties["RootDirectory"] == start.root
    assert "RootDirectory" not in " ".join(systemd_words("/usr/bin/systemd-run", _daemon(_ON_HOST)))


def test_the_real_systemd_run_sends_every_property_to_systemd_as_it_is_meant() -> None:
    """Against a socket that takes the place of systemd's and keeps the first call."""
    program = shutil.which("systemd-run")
    if program is None:
        pytest.skip("this machine has no systemd-run")
    words = systemd_words(program, _daemon(_IN_OPERATOR))
    sent, complaint = first_call([program, "--user", *words[1:]])
    assert b"StartTransientUnit" in sent, complaint
    names = [word.removeprefix("--property=").split("=")[0] for word in words if word.startswith("--property=")]
    # What has another name on the bus, by its name in unit files.
    on_bus = {"TimeoutStopSec": "TimeoutStopUSec", "StandardOutput": "StandardOutputFileToAppend"}
    on_bus["StandardError"] = "StandardErrorFileToAppend"
    for name in names:
        assert on_bus.get(name, name).encode() + b"\0" in sent, name


class _Host(OnHost):
    """A host that remembers what it is told to do, and may refuse to run its programs."""

    def __init__(self, root: Path, *, refuses: bool = False) -> None:
        super().__init__(HostFiles(root), Processes(Path("/proc")), Path("/proc/self/ns"))
        self.ran: list[str] = []
        self.started: list[Start] = []
        self._refuses = refuses

    def run(self, words: object, about: str) -> str:
        assert isinstance(words, tuple)
        if self._refuses:
            raise NodeNotReady("Unknown assignment: TemporaryFileSystem", about=about)
        self.ran.append(" ".join(words[:2]))
        return ""

    def start(self, process: Start, about: str) -> int:
        self.started.append(process)
        return 7


def _with_systemd(root: Path) -> Path:
    (root / "run/systemd/system").mkdir(parents=True)
    (root / "bin").mkdir(parents=True)
    (root / "bin/systemd-run").touch()
    return root


def test_systemd_starts_it_where_systemd_runs_the_host(tmp_path: Path) -> None:
    host = _Host(_with_systemd(tmp_path))
    assert launch(host, _daemon(_ON_HOST)) == {
        "launcher": "systemd",
        "unit": "gpu-dra-mps-claim-a.service",
    }
    assert (host.ran, host.started) == (["/bin/systemd-run --unit=gpu-dra-mps-claim-a"], [])


@pytest.mark.parametrize("gone", ["run/systemd/system", "bin/systemd-run"])
def test_a_host_without_systemd_or_its_program_starts_it_plainly(tmp_path: Path, gone: str) -> None:
    (_with_systemd(tmp_path) / gone).rename(tmp_path / "gone")
    host = _Host(tmp_path)
    assert launch(host, _daemon(_ON_HOST)) == {"launcher": "plain", "pid": "7"}
    assert host.ran == []


def test_under_selinux_it_is_started_plainly_and_so_keeps_the_type_of_the_plugin(tmp_path: Path) -> None:
    """Containers may connect to `spc_t`, as privileged containers have, and not to what systemd starts."""
    (_with_systemd(tmp_path) / "sys/fs/selinux").mkdir(parents=True)
    (tmp_path / "sys/fs/selinux/enforce").write_text("1")
    host = _Host(tmp_path)
    assert launch(host, _daemon(_ON_HOST))["launcher"] == "plain"
    assert host.ran == []


def test_what_systemd_refuses_is_started_plainly(tmp_path: Path) -> None:
    host = _Host(_with_systemd(tmp_path), refuses=True)
    assert launch(host, _daemon(_ON_HOST))["launcher"] == "plain"


@pytest.mark.parametrize("layout", list(PLACES))
def test_a_program_is_found_with_its_libraries_in_every_layout(tmp_path: Path, layout: Layout) -> None:
    root = PLACES[layout].root
    simulated = create_host(tmp_path, "t4", layout=layout)
    files = HostFiles(tmp_path)
    programs = DriverPrograms(files, lambda: find_driver_root(files))
    program = programs.find("nvidia-cuda-mps-control")
    assert program.root == root
    beside = simulated.path(f"{program.library_folder}/libcuda.so.1")
    assert beside.samefile(simulated.path(simulated.library_folder / "libcuda.so.1"))
    assert program.file == simulated.path(program.path) and program.file.exists()
    assert not program.whole_system
    (simulated.path(f"{root}/lib64")).mkdir(exist_ok=True)
    (simulated.path(f"{root}/lib64/ld-linux-x86-64.so.2")).touch()
    assert programs.find("nvidia-cuda-mps-control").whole_system == (root != "/")
