"""Why a pod or claim does not fit on a node: per device, per request, and in one sentence. Pure.

A device is looked at the way people think: first whether it is what is asked for (class, selectors, amounts), and only
then what keeps it away now (in use, counters, taints, constraints). So a device that is in use and is too small is too
small. Sentences do not name the node, so that nodes with one reason form a group.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

from dra_driver.allocation.amounts import amount, quantity
from dra_driver.allocation.extended import extended_claim
from dra_driver.allocation.failing import Comparison, Part, amount_text, failing_parts
from dra_driver.allocation.holders import Holder, Holders, listed_holders
from dra_driver.allocation.nodes import NodeView, unfit_for, untolerated
from dra_driver.allocation.offline import NO_POD
from dra_driver.allocation.placement import allocated_elsewhere, extended_on, unallocated
from dra_driver.allocation.prospects import Site
from dra_driver.allocation.requests import Alternatives, Wanted, checked_requests
from dra_driver.allocation.resources import shortage_on
from dra_driver.allocation.search import Allocated, NotAllocatable, allocate
from dra_driver.allocation.snapshot import Candidate, Pool, Usage
from dra_driver.allocation.usage import Ledger
from dra_driver.allocation.world import Pod, World
from dra_driver.api.resource import Allocation, ResourceClaim
from dra_driver.cel.device import CelDevice
from dra_driver.cel.errors import CelError
from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.quantity import Quantity


class Code(StrEnum):
    """What stands in the way. The texts are part of what `-o json` promises."""

    FITS = "fits"
    # of the node, before devices are looked at
    CORDONED = "cordoned"
    NODE_SELECTOR = "node-selector"
    NODE_TAINT = "node-taint"
    RESOURCES = "resources"
    CLAIM_ELSEWHERE = "claim-elsewhere"
    EXTENDED_RESOURCE = "extended-resource"
    # of its devices
    NO_DEVICES = "no-devices"
    POOL = "pool"
    CLASS = "class"
    SELECTOR = "selector"
    GATE = "gate"
    NODE = "node"
    TOO_SMALL = "too-small"
    IN_USE = "in-use"
    COUNTERS = "counters"
    CAPACITY = "capacity"
    TAINT = "taint"
    TOO_FEW = "too-few"
    CONSTRAINT = "constraint"
    COMBINATION = "combination"
    # of the whole attempt
    ERROR = "error"


_NOT_MEANT = (Code.CLASS, Code.SELECTOR, Code.GATE, Code.NODE, Code.TOO_SMALL)
"""Devices that are not what is asked for, whoever has them; the nearest miss comes last."""


@dataclass(frozen=True)
class DeviceVerdict:
    """What one device is to one request. `parts` are of the selector that is false, written by `selector`."""

    wanted: Wanted
    candidate: Candidate
    code: Code
    text: str
    holders: tuple[Holder, ...] = ()
    parts: tuple[Part, ...] = ()
    selector: int | None = None
    """Index of the false selector among those of class and request."""
    scarce: str | None = None
    """What is left of a capacity."""
    error: CelError | None = None
    """Of a selector that fails on the device."""

    @property
    def is_meant(self) -> bool:
        return self.code not in _NOT_MEANT


HELD = "\0"
"""Where holders are named in the shape of a sentence."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A reason whose holders are still open: nodes with the same `shape` form a group, whoever is in the way there.

    `held` are the holders to name at each HELD, in order.
    """

    shape: str
    held: tuple[tuple[Holder, ...], ...] = ()

    @property
    def text(self) -> str:
        first, *rest = self.shape.split(HELD)
        return first + "".join(listed_holders(holders) + text for holders, text in zip(self.held, rest, strict=True))

    def beside(self, others: Iterable["Sentence"]) -> "Sentence":
        """With the holders of sentences of the same shape."""
        lists = zip(*(one.held for one in (self, *others)), strict=True)
        return Sentence(self.shape, tuple(tuple(holder for one in place for holder in one) for place in lists))


def _joined(separator: str, sentences: Iterable[Sentence]) -> Sentence:
    parts = list(sentences)
    return Sentence(separator.join(one.shape for one in parts), tuple(held for one in parts for held in one.held))


def _after(lead: str, sentence: Sentence) -> Sentence:
    return Sentence(lead + sentence.shape, sentence.held)


@dataclass(frozen=True)
class NodeVerdict:
    """One node. `said` is the first reason, without the node's name; `devices` are those of the request it is about."""

    node: str
    code: Code
    said: Sentence
    claim: str | None = None
    request: str | None = None
    devices: tuple[DeviceVerdict, ...] = ()
    allocations: tuple[Allocation, ...] = ()

    @property
    def text(self) -> str:
        return self.said.text

    @property
    def fits(self) -> bool:
        return self.code is Code.FITS


class Judge:
    """Looks at the nodes of a world for one pod, or for a claim of no pod."""

    def __init__(self, world: World, pod: Pod | None, claims: Sequence[ResourceClaim]) -> None:
        self._world = world
        self._pod = pod
        self._claims = claims
        self.holders = Holders(world)

    def node(self, node: NodeView) -> NodeVerdict:
        """The node's first reason, or what the claims would get there."""
        if (unfit := self._unfit(node)) is not None:
            return unfit
        pod = self._pod.obj if self._pod is not None else NO_POD
        extended = extended_on(pod, node, self._world.classes)
        if isinstance(extended, str):
            return NodeVerdict(node.name, Code.EXTENDED_RESOURCE, Sentence(extended))
        wanted = unallocated(self._claims)
        if extended is not None:
            wanted.append(ResourceClaim.of(extended_claim(pod, extended.requests)))
        try:
            result = allocate(wanted, node, self._world.snapshot)
        except (InvalidInput, NodeNotReady) as error:
            code = Code.POOL if isinstance(error, NodeNotReady) else Code.ERROR
            return NodeVerdict(node.name, code, Sentence(str(error)))
        if isinstance(result, Allocated):
            return NodeVerdict(node.name, Code.FITS, Sentence("fits"), allocations=result.allocations)
        return self._devices_of(node, wanted, result)

    def _unfit(self, node: NodeView) -> NodeVerdict | None:
        if self._pod is not None:
            if (text := unfit_for(self._pod.obj, node)) is not None:
                return NodeVerdict(node.name, _node_code(text), Sentence(text))
            others = (one.obj for one in self._world.pods_by_node.get(node.name, ()))
            if (shortage := shortage_on(node, self._pod.obj, others)) is not None:
                return NodeVerdict(node.name, Code.RESOURCES, Sentence(f"too little {shortage}"))
        if (claim := allocated_elsewhere(self._claims, node)) is not None:
            text = f"claim {claim.metadata.name} has devices of another node{_where(claim)}"
            return NodeVerdict(node.name, Code.CLAIM_ELSEWHERE, Sentence(text), claim=claim.metadata.name)
        return None

    # -- devices

    def _devices_of(self, node: NodeView, claims: Sequence[ResourceClaim], result: NotAllocatable) -> NodeVerdict:
        view = _View(Site(node, self._world.snapshot), self.holders)
        if not view.site.candidates:
            return _without_devices(view.site)
        requests = [one for claim in checked_requests(claims, self._world.classes, view.behaviour) for one in claim]
        for alternatives in requests:
            verdicts = [view.request(wanted) for wanted in alternatives]
            if all(_too_few(wanted, one) for wanted, one in zip(alternatives, verdicts, strict=True)):
                return view.scarce(alternatives, verdicts)
        return self._combination(node, requests, view, result)

    def _combination(
        self, node: NodeView, requests: Sequence[Alternatives], view: "_View", result: NotAllocatable
    ) -> NodeVerdict:
        """Each request alone would find enough, together they do not."""
        verdicts = [one for alternatives in requests for wanted in alternatives for one in view.request(wanted)]
        text = result.reason
        if "against " in text or "devices with one " in text:
            code = Code.CONSTRAINT
        elif "counter" in text:
            code = Code.COUNTERS
        else:
            code = Code.COMBINATION
        kept = [one for one in verdicts if one.is_meant and one.holders]
        holders = [holder for one in kept for holder in one.holders]
        if code is Code.COUNTERS and not holders:
            holders = [holder for one in verdicts if one.is_meant for holder in view.sharers(one.candidate)]
        said = Sentence(f"{text}; in use: {HELD}", (tuple(holders),)) if holders else Sentence(text)
        wanted = requests[0][0]
        return NodeVerdict(node.name, code, said, wanted.claim.metadata.name, str(wanted.name), tuple(verdicts))

    def devices(self, node: NodeView) -> tuple[DeviceVerdict, ...]:
        """What every device of the node is to every request, fit or not. Raises InvalidInput for claims that no node
        can serve."""
        view = _View(Site(node, self._world.snapshot), self.holders)
        requests = checked_requests(unallocated(self._claims), self._world.classes, view.behaviour)
        return tuple(
            verdict
            for claim in requests
            for alternatives in claim
            for wanted in alternatives
            for verdict in view.request(wanted)
        )


def _node_code(text: str) -> Code:
    if text == "cordoned":
        return Code.CORDONED
    return Code.NODE_TAINT if text.startswith("tainted") else Code.NODE_SELECTOR


def _where(claim: ResourceClaim) -> str:
    pools = (
        dict.fromkeys(one.pool for one in claim.status.allocation.devices.results) if claim.status.allocation else {}
    )
    return f" ({', '.join(pools)})" if pools else ""


def _without_devices(site: Site) -> NodeVerdict:
    problems = [f"pool {pool} {pool.problem}" for pool in site.pools if pool.problem is not None]
    if problems:
        return NodeVerdict(site.node.name, Code.POOL, Sentence("; ".join(problems)))
    return NodeVerdict(site.node.name, Code.NO_DEVICES, Sentence("no devices are published for it"))


def _too_few(wanted: Wanted, verdicts: Sequence[DeviceVerdict]) -> bool:
    able = sum(one.code is Code.FITS for one in verdicts)
    if wanted.wants_all:
        meant = [one for one in verdicts if one.is_meant]
        return not meant or able < len(meant)
    return able < wanted.count


class _View:
    """One node's devices, looked at for one request after the other."""

    def __init__(self, site: Site, holders: Holders) -> None:
        self.site = site
        self.behaviour = site.behaviour
        self._holders = holders
        self._pools: dict[tuple[str, str], Pool] = {pool.id: pool for pool in site.usable}
        self._ledger = site.ledger()
        self._untouched = Ledger(site.usable, Usage(), site.behaviour)
        self._known: dict[Wanted, tuple[DeviceVerdict, ...]] = {}

    def request(self, wanted: Wanted) -> tuple[DeviceVerdict, ...]:
        if wanted not in self._known:
            self._known[wanted] = tuple(self._device(wanted, one) for one in self.site.candidates)
        return self._known[wanted]

    def sharers(self, candidate: Candidate) -> tuple[Holder, ...]:
        return self._holders.of_counters(candidate, self._pools[candidate.pool])

    # -- one device

    def _device(self, wanted: Wanted, candidate: Candidate) -> DeviceVerdict:
        return self._unmeant(wanted, candidate) or self._kept_away(wanted, candidate)

    def _unmeant(self, wanted: Wanted, candidate: Candidate) -> DeviceVerdict | None:
        selection = self._pools[candidate.pool].select(wanted.expressions)
        if (failure := selection.failing.get(candidate)) is not None:
            text = f"selector fails on it: {failure.error}"
            return DeviceVerdict(wanted, candidate, Code.ERROR, text, selector=failure.index, error=failure.error)
        if candidate not in selection.matching:
            return _unselected(wanted, candidate)
        if not candidate.is_for(self.site.node):
            return DeviceVerdict(wanted, candidate, Code.NODE, "for other nodes")
        if candidate.device.binding_conditions and not self.behaviour.binding_conditions:
            return DeviceVerdict(
                wanted, candidate, Code.GATE, "attached only after the decision; DRADeviceBindingConditions is off"
            )
        if candidate.device.consumes_counters and not self.behaviour.partitionable:
            return DeviceVerdict(wanted, candidate, Code.GATE, "a partition; DRAPartitionableDevices is off")
        if (short := self._untouched.short_of_capacity(wanted, candidate)) is not None:
            return DeviceVerdict(wanted, candidate, Code.TOO_SMALL, _too_small(wanted, candidate) or short.text)
        return None

    def _kept_away(self, wanted: Wanted, candidate: Candidate) -> DeviceVerdict:
        if self._ledger.in_use(candidate) and not wanted.admin_access:
            holders = self._holders.of(candidate.id)
            return DeviceVerdict(wanted, candidate, Code.IN_USE, f"in use by {listed_holders(holders)}", holders)
        if (short := self._ledger.short_of_capacity(wanted, candidate)) is not None:
            holders = self._holders.of(candidate.id)
            scarce = _short_of(self.site.snapshot.usage, wanted, candidate) or short.text
            text = f"{scarce}, beside {listed_holders(holders)}"
            return DeviceVerdict(wanted, candidate, Code.CAPACITY, text, holders, scarce=scarce)
        if (short := self._ledger.short_of_counters(candidate)) is not None:
            holders = self.sharers(candidate)
            text = f"{short.text}, beside {listed_holders(holders)}" if holders else short.text
            return DeviceVerdict(wanted, candidate, Code.COUNTERS, text, holders)
        taints = self.site.snapshot.taints(candidate) if self.behaviour.taints else ()
        if taints and (taint := untolerated(taints, wanted.tolerations)) is not None:
            return DeviceVerdict(wanted, candidate, Code.TAINT, f"tainted {taint}")
        return DeviceVerdict(wanted, candidate, Code.FITS, "free")

    # -- one sentence

    def scarce(self, alternatives: Alternatives, verdicts: Sequence[tuple[DeviceVerdict, ...]]) -> NodeVerdict:
        """The request that finds too few devices."""
        sentences = [_scarce(wanted, one) for wanted, one in zip(alternatives, verdicts, strict=True)]
        code, said = sentences[0]
        if len(alternatives) > 1:
            # The alternative that came nearest gives the group its code.
            code = max((one for one, _ in sentences), key=_nearness)
            each = (
                _after(f"{wanted.name.alternative}: ", one)
                for wanted, (_, one) in zip(alternatives, sentences, strict=True)
            )
            lead = f'no alternative of request "{alternatives[0].name.request}" fits: '
            said = _after(lead, _joined("; ", each))
        devices = tuple(one for found in verdicts for one in found)
        wanted = alternatives[0]
        problems = [f"; pool {pool} {pool.problem}" for pool in self.site.pools if pool.problem is not None]
        return NodeVerdict(
            self.site.node.name,
            code,
            _joined("", [said, *map(Sentence, problems)]),
            wanted.claim.metadata.name,
            wanted.name.request,
            devices,
        )


_ORDER = tuple(Code)


def _nearness(code: Code) -> int:
    return _ORDER.index(code)


def _unselected(wanted: Wanted, candidate: Candidate) -> DeviceVerdict:
    device = CelDevice(candidate.id.driver, candidate.device)
    own = len(wanted.device_class.spec.selectors)
    for index, expression in enumerate(wanted.expressions):
        try:
            parts = failing_parts(expression, device)
        except CelError as error:  # it failed for whoever watches only
            return DeviceVerdict(wanted, candidate, Code.ERROR, str(error), selector=index)
        if parts:
            code = Code.CLASS if index < own else Code.SELECTOR
            return DeviceVerdict(wanted, candidate, code, _said(parts), parts=parts, selector=index)
    return DeviceVerdict(wanted, candidate, Code.SELECTOR, "not selected")


def _said(parts: Iterable[Part]) -> str:
    return " and ".join(dict.fromkeys(part.said for part in parts))


def _too_small(wanted: Wanted, candidate: Candidate) -> str | None:
    missing = [name for name in wanted.capacity if name not in candidate.device.capacity]
    if missing:
        return f"has no capacity {missing[0]}"
    for name, text in sorted(wanted.capacity.items()):
        capacity = candidate.device.capacity[name]
        if quantity(text) > quantity(capacity.value):
            return f"{name} {capacity.value} < {text}"
    return None


def left_of(usage: Usage, candidate: Candidate, capacity: str) -> Fraction:
    """What claims leave of a capacity of a device that is given away in parts."""
    pool = usage.pools.get(candidate.pool)
    held = pool.shared.get(candidate.id.device, {}) if pool is not None else {}
    return Fraction(amount(candidate.device.capacity[capacity].value)) - Fraction(held.get(capacity, 0))


def _short_of(usage: Usage, wanted: Wanted, candidate: Candidate) -> str | None:
    """`has 20Gi of memory left, 40Gi wanted`; None where the request does not name what is short."""
    for name, text in sorted(wanted.capacity.items()):
        left = left_of(usage, candidate, name)
        if Fraction(amount(text)) > left:
            return f"has {amount_text(Quantity(left, quantity(text).format))} of {name} left, {text} wanted"
    return None


def _scarce(wanted: Wanted, verdicts: Sequence[DeviceVerdict]) -> tuple[Code, Sentence]:
    meant = [one for one in verdicts if one.is_meant]
    if not meant:
        return _nothing_meant(wanted, verdicts)
    able = [one for one in meant if one.code is Code.FITS]
    kept = [one for one in meant if one.code is not Code.FITS]
    number = len(meant) if wanted.wants_all else wanted.count
    if not kept:
        text = f'request "{wanted.name}" needs {number} devices, and {_of(len(meant), "matches", "match")} it'
        return Code.TOO_FEW, Sentence(text)
    code = Counter(one.code for one in kept).most_common(1)[0][0]
    if number == 1 or (len(meant) == 1 and not able):
        return code, _kept_away(kept)
    needs = "all of" if wanted.wants_all else f"{number} of"
    if number > len(meant):
        needs = f"{number} devices, but has only"
    free = f"{len(able)} free" if able else "none free"
    lead = f'request "{wanted.name}" needs {needs} {len(meant)} that match, {free}; '
    return code, _after(lead, _kept_away(kept))


def _of(number: int, one: str, many: str) -> str:
    return f"only 1 {one}" if number == 1 else f"only {number} {many}"


_LEADS = {
    Code.IN_USE: "in use by",
    Code.CAPACITY: "without room left beside",
    Code.COUNTERS: "without room left beside",
}


def _kept_away(verdicts: Sequence[DeviceVerdict]) -> Sentence:
    """`2 devices in use by team-a/train, 1 tainted gpu.nvidia.com/xid=79`."""
    groups: dict[tuple[Code, str], list[DeviceVerdict]] = {}
    for one in verdicts:
        # Those whose reasons differ in who is in the way only are told of together.
        text = one.text if one.code not in _LEADS or not one.holders else ""
        groups.setdefault((one.code, text), []).append(one)
    several = len(groups) > 1
    return _joined(
        ", ",
        (
            _group_of_devices(code, text, members, several)
            for (code, text), members in sorted(groups.items(), key=lambda item: -len(item[1]))
        ),
    )


def _group_of_devices(code: Code, text: str, members: Sequence[DeviceVerdict], several: bool) -> Sentence:
    number = f"{len(members)} " if several or len(members) > 1 else ""
    noun = "device" if len(members) == 1 else "devices"
    if not text:
        holders = tuple(holder for one in members for holder in one.holders)
        scarce = members[0].scarce if len(members) == 1 else None
        lead = f"{scarce}, beside" if scarce is not None else _LEADS[code]
        return Sentence(f"{number}{noun} {lead} {HELD}", (holders,))
    return Sentence(f"{number}{noun} {text}" if number or code is not Code.TAINT else text)


def _nothing_meant(wanted: Wanted, verdicts: Sequence[DeviceVerdict]) -> tuple[Code, Sentence]:
    """No device is what the request asks for: how the nearest ones miss it."""
    nearest = max((one.code for one in verdicts), key=_nearness)
    if nearest is Code.CLASS:
        text = f"no device of class {wanted.device_class.metadata.name} ({_commonest(verdicts)})"
        return nearest, Sentence(text)
    near = [one for one in verdicts if one.code is nearest]
    return nearest, Sentence(f'no device matches request "{wanted.name}": {_commonest(near)}')


_MOST_MISSES = 2
_MOST_VALUES = 3


def _commonest(verdicts: Sequence[DeviceVerdict]) -> str:
    """The two misses that most devices have; those that differ in the device's own value only are one."""
    groups: dict[object, list[DeviceVerdict]] = {}
    for one in verdicts:
        comparison = _only_comparison(one)
        key = (comparison.name, comparison.sign, comparison.other) if comparison is not None else one.text
        groups.setdefault(key, []).append(one)
    ordered = sorted(groups.values(), key=lambda members: -len(members))
    texts = [_miss(members) for members in ordered[:_MOST_MISSES]]
    more = len(ordered) - len(texts)
    return ", or ".join(texts) + (f", and {more} more reason{'s' if more > 1 else ''}" if more else "")


def _only_comparison(verdict: DeviceVerdict) -> Comparison | None:
    return verdict.parts[0].comparison if len(verdict.parts) == 1 else None


def _miss(verdicts: Sequence[DeviceVerdict]) -> str:
    """`memory at most 80Gi < 100Gi`; `profile is "1g.10gb", "2g.20gb" or 3 others, not "9g.90gb"`."""
    comparisons = {each.own: each for each in map(_only_comparison, verdicts) if each is not None}
    first = verdicts[0]
    if len(comparisons) < 2:
        return first.text
    found = list(comparisons.values())
    sign, name, other = found[0].sign, found[0].name, found[0].other
    numbers = [(one.amount, one.own) for one in found if one.amount is not None]
    if sign in ("<", "<=") and len(numbers) == len(found):
        return f"{name} at most {max(numbers)[1]} {sign} {other}"
    if sign in (">", ">=") and len(numbers) == len(found):
        return f"{name} at least {min(numbers)[1]} {sign} {other}"
    texts = [one.own for one in found[:_MOST_VALUES]]
    more = len(found) - len(texts)
    values = f"{', '.join(texts)} or {more} other{'s' if more > 1 else ''}" if more else _either(texts)
    return str(replace(found[0], own=values))


def _either(texts: Sequence[str]) -> str:
    return f"{', '.join(texts[:-1])} or {texts[-1]}"
