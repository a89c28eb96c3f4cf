"""What the comprehension macros do with each element, as closures over a frame (a list of variables by slot)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_driver.cel.errors import CelRuntimeError
from dra_driver.cel.types import type_name
from dra_driver.cel.values import TypedMap

type Frame = list[Any]
type Run = Callable[[Frame], Any]
type Elements = Callable[[Frame], Iterator[object]]


@dataclass(frozen=True, slots=True)
class Loop:
    """`elements` fills the variables in the frame before it yields; `condition` selects the elements that count."""

    elements: Elements
    body: Run
    condition: Run | None

    def with_results(self) -> Callable[[Frame], list[tuple[Any, Any]]]:
        """Pairs of the first variable and what the body makes of the element."""
        elements, body, condition = self.elements, self.body, self.condition

        def run(frame: Frame) -> list[tuple[Any, Any]]:
            return [(item, body(frame)) for item in elements(frame) if condition is None or condition(frame)]

        return run

    def transformed(self) -> Run:
        pairs = self.with_results()
        return lambda frame: tuple(result for _, result in pairs(frame))

    def transformed_map(self) -> Run:
        pairs = self.with_results()
        return lambda frame: TypedMap(pairs(frame))

    def kept(self) -> Run:
        pairs = self.with_results()
        return lambda frame: tuple(item for item, holds in pairs(frame) if holds)

    def exactly_one(self) -> Run:
        pairs = self.with_results()
        return lambda frame: sum(holds for _, holds in pairs(frame)) == 1

    def merged_map(self, error: Callable[[str], CelRuntimeError]) -> Run:
        """All maps that the body makes as one; a key must not come twice."""
        pairs = self.with_results()

        def run(frame: Frame) -> TypedMap:
            merged: dict[tuple[bool, object], tuple[object, object]] = {}
            for _, entries in pairs(frame):
                if not isinstance(entries, Mapping):
                    raise error(f"no such overload: transformMapEntry to {type_name(entries)}")
                for key, value in entries.items():
                    place = type(key) is bool, key  # 1 and 1u are one key here, and true is another
                    if place in merged:
                        raise error(f"insert failed: key {key} already exists")
                    merged[place] = key, value
            return TypedMap(merged.values())

        return run

    def quantifier(self, *, deciding: bool) -> Run:
        """`exists` (deciding is true) or `all`, with the error rule of `||` and `&&`."""
        elements, body = self.elements, self.body

        def run(frame: Frame) -> bool:
            failure: CelRuntimeError | None = None
            for _ in elements(frame):
                try:
                    if body(frame) == deciding:
                        return deciding
                except CelRuntimeError as error:
                    failure = failure or error
            if failure is not None:
                raise failure
            return not deciding

        return run
