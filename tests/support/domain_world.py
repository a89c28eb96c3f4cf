"""A cluster in miniature for ComputeDomains: objects with versions, a scheduler, a DaemonSet controller and kubelets as
far as domains meet them. One step at a time, in any order; the deciding is `dra_driver.domains.domain_plan`, the real
one."""

from dataclasses import dataclass, field, replace

from dra_driver.api.computedomain import (
    ChannelSpec,
    ComputeDomain,
    ComputeDomainSpec,
    ComputeDomainStatus,
    TemplateName,
)
from dra_driver.api.meta import ObjectMeta
from dra_driver.domains import domain_plan
from dra_driver.domains.names import FINALIZER
from dra_driver.domains.observed import ChannelUse, ObjectState, ObservedDaemon, ObservedDomain, ObservedNode
from dra_driver.names import ClaimRef

MAX_NODES = 3
NOW = "2026-01-01T00:00:00Z"


class Stale(Exception):
    """The precondition of a write does not hold any more."""


@dataclass
class DomainObject:
    uid: str
    num_nodes: int
    version: int = 1
    finalizer: bool = False
    deleting: bool = False
    status: ComputeDomainStatus = field(default_factory=ComputeDomainStatus)
    template: bool = False
    daemon_set: bool = False
    daemon_template: bool = False

    def seen(self) -> ComputeDomain:
        metadata = ObjectMeta(
            name=self.uid,
            namespace="team",
            uid=self.uid,
            generation=1,
            resource_version=str(self.version),
            deletion_timestamp=NOW if self.deleting else None,
            finalizers=[FINALIZER] if self.finalizer else [],
        )
        channel = ChannelSpec(resource_claim_template=TemplateName(name=f"{self.uid}-channel"))
        return ComputeDomain(
            metadata=metadata, spec=ComputeDomainSpec(num_nodes=self.num_nodes, channel=channel), status=self.status
        )


@dataclass
class NodeObject:
    clique: str
    label: str | None = None
    version: int = 1
    fabric: bool = True


@dataclass
class DaemonPod:
    domain: str
    node: str
    ip: str
    device: bool = False
    """Whether it holds the node's one daemon device, without which it cannot start."""
    ready: bool = False
    deleting: bool = False
    place: tuple[str, int] | None = None
    """Clique and index by which its peers know it, from when it knows them itself until it is gone."""


@dataclass
class WorkloadPod:
    domain: str
    node: str
    running: bool = False


@dataclass
class World:
    """`slots` channels on each node. Domain names are UIDs and never come again."""

    slots: int = 2
    domains: dict[str, DomainObject] = field(default_factory=dict)
    nodes: dict[str, NodeObject] = field(default_factory=dict)
    daemons: list[DaemonPod] = field(default_factory=list)
    pods: dict[str, WorkloadPod] = field(default_factory=dict)
    addresses: int = 0
    writes: int = 0

    # What users and machines do.

    def schedule(self, pod: str, domain: str, node: str, *, attribute_known: bool) -> bool:
        """Give a pod a channel of a node. `attribute_known`: the scheduler has seen which domain the node is in."""
        if domain not in self.domains or not self.domains[domain].template:
            return False
        here = [other for other in self.pods.values() if other.node == node]
        label = self.nodes[node].label
        if len(here) >= self.slots or (attribute_known and label not in (None, domain)):
            return False
        self.pods[pod] = WorkloadPod(domain, node)
        return True

    def start(self, pod: str) -> None:
        """Kubelet prepares the pod's channel, which waits for its node, and starts it."""
        started = self.pods[pod]
        domain = self.domains.get(started.domain)
        if domain is None or started.running:
            return
        entry = next((entry for entry in domain.status.nodes if entry.name == started.node), None)
        others = {other.domain for other in self.pods.values() if other.running and other.node == started.node}
        if entry is not None and entry.status == "Ready" and others <= {started.domain}:
            started.running = True

    # What the DaemonSet controller and kubelets do with daemons.

    def tend(self, node: str) -> bool:
        """One step of whoever sees to daemons on a node; whether anything changed."""
        here = [daemon for daemon in self.daemons if daemon.node == node]
        for daemon in here:
            owner = self.domains.get(daemon.domain)
            wanted = owner is not None and owner.daemon_set and node in self.nodes
            wanted = wanted and self.nodes[node].label == daemon.domain
            if daemon.deleting or not wanted:
                if daemon.deleting:
                    self.daemons.remove(daemon)
                else:
                    daemon.deleting, daemon.ready = True, False
                return True
        for domain in self.domains.values():
            labelled = node in self.nodes and self.nodes[node].label == domain.uid
            if domain.daemon_set and labelled and not any(daemon.domain == domain.uid for daemon in here):
                self.addresses += 1
                self.daemons.append(DaemonPod(domain.uid, node, f"10.0.0.{self.addresses}"))
                return True
        return any(self._advance(daemon, here) for daemon in here)

    def _advance(self, daemon: DaemonPod, here: list[DaemonPod]) -> bool:
        if not daemon.device:
            daemon.device = not any(other.device for other in here)
            return daemon.device
        entries = self.domains[daemon.domain].status.nodes
        own = [entry for entry in entries if entry.name == daemon.node and entry.ip_address == daemon.ip]
        known = bool(own)
        daemon.place = (own[0].clique_id, own[0].index) if own else daemon.place
        if daemon.ready == known:
            return False
        daemon.ready = known
        return True

    # What the controller sees and does.

    def observe(self, uid: str) -> tuple[ObservedDomain, dict[str, int]]:
        """With the versions of the nodes, which writes to them depend on."""
        domain = self.domains[uid]
        uses = sorted(
            ChannelUse(pod.node, uid, ClaimRef("team", name, name), (name,))
            for name, pod in self.pods.items()
            if pod.domain == uid
        )
        nodes = {name: self._node(name) for name in self.nodes}
        observed = ObservedDomain(
            domain.seen(),
            template=_standing(domain.template),
            daemon_template=_standing(domain.daemon_template),
            daemon_set=_standing(domain.daemon_set),
            channel_uses=tuple(uses),
            nodes={
                name: node for name, node in nodes.items() if node.label == uid or any(use.node == name for use in uses)
            },
            daemons={
                daemon.node: ObservedDaemon(
                    daemon.node, f"daemon-{daemon.ip}", daemon.ip, daemon.ready, daemon.deleting
                )
                for daemon in self.daemons
                if daemon.domain == uid
            },
        )
        return observed, {name: node.version for name, node in self.nodes.items()}

    def _node(self, name: str) -> ObservedNode:
        node = self.nodes[name]
        return ObservedNode(name, node.label, node.clique, None if node.fabric else "the fabric is not complete")

    def act(self, uid: str, action: domain_plan.Action, versions: dict[str, int]) -> None:
        """Raises Stale where the API server would answer 404 or 409."""
        domain = self.domains.get(uid)
        if domain is None:
            raise Stale
        match action:
            case domain_plan.LabelNode(node, joins=True):
                self._relabel(node, None, uid, versions)
            case domain_plan.LabelNode(node, joins=False):
                self._relabel(node, uid, None, versions)
            case domain_plan.DomainStep.ADD_FINALIZER:
                if domain.deleting:
                    raise Stale
                domain.finalizer = True
                domain.version += 1
            case domain_plan.DomainStep.REMOVE_FINALIZER:
                del self.domains[uid]
            case domain_plan.DomainStep.MAKE_TEMPLATE | domain_plan.DomainStep.DELETE_TEMPLATE:
                domain.template = action is domain_plan.DomainStep.MAKE_TEMPLATE
            case domain_plan.DomainStep.MAKE_DAEMON_SET | domain_plan.DomainStep.DELETE_DAEMON_SET:
                domain.daemon_set = action is domain_plan.DomainStep.MAKE_DAEMON_SET
            case domain_plan.DomainStep.MAKE_DAEMON_TEMPLATE | domain_plan.DomainStep.DELETE_DAEMON_TEMPLATE:
                domain.daemon_template = action is domain_plan.DomainStep.MAKE_DAEMON_TEMPLATE
        self.writes += 1

    def write_status(self, observed: ObservedDomain, status: ComputeDomainStatus) -> None:
        domain = self.domains.get(observed.uid)
        if domain is None or str(domain.version) != observed.domain.metadata.resource_version:
            raise Stale
        domain.status = status
        domain.version += 1
        self.writes += 1

    def _relabel(self, name: str, before: str | None, after: str | None, versions: dict[str, int]) -> None:
        node = self.nodes.get(name)
        if node is None or node.version != versions.get(name) or node.label != before:
            raise Stale
        self.nodes[name] = replace(node, label=after, version=node.version + 1)

    def reconcile(self, uid: str) -> bool:
        """One whole pass of the controller over a domain; whether it wrote anything."""
        if uid not in self.domains:
            return False
        before = self.writes
        observed, versions = self.observe(uid)
        decision = domain_plan.decide(observed, NOW, max_nodes=MAX_NODES)
        try:
            if decision.status is not None:
                self.write_status(observed, decision.status)
            for action in decision.actions:
                self.act(uid, action, versions)
        except Stale:
            pass
        return self.writes > before

    def settle(self, rounds: int = 200) -> None:
        """Everybody works until nobody finds anything to do. Raises AssertionError when that never comes."""
        for _ in range(rounds):
            changed = [self.reconcile(uid) for uid in list(self.domains)]
            changed += [self.tend(node) for node in {*self.nodes, *(daemon.node for daemon in self.daemons)}]
            started = sum(pod.running for pod in self.pods.values())
            for pod in self.pods:
                self.start(pod)
            if not any(changed) and started == sum(pod.running for pod in self.pods.values()):
                return
        raise AssertionError("the cluster never comes to rest")


def _standing(exists: bool) -> ObjectState:
    return ObjectState.OURS if exists else ObjectState.MISSING
