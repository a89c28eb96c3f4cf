"""Device nodes that a host lacks are made by the driver's nvidia-modprobe, and what cannot be made is a problem."""

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest
from support.mishaps import load_driver, unload_driver
from support.rows import rows, slow_but

from dra_driver.api.inventory import Problem
from kubelet_plugin.effects.device_nodes import DeviceNodes, missing_nodes, modprobe_words
from kubelet_plugin.effects.on_host import OnHost
from kubelet_plugin.facts.container_files import container_files_of
from kubelet_plugin.facts.hardware import Hardware, NvmlSource
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.state import Layout


class _OnHost(OnHost):
    """A simulated host that remembers what was run there, and may be one with namespaces of its own."""

    def __init__(self, host: SimulatedHost) -> None:
        simulated = OnHost.simulated(HostFiles(host.root))
        super().__init__(simulated.files, simulated.processes, None)
        self.ran: list[tuple[str, str]] = []

    def run(self, words: object, about: str, **where: object) -> str:
        assert isinstance(words, list)
        self.ran.append((" ".join(words), str(where["root"])))
        return super().run(words, about)


class _Isolated(_OnHost):
    """Only remembers."""

    @property
    def isolates(self) -> bool:
        return True

    def run(self, words: object, about: str, **where: object) -> str:
        assert isinstance(words, list)
        self.ran.append((" ".join(words), str(where["root"])))
        return ""


class _Node:
    def __init__(
        self, folder: Path, profile: str = "dgx-h100", layout: Layout = "root", kind: type[_OnHost] = _OnHost
    ) -> None:
        self.host = create_host(folder, profile, layout=layout)
        self.files = HostFiles(folder)
        self.on_host = kind(self.host)
        self.driver = DriverInstallation(self.files)
        self.nodes = DeviceNodes(self.on_host, self.driver, DriverPrograms(self.files, self.driver.root))

    def remove(self, *patterns: str) -> None:
        for folder in ("dev", "run/nvidia/driver/dev"):
            for pattern in patterns:
                for path in self.host.path(folder).glob(pattern):
                    if path.is_file():
                        path.unlink()

    @property
    def words(self) -> list[str]:
        return [command.partition(" ")[2] for command, _ in self.on_host.ran]


@pytest.fixture
def node(tmp_path: Path) -> _Node:
    return _Node(tmp_path)


@rows(
    "missing, calls",
    [
        ([], []),
        (["nvidia-uvm"], ["-u -c=0"]),
        (["nvidiactl"], ["-c=255"]),
        (["nvidia0", "nvidia7"], ["-c=0 -c=7"]),
        (["nvidia-modeset"], ["-m"]),
        (["nvidia-modeset", "nvidia-uvm", "nvidia1", "nvidiactl"], ["-c=255 -c=1 -m", "-u -c=0"]),
    ],
)
def test_what_is_missing_is_what_is_asked_for(missing: list[str], calls: list[str]) -> None:
    assert [" ".join(words) for words in modprobe_words(missing)] == calls


def test_the_real_program_takes_these_words() -> None:
    """GPU_DRA_TEST_MODPROBE names one, built from NVIDIA/nvidia-modprobe. Without GPUs it makes no nodes."""
    program = os.environ.get("GPU_DRA_TEST_MODPROBE")
    if not program:
        pytest.skip("no nvidia-modprobe: set GPU_DRA_TEST_MODPROBE to its path")
    for words in (*modprobe_words(("nvidia-modeset", "nvidia-uvm", "nvidia0", "nvidiactl")), ("--no-such-option",)):
        done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
        assert ("Invalid commandline" in done.stderr + done.stdout) is (words == ("--no-such-option",)), done


def test_a_host_that_has_all_nodes_runs_nothing(node: _Node) -> None:
    assert node.nodes() is None
    assert node.on_host.ran == []


@pytest.mark.parametrize("layout", slow_but(["root", "operator", "gke"], "operator"))
def test_after_a_boot_without_udev_rules_the_first_look_makes_all_nodes(tmp_path: Path, layout: Layout) -> None:
    node = _Node(tmp_path, "t4", layout)
    files = partial(container_files_of, node.driver)
    source = NvmlSource(SimulatedNvml(node.host.root), str(node.host.driver_root))
    hardware = Hardware(node.files, lambda: source, make_nodes=node.nodes)
    node.remove("nvidia*")
    facts = hardware.look()
    assert facts.problems == ()
    assert all(files(facts).nodes_there(gpu.uuid) for gpu in facts.gpus)
    assert node.words == ["-c=255 -c=0 -c=1 -c=2 -c=3 -m", "-u -c=0"]
    hardware.look()
    assert len(node.words) == 2


def test_unified_memory_alone_is_made_and_a_node_of_an_earlier_major_made_anew(node: _Node) -> None:
    for change in ("", "simulated device node c 400:0 0666\n"):
        node.remove("nvidia-uvm*")
        if change:
            node.host.path("/dev/nvidia-uvm").write_text(change)
        assert node.nodes() is None
        uvm = node.files.device_node("/dev/nvidia-uvm")
        assert uvm is not None and uvm.major == 508
    assert node.words == ["-u -c=0", "-u -c=0"]


def test_unified_memory_whose_module_is_not_loaded_is_asked_for_though_a_node_is_left(node: _Node) -> None:
    devices = node.host.path("/proc/devices")
    devices.write_text("".join(line for line in devices.open() if "nvidia-uvm" not in line))
    assert missing_nodes(node.files, "/") == ("nvidia-uvm",)
    node.nodes()
    assert node.words == ["-u -c=0"]


def test_a_gpu_without_node_beside_others_that_have_theirs_is_left_alone(node: _Node) -> None:
    """A node in a container (kind) has nodes of its own GPUs only, and its /proc speaks of all of the machine."""
    node.remove("nvidia3", "nvidia5")
    assert node.nodes() is None
    assert node.on_host.ran == []


def test_what_cannot_be_made_is_tried_once_and_said_until_it_is_there(node: _Node) -> None:
    params = node.host.path("/proc/driver/nvidia/params")
    params.write_text(params.read_text().replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0"))
    node.remove("nvidia-uvm*", "nvidiactl")
    for _ in range(3):
        problem = node.nodes()
        assert problem is not None and (problem.subject, problem.reason) == ("device nodes", "Missing")
        assert problem.message.startswith("/dev/nvidia-uvm, /dev/nvidiactl: not there")
        assert "ModifyDeviceFiles: 0" in problem.message
        assert "`nvidia-modprobe -c=255 && nvidia-modprobe -u -c=0`" in problem.message
    assert len(node.words) == 2
    params.write_text(params.read_text().replace("ModifyDeviceFiles: 0", "ModifyDeviceFiles: 1"))
    node.host.reboot()
    node.remove("nvidia-uvm*", "nvidiactl")
    assert node.nodes() is None


def test_a_driver_root_without_the_program_is_a_problem_of_the_node_and_the_look_goes_on(tmp_path: Path) -> None:
    node = _Node(tmp_path)
    source = NvmlSource(SimulatedNvml(node.host.root), "/")
    hardware = Hardware(node.files, lambda: source, make_nodes=node.nodes)
    node.host.path("/usr/bin/nvidia-modprobe").unlink()
    node.remove("nvidia-uvm*")
    facts = hardware.look()
    assert len(facts.gpus) == 8
    (problem,) = facts.problems
    assert isinstance(problem, Problem) and "nvidia-modprobe is in none of" in problem.message


def test_a_kernel_that_does_not_say_which_boot_this_is_is_left_to_the_look(node: _Node) -> None:
    node.remove("nvidia*")
    node.host.path("/proc/sys/kernel/random/boot_id").unlink()
    assert node.nodes() is None and node.on_host.ran == []


def test_nodes_of_modules_that_are_not_loaded_are_not_wanted(node: _Node) -> None:
    unload_driver(node.host)
    assert node.nodes() is None and node.on_host.ran == []
    load_driver(node.host)
    devices = node.host.path("/proc/devices")
    devices.write_text("".join(line for line in devices.open() if "nvidia-modeset" not in line))
    node.remove("nvidia-modeset")
    assert missing_nodes(node.files, "/") == ()


@pytest.mark.parametrize(
    ("layout", "own_dev", "command", "root"),
    [
        ("root", False, "/usr/bin/nvidia-modprobe -u -c=0", ""),
        ("gke", False, "/home/kubernetes/bin/nvidia/bin/nvidia-modprobe -u -c=0", ""),
        ("operator", True, "/usr/bin/nvidia-modprobe -u -c=0", "/run/nvidia/driver"),
        ("operator", False, "/run/nvidia/driver/usr/bin/nvidia-modprobe -u -c=0", ""),
    ],
)
def test_nodes_are_made_in_the_dev_where_containers_look_for_them(
    tmp_path: Path, layout: Layout, own_dev: bool, command: str, root: str
) -> None:
    """A driver container has a /dev and a C library of its own, unless the host's has the nodes."""
    node = _Node(tmp_path, "t4", layout, _Isolated)
    if layout == "operator":
        loader = node.host.path("/run/nvidia/driver/lib64/ld-linux-x86-64.so.2")
        loader.parent.mkdir(exist_ok=True)
        loader.touch()
    node.remove("nvidia-uvm*")
    if not own_dev:
        (node.host.path("/run/nvidia/driver/dev/nvidiactl")).unlink(missing_ok=True)
    node.nodes()
    assert node.on_host.ran == [(command, root)]
