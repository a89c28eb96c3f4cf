"""The simulated scheduler gives away partitions and shares, and knows what is left of them."""

import re
from collections.abc import AsyncIterator

import pytest_asyncio
from support.scheduling import Desk, desk, device

from dra_driver.api.meta import RESOURCE_SLICES, JsonObject
from dra_driver.kube.client import Kube
from dra_driver.simulation.apiserver.server import SimulatedApiServer

OWN = "device.attributes['gpu.nvidia.com']"


@pytest_asyncio.fixture
async def cluster(api_server: SimulatedApiServer, kube: Kube) -> AsyncIterator[Desk]:
    """A class for everything, one node, and both controllers at work."""
    async with desk(api_server, kube) as new_desk:
        await new_desk.device_class("gpu", "device.driver == 'gpu.nvidia.com'")
        await new_desk.node("node-1")
        new_desk.start_claim_controller()
        new_desk.start_scheduler()
        yield new_desk


def exact(expression: str, name: str = "gpu", **fields: object) -> JsonObject:
    exactly = {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": expression}}], **fields}
    return {"name": name, "exactly": exactly}


def drawing(part: JsonObject, *memory_slices: int) -> JsonObject:
    counters = {f"memory-slice-{number}": {"value": "1"} for number in memory_slices}
    return part | {"consumesCounters": [{"counterSet": "gpu-0-counters", "counters": counters}]}


async def publish_partitions(cluster: Desk) -> None:
    """One GPU, whole and in two halves."""
    counters = {f"memory-slice-{number}": {"value": "1"} for number in range(2)}
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeName": "node-1",
        "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 2},
        "sharedCounters": [{"name": "gpu-0-counters", "counters": counters}],
    }
    header = {"apiVersion": RESOURCE_SLICES.api_version, "kind": RESOURCE_SLICES.kind}
    await cluster.kube.create(RESOURCE_SLICES, {**header, "metadata": {"name": "a-counters"}, "spec": spec})
    parts = [
        drawing(device("gpu-0", profile="whole"), 0, 1),
        drawing(device("gpu-0-mig-0", profile="half"), 0),
        drawing(device("gpu-0-mig-1", profile="half"), 1),
    ]
    await cluster.slice("node-1", *parts, name="b-devices", resourceSliceCount=2)


async def test_partitions_fill_a_gpu_and_the_whole_waits_for_all_of_them(cluster: Desk) -> None:
    await publish_partitions(cluster)
    for name in ("one", "two", "three"):
        await cluster.claim(name, exact(f"{OWN}.profile == 'half'"))
    for name in ("one", "two"):
        await cluster.pod(name, claims=(name,))
        await cluster.scheduled(name)
    await cluster.pod("three", claims=("three",))
    await cluster.claim("whole", exact(f"{OWN}.profile == 'whole'"))
    await cluster.pod("whole", claims=("whole",))
    assert "2 in use" in await cluster.waiting("three")
    assert "1 short of counter memory-slice-0" in await cluster.waiting("whole")
    for name in ("one", "two", "three"):
        await cluster.delete_pod(name)
    await cluster.scheduled("whole")
    assert await cluster.devices_of("whole") == ["gpu-0"]


async def test_pods_share_a_device_until_its_capacity_is_given_away(cluster: Desk) -> None:
    policy = {"default": "10Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
    shared = device("gpu-0") | {
        "allowMultipleAllocations": True,
        "capacity": {"memory": {"value": "24Gi", "requestPolicy": policy}},
    }
    await cluster.slice("node-1", shared)
    await cluster.claim("default")
    await cluster.claim("eight", exact("true", capacity={"requests": {"memory": "7500Mi"}}))
    await cluster.claim("late")
    for name in ("default", "eight"):
        await cluster.pod(name, claims=(name,))
        await cluster.scheduled(name)
    await cluster.pod("late", claims=("late",))
    assert "1 without enough memory left" in await cluster.waiting("late")
    results = [
        (await cluster.get_claim(name))["status"]["allocation"]["devices"]["results"][0]
        for name in ("default", "eight")
    ]
    assert [result["consumedCapacity"] for result in results] == [{"memory": "10Gi"}, {"memory": "8Gi"}]
    assert len({result["shareID"] for result in results}) == 2
    assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", result["shareID"]) for result in results)
    await cluster.delete_pod("eight")
    await cluster.scheduled("late")
