"""MIG of one GPU through NVML: what it can be divided into, what exists, and the calls that change it.

`kubelet_plugin.hardware.nvml` reads facts here, with each look; `kubelet_plugin.effects.mig` changes things. A GPU
instance takes memory slices of the GPU; a compute instance takes compute slices of a GPU instance, and is the MIG
device that programs use. Nothing here decides whose an instance is.

Two numbers are easily mixed up: the enumeration by which a profile is asked for, and the id in the answer, which all
other calls want. Both lists of enumerations have holes that differ from GPU to GPU, and grow with the driver. Ids of
instances are the driver's choice, and are given out again; only a compute instance's UUID is never seen twice.
"""

import ctypes
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pynvml
from pydantic import ValidationError

from dra_driver.api.inventory import ComputeInstanceFacts, GpuInstanceFacts, MigFacts, MigProfileFacts
from dra_driver.devices.mig import gpu_instance_profile_name
from dra_driver.errors import HardwareError
from kubelet_plugin.hardware.calls import NOT_THERE, Calls, NvmlCode, answered_wrong, what_is_wrong

_SKIPPED = frozenset({NvmlCode.INVALID_ARGUMENT, *NOT_THERE})
"""What an enumeration that this GPU does not have may answer; which of them differs."""

_GONE = frozenset({NvmlCode.NOT_FOUND, *_SKIPPED})
"""What an instance answers that was destroyed between listing it and asking it."""

_GPU_PROFILES = 32
_COMPUTE_PROFILES = 16
"""How many enumerations are tried: more than the newest header knows (18 and 9)."""

_SUFFIXES = {
    **dict.fromkeys(range(0x07), ""),
    **dict.fromkeys((0x07, 0x08), "+me"),
    0x09: "",
    **dict.fromkeys((0x0A, 0x0B, 0x0C, 0x11), "+gfx"),
    **dict.fromkeys((0x0D, 0x0E), "-me"),
    **dict.fromkeys((0x0F, 0x10), "+me.all"),
}
"""By enumeration. Source: nvml.h, NVML_GPU_INSTANCE_PROFILE_*."""

_NAME = re.compile(r"\d+g\.\d+gb(?:[+-][a-z.]+)*")
_SHARED_ENGINES = 0
_MOST_INSTANCES = 16
_MOST_HANDLES = 256
"""Room for answers, however many the driver announces."""
_LOOKS_PER_TABLE = 10
_RESETLESS_MIG = 184
_HOPPER = 9
_UNKNOWN_ARCHITECTURE = 0xFFFFFFFF
_VGPU_GUEST = 2


@dataclass(frozen=True, slots=True)
class Mode:
    """MIG mode now, and after the next reset of the GPU."""

    on: bool
    pending: bool


@dataclass(frozen=True, slots=True)
class LiveComputeInstance:
    """A MIG device that exists. `start` and `slices` are compute slices of its GPU instance."""

    facts: ComputeInstanceFacts
    handle: Any

    def __str__(self) -> str:
        return self.facts.uuid


@dataclass(frozen=True, slots=True)
class LiveGpuInstance:
    """A GPU instance that exists. `slices` are its compute slices; None of a profile that is not known."""

    id: int
    profile: str
    slices: int | None
    start: int
    size: int
    devices: tuple[LiveComputeInstance, ...]
    handle: Any

    def overlaps(self, start: int, size: int) -> bool:
        return self.start < start + size and start < self.start + self.size

    @property
    def facts(self) -> GpuInstanceFacts:
        return GpuInstanceFacts(
            id=self.id,
            profile=self.profile,
            start=self.start,
            size=self.size,
            compute_instances=[device.facts for device in self.devices],
        )

    def __str__(self) -> str:
        devices = ", ".join(map(str, self.devices)) or "no MIG device in it"
        return f"GPU instance {self.id} ({self.profile} at {self.start}: {devices})"


@dataclass(frozen=True, slots=True)
class _Profile:
    facts: MigProfileFacts
    offered: bool
    """False for one that NVIDIA's tools have no name for, or the same name as for another: instances of it are read."""


@dataclass(frozen=True, slots=True)
class _ComputeProfile:
    id: int
    slices: int
    multiprocessors: int


class MigGpu:
    """One GPU, in one NVML session. `about` is what errors are about. Tables do not change, and are half the
    work of a look (`facts`), so some looks share them; those that were misread are right again after a while."""

    def __init__(self, calls: Calls, about: str, handle: Any) -> None:
        self._about = about
        self._library = calls.library
        self._call: Callable[..., Any] = partial(calls.call, about)
        self._supported: Callable[..., Any] = partial(calls.supported, about)
        self._described: Callable[..., Any] = partial(calls.described, about)
        self._handle = handle
        self._looks = 0
        self.denied = False
        """Whether the driver would tell root what profiles there are, and did not tell us."""
        self.odd_profiles: tuple[str, ...] = ()
        """Profiles that are beyond what any GPU has had so far, each with what is odd. They are not offered."""
        self._profiles: tuple[_Profile, ...] | None = None
        """None: to be read. Empty where the driver has none, at least in this mode."""
        self._mode_seen: Mode | None = None
        self._compute_profiles: dict[str, tuple[_ComputeProfile, ...]] = {}

    def facts(self) -> MigFacts | None:
        """All that the inventory has; None of a GPU that cannot be divided. Raises HardwareError."""
        mode = self.mode()
        if mode is None:
            return None
        self._looks += 1
        if self._looks % _LOOKS_PER_TABLE == 0 or mode != self._mode_seen:
            self._profiles, self._compute_profiles, self._mode_seen = None, {}, mode
        profiles = [] if self._is_guest() else [profile.facts for profile in self._read_profiles() if profile.offered]
        instances = self.instances() if mode.on else ()
        return MigFacts(
            enabled=mode.on,
            pending=mode.pending,
            switchable=self.switchable(),
            profiles=sorted(profiles, key=lambda profile: profile.id),
            instances=[instance.facts for instance in instances],
        )

    def mode(self) -> Mode | None:
        """None of a GPU that cannot be divided. Raises HardwareError."""
        answer = self._supported(self._library.nvmlDeviceGetMigMode, self._handle)
        return self._mode(*answer) if answer is not None else None

    def _mode(self, current: int, pending: int) -> Mode:
        if not {current, pending} <= {0, 1}:
            raise HardwareError(
                f"NVML gives {current} as MIG mode and {pending} as the pending one, which this driver does not know;"
                " upgrade it, and search the kernel log for NVRM if that does not help",
                about=self._about,
            )
        return Mode(current == 1, pending == 1)

    def is_on(self) -> bool:
        """Whether MIG mode is on now. Raises HardwareError."""
        mode = self.mode()
        return mode is not None and mode.on

    def switchable(self) -> bool:
        """Whether the mode changes without a reset. Field 184 says so; a driver that does not know it is asked for the
        generation. A guest with a part of a GPU changes nothing."""
        if self._is_guest():
            return False
        values = self._described(self._library.nvmlDeviceGetFieldValues, self._handle, [_RESETLESS_MIG])
        if values is not None and values[0].nvmlReturn == 0:
            return bool(values[0].value.uiVal)
        architecture = self._described(self._library.nvmlDeviceGetArchitecture, self._handle)
        return architecture is not None and _HOPPER <= architecture != _UNKNOWN_ARCHITECTURE

    def set_mode(self, on: bool) -> int:
        """Change it; returns the activation status: 0, or the NVML code of why it is pending. Raises HardwareError."""
        return int(self._call(self._library.nvmlDeviceSetMigMode, self._handle, int(on)))

    def instances(self, *, sure: bool = False) -> tuple[LiveGpuInstance, ...]:
        """All GPU instances with what is in them, by start. Raises HardwareError, also where root is needed; if `sure`,
        for every profile whose instances NVML does not list.

        NVIDIA's own tools take no failure for an empty list. Source: WalkGpuInstances of NVIDIA/mig-parted.
        """
        profiles = self._read_profiles(needed=True)
        instances = {}
        for profile in profiles:
            for handle in self._listed(profile, sure=sure):
                instance = self._instance(handle, profiles)
                if instance is not None:
                    instances[instance.id] = instance
        return tuple(
            sorted(instances.values(), key=lambda live_gpu_instance: (live_gpu_instance.start, live_gpu_instance.id))
        )

    def instances_if_on(self) -> tuple[LiveGpuInstance, ...]:
        """None while MIG mode is off: NVML refuses the question then. Source: nvmlDeviceGetGpuInstances."""
        return self.instances() if self.is_on() else ()

    def instance_at(self, profile_id: int, start: int, wanted: Collection[int] = ()) -> LiveGpuInstance | None:
        """The GPU instance of a profile at a place, None only if there is none. `wanted` are the sizes of compute
        instances that must not be missed in it.

        Raises HardwareError for each missing answer, unlike `instances`: what is not seen here is forgotten.
        """
        if not self._mode(*self._call(self._library.nvmlDeviceGetMigMode, self._handle)).on:
            return None
        profile = next((item for item in self._read_profiles(needed=True) if item.facts.id == profile_id), None)
        if profile is None:
            self._profiles = None
            raise self._unanswered(f"GPU instance profile {profile_id}")
        for handle in self._listed(profile, sure=True):
            info = self._call(self._library.nvmlGpuInstanceGetInfo, handle)
            if info.placement.start == start:
                facts = profile.facts
                devices = self._devices(handle, facts.name, facts.slices, sure=wanted)
                size = info.placement.size
                return LiveGpuInstance(info.id, facts.name, facts.slices, start, size, devices, handle)
        return None

    def _unanswered(self, what: str) -> HardwareError:
        return HardwareError(
            f"NVML does not answer for {what} now, so what is left cannot be taken back yet; it is tried again",
            about=self._about,
            code=NvmlCode.NOT_FOUND,
        )

    def create_gpu_instance(self, profile_id: int, start: int, size: int) -> int:
        """At this place; returns its id. Raises HardwareError: INSUFFICIENT_RESOURCES when something is in the way."""
        placement = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
        create = self._library.nvmlDeviceCreateGpuInstanceWithPlacement
        handle = self._call(create, self._handle, profile_id, ctypes.byref(placement))
        return int(self._call(self._library.nvmlGpuInstanceGetInfo, handle).id)

    def destroy_gpu_instance(self, instance: LiveGpuInstance) -> None:
        """Raises HardwareError: IN_USE while there are MIG devices in it."""
        self._call(self._library.nvmlGpuInstanceDestroy, instance.handle)

    def create_compute_instance(self, parent: LiveGpuInstance, slices: int | None, start: int) -> LiveComputeInstance:
        """In `parent`: all of it, or `slices` compute slices from `start`. Raises HardwareError.

        One that was made and cannot be asked for its UUID is destroyed again, because it could not be found later.
        """
        profile_id = self._compute_profile_id(parent, slices)
        if slices is None:
            handle = self._call(self._library.nvmlGpuInstanceCreateComputeInstance, parent.handle, profile_id)
        else:
            placement = pynvml.c_nvmlComputeInstancePlacement_t(start, slices)
            create = self._library.nvmlGpuInstanceCreateComputeInstanceWithPlacement
            handle = self._call(create, parent.handle, profile_id, ctypes.byref(placement))
        try:
            return self._device(handle, parent.profile, parent.slices, self._compute_profiles_of(parent))
        except HardwareError:
            self._described(self._library.nvmlComputeInstanceDestroy, handle)
            raise

    def destroy_compute_instance(self, device: LiveComputeInstance) -> None:
        """Raises HardwareError: IN_USE while programs use it."""
        self._call(self._library.nvmlComputeInstanceDestroy, device.handle)

    def minor(self) -> int:
        """N of /dev/nvidiaN now: a mode change may have given it another."""
        return int(self._call(self._library.nvmlDeviceGetMinorNumber, self._handle))

    def processes(self) -> tuple[str, ...]:
        """Programs that use the GPU or a part of it, as far as the driver names them: `4711 (python3)`."""
        results: set[int] = set()
        for listing in (
            self._library.nvmlDeviceGetComputeRunningProcesses_v3,
            self._library.nvmlDeviceGetGraphicsRunningProcesses_v3,
        ):
            results.update(item.pid for item in self._described(listing, self._handle) or ())
        return tuple(self._process(pid) for pid in sorted(results))

    def _process(self, pid: int) -> str:
        name = self._described(self._library.nvmlSystemGetProcessName, pid)
        return f"{pid} ({name})" if name else str(pid)

    def _is_guest(self) -> bool:
        mode = self._supported(self._library.nvmlDeviceGetVirtualizationMode, self._handle)
        return bool(mode == _VGPU_GUEST)

    def _read_profiles(self, *, needed: bool = False) -> tuple[_Profile, ...]:
        """The table of this GPU; empty when the driver does not tell, or not to us. Raises HardwareError; when the
        table is `needed`, also for a lack of permission."""
        if self._profiles is None or (needed and not self._profiles):
            try:
                self._profiles = tuple(self._all_profiles())
                self.denied = False
            except HardwareError as error:
                if needed or error.code != NvmlCode.NO_PERMISSION:
                    raise
                self.denied = True
        return self._profiles or ()

    def _all_profiles(self) -> Iterator[_Profile]:
        memory = self._supported(self._library.nvmlDeviceGetMemoryInfo, self._handle)
        total = int(memory.total) if memory is not None else 0
        ids: set[int] = set()
        names: set[str] = set()
        odd: list[str] = []
        for enumeration in range(_GPU_PROFILES):
            ask = self._library.nvmlDeviceGetGpuInstanceProfileInfo
            info = self._profile_info(ask, self._handle, enumeration)
            if info is None or info.id in ids:
                continue
            ids.add(info.id)
            name = profile_name(enumeration, info, total)
            try:
                facts = self._profile_facts(name or f"unknown-{info.id}", info)
            except ValidationError as error:
                odd.append(f"{name or f'profile {info.id}'} ({what_is_wrong(error)})")
                yield _Profile(_unusable(info.id), offered=False)
                continue
            yield _Profile(facts, offered=name is not None and name not in names and bool(facts.starts))
            names.add(facts.name)
        self.odd_profiles = tuple(odd)

    def _profile_info(self, ask: Callable[..., Any], *question: Any) -> Any | None:
        """None when there is no such profile. Older drivers do not know the question with a name in the answer."""
        for version in (2, 1):
            try:
                return self._call(ask, *question, version)
            except HardwareError as error:
                if error.code not in _SKIPPED:
                    raise
                if error.code != NvmlCode.FUNCTION_NOT_FOUND:
                    return None
        return None

    def _profile_facts(self, name: str, info: Any) -> MigProfileFacts:
        placements = self._placements(info.id)
        return MigProfileFacts(
            name=name,
            id=info.id,
            slices=info.sliceCount,
            memory_bytes=info.memorySizeMB << 20,
            multiprocessors=info.multiprocessorCount,
            copy_engines=info.copyEngineCount,
            decoders=info.decoderCount,
            encoders=info.encoderCount,
            jpeg_engines=info.jpegCount,
            ofa_engines=info.ofaCount,
            size=placements[0][1] if placements else 0,
            starts=sorted({start for start, _ in placements}),
            max_instances=info.instanceCount,
        )

    def _placements(self, profile_id: int) -> list[tuple[int, int]]:
        ask = self._library.nvmlDeviceGetGpuInstancePossiblePlacements
        count = ctypes.c_uint()
        try:
            self._call(ask, self._handle, profile_id, None, ctypes.byref(count))
        except HardwareError as error:
            if error.code in _SKIPPED:
                return []
            if error.code != NvmlCode.INSUFFICIENT_SIZE:
                raise
        count.value = min(count.value, _MOST_HANDLES)
        placements = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        if count.value:
            self._call(ask, self._handle, profile_id, placements, ctypes.byref(count))
        return [(item.start, item.size) for item in placements[: count.value]]

    def _listed(self, profile: _Profile, *, sure: bool = False) -> list[Any]:
        """Handles of the GPU instances of one profile. Raises HardwareError; if `sure`, for every failure."""
        count = min(max(profile.facts.max_instances, _MOST_INSTANCES), _MOST_HANDLES)
        handles = (pynvml.c_nvmlGpuInstance_t * count)()
        return self._filled(handles, self._library.nvmlDeviceGetGpuInstances, self._handle, profile.facts.id, sure=sure)

    def _instance(self, handle: Any, profiles: tuple[_Profile, ...]) -> LiveGpuInstance | None:
        """None when it was destroyed meanwhile."""
        try:
            info = self._call(self._library.nvmlGpuInstanceGetInfo, handle)
            profile = next((item.facts for item in profiles if item.facts.id == info.profileId), None)
            name, slices = (profile.name, profile.slices) if profile else (f"unknown-{info.profileId}", None)
            return LiveGpuInstance(
                id=info.id,
                profile=name,
                slices=slices,
                start=info.placement.start,
                size=info.placement.size,
                devices=self._devices(handle, name, slices),
                handle=handle,
            )
        except HardwareError as error:
            if error.code in _GONE:
                return None
            raise

    def _devices(
        self, gpu_instance: Any, profile: str, slices: int | None, *, sure: Collection[int] = ()
    ) -> tuple[LiveComputeInstance, ...]:
        """Raises HardwareError; also for every failure about compute instances of the sizes that must be seen for
        `sure`."""
        devices = {}
        compute_profiles = self._compute_profiles_for(gpu_instance, profile)
        if missing := set(sure) - {item.slices for item in compute_profiles}:
            self._compute_profiles.pop(profile, None)
            raise self._unanswered(f"compute instances of {min(missing)} slices")
        for compute_profile in compute_profiles:
            for handle in self._compute_handles(gpu_instance, compute_profile.id, sure=compute_profile.slices in sure):
                try:
                    device = self._device(handle, profile, slices, compute_profiles)
                except HardwareError as error:
                    if error.code in _GONE and compute_profile.slices not in sure:
                        continue
                    raise
                devices[device.facts.id] = device
        return tuple(sorted(devices.values(), key=lambda device: (device.facts.start, device.facts.id)))

    def _compute_handles(self, gpu_instance: Any, profile_id: int, *, sure: bool) -> list[Any]:
        handles = (pynvml.c_nvmlComputeInstance_t * _MOST_INSTANCES)()
        ask = self._library.nvmlGpuInstanceGetComputeInstances
        return self._filled(handles, ask, gpu_instance, profile_id, sure=sure)

    def _filled(self, handles: Any, ask: Callable[..., Any], *question: Any, sure: bool) -> list[Any]:
        """As many of the handles as the library fills in; unless `sure`, none where it has none to fill in."""
        count = ctypes.c_uint(len(handles))
        try:
            self._call(ask, *question, handles, ctypes.byref(count))
        except HardwareError as error:
            if error.code in _GONE and not sure:
                return []
            raise
        return list(handles[: count.value])

    def _device(
        self, handle: Any, profile: str, parent_slices: int | None, compute_profiles: tuple[_ComputeProfile, ...]
    ) -> LiveComputeInstance:
        info = self._call(self._library.nvmlComputeInstanceGetInfo_v2, handle)
        uuid = self._call(self._library.nvmlDeviceGetUUID, info.device)
        if not uuid.startswith("MIG-"):
            raise HardwareError(f"NVML gives {uuid!r} as the UUID of a MIG device", about=self._about)
        kind = next(
            (compute_profile for compute_profile in compute_profiles if compute_profile.id == info.profileId), None
        )
        slices = kind.slices if kind is not None else info.placement.size
        attributes = self._described(self._library.nvmlDeviceGetAttributes_v2, info.device)
        try:
            facts = ComputeInstanceFacts(
                id=info.id,
                uuid=uuid,
                profile=profile if parent_slices in (None, slices) else f"{slices}c.{profile}",
                slices=slices,
                start=info.placement.start,
                multiprocessors=attributes.multiprocessorCount if attributes is not None else None,
                memory_bytes=attributes.memorySizeMB << 20 if attributes is not None else None,
            )
        except ValidationError as error:
            raise answered_wrong(error, self._about) from error
        return LiveComputeInstance(facts, handle)

    def _compute_profile_id(self, parent: LiveGpuInstance, slices: int | None) -> int:
        """The largest of that many slices: the double-memory 1g of some GPUs has a compute profile of its own."""
        wanted = slices if slices is not None else parent.slices
        fitting = [
            compute_profile for compute_profile in self._compute_profiles_of(parent) if compute_profile.slices == wanted
        ]
        if not fitting:
            raise HardwareError(
                f"the driver has no compute instance of {wanted} slices for {parent}; request another profile",
                about=self._about,
            )
        return max(fitting, key=lambda compute_profile: compute_profile.multiprocessors).id

    def _compute_profiles_of(self, parent: LiveGpuInstance) -> tuple[_ComputeProfile, ...]:
        return self._compute_profiles_for(parent.handle, parent.profile)

    def _compute_profiles_for(self, gpu_instance: Any, profile: str) -> tuple[_ComputeProfile, ...]:
        """What a GPU instance of this profile can be divided into."""
        if profile not in self._compute_profiles:
            profiles: dict[int, _ComputeProfile] = {}
            for enumeration in range(_COMPUTE_PROFILES):
                ask = self._library.nvmlGpuInstanceGetComputeInstanceProfileInfo
                info = self._profile_info(ask, gpu_instance, enumeration, _SHARED_ENGINES)
                if info is not None:
                    kind = _ComputeProfile(info.id, info.sliceCount, info.multiprocessorCount)
                    profiles.setdefault(info.id, kind)
            if not profiles:
                return ()  # destroyed meanwhile, perhaps
            self._compute_profiles[profile] = tuple(profiles.values())
        return self._compute_profiles[profile]


def _unusable(profile_id: int) -> MigProfileFacts:
    """Stands for a profile whose instances are read, and of which nothing else can be known."""
    return MigProfileFacts(
        name=f"unknown-{profile_id}",
        id=profile_id,
        slices=0,
        memory_bytes=0,
        multiprocessors=0,
        size=0,
        starts=[],
        max_instances=0,
    )


def profile_name(enumeration: int, info: Any, total_bytes: int) -> str | None:
    """As NVIDIA's tools spell it; None for a kind that is newer than this driver and that the library does not name."""
    suffix = _SUFFIXES.get(enumeration)
    if suffix is None:
        match = _NAME.search(getattr(info, "name", ""))
        return match[0] if match is not None else None
    if not total_bytes:
        # Memory of the system is not divided: NVIDIA's tools print such profiles with no memory.
        return f"{info.sliceCount}g.0gb{suffix}"
    return gpu_instance_profile_name(info.sliceCount, info.memorySizeMB << 20, total_bytes, suffix)
