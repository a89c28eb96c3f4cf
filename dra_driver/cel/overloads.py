"""What an entry of the function table is: one signature and the Python function behind it.

An implementation gets values of exactly the declared types (items of lists and maps may still be anything) and raises
`Failed` for a run-time error.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dra_driver.cel.types import Type

type Library = Mapping[str, list["Overload"]]
"""Overloads by the name of their function; functions with a dotted name by the whole of it."""


class Failed(Exception):
    """A run-time error of a function; the evaluation adds where it happened."""


class OverLimit(Exception):
    """The evaluation costs more than a server allows.

    No CelRuntimeError, because `&&` and `||` would take that for an error of one part.
    """


MOST_COST = 1_000_000
"""An evaluation that costs more is ended. A list costs a unit for each item, a text one for ten characters."""
MOST_CHARACTERS = 10 * MOST_COST


def affordable(size: int, most: int) -> None:
    """Raises OverLimit for a result that is over the limit by its size alone, before it is built."""
    if size > most:
        raise OverLimit


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
