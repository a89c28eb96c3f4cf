import os
from pathlib import Path

import pytest
from support.cdi import gpu_facts
from support.driver_tree import VERSION, DriverTree
from support.mishaps import load_driver, reboot_renumbered, unload_driver
from support.rows import slow_but

from dra_driver.api.inventory import GpuFacts
from dra_driver.cdi.edits import ClaimDevice, claim_spec
from dra_driver.cdi.inject import decode
from dra_driver.cdi.model import DeviceNode, encode, problems_of
from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware.driver_root import (
    DriverInstallation,
    find_driver_root,
    kernel_module_version,
)
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.simulation.driver_files import PLACES
from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.state import Layout

OPERATOR, GKE = "/run/nvidia/driver", "/home/kubernetes/bin/nvidia"
LAYOUTS = tuple(PLACES)
PROFILES = ("t4", "l40s", "a30", "dgx-a100-40", "dgx-h100", "hgx-h200", "dgx-b200", "gb200", "rtx-pro-6000")


@pytest.fixture
def tree(tmp_path: Path) -> DriverTree:
    return DriverTree(tmp_path)


def gpus_of(host: SimulatedHost) -> list[GpuFacts]:
    return [
        gpu_facts(gpu.minor, pci_bus_id=gpu.address).model_copy(update={"uuid": gpu.uuid}) for gpu in host.state.gpus
    ]


def settled(host: SimulatedHost) -> None:
    """Let everything on the host have been there for long."""
    DriverTree(host.root).settle()


# Finding it


@pytest.mark.parametrize("root", [OPERATOR, "/", GKE])
def test_the_driver_is_found_where_environments_put_it(tree: DriverTree, root: str) -> None:
    tree.libraries(f"{root.rstrip('/')}/lib64")
    driver = find_driver_root(tree.host)
    assert (driver.path, driver.version) == (root, VERSION)
    assert driver.nvml_library == tree.path(f"{root.rstrip('/')}/lib64/libnvidia-ml.so.{VERSION}")


def test_the_configured_root_is_the_only_one_looked_at(tree: DriverTree) -> None:
    tree.libraries("/usr/lib64", version="550.54.14")
    tree.libraries("/opt/driver/usr/lib64")
    assert find_driver_root(tree.host, "/opt/driver").version == VERSION
    with pytest.raises(NodeNotReady, match="below /opt/other, which is configured as driver root: install"):
        find_driver_root(tree.host, "/opt/other")


def test_a_host_without_a_driver_is_not_ready_and_is_told_where_was_looked(tree: DriverTree) -> None:
    with pytest.raises(NodeNotReady) as caught:
        find_driver_root(tree.host)
    for root in (OPERATOR, "/", GKE):
        assert root in caught.value.message
    assert caught.value.retry_after_s is not None


def test_an_empty_driver_folder_is_no_driver(tree: DriverTree) -> None:
    """The mount point of a driver container that has not started."""
    tree.folder(OPERATOR)
    tree.libraries("/usr/lib64")
    assert find_driver_root(tree.host).path == "/"


@pytest.mark.parametrize(("loaded", "root"), [(VERSION, OPERATOR), ("550.54.14", "/"), (None, OPERATOR)])
def test_of_several_drivers_the_one_that_is_loaded_counts(tree: DriverTree, loaded: str | None, root: str) -> None:
    tree.libraries(f"{OPERATOR}/usr/lib64")
    tree.libraries("/usr/lib64", version="550.54.14")
    if loaded is not None:
        tree.kernel_module(loaded)
    assert find_driver_root(tree.host).path == root


def test_what_an_upgrade_left_of_the_older_driver_does_not_count(tree: DriverTree) -> None:
    tree.libraries("/usr/lib64", version="550.54.14")
    tree.libraries("/usr/lib64")
    tree.kernel_module()
    assert find_driver_root(tree.host).version == VERSION


@pytest.mark.parametrize("open_module", [True, False])
def test_the_kernel_module_tells_its_version(tree: DriverTree, open_module: bool) -> None:
    assert kernel_module_version(tree.host) is None
    tree.kernel_module("535.104.05", open_module=open_module)
    assert kernel_module_version(tree.host) == "535.104.05"


@pytest.mark.parametrize(
    ("path", "text"), [("/etc/nv_tegra_release", "# R36 (release)\n"), ("/sys/devices/soc0/family", "Tegra\n")]
)
def test_a_jetson_is_refused_with_the_reason_whether_or_not_it_has_nvml(tree: DriverTree, path: str, text: str) -> None:
    """JetPack 6 and later have an NVML that lists the integrated GPU, without the device nodes of this driver."""
    tree.file(path, text)
    with pytest.raises(NodeNotReady, match=r"is a Jetson .*: use NVIDIA's device plugin on this node"):
        find_driver_root(tree.host)
    tree.libraries("/usr/lib/aarch64-linux-gnu")
    tree.kernel_module()
    with pytest.raises(NodeNotReady, match="is a Jetson"):
        find_driver_root(tree.host)
    for name, value in {"vendor": "0x10de", "class": "0x030200"}.items():
        tree.file(f"/sys/bus/pci/devices/0000:01:00.0/{name}", value)
    assert find_driver_root(tree.host).path == "/"


def test_wsl_is_refused_with_the_reason_instead_of_a_search_that_finds_nothing(tree: DriverTree) -> None:
    """/usr/lib/wsl/lib has libraries of Windows' driver; a Linux driver beside them, installed by mistake, is none."""
    tree.node("/dev/dxg", 10, 125)
    tree.file("/usr/lib/wsl/lib/libnvidia-ml.so.1")
    tree.libraries("/usr/lib64")
    with pytest.raises(NodeNotReady, match=r"this node is WSL 2 .*NVML gives no minor numbers.*; use Linux"):
        find_driver_root(tree.host)
    tree.kernel_module()
    assert find_driver_root(tree.host).path == "/"


# Complete or not at all


def files_of(tree: DriverTree, configured: str | None = None) -> DriverInstallation:
    return DriverInstallation(tree.host, configured_root=configured)


def test_the_least_complete_driver_is_enough(tree: DriverTree) -> None:
    tree.complete()
    driver = files_of(tree).for_containers(VERSION).files
    assert driver.version == VERSION
    assert driver.cuda_folders == driver.library_folders == ("/usr/lib/x86_64-linux-gnu",)
    assert [node.path for node in driver.control_nodes] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert driver.hook is None


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        (f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}", f"libcuda.so.{VERSION} is in no library folder below /"),
        ("/dev/nvidiactl", "/dev/nvidiactl is missing: load the nvidia kernel module"),
        ("/dev/nvidia-uvm", "/dev/nvidia-uvm is missing: load the nvidia-uvm kernel module"),
    ],
)
def test_half_a_driver_is_none_until_the_rest_is_there(tree: DriverTree, missing: str, says: str) -> None:
    tree.complete()
    content = tree.path(missing).read_bytes()
    tree.remove(missing)
    installation = files_of(tree)
    with pytest.raises(NodeNotReady, match="is not complete") as caught:
        installation.for_containers(VERSION)
    assert says in caught.value.message
    assert caught.value.about == "driver"
    tree.file(missing, content)
    assert installation.for_containers(VERSION).files.version == VERSION


def test_everything_that_is_missing_is_named_at_once(tree: DriverTree) -> None:
    tree.libraries(f"{OPERATOR}/usr/lib64", "libnvidia-ml")
    tree.folder(f"{OPERATOR}/dev")
    with pytest.raises(NodeNotReady) as caught:
        files_of(tree).for_containers(VERSION)
    for name in (f"libcuda.so.{VERSION}", f"{OPERATOR}/dev/nvidiactl", f"{OPERATOR}/dev/nvidia-uvm"):
        assert name in caught.value.message


def test_libraries_of_another_version_than_the_running_one_are_not_used(tree: DriverTree) -> None:
    """After an upgrade without a reboot NVML may still speak for the old driver, whose files are gone."""
    tree.complete()
    with pytest.raises(NodeNotReady, match=r"driver 550\.54\.14 is not complete: libcuda\.so\.550\.54\.14 is in no"):
        files_of(tree).for_containers("550.54.14")


def test_a_complete_driver_that_breaks_is_not_given_out_any_more(tree: DriverTree) -> None:
    tree.complete()
    tree.settle()
    installation = files_of(tree)
    first = installation.for_containers(VERSION).files
    assert installation.for_containers(VERSION).files is first
    tree.remove("/dev/nvidia-uvm")
    with pytest.raises(NodeNotReady):
        installation.for_containers(VERSION)
    tree.node("/dev/nvidia-uvm", 511, 0)
    assert installation.for_containers(VERSION).files.control_nodes[1].major == 511


def test_what_was_found_is_known_without_a_look_until_something_changes(tree: DriverTree) -> None:
    tree.complete()
    tree.settle()
    installation = files_of(tree)
    assert installation.known_for_containers(VERSION) is None
    complete = installation.for_containers(VERSION)
    assert installation.known_for_containers(VERSION) is complete
    assert installation.known_for_containers("550.54.14") is None
    with installation._looking:  # as another thread has it while it looks
        assert installation.known_for_containers(VERSION) is None
    assert installation.known_for_containers(VERSION) is complete
    tree.remove("/dev/nvidia-uvm")
    assert installation.known_for_containers(VERSION) is None


def test_what_was_found_is_kept_only_when_a_change_would_be_noticed(tree: DriverTree) -> None:
    tree.complete()
    tree.keep_changing("/dev")
    installation = files_of(tree)
    now = installation.for_containers(VERSION).files
    assert installation.for_containers(VERSION).files is not now
    assert installation.for_containers(VERSION).files == now
    tree.settle()
    driver = installation.for_containers(VERSION).files
    assert installation.for_containers(VERSION).files is driver


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree.libraries("/usr/lib/x86_64-linux-gnu", "libnvidia-encode"),
        lambda tree: tree.file("/usr/bin/nvidia-smi"),
        lambda tree: tree.file("/run/nvidia-persistenced/socket"),
        lambda tree: tree.file(f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"),
        lambda tree: tree.file("/etc/vulkan/icd.d/nvidia_icd.json"),
        lambda tree: tree.node("/dev/nvidia-modeset", 195, 254),
        lambda tree: tree.complete(OPERATOR),
    ],
    ids=["library", "program", "socket", "firmware", "configuration", "node", "driver container"],
)
def test_what_appears_later_is_noticed(tree: DriverTree, change: object) -> None:
    for folder in ("/usr/bin", "/run", "/lib", "/etc", "/dev"):
        tree.folder(folder)
    tree.complete()
    tree.settle()
    installation = files_of(tree)
    before = installation.for_containers(VERSION).files
    assert installation.for_containers(VERSION).files is before
    assert callable(change)
    change(tree)
    after = installation.for_containers(VERSION).files
    assert after != before


def test_a_driver_container_that_was_replaced_is_noticed(tree: DriverTree) -> None:
    tree.complete(OPERATOR)
    tree.settle()
    installation = files_of(tree)
    installation.for_containers(VERSION)
    tree.path(OPERATOR).rename(tree.path("/run/nvidia/old"))
    tree.complete(OPERATOR, "/usr/lib64")
    tree.settle()
    assert installation.for_containers(VERSION).files.library_folders == ("/usr/lib64",)


def test_another_version_is_looked_up_anew(tree: DriverTree) -> None:
    tree.complete()
    tree.libraries("/usr/lib/x86_64-linux-gnu", version="550.54.14")
    tree.settle()
    installation = files_of(tree)
    assert installation.for_containers(VERSION).files.version == VERSION
    tree.kernel_module("550.54.14")
    assert installation.for_containers("550.54.14").files.version == "550.54.14"


# Device nodes


def nodes(tree: DriverTree, gpu: GpuFacts) -> tuple[DeviceNode, ...]:
    return files_of(tree).for_containers(VERSION).nodes_of(gpu)


def test_a_gpus_nodes_carry_everything_a_container_needs(tree: DriverTree) -> None:
    tree.complete()
    tree.node("/dev/nvidia3", 195, 3)
    (node,) = nodes(tree, gpu_facts(3))
    assert node == DeviceNode("/dev/nvidia3", type="c", major=195, minor=3, file_mode=0o666, permissions="rwm")


def test_nodes_of_a_driver_container_are_named_with_their_host_path(tree: DriverTree) -> None:
    tree.complete(OPERATOR)
    tree.node(f"{OPERATOR}/dev/nvidia0", 195, 0)
    (node,) = nodes(tree, gpu_facts())
    assert (node.path, node.host_path) == ("/dev/nvidia0", f"{OPERATOR}/dev/nvidia0")


def test_a_root_without_dev_uses_the_hosts(tree: DriverTree) -> None:
    tree.libraries(f"{GKE}/lib64")
    tree.control_nodes()
    tree.node("/dev/nvidia0", 195, 0)
    (node,) = nodes(tree, gpu_facts())
    assert (node.path, node.host_path) == ("/dev/nvidia0", "")


def test_a_driver_root_whose_dev_is_empty_uses_the_hosts(tree: DriverTree) -> None:
    tree.libraries(f"{OPERATOR}/usr/lib64")
    tree.folder(f"{OPERATOR}/dev")
    tree.control_nodes()
    tree.node("/dev/nvidia0", 195, 0)
    (node,) = nodes(tree, gpu_facts())
    assert (node.path, node.host_path) == ("/dev/nvidia0", "")


def test_a_uvm_node_of_an_earlier_load_of_the_module_is_not_given_out(tree: DriverTree) -> None:
    """Its major is dynamic: the old one may belong to another driver now."""
    tree.complete()
    tree.file("/proc/devices", "Character devices:\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  8 sd\n")
    with pytest.raises(NodeNotReady, match="/dev/nvidia-uvm has major 508, and the kernel gave nvidia-uvm 511"):
        files_of(tree).for_containers(VERSION)
    tree.node("/dev/nvidia-uvm", 511, 0)
    assert files_of(tree).for_containers(VERSION).files.version == VERSION


def test_a_uvm_node_that_an_unloaded_module_left_is_not_given_out(tree: DriverTree) -> None:
    """As after a driver was upgraded without a reboot, until the first program that uses CUDA loads the module."""
    tree.complete()
    tree.file("/proc/devices", "Character devices:\n195 nvidia\n508 infiniband_mad\n\nBlock devices:\n  8 sd\n")
    with pytest.raises(NodeNotReady, match="/dev/nvidia-uvm is there, but the nvidia-uvm kernel module is not loaded"):
        files_of(tree).for_containers(VERSION)


def test_drm_nodes_belong_to_the_gpu_that_sysfs_says(tree: DriverTree) -> None:
    tree.complete()
    gpu = gpu_facts()
    tree.node("/dev/nvidia0", 195, 0)
    for name in ("card1", "renderD128", "card1-DP-1"):
        tree.folder(f"/sys/bus/pci/devices/{gpu.pci_bus_id}/drm/{name}")
    tree.node("/dev/dri/card1", 226, 1)
    tree.node("/dev/dri/card2", 226, 2)
    assert [node.path for node in nodes(tree, gpu)] == ["/dev/nvidia0", "/dev/dri/card1"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda tree: None, "/dev/nvidia0 is missing: make it with `nvidia-modprobe -c=0`"),
        (lambda tree: tree.file("/dev/nvidia0", "a file"), "/dev/nvidia0 is missing"),
        (lambda tree: tree.node("/dev/nvidia0", 195, 1), "/dev/nvidia0 is c 195:1, and must be c 195:0: remove it"),
        (lambda tree: tree.node("/dev/nvidia0", 8, 0), "/dev/nvidia0 is c 8:0, and must be c 195:0"),
    ],
)
def test_a_gpu_whose_node_is_not_right_is_missing_and_the_others_are_not(
    tree: DriverTree, make: object, says: str
) -> None:
    tree.complete()
    tree.node("/dev/nvidia1", 195, 1)
    assert callable(make)
    make(tree)
    first, second = gpu_facts(0), gpu_facts(1)
    driver = files_of(tree).for_containers(VERSION)
    with pytest.raises(NodeNotReady) as missing:
        driver.nodes_of(first)
    assert says in missing.value.message
    assert missing.value.about == f"GPU {first.uuid}"
    assert driver.nodes_of(second)


def test_a_node_that_appears_or_goes_is_noticed(tree: DriverTree) -> None:
    tree.complete()
    tree.settle()
    installation, gpu = files_of(tree), gpu_facts()
    driver = installation.for_containers(VERSION)
    with pytest.raises(NodeNotReady):
        driver.nodes_of(gpu)
    tree.node("/dev/nvidia0", 195, 0)
    assert driver.nodes_of(gpu)
    tree.settle()
    assert driver.nodes_of(gpu)
    tree.remove("/dev/nvidia0")
    with pytest.raises(NodeNotReady):
        driver.nodes_of(gpu)


def test_real_device_nodes_are_read_with_owner_and_mode(tmp_path: Path) -> None:
    """Where the test may make them."""
    tree = DriverTree(tmp_path)
    tree.complete()
    place = tree.path("/dev/nvidia0")
    try:
        os.mknod(place, 0o020660, os.makedev(195, 0))
        os.chown(place, 0, 44)
    except PermissionError:
        pytest.skip("needs the right to make device nodes")
    place.chmod(0o660)
    (node,) = nodes(tree, gpu_facts())
    assert node == DeviceNode("/dev/nvidia0", type="c", major=195, minor=0, file_mode=0o660, permissions="rwm", gid=44)
    place.chmod(0o666)
    assert nodes(tree, gpu_facts())[0].gid is None


# Whole nodes


@pytest.mark.parametrize(
    ("profile", "layout"),
    [
        *slow_but([(profile, "root") for profile in PROFILES], ("t4", "root"), ("dgx-h100", "root"), ("gb200", "root")),
        *(("t4", layout) for layout in LAYOUTS[1:]),
    ],
)
def test_every_simulated_node_gives_a_valid_spec_of_files_that_exist(
    tmp_path: Path, profile: str, layout: Layout
) -> None:
    host = create_host(tmp_path, profile, layout=layout)
    settled(host)
    installation = DriverInstallation(HostFiles(tmp_path))
    version = installation.root().version
    gpus = gpus_of(host)
    driver = installation.for_containers(version)
    devices = [ClaimDevice(gpu.name, gpu, driver.nodes_of(gpu)) for gpu in gpus]
    spec = claim_spec("gpu.nvidia.com", "0b5b1c8e-6b9e-4b0e-8f0a-000000000001", devices, driver.files)
    assert problems_of(spec) == ()
    assert decode(encode(spec)) == spec
    for mount in spec.container_edits.mounts:
        assert (tmp_path / mount.host_path.lstrip("/")).exists(), mount
        assert not mount.container_path.startswith((OPERATOR, GKE)), mount
    mounted = {mount.container_path for mount in spec.container_edits.mounts}
    assert {f"/usr/lib/{driver.files.machine}-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1"} <= mounted
    assert any(path.endswith("/nvidia-smi") for path in mounted)
    assert installation.for_containers(version) is driver


@pytest.mark.parametrize("layout", slow_but(LAYOUTS, *LAYOUTS[:3]))
def test_a_reboot_with_other_minors_gives_each_gpu_its_new_node(tmp_path: Path, layout: Layout) -> None:
    host = create_host(tmp_path, "dgx-h100", layout=layout)
    installation = DriverInstallation(HostFiles(tmp_path))
    version = installation.root().version

    def minors() -> dict[str, int | None]:
        driver = installation.for_containers(version)
        return {gpu.uuid: driver.nodes_of(gpu)[0].minor for gpu in gpus_of(host)}

    before = minors()
    reboot_renumbered(host)
    assert minors() == {gpu.uuid: gpu.minor for gpu in host.state.gpus} != before


def test_an_unloaded_driver_is_not_ready_and_a_newer_one_is_found(tmp_path: Path) -> None:
    host = create_host(tmp_path, "dgx-h100", layout="operator")
    installation = DriverInstallation(HostFiles(tmp_path))
    old = installation.root().version
    unload_driver(host)
    with pytest.raises(NodeNotReady, match="nvidiactl is missing"):
        installation.for_containers(old)
    load_driver(host, "595.10.01")
    assert installation.root().version == "595.10.01"
    driver = installation.for_containers("595.10.01")
    libcuda = [file.host_path for file in driver.files.libraries if "libcuda" in file.host_path]
    assert libcuda and all("595.10.01" in path for path in libcuda)
