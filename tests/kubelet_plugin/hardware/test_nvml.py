"""GPU facts through NVML: every call that may fail, and every trap of the binding."""

import _ctypes
import ctypes
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mishaps import bind_gpu, fail_call, load_driver, remove_driver_files, set_fabric, unload_driver
from support.nodes import Node, a_node
from support.replaced_nvml import Library
from support.rows import slow_but

from dra_driver.api.inventory import GpuFacts, Problem
from dra_driver.errors import HardwareError
from kubelet_plugin.hardware import driver_files
from kubelet_plugin.hardware import nvml as adapter
from kubelet_plugin.hardware.calls import load_library, problem_of, session_over
from kubelet_plugin.hardware.nvml import Nvml
from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.profiles import NvlinkModel
from kubelet_plugin.simulation.state import SimulatedFabric

IDENTITY_CALLS = [
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetName",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetCudaComputeCapability",
]
USE_CALLS = {
    "nvmlDeviceGetMemoryInfo": "memory_bytes",
    "nvmlDeviceGetMigMode": "mig",
    "nvmlDeviceGetGpuFabricInfoV": "fabric",
    "nvmlDeviceGetVirtualizationMode": "virtualization",
}
DESCRIPTION_CALLS = {
    "nvmlDeviceGetAddressingMode": "addressing_mode",
    "nvmlDeviceGetEccMode": "ecc_enabled",
    "nvmlDeviceGetNumGpuCores": "multiprocessors",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_watts",
    "nvmlDeviceGetMaxPcieLinkGeneration": "pcie_generation",
    "nvmlDeviceGetMaxPcieLinkWidth": "pcie_width",
    "nvmlDeviceGetModuleId": "module_id",
    "nvmlDeviceGetSerial": "serial",
    "nvmlDeviceGetVbiosVersion": "vbios_version",
}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return a_node(tmp_path, gpus=4)


@pytest.fixture
def host(node: Node) -> SimulatedHost:
    return node.host


@pytest.fixture
def library(host: SimulatedHost) -> Library:
    return Library(host.root)


def started(library: SimulatedNvml) -> Nvml:
    nvml = Nvml(library)
    nvml.start()
    return nvml


type Lasting = tuple[Nvml, SimulatedHost]


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Lasting:
    """One node and one session for all examples of a property."""
    host = create_host(tmp_path_factory.mktemp("lasting"), "dgx-h100", gpus=4)
    nvml = started(SimulatedNvml(host.root))
    nvml.gpus()
    return nvml, host


def only_gpu_of(nvml: Nvml) -> GpuFacts:
    (gpu,) = nvml.gpus().gpus
    return gpu


class TestFacts:
    def test_an_h100_is_told_in_full(self, node: Node) -> None:
        gpu = node.nvml().gpus().gpus[0]
        state = node.host.state.gpus[0]
        assert gpu == GpuFacts(
            uuid=state.uuid,
            name="gpu-" + state.uuid[4:12],
            minor=0,
            pci_bus_id="0000:1b:00.0",
            pci_device_id="0x2330",
            product_name="NVIDIA H100 80GB HBM3",
            brand="Nvidia",
            architecture="Hopper",
            cuda_compute_capability="9.0",
            memory_bytes=85520809984,
            addressing_mode="HMM",
            fabric=gpu.fabric,
            nvlink=gpu.nvlink,
            mig=gpu.mig,
            ecc_enabled=True,
            multiprocessors=132,
            power_limit_watts=700,
            pcie_generation=5,
            pcie_width=16,
            module_id=7,
            serial=state.serial,
            vbios_version="96.00.99.00.01",
        )

    @pytest.mark.parametrize(
        ("cuda", "version"), [(13000, "13.0"), (12040, "12.4"), (12090, "12.9"), (13010, "13.1"), (12120, "12.12")]
    )
    def test_the_cuda_version_is_taken_apart(self, node: Node, cuda: int, version: str) -> None:
        with node.host.edit() as state:
            state.driver.cuda = cuda
        assert node.nvml().driver("/").cuda_version == version

    def test_the_driver_version_keeps_its_leading_zeros(self, node: Node) -> None:
        assert node.nvml().driver("/run/nvidia/driver").version == "580.126.09"
        assert node.nvml().driver("/run/nvidia/driver").root == "/run/nvidia/driver"

    @pytest.mark.parametrize(
        ("profile", "multiprocessors"),
        [
            ("t4", 40), ("a30", 56), ("dgx-a100-40", 108), ("l40s", 142), ("dgx-h100", 132), ("dgx-b200", 148),
            ("gb200", 152), ("rtx-pro-6000", 188), ("gb10", 48),
        ],
    )  # fmt: skip
    def test_multiprocessors_are_those_of_the_full_chip(
        self, tmp_path: Path, profile: str, multiprocessors: int
    ) -> None:
        assert a_node(tmp_path, profile).nvml().gpus().gpus[0].multiprocessors == multiprocessors

    def test_multiprocessors_of_an_unknown_generation_are_not_guessed(self, node: Node) -> None:
        with node.host.edit() as state:
            state.model.compute_capability = (14, 0)
        assert node.nvml().gpus().gpus[0].multiprocessors is None

    def test_multiprocessors_that_do_not_come_out_even_are_not_guessed(self, node: Node) -> None:
        with node.host.edit() as state:
            state.model.cores = 16896 + 1
        assert node.nvml().gpus().gpus[0].multiprocessors is None

    def test_a_gpu_on_system_memory_has_no_memory_of_its_own_and_no_power_limit(self, tmp_path: Path) -> None:
        gpu = only_gpu_of(a_node(tmp_path, "gb10").nvml())
        assert (gpu.memory_bytes, gpu.power_limit_watts, gpu.ecc_enabled, gpu.mig) == (None, None, None, None)
        assert (gpu.pci_bus_id, gpu.addressing_mode) == ("000f:01:00.0", "ATS")

    def test_a_memory_of_nothing_is_no_memory(self, library: Library) -> None:
        real = library.real("nvmlDeviceGetMemoryInfo")

        def memory(handle: object) -> Any:
            info = real(handle)
            info.total = 0
            return info

        library.answers["nvmlDeviceGetMemoryInfo"] = memory
        assert started(library).gpus().gpus[0].memory_bytes is None

    @given(number=st.integers(0, 0xFFFFFFFF))
    def test_every_number_of_an_enumeration_has_a_name(self, number: int) -> None:
        for names in (adapter._ARCHITECTURES, adapter._BRANDS, adapter._ADDRESSING_MODES):
            assert adapter._named(names, number)

    def test_a_generation_newer_than_this_driver_stays_visible(self, library: Library) -> None:
        library.answers["nvmlDeviceGetArchitecture"] = lambda handle: 14
        library.answers["nvmlDeviceGetBrand"] = lambda handle: 99
        gpu = started(library).gpus().gpus[0]
        assert (gpu.architecture, gpu.brand) == ("Unknown (14)", "Unknown (99)")

    def test_everything_that_the_binding_names_has_a_name_here(self) -> None:
        for prefix, names in (("NVML_DEVICE_ARCH_", adapter._ARCHITECTURES), ("NVML_BRAND_", adapter._BRANDS)):
            numbers = {getattr(pynvml, name) for name in dir(pynvml) if name.startswith(prefix)}
            assert numbers <= names.keys() | {pynvml.NVML_BRAND_COUNT}

    def test_a_vgpu_guest_is_told(self, node: Node) -> None:
        with node.host.edit() as state:
            state.gpus[0].virtualization = 2
        first, second, *_ = node.nvml().gpus().gpus
        assert (first.virtualization, second.virtualization) == ("VGPUGuest", None)

    def test_mig_mode_now_and_after_the_next_reset(self, node: Node) -> None:
        node.host.set_mig(0, 0, 1)
        node.host.set_mig(1, 1)
        first, second, *_ = node.nvml().gpus().gpus
        assert first.mig is not None and second.mig is not None
        assert (first.mig.enabled, first.mig.pending) == (False, True)
        assert (second.mig.enabled, second.mig.pending) == (True, True)

    def test_minor_and_index_are_different_things(self, tmp_path: Path) -> None:
        gpus = a_node(tmp_path, "dgx-a100-80").nvml().gpus().gpus
        assert [gpu.minor for gpu in gpus] == [2, 3, 0, 1, 6, 7, 4, 5]

    def test_a_module_id_of_zero_is_none(self, library: Library) -> None:
        library.answers["nvmlDeviceGetModuleId"] = lambda handle, holder: 0
        assert started(library).gpus().gpus[0].module_id is None

    def test_every_module_id_is_asked_for_with_a_holder_of_its_own(self, library: Library) -> None:
        holders: list[Any] = []

        def answer(handle: object, holder: ctypes.c_uint) -> int:
            holders.append(holder)
            return len(holders)

        library.answers["nvmlDeviceGetModuleId"] = answer
        gpus = started(library).gpus().gpus
        assert [gpu.module_id for gpu in gpus] == list(range(1, 5))
        assert len({id(holder) for holder in holders}) == 4
        assert all(type(holder) is ctypes.c_uint for holder in holders)


class TestOneBadGpu:
    @pytest.mark.parametrize("call", IDENTITY_CALLS)
    @pytest.mark.parametrize("code", slow_but([4, 15, 999], 15))
    def test_a_failing_identity_drops_that_gpu_only(self, node: Node, call: str, code: int) -> None:
        fail_call(node.host, 2, call, code)
        readings = node.nvml().gpus()
        assert len(readings.gpus) == 3
        (problem,) = readings.problems
        assert problem.subject.startswith("GPU ")

    @pytest.mark.parametrize(
        ("code", "advice"),
        [(8, "power cables"), (11, "log for NVRM"), (14, "serviced"), (17, "privileged"), (999, "log for NVRM")],
    )
    def test_the_problem_says_whose_move_it_is(self, node: Node, code: int, advice: str) -> None:
        fail_call(node.host, 2, "nvmlDeviceGetName", code)
        assert advice in node.nvml().gpus().problems[0].message

    @pytest.mark.parametrize("call", USE_CALLS)
    def test_a_failure_of_what_decides_its_use_drops_that_gpu_only(self, node: Node, call: str) -> None:
        fail_call(node.host, 2, call, 999)
        readings = node.nvml().gpus()
        assert len(readings.gpus) == 3
        assert [problem.subject for problem in readings.problems] == ["GPU 0000:52:00.0"]

    @pytest.mark.parametrize("call", USE_CALLS)
    @pytest.mark.parametrize("code", [3, 13])
    def test_not_supported_is_an_answer(self, node: Node, call: str, code: int) -> None:
        fail_call(node.host, 2, call, code)
        readings = node.nvml().gpus()
        assert readings.problems == ()
        assert getattr(readings.gpus[2], USE_CALLS[call]) is None

    @pytest.mark.parametrize("call", DESCRIPTION_CALLS)
    @pytest.mark.parametrize("code", slow_but([2, 3, 4, 13, 21, 999], 3, 999))
    def test_a_description_that_is_not_told_is_left_out(self, node: Node, call: str, code: int) -> None:
        fail_call(node.host, 2, call, code)
        readings = node.nvml().gpus()
        assert readings.problems == ()
        assert getattr(readings.gpus[2], DESCRIPTION_CALLS[call]) is None
        assert getattr(readings.gpus[3], DESCRIPTION_CALLS[call]) is not None

    @pytest.mark.parametrize("call", [*DESCRIPTION_CALLS, "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkVersion"])
    def test_a_gpu_that_is_lost_half_way_is_lost(self, node: Node, call: str) -> None:
        fail_call(node.host, 2, call, 15)
        readings = node.nvml().gpus()
        assert [(problem.subject, problem.reason) for problem in readings.problems] == [
            ("GPU 0000:52:00.0", "GpuIsLost")
        ]

    def test_a_lost_gpu_is_named_by_what_was_known_of_it(self, node: Node) -> None:
        nvml = node.nvml()
        nvml.gpus()
        node.host.lose_gpu(3)
        readings = nvml.gpus()
        assert [problem.subject for problem in readings.problems] == ["GPU 0000:61:00.0"]
        assert "0000:61:00.0" in readings.listed

    def test_a_gpu_that_never_answered_is_named_by_its_index(self, node: Node) -> None:
        node.host.lose_gpu(3)
        assert [problem.subject for problem in node.nvml().gpus().problems] == ["GPU at index 3"]

    def test_a_uuid_of_another_form_is_refused(self, library: Library) -> None:
        real = SimulatedNvml.nvmlDeviceGetUUID
        library.answers["nvmlDeviceGetUUID"] = lambda handle: (
            "MIG-1" if real(library, handle).endswith(library._uuids[0][-12:]) else real(library, handle)
        )
        readings = started(library).gpus()
        assert len(readings.gpus) == 3
        assert "not a GPU UUID" in readings.problems[0].message

    def test_an_answer_that_cannot_be_true_is_a_problem_of_that_gpu_only(self, library: Library) -> None:
        real = library.real("nvmlDeviceGetMemoryInfo")

        def memory(handle: object) -> Any:
            info = real(handle)
            if SimulatedNvml.nvmlDeviceGetUUID(library, handle) == library._uuids[2]:
                info.total = 2**64 - 1
            return info

        library.answers["nvmlDeviceGetMemoryInfo"] = memory
        readings = started(library).gpus()
        assert len(readings.gpus) == 3
        (problem,) = readings.problems
        assert problem.subject == "GPU 0000:52:00.0"
        assert "memory_bytes is 18446744073709551615" in problem.message

    def test_gpus_that_nvml_no_longer_counts_are_not_listed(self, library: Library) -> None:
        nvml = started(library)
        before = nvml.gpus().listed
        library.answers["nvmlDeviceGetCount"] = lambda: 3
        assert nvml.gpus().listed == before[:3]

    @pytest.mark.parametrize(
        ("function", "answer", "same"),
        [
            ("nvmlDeviceGetUUID", "GPU-00000000-0000-0000-0000-000000000000", "UUID GPU-00000000-0000"),
            ("nvmlDeviceGetMinorNumber", 7, "minor number 7"),
        ],
    )
    def test_gpus_that_cannot_be_told_apart_are_problems(
        self, library: Library, function: str, answer: str | int, same: str
    ) -> None:
        real, uuid_of = library.real(function), library.real("nvmlDeviceGetUUID")
        library.answers[function] = lambda handle: (
            answer if uuid_of(handle) in (library._uuids[1], library._uuids[3]) else real(handle)
        )
        readings = started(library).gpus()
        assert [gpu.pci_bus_id for gpu in readings.gpus] == ["0000:1b:00.0", "0000:52:00.0"]
        assert [(problem.subject, problem.reason) for problem in readings.problems] == [
            ("GPU 0000:43:00.0", "NotDistinct"),
            ("GPU 0000:61:00.0", "NotDistinct"),
        ]
        assert f"GPUs 0000:43:00.0 and 0000:61:00.0 report the same {same}" in readings.problems[0].message
        assert [len(gpu.nvlink.peers) for gpu in readings.gpus if gpu.nvlink is not None] == [1, 1]

    def test_text_that_is_none_is_refused(self, library: Library) -> None:
        library.answers["nvmlDeviceGetVbiosVersion"] = lambda handle: b"\xff".decode()
        library.answers["nvmlDeviceGetName"] = lambda handle: b"\xff".decode()
        readings = started(library).gpus()
        assert readings.gpus == ()
        assert len(readings.problems) == 4

    def test_a_display_adapter_is_skipped_and_is_no_sick_gpu(self, node: Node) -> None:
        with node.host.edit() as state:
            state.gpus[2].product = "NVIDIA DGX Display"
        readings = node.nvml().gpus()
        assert len(readings.gpus) == 3
        (problem,) = readings.problems
        assert (problem.subject, problem.reason) == ("display adapter 0000:52:00.0", "DisplayOnly")
        assert "0000:52:00.0" in readings.listed

    @given(failures=st.dictionaries(st.integers(0, 3), st.sampled_from([4, 15, 16, 999]), max_size=4))
    def test_every_gpu_is_either_read_or_reported(self, lasting: Lasting, failures: dict[int, int]) -> None:
        nvml, host = lasting
        with host.edit() as state:
            for index, gpu in enumerate(state.gpus):
                gpu.fault = failures.get(index)
        readings = nvml.gpus()
        assert len(readings.gpus) + len(readings.problems) == 4
        assert len(readings.problems) == len(failures)


class TestFabric:
    def test_a_rack_shares_cluster_and_clique_and_no_uuid(self, tmp_path: Path) -> None:
        trays = [a_node(tmp_path / str(index), "gb200", index).nvml().gpus().gpus for index in (0, 17, 18)]
        cliques = [{gpu.fabric.clique for gpu in gpus if gpu.fabric is not None} for gpus in trays]
        assert cliques[0] == cliques[1] != cliques[2]
        assert [len(names) for names in cliques] == [1, 1, 1]
        assert len({gpu.uuid for gpus in trays for gpu in gpus}) == 12

    def test_nvlink_inside_the_box_only_is_no_clique(self, node: Node) -> None:
        fabric = node.nvml().gpus().gpus[0].fabric
        assert fabric is not None
        assert (fabric.state, fabric.status) == ("Completed", 0)
        assert (fabric.cluster_uuid, fabric.clique_id, fabric.clique) == (None, None, None)

    @pytest.mark.parametrize(("state", "word"), [(1, "NotStarted"), (2, "InProgress"), (3, "Completed")])
    def test_a_registration_under_way_is_told_and_is_no_clique_yet(self, node: Node, state: int, word: str) -> None:
        set_fabric(node.host, 0, SimulatedFabric(state=state, cluster=str(uuid.uuid4()), clique=7))
        fabric = node.nvml().gpus().gpus[0].fabric
        assert fabric is not None
        assert fabric.state == word
        assert (fabric.clique is None) == (state != 3)

    def test_a_failed_registration_is_no_clique(self, node: Node) -> None:
        set_fabric(node.host, 0, SimulatedFabric(status=999, cluster=str(uuid.uuid4())))
        fabric = node.nvml().gpus().gpus[0].fabric
        assert fabric is not None
        assert (fabric.status, fabric.clique) == (999, None)

    def test_a_state_without_fabric_is_no_fabric(self, node: Node) -> None:
        set_fabric(node.host, 0, SimulatedFabric(state=0))
        assert node.nvml().gpus().gpus[0].fabric is None

    def test_an_unknown_state_is_a_problem_of_its_gpu_and_not_a_gpu_without_fabric(self, node: Node) -> None:
        nvml = node.nvml()
        before = nvml.gpus().gpus
        set_fabric(node.host, 0, SimulatedFabric(state=4))
        after = nvml.gpus()
        assert [gpu.uuid for gpu in after.gpus] == [gpu.uuid for gpu in before[1:]]
        (problem,) = after.problems
        assert problem.subject == f"GPU {before[0].pci_bus_id}"
        assert problem.message.startswith("NVML gives 4 as the state of its NVLink fabric")

    @pytest.mark.parametrize(
        ("summary", "health"), [(0, None), (1, "Healthy"), (2, "Unhealthy"), (3, "LimitedCapacity")]
    )
    def test_the_fabrics_health_is_told(self, node: Node, summary: int, health: str | None) -> None:
        set_fabric(node.host, 0, SimulatedFabric(summary=summary))
        fabric = node.nvml().gpus().gpus[0].fabric
        assert fabric is not None and fabric.health == health

    def test_an_older_driver_is_asked_with_the_older_structure(self, node: Node) -> None:
        cluster = str(uuid.uuid4())
        set_fabric(node.host, 0, SimulatedFabric(cluster=cluster, clique=5))
        with node.host.edit() as state:
            state.driver.fabric_structure = 2
        fabric = node.nvml().gpus().gpus[0].fabric
        assert fabric is not None
        assert (fabric.clique, fabric.health) == (f"{cluster}.5", None)

    def test_a_driver_that_knows_neither_structure_has_no_fabric(self, node: Node) -> None:
        with node.host.edit() as state:
            state.driver.fabric_structure = 1
        assert node.nvml().gpus().gpus[0].fabric is None

    def test_the_structure_of_the_wrong_size_is_never_used(self, library: Library) -> None:
        started(library).gpus()
        assert "nvmlDeviceGetGpuFabricInfo" not in library.calls

    @given(raw=st.binary(min_size=16, max_size=16))
    def test_a_cluster_uuid_is_the_sixteen_bytes_in_order(self, lasting: Lasting, raw: bytes) -> None:
        nvml, host = lasting
        set_fabric(host, 0, SimulatedFabric(cluster=str(uuid.UUID(bytes=raw))))
        with host.edit() as state:
            for gpu in state.gpus:
                gpu.fault = None
        fabric = nvml.gpus().gpus[0].fabric
        assert fabric is not None
        assert fabric.cluster_uuid == (str(uuid.UUID(bytes=raw)) if any(raw) else None)


class TestNvlink:
    def test_behind_switches_every_gpu_is_a_peer(self, node: Node) -> None:
        gpus = node.nvml().gpus().gpus
        assert len(gpus) == 4
        for gpu in gpus:
            assert gpu.nvlink is not None
            assert (gpu.nvlink.links, gpu.nvlink.version, gpu.nvlink.switched) == (18, "4.0", True)
            assert gpu.nvlink.peers == sorted(other.uuid for other in gpus if other is not gpu)

    def test_without_nvlink_there_are_no_facts_of_it(self, tmp_path: Path) -> None:
        assert {gpu.nvlink for gpu in a_node(tmp_path, "l40s").nvml().gpus().gpus} == {None}

    def test_the_loop_ends_where_the_driver_says(self, node: Node) -> None:
        with node.host.edit() as state:
            state.model.nvlink = NvlinkModel(links=37, version=8, switches=2)
        nvlink = node.nvml().gpus().gpus[0].nvlink
        assert nvlink is not None and (nvlink.links, nvlink.version) == (37, "6.0")

    def test_no_link_is_asked_for_beyond_the_first_that_is_not_there(self, library: Library) -> None:
        started(library).gpus()
        assert library.calls.count("nvmlDeviceGetNvLinkState") == 4 * (18 + 1)

    @pytest.mark.parametrize(("down", "asked"), [([], 0), ([3, 5], 4 * 2)])
    def test_what_is_known_of_a_link_is_not_asked_for_until_it_was_down(
        self, library: Library, down: list[int], asked: int
    ) -> None:
        nvml, real = started(library), library.real("nvmlDeviceGetNvLinkState")
        first = nvml.gpus()
        library.answers["nvmlDeviceGetNvLinkState"] = lambda handle, link: 0 if link in down else real(handle, link)
        links = [gpu.nvlink.links for gpu in nvml.gpus().gpus if gpu.nvlink is not None]
        assert links == [18 - len(down)] * 4
        library.answers.clear()
        library.calls.clear()
        assert nvml.gpus() == first
        assert library.calls.count("nvmlDeviceGetNvLinkRemoteDeviceType") == asked

    def test_what_a_driver_did_not_say_of_a_link_is_asked_for_again(self, library: Library) -> None:
        nvml = started(library)
        library.answers["nvmlDeviceGetNvLinkVersion"] = lambda handle, link: 0
        nvml.gpus()
        library.answers.clear()
        nvlink = nvml.gpus().gpus[0].nvlink
        assert nvlink is not None and nvlink.version == "4.0"

    def test_a_gpu_without_active_links_is_nobodys_peer(self, library: Library) -> None:
        nvml = started(library)
        nvml.gpus()
        without = nvml._handles[next(iter(nvml._handles))]

        def state(handle: object, link: int) -> int:
            if link >= 18:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
            return 0 if handle is without else 1

        library.answers["nvmlDeviceGetNvLinkState"] = state
        first, *others = nvml.gpus().gpus
        assert first.nvlink is None
        assert all(gpu.nvlink is not None and first.uuid not in gpu.nvlink.peers for gpu in others)

    def test_a_library_that_never_ends_the_loop_does_not_hang_us(self, library: Library) -> None:
        library.answers["nvmlDeviceGetNvLinkState"] = lambda handle, link: 0
        assert started(library).gpus().gpus[0].nvlink is None

    def test_inactive_and_failing_links_are_not_counted(self, library: Library) -> None:
        def state(handle: object, link: int) -> int:
            if link == 3:
                raise pynvml.NVMLError(999)
            if link >= 6:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
            return link % 2

        library.answers["nvmlDeviceGetNvLinkState"] = state
        nvlink = started(library).gpus().gpus[0].nvlink
        assert nvlink is not None and nvlink.links == 2

    @pytest.mark.parametrize("absent", [(0,), (7, 8), (17,)])
    def test_links_after_one_that_the_board_lacks_count_too(self, node: Node, absent: tuple[int, ...]) -> None:
        with node.host.edit() as state:
            state.gpus[2].links_absent = list(absent)
        gpus = node.nvml().gpus().gpus
        assert [gpu.nvlink and gpu.nvlink.links for gpu in gpus] == [
            18 - len(absent) if number == 2 else 18 for number in range(4)
        ]
        assert gpus[2].nvlink is not None and len(gpus[2].nvlink.peers) == 3

    @pytest.mark.parametrize("number", [0, 9, 255])
    def test_an_unknown_link_version_is_left_out(self, library: Library, number: int) -> None:
        library.answers["nvmlDeviceGetNvLinkVersion"] = lambda handle, link: number
        nvlink = started(library).gpus().gpus[0].nvlink
        assert nvlink is not None and nvlink.version is None

    def test_direct_links_tell_the_peer_when_the_driver_does_not_answer_for_the_pair(self, node: Node) -> None:
        with node.host.edit() as state:
            state.model.nvlink = NvlinkModel(links=1, version=4)
            state.driver.missing = ["nvmlDeviceGetP2PStatus"]
        gpus = node.nvml().gpus().gpus
        nvlink = gpus[3].nvlink
        assert nvlink is not None
        assert (nvlink.switched, nvlink.peers) == (False, [gpus[0].uuid])

    def test_with_mig_on_nvlink_carries_nothing_between_gpus(self, node: Node) -> None:
        node.host.set_mig(0, 1)
        gpus = node.nvml().gpus().gpus
        assert gpus[0].nvlink is not None and gpus[0].nvlink.peers == []
        assert gpus[1].nvlink is not None and gpus[0].uuid not in gpus[1].nvlink.peers

    def test_the_broken_constant_is_not_passed_on(self, library: Library) -> None:
        indices: list[object] = []

        def status(gpu: object, other: object, index: object) -> int:
            indices.append(index)
            return 0

        library.answers["nvmlDeviceGetP2PStatus"] = status
        started(library).gpus()
        assert set(indices) == {2}


class TestSession:
    def test_a_node_whose_gpus_are_all_given_away_can_be_looked_at(self, node: Node) -> None:
        for index in range(4):
            bind_gpu(node.host, index, "vfio-pci")
        assert node.nvml().gpus().gpus == ()
        with pytest.raises(pynvml.NVMLError):
            SimulatedNvml(node.host.root).nvmlInitWithFlags(0)

    @pytest.mark.parametrize(
        ("befalls", "reason"),
        [
            (lambda host: remove_driver_files(host), "LibraryNotFound"),
            (lambda host: unload_driver(host), "DriverNotLoaded"),
            (lambda host: load_driver(host, "590.48.01", libraries=False), "DriverVersionMismatch"),
        ],
    )
    def test_a_driver_that_cannot_be_used_says_why(
        self, node: Node, befalls: Callable[[SimulatedHost], None], reason: str
    ) -> None:
        befalls(node.host)
        with pytest.raises(HardwareError) as raised:
            node.nvml()
        assert problem_of(raised.value, "driver").reason == reason
        assert raised.value.retry_after_s is not None

    def test_an_error_of_nvml_is_translated_with_its_number_and_its_cause(self, node: Node) -> None:
        unload_driver(node.host)
        with pytest.raises(HardwareError) as raised:
            node.nvml()
        assert raised.value.code == 9
        assert isinstance(raised.value.__cause__, pynvml.NVMLError)
        assert "Driver Not Loaded" in str(raised.value)

    @pytest.mark.parametrize("code", [1, 9, 18])
    def test_the_end_of_the_session_is_no_gpus_fault(self, node: Node, code: int) -> None:
        nvml = node.nvml()
        fail_call(node.host, 0, "nvmlDeviceGetSerial", code)
        with pytest.raises(HardwareError) as raised:
            nvml.gpus()
        assert session_over(raised.value)

    def test_handles_are_asked_for_once_in_a_session(self, library: Library) -> None:
        nvml = started(library)
        for _ in range(3):
            nvml.gpus()
        assert library.calls.count("nvmlDeviceGetHandleByIndex") == 4
        assert "nvmlDeviceGetHandleByUUID" not in library.calls

    def test_stopping_a_session_whose_driver_is_gone_is_no_error(self, node: Node) -> None:
        nvml = node.nvml()
        nvml.stop()
        nvml.stop()


class TestRealBinding:
    """What holds for nvidia-ml-py itself, without a driver."""

    def test_a_library_that_cannot_be_loaded_is_an_error_that_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
        with pytest.raises(HardwareError) as raised:
            load_library(tmp_path / "libnvidia-ml.so.1")
        assert problem_of(raised.value, "driver").reason == "LibraryNotFound"

    @pytest.mark.parametrize("tenths", range(10))
    def test_a_library_that_is_being_copied_is_not_loaded(self, tmp_path: Path, tenths: int) -> None:
        """The kernel would end this process."""
        whole = Path(_ctypes.__file__)
        part = whole.read_bytes()[: driver_files._loaded_bytes(whole) * tenths // 10]
        (tmp_path / "libnvidia-ml.so.580.82.07").write_bytes(part)
        with pytest.raises(HardwareError, match="wait for the driver's installation to end"):
            load_library(tmp_path / "libnvidia-ml.so.580.82.07")

    def test_without_a_driver_the_real_library_is_not_found(self) -> None:
        library = load_library()
        try:
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            with pytest.raises(HardwareError) as raised:
                Nvml(library).start()
            assert raised.value.code == 12

    def test_loading_again_forgets_the_addresses_of_the_library_before(self) -> None:
        pynvml._nvmlGetFunctionPointer_cache["nvmlShutdown"] = object()
        load_library()
        assert pynvml._nvmlGetFunctionPointer_cache == {}

    def test_every_function_that_the_adapter_asks_for_exists(self) -> None:
        folder = Path(adapter.__file__).parent
        texts = "".join(module.read_text(encoding="utf-8") for module in folder.glob("*.py"))
        names = set(re.findall(r"\blibrary\.((?:c_)?nvml\w+)", texts))
        assert len(names) > 40
        assert [name for name in names if not hasattr(pynvml, name)] == []

    def test_its_errors_cannot_be_hashed_so_nothing_may_key_by_them(self) -> None:
        with pytest.raises(TypeError):
            hash(pynvml.NVMLError(3))


def test_an_unknown_code_is_still_a_problem_with_its_number() -> None:
    problem = problem_of(HardwareError("NVML: Something new (77)", code=77), "GPU 0000:1b:00.0")
    assert problem == Problem(subject="GPU 0000:1b:00.0", reason="NvmlError", message="NVML: Something new (77)")
