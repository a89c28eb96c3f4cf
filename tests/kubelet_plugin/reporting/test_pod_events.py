"""What pods hear of the devices that they hold: each reason, to whom, how often, and what outlives a restart."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from support.claims import (
    NODE,
    FakeClaims,
    a_claim,
    a_gpu,
    a_held_device,
    a_ref,
    a_result,
    an_entry,
    node_facts,
    uuid_of,
)

from dra_driver.api.gpu_settings import HealthPolicy
from dra_driver.api.inventory import HealthCondition, HealthFacts
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import ResourceClaim
from dra_driver.errors import DeviceInUse, DomainNotReady, DriverError, InvalidConfig, Unreachable
from dra_driver.kube.client import Kube
from dra_driver.kube.events import EVENTS_V1, EventRecorder
from dra_driver.names import ClaimRef
from kubelet_plugin.facts.monitor import CHECK_UNDER_WAY
from kubelet_plugin.prepare.claim_reads import ClaimReader, PodsOfClaims
from kubelet_plugin.prepare.holds import GpuIdentity, MpsDaemon
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.lifecycle import Entry
from kubelet_plugin.prepare.listener import Operation
from kubelet_plugin.reporting.events import Reason
from kubelet_plugin.reporting.pod_events import (
    LONG_S,
    OVER_AFTER_S,
    ClaimPods,
    ClaimTrouble,
    GpuTroubles,
    PodEvents,
    pod_news,
)
from kubelet_plugin.reporting.reported import REPORTED, Reported

XID = "Xid 79: the GPU fell off the bus"


def condition(type_: str = "Xid", severity: str = "Critical", message: str = XID, **more: Any) -> HealthCondition:
    return HealthCondition(
        type=type_, severity=severity, message=message, **{"value": None, "since": "2026-01-01T00:00:00Z", **more}
    )


class Members:
    """What kubelet knows of pods with claims of PodGroups: names and UIDs by the claim's name."""

    def __init__(self) -> None:
        self.of_claims: dict[str, list[tuple[str, str]]] = {}
        self.asked = 0

    async def of(self, claim: ClaimRef) -> list[tuple[str, str]]:
        self.asked += 1
        return self.of_claims.get(claim.name, [])


class Node:
    """The monitor, the journal and the API server's claims of a node, and a clock; they outlive a restart."""

    def __init__(self, kube: Kube, folder: Path) -> None:
        self.kube, self.folder = kube, folder
        self.facts = node_facts(2)
        self.current = Journal({})
        self.api = FakeClaims()
        self.members = Members()
        self.now = 1000.0
        self.events = self.plugin()

    def plugin(self) -> PodEvents:
        """As it starts."""
        recorder = EventRecorder(self.kube, controller="gpu.nvidia.com/kubelet-plugin", instance=NODE, burst=10_000)
        source = GpuTroubles(self, self, HealthPolicy)
        self.users = PodsOfClaims()
        reader = ClaimReader(self.api, saw=self.users.saw)
        pods = ClaimPods(reader, self.users, cast(Any, self.members))
        return PodEvents(source, pods, recorder, Reported(self.folder), clock=lambda: self.now)

    def holds(self, name: str, *pods: str, entry: Entry | None = None, **device: Any) -> ClaimRef:
        """A claim with GPU 0, prepared, reserved for these pods."""
        ref = a_ref(name, namespace="default")
        made = entry or an_entry(ref, a_held_device(0, ref, **device))
        self.current = Journal({**self.current.held, ref.uid: replace(made, claim=ref)})
        self.reserve(ref, *pods)
        return ref

    def reserve(self, ref: ClaimRef, *pods: str, owner: str = "") -> None:
        obj = a_claim(ref, a_result(0))
        if owner:
            obj["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": owner}]
        obj["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"uid-of-{pod}"} for pod in pods]
        self.api.put(obj)

    def gpu_has(self, *conditions: HealthCondition) -> None:
        self.facts = node_facts([a_gpu(0, health=HealthFacts(conditions=list(conditions))), a_gpu(1)])

    async def reported(self) -> list[tuple[str, str]]:
        """Look, and then pod and reason of all Events that there are, oldest first."""
        await self.events.look()
        return [(event["regarding"]["name"], event["reason"]) for event in await self.objects()]

    async def objects(self) -> list[JsonObject]:
        items = (await self.kube.list(EVENTS_V1)).items
        return sorted(items, key=lambda event: (event["eventTime"], event["regarding"]["name"]))

    async def passes(self, seconds: float) -> list[tuple[str, str]]:
        """As `reported`, when something that is away has been so for as long."""
        await self.events.look()
        self.now += seconds
        return await self.reported()


@pytest.fixture
def node(kube: Kube, tmp_path: Path) -> Node:
    return Node(kube, tmp_path)


def mps(entry: Entry) -> Entry:
    return replace(entry, holds=(MpsDaemon("own", (GpuIdentity(uuid_of(0), "0000:10:00.0"),)),))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (condition(), "GpuUnhealthy"),
        (condition("GpuLost", message="cannot be read"), "GpuUnhealthy"),
        (condition("NotValidated", message="it did not pass its check: too slow"), "GpuUnhealthy"),
        (condition(severity="Warning", value="94", message="Xid 94: a contained memory error"), "GpuDegraded"),
        (condition("MpsDaemon", message="MPS daemon own died"), "MpsDaemonFailed"),
        (condition("MpsDaemon", "Warning", "MPS daemon own died; it was started anew"), "MpsDaemonRestarted"),
        (condition("InstanceLost", message="MIG device MIG-1 is gone", instance="MIG-1"), "MigDeviceLost"),
    ],
)
async def test_the_pod_hears_once_what_befell_its_device(node: Node, fault: HealthCondition, reason: str) -> None:
    node.holds("train", "train-0", entry=mps(an_entry()))
    assert await node.reported() == []
    node.gpu_has(fault)
    assert await node.reported() == [("train-0", reason)]
    assert await node.reported() == [("train-0", reason)]
    (event,) = await node.objects()
    assert event["metadata"]["namespace"] == "default"
    assert event["regarding"] == {
        "apiVersion": "v1", "kind": "Pod", "name": "train-0", "uid": "uid-of-train-0", "namespace": "default",
    }  # fmt: skip
    assert "Claim train" in event["note"] and fault.message in event["note"]


@pytest.mark.parametrize(
    "fault",
    [
        condition("Unmonitored", "Warning", "its events cannot be received"),
        condition("NotValidated", message=CHECK_UNDER_WAY),
        condition("DriverIncomplete", message="libcuda.so is missing"),
        condition("Xid", "Info", "Xid 63", value="63"),
        condition("Xid", message="Xid 13: a fault of the program that ran", value="13"),
        condition("MpsDaemon", message="somebody else's MPS daemon died"),
    ],
)
async def test_what_does_not_concern_who_has_the_device_is_not_told(node: Node, fault: HealthCondition) -> None:
    node.holds("train", "train-0")
    node.gpu_has(fault)
    assert await node.reported() == []


async def test_pods_hear_when_all_is_over_for_a_while(node: Node) -> None:
    node.holds("train", "train-0")
    node.gpu_has(condition(), condition("Ecc", message="uncorrectable"))
    assert await node.reported() == [("train-0", "GpuUnhealthy")], "one for both"
    node.gpu_has(condition())
    assert len(await node.passes(OVER_AFTER_S)) == 1, "one of two is over"
    node.gpu_has()
    assert len(await node.passes(OVER_AFTER_S - 1)) == 1
    node.now += 1
    assert await node.reported() == [("train-0", "GpuUnhealthy"), ("train-0", "GpuHealthy")]
    node.gpu_has(condition(since="2026-01-02T00:00:00Z"))
    assert [reason for _, reason in await node.reported()] == ["GpuUnhealthy", "GpuHealthy", "GpuUnhealthy"]


async def test_what_comes_and_goes_is_told_once(node: Node) -> None:
    node.holds("train", "train-0")
    for hour in range(10):
        node.gpu_has(condition(since=f"2026-01-01T{hour:02}:00:00Z"))
        await node.reported()
        node.gpu_has()
        assert await node.passes(OVER_AFTER_S - 1) == [("train-0", "GpuUnhealthy")]


async def test_an_mps_daemon_that_is_there_again_is_not_over_a_second_time(node: Node) -> None:
    node.holds("train", "train-0", entry=mps(an_entry()))
    node.gpu_has(condition("MpsDaemon", "Warning", "MPS daemon own died; it was started anew"))
    await node.reported()
    node.gpu_has()
    assert await node.passes(OVER_AFTER_S) == [("train-0", "MpsDaemonRestarted")]


async def test_all_pods_of_a_shared_claim_hear_also_those_that_came_after_it_was_prepared(node: Node) -> None:
    ref = node.holds("shared", "one")
    node.reserve(ref, "one", "two", "three")
    node.gpu_has(condition())
    assert await node.reported() == [(pod, "GpuUnhealthy") for pod in ("one", "two", "three")]


async def test_who_joins_a_shared_claim_later_hears_what_still_is_wrong_and_the_others_nothing_twice(
    node: Node,
) -> None:
    ref = node.holds("shared", "one", entry=mps(an_entry()))
    node.gpu_has(condition(), condition("MpsDaemon", "Warning", "MPS daemon own died; it was started anew"))
    first = [("one", "GpuUnhealthy"), ("one", "MpsDaemonRestarted")]
    assert sorted(await node.reported()) == first
    await node.kube.delete_collection(EVENTS_V1, namespace="default")  # as after an hour
    node.reserve(ref, "one", "two")
    assert await node.reported() == [], "it is not read again at each look"
    node.events = node.plugin()
    node.users.saw(ResourceClaim.of(node.api.objects["default", ref.name]))  # as at each start
    node.reserve(ref, "one", "two", "three")
    late = [("three", "GpuUnhealthy"), ("two", "GpuUnhealthy")]
    assert sorted(await node.reported()) == late, "nor forgotten by a restart"
    node.now += 61
    assert len(await node.reported()) == 2
    node.gpu_has()
    node.reserve(ref, "one", "four")
    assert len(await node.passes(OVER_AFTER_S)) == 4, "what is over is told to those who are there"
    assert sorted((await node.reported())[2:]) == [("four", "GpuHealthy"), ("one", "GpuHealthy")]


async def test_who_joins_while_it_seems_to_be_over_hears_when_it_is_not(node: Node) -> None:
    ref = node.holds("shared", "one")
    node.gpu_has(condition())
    await node.reported()
    node.now += 50
    node.gpu_has()
    await node.events.look()
    node.reserve(ref, "one", "two")
    node.now += 15
    assert await node.reported() == [("one", "GpuUnhealthy")]
    assert node.users.of([ref.uid]) == {ref.uid: ("one", "two")}, "it was read"
    node.gpu_has(condition())
    node.now += 60
    assert await node.reported() == [("one", "GpuUnhealthy"), ("two", "GpuUnhealthy")]


async def test_for_whom_a_shared_claim_is_reserved_is_known_within_a_minute_also_when_nothing_is_wrong(
    node: Node,
) -> None:
    shared, own = node.holds("shared", "one"), node.holds("own", "two")
    node.reserve(own, "two", owner="two")
    for ref in (shared, own):
        node.users.saw(ResourceClaim.of(node.api.objects["default", ref.name]))
    await node.events.look()
    node.reserve(shared, "one", "three")
    for seconds, known in ((59, ("one",)), (1, ("one", "three"))):
        node.now += seconds
        await node.events.look()
        assert node.users.of([shared.uid]) == {shared.uid: known}
    assert node.api.reads == 2, "and a pod's own claim is not read again"


async def test_when_telling_who_came_late_does_not_work_out_it_is_tried_again_soon(node: Node) -> None:
    ref = node.holds("shared", "one")
    node.gpu_has(condition())
    await node.reported()
    node.reserve(ref, "one", "two")
    node.now += 60
    node.api.failures = [Unreachable("away")]
    with pytest.raises(Unreachable):
        await node.events.look()
    node.api.failures = []
    assert await node.reported() == [("one", "GpuUnhealthy"), ("two", "GpuUnhealthy")]


async def test_monitors_pod_groups_and_claims_that_are_not_prepared_hear_nothing(node: Node) -> None:
    node.holds("monitor", "dcgm", admin_access=True)
    node.holds("coming", "coming-0", entry=replace(an_entry(), cdi_digest=None))
    node.holds("going", "going-0", entry=replace(an_entry(), releasing=True))
    group = node.holds("group")
    (node.api.objects["default", group.name])["status"]["reservedFor"] = [
        {"resource": "podgroups", "apiGroup": "scheduling.k8s.io", "name": "gang", "uid": "uid-of-gang"}
    ]
    node.gpu_has(condition())
    assert await node.reported() == []


GROUP = {"resource": "podgroups", "apiGroup": "scheduling.k8s.io", "name": "gang", "uid": "uid-of-gang"}


def of_group(node: Node, name: str) -> ClaimRef:
    """A claim for a PodGroup, as it was read when kubelet had it prepared."""
    ref = node.holds(name)
    obj = node.api.objects["default", name]
    obj["status"]["reservedFor"] = [GROUP]
    node.users.saw(ResourceClaim.of(obj))
    return ref


async def test_pods_of_a_group_hear_what_befalls_its_claim_also_those_that_come_later(node: Node) -> None:
    ref = of_group(node, "train")
    node.members.of_claims["train"] = [("a", "uid-a"), ("b", "uid-b"), ("no-log-yet", "")]
    assert await node.reported() == []
    assert node.users.of([ref.uid])[ref.uid] == ("a", "b", "no-log-yet")
    node.gpu_has(condition())
    both = [("a", "GpuUnhealthy"), ("b", "GpuUnhealthy")]
    assert sorted(await node.reported()) == both
    assert [event["regarding"]["uid"] for event in await node.objects()] == ["uid-a", "uid-b"]
    node.members.of_claims["train"] = [("a", "uid-a"), ("late", "uid-late")]
    asked = node.members.asked
    assert sorted(await node.passes(30.0)) == both
    assert node.members.asked == asked, "once a minute"
    assert sorted(await node.passes(60.0)) == [*both, ("late", "GpuUnhealthy")]
    assert node.users.of([ref.uid])[ref.uid] == ("a", "late")
    node.gpu_has()
    assert ("late", "GpuHealthy") in await node.passes(OVER_AFTER_S)


async def test_kubelet_is_not_asked_who_has_claims_of_no_group(node: Node) -> None:
    node.holds("train", "train-0")
    node.gpu_has(condition())
    assert await node.reported() == [("train-0", "GpuUnhealthy")]
    assert node.members.asked == 0


async def test_pods_of_a_group_are_forgotten_when_the_claim_is_another_pods(node: Node) -> None:
    ref = of_group(node, "train")
    node.members.of_claims["train"] = [("a", "uid-a")]
    await node.reported()
    node.reserve(ref, "other")
    await node.passes(60.0)
    assert node.users.of([ref.uid])[ref.uid] == ("other",)


async def test_a_restart_neither_repeats_nor_forgets(node: Node) -> None:
    node.holds("train", "train-0")
    node.gpu_has(condition())
    await node.reported()
    await node.kube.delete_collection(EVENTS_V1, namespace="default")  # as after an hour
    node.events = node.plugin()
    assert await node.reported() == []
    node.gpu_has()
    node.events = node.plugin()
    assert await node.passes(OVER_AFTER_S) == [("train-0", "GpuHealthy")], "it ended while nobody looked"


@pytest.mark.parametrize(
    "wrong",
    [
        "{",
        "[]",
        "{}",
        '"text"',
        "[1]",
        '{"{uid}": [{"reason": "POD_GPU_UNHEALTHY"}]}',
        '{"{uid}": 5}',
        '{"{uid}": [{"reason": "POD_GPU_UNHEALTHY", "subject": "s", "text": 5, "since": ""}]}',
        '{"{uid}": [{"reason": "POD_GPU_UNHEALTHY", "subject": "s", "text": "", "since": "", "pods": [{}, 5]}]}',
        '{"{uid}": [{"reason": "OF_A_NEWER_RELEASE", "subject": "s", "text": "", "since": ""}]}',
    ],
)
async def test_a_file_that_makes_no_sense_is_forgotten_and_ends_nothing(node: Node, wrong: str) -> None:
    ref = node.holds("train", "train-0")
    node.gpu_has(condition())
    assert await node.reported() == [("train-0", "GpuUnhealthy")]
    (node.folder / REPORTED).write_text(f'{{"pod events of gpu.nvidia.com": {wrong.replace("{uid}", ref.uid)}}}')
    node.events = node.plugin()
    assert await node.reported() == [("train-0", "GpuUnhealthy")]
    node.gpu_has()
    assert await node.passes(OVER_AFTER_S) == [("train-0", "GpuUnhealthy"), ("train-0", "GpuHealthy")]


async def test_a_restart_before_it_was_remembered_repeats_nothing_that_the_server_has(node: Node) -> None:
    node.holds("train", "train-0")
    node.gpu_has(condition())
    await node.reported()
    (node.folder / REPORTED).unlink()
    node.events = node.plugin()
    assert await node.reported() == [("train-0", "GpuUnhealthy")]


async def test_an_api_server_that_goes_away_in_the_middle_hears_the_rest_later(node: Node) -> None:
    node.holds("one", "one-0")
    node.holds("two", "two-0")
    node.gpu_has(condition())
    node.api.failures = [Unreachable("away")]
    with pytest.raises(Unreachable):
        await node.events.look()
    node.api.failures = []
    assert await node.reported() == [("one-0", "GpuUnhealthy"), ("two-0", "GpuUnhealthy")]


async def test_two_hundred_pods_are_told_in_the_pace_of_the_recorder(node: Node, monkeypatch: Any) -> None:
    ref = node.holds("shared", *(f"pod-{number}" for number in range(200)))
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def counted(seconds: float) -> None:
        pauses.append(round(seconds, 6))
        await sleep(0)

    class Created:
        async def create(self, resource: Any, obj: JsonObject) -> JsonObject:
            names.add(obj["metadata"]["name"])
            return obj

    names: set[str] = set()
    node.gpu_has(condition())
    events = PodEvents(
        GpuTroubles(node, node, HealthPolicy),
        node.events._pod_source,
        EventRecorder(Created(), controller="c", instance=NODE),
        Reported(node.folder),
    )
    monkeypatch.setattr("dra_driver.kube.events.asyncio.sleep", counted)
    monkeypatch.setattr("dra_driver.kube.events._clock", lambda: sum(pauses))
    await events.look()
    assert (len(names), pauses) == (200, [1.0] * 180), "20 at once, then one a second"
    assert node.api.reads == 1
    assert list(events._known) == [ref.uid]


def ended(node: Node, ref: ClaimRef, error: DriverError | None, call: Any = "prepare") -> None:
    node.events.ended(Operation(call=call, claim=ref, seconds=0.1, error=error))


async def test_what_keeps_a_claim_from_being_prepared_for_good_is_told_at_once_and_once(node: Node) -> None:
    ref = a_ref("train", namespace="default")
    node.reserve(ref, "train-0")
    for _ in range(3):
        ended(node, ref, InvalidConfig("replicas must be a number"))
        assert await node.reported() == [("train-0", "PrepareFailed")]
    (event,) = await node.objects()
    assert "replicas must be a number. The author of the claim or its class must change it." in event["note"]
    node.events = node.plugin()
    ended(node, ref, InvalidConfig("replicas must be a number"))
    assert await node.reported() == [("train-0", "PrepareFailed")], "nor after a restart"


async def test_a_pod_hears_of_each_of_its_claims_that_cannot_be_prepared_and_of_the_field(node: Node) -> None:
    for name in ("one", "two"):
        ref = a_ref(name, namespace="default")
        node.reserve(ref, "train-0")
        ended(node, ref, InvalidConfig("is 500", about=str(ref), field="spec.percentage"))
    assert await node.reported() == [("train-0", "PrepareFailed")] * 2
    notes = sorted(event["note"].partition(". ")[0] for event in await node.objects())
    assert notes == [f"Claim {name}: cannot be prepared: spec.percentage: is 500" for name in ("one", "two")]


async def test_what_passes_is_told_after_minutes_alone(node: Node) -> None:
    ref = a_ref("train", namespace="default")
    node.reserve(ref, "train-0")
    ended(node, ref, DeviceInUse("gpu-1 is held"))
    assert await node.reported() == []
    node.now += LONG_S
    assert await node.reported() == [], "kubelet may have given up"
    ended(node, ref, DomainNotReady("node-2 is not ready"))
    assert await node.reported() == [("train-0", "PrepareWaits")]
    ended(node, ref, None)
    assert await node.passes(OVER_AFTER_S) == [("train-0", "PrepareWaits")], "kubelet says that it goes on"
    ended(node, ref, DeviceInUse("gpu-1 is held"))
    node.now += LONG_S - 1
    ended(node, ref, DeviceInUse("gpu-1 is held"))
    assert len(await node.reported()) == 1, "another wait begins anew"


async def test_a_claim_that_is_gone_or_another_one_is_not_told(node: Node) -> None:
    ref = a_ref("train", namespace="default")
    ended(node, ref, InvalidConfig("x"))
    assert await node.reported() == []
    node.reserve(a_ref("train", uid="another", namespace="default"), "train-0")
    ended(node, ref, InvalidConfig("x"))
    assert await node.reported() == []


async def test_a_claim_that_makes_no_sense_keeps_nobody_from_hearing(node: Node) -> None:
    broken = node.holds("broken", "broken-0")
    node.holds("train", "train-0")
    node.api.objects["default", broken.name]["status"]["reservedFor"] = "nobody"
    node.gpu_has(condition())
    assert await node.reported() == [("train-0", "GpuUnhealthy")]


def test_many_devices_are_one_event_that_names_some() -> None:
    troubles = [ClaimTrouble(Reason.POD_GPU_UNHEALTHY, f"gpu-{number}", f"gpu-{number}: lost") for number in range(8)]
    (telling,), reported = pod_news((), troubles, 0.0, Reason.POD_GPU_HEALTHY)
    assert telling.note.startswith("gpu-0: lost; gpu-1: lost; gpu-2: lost and 5 more. If the pod no longer works")
    assert len(reported) == 8
    assert pod_news(reported, troubles, 1.0, Reason.POD_GPU_HEALTHY) == ((), reported)
