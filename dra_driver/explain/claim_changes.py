"""Changes of claims and selectors that may make them fit: what they would be, in values and in words. Pure.

Whether they help is asked of the allocator by `dra_driver.explain.suggest`.
"""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from dra_driver.allocation.amounts import amount
from dra_driver.allocation.nodes import untolerated
from dra_driver.allocation.world import World
from dra_driver.api.resource import CelSelector, DeviceRequest, ResourceClaim, Selector, Taint, Toleration
from dra_driver.cel.device import CelDevice
from dra_driver.cel.errors import CelError, CelRuntimeError
from dra_driver.cel.functions import Server
from dra_driver.explain.failing import amount_text, failing_parts
from dra_driver.explain.judge import left_of
from dra_driver.explain.verdicts import DeviceVerdict, NodeVerdict
from dra_driver.names import RequestName
from dra_driver.quantity import Quantity

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
