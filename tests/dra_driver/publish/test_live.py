"""GpuPolicies in a cluster: what they change, when, and what is written where: dra_driver/publish/live.py."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from support.inventories import gpu, inventory_spec
from support.late_watch import late
from support.objects import allocation, claim, result
from support.observed_api import ObservedApiServer
from support.publishing import Scene, publishing, settled
from support.shipped import create_definitions
from support.spans import Recorder

from dra_driver.api.gpu_settings import NodePolicy
from dra_driver.api.gpupolicy import GpuPolicy
from dra_driver.api.inventory import NodeInventorySpec
from dra_driver.api.meta import (
    CRDS,
    GPU_POLICIES,
    NAMESPACES,
    NODE_INVENTORIES,
    NODES,
    RESOURCE_CLAIMS,
    JsonObject,
    Resource,
)
from dra_driver.api.policy import PublishingPolicy
from dra_driver.features import Gates
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import MirrorChange, Watches
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER
from dra_driver.publish.decisions import decided
from dra_driver.publish.inventories import KeptInventory, kept_inventory
from dra_driver.publish.live import Changed, DecidedPolicies, LivePolicies, _Users
from dra_driver.publish.statuses import InventoryStatuses

A, B = gpu(0), gpu(1)
SHARED = {"sharing": [{"strategy": "TimeSlicing", "unlimited": True}]}


@pytest.fixture
async def scene(api_server: ObservedApiServer, kube: Kube) -> Scene:
    await create_definitions(kube)
    labels = {"resource.kubernetes.io/admin-access": "true"}
    await kube.create(NAMESPACES, {"metadata": {"name": "team", "labels": labels}})
    return Scene(api_server, kube)


def live(watches: Watches, changed: Changed) -> LivePolicies:
    return LivePolicies(watches, GPU_DRIVER, Gates.DEFAULT, changed)


def live_on_node(watches: Watches, changed: Changed) -> LivePolicies:
    installed = [GpuPolicy.read({"metadata": {"name": "installed-x"}, "spec": {"attributes": {"x": {"int": 1}}}})]
    return LivePolicies(watches, GPU_DRIVER, Gates.DEFAULT, changed, "node-a", installed)


async def applied(scene: Scene, name: str, **spec: Any) -> None:
    obj = {"apiVersion": "dra.gpu/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": name}, "spec": spec}
    await scene.kube.create(GPU_POLICIES, obj)


async def allocated(scene: Scene, name: str, device: str, *, admin: bool = False) -> None:
    await scene.kube.create(RESOURCE_CLAIMS, claim(name, "team"))
    more = {"adminAccess": True} if admin else {}
    status = {"allocation": allocation(result(device, pool="node-a", **more))}
    await scene.kube.merge_patch(RESOURCE_CLAIMS, name, {"status": status}, namespace="team", subresource="status")


async def devices(scene: Scene) -> list[JsonObject]:
    return [device for item in await scene.slices() for device in item["spec"].get("devices") or ()]


async def tainted(scene: Scene, *names: str) -> bool:
    keys = {device["name"]: [taint["key"] for taint in device.get("taints") or ()] for device in await devices(scene)}
    return [name for name, known in keys.items() if known == ["gpu.nvidia.com/policy"]] == list(names)


async def sharable(scene: Scene, *names: str) -> bool:
    return [each["name"] for each in await devices(scene) if each.get("allowMultipleAllocations")] == list(names)


async def waiting(scene: Scene) -> Sequence[str]:
    policy = (await scene.status("node-a")).policy
    return [] if policy is None else [f"{change.gpu} {' '.join(change.claims)}" for change in policy.waiting]


async def test_a_policy_is_followed_live_and_undone_when_it_goes(scene: Scene) -> None:
    async with settled(scene, A, B, policies=live):
        await applied(scene, "no-b", gpus={"uuids": [B.uuid]}, publish=False)
        await scene.publishes(node_a=[A.name])
        await scene.kube.delete(GPU_POLICIES, "no-b")
        await scene.publishes(node_a=[A.name, B.name])


class SlowAnswers(Kube):
    """The watch shows a write before it is answered."""

    async def merge_patch(self, resource: Resource, name: str, patch: JsonObject, **more: Any) -> JsonObject:
        stored = await super().merge_patch(resource, name, patch, **more)
        await asyncio.sleep(0.3 if resource is NODE_INVENTORIES else 0.0)
        return stored


@pytest.mark.parametrize("client", [Kube, SlowAnswers])
async def test_a_change_for_a_node_is_one_look_at_it(scene: Scene, client: type[Kube]) -> None:
    """Its own write of the status is no news, which counts in a cluster of thousands of nodes."""
    recorder = Recorder()
    async with settled(scene, A, policies=live, client=client, tracer=recorder.tracer):
        await scene.rests()
        before = len(recorder.spans)
        await applied(scene, "shared", **SHARED)
        await scene.until(lambda: sharable(scene, A.name))
        await scene.rests()
    assert [span.name for span in recorder.spans[before:]].count("publish") == 1


async def test_what_a_node_reports_before_a_write_is_answered_is_published(scene: Scene) -> None:
    async with settled(scene, A, policies=live, client=SlowAnswers):
        await applied(scene, "also", attributes={"rack": {"string": "r1"}})
        await scene.until(lambda: knows(scene, "also"))
        await scene.reports("node-a", A, B)
        await scene.publishes(node_a=[A.name, B.name])


async def knows(scene: Scene, name: str) -> bool:
    policy = (await scene.status("node-a")).policy
    return policy is not None and name in policy.gpus[0].policies


async def test_a_change_while_the_watch_is_behind_is_made_when_it_has_caught_up(scene: Scene) -> None:
    async with settled(scene, A, policies=live, client=late(NODE_INVENTORIES, 0.3)):
        await applied(scene, "also", attributes={"rack": {"string": "r1"}})
        await scene.until(lambda: has_attributes(scene, "rack"))
        await applied(scene, "more", attributes={"row": {"string": "7"}})
        await scene.until(lambda: has_attributes(scene, "rack", "row"))


async def has_attributes(scene: Scene, *names: str) -> bool:
    return all(device["attributes"].keys() >= set(names) for device in await devices(scene))


async def test_a_policy_of_the_installation_holds_before_it_is_made(scene: Scene) -> None:
    """Otherwise an upgrade publishes for a moment what it withholds."""
    withheld = [GpuPolicy.read({"metadata": {"name": "installed-x"}, "spec": {"publish": False, "priority": -5}})]

    def source(watches: Watches, changed: Changed) -> LivePolicies:
        return LivePolicies(watches, GPU_DRIVER, Gates.DEFAULT, changed, installed=withheld)

    await scene.node("node-a", A)
    async with publishing(scene, policies=source):
        await scene.rests()
        assert scene.writes() == []
        await applied(scene, "mine", publish=True)
        await scene.publishes(node_a=[A.name])


async def test_labels_of_nodes_select(scene: Scene) -> None:
    await scene.node("node-a", A, pool="ml")
    await scene.node("node-b", B)
    async with publishing(scene, policies=live):
        await scene.publishes(node_a=[A.name], node_b=[B.name])
        await applied(scene, "ml", nodes={"labelSelector": {"matchLabels": {"pool": "ml"}}}, publish=False)
        await scene.publishes(node_b=[B.name])
        await scene.kube.merge_patch(NODES, "node-b", {"metadata": {"labels": {"pool": "ml"}}})
        await scene.publishes()


async def test_the_plugin_learns_what_holds_before_anybody_can_be_given_a_device(scene: Scene) -> None:
    async with settled(scene, A, policies=live):
        await applied(scene, "also", attributes={"rack": {"string": "r1"}})
        await applied(scene, "shared", priority=1, **SHARED)
        await scene.until(lambda: sharable(scene, A.name))
        policy = (await scene.status("node-a")).policy
        assert policy is not None and [shared.strategy for shared in policy.gpus[0].sharing] == ["TimeSlicing"]
        offered = [(each.policy, each.kind, each.devices) for each in policy.offered]
        assert offered == [("also", "gpu-share", 1), ("shared", "gpu-share", 1)]


@pytest.mark.parametrize("spec", [SHARED, {"publish": False}])
async def test_slices_wait_until_the_plugin_can_learn_what_holds(scene: Scene, spec: JsonObject) -> None:
    async with settled(scene, A, policies=live):
        scene.writes()
        scene.server.fail_next("PATCH", "/nodeinventories/node-a/status", 403, times=1000)
        published_at = dict(scene.publisher._published_at)

        async def refused() -> bool:
            return scene.server._faults[0].times < 1000

        await applied(scene, "new", **spec)
        await scene.until(refused)
        await scene.rests()
        assert scene.writes() == []
        assert scene.publisher._published_at == published_at, "the slices are not what the policy wants"
        scene.server.clear_faults()
        await scene.kube.merge_patch(NODES, "node-a", {"metadata": {"labels": {"any": "change"}}})
        if spec is SHARED:
            await scene.until(lambda: sharable(scene, A.name))
        else:
            await scene.publishes()


@pytest.mark.parametrize("source", [live, live_on_node])
async def test_a_gpu_in_use_changes_when_its_claim_is_gone(
    scene: Scene, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_driver.publish.live._LOOK_AGAIN_S", 0.05)
    made: list[LivePolicies] = []

    def made_policies(kube: Kube, changed: Changed) -> LivePolicies:
        made.append(source(kube, changed))
        return made[-1]

    async with settled(scene, A, B, policies=made_policies, node_name="node-a" if source is live_on_node else None):
        await allocated(scene, "one", A.name)
        await allocated(scene, "admin", B.name, admin=True)
        await applied(scene, "shared", **SHARED)
        await scene.until(lambda: sharable(scene, B.name))
        await scene.until(lambda: tainted(scene, A.name))
        assert await waiting(scene) == [f"{A.name} team/one"]
        await scene.kube.delete(RESOURCE_CLAIMS, "one", namespace="team")
        await scene.until(lambda: sharable(scene, A.name, B.name))
        await scene.until(lambda: tainted(scene))
        assert await waiting(scene) == []
        assert made[0]._waiting == set(), "changes of claims are looked at no more"


async def test_a_status_that_was_not_written_is_no_answer(scene: Scene) -> None:
    """Slices that followed it would be there before the plugin knows what they are."""
    await scene.node("node-a", A)
    statuses = InventoryStatuses(scene.kube, GPU_DRIVER, None, lambda: datetime.now(UTC))

    async def current() -> KeptInventory:
        return kept_inventory(await scene.kube.get(NODE_INVENTORIES, "node-a"))

    async def says(statuses: InventoryStatuses, inventory: KeptInventory, *, publish: bool) -> bool:
        return await statuses.write(inventory, inventory.status(), (), NodePolicy(publish=publish))

    old = await current()
    assert await says(statuses, old, publish=True)
    assert not await says(statuses, old, publish=False), "it waits until the watch shows the first"
    assert await says(statuses, await current(), publish=True), "it says so already"
    again = InventoryStatuses(scene.kube, GPU_DRIVER, None, lambda: datetime.now(UTC))
    assert not await says(again, old, publish=False), "another one has written meanwhile"
    policy = (await scene.status("node-a")).policy
    assert policy is not None and policy.publish


async def test_facts_about_which_nothing_new_is_decided_are_published(scene: Scene) -> None:
    await scene.node("node-a", A)
    await applied(scene, "shared", **SHARED)
    async with publishing(scene, policies=live):
        await scene.until(lambda: sharable(scene, A.name))
        await scene.rests()
        (before,) = await devices(scene)
        await scene.reports("node-a", A.model_copy(update={"memory_bytes": 2**34}))

        async def other() -> bool:
            (device,) = await devices(scene)
            return device["capacity"]["memory"] != before["capacity"]["memory"]

        await scene.until(other)


async def test_a_restarted_publisher_keeps_what_is_in_use(scene: Scene) -> None:
    async with settled(scene, A, policies=live):
        pass
    await allocated(scene, "one", A.name)
    await applied(scene, "gone", publish=False)
    async with publishing(scene, policies=live):
        await scene.until(lambda: tainted(scene, A.name))
        await scene.publishes(node_a=[A.name])


async def test_a_node_that_publishes_for_itself_lists_claims_only_when_a_policy_changes_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists: list[None] = []
    read = _Users.read

    async def counting(users: _Users) -> None:
        lists.append(None)
        await read(users)

    monkeypatch.setattr(_Users, "read", counting)
    async with settled(scene, A, policies=live_on_node, node_name="node-a"):
        await scene.kube.merge_patch(NODES, "node-a", {"metadata": {"labels": {"pool": "ml"}}})
        await scene.rests()
        assert lists == []
        await applied(scene, "shared", **SHARED)
        await scene.until(lambda: sharable(scene, A.name))
        assert lists


def test_a_policy_whose_status_alone_changes_is_not_looked_at(kube: Kube) -> None:
    selections: list[Callable[[str, Mapping[str, str]], bool]] = []
    policies = live(Watches(kube), Changed(selections.append, lambda pool: None))
    plain, other = (
        GpuPolicy.read({"metadata": {"name": "p"}, "spec": {"nodes": {"names": [node]}}})
        for node in ("node-a", "node-b")
    )
    policies._policy_changed(MirrorChange(("", "p"), plain, plain.model_copy()))
    assert selections == []
    policies._policy_changed(MirrorChange(("", "p"), plain, other))
    (selected,) = selections
    assert [node for node in ("node-a", "node-b", "node-c") if selected(node, {})] == ["node-a", "node-b"]


def test_users_of_a_node_are_known_by_its_devices_and_channels(kube: Kube) -> None:
    pools: list[str] = []
    users = _Users(Watches(kube), GPU_DRIVER, pools.append, watched=True)
    assert (users.of("node-a"), users.channels("node-a")) == ({}, 0)
    gpus, domain = ((GPU_DRIVER, "node-a", A.name),), ((COMPUTE_DOMAIN_DRIVER, "node-a", "channel-4"),)
    names = [f"claim-{number}" for number in range(8)]
    for name in reversed(names):
        users._saw(MirrorChange(("team", name), None, gpus))
    users._saw(MirrorChange(("team", "domain"), None, domain))
    users._saw(MirrorChange(("team", "daemon"), None, ((COMPUTE_DOMAIN_DRIVER, "node-a", "daemon-7"),)))
    assert users.of("node-a") == {A.name: [f"team/{name}" for name in names]}
    assert users.channels("node-a") == 5
    users._saw(MirrorChange(("team", "domain"), domain, None))
    assert users.channels("node-a") == 0
    users._saw(MirrorChange(("team", names[0]), gpus, ()))
    assert users.of("node-a") == {A.name: [f"team/{name}" for name in names[1:]]}
    for name in names[1:]:
        users._saw(MirrorChange(("team", name), gpus, ()))
    assert (GPU_DRIVER, "node-a") not in users._by_pool, "nodes that are gone leave nothing"
    assert pools == ["node-a"] * 19


async def test_the_publisher_of_domains_waits_until_something_is_decided() -> None:
    facts = NodeInventorySpec.of(inventory_spec("node-a", [A]))
    assert await DecidedPolicies().decide(facts, None, {}) is None
    decision = await DecidedPolicies().decide(facts, NodePolicy(publish=False), {})
    assert decision is not None and not decision.rules.publishes_node("node-a", {})


async def test_a_node_about_which_nothing_is_decided_has_no_pool(scene: Scene) -> None:
    await scene.node("node-a", A)
    async with publishing(scene, policies=lambda watches, changed: DecidedPolicies()):
        await scene.rests()
        assert scene.publisher.pool_states() == []
        policy = decided(PublishingPolicy.EVERYTHING, (), NodeInventorySpec.of(inventory_spec("node-a", [A])), {})
        status = {"status": {"policy": policy.to_wire()}}
        await scene.kube.merge_patch(NODE_INVENTORIES, "node-a", status, subresource="status")
        await scene.publishes(node_a=[A.name])


async def test_a_policy_that_makes_no_sense_changes_nothing(scene: Scene) -> None:
    """An API server refuses it; one with another definition might not."""
    await scene.node("node-a", A)
    crd = (await scene.kube.list(CRDS)).items
    async with publishing(scene, policies=live):
        await scene.publishes(node_a=[A.name])
        await _lax(scene.kube, crd)
        await applied(scene, "odd", mig={"mode": "Sideways"})
        await applied(scene, "withholds", publish=False)
        await scene.node("node-b", B)
        await scene.publishes(node_a=[A.name])
        await scene.kube.delete(GPU_POLICIES, "odd")
        await scene.publishes()


async def test_a_stable_cluster_is_left_alone(scene: Scene) -> None:
    await scene.node("node-a", A, B)
    await applied(scene, "shared", attributes={"rack": {"string": "r1"}}, **SHARED)
    async with publishing(scene, policies=live):
        await scene.until(lambda: sharable(scene, A.name, B.name))
        await scene.rests()
    before = await scene.kube.get(NODE_INVENTORIES, "node-a")
    async with publishing(scene, policies=live):
        await scene.rests()
    assert await scene.kube.get(NODE_INVENTORIES, "node-a") == before


async def _lax(kube: Kube, definitions: Sequence[JsonObject]) -> None:
    """Every GpuPolicy is accepted from now on."""
    (crd,) = (definition for definition in definitions if definition["spec"]["names"]["kind"] == "GpuPolicy")
    for version in crd["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"]["properties"]["spec"] = {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
        }
    await kube.replace(CRDS, crd)
