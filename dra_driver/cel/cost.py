"""About how many steps a selector can take on one device: an expression that could run for minutes is refused.

Each part of the tree is a step. The body of a loop counts once for each element: a literal has as many as are written
there, and of everything else `_ELEMENTS` are assumed, the most attributes that a device can have. A regular expression
counts by the length of the text and by the size of its program. The API server estimates costs more strictly and more
precisely, and may refuse a few selectors that pass here.
"""

from dataclasses import dataclass, field

from dra_driver.cel.library.texts import REGEXES, compiled_pattern
from dra_driver.cel.overloads import LONGEST_LIST, LONGEST_TEXT
from dra_driver.cel.tree import (
    Bind,
    CallNode,
    Comprehension,
    Conditional,
    Constant,
    Index,
    ListLiteral,
    MapLiteral,
    Name,
    Select,
    SyntaxNode,
    children,
)

LIMIT = 1_000_000
"""A selector that may take more steps is refused. Source: the API server's limit for the cost of a selector."""
_ELEMENTS = 32
_OF_PAIRS = frozenset({"sets.contains", "sets.equivalent", "sets.intersects"})
"""Functions that compare every element with every other one."""
_ATTRIBUTE_TEXT = 64
"""Characters of an attribute, at most."""
_LARGEST_PROGRAM = 20_000
"""Instructions of a regular expression, about, if it is not too large to be run."""
_INSTRUCTIONS = 250
"""Of a regular expression, in the time of a step; in the worst case, each runs for each character."""
_LENGTHENING = frozenset({"+", "format", "join", "replace"})
"""Functions whose result can be longer than each text that they get."""
_PARTS = frozenset({"split", "findAll"})
"""Functions that make a list of a text, with an element for each character at most."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The steps of an evaluation, and the smallest part that is over the limit by itself (else the root)."""

    cost: int
    dearest: SyntaxNode


def estimate(root: SyntaxNode, limit: int = LIMIT) -> Estimate:
    steps = _Steps.below(root)
    cost = steps.of(root)
    node: SyntaxNode | None = root
    dearest = root
    while node is not None:
        dearest = node
        node = next((child for child in children(node) if steps.known.get(child, 0) > limit), None)
    return Estimate(cost, dearest)


@dataclass(slots=True)
class _Steps:
    longest_text: int
    longest_list: int
    known: dict[SyntaxNode, int] = field(default_factory=dict)
    bound: dict[str, int] = field(default_factory=dict)
    """Lengths of the variables of `cel.bind`."""

    @classmethod
    def below(cls, root: SyntaxNode) -> "_Steps":
        functions: set[str] = set()
        text, todo = _ATTRIBUTE_TEXT, [root]
        while todo:
            node = todo.pop()
            if isinstance(node, CallNode):
                functions.add(node.function)
            elif isinstance(node, Constant) and isinstance(node.value, str):
                text = max(text, len(node.value))
            todo += children(node)
        if functions & _LENGTHENING:
            text = LONGEST_TEXT
        return cls(text, min(LONGEST_LIST, text + 1) if functions & _PARTS else _ELEMENTS)

    def of(self, node: SyntaxNode) -> int:
        steps = self.known[node] = self._of(node)
        return steps

    def _of(self, node: SyntaxNode) -> int:
        if isinstance(node, Bind):
            value = self.of(node.value)
            self.bound[node.variable] = max(self._length(node.value), self.bound.get(node.variable, 0))
            return 1 + value + self.of(node.body)
        inner = {child: self.of(child) for child in children(node)}
        match node:
            case Constant():
                return 0
            case Conditional():
                return 1 + inner[node.condition] + max(inner[node.then], inner[node.otherwise])
            case Comprehension():
                round_ = 1 + sum(steps for child, steps in inner.items() if child is not node.target)
                return inner[node.target] + self._length(node.target) * round_
            case CallNode() if _name(node) in _OF_PAIRS:
                longest = max(map(self._length, children(node)))
                return sum(inner.values()) + 2 * longest * longest
            case CallNode(function=function) if function in REGEXES:
                return 1 + sum(inner.values()) + self._search(node)
        return 1 + sum(inner.values())

    def _search(self, node: CallNode) -> int:
        """Steps of a search with a regular expression."""
        text, pattern, *_ = (*([node.target] if node.target is not None else []), *node.arguments)
        size = _LARGEST_PROGRAM
        if isinstance(pattern, Constant) and isinstance(pattern.value, str):
            size = compiled_pattern(pattern.value).programsize
        return self._characters(text) * size // _INSTRUCTIONS

    def _characters(self, node: SyntaxNode) -> int:
        """How many a text has at most."""
        match node:
            case Constant(value=str(text)):
                return len(text)
            case Conditional(then=then, otherwise=otherwise):
                return max(self._characters(then), self._characters(otherwise))
            case CallNode(function="+", arguments=(left, right)):
                return min(LONGEST_TEXT, self._characters(left) + self._characters(right))
        return _ATTRIBUTE_TEXT if _is_of_device(node) else self.longest_text

    def _length(self, node: SyntaxNode) -> int:
        """How many elements a list or map has at most."""
        match node:
            case ListLiteral(items=items):
                return len(items)
            case MapLiteral(entries=entries):
                return len(entries)
            case Conditional(then=then, otherwise=otherwise):
                return max(self._length(then), self._length(otherwise))
            case Comprehension(kind="map" | "filter", target=target):
                return self._length(target)
            case CallNode(function="+", arguments=(left, right)):
                return min(LONGEST_LIST, self._length(left) + self._length(right))
            case CallNode(function=function, target=text) if function in _PARTS and text is not None:
                return min(LONGEST_LIST, self._characters(text) + 1)
            case Name(name=name) if name in self.bound:
                return self.bound[name]
        return _ELEMENTS if _is_of_device(node) else self.longest_list


def _name(node: CallNode) -> str:
    """`sets.contains` is the method `contains` of the name `sets`."""
    return f"{getattr(node.target, 'name', '')}.{node.function}"


def _is_of_device(node: SyntaxNode) -> bool:
    """Whether it is an attribute, capacity or domain of the device."""
    while isinstance(node, Select | Index):
        node = node.operand
    return isinstance(node, Name) and node.name == "device"
