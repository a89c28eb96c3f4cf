"""The state of all domains in the cluster, from watches, one domain at a time. The watches keep only claims that hold
channels, the label of nodes, and the fabric of inventories. Therefore thousands of unrelated pods cost almost nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from dra_driver.api import meta
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.core import Node, Pod
from dra_driver.api.inventory import IMEX_READY, IMEX_SUBJECT, NodeInventorySpec
from dra_driver.api.resource import ResourceClaim
from dra_driver.devices.nvlink import NodeFabric, fabric_of
from dra_driver.domains.names import DOMAIN_LABEL, MADE_AS, daemon_object_name, domain_of_daemon_object
from dra_driver.domains.observed import (
    ChannelUse,
    ObjectState,
    ObservedDaemon,
    ObservedDomain,
    ObservedNode,
    channel_uses,
)
from dra_driver.errors import ClusterError, InvalidInput
from dra_driver.kube.watch import Key, Mirror, MirrorChange, Watches
from dra_driver.names import COMPUTE_DOMAIN_DRIVER


@dataclass(frozen=True, slots=True)
class KeptNode:
    """`label` is the UID of the domain that it is in."""

    name: str
    resource_version: str
    label: str | None
    address: str


@dataclass(frozen=True, slots=True)
class KeptObject:
    """A claim template or DaemonSet with a domain's label."""

    uid: str
    label: str
    deleting: bool
    made_as: str = ""
    """Only for a DaemonSet."""


@dataclass(frozen=True, slots=True)
class KeptClaim:
    """`wants` is the UID of the domain whose template an unallocated claim was made from."""

    uses: tuple[ChannelUse, ...] = ()
    wants: str | None = None


_NO_CHANNEL = KeptClaim()


class DomainsInCluster:
    """`changed` is called with the UID of each domain that changed, `look_after` with the UID and seconds of a domain
    to check later; they must not block."""

    def __init__(
        self,
        watches: Watches,
        *,
        namespace: str,
        made_as: Callable[[ComputeDomain], str],
        changed: Callable[[str], None],
        look_after: Callable[[str, float], None],
    ) -> None:
        self._loop_time = asyncio.get_running_loop().time
        self._namespace = namespace
        self._made_as = made_as
        self._changed = changed
        self._look_after = look_after
        self._uids: dict[str, Key] = {}
        self._uses: dict[str, dict[Key, tuple[ChannelUse, ...]]] = {}
        self._unplaced: dict[str, dict[Key, float]] = {}
        """By the UID of the domain: claims that wait for a node, and when they were first seen."""
        self._labeled: dict[str, set[str]] = {}
        self._users: dict[str, Counter[str]] = {}
        """By node: the UIDs of domains for which claims there hold channels, with the number of claims."""
        self._pods_of: dict[str, dict[Key, tuple[str, ObservedDaemon]]] = {}
        """Daemons by the UID of their domain, with the creation time of their pods."""
        self._foreign: dict[Key, float] = {}
        """Foreign objects under a name that the driver needs, and when they were found."""
        self.domains = Mirror(
            watches, meta.COMPUTE_DOMAINS, keep=ComputeDomain.or_why_not, on_change=self._domain_changed
        )
        self._claims = Mirror(watches, meta.RESOURCE_CLAIMS, keep=self._kept_claim, on_change=self._claim_changed)
        self.nodes = Mirror(watches, meta.NODES, keep=_node, on_change=self._node_changed)
        self._inventories = Mirror(watches, meta.NODE_INVENTORIES, keep=_inventory, on_change=self._fabric_changed)
        self.daemon_sets = Mirror(
            watches, meta.DAEMON_SETS, keep=_daemon_set, namespace=namespace, on_change=self._object_changed
        )
        labeled = partial(Mirror, watches, label_selector=DOMAIN_LABEL)
        self.templates: Mirror[KeptObject] = labeled(
            meta.RESOURCE_CLAIM_TEMPLATES, keep=_object, on_change=self._object_changed
        )
        self._pods: Mirror[_KeptPod] = labeled(
            meta.PODS, keep=_daemon, namespace=namespace, on_change=self._pod_changed
        )

    @property
    def mirrors(self) -> "tuple[Mirror[Any], ...]":
        return (self.domains, self._claims, self.nodes, self._inventories, self.daemon_sets, self.templates, self._pods)

    @property
    def failures(self) -> tuple[ClusterError, ...]:
        return tuple(mirror.failure for mirror in self.mirrors if mirror.failure is not None)

    def found_foreign(self, key: Key) -> None:
        """A name that the driver needs is taken; the controller waits before it tries again."""
        self._foreign[key] = self._loop_time()

    def uids(self) -> tuple[str, ...]:
        """UIDs of the existing domains."""
        return tuple(self._uids)

    def seen(self, uid: str) -> ObservedDomain | None:
        """None if there is no such domain. Raises InvalidInput if its object is invalid."""
        key = self._uids.get(uid)
        domain = self.domains.objects.get(key) if key is not None else None
        if isinstance(domain, InvalidInput):
            raise domain
        if domain is None or domain.metadata.uid != uid:
            return None
        namespace = domain.metadata.namespace or ""
        template = _template_of(domain)
        uses = tuple(
            sorted(use for uses in self._uses.get(uid, {}).values() for use in uses if use.claim.namespace == namespace)
        )
        daemons = self._daemons(uid)
        names = {use.node for use in uses} | self._labeled.get(uid, set()) | daemons.keys()
        ours = (self._namespace, daemon_object_name(uid))
        return ObservedDomain(
            domain,
            template=self._standing(self.templates.objects, template, uid),
            daemon_template=self._standing(self.templates.objects, ours, uid),
            daemon_set=self._standing(self.daemon_sets.objects, ours, uid),
            channel_uses=uses,
            nodes={name: node for name in sorted(names) if (node := self._node_seen(name)) is not None},
            daemons=daemons,
            outdated=(daemon_set := self.daemon_sets.objects.get(ours)) is not None
            and daemon_set.made_as != self._made_as(domain),
            unplaced=sum(
                self._loop_time() - since >= UNPLACED_AFTER_S
                for (place, _), since in self._unplaced.get(uid, {}).items()
                if place == namespace
            ),
        )

    def orphans(self) -> "tuple[tuple[str, Key, KeptNode | KeptObject], ...]":
        """Plural, key and kept data of nodes, DaemonSets and templates whose domain does not exist."""
        results: list[tuple[str, Key, KeptNode | KeptObject]] = []
        for plural, objects in (("daemonsets", self.daemon_sets.objects), ("templates", self.templates.objects)):
            results += [(plural, key, obj) for key, obj in objects.items() if obj and obj.label not in self._uids]
        for key, node in self.nodes.objects.items():
            if node.label is not None and node.label not in self._uids:
                results.append(("nodes", key, node))
        return tuple(results)

    def _standing(
        self, objects: "Mapping[Key, KeptObject] | Mapping[Key, KeptObject | None]", key: Key, uid: str
    ) -> ObjectState:
        obj = objects.get(key)
        if obj is None:
            since = self._foreign.get(key)
            lately = since is not None and self._loop_time() - since < FOREIGN_AGAIN_S
            return ObjectState.FOREIGN if lately else ObjectState.MISSING
        if obj.label != uid:
            return ObjectState.FOREIGN
        return ObjectState.DELETING if obj.deleting else ObjectState.OURS

    def _node_seen(self, name: str) -> ObservedNode | None:
        node = self.nodes.objects.get(("", name))
        if node is None:
            return None
        inventory = self._inventories.objects.get(("", name), _NO_INVENTORY)
        domain = self._uids.get(node.label) if node.label is not None else None
        return ObservedNode(
            name,
            label=node.label,
            domain=None if domain is None else "/".join(domain),
            clique=inventory.fabric.clique,
            fabric_problem=inventory.fabric.problem,
            address=node.address,
            imex_ready=inventory.imex_ready,
            imex_problem=inventory.imex_problem,
        )

    def _daemons(self, uid: str) -> dict[str, ObservedDaemon]:
        """The newest of each node; while a pod is replaced, the old one can still exist."""
        daemons: dict[str, tuple[str, ObservedDaemon]] = {}
        for made, daemon in self._pods_of.get(uid, {}).values():
            if daemon.node:
                best = daemons.get(daemon.node)
                if best is None or (not daemon.deleting, made) > (not best[1].deleting, best[0]):
                    daemons[daemon.node] = (made, daemon)
        return {node: daemon for node, (_, daemon) in daemons.items()}

    def _kept_claim(self, obj: meta.JsonObject) -> KeptClaim:
        allocation = (obj.get("status") or {}).get("allocation")
        if not allocation:
            wants = (obj["metadata"].get("labels") or {}).get(DOMAIN_LABEL)
            return KeptClaim(wants=wants) if wants and "deletionTimestamp" not in obj["metadata"] else _NO_CHANNEL
        results = (allocation.get("devices") or {}).get("results") or ()
        if not any(result.get("driver") == COMPUTE_DOMAIN_DRIVER for result in results):
            return _NO_CHANNEL
        claim = ResourceClaim.or_none(obj)
        return _NO_CHANNEL if claim is None else KeptClaim(channel_uses(claim, COMPUTE_DOMAIN_DRIVER))

    def _domain_changed(self, change: "MirrorChange[ComputeDomain | InvalidInput]") -> None:
        if isinstance(change.before, ComputeDomain):
            self._uids.pop(change.before.metadata.uid, None)
            self._changed(change.before.metadata.uid)
        if isinstance(change.after, ComputeDomain):
            self._uids[change.after.metadata.uid] = change.key
            self._changed(change.after.metadata.uid)

    def _claim_changed(self, change: MirrorChange[KeptClaim]) -> None:
        claims = (change.before or _NO_CHANNEL, change.after or _NO_CHANNEL)
        self._place(change.key, *(claim.wants for claim in claims))
        before, after = (claim.uses for claim in claims)
        self._count_users(before, -1)
        self._count_users(after, 1)
        for uid in {use.domain_uid for use in (*before, *after)}:
            uses = self._uses.setdefault(uid, {})
            uses.pop(change.key, None)
            now = tuple(use for use in after if use.domain_uid == uid)
            if now:
                uses[change.key] = now
            if not uses:
                del self._uses[uid]
            if before != after:
                self._changed(uid)

    def _place(self, key: Key, before: str | None, after: str | None) -> None:
        """Most claims get a node at once and need no check."""
        if before == after:
            return
        if before is not None:
            self._unplaced.get(before, {}).pop(key, None)
            if not self._unplaced.get(before):
                self._unplaced.pop(before, None)
            self._changed(before)
        if after is not None:
            self._unplaced.setdefault(after, {})[key] = self._loop_time()
            self._look_after(after, UNPLACED_AFTER_S)

    def _count_users(self, uses: Iterable[ChannelUse], difference: int) -> None:
        for use in uses:
            users = self._users.setdefault(use.node, Counter())
            users[use.domain_uid] += difference
            if not users[use.domain_uid]:
                del users[use.domain_uid]
            if not users:
                del self._users[use.node]

    def _node_changed(self, change: MirrorChange[KeptNode]) -> None:
        before, after = change.before, change.after
        if before is not None and before.label is not None:
            self._labeled.get(before.label, set()).discard(before.name)
        if after is not None and after.label is not None:
            self._labeled.setdefault(after.label, set()).add(after.name)
        if before is None or after is None or (before.label, before.address) != (after.label, after.address):
            labels = (node.label for node in (before, after) if node is not None and node.label is not None)
            self._tell_users_of(change.key[1], labels)

    def _fabric_changed(self, change: "MirrorChange[_Inventory]") -> None:
        if change.before != change.after:
            node = self.nodes.objects.get(("", change.key[1]))
            self._tell_users_of(change.key[1], () if node is None or node.label is None else (node.label,))

    def _tell_users_of(self, node: str, labels: Iterable[str]) -> None:
        for uid in {*self._users.get(node, ()), *labels}:
            self._changed(uid)

    def _object_changed(self, change: "MirrorChange[KeptObject] | MirrorChange[KeptObject | None]") -> None:
        for object_ in (change.before, change.after):
            if object_ is not None:
                self._changed(object_.label)
        self._foreign.pop(change.key, None)
        if change.after is not None:
            return
        for domain in self.domains.objects.values():
            if isinstance(domain, ComputeDomain) and _template_of(domain) == change.key:
                self._changed(domain.metadata.uid)  # The name is free for it.

    def _pod_changed(self, change: "MirrorChange[_KeptPod]") -> None:
        if change.before == change.after:
            return
        if change.before is not None:
            uid = change.before[0]
            pods = self._pods_of.get(uid, {})
            pods.pop(change.key, None)
            if not pods:
                self._pods_of.pop(uid, None)
            self._changed(uid)
        if change.after is not None:
            uid, made, daemon = change.after
            self._pods_of.setdefault(uid, {})[change.key] = (made, daemon)
            self._changed(uid)


def _template_of(domain: ComputeDomain) -> Key:
    return domain.metadata.namespace or "", domain.spec.channel.resource_claim_template.name


UNPLACED_AFTER_S = 30.0
"""How long a claim may wait for a node before its domain reports it."""

FOREIGN_AGAIN_S = 5.0
"""How long until the controller tries again to take a name that another owner's object has. It does not watch such
objects."""


@dataclass(frozen=True, slots=True)
class _Inventory:
    """What a mirror keeps of a NodeInventory; see `ObservedNode`."""

    fabric: NodeFabric
    imex_ready: bool | None = None
    imex_problem: str | None = None


_NO_INVENTORY = _Inventory(NodeFabric(problem="the node has not reported its hardware yet", reason="NoInventory"))


def _node(obj: meta.JsonObject) -> KeptNode:
    node = Node.of(obj)
    label = node.metadata.labels.get(DOMAIN_LABEL) or None
    return KeptNode(node.name, node.metadata.resource_version or "", label, node.internal_ip)


def _object(obj: meta.JsonObject) -> KeptObject:
    metadata = obj["metadata"]
    return KeptObject(metadata["uid"], metadata["labels"][DOMAIN_LABEL], "deletionTimestamp" in metadata)


def _daemon_set(obj: meta.JsonObject) -> KeptObject | None:
    """By its name, because a DaemonSet that lost its label still belongs to the domain. None: it belongs to no
    domain."""
    metadata = obj["metadata"]
    uid = domain_of_daemon_object(metadata["name"])
    made_as = (metadata.get("annotations") or {}).get(MADE_AS, "")
    return None if uid is None else KeptObject(metadata["uid"], uid, "deletionTimestamp" in metadata, made_as)


def _inventory(obj: meta.JsonObject) -> _Inventory:
    try:
        facts = NodeInventorySpec.of(obj.get("spec"))
    except InvalidInput as error:
        return _Inventory(NodeFabric(reason="InventoryNotUnderstood", problem=f"its NodeInventory is invalid: {error}"))
    imex = facts.imex
    ready = None if imex is None or imex.state is None else imex.state == IMEX_READY
    problem = next((item.message for item in facts.problems if item.subject == IMEX_SUBJECT), None)
    return _Inventory(fabric_of(facts.gpus), ready, problem)


type _KeptPod = tuple[str, str, ObservedDaemon]
"""The domain's UID, the creation time of the pod, and the daemon."""


def _daemon(obj: meta.JsonObject) -> _KeptPod:
    pod = Pod.of(obj)
    deleting = pod.metadata.deletion_timestamp is not None
    waiting = [status.state.waiting.reason for status in pod.status.container_statuses if status.state.waiting]
    stuck = [reason for reason in waiting if reason not in ("", "ContainerCreating", "PodInitializing")]
    daemon = ObservedDaemon(
        node=pod.spec.node_name,
        pod=pod.name,
        ip="" if pod.is_done else pod.status.pod_ip,
        ready=pod.ready and not pod.is_done and not deleting,
        deleting=deleting,
        problem=f"its daemon's container waits: {stuck[0]}" if stuck else None,
    )
    return pod.metadata.labels[DOMAIN_LABEL], pod.metadata.creation_timestamp or "", daemon
