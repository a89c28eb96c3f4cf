"""Why a pod or claim does not fit on a node: per device, per request, and in one sentence. Pure.

A device is looked at the way people think: first whether it is what is asked for (class, selectors, amounts), and only
then what keeps it away now (in use, counters, taints, constraints). So a device that is in use and is too small is too
small. Sentences do not name the node, so that nodes with one reason form a group.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from dra_driver.allocation.alike import attributes_read
from dra_driver.allocation.amounts import amount
from dra_driver.allocation.nodes import NodeView, UnfitCause, shortage_on, unfit_for, untolerated
from dra_driver.allocation.offline import NO_POD
from dra_driver.allocation.placement import (
    allocated_elsewhere,
    extended_claim,
    extended_on,
    extended_resources,
    unallocated,
)
from dra_driver.allocation.prospects import Site
from dra_driver.allocation.requests import Alternatives, Cause, Wanted
from dra_driver.allocation.search import Allocated, Limit, NotAllocatable, Undecided, allocate
from dra_driver.allocation.selection import OutOfTime, reads_of
from dra_driver.allocation.snapshot import Candidate, Pool, PoolId, PublishedSlice, Usage
from dra_driver.allocation.usage import Ledger
from dra_driver.allocation.world import World
from dra_driver.api.core import Pod
from dra_driver.api.resource import ResourceClaim
from dra_driver.cel.device import CelDevice
from dra_driver.cel.errors import CelError
from dra_driver.cel.functions import Server
from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.explain.failing import Comparison, ExpressionPart, amount_text, failing_parts
from dra_driver.explain.verdicts import (
    HELD,
    ClaimHolder,
    DeviceVerdict,
    Holders,
    NodeVerdict,
    ReasonCode,
    Sentence,
    after,
    joined,
    listed_holders,
    nearness,
)
from dra_driver.grouping import grouped
from dra_driver.phrases import how_many
from dra_driver.quantity import Quantity


def scarce_sentence(wanted: Wanted, verdicts: Sequence[DeviceVerdict]) -> tuple[ReasonCode, Sentence]:
    meant = [verdict for verdict in verdicts if verdict.is_meant]
    if not meant:
        return _nothing_meant(wanted, verdicts)
    able = [device_verdict for device_verdict in meant if device_verdict.code is ReasonCode.FITS]
    device_verdicts = [device_verdict for device_verdict in meant if device_verdict.code is not ReasonCode.FITS]
    number = len(meant) if wanted.wants_all else wanted.count
    if not device_verdicts:
        match = "1 matches" if len(meant) == 1 else f"{len(meant)} match"
        text = f'request "{wanted.name}" needs {number} devices, and only {match} it'
        return ReasonCode.TOO_FEW, Sentence(text)
    code = Counter(device_verdict.code for device_verdict in device_verdicts).most_common(1)[0][0]
    if number == 1 or (len(meant) == 1 and not able):
        return code, _kept_away(device_verdicts)
    needs = "all of" if wanted.wants_all else f"{number} of"
    if number > len(meant):
        needs = f"{number} devices, but has only"
    free = f"{len(able)} free" if able else "none free"
    lead = f'request "{wanted.name}" needs {needs} {len(meant)} that match, {free}; '
    return code, after(lead, _kept_away(device_verdicts))


_LEADS = {
    ReasonCode.IN_USE: "in use by",
    ReasonCode.CAPACITY: "without room left beside",
    ReasonCode.COUNTERS: "without room left beside",
}


def _kept_away(verdicts: Sequence[DeviceVerdict]) -> Sentence:
    """`2 devices in use by team-a/train, 1 tainted gpu.nvidia.com/xid=79`."""
    # Reasons that differ only in the holders form one group.
    groups = grouped(
        verdicts,
        lambda verdict: (verdict.code, "" if verdict.code in _LEADS and verdict.holders else verdict.text),
    )
    several = len(groups) > 1
    return joined(
        ", ",
        (
            _group_of_devices(code, text, members, several)
            for (code, text), members in sorted(groups.items(), key=lambda item: -len(item[1]))
        ),
    )


def _group_of_devices(code: ReasonCode, text: str, members: Sequence[DeviceVerdict], several: bool) -> Sentence:
    number = f"{len(members)} " if several or len(members) > 1 else ""
    noun = "device" if len(members) == 1 else "devices"
    if not text:
        holders = tuple(holder for member in members for holder in member.holders)
        # Of counters all devices are short in the same words; of a capacity each has its own rest.
        alike = len(members) == 1 or (code is ReasonCode.COUNTERS and len({member.scarce for member in members}) == 1)
        scarce = members[0].scarce if alike else None
        lead = f"{scarce}, beside" if scarce is not None else _LEADS[code]
        return Sentence(f"{number}{noun} {lead} {HELD}", (holders,))
    return Sentence(f"{number}{noun} {text}" if number or code is not ReasonCode.TAINT else text)


def _nothing_meant(wanted: Wanted, verdicts: Sequence[DeviceVerdict]) -> tuple[ReasonCode, Sentence]:
    """No device is what the request asks for: how the nearest ones miss it."""
    nearest = max((verdict.code for verdict in verdicts), key=nearness)
    if nearest is ReasonCode.CLASS:
        text = f"no device of class {wanted.device_class.metadata.name} ({_commonest(verdicts)})"
        return nearest, Sentence(text)
    near = [verdict for verdict in verdicts if verdict.code is nearest]
    return nearest, Sentence(f'no device matches request "{wanted.name}": {_commonest(near)}')


_MOST_MISSES = 2
_MOST_VALUES = 3


def _commonest(verdicts: Sequence[DeviceVerdict]) -> str:
    """The two misses that most devices have; those that differ in the device's own value only are one."""
    ordered = sorted(grouped(verdicts, _kind_of_miss).values(), key=lambda members: -len(members))
    texts = [_miss(members) for members in ordered[:_MOST_MISSES]]
    more = len(ordered) - len(texts)
    return ", or ".join(texts) + (f", and {how_many(more, 'more reason')}" if more else "")


def _kind_of_miss(verdict: DeviceVerdict) -> object:
    comparison = _only_comparison(verdict)
    return (comparison.name, comparison.sign, comparison.other) if comparison is not None else verdict.text


def _only_comparison(verdict: DeviceVerdict) -> Comparison | None:
    return verdict.parts[0].comparison if len(verdict.parts) == 1 else None


def _miss(verdicts: Sequence[DeviceVerdict]) -> str:
    """`memory at most 80Gi < 100Gi`; `profile is "1g.10gb", "2g.20gb" or 3 others, not "9g.90gb"`."""
    comparisons = {each.own: each for each in map(_only_comparison, verdicts) if each is not None}
    first = verdicts[0]
    if len(comparisons) < 2:
        return first.text
    results = list(comparisons.values())
    sign, name, other = results[0].sign, results[0].name, results[0].other
    numbers = [(comparison.amount, comparison.own) for comparison in results if comparison.amount is not None]
    if sign in ("<", "<=") and len(numbers) == len(results):
        return f"{name} at most {max(numbers)[1]} {sign} {other}"
    if sign in (">", ">=") and len(numbers) == len(results):
        return f"{name} at least {min(numbers)[1]} {sign} {other}"
    texts = [comparison.own for comparison in results[:_MOST_VALUES]]
    if len(results) > len(texts):
        texts.append(how_many(len(results) - len(texts), "other"))
    return str(replace(results[0], own=f"{', '.join(texts[:-1])} or {texts[-1]}"))


class NodeJudge:
    """Looks at the nodes of a world for one pod, or for a claim of no pod."""

    def __init__(self, world: World, pod: Pod | None, claims: Sequence[ResourceClaim], limit: Limit) -> None:
        """`limit` is that of the search on each node."""
        self._world = world
        self._limit = limit
        self._pod = pod
        self._claims = claims
        self.holders = Holders(world)
        self._misses = _Misses(world.behavior.server, limit.enough)
        self._extended_resources = tuple(extended_resources(pod.spec)) if pod is not None else ()
        self._asked: dict[tuple[str | None, ...], _Asked | str] = {}
        """By what a node offers of the extended resources: nothing else of a node decides what is asked for there."""
        self._known: dict[Hashable, NodeVerdict] = {}
        """By the look of nodes."""

    def node(self, node: NodeView) -> NodeVerdict:
        """The node's first reason, or that it fits."""
        if (unfit := self._unfit(node)) is not None:
            return unfit
        offered = tuple(node.allocatable.get(name) for name in self._extended_resources)
        if offered not in self._asked:
            self._asked[offered] = self._asked_on(node)
        asked = self._asked[offered]
        if isinstance(asked, str):
            return NodeVerdict(node.name, ReasonCode.EXTENDED_RESOURCE, Sentence(asked))
        look = self._look(node, asked)
        if (known := self._known.get(look)) is not None:
            return replace(known, node=node.name)
        try:
            verdict = self._judged(node, asked.claims)
        except OutOfTime as error:
            return NodeVerdict(node.name, ReasonCode.NOT_DECIDED, Sentence(str(error)))
        if look is not None and verdict.code not in _OF_ONE_NODE:
            self._known[look] = verdict
        return verdict

    def _asked_on(self, node: NodeView) -> "_Asked | str":
        """What the claims and extended resources ask for on this node, or the extended resource that it lacks."""
        pod = self._pod if self._pod is not None else NO_POD
        extended = extended_on(pod.spec, node, self._world.classes, self._world.behavior)
        if isinstance(extended, str):
            return extended
        wanted = unallocated(self._claims)
        if extended is not None:
            wanted.append(ResourceClaim.of(extended_claim(pod, extended.requests)))
        return _Asked(tuple(wanted), attributes_read(wanted, self._world.snapshot))

    def _look(self, node: NodeView, asked: "_Asked") -> Hashable:
        """Equal for nodes that get the same verdict, whose names, and those of their devices, are not in it. None where
        no other node is known to get it.

        `dra_driver.allocation.alike` explains why the pools of such nodes serve the claims equally, where names decide
        nothing. They do if claims hold devices of a pool, if there are taint rules, and if a pool is invalid or being
        updated. Then the node is like no other one.
        """
        world = self._world
        pools = world.catalog.pools(node)
        if asked.attributes is None or world.taint_rules or not pools:
            return None
        if any(pool.id in world.usage.pools for pool in pools):
            return None
        looks = tuple(pool.look(asked.attributes) for pool in pools)
        return None if None in looks else (asked, looks)

    def _judged(self, node: NodeView, wanted: Sequence[ResourceClaim]) -> NodeVerdict:
        try:
            result = allocate(wanted, node, self._world.snapshot, limit=self._limit)
        except (InvalidInput, NodeNotReady) as error:
            code = ReasonCode.POOL if isinstance(error, NodeNotReady) else ReasonCode.ERROR
            return NodeVerdict(node.name, code, Sentence(str(error)), error=error)
        if isinstance(result, Allocated):
            return NodeVerdict(node.name, ReasonCode.FITS, Sentence("fits"))
        if isinstance(result, Undecided):
            return NodeVerdict(node.name, ReasonCode.NOT_DECIDED, Sentence(result.reason))
        return self._devices_of(node, wanted, result)

    def _unfit(self, node: NodeView) -> NodeVerdict | None:
        if self._pod is not None:
            if (unfit := unfit_for(self._pod.spec, node)) is not None:
                return NodeVerdict(node.name, _UNFIT[unfit.cause], Sentence(unfit.reason))
            others = (pod.spec for pod in self._world.pods_by_node.get(node.name, ()))
            if (shortage := shortage_on(node, self._pod.spec, others)) is not None:
                return NodeVerdict(node.name, ReasonCode.RESOURCES, Sentence(f"too little {shortage}"))
        if (claim := allocated_elsewhere(self._claims, node)) is not None:
            text = f"claim {claim.metadata.name} has devices of another node{_where(claim)}"
            return NodeVerdict(node.name, ReasonCode.CLAIM_ELSEWHERE, Sentence(text), claim=claim.metadata.name)
        return None

    # -- devices

    def _devices_of(self, node: NodeView, claims: Sequence[ResourceClaim], result: NotAllocatable) -> NodeVerdict:
        view = self._view(node)
        if not view.site.candidates:
            return _without_devices(view.site, self._world.slices)
        requests = [item for claim in self._world.snapshot.requests(claims) for item in claim]
        for alternatives in requests:
            verdicts = [view.request(wanted) for wanted in alternatives]
            if all(_too_few(wanted, verdict) for wanted, verdict in zip(alternatives, verdicts, strict=True)):
                return view.scarce(alternatives, verdicts)
        return self._combination(node, requests, view, result)

    def _combination(
        self, node: NodeView, requests: Sequence[Alternatives], view: "_View", result: NotAllocatable
    ) -> NodeVerdict:
        """Each request alone would find enough, together they do not."""
        verdicts = view.all_of(requests)
        text = result.reason
        code = next((code for cause, code in _TOGETHER if cause in result.causes), ReasonCode.COMBINATION)
        meant = [verdict for verdict in verdicts if verdict.is_meant]
        holders = [holder for verdict in meant for holder in verdict.holders]
        if code is ReasonCode.COUNTERS and not holders:
            holders = [holder for verdict in meant for holder in view.sharers(verdict.candidate)]
        sentence = Sentence(f"{text}; in use: {HELD}", (tuple(holders),)) if holders else Sentence(text)
        wanted = requests[0][0]
        return NodeVerdict(node.name, code, sentence, wanted.claim.metadata.name, str(wanted.name), verdicts)

    def devices(self, node: NodeView) -> tuple[DeviceVerdict, ...]:
        """What every device of the node is to every request, fit or not. Raises InvalidInput for claims that no node
        can serve, and OutOfTime."""
        requests = self._world.snapshot.requests(unallocated(self._claims))
        return self._view(node).all_of(alternatives for claim in requests for alternatives in claim)

    def _view(self, node: NodeView) -> "_View":
        return _View(Site(node, self._world.snapshot, self._limit.enough), self.holders, self._misses)


@dataclass(frozen=True, eq=False, slots=True)
class _Asked:
    """The claims that need devices, and the attributes that decide which ones; None if that is not known."""

    claims: tuple[ResourceClaim, ...]
    attributes: frozenset[str] | None


_OF_ONE_NODE = (ReasonCode.ERROR, ReasonCode.POOL, ReasonCode.NOT_DECIDED)
"""Verdicts that name a device or a pool, or depend on the time that is left."""


_TOGETHER = ((Cause.CONSTRAINT, ReasonCode.CONSTRAINT), (Cause.COUNTERS, ReasonCode.COUNTERS))
"""What keeps requests from being served together, the first one that is among the causes."""


_UNFIT = {
    UnfitCause.CORDONED: ReasonCode.CORDONED,
    UnfitCause.NOT_SELECTED: ReasonCode.NODE_SELECTOR,
    UnfitCause.TAINTED: ReasonCode.NODE_TAINT,
}


def _where(claim: ResourceClaim) -> str:
    pools = dict.fromkeys(result.pool for result in claim.results)
    return f" ({', '.join(pools)})" if pools else ""


def _without_devices(site: Site, slices: Sequence[PublishedSlice]) -> NodeVerdict:
    problems = [f"pool {pool} {pool.problem}" for pool in site.pools if pool.problem is not None]
    if problems:
        return NodeVerdict(site.node.name, ReasonCode.POOL, Sentence("; ".join(problems)))
    newest: dict[PoolId, int] = {}
    for slice_ in slices:
        newest[slice_.pool] = max(slice_.generation, newest.get(slice_.pool, 0))
    outdated = (slice_ for slice_ in slices if slice_.generation < newest[slice_.pool])
    old = {"/".join(slice_.pool) for slice_ in outdated if slice_.is_for(site.node)}
    if old:
        text = f"pool {', '.join(sorted(old))} has a newer generation of slices, and none of them is for this node"
        return NodeVerdict(site.node.name, ReasonCode.POOL, Sentence(text))
    return NodeVerdict(site.node.name, ReasonCode.NO_DEVICES, Sentence("no devices are published for it"))


def _too_few(wanted: Wanted, verdicts: Sequence[DeviceVerdict]) -> bool:
    able = sum(verdict.code is ReasonCode.FITS for verdict in verdicts)
    if wanted.wants_all:
        meant = [verdict for verdict in verdicts if verdict.is_meant]
        return not meant or able < len(meant)
    return able < wanted.count


class _View:
    """One node's devices, looked at for one request after the other."""

    def __init__(self, site: Site, holders: Holders, misses: "_Misses") -> None:
        self.site = site
        self._misses = misses
        self.behavior = site.behavior
        self._holders = holders
        self._pools: dict[tuple[str, str], Pool] = {pool.id: pool for pool in site.usable}
        self._ledger = site.ledger()
        self._untouched = Ledger(site.usable, Usage(), site.behavior)
        self._known: dict[Wanted, tuple[DeviceVerdict, ...]] = {}

    def request(self, wanted: Wanted) -> tuple[DeviceVerdict, ...]:
        if wanted not in self._known:
            self._known[wanted] = tuple(self._device(wanted, candidate) for candidate in self.site.candidates)
        return self._known[wanted]

    def all_of(self, requests: Iterable[Alternatives]) -> tuple[DeviceVerdict, ...]:
        return tuple(verdict for each in requests for wanted in each for verdict in self.request(wanted))

    def sharers(self, candidate: Candidate) -> tuple[ClaimHolder, ...]:
        return self._holders.of_counters(candidate, self._pools[candidate.pool])

    # -- one device

    def _device(self, wanted: Wanted, candidate: Candidate) -> DeviceVerdict:
        return self._unmeant(wanted, candidate) or self._kept_away(wanted, candidate)

    def _unmeant(self, wanted: Wanted, candidate: Candidate) -> DeviceVerdict | None:
        selection = self._pools[candidate.pool].select(wanted.expressions, self.site.enough)
        if (failure := selection.failing.get(candidate)) is not None:
            text = f"selector fails on it: {failure.error}"
            return DeviceVerdict(wanted, candidate, ReasonCode.ERROR, text, selector=failure.index, error=failure.error)
        if candidate not in selection.matching:
            return _unselected(wanted, candidate, self._misses)
        if not candidate.is_for(self.site.node):
            return DeviceVerdict(wanted, candidate, ReasonCode.NODE, "for other nodes")
        if candidate.device.binding_conditions and not self.behavior.binding_conditions:
            text = "with binding conditions; DRADeviceBindingConditions is off"
            return DeviceVerdict(wanted, candidate, ReasonCode.GATE, text)
        if candidate.device.consumes_counters and not self.behavior.partitionable:
            return DeviceVerdict(wanted, candidate, ReasonCode.GATE, "a partition; DRAPartitionableDevices is off")
        if (short := self._untouched.short_of_capacity(wanted, candidate)) is not None:
            return DeviceVerdict(wanted, candidate, ReasonCode.TOO_SMALL, _too_small(wanted, candidate) or short.text)
        return None

    def _kept_away(self, wanted: Wanted, candidate: Candidate) -> DeviceVerdict:
        if self._ledger.in_use(candidate) and not wanted.admin_access:
            holders = self._holders.of(candidate.id)
            return DeviceVerdict(wanted, candidate, ReasonCode.IN_USE, f"in use by {listed_holders(holders)}", holders)
        if (short := self._ledger.short_of_capacity(wanted, candidate)) is not None:
            holders = self._holders.of(candidate.id)
            scarce = _short_of(self.site.snapshot.usage, wanted, candidate) or short.text
            text = f"{scarce}, beside {listed_holders(holders)}"
            return DeviceVerdict(wanted, candidate, ReasonCode.CAPACITY, text, holders, scarce=scarce)
        if (short := self._ledger.short_of_counters(candidate)) is not None:
            holders = self.sharers(candidate)
            text = f"{short.text}, beside {listed_holders(holders)}" if holders else short.text
            return DeviceVerdict(wanted, candidate, ReasonCode.COUNTERS, text, holders, scarce=short.text)
        taints = self.site.snapshot.taints(candidate) if self.behavior.taints else ()
        if taints and (taint := untolerated(taints, wanted.tolerations)) is not None:
            return DeviceVerdict(wanted, candidate, ReasonCode.TAINT, f"tainted {taint}")
        return DeviceVerdict(wanted, candidate, ReasonCode.FITS, "free")

    # -- one sentence

    def scarce(self, alternatives: Alternatives, verdicts: Sequence[tuple[DeviceVerdict, ...]]) -> NodeVerdict:
        """The request that finds too few devices."""
        sentences = [scarce_sentence(wanted, verdict) for wanted, verdict in zip(alternatives, verdicts, strict=True)]
        code, sentence = sentences[0]
        if len(alternatives) > 1:
            # The alternative that came nearest gives the group its code.
            code = max((item for item, _ in sentences), key=nearness)
            each = (
                after(f"{wanted.name.alternative}: ", item)
                for wanted, (_, item) in zip(alternatives, sentences, strict=True)
            )
            lead = f'no alternative of request "{alternatives[0].name.request}" fits: '
            sentence = after(lead, joined("; ", each))
        devices = tuple(device_verdict for verdict in verdicts for device_verdict in verdict)
        wanted = alternatives[0]
        problems = [f"; pool {pool} {pool.problem}" for pool in self.site.pools if pool.problem is not None]
        return NodeVerdict(
            self.site.node.name,
            code,
            joined("", [sentence, *map(Sentence, problems)]),
            wanted.claim.metadata.name,
            wanted.name.request,
            devices,
        )


class _Misses:
    """Why selectors are false, found out once for devices that a selector cannot tell apart."""

    def __init__(self, server: Server, enough: Callable[[], bool]) -> None:
        self._server = server
        self._enough = enough
        self._known: dict[Hashable, tuple[ExpressionPart, ...]] = {}

    def of(self, expression: str, candidate: Candidate) -> tuple[ExpressionPart, ...]:
        """Raises CelError, and OutOfTime."""
        reads = reads_of(expression)
        seen = candidate.facts.seen(reads) if reads is not None else None
        parts = self._known.get((expression, seen)) if seen is not None else None
        if parts is None:
            if self._enough():
                raise OutOfTime
            parts = failing_parts(expression, CelDevice(candidate.id.driver, candidate.device), self._server)
            if seen is not None:
                self._known[expression, seen] = parts
        return parts


def _unselected(wanted: Wanted, candidate: Candidate, misses: _Misses) -> DeviceVerdict:
    own = len(wanted.device_class.spec.selectors)
    for index, expression in enumerate(wanted.expressions):
        try:
            parts = misses.of(expression, candidate)
        except CelError as error:  # only the watched evaluation failed
            return DeviceVerdict(wanted, candidate, ReasonCode.ERROR, str(error), selector=index)
        if parts:
            code = ReasonCode.CLASS if index < own else ReasonCode.SELECTOR
            return DeviceVerdict(wanted, candidate, code, _explanations(parts), parts=parts, selector=index)
    return DeviceVerdict(wanted, candidate, ReasonCode.SELECTOR, "not selected")


def _explanations(parts: Iterable[ExpressionPart]) -> str:
    return " and ".join(dict.fromkeys(part.explanation for part in parts))


def _too_small(wanted: Wanted, candidate: Candidate) -> str | None:
    missing = [name for name in wanted.capacity if name not in candidate.device.capacity]
    if missing:
        return f"has no capacity {missing[0]}"
    for name, text in sorted(wanted.capacity.items()):
        capacity = candidate.device.capacity[name]
        if Quantity.parse(text) > Quantity.parse(capacity.value):
            return f"{name} {capacity.value} < {text}"
    return None


def left_of(usage: Usage, candidate: Candidate, capacity: str) -> Fraction:
    """What claims leave of a capacity of a device that is given away in parts."""
    return Fraction(amount(candidate.device.capacity[capacity].value)) - usage.taken_of(candidate).get(capacity, 0)


def _short_of(usage: Usage, wanted: Wanted, candidate: Candidate) -> str | None:
    """`has 20Gi of memory left, 40Gi wanted`; None where the request does not name what is short."""
    for name, text in sorted(wanted.capacity.items()):
        left = left_of(usage, candidate, name)
        if Fraction(amount(text)) > left:
            return f"has {amount_text(Quantity(left, Quantity.parse(text).format))} of {name} left, {text} wanted"
    return None
