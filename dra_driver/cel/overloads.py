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
