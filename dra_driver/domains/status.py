"""The members of a domain, and its status, from the observation.

`membership` decides which nodes are in a domain, which must join or leave, and the index of each among its peers. A
node keeps its index while it is in the domain or still has a daemon of the domain, so no two running daemons of a
clique have the same index. The previous indices are in the domain's status, which only the controller writes.

The status says which nodes are ready, and why the domain is not. A domain is ready if every node with its pods is a
member with a ready daemon, and if there are at least `numNodes` nodes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from dra_driver.api.computedomain import ComputeDomainStatus, DomainNode
from dra_driver.api.meta import Condition, dated
from dra_driver.domains.names import DomainReason
from dra_driver.domains.observed import ObjectState, ObservedDomain, ObservedNode
from dra_driver.phrases import and_more, how_many


@dataclass(frozen=True, slots=True)
class Member:
    """A node with the domain's label, or one that still has a daemon of the domain. Unique by clique and index."""

    node: str
    clique: str
    index: int


@dataclass(frozen=True, slots=True)
class Excluded:
    """A node that has pods of the domain but cannot join, with the reason and a sentence."""

    node: str
    reason: DomainReason
    message: str


@dataclass(frozen=True, slots=True)
class Membership:
    """`members` are sorted by clique and index. `join` and `leave` are nodes whose label must change, sorted."""

    members: tuple[Member, ...]
    join: tuple[str, ...]
    leave: tuple[str, ...]
    kept_out: tuple[Excluded, ...]


def membership(observed: ObservedDomain, max_nodes: int) -> Membership:
    """Deterministic and idempotent: after its changes are made, it requests no more. `max_nodes` limits the members of
    one clique; nodes without a clique have no peers and are not counted.
    """
    uid, wanted = observed.uid, observed.wanted_nodes
    labeled = {name for name, node in observed.nodes.items() if node.label == uid}
    leave = tuple(sorted(labeled - set(wanted)))
    inside = sorted(labeled | observed.daemons.keys())
    members = _with_indices(observed, inside)
    join: list[str] = []
    kept_out: list[Excluded] = []
    room = _Room(members, max_nodes)
    for name in wanted:
        if name not in labeled:
            problem = _obstacle(observed.nodes.get(name), uid, room, name)
            kept_out.append(problem) if problem is not None else join.append(name)
    return Membership(members, tuple(join), leave, tuple(kept_out))


class _Room:
    """How many more nodes fit in each clique."""

    def __init__(self, members: Iterable[Member], max_nodes: int) -> None:
        self.max = max_nodes
        self._taken: dict[str, set[str]] = {}
        for member in members:
            self._taken.setdefault(member.clique, set()).add(member.node)

    def take(self, node: ObservedNode) -> bool:
        taken = self._taken.setdefault(node.clique, set())
        if node.clique and node.name not in taken and len(taken) >= self.max:
            return False
        taken.add(node.name)
        return True


def _obstacle(node: ObservedNode | None, uid: str, room: _Room, name: str) -> Excluded | None:
    if node is None:
        return Excluded(name, DomainReason.NODE_GONE, f"node {name} has left the cluster; delete its pods")
    if node.label is not None and node.label != uid:
        other = f"ComputeDomain {node.domain}" if node.domain is not None else f"the domain with UID {node.label}"
        message = f"node {name} is in {other} until its pods end"
        return Excluded(name, DomainReason.NODE_IN_OTHER_DOMAIN, message)
    if node.fabric_problem is not None:
        return Excluded(name, DomainReason.FABRIC_INCOMPLETE, f"node {name}: {node.fabric_problem}")
    if not room.take(node):
        message = f"node {name} cannot join: clique {node.clique} has {room.max} nodes in the domain"
        return Excluded(name, DomainReason.CLIQUE_FULL, message)
    return None


def _with_indices(observed: ObservedDomain, inside: Iterable[str]) -> tuple[Member, ...]:
    before = {node.name: node for node in observed.domain.status.nodes}
    taken: dict[str, set[int]] = {}
    members: list[Member] = []
    waiting: list[tuple[str, str]] = []
    for name in inside:
        node, old = observed.nodes.get(name), before.get(name)
        # A node that is gone, or whose fabric is incomplete at the moment, keeps its clique.
        known = node is not None and node.fabric_problem is None
        clique = (
            node.clique if node is not None and (known or old is None) else old.clique_id if old is not None else ""
        )
        if old is not None and old.clique_id == clique and old.index not in taken.setdefault(clique, set()):
            taken[clique].add(old.index)
            members.append(Member(name, clique, old.index))
        else:
            waiting.append((name, clique))
    for name, clique in waiting:
        used = taken.setdefault(clique, set())
        index = next(index for index in range(len(used) + 1) if index not in used)
        used.add(index)
        members.append(Member(name, clique, index))
    return tuple(sorted(members, key=lambda member: (member.clique, member.index)))


READY, TEMPLATE_READY, NODES_JOINED, FABRIC_COMPLETE = "Ready", "TemplateReady", "NodesJoined", "FabricComplete"

_NAMED = 3
"""Maximum nodes that a message names; the rest are counted."""


def domain_status(observed: ObservedDomain, members: Membership, now: str, *, host_imex: bool) -> ComputeDomainStatus:
    """`now` (RFC 3339, UTC) is the time of changed conditions. `host_imex`: the nodes run IMEX daemons themselves, and
    their reports count instead of pods."""
    nodes = [_node(observed, member, host_imex=host_imex) for member in members.members]
    conditions = [
        _template_ready(observed),
        _joined(observed, members),
        _fabric(observed, members),
        _ready(observed, members, nodes),
    ]
    ready = conditions[-1][1] == "True"
    generation = observed.domain.metadata.generation
    count = sum(node.status == "Ready" and node.name in observed.wanted_nodes for node in nodes)
    return ComputeDomainStatus(
        status="Ready" if ready else "NotReady",
        ready_nodes=f"{count}/{max(len(observed.wanted_nodes), observed.domain.spec.num_nodes)}",
        nodes=nodes,
        conditions=_dated(conditions, observed.domain.status.conditions, now, generation),
        observed_generation=generation,
    )


type _Statement = tuple[str, Literal["True", "False"], DomainReason, str]
"""Type, status, reason, message."""


def _node(observed: ObservedDomain, member: Member, *, host_imex: bool) -> DomainNode:
    address, problem = _on_host(observed, member) if host_imex else _in_pod(observed, member)
    node = observed.nodes.get(member.node)
    if node is None:
        problem = "the node has left the cluster"
    elif node.label != observed.uid:
        problem = "it is leaving the domain"
    elif node.fabric_problem is not None:
        problem = node.fabric_problem
    elif problem is not None and node.imex_problem is not None:
        problem = f"{problem}: {node.imex_problem}"
    return DomainNode(
        name=member.node,
        ip_address=address,
        clique_id=member.clique,
        index=member.index,
        status="Ready" if problem is None else "NotReady",
        message=problem,
    )


def _in_pod(observed: ObservedDomain, member: Member) -> tuple[str, str | None]:
    """Address of the node's daemon, and why the node is not ready."""
    daemon = observed.daemons.get(member.node)
    if daemon is None:
        return "", "its daemon's pod does not exist yet"
    if daemon.deleting:
        return daemon.ip, f"its daemon's pod {daemon.pod} is ending"
    if not daemon.ip:
        return "", daemon.problem or f"its daemon's pod {daemon.pod} has no address yet"
    return daemon.ip, None if daemon.ready else daemon.problem or f"its daemon's pod {daemon.pod} is not ready yet"


def _on_host(observed: ObservedDomain, member: Member) -> tuple[str, str | None]:
    node = observed.nodes.get(member.node)
    if node is None or node.imex_ready is None:
        return "", "the node does not report whether its own IMEX daemon is ready"
    return node.address, None if node.imex_ready else "the node's own IMEX daemon is not ready"


def _template_ready(observed: ObservedDomain) -> _Statement:
    name = observed.domain.spec.channel.resource_claim_template.name
    if observed.template is ObjectState.FOREIGN:
        message = (
            f"ResourceClaimTemplate {name} is not this domain's; delete it, or give the domain another name for its"
        )
        return TEMPLATE_READY, "False", DomainReason.TEMPLATE_NAME_TAKEN, message
    if observed.template is ObjectState.OURS and not observed.deleting:
        return TEMPLATE_READY, "True", DomainReason.TEMPLATE_MADE, f"pods can name ResourceClaimTemplate {name}"
    reason = DomainReason.TERMINATING if observed.deleting else DomainReason.TEMPLATE_MISSING
    return TEMPLATE_READY, "False", reason, f"ResourceClaimTemplate {name} does not exist yet"


def _joined(observed: ObservedDomain, members: Membership) -> _Statement:
    if members.kept_out:
        first = min(members.kept_out, key=lambda excluded: (_SEVERITY.index(excluded.reason), excluded.node))
        return NODES_JOINED, "False", first.reason, _listed([excluded.message for excluded in members.kept_out])
    if members.join:
        return NODES_JOINED, "False", DomainReason.NODES_JOINING, f"joining: {_listed(members.join)}"
    cliques = sorted({member.clique for member in members.members if member.node in observed.wanted_nodes})
    if len(cliques) > 1:
        named = ", ".join(clique or "none" for clique in cliques[:_NAMED])
        message = f"its nodes are in {len(cliques)} NVLink cliques, and share memory only within each: {named}"
        return NODES_JOINED, "True", DomainReason.SEVERAL_CLIQUES, message
    return NODES_JOINED, "True", DomainReason.NODES_JOINED, how_many(len(observed.wanted_nodes), "node")


_SEVERITY = (
    DomainReason.NODE_GONE,
    DomainReason.CLIQUE_FULL,
    DomainReason.FABRIC_INCOMPLETE,
    DomainReason.NODE_IN_OTHER_DOMAIN,
)


def _fabric(observed: ObservedDomain, members: Membership) -> _Statement:
    here = {*observed.wanted_nodes, *(member.node for member in members.members)}
    broken = [
        f"node {name}: {node.fabric_problem}"
        for name, node in sorted(observed.nodes.items())
        if name in here and node.fabric_problem is not None
    ]
    if broken:
        return FABRIC_COMPLETE, "False", DomainReason.FABRIC_INCOMPLETE, _listed(broken)
    return FABRIC_COMPLETE, "True", DomainReason.FABRIC_COMPLETE, ""


def _ready(observed: ObservedDomain, members: Membership, nodes: Sequence[DomainNode]) -> _Statement:
    if observed.deleting:
        return READY, "False", DomainReason.TERMINATING, _terminating(observed)
    if observed.template is not ObjectState.OURS:
        _, _, reason, message = _template_ready(observed)
        return READY, "False", reason, message
    if members.kept_out or members.join:
        _, _, reason, message = _joined(observed, members)
        return READY, "False", reason, message
    wanted = observed.wanted_nodes
    waiting = [f"{node.name} ({node.message})" for node in nodes if node.status != "Ready" and node.name in wanted]
    if waiting:
        message = f"{len(waiting)} of {how_many(len(wanted), 'node')}: {_listed(waiting)}"
        return READY, "False", DomainReason.DAEMONS_NOT_READY, message
    if not wanted:
        return READY, "False", DomainReason.NO_NODES, _no_nodes(observed)
    if len(wanted) < observed.domain.spec.num_nodes:
        missing = f"pods are on {how_many(len(wanted), 'node')}, numNodes is {observed.domain.spec.num_nodes}"
        return READY, "False", DomainReason.NODES_MISSING, missing
    return READY, "True", DomainReason.ALL_NODES_READY, how_many(len(wanted), "node")


def _no_nodes(observed: ObservedDomain) -> str:
    if not observed.unplaced:
        name = observed.domain.spec.channel.resource_claim_template.name
        return f"no pod of the domain has been given a node yet; pods are those that name ResourceClaimTemplate {name}"
    waiting = "a pod" if observed.unplaced == 1 else f"{observed.unplaced} pods"
    return f"no node fits: {waiting} of the domain cannot be scheduled; `dractl explain pod` says why"


def _terminating(observed: ObservedDomain) -> str:
    if observed.channel_uses:
        users = [
            f"{use.claim} on node {use.node}" + (f" (pod {', '.join(use.pods)})" if use.pods else "")
            for use in observed.channel_uses
        ]
        return f"still in use; delete the pods of {_listed(users)}"
    if observed.daemons:
        return f"waiting for the daemons' pods to end on {_listed(sorted(observed.daemons))}"
    return "its objects are being deleted"


def _listed(items: Iterable[str]) -> str:
    return and_more(list(items), _NAMED, separator="; ")


def _dated(
    statements: Iterable[_Statement], before: Sequence[Condition], now: str, generation: int | None
) -> list[Condition]:
    conditions = [
        Condition(
            type=type_,
            status=status,
            reason=reason,
            message=message,
            last_transition_time=now,
            observed_generation=generation,
        )
        for type_, status, reason, message in statements
    ]
    return sorted((dated(condition, before) for condition in conditions), key=lambda condition: condition.type)
