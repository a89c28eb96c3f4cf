"""What claims of ComputeDomains and their pods hear while they run: the node's place in the domain, and its peers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.background import background
from support.claims import a_ref
from support.domain_cluster import DomainCluster, until
from support.objects import allocate, claim, result
from support.rows import rows

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.meta import COMPUTE_DOMAINS, RESOURCE_CLAIMS, JsonObject
from dra_driver.errors import NodeNotReady
from dra_driver.kube.client import Kube
from dra_driver.kube.events import EVENTS_V1, EventRecorder
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, ClaimRef
from kubelet_plugin.domains.readiness import DomainPlace, DomainWatch, channel_status, channel_troubles
from kubelet_plugin.prepare.claim_reads import ClaimReader, PodsOfClaims
from kubelet_plugin.prepare.journal import DomainClaim, DomainDevice, DomainName, Journal
from kubelet_plugin.prepare.listener import AllocatedTo, Operation
from kubelet_plugin.reporting.device_status import DeviceStatus, DeviceStatusWriter, PrepareRefusal
from kubelet_plugin.reporting.events import Reason
from kubelet_plugin.reporting.metrics import ClaimedDevice
from kubelet_plugin.reporting.pod_events import OVER_AFTER_S, ClaimPods, PodEvents
from kubelet_plugin.reporting.reported import Reported
from kubelet_plugin.rpc.pod_resources import PodsOfNode

NODE = "tray-1"
DOMAIN = DomainName("team", "train", "uid-of-domain", "rack.1")
CHANNEL = DomainDevice("channel-0", "channel", ("channel",), DOMAIN.uid, "Single")
DAEMON = DomainDevice("daemon-0", "daemon", ("daemon",), DOMAIN.uid, None)
MONITOR = DomainDevice("channel-0", "channel", ("channel",), "", "Single", admin=True)
RECORD = DomainClaim(a_ref(), (CHANNEL,), DOMAIN)


def entry(name: str, status: str = "Ready", index: int = 0, clique: str = "rack.1", **more: Any) -> JsonObject:
    return {"name": name, "index": index, "status": status, "cliqueID": clique, **more}


def place(*nodes: JsonObject) -> DomainPlace:
    metadata = {"name": "train", "namespace": "team", "uid": DOMAIN.uid}
    spec = {"channel": {"resourceClaimTemplate": {"name": "t"}}}
    return DomainPlace(NODE, ComputeDomain.of({"metadata": metadata, "spec": spec, "status": {"nodes": list(nodes)}}))


def conditions_of(statuses: Sequence[DeviceStatus]) -> list[tuple[str, str, str]]:
    (status,) = statuses
    return [(condition.type, condition.status, condition.reason) for condition in status.conditions]


READY, PEERS = ("Ready", "True", "Prepared"), ("PeersReady", "True", "PeersReady")


@rows(
    "where, conditions, words",
    [
        (place(entry(NODE)), [READY, PEERS], "node tray-1 is ready in ComputeDomain team/train"),
        (place(entry(NODE), entry("tray-2", index=1)), [READY, PEERS], "every other node"),
        (
            place(entry(NODE), entry("tray-2", "NotReady", 1, message="its daemon's pod p is ending")),
            [READY, ("PeersReady", "False", "PeersNotReady")],
            "1 of 1 other nodes: tray-2 (its daemon's pod p is ending)",
        ),
        (place(entry(NODE), entry("tray-2", "NotReady", 1, clique="rack.2")), [READY, PEERS], ""),
        (
            place(entry(NODE), *(entry(f"n{number}", "NotReady", number) for number in range(1, 6))),
            [READY, ("PeersReady", "False", "PeersNotReady")],
            "5 of 5 other nodes: n1 (not ready); n2 (not ready); n3 (not ready) and 2 more",
        ),
        (
            place(entry(NODE, "NotReady", message="its daemon's pod p is not ready yet")),
            [("Ready", "False", "DaemonNotReady"), PEERS],
            "node tray-1 in ComputeDomain team/train: its daemon's pod p is not ready yet",
        ),
        (
            place(entry("tray-2")),
            [("Ready", "False", "NodeNotInDomain"), ("PeersReady", "Unknown", "NoPlace")],
            "node tray-1 is no longer in ComputeDomain team/train",
        ),
        (
            DomainPlace(NODE, None),
            [("Ready", "False", "DomainGone"), ("PeersReady", "Unknown", "NoPlace")],
            "no longer exists",
        ),
        (None, [READY], ""),
    ],
)
def test_a_channel_says_how_its_node_stands_in_the_domain(
    where: DomainPlace | None, conditions: list[tuple[str, str, str]], words: str
) -> None:
    statuses = channel_status(RECORD, None, where, NODE)
    assert conditions_of(statuses) == conditions
    assert any(words in condition.message for condition in statuses[0].conditions)


def test_its_data_name_the_domain_and_the_place() -> None:
    (status,) = channel_status(RECORD, None, place(entry(NODE, index=3)), NODE)
    assert dict(status.data) == {"domain": "team/train", "domainUID": DOMAIN.uid, "clique": "rack.1", "index": "3"}
    assert status.device == AllocatedTo(NODE, "channel-0")


def test_a_refusal_comes_first_and_daemons_and_monitors_have_no_place() -> None:
    refusal = PrepareRefusal(a_ref(), (AllocatedTo(NODE, "channel-0"),), "DomainNotReady", "waits")
    assert conditions_of(channel_status(RECORD, refusal, place(entry(NODE)), NODE))[0] == (
        "Ready",
        "False",
        "DomainNotReady",
    )
    for record in (DomainClaim(a_ref(), (DAEMON,), DOMAIN), DomainClaim(a_ref(), (MONITOR,), None)):
        assert conditions_of(channel_status(record, None, DomainPlace(NODE, None), NODE)) == [READY]
        assert channel_troubles(record, DomainPlace(NODE, None), "") == ()


def test_pods_hear_of_their_own_node_alone() -> None:
    ill = place(entry(NODE, "NotReady", message="its daemon's pod p is ending"))
    (trouble,) = channel_troubles(RECORD, ill, "now")
    assert (trouble.reason, trouble.since) == (Reason.POD_IMEX_DAEMON_NOT_READY, "now")
    assert "its daemon's pod p is ending" in trouble.text
    assert channel_troubles(RECORD, place(entry(NODE), entry("tray-2", "NotReady", 1)), "") == ()
    assert channel_troubles(RECORD, None, "") == ()


class Tray:
    """One node's records, and what tells of them, on an API server."""

    def __init__(self, kube: Kube, folder: Path) -> None:
        self.kube = kube
        self.cluster = DomainCluster(kube)
        self.current = Journal({})
        self.reported = Reported(folder)
        self.standing = DomainWatch(kube, self, NODE)
        self.status = DeviceStatusWriter(kube, COMPUTE_DOMAIN_DRIVER, self.standing, self.reported)
        self.now = 0.0
        events = EventRecorder(kube, controller="gpu.nvidia.com/kubelet-plugin", instance=NODE)
        users = PodsOfClaims()
        self.pods = PodEvents(
            self.standing,
            ClaimPods(ClaimReader(kube, saw=users.saw), users, PodsOfNode([], [])),
            events,
            self.reported,
            driver=COMPUTE_DOMAIN_DRIVER,
            over=Reason.POD_IMEX_DAEMON_READY,
            clock=lambda: self.now,
        )
        self.seen = asyncio.Event()
        self.standing.subscribe(self.seen.set)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with background(self.standing.run()):
            yield

    async def prepared(self, domain: ComputeDomain) -> ClaimRef:
        pod = {"metadata": {"name": "train-0", "uid": "uid-of-train-0"}}
        made = await self.kube.create(RESOURCE_CLAIMS, claim(namespace="team"))
        given = result("channel-0", pool=NODE, driver=COMPUTE_DOMAIN_DRIVER)
        await allocate(self.kube, made, given, pods=[pod])
        ref = ClaimRef("team", made["metadata"]["name"], made["metadata"]["uid"])
        self.current = Journal(
            {},
            domains={
                **self.current.domains,
                ref.uid: DomainClaim(ref, (CHANNEL,), DomainName("team", "train", domain.metadata.uid)),
            },
        )
        self.ended(ref)
        return ref

    def ended(self, ref: ClaimRef) -> None:
        self.standing.ended(Operation(call="prepare", claim=ref, seconds=0.1))

    async def becomes(self, domain: ComputeDomain, *nodes: JsonObject) -> None:
        self.seen.clear()
        name, namespace = domain.metadata.name, domain.metadata.namespace
        status = {"status": {"status": "NotReady", "nodes": list(nodes)}}
        await self.kube.merge_patch(COMPUTE_DOMAINS, name, status, namespace=namespace, subresource="status")
        await asyncio.wait_for(self.seen.wait(), 20)

    async def reasons(self, ref: ClaimRef) -> dict[str, str]:
        await self.status.write()
        obj = await self.kube.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
        return {
            condition["type"]: condition["reason"]
            for device in obj["status"].get("devices") or ()
            for condition in device["conditions"]
        }

    async def heard(self) -> list[str]:
        await self.pods.look()
        events = (await self.kube.list(EVENTS_V1, namespace="team")).items
        assert {event["regarding"]["name"] for event in events} <= {"train-0"}
        return sorted(event["reason"] for event in events)


@pytest_asyncio.fixture
async def tray(kube: Kube, tmp_path: Path) -> Tray:
    tray = Tray(kube, tmp_path)
    await tray.cluster.install()
    return tray


async def test_a_channel_s_claim_and_pod_follow_the_domain_until_it_is_released(tray: Tray) -> None:
    domain = await tray.cluster.domain("train")
    async with tray.running():
        ref = await tray.prepared(domain)
        await asyncio.wait_for(tray.seen.wait(), 20)
        await tray.becomes(domain, entry(NODE))
        assert await tray.reasons(ref) == {"Ready": "Prepared", "PeersReady": "PeersReady"}
        assert await tray.heard() == []
        await tray.becomes(domain, entry(NODE, "NotReady", message="its daemon's pod p is ending"))
        assert (await tray.reasons(ref))["Ready"] == "DaemonNotReady"
        assert await tray.heard() == ["ImexDaemonNotReady"]
        await tray.becomes(domain, entry(NODE))
        await tray.heard()
        tray.now += OVER_AFTER_S
        assert await tray.heard() == ["ImexDaemonNotReady", "ImexDaemonReady"]
        assert tray.standing.devices() == [ClaimedDevice(ref, "channel-0", "channel")]
        tray.current = Journal({}, domains={uid: held for uid, held in tray.current.domains.items() if uid != ref.uid})
        tray.ended(ref)
        assert await tray.reasons(ref) == {}, "cleared"
        assert tray.standing.devices() == []


async def test_the_node_s_next_domain_is_followed_and_one_that_is_gone_is_told(tray: Tray) -> None:
    first = await tray.cluster.domain("train")
    async with tray.running():
        ref = await tray.prepared(first)
        await tray.becomes(first, entry(NODE))
        tray.seen.clear()
        await tray.cluster.delete(first)
        await asyncio.wait_for(tray.seen.wait(), 20)
        assert (await tray.reasons(ref))["Ready"] == "DomainGone"
        second = await tray.cluster.domain("train")
        tray.current = Journal(
            {},
            domains={
                **tray.current.domains,
                ref.uid: DomainClaim(ref, (CHANNEL,), DomainName("team", "train", second.metadata.uid)),
            },
        )
        tray.ended(ref)

        async def is_followed() -> bool:
            return (await tray.reasons(ref))["Ready"] == "NodeNotInDomain"

        await until(is_followed)
        await tray.becomes(second, entry(NODE))
        assert (await tray.reasons(ref))["Ready"] == "Prepared"


async def test_after_a_restart_nothing_is_over_before_the_domain_was_read(tray: Tray, tmp_path: Path) -> None:
    """The API server may be away for longer than what comes and goes."""
    domain = await tray.cluster.domain("train")
    async with tray.running():
        await tray.prepared(domain)
        await tray.becomes(domain, entry(NODE, "NotReady", message="its daemon's pod p is ending"))
        assert await tray.heard() == ["ImexDaemonNotReady"]
    restarted = Tray(tray.kube, tmp_path)
    restarted.current = tray.current
    for _ in range(2):
        with pytest.raises(NodeNotReady, match="has not been read yet"):
            await restarted.heard()
        restarted.now += OVER_AFTER_S
    async with restarted.running():
        await asyncio.wait_for(restarted.seen.wait(), 20)
        assert await restarted.heard() == ["ImexDaemonNotReady"]
