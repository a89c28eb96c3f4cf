"""The ComputeDomain of this node's channels: a channel waits until it is ready, and reports follow it afterwards.

`DomainReader` serves the preparation of a channel, outside any lock. It looks for the domain in the claim's own
namespace, so that no pod joins another namespace's domain, and follows it until this node's entry is Ready.

`DomainWatch` follows the domain (a node has channels of one at most) as long as a claim has a channel.
`channel_status` and `channel_troubles` decide what `kubelet_plugin.reporting` writes to the claim's `status.devices`
and to its pods. Events of a pod are about its own node only; the status of claims and of the domain also says when a
peer is not ready.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from dra_driver.api.computedomain import ComputeDomain, DomainNode
from dra_driver.api.meta import COMPUTE_DOMAINS
from dra_driver.domains.status import READY
from dra_driver.errors import DomainLack, DomainNotReady, DriverError, Gone, InvalidInput, NodeNotReady, Unreachable
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Mirror
from dra_driver.names import ClaimRef
from dra_driver.phrases import and_more, how_many
from dra_driver.runtime.tasks import until
from kubelet_plugin.domains.wanted import is_channel
from kubelet_plugin.prepare.journal import DomainClaim, DomainName
from kubelet_plugin.prepare.listener import AllocatedTo, ClaimListener, Operation
from kubelet_plugin.prepare.store import JournalStore
from kubelet_plugin.reporting.device_status import DeviceStatus, PrepareRefusal, StatusCondition, bound
from kubelet_plugin.reporting.events import Reason
from kubelet_plugin.reporting.metrics import ClaimedDevice
from kubelet_plugin.reporting.pod_events import ClaimTrouble

PATIENCE_S = 30.0
"""kubelet's deadline for a call is 45 s; its next attempt comes about 90 s later."""

_PAUSE_S = 0.5
_AGAIN_S = 10.0
_LOOK_EVERY_S = 60.0
"""Claims are also released without kubelet's asking."""
_NAMED = 3
"""Peers that a message names; the rest are counted."""

_log = structlog.get_logger(__name__)


class DomainReader:
    """Of one node. `takes_late_peers`: whether its IMEX daemon keeps connections when nodes join later; `patience_s` is
    how long a channel may wait."""

    def __init__(
        self, api: Kube, node_name: str, takes_late_peers: Callable[[], bool], *, patience_s: float = PATIENCE_S
    ) -> None:
        self._api = api
        self._node = node_name
        self._takes_late_peers = takes_late_peers
        self._patience_s = patience_s

    async def find(self, uid: str, claim: ClaimRef, namespace: str | None) -> ComputeDomain:
        """The domain in any state; None for `namespace` looks in all. Raises InvalidInput when there is none."""
        domain, _ = await self._look(uid, claim, namespace)
        return domain

    async def ready(self, uid: str, claim: ClaimRef, has_other_domain: Callable[[], bool]) -> ComputeDomain:
        """The domain of the claim's namespace, once it is ready on this node. `has_other_domain`: whether claims of
        another one are prepared here.

        Raises DomainNotReady that says what is missing when the patience is over, InvalidInput when there is no such
        domain or it is being deleted, ClusterError when the API server cannot be asked.
        """
        state, last = "its ComputeDomain has not been read yet", None
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                while True:
                    domain, version = await self._look(uid, claim, claim.namespace)
                    async for seen in self._states(domain, version):
                        missing = self.missing(seen, claim)
                        if missing is None:
                            return seen
                        state, last = missing, seen
                    await asyncio.sleep(_PAUSE_S)
        lack = DomainLack.OTHER_NODES if last is None else self._lack(last, has_other_domain())
        raise DomainNotReady(f"{state}; it is tried again", about=str(claim), lack=lack)

    def missing(self, domain: ComputeDomain, claim: ClaimRef) -> str | None:
        """What keeps this node's containers of the domain from starting; None when nothing does."""
        metadata, status = domain.metadata, domain.status
        name = f"ComputeDomain {metadata.namespace}/{metadata.name}"
        if metadata.deletion_timestamp is not None:
            raise InvalidInput(f"{name} is being deleted; delete the pod, too", about=str(claim))
        entry = next((node for node in status.nodes if node.name == self._node), None)
        ready = next((condition for condition in status.conditions if condition.type == READY), None)
        why = ready.message or ready.reason if ready is not None else "the controller has not processed it yet"
        if entry is None:
            return f"node {self._node} is not in {name} yet: {why}"
        if entry.status != "Ready":
            return f"{name} is not ready on node {self._node}: {entry.message or why}"
        if self._waits_for_others(domain):
            return f"{name} waits for {how_many(domain.spec.num_nodes, 'node')}: {why}"
        return None

    def _lack(self, domain: ComputeDomain, has_other_domain: bool) -> DomainLack:
        if self._waits_for_others(domain):
            return DomainLack.OTHER_NODES
        joined = any(node.name == self._node for node in domain.status.nodes)
        return DomainLack.FREE_NODE if not joined and has_other_domain else DomainLack.READY_DAEMON

    def _waits_for_others(self, domain: ComputeDomain) -> bool:
        """Whether this node is ready in the domain, and other nodes are missing that its daemon must restart for.

        Source: `numNodes` in NVIDIA's API, which keeps no container waiting where daemons have names.
        """
        here = any(node.name == self._node and node.status == "Ready" for node in domain.status.nodes)
        incomplete = domain.spec.num_nodes > 0 and domain.status.status != "Ready"
        return here and incomplete and not self._takes_late_peers()

    async def _look(self, uid: str, claim: ClaimRef, namespace: str | None) -> tuple[ComputeDomain, str]:
        listing = await self._api.list(COMPUTE_DOMAINS, namespace=namespace)
        for item in listing.items:
            if item["metadata"]["uid"] == uid:
                return ComputeDomain.of(item), listing.resource_version
        where = f"in namespace {namespace}" if namespace is not None else "in the cluster"
        raise InvalidInput(
            f"there is no ComputeDomain with UID {uid} {where}; a claim for one is made from the template that the"
            " domain names, in its own namespace",
            about=str(claim),
        )

    async def _states(self, domain: ComputeDomain, version: str) -> AsyncGenerator[ComputeDomain, None]:
        """The domain as it is, and after each change until the watch ends."""
        yield domain
        metadata = domain.metadata
        events = self._api.watch(
            COMPUTE_DOMAINS,
            namespace=metadata.namespace,
            field_selector=f"metadata.name={metadata.name}",
            resource_version=version,
        )
        with suppress(Gone, Unreachable):
            async with aclosing(events):
                async for event in events:
                    if event.type == "DELETED":
                        return
                    if event.type != "BOOKMARK":
                        yield ComputeDomain.of(event.object)


@dataclass(frozen=True, slots=True)
class DomainPlace:
    """What is known of a node's place in a domain. `domain` is None when it does not exist, or no longer exists."""

    node: str
    domain: ComputeDomain | None

    @property
    def entry(self) -> DomainNode | None:
        nodes = () if self.domain is None else self.domain.status.nodes
        return next((node for node in nodes if node.name == self.node), None)

    @property
    def problem(self) -> tuple[str, str] | None:
        """Reason and message of why programs on the node cannot reach others; None when they can."""
        if self.domain is None:
            return "DomainGone", "its ComputeDomain no longer exists; delete the pod"
        if self.entry is None:
            return "NodeNotInDomain", f"node {self.node} is no longer in {self._name}"
        if self.entry.status != "Ready":
            why = self.entry.message or "not ready"
            return "DaemonNotReady", f"node {self.node} in {self._name}: {why}"
        return None

    @property
    def ready(self) -> StatusCondition:
        if self.problem is not None:
            return StatusCondition("Ready", "False", *self.problem)
        return StatusCondition("Ready", "True", "Prepared", f"node {self.node} is ready in {self._name}")

    @property
    def peers_ready(self) -> StatusCondition:
        """Of the nodes with which this one can share memory: those of its clique."""
        entry, nodes = self.entry, () if self.domain is None else self.domain.status.nodes
        if entry is None:
            return StatusCondition("PeersReady", "Unknown", "NoPlace", "the node is not in the domain")
        peers = [
            node for node in nodes if node.name != self.node and node.clique_id and node.clique_id == entry.clique_id
        ]
        missing = [f"{peer.name} ({peer.message or 'not ready'})" for peer in peers if peer.status != "Ready"]
        if not missing:
            return StatusCondition(
                "PeersReady", "True", "PeersReady", "every other node of its clique in the domain is ready"
            )
        message = f"{len(missing)} of {len(peers)} other nodes: {and_more(missing, _NAMED, separator='; ')}"
        return StatusCondition("PeersReady", "False", "PeersNotReady", message)

    @property
    def _name(self) -> str:
        assert self.domain is not None
        return f"ComputeDomain {self.domain.metadata.namespace}/{self.domain.metadata.name}"


def channel_status(
    claim: DomainClaim, refusal: PrepareRefusal | None, place: DomainPlace | None, node: str
) -> tuple[DeviceStatus, ...]:
    """Of each device of a claim that has a record; also of a daemon's, and of one that only looks on. `place` is None
    while it is not known."""
    ready = StatusCondition("Ready", "True", "Prepared", "is prepared")
    conditions = [ready] if refusal is None else [*refusal.conditions]
    binds = bound(claim.binding, refusal)
    data: dict[str, str] = {}
    domain = claim.domain
    if domain is not None:
        data = {"domain": f"{domain.namespace}/{domain.name}", "domainUID": domain.uid, "clique": domain.clique}
    if is_channel(claim) and place is not None:
        conditions = [*([place.ready] if refusal is None else refusal.conditions), place.peers_ready]
        if place.entry is not None:
            data |= {"clique": place.entry.clique_id, "index": str(place.entry.index)}
    pairs = tuple(sorted((name, value) for name, value in data.items() if value))
    return tuple(DeviceStatus(AllocatedTo(node, device.name), (*conditions, *binds), pairs) for device in claim.devices)


def channel_troubles(claim: DomainClaim, place: DomainPlace | None, since: str) -> tuple[ClaimTrouble, ...]:
    """What is reported to pods with a channel; `since` is when it was seen first."""
    if place is None or place.problem is None or not is_channel(claim) or claim.domain is None:
        return ()
    _, message = place.problem
    return (ClaimTrouble(Reason.POD_IMEX_DAEMON_NOT_READY, claim.domain.uid, message, since),)


class DomainWatch(ClaimListener):
    """Of one node. `run` until cancelled."""

    def __init__(self, kube: Kube, journal: JournalStore, node: str) -> None:
        self._kube = kube
        self._journal = journal
        self._node = node
        self._known: Mapping[str, DomainClaim] = {}
        self._place: DomainPlace | None = None
        self._since = ""
        self._wake = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call it in the event loop when the domain is not as it was."""
        self._listeners.append(listener)

    def ended(self, operation: Operation) -> None:
        self._wake.set()

    async def held(self) -> Mapping[str, ClaimRef]:
        """Raises NodeNotReady."""
        self._known = self._journal.current.domains
        return {uid: known.claim for uid, known in self._known.items()}

    def status(self, uid: str, refusal: PrepareRefusal | None) -> tuple[DeviceStatus, ...]:
        claim = self._known.get(uid)
        if claim is None:
            return () if refusal is None else refusal.status()
        return channel_status(claim, refusal, self._place, self._node)

    def troubles(self, uid: str) -> Sequence[ClaimTrouble]:
        claim = self._known.get(uid)
        if claim is not None and is_channel(claim) and self._place is None:
            raise NodeNotReady("its ComputeDomain has not been read yet", about=str(claim.claim))
        return () if claim is None else channel_troubles(claim, self._place, self._since)

    def devices(self) -> Sequence[ClaimedDevice]:
        """All devices of claims, as they were found last."""
        return [
            ClaimedDevice(claim.claim, device.name, device.kind, device.admin)
            for _, claim in sorted(self._known.items())
            for device in claim.devices
        ]

    async def run(self) -> None:
        """Follow the domain of the node's channels."""
        followed: str | None = None
        follower: asyncio.Task[None] | None = None
        try:
            while True:
                self._wake.clear()
                domain = await self._domain()
                uid = None if domain is None else domain.uid
                if uid != followed:
                    await _end(follower)
                    self._place, followed = None, uid
                    follower = None if domain is None else asyncio.create_task(self._follow(domain))
                await until(self._wake, _LOOK_EVERY_S)
        finally:
            await _end(follower)

    async def _domain(self) -> DomainName | None:
        """Of the channels that claims have; tried until it can be read."""
        while True:
            with suppress(DriverError):  # it is tried again below
                await self.held()
                channels = (claim.domain for claim in self._known.values() if is_channel(claim))
                return next(channels, None)
            await asyncio.sleep(_AGAIN_S)

    async def _follow(self, domain: DomainName) -> None:
        mirror = Mirror(
            self._kube,
            COMPUTE_DOMAINS,
            keep=ComputeDomain.or_why_not,
            namespace=domain.namespace,
            field_selector=f"metadata.name={domain.name}",
            on_change=lambda change: self._saw(change.after, domain.uid),
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(mirror.run())
            await mirror.synced.wait()
            if not mirror.objects:
                self._saw(None, domain.uid)

    def _saw(self, domain: ComputeDomain | InvalidInput | None, uid: str) -> None:
        if isinstance(domain, InvalidInput):
            _log.warning("a ComputeDomain is not understood", error=str(domain))
            return
        ours = domain if domain is not None and domain.metadata.uid == uid else None
        before, self._place = self._place, DomainPlace(self._node, ours)
        if before is None or before.problem is None:
            self._since = datetime.now(UTC).isoformat(timespec="seconds")
        for listener in self._listeners:
            listener()


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
