"""The counters of a GPU allow exactly what its hardware accepts: a partition that the scheduler may still give away can
be made, and one that it may not would be refused. For random sequences of partitions that come and go, on every
simulated GPU model that can be divided."""

import random
from pathlib import Path

import pytest
from support.allocation import NODE, device_class, exactly, held, snapshot, with_names
from support.nodes import a_node
from support.rows import slow_but

from dra_driver.allocation.search import Allocated, allocate
from dra_driver.allocation.snapshot import PublishedSlice
from dra_driver.api.inventory import NodeInventorySpec
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.devices.offers import offers
from dra_driver.errors import HardwareError
from dra_driver.names import GPU_DRIVER
from dra_driver.slices.describe import described_devices
from dra_driver.slices.diff import CreateSlice, NodeRef, new_object, wanted_pool
from dra_driver.slices.features import ALL_FEATURES
from dra_driver.slices.layout import Places, slice_layout
from kubelet_plugin.hardware.mig import MigGpu
from kubelet_plugin.reporting.reporter import wanted_spec
from kubelet_plugin.simulation.profiles import load_profile, profile_names

DIVISIBLE = tuple(name for name in profile_names() if load_profile(name).gpu.mig is not None)
STEPS = 60
ANY = device_class("any", f"device.driver == '{GPU_DRIVER}'")
OWN = f"device.attributes['{GPU_DRIVER}']"


def published(inventory: NodeInventorySpec, policy: PublishingPolicy) -> list[PublishedSlice]:
    described = described_devices(inventory, policy, {}, GPU_DRIVER, ALL_FEATURES)
    pool = wanted_pool(GPU_DRIVER, NodeRef(NODE.name, "uid"), slice_layout(described.gpus, Places(), ALL_FEATURES))
    objects = [new_object(pool, CreateSlice(item, 1, len(pool.slices))) for item in pool.slices]
    return [_typed(obj, index) for index, obj in enumerate(objects)]


def _typed(obj: JsonObject, index: int) -> PublishedSlice:
    return PublishedSlice(ResourceSlice.of({**obj, "metadata": {**obj["metadata"], "name": f"slice-{index}"}}))


def claim(*expressions: str) -> ResourceClaim:
    spec = {"devices": {"requests": [exactly("gpu", *expressions, class_name="any")]}}
    return ResourceClaim.of({"metadata": {"name": "claim", "namespace": "default", "uid": "uid"}, "spec": spec})


def accepted(mig: MigGpu, profile_id: int, start: int, size: int) -> bool:
    """Whether the hardware makes the GPU instance, which exists then."""
    try:
        mig.create_gpu_instance(profile_id, start, size)
    except HardwareError:
        return False
    return True


@pytest.mark.parametrize("profile", slow_but(DIVISIBLE, "a30", "dgx-h100"))
async def test_counters_allow_what_the_hardware_accepts_and_nothing_else(tmp_path: Path, profile: str) -> None:
    chance = random.Random(profile)
    node = a_node(tmp_path, profile)
    node.host.set_mig(0, 1)
    uuid = node.host.state.gpus[0].uuid
    dynamic = {"publish": [{"gpus": {"uuids": [uuid]}}], "mig": [{"mode": "Dynamic"}]}
    policy = PublishingPolicy.of({"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", **dynamic})
    inventory = NodeInventorySpec.of(wanted_spec(NODE.name, await node.discovery().observe(), {}))
    slices = with_names(published(inventory, policy))
    parts = {offer.name: offer for offer in offers(inventory, policy, {}).offers if offer.partition is not None}
    mig, taken, outcomes = node.nvml().mig(uuid), dict[str, tuple[str, int]](), set[bool]()
    for _ in range(STEPS):
        if taken and chance.random() < 0.35:
            profile_name, start = taken.pop(chance.choice(list(taken)))
            mig.destroy_gpu_instance(
                next(
                    instance
                    for instance in mig.instances()
                    if (instance.profile, instance.start) == (profile_name, start)
                )
            )
        part = parts[chance.choice(list(parts))]
        assert part.partition is not None and part.profile is not None
        where = part.partition
        within = snapshot(*slices, classes=[ANY], held=[held(name) for name in taken])
        wanted = claim(f"{OWN}.name == '{part.name}'")
        result = allocate([wanted], NODE, within)
        allowed = isinstance(result, Allocated)
        assert accepted(mig, part.profile.id, where.start, where.size) == allowed, (part.name, sorted(taken), result)
        if isinstance(result, Allocated):
            (device,) = result.allocations[0].devices.results
            assert device.device == part.name
            taken[part.name] = (where.profile, where.start)
        outcomes.add(allowed)
        within = snapshot(*slices, classes=[ANY], held=[held(name) for name in taken])
        whole = allocate([claim(f"{OWN}.type == 'gpu'")], NODE, within)
        assert isinstance(whole, Allocated) == (not mig.instances())
    assert outcomes == {True, False}
