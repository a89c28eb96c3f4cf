"""What an expression may cost at worst, as the API server estimates it before it stores a selector.

A unit is about what reading a name costs. Loops multiply by how many elements their list can have, functions of texts
count a tenth for every character. What the device can be at most is declared (`DEVICE_SIZES`); everything else whose
size nothing is known about is taken to be infinitely large, so that comparing two such values is too much already.

Macros are charged for what Kubernetes expands them to. A call that could mean several functions is charged for the
dearest. Only upper ends are kept, except of sizes, whose lower end decides what `replace` can make of a text.

Source: cost estimators of cel-go 0.26 (checker, ext/lists, ext/sets) and k8s.io/apiserver, sizes of
k8s.io/dynamic-resource-allocation; compared with a real API server unit by unit (tests/contracts/test_selectors.py).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.cel.check import Checked
from dra_driver.cel.tree import (
    Bind,
    Call,
    Comprehension,
    Conditional,
    Constant,
    Has,
    Index,
    ListLiteral,
    Logical,
    MapLiteral,
    Name,
    Node,
    OptionalMap,
    Select,
    children,
)
from dra_driver.cel.types import Type, is_dynamic

LIMIT = 1_000_000
"""An expression that may cost more is not stored; an evaluation that costs more is ended."""

INFINITE = 2**64 - 1
LIST_COST, MAP_COST = 10, 30
CHARACTER = 0.1
PATTERN_CHARACTER = 0.25
_LONGEST_FORMAT, _LONGEST_PATTERN, _MOST_INCLUDED = 64, 128, 48

type Path = tuple[str, ...]
"""A variable and the way from it; `@items`, `@keys`, `@values` are what is in lists and maps."""

_SCALARS = frozenset({"bool", "double", "duration", "int", "timestamp", "uint"})
_TEXTS = frozenset({"string", "bytes"})
_CONTAINERS = frozenset({"map", "device"})
_OF_ONE_UNIT = frozenset({"quantity", "semver", "net.IP", "net.CIDR"})
"""Types that are compared at once."""


@dataclass(frozen=True, slots=True)
class Size:
    """How long a text, list or map can be."""

    least: int
    most: int

    def __add__(self, other: "Size") -> "Size":
        return Size(_within(self.least + other.least), _within(self.most + other.most))

    def __mul__(self, other: "Size") -> "Size":
        return Size(_within(self.least * other.least), _within(self.most * other.most))

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


def _within(amount: int) -> int:
    return min(amount, INFINITE)


def _part(amount: int, factor: float) -> int:
    """`factor` of an amount, rounded up."""
    return _within(math.ceil(float(amount) * factor))


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an evaluation costs at most, and the smallest part that is over the limit by itself (else the root)."""

    cost: int
    dearest: Node


def estimate(checked: Checked, limit: int = LIMIT) -> Estimate:
    """`cost` is INFINITE, or nearly, when there is no telling."""
    estimator = _Estimator(checked)
    cost = estimator.cost(checked.root)
    node: Node | None = checked.root
    dearest = checked.root
    while node is not None:
        dearest = node
        node = next((child for child in children(node) if estimator.costs.get(child, 0) > limit), None)
    return Estimate(cost, dearest)


@dataclass(frozen=True, slots=True)
class Inside:
    """The sizes of what is in a list or map; keys of a list are its indices."""

    keys: Size
    items: Size

    def __or__(self, other: "Inside") -> "Inside":
        return Inside(self.keys | other.keys, self.items | other.items)


@dataclass(slots=True)
class _Local:
    """What is known about a variable of a macro."""

    path: Path = ()
    size: Size | None = None
    inside: "Inside | None" = None


@dataclass(slots=True)
class Operands:
    """What the rules of functions look at. `target` is None for functions that are no methods."""

    target: "Operand | None"
    arguments: Sequence["Operand"]
    overloads: Sequence[tuple[Type, ...]]
    """The types of the parameters of each function that it can be."""


@dataclass(frozen=True, slots=True)
class Operand:
    node: Node
    kind: Type
    size: Size
    path: Path
    inside: Inside | None


type _Rule = Callable[[Operands], tuple[int, Size | None]]
"""The cost of a call without its arguments, and the size of its result where that is known."""


@dataclass(slots=True)
class _Estimator:
    checked: Checked
    paths: dict[Node, Path] = field(default_factory=dict)
    sizes: dict[Node, Size] = field(default_factory=dict)
    inside: dict[Node, Inside] = field(default_factory=dict)
    scope: dict[str, _Local] = field(default_factory=dict)
    locals_of: dict[Node, _Local] = field(default_factory=dict)
    costs: dict[Node, int] = field(default_factory=dict)

    def cost(self, node: Node) -> int:
        found = self.costs[node] = self._cost(node)
        return found

    def _cost(self, node: Node) -> int:
        if node in self.checked.constants:
            return 1
        match node:
            case Constant():
                return 0
            case Name():
                return self._name(node)
            case Select():
                return self._select(node)
            case Has(select=select):
                return self.cost(select.operand)
            case Index():
                return self._index(node)
            case Logical(parts=parts):
                return _within(sum(map(self.cost, parts)))
            case Conditional():
                return self._conditional(node)
            case ListLiteral(items=items):
                total = sum(map(self.cost, items))
                self.inside[node] = Inside(fixed(1), self._joint(items))
                return _within(total + LIST_COST)
            case MapLiteral(entries=entries):
                total = sum(self.cost(key) + self.cost(value) for key, value in entries)
                keys, values = ([entry[place] for entry in entries] for place in (0, 1))
                self.inside[node] = Inside(self._joint(keys), self._joint(values))
                return _within(total + MAP_COST)
            case Call():
                return self._call(node)
            case Comprehension():
                return self._comprehension(node)
            case Bind():
                return self._bind(node)
            case OptionalMap():
                return self._optional_map(node)
        raise AssertionError(f"unknown node {node}")

    # -- sizes

    def size(self, node: Node) -> Size:
        return self._known_size(node) or UNKNOWN

    def _known_size(self, node: Node) -> Size | None:
        found = self.sizes.get(node) or _literal_size(node) or device_size(self._path(node))
        if found is None and _is_scalar(self.checked.types[node]):
            found = fixed(1)
        if found is None and (local := self.locals_of.get(node)):
            found = local.size
        return found

    def _path(self, node: Node) -> Path:
        return self.paths.get(node, ())

    def _inside(self, node: Node) -> Inside | None:
        local = self.locals_of.get(node)
        return self.inside.get(node) or (local.inside if local else None)

    def _joint(self, nodes: Sequence[Node]) -> Size:
        """A size that fits all of them."""
        found = NONE
        for place, node in enumerate(nodes):
            found = found | self.size(node) if place else self.size(node)
        return found

    # -- names and fields

    def _name(self, node: Name) -> int:
        local = self.scope.get(node.name)
        if local is None:
            self.paths[node] = (node.name,)
        else:
            self.paths[node] = local.path
            self.locals_of[node] = local
        return 1

    def _select(self, node: Select) -> int:
        total = self.cost(node.operand)
        if node.optional:
            return total + 1
        self.paths[node] = (*self._path(node.operand), node.field)
        return _within(total + (self.checked.types[node.operand].name in _CONTAINERS))

    def _index(self, node: Index) -> int:
        total = self.cost(node.operand) + self.cost(node.index)
        kind = self.checked.types[node.operand]
        if not node.optional and kind.name != "optional_type":
            place = "@items" if kind.name == "list" else "@values"
            self.paths[node] = (*self._path(node.operand), place)
            if (inside := self._inside(node.operand)) is not None:
                self.sizes[node] = inside.items
        return _within(total + 1)

    # -- functions

    def _conditional(self, node: Conditional) -> int:
        total = self.cost(node.condition) + max(self.cost(node.then), self.cost(node.otherwise))
        self.sizes[node] = self.size(node.then) | self.size(node.otherwise)
        then, otherwise = self._inside(node.then), self._inside(node.otherwise)
        if then is not None and otherwise is not None:
            self.inside[node] = then | otherwise
        return _within(total)

    def _call(self, node: Call) -> int:
        overloads = self.checked.overloads.get(node, ())
        is_method = node.target is not None and (not overloads or overloads[0].is_method)
        operands = ((node.target,) if is_method and node.target else ()) + node.arguments
        total = sum(map(self.cost, operands))
        if node.function == "dyn":
            self._copy(node, node.arguments[0])
            return _within(total + 1)
        described = [self._operand(one) for one in operands]
        call = Operands(
            described[0] if is_method else None,
            described[is_method:],
            [overload.parameters for overload in overloads],
        )
        own, size = own_cost(node, call, is_method=is_method)
        if size is not None:
            self.sizes[node] = size
        if node.function == "+":
            left, right = (one.inside for one in described)
            if left is not None and right is not None:
                self.inside[node] = left | right
        return _within(total + own)

    def _operand(self, node: Node) -> Operand:
        return Operand(node, self.checked.types[node], self.size(node), self._path(node), self._inside(node))

    def _copy(self, node: Node, source: Node) -> None:
        """The two are equally large."""
        if (size := self._known_size(source)) is not None:
            self.sizes[node] = size
        if (inside := self._inside(source)) is not None:
            self.inside[node] = inside

    # -- macros

    def _within_scope(self, variables: Mapping[str, _Local], body: Node) -> int:
        outer = self.scope
        self.scope = {**outer, **variables}
        try:
            return self.cost(body)
        finally:
            self.scope = outer

    def _bind(self, node: Bind) -> int:
        total = LIST_COST + self.cost(node.value)
        local = _Local(self._path(node.value), self._known_size(node.value), self._inside(node.value))
        total += self._within_scope({node.variable: local}, node.body)
        self._copy(node, node.body)
        return _within(total)

    def _optional_map(self, node: OptionalMap) -> int:
        """`target.hasValue() ? optional.of(cel.bind(variable, target.value(), body)) : optional.none()`."""
        target = self.cost(node.target)
        kind = self.checked.types[node.target]
        scalar = bool(kind.parameters) and _is_scalar(kind.parameters[0])
        local = _Local(size=fixed(1) if scalar else None)
        body = self._within_scope({node.variable: local}, node.body)
        wrapped = 0 if node.flat else 1
        return _within(target + 1 + max(1, wrapped + LIST_COST + target + 1 + body))

    def _comprehension(self, node: Comprehension) -> int:
        target = self.cost(node.target)
        if node.kind == "sortBy":
            return self._sorted(node, target)
        variables = self._variables(node, self._path(node.target))
        body = self._within_scope(variables, node.body)
        condition = 0 if node.condition is None else self._within_scope(variables, node.condition)
        count = self.size(node.target)
        step = STEPS[node.kind](body) if node.kind in _QUANTIFIERS else condition + STEPS[node.kind](body)
        self._size_of_loop(node, count)
        return _within(target + STARTS[node.kind] + _within(count.most * _within(step)))

    def _size_of_loop(self, node: Comprehension, count: Size) -> None:
        if node.kind in _QUANTIFIERS:
            self.sizes[node] = fixed(1)
            return
        self.sizes[node] = count
        if node.kind in ("map", "transformList"):
            self.inside[node] = Inside(fixed(1), Size(0, self.size(node.body).most))
        elif node.kind == "filter":
            self.inside[node] = Inside(fixed(1), Size(0, self._size_of_element(node).most))

    def _size_of_element(self, node: Comprehension) -> Size:
        (local,) = self._variables(node, self._path(node.target)).values()
        element = self.checked.types[node.target].parameters[:1]
        scalar = bool(element) and _is_scalar(element[0])
        return device_size(local.path) or (fixed(1) if scalar else local.size) or UNKNOWN

    def _variables(self, node: Comprehension, path: Path) -> dict[str, _Local]:
        inside = self._inside(node.target)
        is_list = self.checked.types[node.target].name == "list"
        items = _Local((*path, "@items" if is_list else "@values"), inside.items if inside else None)
        keys = _Local((*path, "@indices" if is_list else "@keys"), inside.keys if inside else None)
        if node.second is None:
            return {node.variable: items if is_list else keys}
        return {node.variable: keys, node.second: items}

    def _sorted(self, node: Comprehension, target: int) -> int:
        """`cel.bind(all, target, all.sortedBy(all.map(variable, body)))`, with quadratic sorting."""
        body = self._within_scope(self._variables(node, self._path(node.target)), node.body)
        count, kind = self.size(node.target), self.checked.types[node.body]
        keys = _within(1 + LIST_COST + 1 + _within(count.most * _within(STEPS["map"](body))))
        factor = 2 + (CHARACTER if kind.name in _TEXTS or is_dynamic(kind) else 0)
        self.sizes[node] = count * count
        return _within(LIST_COST + target + 1 + keys + _allocating(count * count, factor)[0])


_QUANTIFIERS = frozenset({"all", "exists", "exists_one"})
STEPS: Mapping[str, Callable[[int], int]] = {
    "all": lambda body: 2 + 1 + body,
    "exists": lambda body: 3 + 1 + body,
    "exists_one": lambda body: body + 2,
    "map": lambda body: 1 + 1 + LIST_COST + body,
    "filter": lambda body: body + 1 + 1 + LIST_COST + 1,
    "transformList": lambda body: 1 + 1 + LIST_COST + body,
    "transformMap": lambda body: 1 + 1 + 1 + body,
    "transformMapEntry": lambda body: 1 + 1 + body,
}
"""Of each macro: what one element costs, with the accumulator that it expands to."""

STARTS: Mapping[str, int] = {
    "all": 1, "exists": 1, "exists_one": 2, "map": LIST_COST + 1, "filter": LIST_COST + 1,
    "transformList": LIST_COST + 1, "transformMap": MAP_COST + 1, "transformMapEntry": MAP_COST + 1,
}  # fmt: skip


def own_cost(node: Call, call: Operands, *, is_method: bool) -> tuple[int, Size | None]:
    """The cost of a call without its operands, and the size of its result where that is known."""
    name = node.function if is_method or node.target is None else _full_name(node)
    return _RULES.get(name, _one_unit)(call)


def _full_name(node: Call) -> str:
    return f"{node.target.name}.{node.function}" if isinstance(node.target, Name) else node.function


def _is_scalar(kind: Type) -> bool:
    inner = kind.parameters[0] if kind.name == "optional_type" and kind.parameters else kind
    return inner.name in _SCALARS


def _literal_size(node: Node) -> Size | None:
    match node:
        case Constant(value=str() | bytes() as text):
            return fixed(len(text))
        case Constant():
            return fixed(1)
        case ListLiteral(items=items):
            return fixed(len(items))
        case MapLiteral(entries=entries):
            return fixed(len(entries))
    return None


# -- the rules of functions


def _one_unit(_: Operands) -> tuple[int, Size | None]:
    return 1, None


def _read(share: float, *, sized: bool = False) -> _Rule:
    """Reads the target, or the only argument, from beginning to end."""

    def rule(call: Operands) -> tuple[int, Size | None]:
        size = (call.target or call.arguments[0]).size
        return _part(size.most, share), size if sized else None

    return rule


def _traversal(call: Operands) -> tuple[int, Size | None]:
    """Of lists: one unit for each element, and its characters."""
    assert call.target is not None
    size, parameters = call.target.size, call.target.kind.parameters
    if not parameters:
        return _part(size.most, CHARACTER), None
    each = 1
    if parameters[0].name in _TEXTS:
        inside = device_size((*call.target.path, "@items")) if call.target.path else None
        each += _part((inside or UNKNOWN).most, CHARACTER)
    return _within(size.most * each), None


def _replaced(call: Operands) -> tuple[int, Size | None]:
    assert call.target is not None
    text, (old, new) = call.target.size, (one.size for one in call.arguments[:2])
    if old.least == 0:
        most = _within((text.most + 1) * new.most + text.most)
    elif new.most <= old.least:
        most = text.most
    else:
        most = _within(_part(text.most, 1 / old.least) * new.most)
    if old.most == 0:
        least = (text.least + 1) * new.least + text.least
    elif old.most <= new.least:
        least = text.least
    else:
        least = _part(text.least, 1 / old.most) * new.least
    return _part(text.most, 2 * CHARACTER), Size(_within(least), most)


def _split(call: Operands) -> tuple[int, Size | None]:
    assert call.target is not None
    most = call.target.size.most
    if len(call.arguments) > 1:
        limit = _literal_int(call.arguments[1])
        most = most if limit is None else limit % 2**64
    return _part(call.target.size.most, 2 * CHARACTER), Size(0, most)


def _joined(call: Operands) -> tuple[int, Size | None]:
    assert call.target is not None
    count, size = call.target.size, NONE
    if call.target.kind.parameters:
        inside = device_size((*call.target.path, "@items")) if call.target.path else None
        size = count * (inside or UNKNOWN)
    if call.arguments:
        gaps = Size(max(0, count.least - 1), max(0, count.most - 1))
        size += call.arguments[0].size * gaps
    return _part(size.most, CHARACTER), size


def _pattern_search(call: Operands) -> tuple[int, Size | None]:
    if call.target is None:
        return 1, None
    text, pattern = call.target.size, call.arguments[0].size
    cost = _part(_within(text.most + 1), CHARACTER) * _part(pattern.most, PATTERN_CHARACTER)
    return _within(cost), Size(0, text.most)


def _matches(call: Operands) -> tuple[int, Size | None]:
    return _pattern_search(call)[0], None


def _contains(call: Operands) -> tuple[int, Size | None]:
    assert call.target is not None
    return _within(_part(call.target.size.most, CHARACTER) * _part(call.arguments[0].size.most, CHARACTER)), None


def _starts(call: Operands) -> tuple[int, Size | None]:
    return _part(call.arguments[0].size.most, CHARACTER), None


def _is_in(call: Operands) -> tuple[int, Size | None]:
    lists = any(parameters[1].name == "list" for parameters in call.overloads)
    return max(1, call.arguments[1].size.most) if lists else 1, None


def _plus(call: Operands) -> tuple[int, Size | None]:
    left, right = (one.size for one in call.arguments)
    names = {parameters[0].name for parameters in call.overloads}
    size = left + right if names & {"string", "bytes", "list"} else None
    texts = _part((left + right).most, CHARACTER) if names & _TEXTS else 0
    return max(texts, int(bool(names - _TEXTS))), size


def _smaller(call: Operands) -> int:
    return _part(min(one.size.most for one in call.arguments), CHARACTER)


def _order(call: Operands) -> tuple[int, Size | None]:
    names = {parameters[0].name for parameters in call.overloads}
    return max(_smaller(call) if names & _TEXTS else 0, int(bool(names - _TEXTS))), None


def _unlike(call: Operands) -> tuple[int, Size | None]:
    return _smaller(call), None


def _equal(call: Operands) -> tuple[int, Size | None]:
    left, right = call.arguments
    if left.kind == right.kind and left.kind.name in _OF_ONE_UNIT:
        return 1, None
    if left.kind == right.kind and left.kind.name == "kubernetes.NamedFormat":
        return _part(_LONGEST_FORMAT, CHARACTER), None
    if left.kind == right.kind and left.kind.name == "kubernetes.URL":
        return _part(right.size.most if right.size != UNKNOWN else 1, CHARACTER), None
    return _smaller(call), None


def _to_text(call: Operands) -> tuple[int, Size | None]:
    """`string`, which reads bytes; other values are written at once."""
    names = {parameters[0].name for parameters in call.overloads}
    size = call.arguments[0].size
    cost = max(_part(size.most, CHARACTER) if "bytes" in names else 0, int(bool(names - {"bytes"})))
    return cost, Size(size.least // 4, size.most) if "bytes" in names else None


def _to_bytes(call: Operands) -> tuple[int, Size | None]:
    names = {parameters[0].name for parameters in call.overloads}
    size = call.arguments[0].size
    cost = max(_part(size.most, CHARACTER) if "string" in names else 0, int(bool(names - {"string"})))
    return cost, Size(size.least, _within(size.most * 4)) if "string" in names else None


def _quoted(call: Operands) -> tuple[int, Size | None]:
    size = call.arguments[0].size
    return _part(size.most, CHARACTER), Size(size.least + 2, _within(size.most * 2 + 2))


def _contains_address(call: Operands) -> tuple[int, Size | None]:
    return _part(2 * 16, CHARACTER) + _reading_argument(call), None


def _contains_prefix(call: Operands) -> tuple[int, Size | None]:
    return _part(2 * 16, CHARACTER) + _part(16, CHARACTER) + 1 + _reading_argument(call), None


def _reading_argument(call: Operands) -> int:
    is_text = any(parameters[1].name == "string" for parameters in call.overloads)
    return _part(call.arguments[0].size.most, CHARACTER) if is_text else 0


def _validated(call: Operands) -> tuple[int, Size | None]:
    text = _part(call.arguments[0].size.most, CHARACTER)
    return _part(text, _LONGEST_PATTERN * PATTERN_CHARACTER), None


def _ip(call: Operands) -> tuple[int, Size | None]:
    return (1 if call.target is not None else _part(call.arguments[0].size.most, CHARACTER)), None


def _included(_: Operands) -> tuple[int, Size | None]:
    return _MOST_INCLUDED, None


# -- lists and sets


def _allocating(size: Size, factor: float) -> tuple[int, Size | None]:
    return _within(_part(size.most, factor) + 1 + LIST_COST), size


def _literal_int(operand: Operand) -> int | None:
    node = operand.node
    return node.value if isinstance(node, Constant) and type(node.value) is int else None


def _at_least_zero(operand: Operand, otherwise: int) -> int:
    value = _literal_int(operand)
    return otherwise if value is None else max(0, value)


def _slice(call: Operands) -> tuple[int, Size | None]:
    assert call.target is not None
    start, end = _at_least_zero(call.arguments[0], 0), _at_least_zero(call.arguments[1], call.target.size.most)
    return _allocating(fixed((end - start) % 2**64), 1)


def _flatten(call: Operands) -> tuple[int, Size | None]:
    assert call.target is not None
    depth = _at_least_zero(call.arguments[0], INFINITE) if call.arguments else 1
    return _allocating(call.target.size, depth)


def _whole_list(factor: float, *, squared: bool = False) -> _Rule:
    def rule(call: Operands) -> tuple[int, Size | None]:
        assert call.target is not None
        size = call.target.size
        return _allocating(size * size if squared else size, factor)

    return rule


def _sort(call: Operands) -> tuple[int, Size | None]:
    assert call.target is not None
    texts = any(parameters[0].parameters[0].name in _TEXTS for parameters in call.overloads)
    size = call.target.size
    return _allocating(size * size, 2 + CHARACTER if texts else 2)


def _pairs(factor: float) -> _Rule:
    def rule(call: Operands) -> tuple[int, Size | None]:
        left, right = (one.size for one in call.arguments)
        return _within(_part((left * right).most, factor) + 1), None

    return rule


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(["isSorted", "sum", "min", "max", "indexOf", "lastIndexOf"], _traversal),
    **dict.fromkeys(["url", "lowerAscii", "upperAscii", "substring", "trim"], _read(CHARACTER, sized=True)),
    **dict.fromkeys(["cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver"], _starts),
    **dict.fromkeys(["startsWith", "endsWith"], _starts),
    **dict.fromkeys(["find", "findAll"], _pattern_search),
    **dict.fromkeys(["<", "<=", ">", ">="], _order),
    "replace": _replaced, "split": _split, "join": _joined, "matches": _matches, "contains": _contains,
    "format": _read(CHARACTER), "string": _to_text, "bytes": _to_bytes, "strings.quote": _quoted,
    "in": _is_in, "+": _plus, "==": _equal, "!=": _unlike,
    "ip": _ip, "ip.isCanonical": _read(2 * CHARACTER), "containsIP": _contains_address,
    "containsCIDR": _contains_prefix, "validate": _validated, "includes": _included,
    "slice": _slice, "flatten": _flatten, "reverse": _whole_list(1), "distinct": _whole_list(2, squared=True),
    "sort": _sort, "lists.range": lambda call: _allocating(fixed(_at_least_zero(call.arguments[0], INFINITE)), 1),
    "sets.contains": _pairs(1), "sets.intersects": _pairs(1), "sets.equivalent": _pairs(2),
}  # fmt: skip
"""By function; every other one costs one unit."""
