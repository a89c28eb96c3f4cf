"""What calls of functions cost by themselves, without their operands: a rule for each function that is not one unit.

Functions of texts count a tenth for every character. A call that could mean several functions is charged for the
dearest. How large texts, lists and maps can be is as the API server assumes it, from nothing to 2**64 - 1: for the
device it is declared (`device_size`), and everything of unknown size counts as infinitely large.
Source: see `dra_driver.cel.cost`; k8s.io/dynamic-resource-allocation, and cel-go's checker.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dra_driver.cel.tree import CallNode, Constant, Name, SyntaxNode
from dra_driver.cel.types import Type

INFINITE = 2**64 - 1

type Path = tuple[str, ...]
"""A variable and the way from it; `@items`, `@keys`, `@values` are what is in lists and maps."""


@dataclass(frozen=True, slots=True)
class Size:
    """How long a text, list or map can be."""

    least: int
    most: int

    def __add__(self, other: "Size") -> "Size":
        return Size(within(self.least + other.least), within(self.most + other.most))

    def __mul__(self, other: "Size") -> "Size":
        return Size(within(self.least * other.least), within(self.most * other.most))

    def __or__(self, other: "Size") -> "Size":
        return Size(min(self.least, other.least), max(self.most, other.most))


UNKNOWN, NONE = Size(0, INFINITE), Size(0, 0)


def fixed(length: int) -> Size:
    return Size(length, length)


def device_size(path: Path) -> Size | None:
    """How large a part of `device` can be; None for what is not part of it or has no declared size."""
    match path:
        case ("device", "driver"):
            return Size(0, 63)
        case ("device", "allowMultipleAllocations"):
            return Size(0, 1)
        case ("device", "attributes" | "capacity") | ("device", "attributes" | "capacity", "@values"):
            return Size(0, 32)
        case ("device", "attributes" | "capacity", "@keys"):
            return Size(0, 63)
        case ("device", "attributes" | "capacity", "@values", "@keys"):
            return Size(0, 32)
        case ("device", "capacity", "@values", "@values"):
            return NONE
        case ("device", "attributes", "@values", name) if not name.startswith("@") or name == "@values":
            return Size(0, 64)
    return None


def within(amount: int) -> int:
    """No more than infinite."""
    return min(amount, INFINITE)


def part(amount: int, factor: float) -> int:
    """`factor` of an amount, rounded up."""
    return within(math.ceil(float(amount) * factor))


@dataclass(frozen=True, slots=True)
class Inside:
    """The sizes of what is in a list or map; keys of a list are its indices."""

    keys: Size
    items: Size

    def __or__(self, other: "Inside") -> "Inside":
        return Inside(self.keys | other.keys, self.items | other.items)


LIST_COST, MAP_COST = 10, 30
CHARACTER = 0.1
PATTERN_CHARACTER = 0.25
_MOST_INCLUDED = 48

TEXTS = frozenset({"string", "bytes"})
_OF_ONE_UNIT = frozenset({"quantity", "semver", "net.IP", "net.CIDR"})
"""Types that are compared at once."""


@dataclass(slots=True)
class Operands:
    """What the rules of functions look at. `target` is None for functions that are no methods."""

    target: "Operand | None"
    arguments: Sequence["Operand"]
    overloads: Sequence[tuple[Type, ...]]
    """The types of the parameters of each function that it can be."""


@dataclass(frozen=True, slots=True)
class Operand:
    node: SyntaxNode
    kind: Type
    size: Size
    path: Path
    inside: Inside | None


type _Rule = Callable[[Operands], tuple[int, Size | None]]
"""The cost of a call without its arguments, and the size of its result where that is known."""


def own_cost(node: CallNode, call: Operands, *, is_method: bool) -> tuple[int, Size | None]:
    """The cost of a call without its operands, and the size of its result where that is known."""
    name = node.function if is_method or node.target is None else _full_name(node)
    return _RULES.get(name, _one_unit)(call)


def _full_name(node: CallNode) -> str:
    return f"{node.target.name}.{node.function}" if isinstance(node.target, Name) else node.function


# -- the rules of functions


def _one_unit(_: Operands) -> tuple[int, Size | None]:
    return 1, None


def _read(share: float, *, sized: bool = False) -> _Rule:
    """Reads the target, or the only argument, from beginning to end."""

    def rule(call: Operands) -> tuple[int, Size | None]:
        size = (call.target or call.arguments[0]).size
        return part(size.most, share), size if sized else None

    return rule


def _traversal(call: Operands) -> tuple[int, Size | None]:
    """Of lists: one unit for each element, and its characters."""
    assert call.target is not None
    size, parameters = call.target.size, call.target.kind.parameters
    if not parameters:
        return part(size.most, CHARACTER), None
    each = 1
    if parameters[0].name in TEXTS:
        inside = device_size((*call.target.path, "@items")) if call.target.path else None
        each += part((inside or UNKNOWN).most, CHARACTER)
    return within(size.most * each), None


def _replaced(call: Operands) -> tuple[int, Size | None]:
    assert call.target is not None
    text, (old, new) = call.target.size, (argument.size for argument in call.arguments[:2])
    if old.least == 0:
        most = within((text.most + 1) * new.most + text.most)
    elif new.most <= old.least:
        most = text.most
    else:
        most = within(part(text.most, 1 / old.least) * new.most)
    if old.most == 0:
        least = (text.least + 1) * new.least + text.least
    elif old.most <= new.least:
        least = text.least
    else:
        least = part(text.least, 1 / old.most) * new.least
    return part(text.most, 2 * CHARACTER), Size(within(least), most)


def _split(call: Operands) -> tuple[int, Size | None]:
    assert call.target is not None
    most = call.target.size.most
    if len(call.arguments) > 1:
        limit = _literal_int(call.arguments[1])
        most = most if limit is None else limit % 2**64
    return part(call.target.size.most, 2 * CHARACTER), Size(0, most)


def _joined(call: Operands) -> tuple[int, Size | None]:
    assert call.target is not None
    count, size = call.target.size, NONE
    if call.target.kind.parameters:
        inside = device_size((*call.target.path, "@items")) if call.target.path else None
        size = count * (inside or UNKNOWN)
    if call.arguments:
        gaps = Size(max(0, count.least - 1), max(0, count.most - 1))
        size += call.arguments[0].size * gaps
    return part(size.most, CHARACTER), size


def _pattern_search(call: Operands) -> tuple[int, Size | None]:
    if call.target is None:
        return 1, None
    text, pattern = call.target.size, call.arguments[0].size
    cost = part(within(text.most + 1), CHARACTER) * part(pattern.most, PATTERN_CHARACTER)
    return within(cost), Size(0, text.most)


def _matches(call: Operands) -> tuple[int, Size | None]:
    return _pattern_search(call)[0], None


def _contains(call: Operands) -> tuple[int, Size | None]:
    assert call.target is not None
    return within(part(call.target.size.most, CHARACTER) * part(call.arguments[0].size.most, CHARACTER)), None


def _starts(call: Operands) -> tuple[int, Size | None]:
    return part(call.arguments[0].size.most, CHARACTER), None


def _is_in(call: Operands) -> tuple[int, Size | None]:
    lists = any(parameters[1].name == "list" for parameters in call.overloads)
    return max(1, call.arguments[1].size.most) if lists else 1, None


def _plus(call: Operands) -> tuple[int, Size | None]:
    left, right = (argument.size for argument in call.arguments)
    names = {parameters[0].name for parameters in call.overloads}
    size = left + right if names & {"string", "bytes", "list"} else None
    texts = part((left + right).most, CHARACTER) if names & TEXTS else 0
    return max(texts, int(bool(names - TEXTS))), size


def _smaller(call: Operands) -> int:
    return part(min(argument.size.most for argument in call.arguments), CHARACTER)


def _order(call: Operands) -> tuple[int, Size | None]:
    names = {parameters[0].name for parameters in call.overloads}
    return max(_smaller(call) if names & TEXTS else 0, int(bool(names - TEXTS))), None


def _unlike(call: Operands) -> tuple[int, Size | None]:
    return _smaller(call), None


def _equal(call: Operands) -> tuple[int, Size | None]:
    left, right = call.arguments
    if left.kind == right.kind and left.kind.name in _OF_ONE_UNIT:
        return 1, None
    return _smaller(call), None


def _to_text(call: Operands) -> tuple[int, Size | None]:
    """`string`, which reads bytes; other values are written at once."""
    names = {parameters[0].name for parameters in call.overloads}
    size = call.arguments[0].size
    cost = max(part(size.most, CHARACTER) if "bytes" in names else 0, int(bool(names - {"bytes"})))
    return cost, Size(size.least // 4, size.most) if "bytes" in names else None


def _to_bytes(call: Operands) -> tuple[int, Size | None]:
    names = {parameters[0].name for parameters in call.overloads}
    size = call.arguments[0].size
    cost = max(part(size.most, CHARACTER) if "string" in names else 0, int(bool(names - {"string"})))
    return cost, Size(size.least, within(size.most * 4)) if "string" in names else None


def _quoted(call: Operands) -> tuple[int, Size | None]:
    size = call.arguments[0].size
    return part(size.most, CHARACTER), Size(size.least + 2, within(size.most * 2 + 2))


def _contains_address(call: Operands) -> tuple[int, Size | None]:
    return part(2 * 16, CHARACTER) + _reading_argument(call), None


def _contains_prefix(call: Operands) -> tuple[int, Size | None]:
    return part(2 * 16, CHARACTER) + part(16, CHARACTER) + 1 + _reading_argument(call), None


def _reading_argument(call: Operands) -> int:
    is_text = any(parameters[1].name == "string" for parameters in call.overloads)
    return part(call.arguments[0].size.most, CHARACTER) if is_text else 0


def _ip(call: Operands) -> tuple[int, Size | None]:
    return (1 if call.target is not None else part(call.arguments[0].size.most, CHARACTER)), None


def _included(_: Operands) -> tuple[int, Size | None]:
    return _MOST_INCLUDED, None


# -- lists and sets


def allocating(size: Size, factor: float) -> tuple[int, Size | None]:
    """Makes a list of this size."""
    return within(part(size.most, factor) + 1 + LIST_COST), size


def _literal_int(operand: Operand) -> int | None:
    node = operand.node
    return node.value if isinstance(node, Constant) and type(node.value) is int else None


def _at_least_zero(operand: Operand, otherwise: int) -> int:
    value = _literal_int(operand)
    return otherwise if value is None else max(0, value)


def _slice(call: Operands) -> tuple[int, Size | None]:
    assert call.target is not None
    start, end = _at_least_zero(call.arguments[0], 0), _at_least_zero(call.arguments[1], call.target.size.most)
    return allocating(fixed((end - start) % 2**64), 1)


def _flatten(call: Operands) -> tuple[int, Size | None]:
    assert call.target is not None
    depth = _at_least_zero(call.arguments[0], INFINITE) if call.arguments else 1
    return allocating(call.target.size, depth)


def _whole_list(factor: float, *, squared: bool = False) -> _Rule:
    def rule(call: Operands) -> tuple[int, Size | None]:
        assert call.target is not None
        size = call.target.size
        return allocating(size * size if squared else size, factor)

    return rule


def _sort(call: Operands) -> tuple[int, Size | None]:
    assert call.target is not None
    texts = any(parameters[0].parameters[0].name in TEXTS for parameters in call.overloads)
    size = call.target.size
    return allocating(size * size, 2 + CHARACTER if texts else 2)


def _pairs(factor: float) -> _Rule:
    def rule(call: Operands) -> tuple[int, Size | None]:
        left, right = (argument.size for argument in call.arguments)
        return within(part((left * right).most, factor) + 1), None

    return rule


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(["isSorted", "sum", "min", "max", "indexOf", "lastIndexOf"], _traversal),
    **dict.fromkeys(["lowerAscii", "upperAscii", "substring", "trim"], _read(CHARACTER, sized=True)),
    **dict.fromkeys(["cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver"], _starts),
    **dict.fromkeys(["startsWith", "endsWith"], _starts),
    **dict.fromkeys(["find", "findAll"], _pattern_search),
    **dict.fromkeys(["<", "<=", ">", ">="], _order),
    "replace": _replaced, "split": _split, "join": _joined, "matches": _matches, "contains": _contains,
    "format": _read(CHARACTER), "string": _to_text, "bytes": _to_bytes, "strings.quote": _quoted,
    "in": _is_in, "+": _plus, "==": _equal, "!=": _unlike,
    "ip": _ip, "ip.isCanonical": _read(2 * CHARACTER), "containsIP": _contains_address,
    "containsCIDR": _contains_prefix, "includes": _included,
    "slice": _slice, "flatten": _flatten, "reverse": _whole_list(1), "distinct": _whole_list(2, squared=True),
    "sort": _sort, "lists.range": lambda call: allocating(fixed(_at_least_zero(call.arguments[0], INFINITE)), 1),
    "sets.contains": _pairs(1), "sets.intersects": _pairs(1), "sets.equivalent": _pairs(2),
}  # fmt: skip
"""By function; every other one costs one unit."""
