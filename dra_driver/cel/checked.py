"""What goes into the check of an expression, and what comes out: what it may speak of, and what is known of its parts.

`dra_driver.cel.check` makes the one of the other; whoever evaluates, counts costs or traces reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_driver.cel.functions import FUNCTIONS
from dra_driver.cel.overloads import Overload
from dra_driver.cel.tree import Node
from dra_driver.cel.types import Type


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an object: its type, and the attribute of the Python object that holds its value."""

    type: Type
    attribute: str


@dataclass(frozen=True, slots=True)
class ObjectType:
    """The type of a variable that has fields, by their names in expressions."""

    type: Type
    fields: Mapping[str, Field]


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables that an expression sees, in the order of their slots, and the functions."""

    variables: Mapping[str, ObjectType]
    functions: Mapping[str, tuple[Overload, ...]] = field(default_factory=lambda: FUNCTIONS)


@dataclass(slots=True)
class Checked:
    """What is known about a tree. `slots` is how many variables are alive at once, those of the environment first."""

    root: Node
    expression: str
    types: dict[Node, Type] = field(default_factory=dict)
    overloads: dict[Node, tuple[Overload, ...]] = field(default_factory=dict)
    variables: dict[Node, int] = field(default_factory=dict)
    """The slot that a Name reads, or the first one that a macro fills."""
    attributes: dict[Node, str] = field(default_factory=dict)
    """Of a Select on an object: the Python attribute."""
    constants: dict[Node, object] = field(default_factory=dict)
    """Names that mean a type, as in `type(x) == int`, or a member of an enumeration."""
    slots: int = 0
