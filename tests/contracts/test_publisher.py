"""The publisher and the leader election do on a real API server what they do on the simulated one."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import pytest
import pytest_asyncio
from support.api import Api
from support.background import background
from support.inventories import compute_instance, gpu, gpu_instance, inventory_object, inventory_spec, mig
from support.mig import gpu_of
from support.publishing import fixed
from support.rows import slow_but
from support.shipped import create_definitions

from docs.from_code.crds import FILE
from dra_driver.api.inventory import (
    MOST_BYTES,
    MOST_CONDITIONS,
    MOST_GPUS,
    HealthFacts,
    NodeInventorySpec,
    NvlinkFacts,
    PassthroughFacts,
    Problem,
    confirmation_annotation,
)
from dra_driver.api.meta import LEASES, NODE_INVENTORIES, NODES, RESOURCE_SLICES, JsonObject
from dra_driver.api.policy import MigRule, PublishingPolicy
from dra_driver.devices.health import xid_condition
from dra_driver.errors import AlreadyExists, NotFound
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.kube.leader import LeaderElection, LeaseTimes
from dra_driver.kube.watch import Watches
from dra_driver.names import GPU_DRIVER
from dra_driver.publish.narrator import Narrator
from dra_driver.publish.observed import server_features
from dra_driver.publish.pools import Pace, PoolPublisher, Publication, PublishingListeners
from dra_driver.slices.describe import described_devices
from dra_driver.slices.diff import is_complete, observed_slice
from dra_driver.slices.offline import published_offline
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.reporting.reporter import wanted_spec

PATIENCE_S = 30.0


@pytest_asyncio.fixture
async def kube(api: Api) -> AsyncIterator[Kube]:
    """A client of the server, on which NodeInventory is served."""
    header = f"Bearer {api.token}" if api.token else None
    async with Kube(Endpoint(api.url, api.ssl, lambda: header)) as client:
        with suppress(AlreadyExists):
            await create_definitions(client, FILE)

        async def served() -> bool:
            try:
                await client.list(NODE_INVENTORIES)
            except NotFound:
                return False
            return True

        await until(served)
        yield client


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await true():
                return
            await asyncio.sleep(0.02)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Written(Narrator):
    def __init__(self) -> None:
        super().__init__()
        self.verbs: list[str] = []
        self.complaints: list[str] = []

    def wrote(self, pool: str, verb: str, devices: int) -> None:
        self.verbs.append(verb)

    def lost_fields(self, pool: str, fields: object) -> None:
        self.complaints.append(f"lost {fields}")

    def not_understood(self, pool: str, error: object) -> None:
        self.complaints.append(str(error))

    def refused(self, pool: str, error: object, retry_s: float) -> None:
        self.complaints.append(str(error))


@asynccontextmanager
async def publishing(
    kube: Kube,
    node: str,
    written: Written,
    policy: PublishingPolicy = PublishingPolicy.EVERYTHING,
    *,
    list_attributes: bool = False,
) -> AsyncIterator[PoolPublisher]:
    """A publisher for one node, so that what other tests left on a real server is not its business."""
    publisher = PoolPublisher(
        Watches(kube),
        Publication(driver=GPU_DRIVER, policies=fixed(policy), node_name=node, list_attributes=list_attributes),
        PublishingListeners(narrator=written),
        Pace(ask_after_s=0.0),
    )
    async with background(publisher.run()):
        yield publisher


async def slices_of(kube: Kube, node: str) -> list[JsonObject]:
    selector = f"spec.driver={GPU_DRIVER},spec.nodeName={node}"
    return (await kube.list(RESOURCE_SLICES, field_selector=selector)).items


async def devices_of(kube: Kube, node: str) -> list[str]:
    return [device["name"] for item in await slices_of(kube, node) for device in item["spec"].get("devices") or ()]


async def test_the_largest_inventory_of_a_plugin_is_stored(kube: Kube, unique: str) -> None:
    text = "\u8a9e" * 1024
    xid = xid_condition(79, since="2026-01-01T00:00:00Z")
    xids = [xid.model_copy(update={"value": str(number), "message": text}) for number in range(MOST_CONDITIONS)]
    sick = gpu_of("h100-80", 0).model_copy(update={"health": HealthFacts(healthy=False, conditions=xids)})
    problems = (Problem(subject="driver", reason="R", message=text),) * 128
    spec = wanted_spec(unique, NodeFacts("boot", None, (sick,) * MOST_GPUS, problems), {GPU_DRIVER: datetime.now(UTC)})
    assert len(json.dumps(spec, ensure_ascii=False).encode()) > MOST_BYTES * 2 // 3
    node = await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": unique}})
    owned = inventory_object(NodeInventorySpec.of(spec), node["metadata"]["uid"])
    stored = await kube.create(NODE_INVENTORIES, owned)
    assert stored["spec"] == spec
    await kube.delete(NODE_INVENTORIES, unique)


async def test_a_pool_is_published_changed_wiped_restored_and_withdrawn(kube: Kube, unique: str) -> None:
    gpus = [gpu(number) for number in range(3)]
    node = await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": unique}})
    spec = inventory_spec(unique, gpus, registered=now())
    await kube.create(NODE_INVENTORIES, inventory_object(spec, node["metadata"]["uid"]))
    written = Written()

    async def has(*names: str) -> bool:
        return await devices_of(kube, unique) == list(names)

    async with publishing(kube, unique, written) as publisher:
        await until(lambda: has(*(item.name for item in gpus)))
        await kube.merge_patch(NODE_INVENTORIES, unique, {"spec": {"gpus": spec.to_wire()["gpus"][:2]}})
        await until(lambda: has(gpus[0].name, gpus[1].name))

        (item,) = await slices_of(kube, unique)
        await kube.merge_patch(RESOURCE_SLICES, item["metadata"]["name"], {"spec": {"devices": None}})
        await until(lambda: has(gpus[0].name, gpus[1].name))

        before = (await kube.get(NODE_INVENTORIES, unique))["spec"]["registrations"][0]["time"]
        await kube.delete_collection(RESOURCE_SLICES, field_selector=f"spec.nodeName={unique}")

        async def asked() -> bool:
            annotations = (await kube.get(NODE_INVENTORIES, unique))["metadata"].get("annotations") or {}
            return bool(annotations.get(confirmation_annotation(GPU_DRIVER)) == before)

        await until(asked)
        assert await slices_of(kube, unique) == []
        registration = {"driver": GPU_DRIVER, "time": now()}
        await kube.merge_patch(NODE_INVENTORIES, unique, {"spec": {"registrations": [registration]}})
        await until(lambda: has(gpus[0].name, gpus[1].name))

        await kube.delete(NODE_INVENTORIES, unique)
        await until(lambda: has())

        async def rests() -> bool:
            return publisher.ready and publisher.figures().pending == 0

        await until(rests)
    assert written.verbs == ["create", "update", "update", "create", "delete"]
    assert written.complaints == []


async def test_a_second_publisher_finds_nothing_to_write_in_pools_of_several_slices(kube: Kube, unique: str) -> None:
    """What the server stores has the digest of what was sent; the order of slices is in their names."""
    parts = [gpu_instance("1g.10gb", start, 1, compute_instance("1g.10gb", 1)) for start in range(7)]
    gpus = [gpu(number, mig=mig(enabled=True, instances=parts)) for number in range(10)]
    node = await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": unique}})
    spec = inventory_spec(unique, gpus, registered=now())
    await kube.create(NODE_INVENTORIES, inventory_object(spec, node["metadata"]["uid"]))
    first, second = Written(), Written()

    async def complete() -> bool:
        return len(await slices_of(kube, unique)) == 2

    async with publishing(kube, unique, first):
        await until(complete)
    async with publishing(kube, unique, second) as publisher:
        await publisher.first_pass.wait()
    assert (first.verbs, second.verbs, first.complaints + second.complaints) == (["create", "create"], [], [])
    in_order = sorted(await slices_of(kube, unique), key=lambda item: str(item["metadata"]["name"]))
    names = [device["name"] for item in in_order for device in item["spec"]["devices"]]
    (published,) = published_offline(spec, PublishingPolicy.EVERYTHING, {}, "uid")
    assert names == [item.name for item in published.devices]
    await kube.delete(NODE_INVENTORIES, unique)
    await kube.delete_collection(RESOURCE_SLICES, field_selector=f"spec.nodeName={unique}")


async def test_a_status_is_written_once_and_outlives_what_the_node_reports(kube: Kube, unique: str) -> None:
    """The server keeps all of it, a write of the spec does not touch it, and who reads it finds nothing to write."""
    gpus = [gpu(number, mig=mig(switchable=False)) for number in range(2)]
    node = await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": unique}})
    spec = inventory_spec(unique, gpus, registered=now())
    made = await kube.create(NODE_INVENTORIES, inventory_object(spec, node["metadata"]["uid"]))
    policy = PublishingPolicy.of({"mig": [{"mode": "Dynamic"}]})

    async def says() -> bool:
        return "status" in await kube.get(NODE_INVENTORIES, unique)

    async with publishing(kube, unique, Written(), policy):
        await until(says)
    before = await kube.get(NODE_INVENTORIES, unique)
    (limitation,) = before["status"]["limitations"]
    assert (limitation["rule"], limitation["reason"], len(limitation["gpus"])) == ("mig[0]", "ResetNeeded", 2)
    async with publishing(kube, unique, Written(), policy) as publisher:
        await publisher.first_pass.wait()
    assert await kube.get(NODE_INVENTORIES, unique) == before
    metadata = {**made["metadata"], "resourceVersion": before["metadata"]["resourceVersion"], "labels": {"a": "b"}}
    replaced = await kube.replace(NODE_INVENTORIES, {**made, "metadata": metadata})
    assert replaced["status"] == before["status"]
    await kube.delete(NODE_INVENTORIES, unique)
    await kube.delete_collection(RESOURCE_SLICES, field_selector=f"spec.nodeName={unique}")


OF_EVERY_KIND = PublishingPolicy.of(
    {
        "apiVersion": "dra.gpu/v1alpha1",
        "kind": "PublishingPolicy",
        "mig": [{"mode": "Dynamic", "computeInstances": ["1c.3g.40gb", "2c.3g.40gb"]}],
        "sharing": [
            {"strategy": "MPS", "replicas": 4},
            {"gpus": {"names": [gpu(1).name]}, "strategy": "MPS", "capacity": ["memory", "cores"]},
            {"gpus": {"names": [gpu(2).name]}, "strategy": "TimeSlicing", "unlimited": True},
            {"devices": "mig", "strategy": "TimeSlicing", "replicas": 2},
        ],
        "passthrough": [{}],
    },
    about="test",
)
DYNAMIC = PublishingPolicy(mig=[MigRule(mode="Dynamic")])
MODES = pytest.mark.parametrize(
    ("feature_gates", "count"),
    [
        ({}, 5),
        ({"DRAConsumableCapacity": False}, 5),
        ({"DRAPartitionableDevices": False, "DRADeviceTaints": False}, 1),
    ],
    ids=["everything", "no consumable capacity", "neither counters nor taints"],
)


@MODES
@pytest.mark.parametrize(
    "policy", slow_but([DYNAMIC, OF_EVERY_KIND], OF_EVERY_KIND), ids=["partitions", "everything at once"]
)
async def test_eight_gpus_of_every_kind_are_stored_as_published(
    api: Api, kube: Kube, unique: str, count: int, policy: PublishingPolicy, feature_gates: dict[str, bool]
) -> None:
    """Eight H100s, partitioned on demand, with shares and for virtual machines, as far as the server keeps it."""
    iommu = PassthroughFacts(iommu_group=7)
    xid = HealthFacts(healthy=False, conditions=[xid_condition(79, since="2026-01-01T00:00:00Z")])
    gpus = [gpu_of("h100-80", number, passthrough=iommu) for number in range(8)]
    if feature_gates == {}:
        gpus[5] = gpus[5].model_copy(update={"health": xid})
    node = await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": unique}})
    spec = inventory_spec(unique, gpus, registered=now())
    await kube.create(NODE_INVENTORIES, inventory_object(spec, node["metadata"]["uid"]))
    first, second = Written(), Written()

    async def complete() -> bool:
        return is_complete([observed_slice(obj) for obj in await slices_of(kube, unique)])

    async with publishing(kube, unique, first, policy):
        await until(complete)
    async with publishing(kube, unique, second, policy) as publisher:
        await publisher.first_pass.wait()
    assert (first.complaints, second.complaints, second.verbs) == ([], [], [])
    slices = await slices_of(kube, unique)
    if policy is DYNAMIC:
        # Before 1.35 counters lie in the slice of their devices, so each GPU that has some has a slice of its own.
        assert len(slices) == (8 if api.minor < 35 and count > 1 else count)
    devices = [device for item in slices for device in item["spec"].get("devices", ())]
    features = await server_features(kube, GPU_DRIVER, unique)
    wanted = described_devices(spec, policy, {}, GPU_DRIVER, features).devices
    assert {device["name"] for device in devices} == {device.name for device in wanted}
    assert any(device.get("taints") for device in devices) == (feature_gates == {})
    await kube.delete(NODE_INVENTORIES, unique)
    await kube.delete_collection(RESOURCE_SLICES, field_selector=f"spec.nodeName={unique}")


GATES = {
    "partitionable": "DRAPartitionableDevices",
    "consumable": "DRAConsumableCapacity",
    "taints": "DRADeviceTaints",
}


@pytest.mark.parametrize("feature_gates", [{}, *({gate: False} for gate in GATES.values())], ids=str)
async def test_a_probe_tells_what_the_server_keeps_and_leaves_nothing(
    api: Api, kube: Kube, unique: str, feature_gates: dict[str, bool]
) -> None:
    features = await server_features(kube, GPU_DRIVER, unique)
    assert {name: getattr(features, name) for name in GATES} == {
        name: feature_gates.get(gate, True) for name, gate in GATES.items()
    }
    assert features.counters_apart is (api.minor >= 35)
    assert await slices_of(kube, unique) == []


@pytest.mark.parametrize("feature_gates", [{}, {"DRAListTypeAttributes": True}], ids=["no lists", "lists"])
async def test_attributes_are_lists_where_the_server_stores_lists(
    api: Api, kube: Kube, unique: str, feature_gates: dict[str, bool]
) -> None:
    """Sixteen GPUs that all reach each other, on one slice; a publisher that starts later finds nothing to write."""
    if api.minor < 36 and feature_gates:
        pytest.skip("DRAListTypeAttributes came with Kubernetes 1.36")
    every = [gpu(number) for number in range(16)]
    links = {item.uuid: NvlinkFacts(links=18, peers=[other.uuid for other in every if other != item]) for item in every}
    gpus = [item.model_copy(update={"nvlink": links[item.uuid], "numa_node": 1}) for item in every]
    node = await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": unique}})
    spec = inventory_spec(unique, gpus, registered=now())
    await kube.create(NODE_INVENTORIES, inventory_object(spec, node["metadata"]["uid"]))
    first, second = Written(), Written()

    async def complete() -> bool:
        return len(await devices_of(kube, unique)) == len(gpus)

    async with publishing(kube, unique, first, list_attributes=True):
        await until(complete)
    async with publishing(kube, unique, second, list_attributes=True) as publisher:
        await publisher.first_pass.wait()
    assert (first.complaints, second.complaints, second.verbs) == ([], [], [])
    (item,) = await slices_of(kube, unique)
    for device in item["spec"]["devices"]:
        attributes = device["attributes"]
        assert attributes["resource.kubernetes.io/numaNode"] == ({"ints": [1]} if feature_gates else {"int": 1})
        peers = {"strings": sorted(item.uuid for item in every)} if feature_gates else None
        assert attributes.get("nvlinkPeers") == peers
    await kube.delete(NODE_INVENTORIES, unique)
    await kube.delete_collection(RESOURCE_SLICES, field_selector=f"spec.nodeName={unique}")


async def test_a_lease_is_taken_renewed_and_given_back(kube: Kube, namespace: str) -> None:
    election = LeaderElection(
        kube, namespace=namespace, name="controller", identity="one", times=LeaseTimes(3.0, 2.0, 0.05)
    )
    worked = asyncio.Event()

    async def work() -> None:
        worked.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(election.lead(work))
    await asyncio.wait_for(worked.wait(), PATIENCE_S)
    first = await kube.get(LEASES, "controller", namespace)

    async def renewed() -> bool:
        lease = await kube.get(LEASES, "controller", namespace)
        return bool(lease["spec"]["renewTime"] > first["spec"]["renewTime"])

    await until(renewed)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    spec = (await kube.get(LEASES, "controller", namespace))["spec"]
    assert (spec.get("holderIdentity", ""), spec["acquireTime"]) == ("", first["spec"]["acquireTime"])


@pytest.mark.parametrize("size", [1, 64])
async def test_names_of_nodes_may_be_long(kube: Kube, unique: str, size: int) -> None:
    """The server cuts generateName; slices are recognized all the same."""
    name = f"{unique}.{'n' * 60}.{'x' * size}.example.com"[:253] if size > 1 else unique
    node = await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name[:253]}})
    spec = inventory_spec(name, [gpu(0)], registered=now())
    await kube.create(NODE_INVENTORIES, inventory_object(spec, node["metadata"]["uid"]))
    written = Written()

    async def published() -> bool:
        return await devices_of(kube, name) == [gpu(0).name]

    async with publishing(kube, name, written):
        await until(published)
    async with publishing(kube, name, written) as publisher:
        await publisher.first_pass.wait()
    assert (written.verbs, written.complaints) == (["create"], [])
    await kube.delete(NODE_INVENTORIES, name)
    await kube.delete_collection(RESOURCE_SLICES, field_selector=f"spec.nodeName={name}")
