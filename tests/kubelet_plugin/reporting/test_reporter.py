"""The NodeInventory in the cluster stays true, and is written only when it is not."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.background import background
from support.mig import gpu_of
from support.nodes import Node, a_node
from support.observed_api import ObservedApiServer
from support.rows import slow_but
from support.shipped import create_definitions

from docs.from_code.crds import FILE
from dra_driver.api.inventory import (
    MOST_BYTES,
    HealthCondition,
    HealthFacts,
    NodeInventory,
    NodeInventorySpec,
    Problem,
    confirmation_annotation,
)
from dra_driver.api.meta import CRDS, NODE_INVENTORIES, NODES, JsonObject
from dra_driver.errors import Gone, NotFound
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.kube.watch import Backoff
from kubelet_plugin.facts.discovery import Discovery
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.reporting.reporter import Reporter, wanted_spec

NODE = "node-a"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


class CountingKube(Kube):
    """The client, and what it was asked to write and to read."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.writes: list[str] = []
        self.reads: list[str] = []

    async def create(self, *args: Any, **kwargs: Any) -> JsonObject:
        self.writes.append("create")
        return await super().create(*args, **kwargs)

    async def replace(self, *args: Any, **kwargs: Any) -> JsonObject:
        self.writes.append("replace")
        return await super().replace(*args, **kwargs)

    async def get(self, *args: Any, **kwargs: Any) -> JsonObject:
        self.reads.append("get")
        return await super().get(*args, **kwargs)


@dataclass
class Scene:
    node: Node
    kube: CountingKube
    discovery: Discovery
    reporter: Reporter
    api_server: ObservedApiServer

    async def inventory(self) -> NodeInventory:
        return NodeInventory.of(await Kube.get(self.kube, NODE_INVENTORIES, NODE))

    async def becomes(self, true: Callable[[NodeInventory], bool]) -> NodeInventory:
        """The inventory, as soon as `true` holds for it."""

        async def attempt() -> NodeInventory | None:
            try:
                inventory = await self.inventory()
            except NotFound:
                return None
            return inventory if true(inventory) else None

        return await soon(attempt)


async def soon[T](attempt: Callable[[], Awaitable[T | None]]) -> T:
    for _ in range(1000):
        if (outcome := await attempt()) is not None:
            return outcome
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen within 10 s")


async def at_rest() -> None:
    """Long enough for a write that should not happen to have happened."""
    await asyncio.sleep(0.15)


def quick() -> Backoff:
    return Backoff(first_s=0.01, longest_s=0.05)


async def prepare_cluster(kube: Kube) -> str:
    """The CRD and the Node object; returns the Node's UID."""
    await create_definitions(kube, FILE)
    node = await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    return str(node["metadata"]["uid"])


@asynccontextmanager
async def running(reporter: Reporter) -> AsyncIterator[None]:
    async with background(reporter.run()):
        yield


@pytest.fixture
async def scene(api_server: ObservedApiServer, kube: Kube, tmp_path: Path) -> AsyncIterator[Scene]:
    """A DGX H100 whose inventory is in the cluster already, with a running reporter."""
    node = a_node(tmp_path, "dgx-h100")
    await prepare_cluster(kube)
    async with CountingKube(Endpoint(server=api_server.url)) as counting:
        discovery = node.discovery()
        await discovery.observe()
        reporter = Reporter(counting, NODE, discovery, retry=quick(), repair=quick())
        async with running(reporter):
            scene = Scene(node, counting, discovery, reporter, api_server)
            await scene.becomes(lambda inventory: True)
            yield scene


async def test_the_inventory_is_created_with_all_facts_and_is_owned_by_the_node(scene: Scene, kube: Kube) -> None:
    inventory = await scene.inventory()
    assert len(inventory.spec.gpus) == 8
    assert inventory.spec.summary.healthy == "8/8"
    (owner,) = inventory.metadata.owner_references
    node = await kube.get(NODES, NODE)
    assert (owner.api_version, owner.kind, owner.name, owner.uid) == ("v1", "Node", NODE, node["metadata"]["uid"])


async def test_at_rest_nothing_is_written_and_nothing_read(scene: Scene) -> None:
    await at_rest()
    reads = len(scene.kube.reads)
    for _ in range(3):
        await scene.discovery.observe()
    await at_rest()
    assert scene.kube.writes == ["create"]
    assert len(scene.kube.reads) == reads


async def test_a_changed_fact_is_one_write(scene: Scene) -> None:
    await at_rest()
    scene.node.host.lose_gpu(3)
    await scene.discovery.observe()
    inventory = await scene.becomes(lambda inventory: len(inventory.spec.gpus) == 7)
    assert [problem.reason for problem in inventory.spec.problems] == ["GpuIsLost"]
    assert inventory.spec.summary.healthy == "7/8"
    await at_rest()
    assert scene.kube.writes == ["create", "replace"]


async def test_a_registration_is_one_write_and_its_time_only_grows(scene: Scene) -> None:
    scene.reporter.registered("gpu.nvidia.com", NOON)
    first = await scene.becomes(lambda inventory: len(inventory.spec.registrations) == 1)
    assert first.spec.registrations[0].time == "2026-11-21T12:00:00.000000Z"
    scene.reporter.registered("gpu.nvidia.com", NOON - timedelta(hours=1))
    second = await scene.becomes(lambda inventory: inventory.spec.registrations != first.spec.registrations)
    assert second.spec.registrations[0].time == "2026-11-21T12:00:00.000001Z"
    await at_rest()
    assert scene.kube.writes == ["create", "replace", "replace"]


async def test_a_publisher_that_doubts_the_time_gets_a_newer_one_once(scene: Scene, kube: Kube) -> None:
    scene.reporter.registered("gpu.nvidia.com", NOON)
    first = await scene.becomes(lambda inventory: len(inventory.spec.registrations) == 1)
    doubt = {confirmation_annotation("gpu.nvidia.com"): first.spec.registrations[0].time}
    await kube.merge_patch(NODE_INVENTORIES, NODE, {"metadata": {"annotations": doubt}})
    second = await scene.becomes(lambda inventory: inventory.spec.registrations != first.spec.registrations)
    assert second.spec.registrations[0].time > first.spec.registrations[0].time
    await at_rest()
    assert scene.kube.writes == ["create", "replace", "replace"]


async def test_a_plugin_that_kubelet_does_not_know_confirms_nothing(scene: Scene, kube: Kube) -> None:
    """The time in the object is that of another process, which may be dead."""
    registration = {"driver": "gpu.nvidia.com", "time": "2026-11-21T12:00:00.000000Z"}
    annotations = {confirmation_annotation("gpu.nvidia.com"): registration["time"]}
    await kube.merge_patch(
        NODE_INVENTORIES, NODE, {"metadata": {"annotations": annotations}, "spec": {"registrations": [registration]}}
    )
    await at_rest()
    assert [shown.time for shown in (await scene.inventory()).spec.registrations] == [registration["time"]]


@pytest.mark.parametrize("time", ["", "soon", "2026-11-21", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
async def test_a_time_that_makes_no_sense_is_no_heartbeat(scene: Scene, kube: Kube, time: str) -> None:
    registrations = [{"driver": "gpu.nvidia.com", "time": time}]
    await kube.merge_patch(NODE_INVENTORIES, NODE, {"spec": {"registrations": registrations}})
    await scene.becomes(lambda inventory: not inventory.spec.registrations)


async def test_a_deleted_inventory_comes_back(scene: Scene, kube: Kube) -> None:
    before = await scene.inventory()
    await kube.delete(NODE_INVENTORIES, NODE)
    after = await scene.becomes(lambda inventory: inventory.metadata.uid != before.metadata.uid)
    assert after.spec == before.spec


class DeafKube(CountingKube):
    """Watches hear nothing, and collections can be listed while `gate` is open only."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.gate = asyncio.Event()
        self.gate.set()

    async def pages(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        await self.gate.wait()
        async for page in super().pages(*args, **kwargs):
            yield page

    async def watch(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        self.gate.clear()
        raise Gone("the position expired", status=410)
        yield


async def test_an_inventory_that_came_and_went_unheard_comes_back(
    api_server: ObservedApiServer, kube: Kube, tmp_path: Path
) -> None:
    node = a_node(tmp_path, "t4")
    await prepare_cluster(kube)
    discovery = node.discovery()
    await discovery.observe()
    async with DeafKube(Endpoint(server=api_server.url)) as deaf:
        reporter = Reporter(deaf, NODE, discovery, retry=quick(), repair=quick())
        async with running(reporter):
            scene = Scene(node, deaf, discovery, reporter, api_server)
            before = await scene.becomes(lambda inventory: True)
            await kube.delete(NODE_INVENTORIES, NODE)
            deaf.gate.set()
            await scene.becomes(lambda inventory: inventory.metadata.uid != before.metadata.uid)


async def test_what_somebody_else_wrote_is_put_right_and_their_labels_stay(scene: Scene, kube: Kube) -> None:
    before = await scene.inventory()
    patch = {"metadata": {"labels": {"team": "a"}}, "spec": {"gpus": [], "bootID": "nonsense"}}
    await kube.merge_patch(NODE_INVENTORIES, NODE, patch)
    after = await scene.becomes(lambda inventory: inventory.spec == before.spec)
    assert after.metadata.labels == {"team": "a"}


async def test_a_removed_owner_reference_is_put_back(scene: Scene, kube: Kube) -> None:
    before = await scene.inventory()
    await kube.merge_patch(NODE_INVENTORIES, NODE, {"metadata": {"ownerReferences": None}})
    await scene.becomes(lambda inventory: inventory.metadata.owner_references == before.metadata.owner_references)


async def test_an_alteration_again_and_again_is_repaired_ever_more_slowly(
    api_server: ObservedApiServer, kube: Kube, tmp_path: Path
) -> None:
    node = a_node(tmp_path, "t4")
    await prepare_cluster(kube)
    discovery = node.discovery()
    await discovery.observe()
    waits: list[float] = []

    class Recorded(Backoff):
        def next_s(self, at_least_s: float = 0.0) -> float:
            waits.append(super().next_s(at_least_s))
            return waits[-1]

    async with CountingKube(Endpoint(server=api_server.url)) as counting:
        reporter = Reporter(counting, NODE, discovery, retry=quick(), repair=Recorded(first_s=0.004, longest_s=9))
        async with running(reporter):
            scene = Scene(node, counting, discovery, reporter, api_server)
            await scene.becomes(lambda inventory: True)
            for _ in range(4):
                await kube.merge_patch(NODE_INVENTORIES, NODE, {"spec": {"bootID": "nonsense"}})
                await scene.becomes(lambda inventory: inventory.spec.boot_id != "nonsense")
    assert len(waits) == 4
    assert waits[2] > waits[0] and waits[3] > waits[1]


async def test_the_api_server_going_away_ends_nothing(scene: Scene) -> None:
    await scene.api_server.stop()
    scene.node.host.lose_gpu(0)
    await scene.discovery.observe()
    await at_rest()
    await scene.api_server.start(port=int(scene.api_server.url.rpartition(":")[2]))
    await scene.becomes(lambda inventory: len(inventory.spec.gpus) == 7)


@pytest.mark.parametrize("status", slow_but([409, 429, 500, 503], 409, 429))
async def test_a_refused_write_is_tried_again(scene: Scene, status: int) -> None:
    scene.api_server.fail_next("PUT", ".*nodeinventories.*", status, 1)
    scene.node.host.lose_gpu(0)
    await scene.discovery.observe()
    await scene.becomes(lambda inventory: len(inventory.spec.gpus) == 7)


async def test_without_its_node_there_is_no_inventory_and_few_complaints(
    api_server: ObservedApiServer, kube: Kube, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = a_node(tmp_path, "t4")
    await create_definitions(kube, FILE)
    discovery = node.discovery()
    await discovery.observe()
    async with CountingKube(Endpoint(server=api_server.url)) as counting:
        reporter = Reporter(counting, NODE, discovery, retry=quick(), repair=quick())
        async with running(reporter):
            await soon_true(lambda: len(counting.reads) > 4)
            assert capsys.readouterr().out.count("cannot be kept true") == 1
            await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
            await Scene(node, counting, discovery, reporter, api_server).becomes(lambda inventory: True)


async def soon_true(true: Callable[[], bool]) -> None:
    async def attempt() -> bool | None:
        return true() or None

    await soon(attempt)


async def test_a_recreated_node_owns_a_new_inventory(scene: Scene, kube: Kube) -> None:
    """The garbage collector removes the object of the node that is gone."""
    await kube.delete(NODES, NODE)
    node = await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    uid = node["metadata"]["uid"]
    await scene.becomes(lambda inventory: [owner.uid for owner in inventory.metadata.owner_references] == [uid])


async def test_two_plugins_of_one_node_do_not_fight_and_both_registrations_count(scene: Scene) -> None:
    async with CountingKube(Endpoint(server=scene.api_server.url)) as other_kube:
        discovery = scene.node.discovery()
        await discovery.observe()
        other = Reporter(other_kube, NODE, discovery, retry=quick(), repair=quick())
        async with running(other):
            await at_rest()
            assert other_kube.writes == []
            scene.reporter.registered("gpu.nvidia.com", NOON)
            await scene.becomes(lambda inventory: len(inventory.spec.registrations) == 1)
            other.registered("gpu.nvidia.com", NOON + timedelta(seconds=1))
            await scene.becomes(lambda inventory: inventory.spec.registrations[0].time > "2026-11-21T12:00:00.5")
            await at_rest()
            assert (scene.kube.writes, other_kube.writes) == (["create", "replace"], ["replace"])


async def test_a_damaged_registration_in_the_object_is_no_sign_of_life(scene: Scene, kube: Kube) -> None:
    registrations = [
        {"driver": "gpu.nvidia.com", "time": "9999-12-31T23:59:59.999999Z"},
        {"driver": "other", "time": "yesterday"},
    ]
    await kube.merge_patch(NODE_INVENTORIES, NODE, {"spec": {"registrations": registrations}})
    scene.reporter.registered("gpu.nvidia.com", NOON)
    after = await scene.becomes(lambda inventory: len(inventory.spec.registrations) == 1)
    assert after.spec.registrations[0].time == "2026-11-21T12:00:00.000000Z"


async def test_an_older_definition_that_drops_fields_is_not_written_to_for_ever(
    api_server: ObservedApiServer, kube: Kube, tmp_path: Path
) -> None:
    crd = yaml.safe_load(FILE.read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["gpus"]["items"]["properties"]["serial"]
    await kube.create(CRDS, crd)
    await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    node = a_node(tmp_path, "t4")
    discovery = node.discovery()
    await discovery.observe()
    async with CountingKube(Endpoint(server=api_server.url)) as counting:
        reporter = Reporter(counting, NODE, discovery, retry=quick(), repair=quick())
        async with running(reporter):
            scene = Scene(node, counting, discovery, reporter, api_server)
            inventory = await scene.becomes(lambda inventory: True)
            assert {gpu.serial for gpu in inventory.spec.gpus} == {None}
            await at_rest()
            node.host.lose_gpu(0)
            await discovery.observe()
            await scene.becomes(lambda inventory: len(inventory.spec.gpus) == 3)
            await at_rest()
            assert counting.writes == ["create", "replace"]


@given(times=st.dictionaries(st.text(min_size=1), st.datetimes(timezones=st.just(UTC)), max_size=4))
def test_the_same_facts_and_registrations_give_the_same_bytes_in_any_order(times: dict[str, datetime]) -> None:
    facts = NodeFacts("boot", None, (), ())
    backwards = dict(reversed(times.items()))
    assert wanted_spec(NODE, facts, times) == wanted_spec(NODE, facts, backwards)
    assert str(wanted_spec(NODE, facts, times)) == str(wanted_spec(NODE, facts, backwards))


@pytest.mark.parametrize(
    "change",
    [
        {"spec": None},
        {"spec": {"registrations": 7}},
        {"spec": {"registrations": ["x", 7, None, {}, {"time": 7, "driver": "d"}]}},
        {"metadata": {"ownerReferences": None}},
        {"metadata": {"ownerReferences": [], "annotations": None}},
    ],
    ids=str,
)
async def test_an_inventory_that_no_api_server_stores_is_replaced(scene: Scene, change: JsonObject) -> None:
    """A proxy may answer anything that has the shape of an object. Once, it ended the plugin."""
    stored = await Kube.get(scene.kube, NODE_INVENTORIES, NODE)
    metadata = {**stored["metadata"], **change.get("metadata", {})}
    scene.reporter._know({**stored, **change, "metadata": metadata})
    scene.reporter.registered("gpu.nvidia.com", NOON)
    inventory = await scene.becomes(lambda inventory: inventory.spec.registrations != [])
    assert len(inventory.spec.gpus) == 8


def sick(gpus: int, conditions: int, problems: int = 0) -> NodeFacts:
    """With the longest messages, in a script of three bytes for a character."""
    gpu = gpu_of("h100-80", 0)
    text = "\u8a9e" * 1024
    xid = HealthCondition(type="Xid", severity="Critical", message=text, since="2026-01-01T00:00:00Z")
    xids = [xid.model_copy(update={"value": str(number)}) for number in range(conditions)]
    health = HealthFacts(healthy=False, conditions=xids)
    named = [gpu.model_copy(update={"pci_bus_id": f"0000:{n:02x}:00.0", "health": health}) for n in range(gpus)]
    unread = [Problem(subject=f"GPU at index {number}", reason="GpuIsLost", message=text) for number in range(problems)]
    return NodeFacts("boot", None, tuple(named), tuple(unread))


def test_an_inventory_that_would_be_too_large_keeps_all_that_a_policy_decides_by() -> None:
    spec = NodeInventorySpec.of(wanted_spec(NODE, sick(8, 64), {}))
    assert [len(gpu.health.conditions) for gpu in spec.gpus] == [64] * 8
    (problem,) = spec.problems
    assert (problem.subject, problem.reason) == ("NodeInventory", "TooLarge")
    assert problem.message == "An inventory has at most 768 KiB. Left out: the ends of health messages."


@pytest.mark.parametrize(("gpus", "conditions", "problems"), [(64, 64, 128), (70, 1, 0), (1, 0, 400)])
def test_whatever_a_node_has_its_inventory_is_bounded(gpus: int, conditions: int, problems: int) -> None:
    wire = wanted_spec(NODE, sick(gpus, conditions, problems), {"gpu.nvidia.com": NOON})
    assert len(json.dumps(wire, ensure_ascii=False).encode()) <= MOST_BYTES
    spec = NodeInventorySpec.of(wire)
    assert spec.problems[0].reason == "TooLarge"
    if left_out := gpus - len(spec.gpus):
        named = f"{left_out} of {gpus} GPUs, which are not offered: 0000:{len(spec.gpus):02x}:00.0"
        assert named in spec.problems[0].message
    if problems > len(spec.problems):
        assert f"{problems - len(spec.problems) + 1} problems" in spec.problems[0].message


async def test_a_registered_plugin_gives_a_sign_of_life_when_a_publisher_asks_for_it(scene: Scene) -> None:
    """Once per question; an outdated question and one about a driver that is not registered here are not answered."""
    scene.reporter.registered("gpu.nvidia.com", NOON)
    before = await scene.becomes(lambda inventory: bool(inventory.spec.registrations))
    asked = before.spec.registrations[0].time
    annotations = {
        confirmation_annotation("gpu.nvidia.com"): asked,
        confirmation_annotation("compute-domain.nvidia.com"): asked,
    }
    await scene.kube.merge_patch(NODE_INVENTORIES, NODE, {"metadata": {"annotations": annotations}})
    after = await scene.becomes(lambda inventory: inventory.spec.registrations[0].time != asked)
    assert after.spec.registrations[0].time > asked
    assert len(after.spec.registrations) == 1
    await at_rest()
    assert (await scene.inventory()).metadata.resource_version == after.metadata.resource_version
