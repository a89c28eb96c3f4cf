"""Simulated NVML divides a GPU as a real one does: what it allows, what it refuses and how, what is left."""

import ctypes
import time
from pathlib import Path
from typing import Any

import pynvml
import pytest
from support.mig_nvml import MigGpu, divided, gpu, session
from support.mishaps import (
    bind_gpu,
    crash_in,
    fail_call,
    load_driver,
    set_links_down,
    set_privileged,
    slow_call,
    unload_driver,
)

from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.nvml_session import Crash
from kubelet_plugin.simulation.partitions import PartitionRefused, mig_device
from kubelet_plugin.simulation.profiles import load_mig_table, load_profile, profile_names
from kubelet_plugin.simulation.state import XID, add_event

DIVISIBLE = tuple(name for name in profile_names() if load_profile(name).gpu.mig is not None)
IN_USE, RESET_REQUIRED = 19, 16


@pytest.fixture
def h100(tmp_path: Path) -> SimulatedHost:
    return create_host(tmp_path, "dgx-h100")


@pytest.fixture
def a100(tmp_path: Path) -> SimulatedHost:
    return create_host(tmp_path, "dgx-a100-80")


def index_of(host: SimulatedHost, *, swapped: bool) -> int:
    """A GPU of which the upper half is numbered first, or one where it is not."""
    return next(index for index, state in enumerate(host.state.gpus) if bool(int(state.uuid[-1], 16) % 2) is swapped)


class TestMode:
    def test_hopper_switches_at_once(self, h100: SimulatedHost) -> None:
        mig_gpu = gpu(h100)
        for mode in (1, 0):
            assert mig_gpu.nvml.nvmlDeviceSetMigMode(mig_gpu.handle, mode) == 0
            assert mig_gpu.nvml.nvmlDeviceGetMigMode(mig_gpu.handle) == [mode, mode]

    def test_hopper_in_use_stays_as_it_is(self, h100: SimulatedHost) -> None:
        mig_gpu = gpu(h100)
        pid = h100.attach_client(0, kind="monitor", name="dcgm")
        assert mig_gpu.nvml.nvmlDeviceSetMigMode(mig_gpu.handle, 1) == IN_USE
        assert mig_gpu.nvml.nvmlDeviceGetMigMode(mig_gpu.handle) == [0, 0]
        h100.detach_client(pid)
        assert mig_gpu.nvml.nvmlDeviceSetMigMode(mig_gpu.handle, 1) == 0

    def test_ampere_that_is_idle_resets_itself(self, a100: SimulatedHost) -> None:
        mig_gpu = gpu(a100)
        assert mig_gpu.nvml.nvmlDeviceSetMigMode(mig_gpu.handle, 1) == 0
        assert mig_gpu.nvml.nvmlDeviceGetMigMode(mig_gpu.handle) == [1, 1]

    def test_ampere_in_use_waits_for_a_reset(self, a100: SimulatedHost) -> None:
        mig_gpu = gpu(a100)
        pid = a100.attach_client(0, kind="monitor", name="dcgm")
        assert mig_gpu.nvml.nvmlDeviceSetMigMode(mig_gpu.handle, 1) == IN_USE
        assert mig_gpu.nvml.nvmlDeviceGetMigMode(mig_gpu.handle) == [0, 1]
        with pytest.raises(PartitionRefused):
            a100.reset_gpu(0)
        a100.detach_client(pid)
        a100.reset_gpu(0)
        assert mig_gpu.nvml.nvmlDeviceGetMigMode(mig_gpu.handle) == [1, 1]

    def test_a_pending_mode_can_be_taken_back(self, a100: SimulatedHost) -> None:
        mig_gpu = gpu(a100)
        a100.attach_client(0)
        mig_gpu.nvml.nvmlDeviceSetMigMode(mig_gpu.handle, 1)
        assert mig_gpu.nvml.nvmlDeviceSetMigMode(mig_gpu.handle, 0) == 0
        assert mig_gpu.nvml.nvmlDeviceGetMigMode(mig_gpu.handle) == [0, 0]

    def test_ampere_in_a_virtual_machine_wants_that_rebooted(self, a100: SimulatedHost) -> None:
        with a100.edit() as state:
            state.gpus[0].virtualization = 1
        mig_gpu = gpu(a100)
        assert mig_gpu.nvml.nvmlDeviceSetMigMode(mig_gpu.handle, 1) == RESET_REQUIRED
        a100.reboot()
        mig_gpu = gpu(a100)
        assert mig_gpu.nvml.nvmlDeviceGetMigMode(mig_gpu.handle) == [1, 1]

    def test_a_divided_gpu_cannot_leave_the_mode(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        instance = mig_gpu.create("1g.10gb", 0)
        assert mig_gpu.nvml.nvmlDeviceSetMigMode(mig_gpu.handle, 0) == IN_USE
        mig_gpu.nvml.nvmlGpuInstanceDestroy(instance)
        assert mig_gpu.nvml.nvmlDeviceSetMigMode(mig_gpu.handle, 0) == 0

    def test_who_may_not_and_what_cannot(self, h100: SimulatedHost, tmp_path: Path) -> None:
        mig_gpu = gpu(h100)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            mig_gpu.nvml.nvmlDeviceSetMigMode(mig_gpu.handle, 2)
        set_privileged(h100, privileged=False)
        with pytest.raises(pynvml.NVMLError_NoPermission):
            mig_gpu.nvml.nvmlDeviceSetMigMode(mig_gpu.handle, 1)
        set_privileged(h100, privileged=True)
        with h100.edit() as state:
            state.gpus[0].virtualization = 2
        with pytest.raises(pynvml.NVMLError_NotSupported):
            mig_gpu.nvml.nvmlDeviceSetMigMode(mig_gpu.handle, 1)
        t4 = gpu(create_host(tmp_path / "t4", "t4"))
        for ask in (
            lambda: t4.nvml.nvmlDeviceSetMigMode(t4.handle, 1),
            lambda: t4.nvml.nvmlDeviceGetMigMode(t4.handle),
        ):
            with pytest.raises(pynvml.NVMLError_NotSupported):
                ask()

    def test_only_hopper_and_newer_say_that_they_need_no_reset(self, tmp_path: Path) -> None:
        for profile, expected in (("t4", None), ("a30", 0), ("dgx-h100", 1), ("rtx-pro-6000", 1)):
            mig_gpu = gpu(create_host(tmp_path / profile, profile))
            (value,) = mig_gpu.nvml.nvmlDeviceGetFieldValues(
                mig_gpu.handle, [pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED]
            )
            assert (value.value.uiVal if value.nvmlReturn == 0 else None) == expected


class TestProfiles:
    @pytest.mark.parametrize("profile", DIVISIBLE)
    def test_are_those_of_the_table_whether_the_mode_is_on_or_off(self, tmp_path: Path, profile: str) -> None:
        mig_gpu = gpu(create_host(tmp_path, profile))
        name = load_profile(profile).gpu.mig
        assert name is not None
        table = load_mig_table(name)
        infos = mig_gpu.profiles()
        assert infos.keys() == {entry.name for entry in table.profiles}
        for entry in table.profiles:
            info = infos[entry.name]
            engines = (
                info.memorySizeMB, info.multiprocessorCount, info.copyEngineCount, info.decoderCount, info.encoderCount,
                info.jpegCount, info.ofaCount,
            )  # fmt: skip
            assert engines == entry.amounts
            assert (info.id, info.sliceCount, info.instanceCount) == (entry.id, entry.slices, entry.max_instances)
            assert mig_gpu.places(info.id) == [(start, entry.size) for start in entry.starts]

    def test_an_unknown_number_is_told_from_one_that_this_gpu_has_not(self, h100: SimulatedHost) -> None:
        mig_gpu = gpu(h100)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            mig_gpu.nvml.nvmlDeviceGetGpuInstanceProfileInfo(mig_gpu.handle, pynvml.NVML_GPU_INSTANCE_PROFILE_8_SLICE)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            mig_gpu.nvml.nvmlDeviceGetGpuInstanceProfileInfo(mig_gpu.handle, pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)

    def test_an_older_driver_knows_the_first_structure_only(self, h100: SimulatedHost) -> None:
        with h100.edit() as state:
            state.driver.missing = ["nvmlDeviceGetGpuInstanceProfileInfoV"]
        mig_gpu = gpu(h100)
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            mig_gpu.nvml.nvmlDeviceGetGpuInstanceProfileInfo(mig_gpu.handle, 0)
        assert mig_gpu.nvml.nvmlDeviceGetGpuInstanceProfileInfo(mig_gpu.handle, 0, version=1).id == 19

    def test_placements_need_a_place_to_be_written_to(self, h100: SimulatedHost) -> None:
        mig_gpu = gpu(h100)
        small = (pynvml.c_nvmlGpuInstancePlacement_t * 3)()
        with pytest.raises(pynvml.NVMLError_InsufficientSize):
            mig_gpu.nvml.nvmlDeviceGetGpuInstancePossiblePlacements(
                mig_gpu.handle, 19, small, ctypes.byref(ctypes.c_uint())
            )
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            mig_gpu.places(20 + 1)


class TestGpuInstances:
    def test_are_found_again_by_profile_and_by_what_they_say(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        made = mig_gpu.create("3g.40gb", 4)
        info = mig_gpu.nvml.nvmlGpuInstanceGetInfo(made)
        assert (info.profileId, info.placement.start, info.placement.size) == (9, 4, 4)
        assert mig_gpu.nvml.nvmlDeviceGetUUID(info.device) == h100.state.gpus[0].uuid
        assert len(mig_gpu.instances(9)) == 1 and mig_gpu.instances(19) == []

    @pytest.mark.parametrize(
        ("swapped", "ids"),
        [
            (False, {("7g.80gb", 0): 0, ("3g.40gb", 0): 1, ("3g.40gb", 4): 2, ("2g.20gb", 2): 4, ("1g.10gb", 3): 10}),
            (True, {("7g.80gb", 0): 0, ("3g.40gb", 4): 1, ("3g.40gb", 0): 2, ("2g.20gb", 2): 6, ("1g.10gb", 0): 11}),
        ],
    )
    def test_have_ids_by_their_place_as_seen_on_boards_of_either_order(
        self, h100: SimulatedHost, swapped: bool, ids: dict[tuple[str, int], int]
    ) -> None:
        mig_gpu = divided(h100, index_of(h100, swapped=swapped))
        for (name, start), expected in ids.items():
            made = mig_gpu.create(name, start)
            assert mig_gpu.nvml.nvmlGpuInstanceGetInfo(made).id == expected
            mig_gpu.nvml.nvmlGpuInstanceDestroy(made)

    @pytest.mark.parametrize(("start", "size"), [(1, 2), (0, 1), (6, 2)])
    def test_lie_only_where_their_profile_can(self, h100: SimulatedHost, start: int, size: int) -> None:
        mig_gpu = divided(h100)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            mig_gpu.create("2g.20gb", start, size)

    def test_need_the_mode_a_known_profile_and_the_right(self, h100: SimulatedHost) -> None:
        mig_gpu = gpu(h100)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            mig_gpu.create("1g.10gb", 0)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            mig_gpu.instances(19)
        mig_gpu.nvml.nvmlDeviceSetMigMode(mig_gpu.handle, 1)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            mig_gpu.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                mig_gpu.handle, 1, pynvml.c_nvmlGpuInstancePlacement_t(0, 1)
            )
        set_privileged(h100, privileged=False)
        with pytest.raises(pynvml.NVMLError_NoPermission):
            mig_gpu.create("1g.10gb", 0)

    def test_cannot_be_made_while_a_program_computes_on_the_whole_gpu(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        pid = h100.attach_client(0)
        with pytest.raises(pynvml.NVMLError_InUse):
            mig_gpu.create("1g.10gb", 0)
        h100.detach_client(pid)
        h100.attach_client(0, kind="monitor", name="dcgm")
        mig_gpu.create("1g.10gb", 0)

    def test_without_a_place_are_put_where_they_fit(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        for left in reversed(range(7)):
            h100.make_instance(0, "1g.10gb")
            assert mig_gpu.remaining(19) == left
        with pytest.raises(PartitionRefused):
            h100.make_instance(0, "1g.10gb")

    def test_are_not_destroyed_with_something_in_them(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        instance = mig_gpu.create("1g.10gb", 0)
        compute = mig_gpu.fill(instance)
        with pytest.raises(pynvml.NVMLError_InUse):
            mig_gpu.nvml.nvmlGpuInstanceDestroy(instance)
        pid = h100.attach_client(0, mig_uuid=mig_gpu.uuids()[0])
        with pytest.raises(pynvml.NVMLError_InUse):
            mig_gpu.nvml.nvmlComputeInstanceDestroy(compute)
        h100.detach_client(pid)
        mig_gpu.nvml.nvmlComputeInstanceDestroy(compute)
        mig_gpu.nvml.nvmlGpuInstanceDestroy(instance)
        assert h100.state.gpus[0].instances == []

    def test_a_handle_of_one_that_is_gone_does_not_reach_the_next(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        old = mig_gpu.create("1g.10gb", 0)
        compute = mig_gpu.fill(old)
        device = mig_gpu.device(compute)
        mig_gpu.nvml.nvmlComputeInstanceDestroy(compute)
        mig_gpu.nvml.nvmlGpuInstanceDestroy(old)
        mig_gpu.fill(mig_gpu.create("1g.10gb", 0))
        for ask, handle in (
            (mig_gpu.nvml.nvmlGpuInstanceGetInfo, old),
            (mig_gpu.nvml.nvmlComputeInstanceGetInfo_v2, compute),
            (mig_gpu.nvml.nvmlDeviceGetUUID, device),
            (mig_gpu.nvml.nvmlGpuInstanceDestroy, old),
        ):
            with pytest.raises(pynvml.NVMLError_NotFound):
                ask(handle)

    def test_a_handle_is_of_one_kind(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        instance = mig_gpu.create("1g.10gb", 0)
        for ask, handle in (
            (mig_gpu.nvml.nvmlGpuInstanceGetInfo, mig_gpu.handle),
            (mig_gpu.nvml.nvmlDeviceGetUUID, instance),
            (mig_gpu.nvml.nvmlComputeInstanceGetInfo_v2, instance),
        ):
            with pytest.raises(pynvml.NVMLError_InvalidArgument):
                ask(handle)


class TestComputeInstances:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("1g.10gb", {1: (0, 1, 16)}),
            ("1g.20gb", {1: (7, 1, 26)}),
            ("2g.20gb", {1: (0, 2, 16), 2: (1, 1, 32)}),
            ("3g.40gb", {1: (0, 3, 16), 2: (1, 1, 32), 3: (2, 1, 60)}),
            ("4g.40gb", {1: (0, 4, 16), 2: (1, 2, 32), 4: (3, 1, 64)}),
            ("7g.80gb", {1: (0, 7, 16), 2: (1, 3, 32), 3: (2, 2, 48), 4: (3, 1, 64), 7: (4, 1, 132)}),
        ],
    )
    def test_have_the_profiles_of_their_gpu_instance(
        self, h100: SimulatedHost, name: str, expected: dict[int, tuple[int, int, int]]
    ) -> None:
        """By slices: id, how many, multiprocessors. What fills a `1g` with double memory has an id of its own."""
        mig_gpu = divided(h100)
        infos = mig_gpu.compute_profiles(mig_gpu.create(name, 0))
        assert {
            slices: (info.id, info.instanceCount, info.multiprocessorCount) for slices, info in infos.items()
        } == expected

    def test_lie_side_by_side_in_their_gpu_instance(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        instance = mig_gpu.create("3g.40gb", 0)
        two = mig_gpu.nvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
        place = pynvml.c_nvmlComputeInstancePlacement_t(1, 1)
        create = mig_gpu.nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement
        with pytest.raises(pynvml.NVMLError_InsufficientResources):
            create(instance, 0, ctypes.byref(place))
        place.start = 3
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            create(instance, 0, ctypes.byref(place))
        place.start = 2
        single = create(instance, 0, ctypes.byref(place))
        infos = [mig_gpu.nvml.nvmlComputeInstanceGetInfo_v2(handle) for handle in (two, single)]
        assert [(info.id, info.placement.start, info.placement.size) for info in infos] == [(0, 0, 2), (1, 2, 1)]
        attributes = [mig_gpu.nvml.nvmlDeviceGetAttributes_v2(info.device) for info in infos]
        assert [(item.gpuInstanceSliceCount, item.computeInstanceSliceCount) for item in attributes] == [(3, 2), (3, 1)]

    def test_are_found_by_profile(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        instance = mig_gpu.create("2g.20gb", 0)
        made = [mig_gpu.nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0) for _ in range(2)]
        array, count = (pynvml.c_nvmlComputeInstance_t * 2)(), ctypes.c_uint()
        mig_gpu.nvml.nvmlGpuInstanceGetComputeInstances(instance, 0, array, ctypes.byref(count))

        def uuid(handle: Any) -> str:
            return str(mig_gpu.nvml.nvmlDeviceGetUUID(mig_gpu.device(handle)))

        assert [uuid(handle) for handle in array[: count.value]] == [uuid(handle) for handle in made]


class TestMigDevices:
    def test_tell_what_they_are(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        instance = mig_gpu.create("2g.20gb", 2)
        device = mig_gpu.device(mig_gpu.fill(instance))
        nvml = mig_gpu.nvml
        assert nvml.nvmlDeviceGetUUID(device).startswith("MIG-")
        attributes = nvml.nvmlDeviceGetAttributes_v2(device)
        assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (2, 2)
        assert (attributes.multiprocessorCount, attributes.memorySizeMB, attributes.sharedDecoderCount) == (
            32,
            20096,
            2,
        )

    def test_some_questions_are_for_one_kind_of_device(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        device = mig_gpu.device(mig_gpu.fill(mig_gpu.create("2g.20gb", 2)))
        for ask in (mig_gpu.nvml.nvmlDeviceGetMinorNumber, mig_gpu.nvml.nvmlDeviceGetMigMode):
            with pytest.raises(pynvml.NVMLError_NotSupported):
                ask(device)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            mig_gpu.nvml.nvmlDeviceGetAttributes_v2(mig_gpu.handle)

    def test_get_another_uuid_each_time(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        seen = set()
        for _ in range(3):
            instance = mig_gpu.create("1g.10gb", 0)
            compute = mig_gpu.fill(instance)
            seen.add(mig_gpu.uuids()[0])
            mig_gpu.nvml.nvmlComputeInstanceDestroy(compute)
            mig_gpu.nvml.nvmlGpuInstanceDestroy(instance)
        assert len(seen) == 3

    def test_numbers_have_holes_that_are_filled_again(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        made = [mig_gpu.fill(mig_gpu.create("1g.10gb", start)) for start in range(3)]
        first, second, third = mig_gpu.uuids()
        mig_gpu.nvml.nvmlComputeInstanceDestroy(made[1])
        assert mig_gpu.uuids() == [first, third]
        mig_gpu.fill(mig_gpu.create("1g.10gb", 5))
        assert mig_gpu.uuids()[0] == first and mig_gpu.uuids()[2] == third and second not in mig_gpu.uuids()

    def test_have_compute_modes_that_are_not_their_gpus(self, h100: SimulatedHost) -> None:
        mig_gpu = gpu(h100)
        nvml = mig_gpu.nvml
        nvml.nvmlDeviceSetComputeMode(mig_gpu.handle, 3)
        assert nvml.nvmlDeviceGetComputeMode(mig_gpu.handle) == 3
        nvml.nvmlDeviceSetComputeMode(mig_gpu.handle, 0)
        nvml.nvmlDeviceSetMigMode(mig_gpu.handle, 1)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            nvml.nvmlDeviceSetComputeMode(mig_gpu.handle, 3)

    def test_processes_are_listed_where_they_run(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        mig_gpu.fill(mig_gpu.create("1g.10gb", 0))
        uuid = mig_gpu.nvml.nvmlDeviceGetUUID(mig_gpu.device(mig_gpu.fill(mig_gpu.create("1g.10gb", 1))))
        pid = h100.attach_client(0, mig_uuid=uuid, memory_mib=512)
        h100.attach_client(0, kind="monitor", name="dcgm")
        (process,) = mig_gpu.nvml.nvmlDeviceGetComputeRunningProcesses_v3(mig_gpu.handle)
        assert process.pid == pid
        assert mig_gpu.nvml.nvmlSystemGetProcessName(pid) == "cuda-program"
        with pytest.raises(pynvml.NVMLError_NotFound):
            mig_gpu.nvml.nvmlSystemGetProcessName(1)
        assert process.usedGpuMemory == 512 << 20
        assert process.gpuInstanceId == h100.state.gpus[0].instances[1].id


class TestWhatIsLeft:
    def test_capabilities_and_nodes_come_and_go_with_instances(self, tmp_path: Path) -> None:
        host = create_host(tmp_path, "dgx-h100", layout="operator")
        mig_gpu = divided(host, 2)
        instance = mig_gpu.create("3g.40gb", 4)
        compute = mig_gpu.fill(instance)
        gi = mig_gpu.nvml.nvmlGpuInstanceGetInfo(instance).id
        files = HostFiles(tmp_path)
        minors = dict(
            line.split() for line in host.path("/proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
        )
        folder = "/proc/driver/nvidia/capabilities/gpu2/mig"
        for name in (f"gi{gi}/access", f"gi{gi}/ci0/access"):
            minor = int(minors[f"gpu2/{name}"])
            assert host.path(f"{folder}/{name}").read_text().splitlines()[:2] == [
                f"DeviceFileMinor: {minor}",
                "DeviceFileMode: 292",
            ]
            for devices in ("/dev", "/run/nvidia/driver/dev"):
                node = files.device_node(f"{devices}/nvidia-caps/nvidia-cap{minor}")
                assert node is not None and (node.major, node.minor) == (files.device_majors()["nvidia-caps"], minor)
        mig_gpu.nvml.nvmlComputeInstanceDestroy(compute)
        mig_gpu.nvml.nvmlGpuInstanceDestroy(instance)
        assert not host.path(f"{folder}/gi{gi}").exists()
        left = {path.name for path in host.path("/dev/nvidia-caps").iterdir()}
        assert left == {"nvidia-cap1", "nvidia-cap2"}
        assert host.path("/proc/driver/nvidia/capabilities/mig/config").exists()

    def test_a_new_layout_is_an_event(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        events = mig_gpu.nvml.nvmlEventSetCreate()
        mask = mig_gpu.nvml.nvmlDeviceGetSupportedEventTypes(mig_gpu.handle)
        assert mask & 0x100
        mig_gpu.nvml.nvmlDeviceRegisterEvents(mig_gpu.handle, mask, events)
        with pytest.raises(pynvml.NVMLError_Timeout):
            mig_gpu.nvml.nvmlEventSetWait_v2(events, 1)
        h100.make_instance(0, "1g.10gb", 0)
        assert mig_gpu.nvml.nvmlEventSetWait_v2(events, 1000).eventType == 0x100
        with h100.edit() as state:
            instance, item = mig_device(state.gpus[0], mig_gpu.uuids()[0])
            ids = {"gpu_instance": instance.id, "compute_instance": item.id}
            add_event(state, state.gpus[0].uuid, XID, 31, **ids)
        data = mig_gpu.nvml.nvmlEventSetWait_v2(events, 1000)
        assert (data.eventType, data.eventData) == (8, 31)
        assert (data.gpuInstanceId, data.computeInstanceId) == (h100.state.gpus[0].instances[0].id, 0)

    @pytest.mark.parametrize(("profile", "mode"), [("dgx-h100", 0), ("dgx-a100-40", 1)])
    @pytest.mark.parametrize("happens", ["reboot", "reload"])
    def test_nothing_survives_the_driver_but_the_mode_of_ampere(
        self, tmp_path: Path, profile: str, mode: int, happens: str
    ) -> None:
        host = create_host(tmp_path, profile)
        divided(host)
        host.make_instance(0, "7g.80gb" if mode == 0 else "7g.40gb")
        host.attach_client(0, kind="monitor", name="dcgm")
        if happens == "reboot":
            host.reboot()
        else:
            unload_driver(host)
            assert not host.path("/dev/nvidia-caps").exists()
            load_driver(host)
        mig_gpu = gpu(host)
        assert mig_gpu.nvml.nvmlDeviceGetMigMode(mig_gpu.handle) == [mode, mode]
        assert host.state.gpus[0].instances == [] and host.state.gpus[0].clients == []
        assert not host.path(f"/proc/driver/nvidia/capabilities/gpu{host.state.gpus[0].minor}/mig").exists()

    def test_a_gpu_that_is_given_to_another_driver_comes_back_whole(self, h100: SimulatedHost) -> None:
        before = h100.snapshots()
        divided(h100, 2)
        h100.make_instance(2, "1g.10gb", 3)
        bind_gpu(h100, 2, "vfio-pci")
        assert not list(h100.path("/proc/driver/nvidia/capabilities/gpu2/mig").iterdir())
        bind_gpu(h100, 2, "nvidia")
        assert h100.snapshots() == before

    def test_a_gpu_that_was_divided_and_put_back_equals_its_start(self, h100: SimulatedHost) -> None:
        before = h100.snapshots()
        mig_gpu = divided(h100)
        h100.make_instance(0, "3g.40gb", 4)
        assert h100.snapshots() != before
        h100.destroy_instance(0, 4)
        assert h100.snapshots() != before
        mig_gpu.nvml.nvmlDeviceSetMigMode(mig_gpu.handle, 0)
        assert h100.snapshots() == before

    @pytest.mark.parametrize("change", [{"compute_mode": 3}, {"time_slice": 2}, {"bound_to": "vfio-pci"}])
    def test_a_snapshot_sees_what_was_left_behind(self, h100: SimulatedHost, change: dict[str, Any]) -> None:
        before = h100.snapshot(0)
        with h100.edit() as state:
            for name, value in change.items():
                setattr(state.gpus[0], name, value)
        assert h100.snapshot(0) != before

    def test_the_state_of_a_full_node_stays_small(self, h100: SimulatedHost) -> None:
        """It is read before every answer, so tables are not in it."""
        for index in range(8):
            h100.set_mig(index, 1)
            for start in range(7):
                h100.make_instance(index, "1g.10gb", start)
        assert (h100.root / "sim" / "state.json").stat().st_size < 64 << 10


class TestAdministrator:
    def test_makes_parts_and_instances_that_nobody_can_use(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        assert len(h100.make_instance(0, "3g.40gb", 4, parts=(2, 1))) == 2
        assert h100.make_instance(0, "1g.10gb", 0, parts=()) == ()
        assert len(mig_gpu.uuids()) == 2
        with pytest.raises(PartitionRefused):
            h100.make_instance(0, "2g.20gb", 0)
        h100.destroy_instance(0, 4)
        assert mig_gpu.uuids() == []

    def test_does_not_divide_a_gpu_out_of_the_mode_nor_take_away_what_is_used(self, h100: SimulatedHost) -> None:
        with pytest.raises(PartitionRefused):
            h100.make_instance(0, "3g.40gb", 4)
        h100.set_mig(0, 1)
        (uuid,) = h100.make_instance(0, "3g.40gb", 4)
        h100.attach_client(0, mig_uuid=uuid)
        with pytest.raises(PartitionRefused):
            h100.destroy_instance(0, 4)
        assert h100.state.gpus[0].instances[0].compute_instances[0].uuid == uuid


class TestMishaps:
    def test_a_call_fails_as_often_as_it_was_told_to(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        fail_call(h100, 0, "nvmlDeviceCreateGpuInstanceWithPlacement", 23, times=2)
        for _ in range(2):
            with pytest.raises(pynvml.NVMLError_InsufficientResources):
                mig_gpu.create("1g.10gb", 0)
        mig_gpu.create("1g.10gb", 0)

    def test_another_gpu_is_not_concerned(self, h100: SimulatedHost) -> None:
        fail_call(h100, 0, "nvmlDeviceGetUUID", 999)
        assert gpu(h100, 1).nvml.nvmlDeviceGetUUID(gpu(h100, 1).handle) == h100.state.gpus[1].uuid

    @pytest.mark.parametrize(("when", "instances"), [("before", 0), ("after", 1)])
    def test_a_process_dies_once_before_or_after_the_work(self, h100: SimulatedHost, when: Any, instances: int) -> None:
        mig_gpu = divided(h100)
        crash_in(h100, 0, "nvmlDeviceCreateGpuInstanceWithPlacement", when)
        with pytest.raises(Crash):
            mig_gpu.create("1g.10gb", 0)
        assert len(h100.state.gpus[0].instances) == instances
        mig_gpu.create("1g.10gb", 1)

    def test_a_call_can_be_slow(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        slow_call(h100, 0, "nvmlGpuInstanceDestroy", 0.05)
        instance = mig_gpu.create("1g.10gb", 0)
        begin = time.perf_counter()
        mig_gpu.nvml.nvmlGpuInstanceDestroy(instance)
        assert time.perf_counter() - begin >= 0.05


class TestHealth:
    def test_counts_rows_and_actions_are_told(self, h100: SimulatedHost) -> None:
        mig_gpu = gpu(h100)
        nvml = mig_gpu.nvml
        h100.set_health(
            0, uncorrected_errors=2, lifetime_uncorrected_errors=5, remap_pending=True, recovery_action=1,
            tpc_repair_pending=True,
        )  # fmt: skip
        assert [nvml.nvmlDeviceGetTotalEccErrors(mig_gpu.handle, 1, counter) for counter in (0, 1)] == [2, 5]
        assert nvml.nvmlDeviceGetRemappedRows(mig_gpu.handle) == (0, 0, 1, 0)
        assert nvml.nvmlDeviceGetRepairStatus(mig_gpu.handle) == [0, 1]
        values = nvml.nvmlDeviceGetFieldValues(mig_gpu.handle, [230, (144, 0), 9999])
        assert [(value.nvmlReturn, value.value.uiVal) for value in values] == [(0, 1), (0, 1), (3, 0)]

    def test_a_gpu_in_mig_mode_does_not_tell_of_remapped_rows(self, h100: SimulatedHost) -> None:
        mig_gpu = divided(h100)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            mig_gpu.nvml.nvmlDeviceGetRemappedRows(mig_gpu.handle)

    def test_a_reset_puts_right_what_can_be(self, h100: SimulatedHost) -> None:
        h100.set_health(0, uncorrected_errors=2, lifetime_uncorrected_errors=5, remap_failed=True, recovery_action=4)
        h100.lose_gpu(0, 16)
        h100.reset_gpu(0)
        mig_gpu = gpu(h100)
        assert [mig_gpu.nvml.nvmlDeviceGetTotalEccErrors(mig_gpu.handle, 1, counter) for counter in (0, 1)] == [0, 5]
        assert mig_gpu.nvml.nvmlDeviceGetRemappedRows(mig_gpu.handle) == (0, 0, 0, 1)
        assert mig_gpu.nvml.nvmlDeviceGetFieldValues(mig_gpu.handle, [230])[0].value.uiVal == 0

    def test_older_gpus_and_drivers_do_not_know_all_questions(self, tmp_path: Path) -> None:
        mig_gpu = gpu(create_host(tmp_path, "t4"))
        assert mig_gpu.nvml.nvmlDeviceGetTotalEccErrors(mig_gpu.handle, 1, 0) == 0
        with pytest.raises(pynvml.NVMLError_NotSupported):
            mig_gpu.nvml.nvmlDeviceGetRemappedRows(mig_gpu.handle)
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            mig_gpu.nvml.nvmlDeviceGetRepairStatus(mig_gpu.handle)
        assert mig_gpu.nvml.nvmlDeviceGetFieldValues(mig_gpu.handle, [230])[0].nvmlReturn == 3
        assert not mig_gpu.nvml.nvmlDeviceGetSupportedEventTypes(mig_gpu.handle) & 0x100

    def test_persistence_mode_and_links_are_what_they_were_set_to(self, h100: SimulatedHost) -> None:
        mig_gpu = gpu(h100)
        mig_gpu.nvml.nvmlDeviceSetPersistenceMode(mig_gpu.handle, 0)
        assert mig_gpu.nvml.nvmlDeviceGetPersistenceMode(mig_gpu.handle) == 0
        set_links_down(h100, 0, 3, 4)
        active = [mig_gpu.nvml.nvmlDeviceGetNvLinkState(mig_gpu.handle, link) for link in range(18)]
        assert [link for link, state in enumerate(active) if not state] == [3, 4]

    def test_programs_are_seen_in_proc_with_the_gpus_that_they_have_open(self, h100: SimulatedHost) -> None:
        pid = h100.attach_client(1, name="trainer")
        h100.attach_client(2, name="trainer", pid=pid)
        opened = {path.readlink().name for path in h100.path(f"/proc/{pid}/fd").iterdir()}
        assert {"nvidia1", "nvidia2"} <= opened
        assert h100.path(f"/proc/{pid}/comm").read_text() == "trainer\n"
        h100.detach_client(pid)
        assert not h100.path(f"/proc/{pid}").exists()


def test_two_gpus_in_mig_mode_are_no_peers(h100: SimulatedHost) -> None:
    nvml = session(h100)
    first, second = (MigGpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in (0, 1))
    ask = (first.handle, second.handle, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    assert nvml.nvmlDeviceGetP2PStatus(*ask) == pynvml.NVML_P2P_STATUS_OK
    nvml.nvmlDeviceSetMigMode(first.handle, 1)
    assert nvml.nvmlDeviceGetP2PStatus(*ask) == pynvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED
