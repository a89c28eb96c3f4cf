"""Closures that `dra_driver.cel.evaluate` is made of: calls, and what the comprehension macros do with each element.

Which overload of a function is meant is known for certain only when its arguments are there: it is picked at each call,
and found at once for types that were met before.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dra_driver.cel.errors import CelError, CelRuntimeError
from dra_driver.cel.overloads import Failed, Overload
from dra_driver.cel.tree import CallNode, ComprehensionKind, SyntaxNode
from dra_driver.cel.types import type_name

type Error = Callable[[str, SyntaxNode], CelError]
"""From a message and where it belongs."""

_ANY = ""


def picked(node: SyntaxNode, overloads: Sequence[Overload], error: Error) -> Callable[..., Any]:
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


def placed(node: SyntaxNode, function: Callable[..., Any], error: Error) -> Callable[..., Any]:
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
    exact = table.get(names)
    if exact is not None:
        return exact
    for wanted, function in table.items():
        if len(wanted) == len(names) and all(own in (_ANY, name) for own, name in zip(wanted, names, strict=True)):
            return function
    return None


def _signature(node: SyntaxNode, names: tuple[str, ...]) -> str:
    function = node.function if isinstance(node, CallNode) else "[]"
    if isinstance(node, CallNode) and not function.isidentifier():
        return f" {function} ".join(names) if len(names) == 2 else f"{function[0]}{names[0]}"
    return f"{function}({', '.join(names)})"


type Frame = list[Any]
type Run = Callable[[Frame], Any]
type Elements = Callable[[Frame], Iterator[object]]


def decides(parts: Callable[[Frame], Iterable[Run]], *, deciding: bool) -> Run:
    """`||` and `exists` (deciding is true), `&&` and `all`: an error counts only when no part decides."""

    def run(frame: Frame) -> bool:
        failure: CelRuntimeError | None = None
        for part in parts(frame):
            try:
                if part(frame) == deciding:
                    return deciding
            except CelRuntimeError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return not deciding

    return run


def loop(kind: ComprehensionKind, elements: Elements, body: Run, condition: Run | None) -> Run:
    """`elements` fills the variables in the frame before it yields the first one; `condition` selects the elements that
    count. `all` and `exists` have the error rule of `&&` and `||`."""
    if kind in ("all", "exists"):
        return decides(lambda frame: (body for _ in elements(frame)), deciding=kind == "exists")

    def pairs(frame: Frame) -> list[tuple[Any, Any]]:
        return [(item, body(frame)) for item in elements(frame) if condition is None or condition(frame)]

    if kind == "filter":
        return lambda frame: tuple(item for item, holds in pairs(frame) if holds)
    if kind == "exists_one":
        return lambda frame: sum(holds for _, holds in pairs(frame)) == 1
    return lambda frame: tuple(result for _, result in pairs(frame))
