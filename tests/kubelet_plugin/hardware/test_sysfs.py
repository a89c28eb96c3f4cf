"""What the kernel tells of a node, read below any root."""

import os
from pathlib import Path, PurePosixPath
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nodes import Node, a_node
from support.rows import rows

from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware.sysfs import DeviceFile, HostFiles, described_node, nvml_bus_id, pci_address

parts = st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.integers(0, 7))


class TestPciAddresses:
    @rows(
        "written, address",
        [
            ("00000000:1B:00.0", "0000:1b:00.0"),
            ("0000:1B:00.0", "0000:1b:00.0"),
            ("0000:1b:00.0", "0000:1b:00.0"),
            ("00000008:01:00.0", "0008:01:00.0"),
            ("0000000F:01:00.0", "000f:01:00.0"),
            ("00010000:E1:00.0", "10000:e1:00.0"),
        ],
    )
    def test_every_spelling_becomes_that_of_sysfs(self, written: str, address: str) -> None:
        assert pci_address(written) == address

    @rows("text", ["", "1b:00.0", "0000:1b:00", "0000:1b:00.8", "gggg:1b:00.0", "0000:1b:00.0 "])
    def test_what_is_no_address_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="not a PCI address"):
            pci_address(text)

    @given(parts)
    def test_to_nvml_and_back_is_the_same_address(self, numbers: tuple[int, int, int, int]) -> None:
        domain, bus, device, function = numbers
        address = f"{domain:04x}:{bus:02x}:{device:02x}.{function}"
        assert pci_address(nvml_bus_id(address)) == address
        assert pci_address(address) == address


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return a_node(tmp_path)


class TestPci:
    def test_locality_comes_from_the_links_of_sysfs(self, node: Node) -> None:
        facts = node.files.pci("0000:9d:00.0")
        assert (facts.numa_node, facts.root, facts.driver) == (1, "pci0000:97", "nvidia")
        assert facts.iommu_group == 24
        assert facts.drm_nodes == ("card5", "renderD132")

    def test_a_negative_numa_node_is_no_numa_node(self, node: Node) -> None:
        node.host.path("/sys/bus/pci/devices/0000:1b:00.0/numa_node").write_text("-1\n")
        assert node.files.pci("0000:1b:00.0").numa_node is None

    def test_an_address_that_does_not_resolve_has_no_facts_and_is_no_error(self, node: Node) -> None:
        facts = node.files.pci("0000:ff:00.0")
        assert (facts.numa_node, facts.root, facts.driver, facts.vendor) == (None, None, None, None)

    def test_a_link_that_leads_elsewhere_has_no_root_complex(self, node: Node) -> None:
        link = node.host.path("/sys/bus/pci/devices/0000:1b:00.0")
        link.unlink()
        link.symlink_to("../../../../proc")
        assert node.files.pci("0000:1b:00.0").root is None

    def test_gpus_are_told_from_switches_by_their_class(self, node: Node) -> None:
        every_function = {path.name for path in node.host.path("/sys/bus/pci/devices").iterdir()}
        gpus = {facts.address for facts in node.files.nvidia_gpus()}
        assert gpus == {gpu.address for gpu in node.host.state.gpus}
        assert len(every_function - gpus) == 4

    def test_a_virtual_function_of_a_vgpu_host_is_no_gpu_of_its_own(self, node: Node) -> None:
        node.host.path("/sys/bus/pci/devices/0000:43:00.0/physfn").symlink_to("../../0000:15:01.0/0000:1b:00.0")
        node.host.path("/sys/devices/pci0000:3d/0000:15:01.0/0000:1b:00.0").mkdir(parents=True)
        assert "0000:43:00.0" not in {facts.address for facts in node.files.nvidia_gpus()}

    def test_no_pci_bus_is_no_gpu(self, tmp_path: Path) -> None:
        assert HostFiles(tmp_path / "nothing").nvidia_gpus() == ()


class TestFiles:
    def test_the_boot_id_is_that_of_the_root(self, node: Node) -> None:
        assert node.files.boot_id() == node.host.path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def test_a_kernel_without_boot_id_is_an_error_that_names_the_file(self, tmp_path: Path) -> None:
        with pytest.raises(NodeNotReady, match="boot_id"):
            HostFiles(tmp_path).boot_id()

    def test_majors_are_those_of_character_devices(self, node: Node) -> None:
        majors = node.files.device_majors()
        assert majors["nvidia-uvm"] == 508
        assert majors["nvidia-caps"] == 237
        assert "sd" not in majors

    def test_absolute_links_lead_to_the_hosts_files(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "real" / "file").write_text("inside")
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "link").symlink_to("/real")
        files = HostFiles(tmp_path)
        assert files.resolve("/other/link/file") == PurePosixPath("/real/file")
        assert files.read_text("/other/link/file") == "inside"

    def test_no_link_leads_out_of_the_root(self, tmp_path: Path) -> None:
        root = tmp_path / "root"
        root.mkdir()
        (tmp_path / "secret").write_text("outside")
        (root / "link").symlink_to("../../../../../secret")
        assert HostFiles(root).read_text("/link") is None

    def test_links_in_a_circle_lead_nowhere(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to("b")
        (tmp_path / "b").symlink_to("a")
        assert HostFiles(tmp_path).resolve("/a") is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nodes")


class TestDeviceNodes:
    def test_a_described_node_has_its_numbers(self, node: Node) -> None:
        assert node.files.device_node("/dev/nvidiactl") == DeviceFile("/dev/nvidiactl", "c", 195, 255, 0o666)
        assert node.files.device_node("/dev/nvidia-caps/nvidia-cap1") == DeviceFile(
            "/dev/nvidia-caps/nvidia-cap1", "c", 237, 1, 0o400
        )

    def test_a_real_node_has_those_of_the_kernel(self) -> None:
        device = HostFiles(Path("/")).device_node("/dev/null")
        assert device is not None
        assert (device.type, device.major, device.minor) == ("c", 1, 3)
        assert os.makedev(device.major, device.minor) == Path("/dev/null").stat().st_rdev

    def test_another_file_is_no_node(self, tmp_path: Path) -> None:
        (tmp_path / "nvidia0").write_text("c 195 0")
        (tmp_path / "folder").mkdir()
        files = HostFiles(tmp_path)
        assert [files.device_node(path) for path in ("/nvidia0", "/folder", "/missing")] == [None, None, None]

    @given(st.sampled_from(["c", "b"]), st.integers(0, 4095), st.integers(0, 1 << 20), st.integers(0, 0o777))
    def test_a_description_reads_back_as_it_was_written(
        self, folder: Path, kind: Literal["c", "b"], major: int, minor: int, mode: int
    ) -> None:
        (folder / "node").write_text(described_node(kind, major, minor, mode))
        assert HostFiles(folder).device_node("/node") == DeviceFile("/node", kind, major, minor, mode)
