"""About how many steps a selector can take on one device: an expression that could run for minutes is refused.

Each part of the tree is a step. The body of a loop counts once for each element: a literal has as many as are written
there, and of everything else `_ELEMENTS` are assumed, the most attributes that a device can have. The API server
estimates costs more strictly and more precisely, and may refuse a few selectors that pass here.
"""

from dataclasses import dataclass, field

from dra_driver.cel.tree import (
    CallNode,
    Comprehension,
    Conditional,
    Constant,
    ListLiteral,
    MapLiteral,
    SyntaxNode,
    children,
)

LIMIT = 1_000_000
"""A selector that may take more steps is refused. Source: the API server's limit for the cost of a selector."""
_ELEMENTS = 32
_OF_PAIRS = frozenset({"sets.contains", "sets.equivalent", "sets.intersects"})
"""Functions that compare every element with every other one."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The steps of an evaluation, and the smallest part that is over the limit by itself (else the root)."""

    cost: int
    dearest: SyntaxNode


def estimate(root: SyntaxNode, limit: int = LIMIT) -> Estimate:
    steps = _Steps()
    cost = steps.of(root)
    node: SyntaxNode | None = root
    dearest = root
    while node is not None:
        dearest = node
        node = next((child for child in children(node) if steps.known.get(child, 0) > limit), None)
    return Estimate(cost, dearest)


@dataclass(slots=True)
class _Steps:
    known: dict[SyntaxNode, int] = field(default_factory=dict)

    def of(self, node: SyntaxNode) -> int:
        steps = self.known[node] = self._of(node)
        return steps

    def _of(self, node: SyntaxNode) -> int:
        inner = {child: self.of(child) for child in children(node)}
        match node:
            case Constant():
                return 0
            case Conditional():
                return 1 + inner[node.condition] + max(inner[node.then], inner[node.otherwise])
            case Comprehension():
                round_ = 1 + sum(steps for child, steps in inner.items() if child is not node.target)
                return inner[node.target] + _length(node.target) * round_
            case CallNode() if _name(node) in _OF_PAIRS:
                longest = max(map(_length, children(node)))
                return sum(inner.values()) + 2 * longest * longest
        return 1 + sum(inner.values())


def _name(node: CallNode) -> str:
    """`sets.contains` is the method `contains` of the name `sets`."""
    return f"{getattr(node.target, 'name', '')}.{node.function}"


def _length(node: SyntaxNode) -> int:
    """How many elements a list or map has at most."""
    match node:
        case ListLiteral(items=items):
            return len(items)
        case MapLiteral(entries=entries):
            return len(entries)
        case Conditional(then=then, otherwise=otherwise):
            return max(_length(then), _length(otherwise))
        case Comprehension(kind="map" | "filter", target=target):
            return _length(target)
        case CallNode(function="+", arguments=(left, right)):
            return _length(left) + _length(right)
    return _ELEMENTS
