"""The cluster's slices become what inventories and policy say: with the fewest writes, and for plugins that live."""

import asyncio
import random
from collections.abc import AsyncGenerator
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
from support.inventories import gpu, inventory_object, inventory_spec, mig
from support.late_watch import late
from support.observed_api import ObservedApiServer
from support.publishing import LONG_AGO, A, B, Scene, at_rest, now, publishing, settled
from support.shipped import create_definitions
from support.spans import Recorder

from docs.from_code.crds import FILE
from dra_driver.api.inventory import (
    ComputeInstanceFacts,
    GpuFacts,
    GpuInstanceFacts,
    HealthFacts,
    MigFacts,
)
from dra_driver.api.meta import NODE_INVENTORIES, NODES, RESOURCE_SLICES, JsonObject, Resource
from dra_driver.api.policy import MigRule, PublishingPolicy
from dra_driver.devices.health import xid_condition
from dra_driver.errors import ClusterError, Rejected
from dra_driver.kube.client import Kube, Listing
from dra_driver.names import GPU_DRIVER
from dra_driver.publish import pools
from dra_driver.publish.policy_file import decode_policy
from dra_driver.publish.pools import PoolPublisher
from dra_driver.slices.diff import DeleteSlice

PATIENCE_S = 10.0


@pytest.fixture
async def scene(api_server: ObservedApiServer, kube: Kube) -> Scene:
    await create_definitions(kube, FILE)
    return Scene(api_server, kube)


async def test_each_node_gets_a_pool_of_its_devices(scene: Scene) -> None:
    async with settled(scene, A, B):
        await scene.node("node-b")
        await scene.publishes(node_a=[A.name, B.name], node_b=[])
        assert scene.writes() == ["create", "create"]


async def test_a_listener_learns_which_devices_are_wanted_also_if_nothing_is_written(scene: Scene) -> None:
    async with settled(scene, A, B):
        assert ("node-a", [A.name, B.name]) in scene.described
    scene.writes()
    scene.described.clear()
    async with publishing(scene):
        await scene.rests()
    assert scene.described[0] == ("node-a", [A.name, B.name]) and scene.writes() == []


async def test_slices_are_what_conformance_expects(scene: Scene) -> None:
    await scene.node("node-a", A)
    uid = (await scene.kube.get(NODES, "node-a"))["metadata"]["uid"]
    async with publishing(scene):
        await scene.publishes(node_a=[A.name])
    (item,) = await scene.slices()
    assert item["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": uid, "controller": True}
    ]
    assert item["metadata"]["name"].startswith("00000-gpu.nvidia.com-node-a-")
    assert item["spec"]["nodeName"] == item["spec"]["pool"]["name"] == "node-a"
    assert (item["spec"]["pool"]["generation"], item["spec"]["pool"]["resourceSliceCount"]) == (1, 1)


async def test_one_gpu_that_changes_is_one_write(scene: Scene) -> None:
    async with settled(scene, A, B):
        scene.writes()
        await scene.reports("node-a", A, B.model_copy(update={"power_limit_watts": 350}))
        await scene.until(lambda: _attribute(scene, B.name, "powerLimitWatts", 350))
        await scene.rests()
        assert scene.writes() == ["update"]


async def _attribute(scene: Scene, device: str, name: str, value: int) -> bool:
    (item,) = await scene.slices()
    published = next(each for each in item["spec"]["devices"] if each["name"] == device)
    return bool(published["attributes"][name] == {"int": value})


async def test_a_restart_of_publisher_or_plugin_writes_nothing(scene: Scene) -> None:
    """Slices stay identical, down to their resourceVersion (behavior 16)."""
    async with settled(scene, A):
        pass
    before = await scene.slices()
    scene.writes()
    async with publishing(scene):
        await scene.rests()
        await scene.registers("node-a")
        await scene.rests()
    assert scene.writes() == []
    assert await scene.slices() == before


async def test_without_a_registration_nothing_is_published_and_nobody_is_asked(scene: Scene) -> None:
    await scene.node("node-a", A, registered=None)
    async with publishing(scene):
        await scene.rests()
        assert await scene.slices() == []
        assert await scene.question("node-a") is None
        assert scene.publisher.figures().waiting == 0
        await scene.registers("node-a")
        await scene.publishes(node_a=[A.name])


async def test_a_wipe_before_the_plugin_registers_again_is_made_good_with_its_registration(scene: Scene) -> None:
    async with settled(scene, A, ask_after_s=60.0):
        await scene.registers("node-a", LONG_AGO)
        await scene.wipe("node-a")
        await asyncio.sleep(0.1)
        assert await scene.slices() == []
        await scene.registers("node-a")
        await scene.publishes(node_a=[A.name])


async def test_a_wipe_after_the_plugin_registered_again_is_made_good_at_once(scene: Scene) -> None:
    async with settled(scene, A, ask_after_s=60.0):
        await scene.registers("node-a")
        await scene.wipe("node-a")
        await scene.publishes(node_a=[A.name])
        assert await scene.question("node-a") is None


async def test_what_a_dead_plugin_reported_is_not_restored(scene: Scene) -> None:
    """Neither by this publisher, nor by the next; the plugin is asked once."""
    async with settled(scene, A):
        await scene.registers("node-a", LONG_AGO)
        await scene.wipe("node-a")
        await scene.until(lambda: _asked(scene, LONG_AGO))
        await scene.rests()
        assert await scene.slices() == []
    async with publishing(scene):
        await scene.rests()
        assert await scene.slices() == []
        assert scene.publisher.figures().waiting == 1
    assert scene.narrator.messages.count("node-a: asked") == 1


async def _asked(scene: Scene, about: str) -> bool:
    return await scene.question("node-a") == about


async def test_a_plugin_that_answers_gets_its_slices_back(scene: Scene) -> None:
    """Also one whose clock is wrong by an hour."""
    await scene.node("node-a", A, registered=LONG_AGO)
    async with publishing(scene):
        await scene.until(lambda: _asked(scene, LONG_AGO))
        assert await scene.slices() == []
        await scene.registers("node-a", now(-3599))
        await scene.publishes(node_a=[A.name])


async def test_slices_that_somebody_deletes_again_and_again_come_back_with_a_question_each(scene: Scene) -> None:
    async with settled(scene, A):
        for _ in range(3):
            asked = (await scene.kube.get(NODE_INVENTORIES, "node-a"))["spec"]["registrations"][0]["time"]
            await scene.wipe("node-a")
            await scene.until(partial(_asked, scene, asked))
            await scene.registers("node-a")
            await scene.publishes(node_a=[A.name])


def _divided(number: int) -> GpuFacts:
    """Seven MIG devices; those of ten such GPUs need two slices."""
    instances = [
        GpuInstanceFacts(
            id=place,
            profile="1g.10gb",
            start=place,
            size=1,
            compute_instances=[ComputeInstanceFacts(id=0, uuid=f"MIG-{number}-{place}", profile="1g.10gb", slices=1)],
        )
        for place in range(7)
    ]
    return gpu(number, mig=MigFacts(enabled=True, pending=True, instances=instances))


async def test_a_partial_wipe_is_not_fought(scene: Scene) -> None:
    """kubelet deletes slices one by one; restoring the first while it goes on would outlive a dead plugin."""
    many = [_divided(number) for number in range(10)]
    await scene.node("node-a", *many)
    async with publishing(scene):
        await scene.until(lambda: _count(scene, 2))
        await scene.registers("node-a", LONG_AGO)
        await scene.rests()
        scene.writes()
        (complete,) = scene.publisher.pool_states()
        first, second = await scene.slices()
        await scene.kube.delete(RESOURCE_SLICES, first["metadata"]["name"])
        await scene.until(lambda: _asked(scene, LONG_AGO))
        assert scene.writes() == []
        assert scene.publisher.pool_states()[0].published_at == complete.published_at
        await scene.kube.delete(RESOURCE_SLICES, second["metadata"]["name"])
        await scene.rests()
        assert scene.writes() == []
        await scene.registers("node-a")
        await scene.until(lambda: _count(scene, 2))


async def _count(scene: Scene, number: int) -> bool:
    return len(await scene.slices()) == number


async def test_the_pool_goes_with_its_inventory(scene: Scene) -> None:
    await scene.node("node-a", A)
    await scene.node("node-b", B)
    async with publishing(scene):
        await scene.publishes(node_a=[A.name], node_b=[B.name])
        await scene.kube.delete(NODE_INVENTORIES, "node-a")
        await scene.publishes(node_b=[B.name])
        await scene.rests()
        assert [state.name for state in scene.publisher.pool_states()] == ["node-b"]


async def test_slices_whose_inventory_went_while_nobody_published_are_removed_and_those_of_others_are_not(
    scene: Scene,
) -> None:
    async with settled(scene, A):
        pass
    foreign = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "node-x-gpu.nvidia.com-abcde"},
        "spec": {
            "driver": GPU_DRIVER,
            "nodeName": "node-x",
            "pool": {"name": "node-x", "generation": 1, "resourceSliceCount": 1},
        },
    }
    await scene.kube.create(RESOURCE_SLICES, foreign)
    await scene.kube.delete(NODE_INVENTORIES, "node-a")
    async with publishing(scene):
        await scene.publishes(node_x=[])


async def test_a_deleted_node_takes_its_pool_along_and_comes_back_with_a_new_owner(scene: Scene) -> None:
    async with settled(scene, A):
        await scene.kube.delete(NODES, "node-a")
        await scene.publishes()
        await scene.node("node-a", A)
        await scene.publishes(node_a=[A.name])
    (item,) = await scene.slices()
    assert item["metadata"]["ownerReferences"][0]["uid"] == (await scene.kube.get(NODES, "node-a"))["metadata"]["uid"]


async def test_what_others_did_to_a_slice_is_undone_and_their_labels_stay(scene: Scene) -> None:
    async with settled(scene, A):
        scene.writes()
        name = (await scene.slices())[0]["metadata"]["name"]
        await scene.kube.merge_patch(RESOURCE_SLICES, name, {"metadata": {"labels": {"team": "a"}}})
        await scene.rests()
        assert scene.writes() == []
        await scene.kube.merge_patch(RESOURCE_SLICES, name, {"spec": {"devices": [{"name": "fake"}]}})
        await scene.publishes(node_a=[A.name])
        assert scene.writes() == ["update"]
    assert (await scene.slices())[0]["metadata"]["labels"]["team"] == "a"


async def test_a_duplicate_is_removed(scene: Scene) -> None:
    async with settled(scene, A):
        copy = (await scene.slices())[0]
        copy["metadata"] = {"generateName": copy["metadata"]["generateName"], "labels": copy["metadata"]["labels"]}
        await scene.kube.create(RESOURCE_SLICES, copy)
        await scene.until(lambda: _count(scene, 1))
        await scene.publishes(node_a=[A.name])


@pytest.mark.parametrize(
    ("method", "status"),
    [("POST", 409), ("POST", 429), ("PATCH", 409), ("PATCH", 410), ("PATCH", 500), ("DELETE", 409), ("DELETE", 503)],
)
async def test_a_refused_write_is_tried_again(scene: Scene, method: str, status: int) -> None:
    await scene.node("node-a", A)
    scene.server.fail_next(method, "/resourceslices", status)
    async with publishing(scene):
        await scene.publishes(node_a=[A.name])
        await scene.reports("node-a", A, B)
        await scene.publishes(node_a=[A.name, B.name])
        await scene.kube.delete(NODE_INVENTORIES, "node-a")
        await scene.publishes()
        assert scene.writes() == ["create", "update", "delete"]


@pytest.mark.parametrize("status", [403, 409])
async def test_pauses_between_attempts_grow_until_one_succeeds(scene: Scene, status: int) -> None:
    async with publishing(scene):
        await scene.until(lambda: _ready(scene.publisher))
        scene.pauses.clear()
        scene.server.fail_next("POST", "/resourceslices$", status, times=4)
        await scene.node("node-a", A)
        await scene.publishes(node_a=[A.name])
        scene.server.fail_next("PATCH", "/resourceslices/", status)
        await scene.reports("node-a", A, B)
        await scene.publishes(node_a=[A.name, B.name])
    assert len(scene.pauses) == 5
    assert scene.pauses[3] > 0.03
    assert scene.pauses[4] <= 0.01


async def test_the_first_pass_ends_when_every_pool_was_looked_at(scene: Scene) -> None:
    names = [f"node-{letter}" for letter in "fbdace"]
    for name in names:
        await scene.node(name, A)
    async with publishing(scene):
        async with asyncio.timeout(PATIENCE_S):
            await scene.publisher.first_pass.wait()
        assert await scene.published() == {name: [A.name] for name in names}
        states = scene.publisher.pool_states()
        assert [(state.name, state.published_at is not None, state.failing) for state in states] == [
            (name, True, False) for name in sorted(names)
        ]


class SlowToListSlices(Kube):
    async def pages(self, resource: Resource, **more: Any) -> AsyncGenerator[Listing, None]:
        if resource is RESOURCE_SLICES:
            await asyncio.sleep(0.3)
        async for page in super().pages(resource, **more):
            yield page


async def test_a_wipe_after_a_deletion_that_failed_is_a_loss(scene: Scene) -> None:
    async with settled(scene, A):
        (observed,) = scene.publisher._slices.of_pool("node-a")
        scene.server.fail_next("DELETE", "/resourceslices/", 503)
        with pytest.raises(ClusterError):
            await scene.publisher._delete("node-a", DeleteSlice(observed))
        await scene.registers("node-a", LONG_AGO)
        await scene.rests()
        await scene.wipe("node-a")
        await scene.until(lambda: _asked(scene, LONG_AGO))
        assert await scene.slices() == []


async def test_nothing_is_written_before_the_slices_that_are_there_were_read(scene: Scene) -> None:
    async with settled(scene, A):
        pass
    scene.writes()
    async with publishing(scene, client=SlowToListSlices):
        await scene.publishes(node_a=[A.name])
        assert scene.writes() == []


async def test_the_loss_of_a_slice_of_no_known_node_is_no_matter(scene: Scene) -> None:
    async with settled(scene, A):
        scene.publisher._slices_changed("node-z", lost=True)
        await scene.rests()


async def test_a_node_that_comes_back_under_the_policy_is_asked_whether_its_plugin_lives(scene: Scene) -> None:
    policy = decode_policy(
        "{apiVersion: dra.gpu/v1alpha1, kind: PublishingPolicy, "
        "withhold: [{nodes: {labelSelector: {matchLabels: {out: a}}}}]}",
        about="policy",
    )
    async with settled(scene, A, policy=policy):
        await scene.registers("node-a", LONG_AGO)
        await scene.kube.merge_patch(NODES, "node-a", {"metadata": {"labels": {"out": "a"}}})
        await scene.publishes()
        assert scene.publisher.pool_states() == []
        await scene.kube.merge_patch(NODES, "node-a", {"metadata": {"labels": {"out": None}}})
        await scene.until(lambda: _asked(scene, LONG_AGO))
        await scene.rests()
        assert await scene.slices() == []
        assert [state.published_at for state in scene.publisher.pool_states()] == []
        await scene.registers("node-a")
        await scene.publishes(node_a=[A.name])


async def test_an_inventory_that_is_too_large_is_not_read_and_its_pool_stays(scene: Scene) -> None:
    async with settled(scene, A):
        xid = xid_condition(79, since="2026-01-01T00:00:00Z").model_copy(update={"message": "x" * 1024})
        sick = HealthFacts(healthy=False, conditions=[xid] * 64)
        await scene.reports("node-a", *(gpu(number, health=sick) for number in range(16)))

        async def noted() -> bool:
            return bool((await scene.status("node-a")).limitations)

        await scene.until(noted)
        (limitation,) = (await scene.status("node-a")).limitations
        assert limitation.reason == "NotUnderstood" and "at most 1048576 are read" in limitation.message
        await scene.publishes(node_a=[A.name])


async def test_an_inventory_that_makes_no_sense_leaves_its_pool_and_the_others_alone(scene: Scene) -> None:
    await scene.node("node-a", A)
    await scene.node("node-b", B)
    async with publishing(scene):
        await scene.publishes(node_a=[A.name], node_b=[B.name])
        await scene.kube.merge_patch(NODE_INVENTORIES, "node-a", {"spec": {"nodeName": "node-b"}})
        await scene.reports("node-b", A, B)
        await scene.publishes(node_a=[A.name], node_b=[A.name, B.name])
        assert [line for line in scene.narrator.messages if "not understood" in line] == [
            "node-a: not understood: NodeInventory node-a: nodeName: speaks for another node: 'node-b'"
        ]
        assert [state.failing for state in scene.publisher.pool_states()] == [True, False]
        (limitation,) = (await scene.status("node-a")).limitations
        assert limitation.reason == "NotUnderstood" and "speaks for another node" in limitation.message
        await scene.kube.merge_patch(NODE_INVENTORIES, "node-a", {"spec": {"nodeName": "node-a", "gpus": []}})
        await scene.publishes(node_a=[], node_b=[A.name, B.name])
        await scene.rests()
        assert (await scene.status("node-a")).limitations == []
        assert [state.failing for state in scene.publisher.pool_states()] == [False, False]


async def test_an_inventory_that_no_node_owns_is_not_published(scene: Scene) -> None:
    obj = inventory_object(inventory_spec("node-a", [A], registered=now()), "uid")
    del obj["metadata"]["ownerReferences"]
    await scene.kube.create(NODE_INVENTORIES, obj)
    async with publishing(scene):
        await scene.rests()
        assert await scene.slices() == []
        assert "no Node owns it" in scene.narrator.messages[0]


async def test_why_a_gpu_is_not_published_is_said_once(scene: Scene) -> None:
    sick = A.model_copy(update={"health": HealthFacts(healthy=False, reason="Xid", message="XID 79")})
    await scene.node("node-a", sick, B)
    async with publishing(scene):
        await scene.publishes(node_a=[B.name])
        await scene.registers("node-a")
        await scene.rests()
        assert scene.narrator.messages == [f"node-a: GPU {A.name}: not published because XID 79"]


async def test_the_policy_chooses_nodes_by_label_and_follows_the_labels(scene: Scene) -> None:
    policy = decode_policy(
        "{apiVersion: dra.gpu/v1alpha1, kind: PublishingPolicy, "
        "publish: [{nodes: {labelSelector: {matchLabels: {team: a}}}}], attributes: [{values: {rack: r1}}]}",
        about="policy",
    )
    await scene.node("node-a", A, team="a")
    await scene.node("node-b", B, team="b")
    async with publishing(scene, policy=policy):
        await scene.publishes(node_a=[A.name])
        (item,) = await scene.slices()
        assert item["spec"]["devices"][0]["attributes"]["rack"] == {"string": "r1"}
        await scene.kube.merge_patch(NODES, "node-b", {"metadata": {"labels": {"team": "a"}}})
        await scene.publishes(node_a=[A.name], node_b=[B.name])
        await scene.kube.merge_patch(NODES, "node-a", {"metadata": {"labels": {"team": None}}})
        await scene.publishes(node_b=[B.name])


async def test_a_publisher_on_a_node_minds_its_own_pool(scene: Scene) -> None:
    await scene.node("node-a", A)
    await scene.node("node-b", B)
    async with publishing(scene, node_name="node-b"):
        await scene.publishes(node_b=[B.name])
    async with publishing(scene, node_name="node-a"):
        await scene.publishes(node_a=[A.name], node_b=[B.name])


async def test_who_publishes_can_change_and_not_a_slice_is_written(scene: Scene) -> None:
    """From the controller to the node's own plugin, and back."""
    async with settled(scene, A):
        pass
    before = await scene.slices()
    scene.writes()
    for node_name in ("node-a", None):
        async with publishing(scene, node_name=node_name):
            await scene.rests()
        assert scene.writes() == [] and await scene.slices() == before


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_is_in_a_pool_it_becomes_the_wanted_one_and_then_nothing_is_written(
    scene: Scene, seed: int
) -> None:
    dice = random.Random(seed)
    await scene.node("node-a", A, B)
    for serial in range(dice.randint(1, 8)):
        names = dice.sample([A.name, B.name, "gpu-x", "gpu-y"], dice.randint(0, 3))
        pool = {"name": "node-a", "generation": dice.randint(0, 4), "resourceSliceCount": dice.randint(1, 3)}
        spec = {"driver": GPU_DRIVER, "nodeName": dice.choice(["node-a", "node-b"]), "pool": pool}
        foreign, index = f"node-a-gpu.nvidia.com-{serial:05d}", dice.randint(0, 2)
        slice_name = dice.choice([foreign, f"{index:05x}-gpu.nvidia.com-node-a-{serial:05d}"])
        devices = [{"name": name} for name in names]
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": slice_name}}
        await scene.kube.create(RESOURCE_SLICES, {**head, "spec": {**spec, "devices": devices}})
    async with publishing(scene):
        await scene.publishes(node_a=[A.name, B.name])
    scene.writes()
    async with publishing(scene):
        await scene.rests()
        assert scene.writes() == []


async def test_two_publishers_at_once_agree(scene: Scene) -> None:
    """A rolling update: both want the same, so at most a duplicate appears and goes."""
    many = [_divided(number) for number in range(11)]
    await scene.node("node-a", *many)
    async with publishing(scene):
        publisher = scene.publisher
        async with publishing(scene):
            await scene.until(lambda: _count(scene, 2))
            await scene.rests()
            await scene.reports("node-a", *many[1:])
            for _ in range(3):
                await scene.rests()
                await scene.until(lambda: at_rest(publisher))
            names = [device["name"] for item in await scene.slices() for device in item["spec"]["devices"]]
            assert {name.partition("-mig")[0] for name in names} == {item.name for item in many[1:]}
            assert len(names) == len(set(names)) == 70
            assert len(await scene.slices()) == 2


async def test_the_api_server_going_away_ends_nothing(scene: Scene) -> None:
    async with settled(scene, A):
        await scene.server.stop()
        await asyncio.sleep(0.1)
        await scene.server.start()
        await scene.reports("node-a", A, B)
        await scene.publishes(node_a=[A.name, B.name])


async def test_a_lost_history_is_read_again(scene: Scene) -> None:
    """410: what happened meanwhile is found by listing, wipes included."""
    async with settled(scene, A):
        await scene.server.stop()
        scene.server.store.compact()
        await scene.server.start()
        await scene.registers("node-a")
        await scene.wipe("node-a")
        await scene.publishes(node_a=[A.name])


async def test_the_cluster_may_learn_of_inventories_later(api_server: ObservedApiServer, kube: Kube) -> None:
    """The CRD is installed after the publisher has started."""
    scene = Scene(api_server, kube)
    async with publishing(scene):
        await asyncio.sleep(0.05)
        assert not scene.publisher.ready
        await create_definitions(kube, FILE)
        await scene.node("node-a", A)
        await scene.publishes(node_a=[A.name])


class Forgetful(Kube):
    """An API server that drops the capacity of devices, as one does whose feature gate is off."""

    async def create(self, resource: Resource, obj: JsonObject, **more: Any) -> JsonObject:
        return await super().create(resource, _without_capacity(obj), **more)

    async def merge_patch(self, resource: Resource, name: str, patch: JsonObject, **more: Any) -> JsonObject:
        return await super().merge_patch(resource, name, _without_capacity(patch), **more)


def _without_capacity(obj: JsonObject) -> JsonObject:
    devices = [
        {key: value for key, value in device.items() if key != "capacity"}
        for device in obj.get("spec", {}).get("devices", ())
    ]
    return {**obj, "spec": {**obj["spec"], "devices": devices}} if devices else obj


async def test_fields_that_the_server_drops_are_reported_once_and_not_sent_again_and_again(scene: Scene) -> None:
    async with settled(scene, A, client=Forgetful):
        for _ in range(3):
            await scene.registers("node-a")
            await scene.rests()
        assert scene.writes() == ["create"]
        await scene.reports("node-a", A, B)
        await scene.publishes(node_a=[A.name, B.name])
        assert scene.writes() == ["update"]
        assert scene.narrator.messages == ["node-a: lost capacity"]


class Counted(Forgetful):
    """The same; how often it was asked what it keeps."""

    probes = 0

    async def create(self, resource: Resource, obj: JsonObject, *, dry_run: bool = False, **more: Any) -> JsonObject:
        Counted.probes += dry_run
        return await super().create(resource, obj, dry_run=dry_run, **more)


async def test_a_server_that_drops_fields_is_asked_once_more_what_it_keeps(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_PROBE_PAUSE_S", 0.01)
    monkeypatch.setattr(Counted, "probes", 0)
    await scene.node("node-a", A)

    async def asked_again() -> bool:
        return Counted.probes == 2

    async with publishing(scene, client=Counted):
        await scene.until(asked_again)
        await asyncio.sleep(0.2)  # twenty pauses
        assert Counted.probes == 2


class Gated(Kube):
    """A server whose gate for counters is off while `off` is true."""

    off = True

    async def create(self, resource: Resource, obj: JsonObject, **more: Any) -> JsonObject:
        if self.off and resource is RESOURCE_SLICES:
            obj = deepcopy(obj)
            obj["spec"].pop("sharedCounters", None)
            for device in obj["spec"].get("devices", ()):
                device.pop("consumesCounters", None)
        return await super().create(resource, obj, **more)


async def test_what_is_published_follows_the_gates_of_the_server(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    dynamic = gpu(0, mig=mig())
    await scene.node("node-a", dynamic)
    policy = PublishingPolicy(mig=[MigRule(mode="Dynamic")])
    monkeypatch.setattr(Gated, "off", True)
    async with publishing(scene, client=Gated, policy=policy, probe_every_s=0.05):
        await scene.publishes(node_a=[dynamic.name])
        assert "no partitionable devices" in scene.narrator.messages[0]
        monkeypatch.setattr(Gated, "off", False)
        await scene.until(lambda: _count(scene, 2))
        await scene.rests()
        devices = [device for item in await scene.slices() for device in item["spec"].get("devices", ())]
        assert len(devices) == 26 and all("consumesCounters" in device for device in devices)


class Unlisted(Kube):
    """A server that stores lists when it is first asked, and does not when slices are written."""

    asked = 0

    async def create(self, resource: Resource, obj: JsonObject, *, dry_run: bool = False, **more: Any) -> JsonObject:
        if dry_run and "attributes" in obj["spec"]["devices"][0]:
            Unlisted.asked += 1
            if Unlisted.asked == 1:
                return obj
        return await super().create(resource, obj, dry_run=dry_run, **more)


async def test_a_refusal_of_lists_has_the_server_asked_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_PROBE_PAUSE_S", 0.01)
    monkeypatch.setattr(Unlisted, "asked", 0)
    placed = gpu(0, numa_node=1)
    await scene.node("node-a", placed)
    async with publishing(scene, client=Unlisted, list_attributes=True):
        await scene.publishes(node_a=[placed.name])
    (item,) = await scene.slices()
    assert item["spec"]["devices"][0]["attributes"]["resource.kubernetes.io/numaNode"] == {"int": 1}
    assert Unlisted.asked > 1
    assert any("refused" in text for text in scene.narrator.messages)


class Silent(Kube):
    """A server that does not answer probes, at first."""

    refused = 0

    async def create(self, resource: Resource, obj: JsonObject, *, dry_run: bool = False, **more: Any) -> JsonObject:
        if dry_run and Silent.refused < 3:
            Silent.refused += 1
            raise Rejected("a webhook knows no dry runs", about="slice", status=400)
        return await super().create(resource, obj, dry_run=dry_run, **more)


async def test_nothing_is_published_before_it_is_known_what_the_server_keeps(scene: Scene) -> None:
    async with settled(scene, A, client=Silent):
        pass
    assert scene.narrator.messages == ["unknown: slice: a webhook knows no dry runs"] * 3


async def test_an_earlier_registration_is_never_taken_for_an_answer(scene: Scene) -> None:
    """The plugin registered again and died before it was asked; news of that are late."""
    later = now(-1800)
    await scene.node("node-a", A, registered=LONG_AGO)
    async with publishing(scene, client=late(NODE_INVENTORIES, 0.4), ask_after_s=0.2):
        await scene.until(lambda: _ready(scene.publisher))
        await scene.registers("node-a", later)
        await scene.until(lambda: _asked(scene, later))
        await scene.rests()
        assert await scene.slices() == []
    assert [write.status for write in scene.server.writes if "inventories" in write.path].count(409) >= 1


async def _ready(publisher: PoolPublisher) -> bool:
    return publisher.ready


async def test_a_watch_that_is_behind_leads_to_no_write_that_was_done_already(scene: Scene) -> None:
    async with settled(scene, A, client=late(RESOURCE_SLICES, 0.2)):
        await scene.reports("node-a", B)
        await scene.publishes(node_a=[B.name])
        await scene.reports("node-a", A, B)
        await scene.publishes(node_a=[A.name, B.name])
        await scene.kube.delete(NODE_INVENTORIES, "node-a")
        await scene.publishes()
        await asyncio.sleep(0.5)
        await scene.rests()
        assert scene.writes() == ["create", "update", "update", "delete"]
        assert [line for line in scene.narrator.messages if "refused" in line] == []


async def test_each_look_at_a_pool_is_a_span_with_its_writes(scene: Scene) -> None:
    recorder = Recorder()
    async with settled(scene, A, tracer=recorder.tracer):
        pass
    first = next(span for span in recorder.spans if span.name == "publish")
    assert dict(first.attributes or {}) == {
        "gpu_dra.pool": "node-a",
        "gpu_dra.as_wanted": True,
        "gpu_dra.outcome": "ok",
    }
    assert recorder.below(first) == ["create resourceslices"]


class Refusing(Kube):
    """A server that takes no slices, but in a dry run."""

    async def create(self, resource: Resource, obj: JsonObject, *, dry_run: bool = False, **more: Any) -> JsonObject:
        if not dry_run:
            raise Rejected("no room", about="slice", status=403)
        return await super().create(resource, obj, dry_run=dry_run, **more)


async def test_a_pool_that_cannot_be_written_is_a_span_that_failed(scene: Scene) -> None:
    recorder = Recorder()
    await scene.node("node-a", A)
    async with publishing(scene, client=Refusing, tracer=recorder.tracer):
        await scene.until(lambda: _has_reported(scene))
    failed = next(span for span in recorder.spans if span.name == "publish")
    assert dict(failed.attributes or {})["gpu_dra.outcome"] == "Rejected"


async def _has_reported(scene: Scene) -> bool:
    return bool(scene.narrator.messages)


EIGHT = [gpu(number, mig=mig(switchable=False)) for number in range(8)]
MIG_ON = [gpu(number, mig=mig(switchable=False, enabled=True)) for number in range(8)]
DYNAMIC = PublishingPolicy(mig=[MigRule(mode="Dynamic")])


@pytest.mark.parametrize("node_name", [None, "node-a"])
async def test_what_a_node_cannot_follow_is_in_its_status_until_it_can(scene: Scene, node_name: str | None) -> None:
    await scene.node("node-a", *EIGHT)
    async with publishing(scene, policy=DYNAMIC, node_name=node_name):
        await scene.says("node-a", "ResetNeeded")
        (limitation,) = (await scene.status("node-a")).limitations
        assert (limitation.rule, limitation.subject) == ("mig[0]", "8 GPUs")
        assert [(news.reason, news.regarding.name) for news in scene.events] == [("PolicyNotFollowed", "node-a")]
        assert "-mig 1" in scene.events[0].note
        await scene.registers("node-a", LONG_AGO)
        await scene.rests()
        version = await _version(scene)
    # A publisher that starts finds it said, and so does a node of which other facts change.
    async with publishing(scene, policy=DYNAMIC, node_name=node_name):
        await scene.rests()
        assert (await _version(scene), len(scene.events)) == (version, 1)
        await scene.reports("node-a", *MIG_ON)
        await scene.says("node-a", "Followed")
        assert (await scene.status("node-a")).limitations == []
        assert [news.reason for news in scene.events] == ["PolicyNotFollowed", "PolicyFollowed"]


async def _version(scene: Scene) -> str:
    version: str = (await scene.kube.get(NODE_INVENTORIES, "node-a"))["metadata"]["resourceVersion"]
    return version


@pytest.mark.parametrize("status", [403, 404, 409, 503])
async def test_a_status_that_cannot_be_written_keeps_no_pool_from_being_published(scene: Scene, status: int) -> None:
    await scene.node("node-a", *EIGHT)
    scene.server.fail_next("PATCH", "/nodeinventories/node-a/status", status)
    async with publishing(scene, policy=DYNAMIC):
        await scene.publishes(node_a=[facts.name for facts in EIGHT])
        # What time does not heal, the next change of the inventory does.
        await scene.reports("node-a", *EIGHT[:7])
        await scene.says("node-a", "ResetNeeded")
        assert (await scene.status("node-a")).limitations[0].subject == "7 GPUs"
        assert [news.reason for news in scene.events] == ["PolicyNotFollowed"]
        await scene.reports("node-a", *EIGHT[:6])
        await scene.until(lambda: _limits(scene, "6 GPUs"))
        await scene.rests()
        assert len(scene.events) == 1, "a rule that could not be followed before is no news"
        assert (scene.publisher.figures().retries > 0) == (status == 503)


async def _limits(scene: Scene, subject: str) -> bool:
    return [limitation.subject for limitation in (await scene.status("node-a")).limitations] == [subject]


async def test_a_status_of_nonsense_is_written_again(scene: Scene) -> None:
    await scene.node("node-a", *EIGHT)
    nonsense = {"limitations": [{"driver": GPU_DRIVER, "reason": "?", "message": "", "fix": "", "gpus": []}]}
    await scene.kube.merge_patch(NODE_INVENTORIES, "node-a", {"status": nonsense}, subresource="status")
    async with publishing(scene, policy=DYNAMIC):
        await scene.says("node-a", "ResetNeeded")


async def test_a_node_that_is_not_published_any_more_breaks_no_rule(scene: Scene) -> None:
    policy = decode_policy(
        "{apiVersion: dra.gpu/v1alpha1, kind: PublishingPolicy, mig: [{mode: Dynamic}], "
        "withhold: [{nodes: {labelSelector: {matchLabels: {out: a}}}}]}",
        about="policy",
    )
    await scene.node("node-a", *EIGHT)
    async with publishing(scene, policy=policy):
        await scene.says("node-a", "ResetNeeded")
        await scene.kube.merge_patch(NODES, "node-a", {"metadata": {"labels": {"out": "a"}}})
        await scene.says("node-a", "Followed")


async def test_nodes_that_follow_the_policy_cost_no_write(scene: Scene) -> None:
    await scene.node("node-a", *MIG_ON)
    async with publishing(scene, policy=DYNAMIC):
        await scene.until(lambda: _published(scene))
        await scene.rests()
        assert "status" not in await scene.kube.get(NODE_INVENTORIES, "node-a") and scene.events == []


async def _published(scene: Scene) -> bool:
    return bool(await scene.slices())
