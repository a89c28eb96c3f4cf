"""GPUs at virtual machines, from NVML to the facts: lent ones do not show, and those that others lend are not offered.

Everything here goes through the adapters of a real node, over the simulated NVML and kernel.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.killed import Killed
from support.mishaps import bind_gpu, configure
from support.rows import slow_but
from support.smi import SmiInProcess

from dra_driver.devices.exclusion import GpuUse, conflict
from dra_driver.devices.model import DeviceKind
from dra_driver.errors import HardwareError
from kubelet_plugin.effects.vfio import VfioBindings, VfioPatience
from kubelet_plugin.effects.vfio_driver import DriverOfNode, HostSmi
from kubelet_plugin.facts.hardware import Hardware, NodeFacts, NvmlSource
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.hardware.vfio import Sysfs
from kubelet_plugin.prepare.holds import GpuIdentity, Hold, HoldRecord, HoldState, Made, VfioBinding
from kubelet_plugin.prepare.ours import KEPT, kept_text, ours_of
from kubelet_plugin.simulation.host import create_host
from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.state import Function
from kubelet_plugin.simulation.vfio import SimulatedKernel

PATIENCE = VfioPatience(users_s=0.3, last_users_s=0.1, write_s=2.0, nodes_s=0.3, return_s=5.0)


class Deadly(SimulatedKernel):
    """A kernel that ends the plugin after its n-th write; None: never."""

    def __init__(self, root: Path, killed_after: int | None = None) -> None:
        super().__init__(root)
        self._killed_after = killed_after
        self.acts = 0

    def write(self, host_path: str, text: str) -> None:
        super().write(host_path, text)
        self.acts += 1
        if self.acts == self._killed_after:
            raise Killed


class Node:
    """A node and its journal. `hardware` is the plugin's of now: a new life begins with `restart`."""

    def __init__(self, folder: Path, profile: str) -> None:
        self.host = create_host(folder, profile, gpus=2)
        self.files = HostFiles(folder)
        self.journal: dict[Hold, HoldRecord] = {}
        self.pauses = 0
        self.restart()

    def restart(self, killed_after: int | None = None) -> None:
        self.hardware = Hardware(
            self.files,
            lambda: NvmlSource(SimulatedNvml(self.host.root), str(self.host.driver_root)),
            lambda: ours_of(self.journal, self.files.boot_id()),
        )
        self.kernel = Deadly(self.host.root, killed_after)
        self.effect = VfioBindings(
            self.files, self.kernel, self.kernel, DriverOfNode(self.hardware, self.smi(), self.paused), PATIENCE
        )

    def smi(self) -> HostSmi:
        return SmiInProcess(self.files)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.pauses += 1
        yield

    def hold(self, index: int = 0) -> VfioBinding:
        gpu = self.host.state.gpus[index]
        return VfioBinding(GpuIdentity(gpu.uuid, gpu.address), False)

    def lend(self, hold: VfioBinding) -> Made:
        if hold not in self.journal:
            gpu = next(gpu for gpu in self.hardware.look().gpus if gpu.uuid == hold.gpu.uuid)
            facts = (*self.effect.before(hold, self.journal).facts, (KEPT, kept_text(gpu)))
            self.journal[hold] = HoldRecord(HoldState.INTENT, self.files.boot_id(), Made(facts))
        made = self.effect.make(hold, self.journal)
        self.journal[hold] = HoldRecord(HoldState.MADE, self.files.boot_id(), made)
        return made

    def take_back(self, hold: VfioBinding) -> None:
        self.effect.undo(hold, self.journal, self.files.boot_id())
        del self.journal[hold]


@pytest.fixture(params=slow_but(["l40s", "dgx-h100"], "l40s"))
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    node = Node(tmp_path, request.param)
    gpu = node.host.state.gpus[0]
    audio = Function(address=gpu.address[:-1] + "1", beside=gpu.address)
    configure(node.kernel, functions=[audio])
    return node


def shown(facts: NodeFacts) -> tuple[object, ...]:
    return facts.driver, facts.gpus, facts.problems


class TestFacts:
    def test_gpus_have_their_group_and_whether_there_is_iommufd(self, node: Node) -> None:
        gpus = node.hardware.look().gpus
        assert all(gpu.passthrough is not None and gpu.passthrough.iommufd for gpu in gpus)
        groups = {gpu.passthrough.iommu_group for gpu in gpus if gpu.passthrough is not None}
        assert len(groups) == len(gpus) == len(node.host.state.gpus)

    def test_without_iommu_there_is_no_passthrough(self, node: Node) -> None:
        configure(node.kernel, iommu=False)
        assert {gpu.passthrough for gpu in node.hardware.look().gpus} == {None}

    def test_a_gpu_that_is_not_alone_in_its_group_cannot_be_lent(self, node: Node) -> None:
        first, second = node.host.state.gpus[:2]
        configure(node.kernel, groups={first.address: 3, second.address: 3})
        without = {gpu.uuid for gpu in node.hardware.look().gpus if gpu.passthrough is None}
        assert without == {first.uuid, second.uuid}


class TestLent:
    def test_the_facts_are_those_of_before(self, node: Node) -> None:
        start = shown(node.hardware.look())
        made = node.lend(node.hold())
        assert made["driver"] == "vfio-pci"
        assert shown(node.hardware.look()) == start
        node.take_back(node.hold())
        assert shown(node.hardware.look()) == start
        assert node.host.state.gpus[0].persistenced

    @pytest.mark.parametrize("number", slow_but(range(1, 7), 1, 4))
    def test_so_they_are_for_a_plugin_that_begins_anew_on_the_way(self, node: Node, number: int) -> None:
        start = shown(node.hardware.look())
        node.restart(killed_after=number)
        with pytest.raises(Killed):
            node.lend(node.hold())
        node.restart()
        assert shown(node.hardware.look()) == start
        node.restart()
        assert node.lend(node.hold())["driver"] == "vfio-pci"
        assert shown(node.hardware.look()) == start
        node.restart(killed_after=number)
        with pytest.raises(Killed):
            node.take_back(node.hold())
        node.restart()
        assert shown(node.hardware.look()) == start
        node.take_back(node.hold())
        assert shown(node.hardware.look()) == start

    def test_the_last_gpu_can_be_lent(self, node: Node) -> None:
        start = shown(node.hardware.look())
        for index in range(len(node.host.state.gpus)):
            node.lend(node.hold(index))
        assert shown(node.hardware.look()) == start
        for index in range(len(node.host.state.gpus)):
            node.take_back(node.hold(index))
        assert shown(node.hardware.look()) == start

    def test_all_sessions_of_ours_are_away_meanwhile(self, node: Node) -> None:
        node.lend(node.hold())
        assert node.pauses == 2  # while persistence mode is switched off, and while the driver lets go

    def test_looks_beside_it_show_nothing_of_it(self, node: Node) -> None:
        start = shown(node.hardware.look())
        seen: list[tuple[object, ...]] = []
        over = threading.Event()

        def look() -> None:
            while not over.is_set():
                seen.append(shown(node.hardware.look()))

        looking = threading.Thread(target=look)
        looking.start()
        try:
            for _ in range(2):
                node.lend(node.hold())
                node.take_back(node.hold())
        finally:
            over.set()
            looking.join()
        assert seen
        assert all(look_shown == start for look_shown in seen)


class TestForeign:
    def test_a_gpu_that_somebody_else_bound_is_named_and_not_offered(self, node: Node) -> None:
        bind_gpu(node.host, 1, "vfio-pci")
        facts = node.hardware.look()
        gpu = node.host.state.gpus[1]
        assert gpu.uuid not in {offered.uuid for offered in facts.gpus}
        assert [(problem.subject, problem.reason) for problem in facts.problems] == [
            (f"GPU {gpu.address}", "BoundToVfio")
        ]

    def test_it_is_not_lent_either(self, node: Node) -> None:
        bind_gpu(node.host, 1, "vfio-pci")
        with pytest.raises(HardwareError, match="bound to vfio-pci, and not by this driver"):
            node.effect.before(node.hold(1), node.journal)


@pytest.mark.parametrize("kind", [DeviceKind.GPU, DeviceKind.VFIO])
def test_no_other_claim_has_a_gpu_that_a_machine_has(kind: DeviceKind) -> None:
    lent = GpuUse("GPU-1", DeviceKind.VFIO)
    assert conflict(lent, GpuUse("GPU-1", kind)) is not None
    assert conflict(GpuUse("GPU-1", kind), lent) is not None
    assert conflict(lent, GpuUse("GPU-2", kind)) is None


def test_the_writer_of_a_real_node_writes_once_and_whole(tmp_path: Path) -> None:
    file = tmp_path / "sys" / "order"
    file.parent.mkdir()
    file.write_text("x" * 5)
    Sysfs(HostFiles(tmp_path)).write("/sys/order", "0000:1b:00.0\n")
    assert file.read_text() == "0000:1b:00.0\n"
    with pytest.raises(FileNotFoundError):
        Sysfs(HostFiles(tmp_path)).write("/sys/no/order", "\n")
    assert not (tmp_path / "sys" / "no").exists()
