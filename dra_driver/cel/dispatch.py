"""Which overload of a function is meant is known for certain only when its arguments are there: picked at each call.

`dra_driver.cel.evaluate` enters here for every call in an expression; types that were met before are found at once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dra_driver.cel.errors import CelRuntimeError
from dra_driver.cel.overloads import Failed, Overload
from dra_driver.cel.tree import Call, Node
from dra_driver.cel.types import type_name

type Error = Callable[[str, Node], CelRuntimeError]
"""From a message and where it belongs."""

_ANY = ""


def picked(node: Node, overloads: Sequence[Overload], error: Error) -> Callable[..., Any]:
    """A function that picks the overload for its arguments and places its errors."""
    if len(overloads) == 1 and _takes_anything(overloads[0]):
        return placed(node, overloads[0].run, error)
    table: dict[tuple[str, ...], Callable[..., Any]] = {}
    for overload in overloads:
        table.setdefault(tuple(_key(kind.name) for kind in overload.parameters), overload.run)
    known: dict[tuple[type, ...], Callable[..., Any]] = {}

    def run(*arguments: object) -> Any:
        kinds = tuple(map(type, arguments))
        function = known.get(kinds)
        if function is None:
            names = tuple(map(type_name, arguments))
            function = _match(table, names)
            if function is None:
                raise error(f"no such overload: {_signature(node, names)}", node)
            known[kinds] = function
        try:
            return function(*arguments)
        except Failed as failure:
            raise error(str(failure), node) from None

    return run


def placed(node: Node, function: Callable[..., Any], error: Error) -> Callable[..., Any]:
    """The function, with its errors at `node`."""

    def run(*arguments: object) -> Any:
        try:
            return function(*arguments)
        except Failed as failure:
            raise error(str(failure), node) from None

    return run


def _key(name: str) -> str:
    return _ANY if len(name) == 1 or name == "dyn" else name


def _takes_anything(overload: Overload) -> bool:
    return all(_key(kind.name) == _ANY for kind in overload.parameters)


def _match(table: Mapping[tuple[str, ...], Callable[..., Any]], names: tuple[str, ...]) -> Callable[..., Any] | None:
    found = table.get(names)
    if found is not None:
        return found
    for wanted, function in table.items():
        if len(wanted) == len(names) and all(own in (_ANY, name) for own, name in zip(wanted, names, strict=True)):
            return function
    return None


def _signature(node: Node, names: tuple[str, ...]) -> str:
    function = node.function if isinstance(node, Call) else "[]"
    if isinstance(node, Call) and not function.isidentifier():
        return f" {function} ".join(names) if len(names) == 2 else f"{function[0]}{names[0]}"
    return f"{function}({', '.join(names)})"
