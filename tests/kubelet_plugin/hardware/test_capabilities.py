"""A container that has a MIG device gets the nodes of that one, and nothing that leads further."""

from pathlib import Path

import pytest
from support.nodes import Node, a_node

from dra_driver.cdi.model import DeviceNode
from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware.capabilities import capability_nodes
from kubelet_plugin.hardware.driver_root import DriverInstallation

CAPABILITIES = "/proc/driver/nvidia/capabilities"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """GPU 2 is in MIG mode, with a MIG device of 3g.40gb at 4."""
    node = a_node(tmp_path)
    node.host.set_mig(2, 1)
    node.host.make_instance(2, "3g.40gb", 4)
    return node


def instance_of(node: Node) -> tuple[str, int, int]:
    """UUID and minor of the GPU, and the GPU instance's id."""
    gpu = node.host.state.gpus[2]
    return gpu.uuid, gpu.minor, gpu.instances[0].id


@pytest.mark.parametrize("profile", ["dgx-h100", "dgx-a100-80"])
def test_a_mig_device_has_its_gpus_node_and_those_of_its_two_instances(tmp_path: Path, profile: str) -> None:
    node = a_node(tmp_path, profile)
    node.host.set_mig(2, 1)
    node.host.make_instance(2, "1g.10gb", 3)
    uuid, minor, gi = instance_of(node)
    nodes = DriverInstallation(node.files).mig_nodes(uuid, minor, gi, 0)
    first = 3 + 135 * minor + 9 * gi
    assert [device_node.path for device_node in nodes] == [
        f"/dev/nvidia{minor}",
        f"/dev/nvidia-caps/nvidia-cap{first}",
        f"/dev/nvidia-caps/nvidia-cap{first + 1}",
    ]
    assert nodes[1] == DeviceNode(
        path=nodes[1].path, type="c", major=237, minor=first, file_mode=0o444, permissions="rw"
    )


def test_no_container_gets_what_divides_gpus(node: Node) -> None:
    uuid, minor, gi = instance_of(node)
    assert not {"/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2"} & {
        device_node.path for device_node in DriverInstallation(node.files).mig_nodes(uuid, minor, gi, 0)
    }


def test_a_host_without_the_nodes_gives_their_numbers(node: Node) -> None:
    uuid, minor, gi = instance_of(node)
    before = DriverInstallation(node.files).mig_nodes(uuid, minor, gi, 0)
    for path in node.host.path("/dev/nvidia-caps").iterdir():
        path.unlink()
    assert DriverInstallation(node.files).mig_nodes(uuid, minor, gi, 0) == before


def test_the_kernels_file_decides_who_may_open_a_node(node: Node) -> None:
    _, minor, gi = instance_of(node)
    access = node.host.path(f"{CAPABILITIES}/gpu{minor}/mig/gi{gi}/access")
    access.write_text("DeviceFileMinor: 77\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
    first, _ = capability_nodes(node.files, "GPU", minor, gi, 0)
    assert (first.minor, first.file_mode) == (77, 0o400)


@pytest.mark.parametrize(("gi", "ci"), [(14, 0), (None, 5)])
def test_an_instance_that_is_gone_has_no_nodes(node: Node, gi: int | None, ci: int) -> None:
    uuid, minor, real = instance_of(node)
    with pytest.raises(NodeNotReady, match="layout of the GPU was changed") as raised:
        DriverInstallation(node.files).mig_nodes(uuid, minor, gi if gi is not None else real, ci)
    assert raised.value.about == f"GPU {uuid}"


def test_a_kernel_that_shows_no_capabilities_is_asked_for_its_table(node: Node) -> None:
    _, minor, gi = instance_of(node)
    before = capability_nodes(node.files, "GPU", minor, gi, 0)
    node.host.path(CAPABILITIES).rename(node.host.path(CAPABILITIES + ".away"))
    assert capability_nodes(node.files, "GPU", minor, gi, 0) == before


def test_a_kernel_without_the_device_class_cannot_serve_mig(node: Node) -> None:
    devices = node.host.path("/proc/devices")
    devices.write_text(devices.read_text().replace("nvidia-caps", "something"))
    with pytest.raises(NodeNotReady, match="no device class nvidia-caps"):
        capability_nodes(node.files, "GPU", *instance_of(node)[1:], 0)


@pytest.mark.parametrize("text", ["", "DeviceFileMinor: x\n", "nonsense"])
def test_a_file_of_another_form_is_not_guessed(node: Node, text: str) -> None:
    _, minor, gi = instance_of(node)
    node.host.path(f"{CAPABILITIES}/gpu{minor}/mig/gi{gi}/access").write_text(text)
    with pytest.raises(NodeNotReady, match="cannot be parsed"):
        capability_nodes(node.files, "GPU", minor, gi, 0)


def test_a_gpu_whose_own_node_is_missing_serves_no_mig_device(node: Node) -> None:
    uuid, minor, gi = instance_of(node)
    node.host.path(f"/dev/nvidia{minor}").unlink()
    with pytest.raises(NodeNotReady, match=f"/dev/nvidia{minor} is missing"):
        DriverInstallation(node.files).mig_nodes(uuid, minor, gi, 0)
