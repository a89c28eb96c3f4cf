"""Which nodes are in a domain, which must join or leave, and the index of each among its peers.

A node keeps its index while it is in the domain or still has a daemon of the domain, so no two running daemons of a
clique have the same index. The previous indices are in the domain's status, which only the controller writes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dra_driver.domains.names import DomainReason
from dra_driver.domains.observed import ObservedDomain, ObservedNode


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
