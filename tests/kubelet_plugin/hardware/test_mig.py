"""What a GPU can be divided into and what exists, whatever the driver's holes, refusals and duplicates."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from support.mishaps import fail_call, set_privileged
from support.nodes import Node, a_node
from support.replaced_nvml import Library

from dra_driver.api.inventory import ComputeInstanceFacts, GpuFacts, GpuInstanceFacts, MigFacts, MigProfileFacts
from dra_driver.devices.mig import gpu_instance_profile_name
from dra_driver.errors import HardwareError
from kubelet_plugin.hardware.nvml import Nvml
from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.nvml_session import pointed


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """One H100-class GPU, not divided."""
    return a_node(tmp_path, "gh200")


@pytest.fixture
def library(node: Node) -> Library:
    return Library(node.host.root)


def refusing(code: int) -> Callable[..., Any]:
    def answer(*_: Any) -> Any:
        raise pynvml.NVMLError(code)

    return answer


def session(library: SimulatedNvml) -> Nvml:
    nvml = Nvml(library)
    nvml.start()
    return nvml


def the_gpu(nvml: Nvml) -> GpuFacts:
    readings = nvml.gpus()
    assert readings.problems == ()
    return readings.gpus[0]


def the_mig(nvml: Nvml) -> MigFacts:
    mig = the_gpu(nvml).mig
    assert mig is not None
    return mig


def names(mig: MigFacts) -> list[str]:
    return [profile.name for profile in mig.profiles]


class TestProfiles:
    def test_a_profile_is_told_in_full(self, tmp_path: Path) -> None:
        profiles = the_mig(a_node(tmp_path).nvml()).profiles
        assert next(profile for profile in profiles if profile.name == "1g.10gb+me") == MigProfileFacts(
            name="1g.10gb+me",
            id=20,
            slices=1,
            memory_bytes=9984 << 20,
            multiprocessors=16,
            copy_engines=1,
            decoders=1,
            encoders=0,
            jpeg_engines=1,
            ofa_engines=1,
            size=1,
            starts=[0, 1, 2, 3, 4, 5, 6],
            max_instances=1,
        )

    @pytest.mark.parametrize(
        ("profile", "listed"),
        [
            ("a30", "4g.24gb 2g.12gb 2g.12gb+me 1g.6gb 1g.6gb+me"),
            ("dgx-a100-40", "7g.40gb 4g.20gb 3g.20gb 2g.10gb 1g.10gb 1g.5gb 1g.5gb+me"),
            ("dgx-a100-80", "7g.80gb 4g.40gb 3g.40gb 2g.20gb 1g.20gb 1g.10gb 1g.10gb+me"),
            ("dgx-h100", "7g.80gb 4g.40gb 3g.40gb 2g.20gb 1g.20gb 1g.10gb 1g.10gb+me"),
            ("h100-nvl", "7g.94gb 4g.47gb 3g.47gb 2g.24gb 1g.24gb 1g.12gb 1g.12gb+me"),
            ("gh200", "7g.96gb 4g.48gb 3g.48gb 2g.24gb 1g.24gb 1g.12gb 1g.12gb+me"),
            ("hgx-h200", "7g.141gb 4g.71gb 3g.71gb 2g.35gb 1g.35gb 1g.18gb 1g.18gb+me"),
            ("dgx-b200", "7g.180gb 4g.90gb 3g.90gb 2g.45gb 1g.45gb 1g.23gb 1g.23gb+me"),
            ("gb200", "7g.186gb 4g.93gb 3g.93gb 2g.47gb 1g.47gb 1g.23gb 1g.23gb+me"),
            (
                "rtx-pro-6000",
                "4g.96gb 2g.48gb 1g.24gb 1g.24gb+me 4g.96gb+gfx 2g.48gb+gfx 1g.24gb+gfx 2g.48gb+me.all 1g.24gb+me.all"
                " 2g.48gb-me 1g.24gb-me",
            ),
        ],
    )
    def test_each_model_has_the_names_that_nvidias_tools_print(self, tmp_path: Path, profile: str, listed: str) -> None:
        assert names(the_mig(a_node(tmp_path, profile).nvml())) == listed.split()

    @pytest.mark.parametrize(
        "function", ["nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstancePossiblePlacements"]
    )
    def test_a_table_that_was_misread_is_right_after_some_looks(self, library: Library, function: str) -> None:
        real, nvml, right = library.real(function), session(library), names(the_mig(session(library)))
        of_2g = {"nvmlDeviceGetGpuInstanceProfileInfo": 1, "nvmlDeviceGetGpuInstancePossiblePlacements": 14}[function]

        def with_a_hole(*question: Any) -> Any:
            if question[1] == of_2g:
                raise pynvml.NVMLError(2)
            return real(*question)

        library.answers[function] = with_a_hole
        assert names(the_mig(nvml)) == [name for name in right if not name.startswith("2g")]
        library.answers.clear()
        assert right in [names(the_mig(nvml)) for _ in range(10)]

    @pytest.mark.parametrize("code", [2, 3])
    def test_holes_in_the_list_of_profiles_end_nothing(self, library: Library, code: int) -> None:
        real, before = library.real("nvmlDeviceGetGpuInstanceProfileInfo"), names(the_mig(session(library)))

        def with_a_hole(handle: Any, enumeration: int, version: int) -> Any:
            if enumeration == 1:
                raise pynvml.NVMLError(code)
            return real(handle, enumeration, version)

        library.answers["nvmlDeviceGetGpuInstanceProfileInfo"] = with_a_hole
        assert names(the_mig(session(library))) == [name for name in before if not name.startswith("2g")]

    def test_an_older_driver_is_asked_without_a_name(self, library: Library) -> None:
        real, before = library.real("nvmlDeviceGetGpuInstanceProfileInfo"), the_mig(session(library))
        fields = [name for name, _ in pynvml.c_nvmlGpuInstanceProfileInfo_t._fields_]

        def older(handle: Any, enumeration: int, version: int) -> Any:
            if version != 1:
                raise pynvml.NVMLError(13)
            newer = real(handle, enumeration, 2)
            return SimpleNamespace(**{name: getattr(newer, name) for name in fields})

        library.answers["nvmlDeviceGetGpuInstanceProfileInfo"] = older
        assert the_mig(session(library)) == before

    def test_a_driver_that_knows_no_profiles_has_none(self, library: Library) -> None:
        library.answers["nvmlDeviceGetGpuInstanceProfileInfo"] = refusing(13)
        assert the_mig(session(library)).profiles == []

    def test_a_driver_without_profiles_is_asked_again_when_the_mode_changes_or_they_are_needed(
        self, library: Library
    ) -> None:
        asking, nvml = "nvmlDeviceGetGpuInstanceProfileInfo", session(library)
        right = names(the_mig(session(library)))
        library.answers[asking] = refusing(3)
        assert the_mig(nvml).profiles == []
        library.calls.clear()
        assert the_mig(nvml).profiles == []
        assert asking not in library.calls
        library.answers.clear()
        assert the_mig(nvml).profiles == []
        gpu = nvml.mig(the_gpu(nvml).uuid)
        gpu.set_mode(True)
        assert names(the_mig(nvml)) == right
        library.answers[asking] = refusing(3)
        gpu.set_mode(False)
        assert the_mig(nvml).profiles == []
        library.calls.clear()
        gpu.instances()
        assert asking in library.calls, "what is there is not read with a table that may be old"

    @pytest.mark.parametrize(
        ("library_name", "name"), [(b"MIG 3g.48gb+new", "3g.48gb+new"), (b"5g.60gb", "5g.60gb"), (b"?", None)]
    )
    def test_a_profile_newer_than_this_driver_has_the_name_that_the_library_gives(
        self, library: Library, library_name: bytes, name: str | None
    ) -> None:
        real, before = library.real("nvmlDeviceGetGpuInstanceProfileInfo"), names(the_mig(session(library)))

        def with_a_new_one(handle: Any, enumeration: int, version: int) -> Any:
            info = real(handle, 2 if enumeration == 0x15 else enumeration, version)
            if enumeration == 0x15:
                info.id, info.name = 99, library_name
            return info

        placements = library.real("nvmlDeviceGetGpuInstancePossiblePlacements")
        library.answers["nvmlDeviceGetGpuInstanceProfileInfo"] = with_a_new_one
        library.answers["nvmlDeviceGetGpuInstancePossiblePlacements"] = lambda handle, profile, array, count: (
            placements(handle, 9 if profile == 99 else profile, array, count)
        )
        assert names(the_mig(session(library))) == before + ([name] if name is not None else [])

    def test_two_profiles_of_one_name_are_one_and_so_are_two_of_one_id(self, library: Library) -> None:
        real, before = library.real("nvmlDeviceGetGpuInstanceProfileInfo"), names(the_mig(session(library)))

        def with_twins(handle: Any, enumeration: int, version: int) -> Any:
            if enumeration in (5, 6):
                info = real(handle, 0, version)
                info.id += 100 * (enumeration - 5)
                return info
            return real(handle, enumeration, version)

        library.answers["nvmlDeviceGetGpuInstanceProfileInfo"] = with_twins
        assert names(the_mig(session(library))) == before

    def test_a_gpu_without_memory_of_its_own_has_profiles_of_none(self, library: Library) -> None:
        library.answers["nvmlDeviceGetMemoryInfo"] = refusing(3)
        assert names(the_mig(session(library)))[:2] == ["7g.0gb", "4g.0gb"]

    def test_a_profile_beyond_all_that_is_known_is_not_offered_and_named(self, library: Library) -> None:
        before = names(the_mig(session(library)))
        real = library.real("nvmlDeviceGetGpuInstancePossiblePlacements")

        def places(handle: Any, profile: int, array: Any, count: Any) -> Any:
            if profile != 19:
                return real(handle, profile, array, count)
            pointed(count).value = 20
            for start, place in enumerate(array or ()):
                place.start, place.size = start, 1
            return 0

        library.answers["nvmlDeviceGetGpuInstancePossiblePlacements"] = places
        readings = session(library).gpus()
        (gpu,) = readings.gpus
        assert gpu.mig is not None and names(gpu.mig) == [name for name in before if name != "1g.12gb"]
        (problem,) = readings.problems
        assert (problem.subject, problem.reason) == (f"MIG of GPU {gpu.pci_bus_id}", "UnknownProfile")
        assert "1g.12gb (starts is [0, 1, 2, 3" in problem.message

    def test_what_only_root_may_know_is_told_as_such_and_the_gpu_stays(self, node: Node) -> None:
        set_privileged(node.host, privileged=False)
        readings = node.nvml().gpus()
        (gpu,) = readings.gpus
        assert gpu.mig is not None
        assert gpu.mig.profiles == []
        (problem,) = readings.problems
        assert (problem.subject, problem.reason) == (f"MIG of GPU {gpu.pci_bus_id}", "NoPermission")

    def test_a_refusal_is_no_problem_any_more_when_the_driver_answers(self, node: Node, library: Library) -> None:
        nvml = session(library)
        set_privileged(node.host, privileged=False)
        assert nvml.gpus().problems != ()
        set_privileged(node.host, privileged=True)
        assert nvml.gpus().problems == ()

    def test_a_divided_gpu_whose_instances_only_root_may_know_is_not_guessed(self, node: Node) -> None:
        node.host.set_mig(0, 1)
        set_privileged(node.host, privileged=False)
        readings = node.nvml().gpus()
        assert readings.gpus == ()
        assert readings.problems[0].reason == "NoPermission"

    def test_a_guest_with_a_part_of_a_gpu_divides_nothing(self, node: Node) -> None:
        with node.host.edit() as state:
            state.gpus[0].virtualization = 2
        mig = the_mig(node.nvml())
        assert (mig.profiles, mig.switchable) == ([], False)

    @pytest.mark.parametrize(
        "function", ["nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstancePossiblePlacements"]
    )
    def test_a_table_that_cannot_be_read_makes_a_problem_of_this_gpu_alone(self, tmp_path: Path, function: str) -> None:
        node = a_node(tmp_path)
        fail_call(node.host, 2, function, 999)
        readings = node.nvml().gpus()
        assert len(readings.gpus) == 7
        assert [problem.subject for problem in readings.problems] == ["GPU 0000:52:00.0"]


class TestSwitching:
    def test_a_mode_of_another_number_is_neither_on_nor_off(self, library: Library) -> None:
        library.answers["nvmlDeviceGetMigMode"] = lambda handle: [2, 2]
        nvml = session(library)
        (problem,) = nvml.gpus().problems
        assert "NVML gives 2 as MIG mode" in problem.message
        with pytest.raises(HardwareError, match="NVML gives 2 as MIG mode"):
            nvml.mig(library._uuids[0]).instance_at(19, 0)

    @pytest.mark.parametrize(
        ("profile", "switchable"), [("dgx-a100-80", False), ("a30", False), ("dgx-h100", True), ("gb200", True)]
    )
    def test_hopper_and_newer_change_the_mode_without_a_reset(
        self, tmp_path: Path, profile: str, switchable: bool
    ) -> None:
        assert the_mig(a_node(tmp_path, profile).nvml()).switchable == switchable

    @pytest.mark.parametrize(
        ("answer", "architecture", "switchable"),
        [(0, 9, False), (1, 7, True), (None, 7, False), (None, 9, True), (None, 10, True), (None, 0xFFFFFFFF, False)],
    )
    def test_what_the_driver_says_counts_more_than_the_generation(
        self, library: Library, answer: int | None, architecture: int, switchable: bool
    ) -> None:
        value = SimpleNamespace(nvmlReturn=0 if answer is not None else 3, value=SimpleNamespace(uiVal=answer or 0))
        library.answers["nvmlDeviceGetFieldValues"] = lambda handle, fields: [value]
        library.answers["nvmlDeviceGetArchitecture"] = lambda handle: architecture
        nvml = session(library)
        nvml.start()
        assert nvml.mig(library._uuids[0]).switchable() == switchable


class TestInstances:
    @pytest.mark.parametrize(
        ("function", "answer", "says"),
        [
            (
                "nvmlDeviceGetAttributes_v2",
                SimpleNamespace(multiprocessorCount=16, memorySizeMB=2**64 - 1),
                "memory_bytes is",
            ),
            ("nvmlDeviceGetUUID", "", "gives '' as the UUID"),
        ],
    )
    def test_a_device_that_cannot_be_true_is_not_left_behind(
        self, node: Node, library: Library, function: str, answer: object, says: str
    ) -> None:
        node.host.set_mig(0, 1)
        nvml = session(library)
        gpu = nvml.mig(the_gpu(nvml).uuid)
        gpu.create_gpu_instance(19, 0, 1)
        library.answers[function] = lambda handle: answer
        with pytest.raises(HardwareError, match=says):
            gpu.create_compute_instance(gpu.instances()[0], None, 0)
        assert gpu.instances()[0].devices == ()

    def test_what_exists_is_told_nested_and_in_order(self, node: Node) -> None:
        node.host.set_mig(0, 1)
        (small,) = node.host.make_instance(0, "1g.12gb", 6)
        parts = node.host.make_instance(0, "4g.48gb", 0, parts=(2, 1))
        mig = the_mig(node.nvml())
        by_start = {instance.start: instance.id for instance in node.host.state.gpus[0].instances}
        assert (mig.enabled, mig.pending) == (True, True)
        assert mig.instances == [
            GpuInstanceFacts(
                id=by_start[0],
                profile="4g.48gb",
                start=0,
                size=4,
                compute_instances=[
                    ComputeInstanceFacts(
                        id=number,
                        uuid=uuid,
                        profile=f"{slices}c.4g.48gb",
                        slices=slices,
                        start=start,
                        multiprocessors=16 * slices,
                        memory_bytes=mig.instances[0].compute_instances[0].memory_bytes,
                    )
                    for number, (uuid, slices, start) in enumerate(zip(parts, (2, 1), (0, 2), strict=True))
                ],
            ),
            GpuInstanceFacts(
                id=by_start[6],
                profile="1g.12gb",
                start=6,
                size=1,
                compute_instances=[
                    ComputeInstanceFacts(
                        id=0,
                        uuid=small,
                        profile="1g.12gb",
                        slices=1,
                        start=0,
                        multiprocessors=16,
                        memory_bytes=mig.instances[1].compute_instances[0].memory_bytes,
                    )
                ],
            ),
        ]
        assert mig.instances[1].compute_instances[0].memory_bytes

    def test_an_instance_that_nobody_can_use_is_told_without_devices(self, node: Node) -> None:
        node.host.set_mig(0, 1)
        node.host.make_instance(0, "2g.24gb", 2, parts=())
        (instance,) = the_mig(node.nvml()).instances
        assert (instance.profile, instance.start, instance.compute_instances) == ("2g.24gb", 2, [])

    def test_the_double_memory_profile_has_a_compute_profile_of_its_own(self, node: Node) -> None:
        node.host.set_mig(0, 1)
        node.host.make_instance(0, "1g.24gb", 4)
        (instance,) = the_mig(node.nvml()).instances
        assert [device.profile for device in instance.compute_instances] == ["1g.24gb"]

    def test_a_layout_that_is_changed_by_hand_is_seen_at_the_next_look(self, node: Node) -> None:
        nvml = node.nvml()
        assert the_mig(nvml).instances == []
        node.host.set_mig(0, 1)
        node.host.make_instance(0, "3g.48gb", 4)
        assert [instance.profile for instance in the_mig(nvml).instances] == ["3g.48gb"]
        node.host.destroy_instance(0, 4)
        node.host.make_instance(0, "1g.12gb", 4)
        assert [instance.profile for instance in the_mig(nvml).instances] == ["1g.12gb"]

    @pytest.mark.parametrize("function", ["nvmlGpuInstanceGetInfo", "nvmlComputeInstanceGetInfo_v2"])
    def test_what_is_destroyed_while_it_is_read_is_left_out(self, node: Node, library: Library, function: str) -> None:
        node.host.set_mig(0, 1)
        for start in (0, 1):
            node.host.make_instance(0, "1g.12gb", start)
        real, asked = library.real(function), list[int]()

        def gone_at_first(handle: Any) -> Any:
            asked.append(1)
            if len(asked) == 1:
                raise pynvml.NVMLError(6)
            return real(handle)

        library.answers[function] = gone_at_first
        instances = the_mig(session(library)).instances
        assert len([device for instance in instances for device in instance.compute_instances]) == 1

    def test_instances_of_a_profile_without_a_name_take_their_place(self, node: Node, library: Library) -> None:
        node.host.set_mig(0, 1)
        node.host.make_instance(0, "3g.48gb", 4)
        real = library.real("nvmlDeviceGetGpuInstanceProfileInfo")

        def moved(handle: Any, enumeration: int, version: int) -> Any:
            if enumeration == 2:
                raise pynvml.NVMLError(3)
            info = real(handle, 2 if enumeration == 0x15 else enumeration, version)
            info.name = b""
            return info

        library.answers["nvmlDeviceGetGpuInstanceProfileInfo"] = moved
        mig = the_mig(session(library))
        assert [(instance.profile, instance.start, instance.size) for instance in mig.instances] == [
            ("unknown-9", 4, 4)
        ]
        assert "unknown-9" not in names(mig)

    @pytest.mark.parametrize("function", ["nvmlDeviceGetGpuInstances", "nvmlGpuInstanceGetComputeInstances"])
    def test_instances_that_cannot_be_read_make_a_problem_of_this_gpu_alone(
        self, tmp_path: Path, function: str
    ) -> None:
        node = a_node(tmp_path)
        for index in (2, 3):
            node.host.set_mig(index, 1)
            node.host.make_instance(index, "1g.10gb", 0)
        fail_call(node.host, 2, function, 999)
        readings = node.nvml().gpus()
        assert len(readings.gpus) == 7
        assert [problem.subject for problem in readings.problems] == ["GPU 0000:52:00.0"]

    def test_programs_are_named_as_far_as_the_driver_does(self, node: Node, library: Library) -> None:
        first, second = (node.host.attach_client(0) for _ in range(2))
        library.answers["nvmlSystemGetProcessName"] = lambda pid: "python3" if pid == first else refusing(6)()
        nvml = session(library)
        gpu = nvml.mig(node.host.state.gpus[0].uuid)
        assert gpu.processes() == (f"{first} (python3)", str(second))


class TestFindingAGpu:
    def test_it_is_found_by_its_uuid_also_after_another_enumeration(self, tmp_path: Path) -> None:
        node = a_node(tmp_path)
        nvml, uuid = node.nvml(), node.host.state.gpus[5].uuid
        assert nvml.mig(uuid).minor() == node.host.state.gpus[5].minor
        nvml.gpus()
        assert nvml.compute_mode(uuid) == 0
        nvml.set_compute_mode(uuid, 3)
        assert [gpu.compute_mode for gpu in node.host.state.gpus] == [0, 0, 0, 0, 0, 3, 0, 0]

    def test_a_neighbour_that_is_lost_is_in_nobodys_way(self, tmp_path: Path) -> None:
        node = a_node(tmp_path)
        node.host.lose_gpu(1)
        assert node.nvml().compute_mode(node.host.state.gpus[5].uuid) == 0

    def test_one_that_is_lost_itself_says_so(self, tmp_path: Path) -> None:
        node = a_node(tmp_path)
        nvml, uuid = node.nvml(), node.host.state.gpus[5].uuid
        nvml.gpus()
        node.host.lose_gpu(5)
        with pytest.raises(HardwareError, match="fell off the bus"):
            nvml.compute_mode(uuid)


@pytest.mark.parametrize(
    ("slices", "mib", "total_mib", "name"),
    [
        (3, 71424, 143771, "3g.71gb"),
        (1, 20992, 183359, "1g.23gb"),
        (2, 47360, 189471, "2g.47gb"),
    ],
)
def test_halves_are_rounded_up_in_names(slices: int, mib: int, total_mib: int, name: str) -> None:
    """Where Python's own rounding goes to the even neighbour: 70.5, 22.5, 46.5."""
    assert gpu_instance_profile_name(slices, mib << 20, total_mib << 20) == name


def test_structures_have_the_size_that_the_driver_expects() -> None:
    assert pynvml.nvmlGpuInstanceProfileInfo_v2 & 0xFFFFFF == ctypes.sizeof(pynvml.c_nvmlGpuInstanceProfileInfo_v2_t)
