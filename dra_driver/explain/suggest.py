"""What would fit: the nearest changes of a request, or of the cluster, that succeed. The allocator is asked. Pure.

Ideas come from what kept devices away; each is tried on the nodes that came nearest, and only what then gets devices is
suggested. Distances order them: 0 is waiting, 1 and more is changing a request, the more the further.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from dra_driver.allocation.amounts import amount
from dra_driver.allocation.nodes import untolerated
from dra_driver.allocation.offline import placement_of
from dra_driver.allocation.search import Limit
from dra_driver.allocation.selection import OutOfTime
from dra_driver.allocation.world import PodClaim, World, claim_key
from dra_driver.api.core import Pod
from dra_driver.api.resource import (
    CapacityRequests,
    CelSelector,
    DeviceRequest,
    ResourceClaim,
    Selector,
    Taint,
    Toleration,
)
from dra_driver.cel.device import CelDevice
from dra_driver.cel.errors import CelError, CelRuntimeError
from dra_driver.cel.functions import Server
from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.explain.failing import amount_text, failing_parts
from dra_driver.explain.judge import NodeJudge, left_of
from dra_driver.explain.verdicts import DeviceVerdict, NodeVerdict, ReasonCode, nearness
from dra_driver.names import RequestName
from dra_driver.phrases import how_many
from dra_driver.quantity import Quantity

type SuggestionKind = Literal["wait", "count", "selector", "capacity", "toleration", "constraint", "class", "pod"]
"""What to change; part of what `-o json` promises."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """`change` is what to write and where; `node` is one on which it fits then."""

    kind: SuggestionKind
    text: str
    change: str
    node: str
    distance: float


MOST = 5
_MOST_TRIES = 400
_MOST_NODES = 24
_NODES_PER_REASON = 3
_MOST_PER_IDEA = 12
_OF_OTHER_USE = ("vfio", "compute-domain")
"""Parts of names of classes whose devices are no GPUs for containers, and so do not help."""


@dataclass(frozen=True)
class _Idea:
    """A change that may help, still without a node. `claims` are those to ask for, in the world `world`, for the pod
    `pod`. Of ideas of one kind and scope only the nearest that works is suggested."""

    suggestion: Suggestion
    scope: str
    claims: tuple[ResourceClaim, ...]
    world: World
    pod: Pod | None


def suggestions(
    world: World,
    pod: Pod | None,
    entries: Sequence[PodClaim],
    verdicts: Sequence[NodeVerdict],
    limit: Limit,
) -> tuple[Suggestion, ...]:
    """At most MOST, the nearest first. `limit` is that of each attempt; its `enough` ends the search for more, too."""
    asked = _Asked(world, pod, entries, limit)
    nearest = _nearest(verdicts)
    failing = [node_verdict for node_verdict in nearest if node_verdict.code is ReasonCode.ERROR]
    if failing:
        with suppress(OutOfTime):
            return tuple(asked.mended(failing, nearest))[:1]
        return ()
    results: dict[str, Suggestion] = {}
    tries = 0
    satisfied: set[tuple[SuggestionKind, str]] = set()
    for idea in sorted(asked.ideas(nearest), key=lambda idea: idea.suggestion.distance):
        kind, text = idea.suggestion.kind, idea.suggestion.text
        if (kind, idea.scope) in satisfied or text in results:
            continue
        if kind == "class" and results:
            break  # another class is another kind of device: better than nothing only
        for node in nearest:
            if tries >= _MOST_TRIES or limit.enough():
                return tuple(results.values())
            tries += 1
            if _fits(idea, node.node, limit):
                results[text] = replace(idea.suggestion, node=node.node)
                satisfied.add((kind, idea.scope))
                break
        if len(results) == MOST:
            break
    return tuple(results.values())


def _nearest(verdicts: Sequence[NodeVerdict]) -> list[NodeVerdict]:
    """Some nodes of each reason, those first that failed last."""
    per_reason: dict[str, int] = {}
    node_verdicts: list[NodeVerdict] = []
    for verdict in sorted(verdicts, key=lambda node_verdict: (-nearness(node_verdict.code), node_verdict.node)):
        per_reason[verdict.sentence.shape] = per_reason.get(verdict.sentence.shape, 0) + 1
        if per_reason[verdict.sentence.shape] <= _NODES_PER_REASON:
            node_verdicts.append(verdict)
    return node_verdicts[:_MOST_NODES]


def _fits(idea: _Idea, name: str, limit: Limit) -> bool:
    try:
        return not isinstance(placement_of(idea.world, idea.pod, idea.claims, idea.world.nodes[name], limit), str)
    except (InvalidInput, NodeNotReady):
        return False


class _Asked:
    """What is asked for, and ideas for asking something else."""

    def __init__(self, world: World, pod: Pod | None, entries: Sequence[PodClaim], limit: Limit) -> None:
        self._world = world
        self._limit = limit
        self._pod = pod
        self._entries = {claim_key(entry.claim): entry for entry in entries if entry.claim is not None}
        self._claims = tuple(entry.claim for entry in self._entries.values() if entry.claim is not None)

    def ideas(self, nodes: Sequence[NodeVerdict]) -> Iterator[_Idea]:
        yield from self._waiting(nodes)
        yield from self._pod_changes(nodes)
        for claim in self._claims:
            if claim.status.allocation is not None:
                continue
            yield from self._fewer(claim)
            yield from self._without_constraints(claim)
            yield from self._other_classes(claim)
        yield from self._tolerations(nodes)
        yield from self._selectors(nodes)
        yield from self._less_capacity(nodes)

    def _idea(self, kind: SuggestionKind, scope: str, text: str, change: str, distance: float, **other: Any) -> _Idea:
        """With these claims, in this world or with this pod, instead of what is asked for."""
        suggestion = Suggestion(kind, text, change, "", distance)
        return _Idea(suggestion, scope, **{"claims": self._claims, "world": self._world, "pod": self._pod, **other})

    def _with(self, claim: ResourceClaim) -> tuple[ResourceClaim, ...]:
        """The claims, with this version of one of them."""
        return tuple(claim if claim_key(known) == claim_key(claim) else known for known in self._claims)

    def _in_request(
        self,
        kind: SuggestionKind,
        scope: str,
        where: tuple[ResourceClaim, RequestName],
        phrase: str,
        change: str,
        fields: Mapping[str, Any],
        distance: float,
        condition: str = "",
    ) -> Iterator[_Idea]:
        """With other fields in this request or alternative; nothing for a claim that no user wrote."""
        claim, name = where
        entry = self._entries.get(claim_key(claim))
        if entry is not None and entry.claim is not None and entry.claim.status.allocation is None:
            text = f'It fits with {phrase} in request "{name}"{condition}.'
            written = f"{self._place(claim, name)}.{change}"
            claims = self._with(with_request(entry.claim, name, **fields))
            yield self._idea(kind, scope, text, written, distance, claims=claims)

    def _path(self, claim: ResourceClaim) -> str:
        """Where its `devices` are written."""
        entry = self._entries[claim_key(claim)]
        namespace, name = claim_key(claim)
        if entry.template is not None:
            return f"ResourceClaimTemplate {namespace}/{entry.template}: spec.spec.devices"
        return f"ResourceClaim {namespace}/{name}: spec.devices"

    def _place(self, claim: ResourceClaim, name: RequestName) -> str:
        """Where the request or alternative is written."""
        index, request = next(
            (index, item) for index, item in enumerate(claim.spec.devices.requests) if item.name == name.request
        )
        if name.alternative is None:
            return f"{self._path(claim)}.requests[{index}].exactly"
        names = [alternative.name for alternative in request.first_available or ()]
        return f"{self._path(claim)}.requests[{index}].firstAvailable[{names.index(name.alternative)}]"

    # -- waiting

    def _waiting(self, nodes: Sequence[NodeVerdict]) -> Iterator[_Idea]:
        for claim in self._claims:
            # Its own devices may be in the wrong place.
            if claim.status.allocation is not None:
                event = f"claim {'/'.join(claim_key(claim))} is deleted and allocated again"
                yield self._freeing([claim_key(claim)], event, 0.5, "own")
        for verdict in nodes:
            holders = list(
                dict.fromkeys(holder for device in verdict.devices for holder in device.holders if device.is_meant)
            )
            for holder in holders[:_MOST_PER_IDEA]:
                yield self._freeing([holder.claim], f"{holder.described} ends", 0.0)
            for number in range(2, min(len(holders), _MOST_PER_IDEA) + 1):
                names = " and ".join(map(str, holders[:number])) if number < 4 else f"{number} claims like {holders[0]}"
                yield self._freeing([item.claim for item in holders[:number]], f"{names} end", number / 20)

    def _freeing(self, keys: list[tuple[str, str]], event: str, distance: float, scope: str = "") -> _Idea:
        world = self._world.without_allocations(keys)
        claims = tuple(
            world.claims.get(claim_key(claim), claim) if claim_key(claim) in keys else claim for claim in self._claims
        )
        text = f"It fits when {event}."
        return self._idea("wait", scope, text, "", distance, world=world, claims=claims)

    # -- the pod

    def _pod_changes(self, nodes: Sequence[NodeVerdict]) -> Iterator[_Idea]:
        if self._pod is None:
            return
        spec = self._pod.spec
        for verdict in nodes:
            if verdict.code is ReasonCode.NODE_TAINT:
                names, added = missing_tolerations(self._world.nodes[verdict.node].taints, spec.tolerations)
                changed = self._pod.with_spec(tolerations=[*spec.tolerations, *added])
                change = f"{_written_in(self._pod)}.tolerations: add {flow([item.to_wire() for item in added])}"
                text = f"It fits with a toleration of the pod for the node's taint {names}."
                yield self._idea("pod", names, text, change, 2.0, pod=changed)
            if verdict.code is ReasonCode.NODE_SELECTOR and spec.node_selector:
                changed = self._pod.with_spec(node_selector={})
                written = ", ".join(f"{key}={value}" for key, value in spec.node_selector.items())
                text = f"It fits without the pod's nodeSelector ({written})."
                change = f"{_written_in(self._pod)}.nodeSelector: remove"
                yield self._idea("pod", "selector", text, change, 3.0, pod=changed)

    # -- the claim as a whole

    def _fewer(self, claim: ResourceClaim) -> Iterator[_Idea]:
        for index, request in enumerate(claim.spec.devices.requests):
            spec, name = request.exactly, RequestName(request.name)
            if spec is None or spec.allocation_mode != "ExactCount":
                continue
            wanted, scope = spec.count or 1, f"{claim_key(claim)}{index}"
            for number in range(wanted - 1, 0, -1):
                phrase, distance = f"{how_many(number, 'device')} instead of {wanted}", 1 + (wanted - number) / wanted
                change, fields = f"count: {number}", {"count": number}
                yield from self._in_request("count", scope, (claim, name), phrase, change, fields, distance)

    def _without_constraints(self, claim: ResourceClaim) -> Iterator[_Idea]:
        constraints = claim.spec.devices.constraints
        for index, constraint in enumerate(constraints):
            changed = with_devices(claim, constraints=[*constraints[:index], *constraints[index + 1 :]])
            attribute = f"matchAttribute {constraint.match_attribute}"
            if not constraint.match_attribute:
                attribute = f"distinctAttribute {constraint.distinct_attribute}"
            change = f"{self._path(claim)}.constraints[{index}]: remove"
            text = f"It fits without the constraint {attribute}."
            yield self._idea("constraint", str(index), text, change, 1.9, claims=self._with(changed))

    def _other_classes(self, claim: ResourceClaim) -> Iterator[_Idea]:
        for index, request in enumerate(claim.spec.devices.requests):
            own = request.exactly.device_class_name if request.exactly is not None else None
            if own is None or _is_of_other_use(own):
                continue
            others = [name for name in sorted(self._world.classes) if name != own and not _is_of_other_use(name)]
            for other in others[:_MOST_PER_IDEA]:
                name, phrase = RequestName(request.name), f"class {other} instead of {own}"
                change, fields = f"deviceClassName: {other}", {"device_class_name": other}
                yield from self._in_request("class", str(index), (claim, name), phrase, change, fields, 4.0)

    # -- what devices say

    def _tolerations(self, nodes: Sequence[NodeVerdict]) -> Iterator[_Idea]:
        for verdict in nodes:
            for device in [device for device in verdict.devices if device.code is ReasonCode.TAINT][:_MOST_PER_IDEA]:
                wanted = device.wanted
                names, added = missing_tolerations(self._world.snapshot.taints(device.candidate), wanted.tolerations)
                phrase, condition = f"a toleration for {names}", ", if the taint is acceptable"
                change = f"tolerations: add {flow([item.to_wire() for item in added])}"
                fields = {"tolerations": [*wanted.tolerations, *added]}
                where = wanted.claim, wanted.name
                yield from self._in_request("toleration", names, where, phrase, change, fields, 1.5, condition)

    def _selectors(self, nodes: Sequence[NodeVerdict]) -> Iterator[_Idea]:
        """Other values in the claim's own selectors: those that a device there has."""
        seen: set[tuple[RequestName, str]] = set()
        for verdict in nodes:
            for device in verdict.devices:
                if device.code is not ReasonCode.SELECTOR:
                    continue
                if self._limit.enough():
                    return
                nearer, wanted = relaxed(device, self._world.behavior.server), device.wanted
                if nearer is None or (wanted.name, nearer[1]) in seen:
                    continue
                expressions, phrase, distance = nearer
                seen.add((wanted.name, phrase))
                distance += size_difference(verdict, device)
                change = f"selectors: {' '.join('; '.join(expressions).split())}"
                fields = {"selectors": list(map(selector, expressions))}
                where, scope = (wanted.claim, wanted.name), str(wanted.name)
                yield from self._in_request("selector", scope, where, phrase, change, fields, distance)

    def _less_capacity(self, nodes: Sequence[NodeVerdict]) -> Iterator[_Idea]:
        for device in (device for verdict in nodes for device in verdict.devices):
            if device.code not in (ReasonCode.CAPACITY, ReasonCode.TOO_SMALL) or not device.wanted.capacity:
                continue
            less, wanted = what_is_left(self._world, device), device.wanted
            if less is not None:
                requests, ratio = less
                phrase = ", ".join(
                    f"{name} {amount_text(Quantity.parse(value))}"
                    for name, value in requests.items()
                    if value != wanted.capacity[name]
                )
                change = f"capacity.requests: {flow(requests)}"
                fields = {"capacity": CapacityRequests(requests=requests)}
                where, scope = (wanted.claim, wanted.name), str(wanted.name)
                yield from self._in_request("capacity", scope, where, phrase, change, fields, 1 + ratio)

    def mended(self, failing: Sequence[NodeVerdict], nodes: Sequence[NodeVerdict]) -> Iterator[Suggestion]:
        """Changes of a selector that fails on devices: the name that was probably meant, or a look before the leap.

        One device that a selector fails on stops the pod everywhere, so the change must help on all nodes.
        """
        judge = NodeJudge(self._world, self._pod, self._claims, self._limit)
        for verdict in failing:
            devices = judge.devices(self._world.nodes[verdict.node])
            for idea in (idea for device in devices for idea in self._mended(device)):
                if self._limit.enough():
                    return
                if (node := _first_fitting(idea, nodes, self._limit)) is not None:
                    yield replace(idea.suggestion, node=node)
                    return

    def _mended(self, device: DeviceVerdict) -> Iterator[_Idea]:
        own = len(device.wanted.device_class.spec.selectors)
        if device.error is None or device.selector is None or device.selector < own:
            return  # a class is for an administrator to mend
        index, wanted = device.selector - own, device.wanted
        for expression, phrase, distance in mended_expressions(wanted.expressions[device.selector], device.error):
            expressions = [*wanted.expressions[own:]]
            expressions[index] = expression
            change = f"selectors[{index}]: {' '.join(expression.split())}"
            fields = {"selectors": list(map(selector, expressions))}
            where = wanted.claim, wanted.name
            yield from self._in_request("selector", "", where, phrase, change, fields, distance)


def _is_of_other_use(class_name: str) -> bool:
    return any(part in class_name for part in _OF_OTHER_USE)


def _first_fitting(idea: _Idea, nodes: Sequence[NodeVerdict], limit: Limit) -> str | None:
    """The first node on which it fits, if no node fails."""
    first_fitting: str | None = None
    for verdict in nodes:
        try:
            placed = placement_of(idea.world, idea.pod, idea.claims, idea.world.nodes[verdict.node], limit)
        except (InvalidInput, NodeNotReady):
            return None
        if first_fitting is None and not isinstance(placed, str):
            first_fitting = verdict.node
    return first_fitting


def _written_in(pod: Pod) -> str:
    """Where the spec of the pod is written: a pod that something made cannot be changed itself."""
    owner = next((owner for owner in pod.metadata.owner_references if owner.controller), None)
    if owner is None:
        return f"Pod {pod}: spec"
    kind, name = owner.kind, owner.name
    ending = f"-{pod.metadata.labels.get('pod-template-hash', '')}"
    if kind == "ReplicaSet" and len(ending) > 1 and name.endswith(ending):
        kind, name = "Deployment", name.removesuffix(ending)
    template = "spec.template.spec" if kind in _WITH_TEMPLATE else "the pod template's spec"
    return f"{kind} {pod.namespace}/{name}: {template}"


_WITH_TEMPLATE = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job")


# -- changes of claims and selectors, in values and in words

_MOST_LITERALS = 4


def with_devices(claim: ResourceClaim, **fields: Any) -> ResourceClaim:
    return claim.model_copy(update={"spec": claim.spec.with_devices(**fields)})


def with_request(claim: ResourceClaim, name: RequestName, **fields: Any) -> ResourceClaim:
    """With other fields in a request, or in one of its alternatives."""

    def changed(request: DeviceRequest) -> DeviceRequest:
        if request.name != name.request:
            return request
        if name.alternative is None:
            assert request.exactly is not None, "without alternatives"
            return request.model_copy(update={"exactly": request.exactly.model_copy(update=fields)})
        alternatives = [
            item.model_copy(update=fields) if item.name == name.alternative else item
            for item in request.first_available or ()
        ]
        return request.model_copy(update={"first_available": alternatives})

    return with_devices(claim, requests=[changed(request) for request in claim.spec.devices.requests])


def selector(expression: str) -> Selector:
    return Selector(cel=CelSelector(expression=expression))


# -- selectors


def mended_expressions(expression: str, error: CelError) -> Iterator[tuple[str, str, float]]:
    """Expressions that do not fail like this one, what changed in words, and how far it is."""
    if not isinstance(error, CelRuntimeError) or error.name is None:
        return
    part = expression[error.start : error.end]
    close = error.suggestion
    if close is not None and error.name in part:
        before, _, after = part.rpartition(error.name)
        renamed = f"{expression[: error.start]}{before}{close}{after}{expression[error.end :]}"
        yield renamed, f"{close} instead of {error.name}", 1.0
    yield f"has({part}) && ({expression})", f"a has() check for {error.name}", 1.1


def relaxed(device: DeviceVerdict, server: Server) -> tuple[list[str], str, float] | None:
    """The request's own expressions with the values that this device has; what changes, in words; and how far it is."""
    own = len(device.wanted.device_class.spec.selectors)
    cel = CelDevice(device.candidate.id.driver, device.candidate.device)
    expressions: list[str] = []
    phrases: dict[str, str] = {}
    distance = 1.0
    for expression in device.wanted.expressions[own:]:
        for _ in range(_MOST_LITERALS):
            try:
                parts = failing_parts(expression, cel, server)
            except CelError:
                return None
            if not parts:
                break
            comparison = parts[0].comparison
            if comparison is None or comparison.literal is None or comparison.name in phrases:
                return None
            literal = comparison.literal
            before = expression[literal.start : literal.end]
            expression = expression[: literal.start] + literal.fitting + expression[literal.end :]
            phrases[comparison.name] = f"{comparison.name} {_instead(literal.fitting, before)}"
            distance += literal.worse if literal.worse is not None else 0.5
        else:
            return None
        expressions.append(expression)
    return (expressions, " and ".join(phrases.values()), distance) if phrases else None


def _instead(fitting: str, before: str) -> str:
    """`79.6Gi instead of 80Gi`; exact where rounding would make them equal."""
    texts = _plain(fitting), _plain(before)
    if texts[0] == texts[1]:
        texts = fitting.strip("'\""), before.strip("'\"")
    return f"{texts[0]} instead of {texts[1]}"


def _plain(literal: str) -> str:
    text = literal.strip("'\"")
    try:
        return amount_text(Quantity.parse(text))
    except ValueError:
        return text


def size_difference(verdict: NodeVerdict, device: DeviceVerdict) -> float:
    """How much smaller or larger it is than what is asked for, by memory, where such a device exists."""
    meant = [item for item in verdict.devices if item.wanted is device.wanted and item.is_meant]
    capacities = [item.candidate.device.capacity for item in meant]
    sizes = [amount(capacity["memory"].value) for capacity in capacities if "memory" in capacity]
    own = device.candidate.device.capacity.get("memory")
    if not sizes or own is None or not max(sizes):
        return 0.0
    return min(1.0, abs(float(amount(own.value)) / float(max(sizes)) - 1))


# -- shares


def what_is_left(world: World, device: DeviceVerdict) -> tuple[dict[str, str], float] | None:
    """The capacities that the request names, no more than are left on the device; and how much less that is."""
    requests: dict[str, str] = {}
    ratio = 0.0
    for name, text in device.wanted.capacity.items():
        capacity = device.candidate.device.capacity.get(name)
        if capacity is None:
            return None
        wanted, left = Fraction(amount(text)), left_of(world.usage, device.candidate, name)
        if left <= 0:
            return None
        fitting = min(wanted, _stepped_down(left, capacity.request_policy or {}))
        if fitting <= 0:
            return None
        requests[name] = text if fitting == wanted else str(Quantity(fitting, Quantity.parse(text).format))
        ratio = max(ratio, float((wanted - fitting) / wanted))
    return (requests, ratio) if ratio else None


def _stepped_down(left: Fraction, policy: dict[str, Any]) -> Fraction:
    """The largest amount up to `left` that the policy allows."""
    valid = policy.get("validRange")
    if policy.get("validValues"):
        allowed = [Fraction(amount(item)) for item in policy["validValues"]]
        return max((item for item in allowed if item <= left), default=Fraction(0))
    if not valid:
        return left
    least = Fraction(amount(valid["min"]))
    if left < least:
        return Fraction(0)
    most = min(left, Fraction(amount(valid["max"]))) if "max" in valid else left
    if "step" not in valid:
        return most
    step = Fraction(amount(valid["step"]))
    return least + step * ((most - least) // step)


# -- taints


def missing_tolerations(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> tuple[str, list[Toleration]]:
    """The taints that these do not tolerate, as `key=value`, and what would tolerate them."""
    hard = [(taint, text) for taint in taints if (text := untolerated([taint], tolerations)) is not None]
    return " and ".join(text for _, text in hard), [_toleration_of(taint) for taint, _ in hard]


def _toleration_of(taint: Taint) -> Toleration:
    if taint.value:
        return Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)
    return Toleration(key=taint.key, operator="Exists", effect=taint.effect)


def flow(value: Any) -> str:
    """As YAML would have it in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return f'"{value}"' if str(value).isdigit() else str(value)
