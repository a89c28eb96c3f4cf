"""status.devices of claims: what is said of each device, and that it is said no more often than it changes."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.background import background
from support.claims import BOOT, NODE, a_gpu, a_held_device, a_ref, an_entry, device_name, node_facts, uuid_of
from support.objects import allocate, claim, result
from support.observed_api import ObservedApiServer
from support.plugin import eventually

from dra_driver.api.gpu_settings import HealthPolicy
from dra_driver.api.inventory import HealthCondition, HealthFacts
from dra_driver.api.meta import RESOURCE_CLAIMS, JsonObject, Resource
from dra_driver.devices.model import DeviceKind, Partition
from dra_driver.errors import ClusterError, Conflict, DeviceInUse, InvalidConfig, Rejected, Unreachable
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.names import GPU_DRIVER, ClaimRef
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.prepare.holds import ComputeInstance, GpuIdentity, GpuInstance, HoldRecord, HoldState, Made
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.lifecycle import BindingStage, Entry
from kubelet_plugin.prepare.listener import AllocatedTo, Operation
from kubelet_plugin.reporting.claim_devices import entries_of
from kubelet_plugin.reporting.device_status import (
    BindingAnswer,
    DeviceStatusWriter,
    GpuClaims,
    PrepareRefusal,
    StatusCondition,
    wanted_status,
)
from kubelet_plugin.reporting.reported import REPORTED, Reported

ALLOCATED = (AllocatedTo(NODE, device_name(0)),)
XID = HealthCondition(type="Xid", value="79", severity="Critical", message="Xid 79", since="2026-01-01T00:00:00Z")

SECTION = f"status of {GPU_DRIVER}"


def conditions(
    entry: Entry | None, refusal: PrepareRefusal | None = None, facts: NodeFacts | None = None
) -> list[StatusCondition]:
    (status,) = wanted_status(entry, refusal, {}, facts or node_facts(1), HealthPolicy())
    return list(status.conditions)


class TestWhatIsSaid:
    def test_of_a_prepared_claim_its_devices_are_ready_and_healthy_with_their_uuid(self) -> None:
        (status,) = wanted_status(an_entry(), None, {}, node_facts(1), HealthPolicy())
        assert [(condition.type, condition.status, condition.reason) for condition in status.conditions] == [
            ("Ready", "True", "Prepared"),
            ("Healthy", "True", "Healthy"),
        ]
        assert dict(status.data)["uuid"] == uuid_of(0)
        assert "migUUID" not in dict(status.data)

    def test_a_claim_that_is_neither_held_nor_refused_has_none(self) -> None:
        assert wanted_status(None, None, {}, node_facts(1), HealthPolicy()) == ()

    def test_a_refused_claim_says_why(self) -> None:
        refusal = PrepareRefusal(a_ref(), ALLOCATED, "DeviceInUse", "held by another claim")
        assert conditions(None, refusal) == [StatusCondition("Ready", "False", "DeviceInUse", "held by another claim")]
        assert conditions(an_entry(), refusal)[0].reason == "DeviceInUse"

    def test_what_is_not_ready_says_why(self) -> None:
        assert conditions(replace(an_entry(), releasing=True))[0].reason == "Releasing"
        assert conditions(an_entry(boot_id="other"))[0].reason == "NodeRebooted"
        assert conditions(replace(an_entry(), cdi_digest=None))[0].reason == "Preparing"

    def test_an_ill_gpu_and_one_that_cannot_be_read_are_told(self) -> None:
        ill = node_facts([a_gpu(0, health=HealthFacts(healthy=False, conditions=[XID]))])
        assert conditions(an_entry(), facts=ill)[1] == StatusCondition("Healthy", "False", "Xid", "Xid 79")
        assert conditions(an_entry(), facts=node_facts(0))[1].status == "Unknown"

    def test_a_mig_device_has_its_own_uuid_and_its_own_health(self) -> None:
        parent = GpuInstance(GpuIdentity(uuid_of(0), "0000:10:00.0"), "1g.10gb", 19, 0, 1)
        hold = ComputeInstance(parent)
        record = HoldRecord(HoldState.MADE, BOOT, Made((("uuid", "MIG-mine"),)))
        device = a_held_device(0, kind=DeviceKind.MIG, partition=Partition("1g.10gb", 0, 1, None, 0))
        entry = replace(an_entry(a_ref(), device), holds=(parent, hold))

        def health(instance: str) -> str:
            bad = XID.model_copy(update={"instance": instance})
            facts = node_facts([a_gpu(0, health=HealthFacts(conditions=[bad]))])
            (status,) = wanted_status(entry, None, {hold: record}, facts, HealthPolicy())
            assert dict(status.data)["migUUID"] == "MIG-mine"
            return status.conditions[1].status

        assert (health("MIG-mine"), health("MIG-other")) == ("False", "True")


class TestWhatIsSaidOfBinding:
    """What the scheduler reads: `dra_driver.api.binding`."""

    BOUND = StatusCondition("BindingReady", "True", "Prepared", "the node has prepared the claim")

    def types(self, entry: Entry | None, refusal: PrepareRefusal | None = None) -> dict[str, tuple[str, str]]:
        return {condition.type: (condition.status, condition.reason) for condition in conditions(entry, refusal)}

    def test_a_claim_without_binding_conditions_says_nothing_of_it(self) -> None:
        assert "BindingReady" not in self.types(an_entry())
        assert "BindingReady" not in self.types(None, PrepareRefusal(a_ref(), ALLOCATED, "X", "y"))

    def test_a_prepared_claim_is_ready_also_after_a_boot_but_not_before_it_is_whole(self) -> None:
        for stage in (BindingStage.AHEAD, BindingStage.ASKED):
            entry = replace(an_entry(), binding=stage)
            assert self.BOUND in conditions(entry)
            assert self.BOUND in conditions(replace(entry, boot_id="other"))
            assert self.BOUND not in conditions(replace(entry, cdi_digest=None))
            assert self.BOUND not in conditions(replace(entry, releasing=True))

    def test_a_claim_that_is_tried_again_is_not_ready_and_one_that_is_given_up_failed(self) -> None:
        refusal = PrepareRefusal(a_ref(), ALLOCATED, "HardwareError", "in use", BindingAnswer.WAIT)
        no = ("False", "HardwareError")
        assert self.types(None, refusal) == {"Ready": no, "BindingReady": no}
        failed = replace(refusal, binding=BindingAnswer.GIVE_UP)
        assert self.types(None, failed) == {"Ready": no, "BindingReady": no, "BindingFailed": ("True", "HardwareError")}
        entry = replace(an_entry(), binding=BindingStage.AHEAD)
        assert self.types(entry, failed)["BindingReady"] == no

    def test_what_every_node_would_refuse_is_bound(self) -> None:
        refusal = PrepareRefusal(a_ref(), ALLOCATED, "InvalidConfig", "no", BindingAnswer.BIND)
        assert self.types(None, refusal) == {
            "Ready": ("False", "InvalidConfig"),
            "BindingReady": ("True", "InvalidConfig"),
        }


class Node:
    """The monitor and the journal."""

    def __init__(self) -> None:
        self.facts = node_facts(1)
        self.current = Journal({})


class Scene:
    """A claim with device 0 of node-a, and the writer of that node."""

    def __init__(self, server: ObservedApiServer, kube: Kube, folder: Path) -> None:
        self.folder = folder
        self.server = server
        self.kube = kube
        self.node = Node()
        self.writer = self.new_writer()
        self.ref = ClaimRef("default", "gpu", "")

    def new_writer(self, kube: Any = None, **more: Any) -> DeviceStatusWriter:
        return DeviceStatusWriter(
            kube or self.kube,
            GPU_DRIVER,
            GpuClaims(self.node, self.node, HealthPolicy),
            Reported(self.folder),
            **{"together_s": 0.01, **more},
        )

    async def allocated(self, *more: JsonObject) -> None:
        created = await self.kube.create(RESOURCE_CLAIMS, claim())
        self.ref = ClaimRef("default", "gpu", created["metadata"]["uid"])
        await allocate(self.kube, created, result(device_name(0), pool=NODE), *more)

    def holds(self, **changes: Any) -> None:
        entry = replace(an_entry(self.ref, a_held_device(0, self.ref)), **changes)
        self.node.current = Journal({self.ref.uid: entry})

    async def devices(self) -> list[JsonObject]:
        obj = await self.kube.get(RESOURCE_CLAIMS, "gpu", "default")
        return obj["status"].get("devices") or []

    async def count_writes(self, work: Any) -> int:
        before = len(self.server.writes)
        await work
        return len(self.server.writes) - before


@pytest.fixture
async def scene(api_server: ObservedApiServer, kube: Kube, tmp_path: Path) -> Scene:
    made = Scene(api_server, kube, tmp_path)
    await made.allocated()
    return made


async def test_a_prepared_claim_is_told_once_and_cleared_when_released(scene: Scene) -> None:
    scene.holds()
    await scene.writer.write()
    (device,) = await scene.devices()
    assert (device["driver"], device["pool"], device["device"]) == (GPU_DRIVER, NODE, device_name(0))
    assert {condition["type"]: condition["status"] for condition in device["conditions"]} == {
        "Ready": "True",
        "Healthy": "True",
    }
    assert device["data"]["uuid"] == uuid_of(0)
    assert await scene.count_writes(scene.writer.write()) == 0
    scene.node.current = Journal({})
    await scene.writer.write()
    assert await scene.devices() == []
    assert await scene.count_writes(scene.writer.write()) == 0
    assert not Reported(scene.folder).read(SECTION)


async def test_each_share_of_a_device_is_told_of_its_own(
    api_server: ObservedApiServer, kube: Kube, tmp_path: Path
) -> None:
    scene, uids = (
        Scene(api_server, kube, tmp_path),
        [f"{number}f0e1d2c-0000-4000-8000-000000000000" for number in (1, 2)],
    )
    created = await kube.create(RESOURCE_CLAIMS, claim())
    scene.ref = ClaimRef("default", "gpu", created["metadata"]["uid"])
    shares = [result(device_name(0), pool=NODE, shareID=uid) for uid in uids]
    await allocate(kube, created, *shares)
    held = [a_held_device(0, scene.ref, share_id=uid) for uid in uids]
    scene.node.current = Journal({scene.ref.uid: an_entry(scene.ref, *held)})
    await scene.writer.write()
    assert sorted(device["shareID"] for device in await scene.devices()) == uids
    scene.node.current = Journal({})
    await scene.writer.write()
    assert await scene.devices() == []


async def test_a_condition_keeps_its_time_until_its_status_changes(
    api_server: ObservedApiServer, kube: Kube, tmp_path: Path
) -> None:
    scene = Scene(api_server, kube, tmp_path)
    await scene.allocated()
    scene.holds()
    await scene.writer.write()
    old = "2020-01-01T00:00:00Z"
    (device,) = scene.writer._known[scene.ref.uid].devices
    for condition in device["conditions"]:
        condition["lastTransitionTime"] = old
    scene.node.facts = node_facts([a_gpu(0, health=HealthFacts(healthy=False, conditions=[XID]))])
    await scene.writer.write()
    (device,) = await scene.devices()
    times = {condition["type"]: condition["lastTransitionTime"] for condition in device["conditions"]}
    assert times["Ready"] == old
    assert times["Healthy"] != old


async def test_a_restarted_plugin_reads_and_writes_nothing_that_is_so_already(scene: Scene) -> None:
    scene.holds()
    await scene.writer.write()
    writer = scene.new_writer()

    async def restart() -> None:
        task = asyncio.create_task(writer.run())
        await asyncio.sleep(0.3)
        task.cancel()

    assert await scene.count_writes(restart()) == 0
    scene.node.current = Journal({})
    await writer.write()
    assert await scene.devices() == [], "and it can clear what another one wrote"


async def restarted(scene: Scene, **more: Any) -> DeviceStatusWriter:
    """A plugin after one that was killed, which has looked once."""
    writer = scene.new_writer(**more)
    await writer._meet()
    await writer.write()
    return writer


async def test_who_is_killed_before_a_release_is_told_has_a_successor_that_tells_it(scene: Scene) -> None:
    scene.holds()
    await scene.writer.write()
    scene.node.current = Journal({})
    await restarted(scene)
    assert await scene.devices() == []
    assert await scene.count_writes(restarted(scene)) == 0
    assert not Reported(scene.folder).read(SECTION), "nobody asks for it any more"


async def test_who_is_killed_while_it_tells_has_a_successor_that_takes_it_away(scene: Scene) -> None:
    class Killed(Kube):
        async def replace_message(self, *what: Any, **more: Any) -> JsonObject:
            await super().replace_message(*what, **more)
            raise asyncio.CancelledError

    scene.holds()
    async with Killed(Endpoint(server=scene.server.url)) as kube:
        with pytest.raises(asyncio.CancelledError):
            await scene.new_writer(kube).write()
    assert len(await scene.devices()) == 1
    scene.node.current = Journal({})
    await restarted(scene)
    assert await scene.devices() == []


async def test_a_refusal_that_a_killed_plugin_told_is_taken_away(scene: Scene) -> None:
    error = DeviceInUse("held", about="gpu-0")
    scene.writer.ended(Operation(call="prepare", claim=scene.ref, seconds=0.1, devices=ALLOCATED, error=error))
    await scene.writer.write()
    assert (await scene.devices())[0]["conditions"][0]["reason"] == "DeviceInUse"
    await restarted(scene)
    assert await scene.devices() == []


async def test_what_another_node_says_of_a_claim_that_went_there_stays(scene: Scene) -> None:
    scene.holds()
    await scene.writer.write()
    obj = await scene.kube.get(RESOURCE_CLAIMS, "gpu", "default")
    there = [{**device, "pool": "node-b"} for device in obj["status"]["devices"]]

    async def put(status: JsonObject) -> None:
        patch = {"status": status}
        await scene.kube.merge_patch(RESOURCE_CLAIMS, "gpu", patch, namespace="default", subresource="status")

    await put({"allocation": None, "devices": None})
    await allocate(scene.kube, obj, result(device_name(0), pool="node-b"))
    await put({"devices": there})
    scene.node.current = Journal({})
    await restarted(scene)
    assert [device["pool"] for device in await scene.devices()] == ["node-b"]


async def test_one_that_cannot_be_read_at_the_start_is_cleared_later(scene: Scene) -> None:
    scene.holds()
    await scene.writer.write()
    scene.node.current = Journal({})

    class Failing(Kube):
        broken = True

        async def get(self, *what: Any, **more: Any) -> JsonObject:
            if self.broken:
                raise ClusterError("something is wrong", status=500)
            return await super().get(*what, **more)

        async def get_message(self, *what: Any, **more: Any) -> bytes:
            if self.broken:
                raise ClusterError("something is wrong", status=500)
            return await super().get_message(*what, **more)

    async with Failing(Endpoint(server=scene.server.url)) as kube:
        writer = await restarted(scene, kube=kube, pause_s=0.0)
        assert len(await scene.devices()) == 1
        kube.broken = False
        await writer.write()
    assert await scene.devices() == []


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"a": 1}', '{"a": {"namespace": "x", "name": "y", "devices": [1]}}', 100_000 * "[" + 100_000 * "]"],
    ids=lambda content: content[:50],
)
async def test_a_memory_that_makes_no_sense_is_forgotten(scene: Scene, content: str) -> None:
    (scene.folder / REPORTED).write_text(f'{{"{SECTION}": {content}}}')
    scene.holds()
    await restarted(scene)
    assert len(await scene.devices()) == 1


async def test_a_disk_that_takes_no_memory_keeps_no_status_from_being_written(scene: Scene) -> None:
    scene.folder = scene.folder / "missing"
    scene.holds()
    await scene.new_writer().write()
    assert len(await scene.devices()) == 1


async def test_the_entries_of_other_drivers_stay(api_server: ObservedApiServer, kube: Kube, tmp_path: Path) -> None:
    scene = Scene(api_server, kube, tmp_path)
    await scene.allocated(result("nic", pool="elsewhere", driver="nic.example.com"))
    entry = {"driver": "nic.example.com", "pool": "elsewhere", "device": "nic", "data": {"mac": "x"}}
    status = {"status": {"devices": [entry]}}
    await scene.kube.merge_patch(RESOURCE_CLAIMS, "gpu", status, namespace="default", subresource="status")
    scene.holds()
    await scene.writer.write()
    assert len(await scene.devices()) == 2
    scene.node.current = Journal({})
    await scene.writer.write()
    assert [device["driver"] for device in await scene.devices()] == ["nic.example.com"]


async def test_a_refusal_is_told_until_the_claim_is_prepared(scene: Scene) -> None:
    failed = Operation(
        call="prepare",
        claim=scene.ref,
        seconds=0.1,
        devices=ALLOCATED,
        error=DeviceInUse("held by another claim", about=str(scene.ref), field="status.allocation"),
    )
    scene.writer.ended(failed)
    await scene.writer.write()
    (device,) = await scene.devices()
    assert [(condition["type"], condition["status"], condition["reason"]) for condition in device["conditions"]] == [
        ("Ready", "False", "DeviceInUse")
    ]
    assert device["conditions"][0]["message"] == "status.allocation: held by another claim"
    scene.writer.ended(failed)
    assert await scene.count_writes(scene.writer.write()) == 0
    scene.writer.ended(replace(failed, error=None))
    scene.holds()
    await scene.writer.write()
    (device,) = await scene.devices()
    assert {condition["status"] for condition in device["conditions"]} == {"True"}


async def test_one_that_was_refused_and_is_prepared_while_others_are_written_is_told_at_the_next_look(
    scene: Scene,
) -> None:
    created = await scene.kube.create(RESOURCE_CLAIMS, claim("other"))
    await allocate(scene.kube, created, result(device_name(1), pool=NODE))
    other = ClaimRef("default", "other", created["metadata"]["uid"])
    scene.holds()

    class Slow(Kube):
        async def get_message(self, resource: Resource, name: str, namespace: str | None = None) -> bytes:
            if name == "gpu":
                writer.ended(Operation(call="prepare", claim=other, seconds=0.1, devices=taken))
                entries = {**scene.node.current.held, other.uid: an_entry(other, a_held_device(1, other))}
                scene.node.current = Journal(entries)
            return await super().get_message(resource, name, namespace)

    taken = (AllocatedTo(NODE, device_name(1)),)
    async with Slow(Endpoint(server=scene.server.url)) as kube:
        writer = scene.new_writer(kube)
        refused = DeviceInUse("held by another claim", about=str(other))
        writer.ended(Operation(call="prepare", claim=other, seconds=0.1, devices=taken, error=refused))
        await writer.write()
        await writer.write()
    obj = await scene.kube.get(RESOURCE_CLAIMS, "other", "default")
    assert obj["status"]["devices"][0]["conditions"][0]["reason"] == "Prepared"
    assert len(await scene.devices()) == 1


async def test_a_claim_that_is_gone_or_another_one_is_left_alone(scene: Scene) -> None:
    scene.holds()
    await scene.writer.write()
    await scene.kube.delete(RESOURCE_CLAIMS, "gpu", namespace="default")
    await scene.allocated()  # another one of that name
    scene.node.current = Journal({})
    await scene.writer.write()
    assert await scene.devices() == []
    assert await scene.count_writes(scene.writer.write()) == 0


async def test_one_that_lost_its_devices_meanwhile_is_not_tried_again(scene: Scene) -> None:
    scene.node.current = Journal({scene.ref.uid: an_entry(scene.ref, a_held_device(7, scene.ref))})
    await scene.writer.write()
    assert await scene.devices() == []
    assert await scene.count_writes(scene.writer.write()) == 0


class Forbidding(Kube):
    """An API server that does not allow it for some claims."""

    def __init__(self, scene: Scene, *forbidden: str) -> None:
        super().__init__(Endpoint(server=scene.server.url))
        self.forbidden = set(forbidden)
        self.asked: list[str] = []

    async def replace_message(self, resource: Resource, name: str, message: bytes, **more: Any) -> JsonObject:
        self.asked.append(name)
        if name in self.forbidden:
            raise Rejected("forbidden", status=403)
        return await super().replace_message(resource, name, message, **more)


async def test_without_permission_a_claim_is_tried_once_in_a_long_while_and_the_others_are_told(scene: Scene) -> None:
    created = await scene.kube.create(RESOURCE_CLAIMS, claim("other"))
    await allocate(scene.kube, created, result(device_name(1), pool=NODE))
    other = ClaimRef("default", "other", created["metadata"]["uid"])
    entries = {ref.uid: an_entry(ref, a_held_device(at, ref)) for at, ref in enumerate([scene.ref, other])}
    scene.node.current = Journal(entries)
    async with Forbidding(scene, "gpu") as kube:
        writer = scene.new_writer(kube, pause_s=0.3)
        for _ in range(5):
            await writer.write()
        assert kube.asked == ["gpu", "other"]
        assert (await scene.kube.get(RESOURCE_CLAIMS, "other", "default"))["status"]["devices"]
        kube.forbidden.clear()
        await asyncio.sleep(0.35)
        await writer.write()
    assert kube.asked == ["gpu", "other", "gpu"]
    assert len(await scene.devices()) == 1


@pytest.mark.parametrize("answer", [b'{"kind": "ResourceClaim"}', b"k8s\x00\xff", b"k8s\x00\x12\x02\xff\xff"])
async def test_a_claim_that_is_answered_in_another_form_does_not_hold_up_the_others(
    scene: Scene, answer: bytes
) -> None:
    created = await scene.kube.create(RESOURCE_CLAIMS, claim("other"))
    await allocate(scene.kube, created, result(device_name(1), pool=NODE))
    other = ClaimRef("default", "other", created["metadata"]["uid"])
    held = enumerate([scene.ref, other])
    scene.node.current = Journal({ref.uid: an_entry(ref, a_held_device(at, ref)) for at, ref in held})

    class Odd(Kube):
        async def _content(self, call: Any) -> bytes:
            content = await super()._content(call)
            return answer if call.method == "GET" and call.path.endswith("/gpu") else content

    async with Odd(Endpoint(server=scene.server.url)) as kube:
        await scene.new_writer(kube).write()
    assert (await scene.kube.get(RESOURCE_CLAIMS, "other", "default"))["status"]["devices"]
    assert not await scene.devices()


async def test_what_may_not_be_taken_away_now_is_taken_away_later(scene: Scene) -> None:
    scene.holds()
    async with Forbidding(scene) as kube:
        writer = scene.new_writer(kube, pause_s=0.2)
        await writer.write()
        kube.forbidden.add("gpu")
        scene.node.current = Journal({})
        for _ in range(3):
            await writer.write()
        assert kube.asked == ["gpu", "gpu"]
        assert len(await scene.devices()) == 1
        kube.forbidden.clear()
        await asyncio.sleep(0.25)
        await writer.write()
        assert await scene.devices() == []
        assert await scene.count_writes(writer.write()) == 0


async def test_a_claim_that_others_write_without_end_is_tried_again_later(scene: Scene) -> None:
    class Late(Forbidding):
        async def replace_message(self, resource: Resource, name: str, message: bytes, **more: Any) -> JsonObject:
            self.asked.append(name)
            if len(self.asked) <= 5:
                raise Conflict("the object has been modified", status=409)
            return await Kube.replace_message(self, resource, name, message, **more)

    scene.holds()
    async with Late(scene) as kube:
        writer = scene.new_writer(kube, look_every_s=0.2)
        await writer.write()
        await writer.write()
        assert len(kube.asked) == 5
        assert await scene.devices() == []
        await asyncio.sleep(0.25)
        await writer.write()
        assert len(kube.asked) == 6
    assert len(await scene.devices()) == 1


async def test_a_server_that_keeps_none_is_asked_once_in_a_long_while(tmp_path: Path) -> None:
    api_server = ObservedApiServer(feature_gates={"DRAResourceClaimDeviceStatus": False})
    await api_server.start()
    async with Kube(Endpoint(server=api_server.url)) as kube:
        scene = Scene(api_server, kube, tmp_path)
        await scene.allocated()
        scene.holds()
        async with Forbidding(scene) as counted:
            writer = scene.new_writer(counted)
            for _ in range(5):
                await writer.write()
            assert counted.asked == ["gpu"]
        assert await scene.devices() == []
    await api_server.stop()


async def test_several_changes_are_one_write(scene: Scene) -> None:
    writer = scene.new_writer(together_s=0.2)
    task = asyncio.create_task(writer.run())
    await asyncio.sleep(0.05)
    before = len(scene.server.writes)
    for releasing in (False, True, False):
        scene.holds(releasing=releasing)
        writer.ended(Operation(call="prepare", claim=scene.ref, seconds=0.1, devices=ALLOCATED))
        await asyncio.sleep(0.02)
    await eventually(lambda: len(scene.server.writes) > before)
    await asyncio.sleep(0.3)
    task.cancel()
    assert len(scene.server.writes) - before == 1


@pytest.mark.parametrize(
    "devices",
    [
        [7],
        [{}],
        [{"driver": GPU_DRIVER}],
        [{"driver": GPU_DRIVER, "pool": "p", "device": "d", "conditions": [{}]}],
        [{"driver": GPU_DRIVER, "pool": "p", "device": "d", "conditions": 7}],
    ],
    ids=str,
)
async def test_statuses_that_no_api_server_has_are_read_again(devices: object) -> None:
    with pytest.raises(Unreachable, match=r"status\.devices"):
        entries_of({"status": {"devices": devices}}, GPU_DRIVER)


async def test_the_answer_about_binding_stays_when_the_claim_is_released(scene: Scene) -> None:
    """Without it, a claim that is allocated for a moment longer would be prepared again."""
    scene.holds(binding=BindingStage.ASKED)
    await scene.writer.write()
    assert "BindingReady" in str(await scene.devices())
    scene.node.current = Journal({})
    assert await scene.count_writes(scene.writer.write()) == 0
    assert "BindingReady" in str(await scene.devices())
    # It is as if nothing was said, also for the next plugin.
    assert not Reported(scene.folder).read(SECTION)
    scene.holds(binding=BindingStage.AHEAD)
    await scene.writer.write()
    assert "BindingReady" in str(await scene.devices())


async def test_what_the_api_server_dropped_with_an_allocation_is_said_again(scene: Scene) -> None:
    scene.holds(binding=BindingStage.AHEAD)
    await scene.writer.write()
    obj = await scene.kube.get(RESOURCE_CLAIMS, "gpu", "default")
    del obj["status"]["devices"]
    await scene.kube.replace(RESOURCE_CLAIMS, obj, subresource="status")
    await scene.writer.write()
    assert await scene.devices() == []
    scene.writer.say_again(scene.ref.uid)
    await scene.writer.write()
    assert "BindingReady" in str(await scene.devices())


async def test_the_kubelets_own_failure_keeps_the_answer_about_binding(scene: Scene) -> None:
    refusal = PrepareRefusal(scene.ref, ALLOCATED, "InvalidConfig", "no", BindingAnswer.BIND)
    scene.writer.waits_for_binding(refusal)
    await scene.writer.write()
    error = DeviceInUse("held by another claim", about=str(scene.ref))
    scene.writer.ended(Operation(call="prepare", claim=scene.ref, seconds=1.0, devices=ALLOCATED, error=error))
    await scene.writer.write()
    (device,) = await scene.devices()
    assert {condition["type"]: condition["status"] for condition in device["conditions"]} == {
        "Ready": "False",
        "BindingReady": "True",
    }


@pytest.mark.parametrize("answer", BindingAnswer)
async def test_of_a_claim_that_moved_before_it_was_answered_nothing_is_kept(
    scene: Scene, answer: BindingAnswer
) -> None:
    """The API server refuses what is said about devices that the claim no longer has. Seed 45128296 of the campaign."""
    elsewhere = tuple(replace(device, pool="node-b") for device in ALLOCATED)
    scene.writer.waits_for_binding(PrepareRefusal(scene.ref, elsewhere, "InvalidInput", "no", answer))
    await scene.writer.write()
    assert await scene.devices() == []
    scene.writer.waits_no_longer(scene.ref.uid)
    await scene.writer.write()
    assert not Reported(scene.folder).read(SECTION) and not scene.writer._refused


@pytest.mark.parametrize("answer", [BindingAnswer.WAIT, BindingAnswer.GIVE_UP])
async def test_of_a_claim_that_was_given_up_nothing_is_kept(scene: Scene, answer: BindingAnswer) -> None:
    """The kubelet never comes for it. The answer goes with the allocation, and may be unread yet."""
    scene.writer.waits_for_binding(PrepareRefusal(scene.ref, ALLOCATED, "HardwareError", "in use", answer))
    await scene.writer.write()
    devices = await scene.devices()
    assert "BindingReady" in str(devices) and Reported(scene.folder).read(SECTION)
    scene.writer.waits_no_longer(scene.ref.uid)
    await scene.writer.write()
    assert not Reported(scene.folder).read(SECTION) and await scene.devices() == devices


async def test_a_failure_ahead_of_the_kubelet_says_nothing_by_itself(scene: Scene) -> None:
    """It may be about devices that the claim no longer has. Seed 46128079 of the campaign."""
    error = DeviceInUse("held by another claim", about=str(scene.ref))
    ahead = Operation(call="prepare", claim=scene.ref, seconds=1.0, devices=ALLOCATED, error=error, ahead=True)
    scene.writer.ended(ahead)
    await scene.writer.write()
    assert await scene.devices() == [] and not Reported(scene.folder).read(SECTION)


async def test_what_the_disk_refused_is_written_later(scene: Scene) -> None:
    """Else a status could stay that nobody remembers. Seed 45128199 of the campaign."""
    scene.folder /= "absent"
    writer = scene.new_writer()
    scene.holds()
    await writer.write()
    assert await scene.devices() and not Reported(scene.folder).read(SECTION)
    scene.folder.mkdir()
    await writer.write()
    assert scene.ref.uid in Reported(scene.folder).read(SECTION)


async def test_a_release_does_not_take_back_that_the_node_gave_up(scene: Scene) -> None:
    """Of a pod before, which used the claim too. Without an answer, the next pod waits until the scheduler gives up.
    Seed 43128042 of the campaign."""
    scene.writer.waits_for_binding(PrepareRefusal(scene.ref, ALLOCATED, "X", "in use", BindingAnswer.GIVE_UP))
    scene.writer.ended(Operation(call="unprepare", claim=scene.ref, seconds=0.1))
    await scene.writer.write()
    assert "BindingFailed" in str(await scene.devices())
    scene.holds(binding=BindingStage.ASKED)
    scene.writer.ended(Operation(call="prepare", claim=scene.ref, seconds=0.1, devices=ALLOCATED))
    await scene.writer.write()
    assert "BindingFailed" not in str(await scene.devices())


async def test_of_a_claim_that_was_released_before_it_was_said_again_nothing_is_kept(scene: Scene) -> None:
    scene.holds(binding=BindingStage.AHEAD)
    await scene.writer.write()
    devices = await scene.devices()
    scene.writer.say_again(scene.ref.uid)
    scene.node.current = Journal({})
    await scene.writer.write()
    assert not Reported(scene.folder).read(SECTION) and await scene.devices() == devices


async def test_a_claim_that_is_bound_although_it_is_wrong_keeps_its_answer(scene: Scene) -> None:
    scene.writer.waits_for_binding(PrepareRefusal(scene.ref, ALLOCATED, "InvalidConfig", "no", BindingAnswer.BIND))
    await scene.writer.write()
    scene.writer.waits_no_longer(scene.ref.uid)
    error = InvalidConfig("no")
    scene.writer.ended(Operation(call="prepare", claim=scene.ref, seconds=1.0, devices=ALLOCATED, error=error))
    await scene.writer.write()
    assert "BindingReady" in str(await scene.devices())


async def test_a_pod_that_waits_is_answered_at_once(scene: Scene) -> None:
    """Other changes are written together."""
    writer = scene.new_writer(together_s=60.0)
    async with background(writer.run()):
        await asyncio.sleep(0.1)
        scene.holds(binding=BindingStage.AHEAD)
        writer.changed()
        await asyncio.sleep(0.1)
        assert await scene.devices() == []
        writer.ended(Operation(call="prepare", claim=scene.ref, seconds=1.0, devices=ALLOCATED, ahead=True))

        async with asyncio.timeout(10):
            while True:
                if "BindingReady" in str(await scene.devices()):
                    break
                await asyncio.sleep(0.02)
