"""Signatures of functions, what an expression may speak of, and what the check learns about its parts.

A function of the table gets values of exactly the declared types (items of lists and maps may still be anything) and
raises `Failed` for a run-time error. `dra_driver.cel.check` makes a Checked of a tree and an Environment.
"""

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field

from dra_driver.cel.tree import SyntaxNode
from dra_driver.cel.types import Type

type Library = Mapping[str, list["Overload"]]
"""Overloads by the name of their function; functions with a dotted name by the whole of it."""


class Failed(Exception):
    """A run-time error of a function; the evaluation adds where it happened."""


LONGEST_TEXT = 65_536
LONGEST_LIST = 4_096


def bounded[T: Sized](value: T) -> T:
    """The value. Raises Failed for a text or list that is far longer than any of a device."""
    if len(value) > (LONGEST_LIST if isinstance(value, tuple) else LONGEST_TEXT):
        raise Failed(f"a result of length {len(value)} is too long")
    return value


def accepts(parse: Callable[..., object]) -> Callable[..., bool]:
    """Whether `parse` takes its arguments: it raises Failed or ValueError if not."""

    def accepted(*arguments: object) -> bool:
        try:
            parse(*arguments)
        except (ValueError, Failed):
            return False
        return True

    return accepted


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature. For a method the first parameter is what it is called on."""

    parameters: tuple[Type, ...]
    result: Type
    run: Callable[..., object]
    is_method: bool = False


def function(result: Type, run: Callable[..., object], *parameters: Type) -> Overload:
    return Overload(parameters, result, run)


def method(result: Type, run: Callable[..., object], *parameters: Type) -> Overload:
    return Overload(parameters, result, run, is_method=True)


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
    functions: Mapping[str, tuple[Overload, ...]]


@dataclass(slots=True)
class CheckedTree:
    """What is known about a tree. `slots` is how many variables are alive at once, those of the environment first."""

    root: SyntaxNode
    expression: str
    types: dict[SyntaxNode, Type] = field(default_factory=dict)
    overloads: dict[SyntaxNode, tuple[Overload, ...]] = field(default_factory=dict)
    variables: dict[SyntaxNode, int] = field(default_factory=dict)
    """The slot that a Name reads, or the first one that a macro fills."""
    attributes: dict[SyntaxNode, str] = field(default_factory=dict)
    """Of a Select on an object: the Python attribute."""
    constants: dict[SyntaxNode, object] = field(default_factory=dict)
    """Of a Name that is no variable: the type that it means."""
    slots: int = 0
