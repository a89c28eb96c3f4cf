"""The functions of simulated NVML about MIG: mode, profiles and placements, instances and MIG devices.

As module `pynvml` has them, with its raw C arguments where it has those. What the hardware allows is decided in
`kubelet_plugin.simulation.partitions`.
"""

from collections.abc import Sequence
from typing import Any

import pynvml

from kubelet_plugin.simulation import partitions
from kubelet_plugin.simulation.nvml_session import (
    Mig,
    Session,
    compute_instance_query,
    device_query,
    error,
    gpu_instance,
    gpu_instance_query,
    gpu_query,
    pointed,
    supported,
)
from kubelet_plugin.simulation.partitions import PartitionRefused, table_of
from kubelet_plugin.simulation.profiles import MigProfile, MigTable
from kubelet_plugin.simulation.state import GpuInstanceState, GpuState


class MigCalls(Session):
    @gpu_query
    def nvmlDeviceSetMigMode(self, gpu: GpuState, mode: int) -> int:
        """Answers the activation status, which may be an error code where the call itself succeeds."""
        self.check_privileged()
        alone = self.alone()
        with self._host.edit() as state:
            return partitions.set_mode(
                state.gpu(gpu.uuid),
                mode,
                state.model.architecture,
                open_elsewhere=not alone,
                resets=state.driver.resets == "nvml",
            )

    @gpu_query
    def nvmlDeviceGetMigMode(self, gpu: GpuState) -> list[int]:
        mig = supported(gpu.mig)
        return [mig.current, mig.pending]

    # Profiles and placements: answered whether MIG mode is on or not.

    @gpu_query
    def nvmlDeviceGetGpuInstanceProfileInfo(self, gpu: GpuState, profile: int, version: int = 2) -> Any:
        self._check_version(version, "nvmlDeviceGetGpuInstanceProfileInfoV")
        return _gpu_instance_info(self._profile_of_kind(gpu, profile), version)

    @gpu_query
    def nvmlDeviceGetGpuInstancePossiblePlacements(
        self, gpu: GpuState, profileId: int, placementsRef: Any, countRef: Any
    ) -> int:
        self.check_privileged()
        profile = self._profile(gpu, profileId)
        return _fill_placements(profile.starts, profile.size, placementsRef, countRef)

    # GPU instances

    @gpu_query
    def nvmlDeviceCreateGpuInstanceWithPlacement(self, gpu: GpuState, profileId: int, placement: Any) -> Any:
        self.check_privileged()
        place = pointed(placement)
        with self._host.edit() as state:
            now = state.gpu(gpu.uuid)
            made = partitions.create_gpu_instance(now, self._table(), profileId, place.start, place.size)
        return self.gpu_instance_handle(gpu, made)

    @gpu_query
    def nvmlDeviceGetGpuInstances(self, gpu: GpuState, profileId: int, gpuInstancesRef: Any, countRef: Any) -> int:
        if not supported(gpu.mig).current:
            raise PartitionRefused(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._profile(gpu, profileId)
        gpu_instance_states = [instance for instance in gpu.instances if instance.profile == profileId]
        return _fill(
            [self.gpu_instance_handle(gpu, instance) for instance in gpu_instance_states], gpuInstancesRef, countRef
        )

    @gpu_instance_query
    def nvmlGpuInstanceGetInfo(self, gpu: GpuState, instance: GpuInstanceState) -> Any:
        info = pynvml.c_nvmlGpuInstanceInfo_t()
        info.device = self.gpu_handle(gpu.uuid)
        info.id, info.profileId = instance.id, instance.profile
        info.placement.start, info.placement.size = instance.start, instance.size
        return info

    @gpu_instance_query
    def nvmlGpuInstanceDestroy(self, gpu: GpuState, instance: GpuInstanceState) -> int:
        self.check_privileged()
        with self._host.edit() as state:
            now = state.gpu(gpu.uuid)
            partitions.destroy_gpu_instance(now, gpu_instance(now, instance.number))
        return 0

    # Compute instances

    @gpu_instance_query
    def nvmlGpuInstanceGetComputeInstanceProfileInfo(
        self, gpu: GpuState, instance: GpuInstanceState, profile: int, engProfile: int, version: int = 2
    ) -> Any:
        self._check_version(version, "nvmlGpuInstanceGetComputeInstanceProfileInfoV")
        if not 0 <= profile < pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT or engProfile:
            raise PartitionRefused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        compute_profile = supported(partitions.compute_profile(self._table(), instance, profile))
        info = (
            pynvml.c_nvmlComputeInstanceProfileInfo_v2_t()
            if version == 2
            else pynvml.c_nvmlComputeInstanceProfileInfo_t()
        )
        info.id, info.sliceCount, info.instanceCount = (
            compute_profile.kind,
            compute_profile.slices,
            len(compute_profile.starts),
        )
        info.multiprocessorCount = compute_profile.multiprocessors
        parent = self._profile(gpu, instance.profile)
        _set_shared_engines(info, parent)
        if version == 2:
            part = f"{compute_profile.slices}c." if compute_profile.slices != parent.slices else ""
            info.name = f"MIG {part}{parent.name}".encode()
        return info

    @gpu_instance_query
    def nvmlGpuInstanceCreateComputeInstance(self, gpu: GpuState, instance: GpuInstanceState, profileId: int) -> Any:
        return self._create_compute_instance(gpu, instance, profileId, None)

    @gpu_instance_query
    def nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        self, gpu: GpuState, instance: GpuInstanceState, profileId: int, placement: Any
    ) -> Any:
        return self._create_compute_instance(gpu, instance, profileId, pointed(placement))

    def _create_compute_instance(
        self, gpu: GpuState, instance: GpuInstanceState, profile_id: int, placement: Any
    ) -> Any:
        self.check_privileged()
        place = (placement.start, placement.size) if placement is not None else (None, None)
        with self._host.edit() as state:
            now = state.gpu(gpu.uuid)
            parent = gpu_instance(now, instance.number)
            made = partitions.create_compute_instance(now, self._table(), parent, profile_id, *place)
        return self.compute_instance_handle(gpu, made)

    @gpu_instance_query
    def nvmlGpuInstanceGetComputeInstances(
        self, gpu: GpuState, instance: GpuInstanceState, profileId: int, computeInstancesRef: Any, countRef: Any
    ) -> int:
        self._compute_profile(instance, profileId)
        compute_instance_states = [item for item in instance.compute_instances if item.profile == profileId]
        return _fill(
            [self.compute_instance_handle(gpu, item) for item in compute_instance_states], computeInstancesRef, countRef
        )

    @compute_instance_query
    def nvmlComputeInstanceGetInfo_v2(self, gpu: GpuState, mig: Mig) -> Any:
        instance, item = mig
        info = pynvml.c_nvmlComputeInstanceInfo_t()
        info.device = self.mig_handle(gpu, item)
        info.gpuInstance = self.gpu_instance_handle(gpu, instance)
        info.id, info.profileId = item.id, item.profile
        info.placement.start, info.placement.size = item.start, item.slices
        return info

    @compute_instance_query
    def nvmlComputeInstanceDestroy(self, gpu: GpuState, mig: Mig) -> int:
        self.check_privileged()
        with self._host.edit() as state:
            now = state.gpu(gpu.uuid)
            partitions.destroy_compute_instance(now, *partitions.mig_device(now, mig[1].uuid))
        return 0

    # MIG devices

    @device_query
    def nvmlDeviceGetAttributes_v2(self, gpu: GpuState, mig: Mig | None) -> Any:
        instance, item = supported(mig)
        parent = self._profile(gpu, instance.profile)
        attributes = pynvml.c_nvmlDeviceAttributes()
        attributes.multiprocessorCount = self._compute_profile(instance, item.profile).multiprocessors
        attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount = parent.slices, item.slices
        attributes.memorySizeMB = parent.memory_mib
        _set_shared_engines(attributes, parent)
        return attributes

    def _table(self) -> MigTable:
        return table_of(self._file.latest)

    def _profile(self, gpu: GpuState, profile_id: int) -> MigProfile:
        supported(gpu.mig)
        return partitions.profile_of(self._table(), profile_id)

    def _profile_of_kind(self, gpu: GpuState, kind: int) -> MigProfile:
        supported(gpu.mig)
        if not 0 <= kind < pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT:
            raise PartitionRefused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return supported(next((profile for profile in self._table().profiles if profile.kind == kind), None))

    def _compute_profile(self, instance: GpuInstanceState, profile_id: int) -> partitions.ComputeProfile:
        compute_profile = partitions.compute_profile(self._table(), instance, profile_id)
        if compute_profile is None:
            raise PartitionRefused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return compute_profile

    def _check_version(self, version: int, function: str) -> None:
        """The binding calls another function of the library for version 2, which older drivers do not have."""
        if version not in (1, 2) or (version == 2 and function in self._file.latest.driver.missing):
            raise error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def _gpu_instance_info(profile: MigProfile, version: int) -> Any:
    info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t() if version == 2 else pynvml.c_nvmlGpuInstanceProfileInfo_t()
    info.id, info.sliceCount, info.instanceCount = profile.id, profile.slices, profile.max_instances
    info.multiprocessorCount, info.memorySizeMB = profile.multiprocessors, profile.memory_mib
    info.copyEngineCount, info.decoderCount, info.encoderCount = (
        profile.copy_engines,
        profile.decoders,
        profile.encoders,
    )
    info.jpegCount, info.ofaCount = profile.jpeg_engines, profile.ofa_engines
    if version == 2:
        info.name = f"MIG {profile.name}".encode()
    return info


def _set_shared_engines(structure: Any, parent: MigProfile) -> None:
    structure.sharedCopyEngineCount = parent.copy_engines
    structure.sharedDecoderCount = parent.decoders
    structure.sharedEncoderCount = parent.encoders
    structure.sharedJpegCount = parent.jpeg_engines
    structure.sharedOfaCount = parent.ofa_engines


def _fill_placements(starts: Sequence[int], size: int, array: Any, count: Any) -> int:
    """Without an array only the count is answered."""
    if array is None:
        pointed(count).value = len(starts)
        return 0
    places = [pynvml.c_nvmlGpuInstancePlacement_t(start, size) for start in starts]
    return _fill(places, array, count)


def _fill(items: Sequence[Any], array: Any, count: Any) -> int:
    """A C library would write past the end of an array that is too small; this one says so."""
    if array is None:
        raise PartitionRefused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    target = pointed(array)
    if len(target) < len(items):
        raise PartitionRefused(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    for index, item in enumerate(items):
        target[index] = item
    pointed(count).value = len(items)
    return 0
