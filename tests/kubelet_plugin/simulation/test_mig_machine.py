"""What counters allow the hardware accepts, and what the hardware would refuse the counters never allow.

Counters are made as a publisher makes them, from what NVML lists: of each engine as much as the largest profile has,
and one counter for each memory slice. The hardware decides by limits of its own (`MigTable.totals`, `max_instances`).
Compute instances likewise: a slot for each compute slice of their GPU instance.
"""

import ctypes
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.mig_nvml import MigGpu, divided
from support.rows import examples

from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.profiles import load_profile, profile_names

DIVISIBLE = tuple(name for name in profile_names() if load_profile(name).gpu.mig is not None)
AMOUNTS = (
    "memorySizeMB", "multiprocessorCount", "copyEngineCount", "decoderCount", "encoderCount", "jpegCount", "ofaCount",
)  # fmt: skip


class Counters:
    """Of one GPU, from what its driver lists."""

    def __init__(self, gpu: MigGpu) -> None:
        self.profiles = {info.id: info for info in gpu.profiles().values()}
        self.places = {profile_id: gpu.places(profile_id) for profile_id in self.profiles}
        amounts = {name: max(getattr(info, name) for info in self.profiles.values()) for name in AMOUNTS}
        slices = max(start + size for places in self.places.values() for start, size in places)
        self.total = amounts | {f"memory-slice-{number}": 1 for number in range(slices)}

    def consumed(self, profile_id: int, start: int) -> dict[str, int]:
        size = self.places[profile_id][0][1]
        engines = {name: int(getattr(self.profiles[profile_id], name)) for name in AMOUNTS}
        return engines | {f"memory-slice-{number}": 1 for number in range(start, start + size)}

    def allow(self, devices: list[tuple[int, int]]) -> bool:
        used = dict.fromkeys(self.total, 0)
        for device in devices:
            for name, amount in self.consumed(*device).items():
                used[name] += amount
        return all(amount <= self.total[name] for name, amount in used.items())


class Division(RuleBasedStateMachine):
    hosts: dict[str, SimulatedHost]

    @initialize(profile=st.sampled_from(DIVISIBLE), index=st.integers(0, 3))
    def start(self, profile: str, index: int) -> None:
        host = self.hosts[profile]
        index %= len(host.state.gpus)
        host.set_mig(index, 0)
        self.host, self.index = host, index
        self.gpu = divided(host, index)
        self.counters = Counters(self.gpu)
        self.devices: dict[tuple[int, int], Any] = {}
        self.parts: dict[tuple[int, int], dict[tuple[int, int], Any]] = {}

    @rule(data=st.data())
    def create(self, data: st.DataObject) -> None:
        profile_id = data.draw(st.sampled_from(sorted(self.counters.profiles)))
        start, size = data.draw(st.sampled_from(self.counters.places[profile_id]))
        allowed = self.counters.allow([*self.devices, (profile_id, start)])
        place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
        try:
            made = self.gpu.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                self.gpu.handle, profile_id, ctypes.byref(place)
            )
        except pynvml.NVMLError_InsufficientResources:
            assert not allowed
            return
        assert allowed
        self.devices[profile_id, start] = made
        self.parts[profile_id, start] = {}

    @precondition(lambda self: self.devices)
    @rule(data=st.data())
    def create_part(self, data: st.DataObject) -> None:
        device = data.draw(st.sampled_from(sorted(self.devices)))
        profiles = self.gpu.compute_profiles(self.devices[device])
        slices = data.draw(st.sampled_from(sorted(profiles)))
        start = data.draw(st.integers(0, max(profiles) - slices))
        taken = {piece for at, size in self.parts[device] for piece in range(at, at + size)}
        free = taken.isdisjoint(range(start, start + slices))
        place = pynvml.c_nvmlComputeInstancePlacement_t(start, slices)
        try:
            made = self.gpu.nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(
                self.devices[device], profiles[slices].id, ctypes.byref(place)
            )
        except pynvml.NVMLError_InvalidArgument:
            assert start % slices != 0
            return
        except pynvml.NVMLError_InsufficientResources:
            assert not free
            return
        assert free and start % slices == 0
        self.parts[device][start, slices] = made

    @precondition(lambda self: any(self.parts.values()))
    @rule(data=st.data())
    def destroy_part(self, data: st.DataObject) -> None:
        device = data.draw(st.sampled_from(sorted(device for device, parts in self.parts.items() if parts)))
        part = data.draw(st.sampled_from(sorted(self.parts[device])))
        self.gpu.nvml.nvmlComputeInstanceDestroy(self.parts[device].pop(part))

    @precondition(lambda self: self.devices)
    @rule(data=st.data())
    def destroy(self, data: st.DataObject) -> None:
        device = data.draw(st.sampled_from(sorted(self.devices)))
        try:
            self.gpu.nvml.nvmlGpuInstanceDestroy(self.devices[device])
        except pynvml.NVMLError_InUse:
            assert self.parts[device]
            return
        assert not self.parts[device]
        del self.devices[device], self.parts[device]

    @invariant()
    def what_is_left_is_what_the_counters_leave(self) -> None:
        if not hasattr(self, "gpu"):
            return
        for profile_id, places in self.counters.places.items():
            left = self.gpu.remaining(profile_id)
            room = any(self.counters.allow([*self.devices, (profile_id, start)]) for start, _ in places)
            assert bool(left) is room

    @invariant()
    def nvml_lists_what_was_made(self) -> None:
        if not hasattr(self, "gpu"):
            return
        assert len(self.gpu.uuids()) == sum(len(parts) for parts in self.parts.values())
        ids = {self.gpu.nvml.nvmlGpuInstanceGetInfo(made).id for made in self.devices.values()}
        assert len(ids) == len(self.devices)
        assert all(number < 15 for number in ids)

    def teardown(self) -> None:
        if hasattr(self, "gpu"):
            self.gpu.nvml.nvmlShutdown()  # an A100 does not switch while another session is open
            self.host.set_mig(self.index, 0)


def test_counters_and_hardware_agree(tmp_path_factory: pytest.TempPathFactory) -> None:
    root: Path = tmp_path_factory.mktemp("hosts")

    class OnTheseHosts(Division):
        hosts = {name: create_host(root / name, name) for name in DIVISIBLE}  # noqa: RUF012

    run_state_machine_as_test(
        OnTheseHosts,
        settings=settings(
            max_examples=examples(40),
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
