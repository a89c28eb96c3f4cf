"""What an expression may cost at worst, as the API server estimates it before it stores a selector.

A unit is about what reading a name costs. Loops multiply by how many elements their list can have
(`device_size`); so comparing two values of unknown size is too much already. What functions cost is in
`dra_driver.cel.call_costs`.

Macros are charged for what Kubernetes expands them to. Only upper ends are kept, except of sizes, whose lower end
decides what `replace` can make of a text.

Source: cost estimators of cel-go 0.26 (checker, ext/lists, ext/sets) and k8s.io/apiserver, sizes of
k8s.io/dynamic-resource-allocation; compared with a real API server unit by unit (tests/contracts/test_selectors.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.cel.call_costs import (
    CHARACTER,
    LIST_COST,
    MAP_COST,
    NONE,
    TEXTS,
    UNKNOWN,
    Inside,
    Operand,
    Operands,
    Path,
    Size,
    allocating,
    device_size,
    fixed,
    own_cost,
    within,
)
from dra_driver.cel.overloads import CheckedTree
from dra_driver.cel.tree import (
    Bind,
    CallNode,
    Comprehension,
    Conditional,
    Constant,
    Has,
    Index,
    ListLiteral,
    Logical,
    MapLiteral,
    Name,
    OptionalMap,
    Select,
    SyntaxNode,
    children,
)
from dra_driver.cel.types import Type, is_dynamic

LIMIT = 1_000_000
"""An expression that may cost more is not stored."""

_SCALARS = frozenset({"bool", "double", "duration", "int", "timestamp", "uint"})
_CONTAINERS = frozenset({"map", "device"})


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an evaluation costs at most, and the smallest part that is over the limit by itself (else the root)."""

    cost: int
    dearest: SyntaxNode


def estimate(checked: CheckedTree, limit: int = LIMIT) -> Estimate:
    """`cost` is INFINITE, or nearly, when there is no telling."""
    estimator = _Estimator(checked)
    cost = estimator.cost(checked.root)
    node: SyntaxNode | None = checked.root
    dearest = checked.root
    while node is not None:
        dearest = node
        node = next((child for child in children(node) if estimator.costs.get(child, 0) > limit), None)
    return Estimate(cost, dearest)


@dataclass(slots=True)
class _Local:
    """What is known about a variable of a macro."""

    path: Path = ()
    size: Size | None = None
    inside: Inside | None = None


@dataclass(slots=True)
class _Estimator:
    checked: CheckedTree
    paths: dict[SyntaxNode, Path] = field(default_factory=dict)
    sizes: dict[SyntaxNode, Size] = field(default_factory=dict)
    inside: dict[SyntaxNode, Inside] = field(default_factory=dict)
    scope: dict[str, _Local] = field(default_factory=dict)
    locals_of: dict[SyntaxNode, _Local] = field(default_factory=dict)
    costs: dict[SyntaxNode, int] = field(default_factory=dict)

    def cost(self, node: SyntaxNode) -> int:
        cost = self.costs[node] = self._cost(node)
        return cost

    def _cost(self, node: SyntaxNode) -> int:
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
                return within(sum(map(self.cost, parts)))
            case Conditional():
                return self._conditional(node)
            case ListLiteral(items=items):
                total = sum(map(self.cost, items))
                self.inside[node] = Inside(fixed(1), self._joint(items))
                return within(total + LIST_COST)
            case MapLiteral(entries=entries):
                total = sum(self.cost(key) + self.cost(value) for key, value in entries)
                keys, values = ([entry[place] for entry in entries] for place in (0, 1))
                self.inside[node] = Inside(self._joint(keys), self._joint(values))
                return within(total + MAP_COST)
            case CallNode():
                return self._call(node)
            case Comprehension():
                return self._comprehension(node)
            case Bind():
                return self._bind(node)
            case OptionalMap():
                return self._optional_map(node)
        raise AssertionError(f"unknown node {node}")

    # -- sizes

    def size(self, node: SyntaxNode) -> Size:
        return self._known_size(node) or UNKNOWN

    def _known_size(self, node: SyntaxNode) -> Size | None:
        known_size = self.sizes.get(node) or _literal_size(node) or device_size(self._path(node))
        if known_size is None and _is_scalar(self.checked.types[node]):
            known_size = fixed(1)
        if known_size is None and (local := self.locals_of.get(node)):
            known_size = local.size
        return known_size

    def _path(self, node: SyntaxNode) -> Path:
        return self.paths.get(node, ())

    def _inside(self, node: SyntaxNode) -> Inside | None:
        local = self.locals_of.get(node)
        return self.inside.get(node) or (local.inside if local else None)

    def _joint(self, nodes: Sequence[SyntaxNode]) -> Size:
        """A size that fits all of them."""
        joint = NONE
        for place, node in enumerate(nodes):
            joint = joint | self.size(node) if place else self.size(node)
        return joint

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
        return within(total + (self.checked.types[node.operand].name in _CONTAINERS))

    def _index(self, node: Index) -> int:
        total = self.cost(node.operand) + self.cost(node.index)
        kind = self.checked.types[node.operand]
        if not node.optional and kind.name != "optional_type":
            place = "@items" if kind.name == "list" else "@values"
            self.paths[node] = (*self._path(node.operand), place)
            if (inside := self._inside(node.operand)) is not None:
                self.sizes[node] = inside.items
        return within(total + 1)

    # -- functions

    def _conditional(self, node: Conditional) -> int:
        total = self.cost(node.condition) + max(self.cost(node.then), self.cost(node.otherwise))
        self.sizes[node] = self.size(node.then) | self.size(node.otherwise)
        then, otherwise = self._inside(node.then), self._inside(node.otherwise)
        if then is not None and otherwise is not None:
            self.inside[node] = then | otherwise
        return within(total)

    def _call(self, node: CallNode) -> int:
        overloads = self.checked.overloads.get(node, ())
        is_method = node.target is not None and (not overloads or overloads[0].is_method)
        operands = ((node.target,) if is_method and node.target else ()) + node.arguments
        total = sum(map(self.cost, operands))
        if node.function == "dyn":
            self._copy(node, node.arguments[0])
            return within(total + 1)
        described = [self._operand(operand) for operand in operands]
        call = Operands(
            described[0] if is_method else None,
            described[is_method:],
            [overload.parameters for overload in overloads],
        )
        own, size = own_cost(node, call, is_method=is_method)
        if node.function == "in" and described[-1].kind.name == "list" and described[-1].size.most == 0:
            own = 0  # the list is empty, and nothing is compared
        if size is not None:
            self.sizes[node] = size
        if node.function == "+":
            left, right = (operand.inside for operand in described)
            if left is not None and right is not None:
                self.inside[node] = left | right
        return within(total + own)

    def _operand(self, node: SyntaxNode) -> Operand:
        return Operand(node, self.checked.types[node], self.size(node), self._path(node), self._inside(node))

    def _copy(self, node: SyntaxNode, source: SyntaxNode) -> None:
        """The two are equally large."""
        if (size := self._known_size(source)) is not None:
            self.sizes[node] = size
        if (inside := self._inside(source)) is not None:
            self.inside[node] = inside

    # -- macros

    def _within_scope(self, variables: Mapping[str, _Local], body: SyntaxNode) -> int:
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
        return within(total)

    def _optional_map(self, node: OptionalMap) -> int:
        """`target.hasValue() ? optional.of(cel.bind(variable, target.value(), body)) : optional.none()`."""
        target = self.cost(node.target)
        kind = self.checked.types[node.target]
        scalar = bool(kind.parameters) and _is_scalar(kind.parameters[0])
        local = _Local(size=fixed(1) if scalar else None)
        body = self._within_scope({node.variable: local}, node.body)
        wrapped = 0 if node.flat else 1
        return within(target + 1 + max(1, wrapped + LIST_COST + target + 1 + body))

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
        return within(target + STARTS[node.kind] + within(count.most * within(step)))

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
        keys = within(1 + LIST_COST + 1 + within(count.most * within(STEPS["map"](body))))
        factor = 2 + (CHARACTER if kind.name in TEXTS or is_dynamic(kind) else 0)
        self.sizes[node] = count * count
        return within(LIST_COST + target + 1 + keys + allocating(count * count, factor)[0])


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


def _is_scalar(kind: Type) -> bool:
    inner = kind.parameters[0] if kind.name == "optional_type" and kind.parameters else kind
    return inner.name in _SCALARS


def _literal_size(node: SyntaxNode) -> Size | None:
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
