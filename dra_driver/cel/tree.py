"""The syntax tree of an expression. Every node knows the part of the text it stands for.

Nodes are compared by identity: what a later stage learns about a node (its type, its overloads) is kept beside the
tree, in tables keyed by node. Macros stay what the user wrote instead of being expanded, so that a message or a trace
can speak about `all(x, …)`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

type ComprehensionKind = Literal["all", "exists", "exists_one", "map", "filter"]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class SyntaxNode:
    """`start` and `end` are offsets into the text, end exclusive."""

    start: int
    end: int


@dataclass(frozen=True, eq=False, slots=True)
class Constant(SyntaxNode):
    """`value` as dra_driver.cel.types has it."""

    value: object


@dataclass(frozen=True, eq=False, slots=True)
class Name(SyntaxNode):
    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Select(SyntaxNode):
    """`operand.field`; `.?field` when optional. `field_start` is where the field's name begins."""

    operand: SyntaxNode
    field: str
    field_start: int
    optional: bool


@dataclass(frozen=True, eq=False, slots=True)
class Has(SyntaxNode):
    """`has(operand.field)`."""

    select: Select


@dataclass(frozen=True, eq=False, slots=True)
class Index(SyntaxNode):
    """`operand[index]`; `[?index]` when optional."""

    operand: SyntaxNode
    index: SyntaxNode
    optional: bool


@dataclass(frozen=True, eq=False, slots=True)
class CallNode(SyntaxNode):
    """A function or, with a `target`, a method. Operators are functions too: `+`, `==`, `in`, and unary `-x`, `!x`.

    `name_start` is where the name or the operator's sign begins.
    """

    function: str
    target: SyntaxNode | None
    arguments: tuple[SyntaxNode, ...]
    name_start: int


@dataclass(frozen=True, eq=False, slots=True)
class Logical(SyntaxNode):
    """A chain of one operator: an error of one part counts only when no other part decides."""

    operator: Literal["&&", "||"]
    parts: tuple[SyntaxNode, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Conditional(SyntaxNode):
    condition: SyntaxNode
    then: SyntaxNode
    otherwise: SyntaxNode


@dataclass(frozen=True, eq=False, slots=True)
class ListLiteral(SyntaxNode):
    items: tuple[SyntaxNode, ...]


@dataclass(frozen=True, eq=False, slots=True)
class MapLiteral(SyntaxNode):
    entries: tuple[tuple[SyntaxNode, SyntaxNode], ...]


@dataclass(frozen=True, eq=False, slots=True)
class Comprehension(SyntaxNode):
    """`target.all(variable, body)` and its kin. `body` is what an element becomes, else the condition.

    With a `second` variable the first one is the index or key, and the second one the element. `condition` is the
    argument before the body of `map`: only elements for which it holds are transformed.
    """

    kind: ComprehensionKind
    target: SyntaxNode
    variable: str
    body: SyntaxNode
    condition: SyntaxNode | None
    second: str | None


@dataclass(frozen=True, eq=False, slots=True)
class Bind(SyntaxNode):
    """`cel.bind(variable, value, body)`."""

    variable: str
    value: SyntaxNode
    body: SyntaxNode


@dataclass(frozen=True, eq=False, slots=True)
class OptionalMap(SyntaxNode):
    """`target.optMap(variable, body)`."""

    target: SyntaxNode
    variable: str
    body: SyntaxNode


def children(node: SyntaxNode) -> Iterator[SyntaxNode]:
    """The nodes directly below `node`, in the order of the text."""
    for field in fields(node):
        value = getattr(node, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            for child in item if isinstance(item, tuple) else (item,):
                if isinstance(child, SyntaxNode):
                    yield child
