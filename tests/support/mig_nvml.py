"""MIG through the raw functions of pynvml, for tests that speak with simulated NVML as the adapter does."""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pynvml

from kubelet_plugin.simulation.host import SimulatedHost
from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.partitions import free_starts, mig_devices, table_of
from kubelet_plugin.simulation.state import GpuInstanceState


def session(host: SimulatedHost) -> SimulatedNvml:
    nvml = SimulatedNvml(host.root)
    nvml.nvmlInitWithFlags(0)
    return nvml


def code(error: pynvml.NVMLError) -> int:
    return int(error.value)


@dataclass
class MigGpu:
    """One GPU of a session."""

    nvml: SimulatedNvml
    handle: Any

    def profiles(self) -> dict[str, Any]:
        """NVML's structures by profile name, found by asking for every number there may be."""
        profiles = {}
        for kind in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT + 2):
            try:
                info = self.nvml.nvmlDeviceGetGpuInstanceProfileInfo(self.handle, kind)
            except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
                continue
            profiles[info.name.removeprefix("MIG ")] = info
        return profiles

    def places(self, profile_id: int) -> list[tuple[int, int]]:
        count = ctypes.c_uint()
        ask = self.nvml.nvmlDeviceGetGpuInstancePossiblePlacements
        ask(self.handle, profile_id, None, ctypes.byref(count))
        array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        ask(self.handle, profile_id, array, ctypes.byref(count))
        return [(place.start, place.size) for place in array]

    def create(self, name: str, start: int, size: int | None = None) -> Any:
        info = self.profiles()[name]
        place = pynvml.c_nvmlGpuInstancePlacement_t(start, size if size is not None else self.places(info.id)[0][1])
        return self.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(self.handle, info.id, ctypes.byref(place))

    def instances(self, profile_id: int) -> list[Any]:
        array = (pynvml.c_nvmlGpuInstance_t * 16)()
        count = ctypes.c_uint()
        self.nvml.nvmlDeviceGetGpuInstances(self.handle, profile_id, array, ctypes.byref(count))
        return [array[index] for index in range(count.value)]

    def compute_profiles(self, instance: Any) -> dict[int, Any]:
        """NVML's structures by their number of slices."""
        profiles = {}
        for kind in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = self.nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, kind, 0)
            except pynvml.NVMLError_NotSupported:
                continue
            profiles[info.sliceCount] = info
        return profiles

    def fill(self, instance: Any) -> Any:
        """Make the compute instance that fills a GPU instance."""
        profiles = self.compute_profiles(instance)
        return self.nvml.nvmlGpuInstanceCreateComputeInstance(instance, profiles[max(profiles)].id)

    def device(self, compute_instance: Any) -> Any:
        return self.nvml.nvmlComputeInstanceGetInfo_v2(compute_instance).device

    def devices(self) -> Iterator[Any]:
        """Of its GPU instances, of one profile after the other."""
        for info in self.profiles().values():
            for instance in self.instances(info.id):
                for profile in self.compute_profiles(instance).values():
                    yield from map(self.device, self.compute_instances(instance, profile.id))

    def compute_instances(self, instance: Any, profile_id: int) -> list[Any]:
        array, count = (pynvml.c_nvmlComputeInstance_t * 8)(), ctypes.c_uint()
        self.nvml.nvmlGpuInstanceGetComputeInstances(instance, profile_id, array, ctypes.byref(count))
        return [array[index] for index in range(count.value)]

    def uuids(self) -> list[str]:
        """Of the MIG devices in the order of their numbers, by which nvidia-smi lists them."""
        state = self.nvml._file.read().gpu(self.nvml.nvmlDeviceGetUUID(self.handle))
        numbers = {item.uuid: item.index for _, item in mig_devices(state)}
        return sorted(map(self.nvml.nvmlDeviceGetUUID, self.devices()), key=numbers.__getitem__)

    def remaining(self, profile_id: int) -> int:
        """How many more instances of the profile can be created, lowest start first."""
        state = self.nvml._file.read()
        table, instances = table_of(state), list(state.gpu(self.nvml.nvmlDeviceGetUUID(self.handle)).instances)
        profile, before = table.profile(profile_id), len(instances)
        assert profile is not None
        while free := free_starts(instances, table, profile):
            instances.append(GpuInstanceState(id=-1, number=0, profile=profile.id, start=free[0], size=profile.size))
        return len(instances) - before


def gpu(host: SimulatedHost, index: int = 0) -> MigGpu:
    nvml = session(host)
    return MigGpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index))


def divided(host: SimulatedHost, index: int = 0) -> MigGpu:
    """A GPU in MIG mode."""
    mig_gpu = gpu(host, index)
    assert mig_gpu.nvml.nvmlDeviceSetMigMode(mig_gpu.handle, 1) == 0
    return mig_gpu
