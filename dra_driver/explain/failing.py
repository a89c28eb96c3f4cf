"""Why a selector does not hold for a device: the part of the expression that decided, with the values it had. Pure.

From the root down only what decides is followed: of `a && b` the first part that is false, of `a || b` all parts, of
`!a` what made it true. What is left is said the way people say it: `memory 80Gi < 100Gi`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from fractions import Fraction

from dra_driver.cel.device import CelDevice, values_of_parts
from dra_driver.cel.functions import CURRENT, Server
from dra_driver.cel.tree import (
    Bind,
    CallNode,
    Conditional,
    Constant,
    Has,
    Index,
    ListLiteral,
    Logical,
    Name,
    Select,
    SyntaxNode,
    children,
)
from dra_driver.quantity import Quantity, Version


@dataclass(frozen=True, slots=True)
class Literal:
    """A value that is written in the expression and that the device's own was compared with.

    `start` and `end` are its place in the expression; `fitting` is how the device's own value is written there.
    `worse` is how far the device is from it, as a part of it, for numbers that can be compared; else None.
    """

    start: int
    end: int
    fitting: str
    worse: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """`name own sign other`, as texts; `amount` is the device's own value where it is a number. `literal` is the other
    one, if it is written in the expression and another one would help."""

    name: str
    own: str
    sign: str
    other: str
    amount: Fraction | None = None
    literal: Literal | None = None

    def __str__(self) -> str:
        if self.sign == "!=":
            return f"{self.name} is {self.own}, not {self.other}"
        return f"{self.name} is {self.own}" if self.sign == "==" else f"{self.name} {self.own} {self.sign} {self.other}"


@dataclass(frozen=True, slots=True)
class ExpressionPart:
    """`text` is the part as it is written, at `start`; `explanation` what it means on this device."""

    start: int
    end: int
    text: str
    explanation: str
    comparison: Comparison | None = None


def failing_parts(expression: str, device: CelDevice, server: Server = CURRENT) -> tuple[ExpressionPart, ...]:
    """Those that together make the selector false; empty when it holds. Raises CelError when it fails or is none."""
    root, values = values_of_parts(expression, device, server)
    if values[root] is True:
        return ()
    return tuple(_Finder(expression, values, device.driver).parts(root, True))


_UNKNOWN = object()
_SIGNS = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
"""Each comparison, and what holds when it does not."""
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_METHODS = {"isGreaterThan": ">", "isLessThan": "<"}
_LITERALS = ("quantity", "semver")


class _Finder:
    def __init__(self, expression: str, values: Mapping[SyntaxNode, object], driver: str) -> None:
        self._expression = expression
        self._values = values
        self._driver = driver

    def parts(self, node: SyntaxNode, wanted: bool) -> Iterator[ExpressionPart]:
        """Why `node` is not `wanted`."""
        match node:
            case Logical(operator=operator, parts=parts):
                all_needed = (operator == "&&") == wanted
                wrong = [part for part in parts if self._values.get(part) is (not wanted)]
                # One part that fails decides; parts of which one would do must all have failed.
                for item in wrong[:1] if all_needed else wrong:
                    yield from self.parts(item, wanted)
            case CallNode(function="!_", arguments=(operand,)):
                yield from self.parts(operand, not wanted)
            case Conditional(condition=condition, then=then, otherwise=otherwise):
                taken = then if self._values.get(condition) is True else otherwise
                yield from self.parts(taken, wanted)
            case Bind(body=body):
                yield from self.parts(body, wanted)
            case _:
                yield self._part(node, wanted)

    def _part(self, node: SyntaxNode, wanted: bool) -> ExpressionPart:
        comparison = self._comparison(node, wanted)
        explanation = str(comparison) if comparison is not None else self._otherwise(node, wanted)
        return ExpressionPart(node.start, node.end, self._text(node), explanation, comparison)

    def _text(self, node: SyntaxNode) -> str:
        return " ".join(self._expression[node.start : node.end].split())

    # -- comparisons

    def _comparison(self, node: SyntaxNode, wanted: bool) -> Comparison | None:
        """`attribute sign value`, for anything that compares what the device has with something."""
        match node:
            case CallNode(function="in", arguments=(left, right)) if (name := self._attribute(left)) is not None:
                among = "is not one of" if wanted else "is one of"
                return Comparison(name, _shown(self._value(left)), among, _shown(self._value(right)))
            case CallNode(function=function, target=None, arguments=(left, right)) if function in _SIGNS:
                operands = self._ordered(function, left, right)
            case CallNode(function=method, target=target, arguments=(other,)) if (
                method in _METHODS and target is not None
            ):
                operands = (target, _METHODS[method], other)
            case _:
                return None
        if operands is None:
            return None
        left, sign, right = operands
        return self._compared(left, _SIGNS[sign] if wanted else sign, right)

    def _ordered(self, sign: str, left: SyntaxNode, right: SyntaxNode) -> tuple[SyntaxNode, str, SyntaxNode] | None:
        """With what the device has on the left; `x.compareTo(y) >= 0` is `x >= y`."""
        if isinstance(left, Constant) or (self._attribute(left) is None and self._attribute(right) is not None):
            left, sign, right = right, _MIRRORED[sign], left
        match left, right:
            case CallNode(function="compareTo", target=target, arguments=(other,)), Constant(value=0) if (
                target is not None
            ):
                return self._ordered(sign, target, other)
        return left, sign, right

    def _compared(self, left: SyntaxNode, sign: str, right: SyntaxNode) -> Comparison | None:
        name, own, other = self._attribute(left), self._value(left), self._value(right)
        if name is None or own is _UNKNOWN or other is _UNKNOWN:
            return None
        own_text, other_text = _side_by_side(own, other)
        literal = None if sign == "==" else self._literal(right, own, other, sign)
        return Comparison(name, own_text, sign, other_text, _number(own), literal)

    def _literal(self, node: SyntaxNode, own: object, other: object, sign: str) -> Literal | None:
        place: SyntaxNode | None = node if isinstance(node, Constant) else None
        if isinstance(node, CallNode) and node.function in _LITERALS and isinstance(node.arguments[0], Constant):
            place = node.arguments[0]
        if place is None:
            return None
        return Literal(place.start, place.end, _written(_just_passing(own, sign)), _distance(own, other))

    # -- anything else

    def _otherwise(self, node: SyntaxNode, wanted: bool) -> str:
        name = self._attribute(node)
        if name is not None:
            return f"{name} is {_shown(self._value(node))}"
        if isinstance(node, Has):
            return f"it has {'no' if wanted else 'an'} {'capacity' if _is_capacity(node) else 'attribute'} " + (
                self._attribute(node.select) or self._text(node.select)
            )
        if isinstance(node, Constant):
            return f"the selector is just {_shown(node.value)}"
        values = "; ".join(dict.fromkeys(self._values_in(node)))
        return f"{self._short(node)} is {_shown(not wanted)}" + (f" ({values})" if values else "")

    def _short(self, node: SyntaxNode) -> str:
        """Without the driver's domain, which people know."""
        return re.sub(rf"device\.(attributes|capacity)\[(['\"]){re.escape(self._driver)}\2\]\.", "", self._text(node))

    def _values_in(self, node: SyntaxNode) -> Iterator[str]:
        name = self._attribute(node)
        if name is not None and self._value(node) is not _UNKNOWN:
            yield f"{name} is {_shown(self._value(node))}"
            return
        if isinstance(node, Name) and isinstance(value := self._value(node), str | int | Quantity | Version):
            yield f"{node.name} is {_shown(value)}"
        for child in children(node):
            yield from self._values_in(child)

    def _value(self, node: SyntaxNode) -> object:
        value = self._values.get(node, _UNKNOWN)
        if value is _UNKNOWN and isinstance(node, Constant):
            return node.value
        if value is _UNKNOWN and isinstance(node, ListLiteral):
            return [self._value(item) for item in node.items]
        return value

    def _attribute(self, node: SyntaxNode) -> str | None:
        """The short name of what `node` reads of the device: `memory`, or with the domain when it is another's."""
        match node:
            case Select(operand=Name(name="device"), field="driver"):
                return "driver"
            case Select(operand=Index(operand=Select(operand=Name(name="device")), index=domain), field=field):
                pass
            case Index(
                operand=Index(operand=Select(operand=Name(name="device")), index=domain),
                index=Constant(value=str(field)),
            ):
                pass
            case _:
                return None
        named = self._value(domain)
        return field if named == self._driver or not isinstance(named, str) else f"{named}/{field}"


def _is_capacity(node: Has) -> bool:
    return isinstance(node.select.operand, Index) and "capacity" in {
        child.field for child in children(node.select.operand) if isinstance(child, Select)
    }


def _number(value: object) -> Fraction | None:
    if isinstance(value, Quantity):
        return value.value
    return Fraction(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _side_by_side(own: object, other: object) -> tuple[str, str]:
    """As text, quantities in a size that can be compared at a glance."""
    if isinstance(own, Quantity) and isinstance(other, Quantity):
        texts = amount_text(own), amount_text(other)
        # Where rounding hides the difference the exact amounts are shown.
        return texts if texts[0] != texts[1] or own == other else (str(own), str(other))
    return _shown(own), _shown(other)


_UNITS = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20))


def amount_text(quantity: Quantity) -> str:
    """`79.6Gi` for 81559Mi; amounts that are not binary stay as they are."""
    if quantity.format == "BinarySI":
        for unit, size in _UNITS:
            if abs(quantity.value) >= size:
                amount = float(quantity.value / size)
                return f"{amount:.1f}".removesuffix(".0") + unit
    return str(quantity)


def _shown(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{value}"'
        case Quantity():
            return amount_text(value)
        case list() | tuple():
            return "[" + ", ".join(map(_shown, value)) + "]"
        case int() | float() | Version():
            return str(value)
    return "unknown" if value is _UNKNOWN else str(value)


_SMALL_STEP = 2**20


def _just_passing(own: object, sign: str) -> object:
    """What the device's own value can be compared with so that it holds; `sign` says how it failed."""
    step = {"<=": -1, ">=": 1}.get(sign, 0)
    match own:
        case bool():
            return own
        case int():
            return own + step
        case Quantity() if own.format == "BinarySI":
            return Quantity(own.value + step * _SMALL_STEP, own.format)
    return own


def _written(value: object) -> str:
    """As a literal of the expression language."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _distance(own: object, other: object) -> float | None:
    if isinstance(own, Quantity) and isinstance(other, Quantity) and other.value:
        return float(abs(other.value - own.value) / abs(other.value))
    if isinstance(own, int) and isinstance(other, int) and not isinstance(own, bool) and other:
        return abs(other - own) / abs(other)
    if isinstance(own, str) and isinstance(other, str):
        return _unlikeness(own, other)
    return None


def _unlikeness(own: str, other: str) -> float:
    """From 0 to 1. Names with sizes in them, as `1g.10gb`, are as far apart as their last numbers."""
    numbers = [re.findall(r"[0-9]+", text) for text in (own, other)]
    spelling = 1 - SequenceMatcher(None, own, other).ratio()
    if not all(numbers):
        return spelling
    first, second = (int(number[-1]) for number in numbers)
    return min(1.0, abs(first - second) / max(first, second, 1) + spelling / 100)
