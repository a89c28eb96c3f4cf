"""All workloads at once on a cluster that is described: whether what the device plugin had room for has devices now.

Pods are placed one after the other, each taking what it got: first those that few nodes suit, then those that want
most, each on the first node with room that gives the best of its preferences. The same pods in the same order are
counted as the device plugin counted them. Other orders may end otherwise; cpu, memory and other pods are not looked at.

What a node refused once it refuses for good, since nothing is given back: so equal pods ask each node once. Pure.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat, takewhile

from dra_driver.allocation.extended import class_by_resource, extended_resources
from dra_driver.allocation.nodes import unfit_for
from dra_driver.allocation.placement import Placement, highest_score, place_on, unallocated
from dra_driver.allocation.snapshot import Snapshot, Usage
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import DeviceClass, ResourceClaim
from dra_driver.checking.fit import class_expressions, expressions_of, selected
from dra_driver.errors import DriverError
from dra_driver.migration.copies import copies_of
from dra_driver.migration.described import DescribedNode
from dra_driver.migration.gfd import refused_by
from dra_driver.migration.ground import Ground
from dra_driver.migration.model import Migration, Target, Workload
from dra_driver.migration.named import MOST_USERS
from dra_driver.migration.offering import is_plugin_resource
from dra_driver.migration.pods_to_be import NotLookedAt, PodsToBe, PodToBe
from dra_driver.migration.verify import Progress, Verification, untold

_HEADER: JsonObject = {"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy"}
_NAMED_NODES = 3
_MOST_REASONS = 3
_AT_ONCE = 64
"""Pods that are placed before somebody is asked whether there is time for more."""


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Of one workload."""

    workload: Workload
    pods: int
    """That it makes at a time; of a DaemonSet one for each node that it chooses."""
    fit: int | None
    """Of these, with devices by DRA; None: not tried."""
    before: int | None
    """Of these, with GPUs by the device plugin; None: not known."""
    nodes: tuple[tuple[str, int], ...] = ()
    """Where they fit, and how many."""
    why: tuple[str, ...] = ()
    """Sentences: why others do not fit, or why none was tried."""

    @property
    def lost(self) -> int:
        """Pods that had a place, and have none now."""
        return max((self.before or 0) - self.fit, 0) if self.fit is not None else 0


@dataclass(frozen=True, slots=True, eq=False)
class Together:
    title: str
    """After "on"."""
    standings: tuple[Standing, ...]
    """In the order of the workloads."""
    needs: JsonObject | None = None
    """Rules that were taken for granted beyond the report's policy."""
    left_out: tuple[str, ...] = ()
    """Nodes of which too little is known, a sentence each."""


def together(
    migration: Migration,
    ground: Ground,
    classes: Mapping[str, DeviceClass],
    tried: Verification,
    progress: Progress = untold,
) -> Together | None:
    """None where the nodes are not described. `tried` says which rules of a policy single workloads need."""
    described = ground.described
    if described is None:
        return None
    own = {key: value for key, value in (migration.policy or {}).items() if key not in _HEADER}
    needs = {} if described.fixed else _missing_rules(own, tried)
    policy = PublishingPolicy.of({**_HEADER, **own, **needs}, about="the policy of this migration")
    crowd = _Crowd(PodsToBe(migration, ground, classes, real_nodes=described.real), described.nodes(policy))
    standings = crowd.standings([one for one in migration.workloads if one.choice.target is not Target.LEAVE], progress)
    return Together(described.title, standings, needs or None, described.left_out)


def _missing_rules(own: JsonObject, tried: Verification) -> JsonObject:
    """What most workloads need first; of two that need different rules of one kind, one stays without."""
    wanted = Counter(json.dumps(one.needs, sort_keys=True) for one in tried.checked if one.needs is not None)
    found: JsonObject = {}
    for text, _ in wanted.most_common():
        found = {**json.loads(text), **found}
    return {name: rules for name, rules in found.items() if name not in own}


@dataclass(slots=True, eq=False)
class _Entry:
    """A workload while its pods are placed."""

    workload: Workload
    pod: PodToBe | None
    asked: Mapping[str, int] | None
    """What each pod asked of the device plugin; None: something that it does not count."""
    copies: int
    everywhere: bool
    why: tuple[str, ...] = ()
    fit: int | None = None
    before: int | None = None
    where: dict[str, int] = field(default_factory=dict)


class _Crowd:
    def __init__(self, pods: PodsToBe, nodes: Sequence[DescribedNode]) -> None:
        self._pods = pods
        self._nodes = nodes
        self._usage = Usage()
        self._named: dict[tuple[str, str], ResourceClaim] = {}
        """Claims that pods have in common, once they have devices."""
        self._users: Counter[tuple[str, str]] = Counter()
        """How many pods have each of these."""
        self._refused: dict[str, dict[str, str]] = defaultdict(dict)
        """By what pods wish, then by node: why."""
        self._left = {one.site.node.name: dict(one.offered or {}) for one in nodes}
        """Of what the device plugin has to give."""
        self._counts = all(one.offered is not None for one in nodes)

    def standings(self, workloads: Sequence[Workload], progress: Progress) -> tuple[Standing, ...]:
        entries = [self._entry(one) for one in workloads]
        total, done = sum(one.copies for one in entries), 0
        for entry in sorted(entries, key=self._order):
            if not progress(done, total):
                entry.why = ("there was no time left to try it",)
                continue
            if entry.pod is not None and _shares_all(entry.pod) and not entry.everywhere:
                self._place_users(entry, entry.pod)
            elif entry.pod is not None:
                self._place(entry, entry.pod, partial(progress, done, total))
            done += entry.copies
        return tuple(_standing(one) for one in entries)

    def _entry(self, workload: Workload) -> _Entry:
        everywhere = workload.pod.document.kind == "DaemonSet"
        copies = copies_of(workload.pod)
        asked = self._asked(workload)
        try:
            pod = self._pods.of(workload)
        except NotLookedAt as why:
            return _Entry(workload, None, asked, copies, everywhere, (str(why),))
        if everywhere:
            copies = sum(_unfit(pod, one) is None for one in self._nodes)
        return _Entry(workload, pod, asked, copies, everywhere)

    def _asked(self, workload: Workload) -> Mapping[str, int] | None:
        try:
            amounts = extended_resources(self._pods.before(workload))
        except ValueError:
            return None
        asked = {name: amount for name, amount in amounts.items() if is_plugin_resource(name)}
        known = {name for one in self._nodes for name in one.offered or ()}
        counted = all(name in known or name.startswith(("nvidia.com/gpu.", "nvidia.com/mig-")) for name in asked)
        return asked if asked and counted and self._counts else None

    # -- who comes first

    def _order(self, entry: _Entry) -> tuple[int, int]:
        if entry.pod is None:
            return 0, 0
        wants = [
            (expressions, count) for claim in entry.pod.claims.values() for expressions, count in self._wants(claim)
        ]
        wants += self._extended_wants(entry)
        suited = sum(_suits(entry.pod, one, wants) for one in self._nodes)
        return suited, -sum(count for _, count in wants)

    def _wants(self, claim: ResourceClaim) -> Iterator[tuple[tuple[str, ...], int]]:
        for request in claim.spec.devices.requests:
            exactly = request.exactly
            if exactly is not None and exactly.device_class_name in self._pods.all_classes:
                own = expressions_of([one.to_wire() for one in exactly.selectors or ()])
                of_class = class_expressions(self._pods.all_classes[exactly.device_class_name])
                yield (*of_class, *own), exactly.count or 1

    def _extended_wants(self, entry: _Entry) -> Iterator[tuple[tuple[str, ...], int]]:
        if entry.pod is None or entry.pod.claims:
            return
        by_resource = class_by_resource(self._pods.all_classes.values())
        for resource, count in (entry.asked or {}).items():
            if resource in by_resource:
                yield class_expressions(self._pods.all_classes[by_resource[resource]]), count

    # -- placing

    def _place_users(self, entry: _Entry, pod: PodToBe) -> None:
        """Of claims that all such pods have in common: where there is one of them, there is room for more."""
        users = max(self._users[one] for one in pod.named.values())
        node = self._take(pod, self._nodes) if users < MOST_USERS else None
        entry.fit = min(entry.copies, MOST_USERS - users) if node is not None else 0
        if node is not None:
            entry.where[node] = entry.fit
            self._users.update(dict.fromkeys(pod.named.values(), entry.fit))
        if entry.asked is not None:
            taken = (self._take_before(entry, pod, self._nodes) for _ in range(entry.copies))
            entry.before = sum(takewhile(bool, taken))
        if entry.fit < entry.copies:
            full = f"at most {MOST_USERS} pods use one ResourceClaim at a time"
            known = () if node is not None or users else tuple(_grouped(self._refused[pod.wishes]))[:_MOST_REASONS]
            entry.why = known or (full,)

    def _place(self, entry: _Entry, pod: PodToBe, is_time: Callable[[], bool]) -> None:
        entry.fit = 0
        entry.before = 0 if entry.asked is not None else None
        of_each = ([one] for one in self._nodes if _unfit(pod, one) is None)
        for number, nodes in enumerate(of_each if entry.everywhere else repeat(self._nodes, entry.copies), 1):
            if number % _AT_ONCE == 0 and not is_time():
                entry.why = (f"there was no time left to try more than {number - 1} of them",)
                return
            had_room = entry.asked is not None and self._take_before(entry, pod, nodes)
            if had_room:
                entry.before = (entry.before or 0) + 1
            node = self._take(pod, nodes)
            if node is not None:
                entry.fit += 1
                entry.where[node] = entry.where.get(node, 0) + 1
            elif not had_room and not entry.everywhere:
                break  # nor is there room for others of them
        if entry.fit < entry.copies:
            entry.why = tuple(_grouped(self._refused[pod.wishes]))[:_MOST_REASONS] or ("there are no nodes",)

    def _take(self, pod: PodToBe, nodes: Sequence[DescribedNode]) -> str | None:
        """The node that one such pod gets devices on."""
        claims = [self._named.get(pod.named.get(name, ("", "")), claim) for name, claim in pod.claims.items()]
        refused, best = self._refused[pod.wishes], None
        most = highest_score(claims)
        for node in nodes:
            name = node.site.node.name
            if name in refused:
                continue
            placed = self._placed(pod, claims, node)
            if isinstance(placed, str):
                refused[name] = placed
            elif best is None or placed.score > best.score:
                best = placed
            if best is not None and best.score == most:
                break
        if best is None:
            return None
        self._usage = self._usage.plus(*best.allocations)
        self._remember(pod, claims, best)
        return best.node

    def _placed(self, pod: PodToBe, claims: Sequence[ResourceClaim], node: DescribedNode) -> Placement | str:
        problem = _unfit(pod, node)
        if problem is not None:
            return problem
        snapshot = Snapshot(node.site.catalog, self._pods.all_classes, self._usage)
        try:
            placed = place_on(pod.obj, claims, node.site.node, snapshot)
        except DriverError as error:
            return str(error)
        # A claim for extended resources has no name before it is made.
        return placed.replace(" of claim  ", " ") if isinstance(placed, str) else placed

    def _remember(self, pod: PodToBe, claims: Sequence[ResourceClaim], placed: Placement) -> None:
        """What the next pod finds allocated already."""
        names = dict(zip(map(id, claims), pod.claims, strict=True))
        for claim, allocation in zip(unallocated(claims), placed.allocations, strict=False):
            name = names[id(claim)]
            if name in pod.named:
                status = claim.status.model_copy(update={"allocation": allocation})
                self._named[pod.named[name]] = claim.model_copy(update={"status": status})

    def _take_before(self, entry: _Entry, pod: PodToBe, nodes: Sequence[DescribedNode]) -> bool:
        """Whether the device plugin has what one such pod asks for; then it is taken."""
        before = self._pods.before(entry.workload)
        asked = entry.asked or {}
        for node in nodes:
            left = self._left[node.site.node.name]
            if any(left.get(name, 0) < amount for name, amount in asked.items()):
                continue
            refused = node.labels is not None and refused_by(entry.workload.pod.spec, node.labels)
            if not refused and unfit_for(before, node.site.node) is None:
                left |= {name: left[name] - amount for name, amount in asked.items()}
                return True
        return False


def _shares_all(pod: PodToBe) -> bool:
    """Whether it has no devices of its own."""
    return bool(pod.named) and pod.named.keys() == pod.claims.keys()


def _standing(entry: _Entry) -> Standing:
    where = tuple(sorted(entry.where.items()))
    return Standing(entry.workload, entry.copies, entry.fit, entry.before, where, entry.why)


def _unfit(pod: PodToBe, node: DescribedNode) -> str | None:
    """Why it may not run there, devices aside."""
    if node.labels is None:
        return unfit_for(pod.obj, node.site.node)
    refused = refused_by(pod.conditions, node.labels)
    return f"not selected by {refused}" if refused is not None else None


def _suits(pod: PodToBe, node: DescribedNode, wants: Sequence[tuple[tuple[str, ...], int]]) -> bool:
    """Whether it could run there, were nothing in use; as far as numbers of devices tell."""
    if _unfit(pod, node) is not None:
        return False
    return all(len(selected(node.site, expressions).matching) >= count for expressions, count in wants)


def _grouped(refused: Mapping[str, str]) -> Iterator[str]:
    """Each reason once, those of most nodes first."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for node, reason in refused.items():
        by_reason[reason].append(node)
    for reason, nodes in sorted(by_reason.items(), key=lambda one: -len(one[1])):
        more = f" and {len(nodes) - _NAMED_NODES} more" if len(nodes) > _NAMED_NODES else ""
        yield f"{', '.join(nodes[:_NAMED_NODES])}{more}: {reason}"
