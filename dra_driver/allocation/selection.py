"""Selectors on many devices: those that selectors cannot tell apart are one class, and are judged once per class.

What a selector reads of a device is seen in its text, as long as it names every attribute and capacity in full. Of one
that does more, such as looking through all attributes, nothing is known, and every device is a class of its own. Pure.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from dra_driver.api.resource import Attribute, Capacity, Device
from dra_driver.cel.device import CelDevice, CompiledSelector, compile_selector, unreadable_attribute, unreadable_error
from dra_driver.cel.errors import CelError
from dra_driver.cel.functions import Server
from dra_driver.cel.parser import parse
from dra_driver.cel.tree import Constant, Index, Name, Select, SyntaxNode, children

_MOST_CLASSES = 10_000
"""Remembered per list of selectors; one on UUIDs has as many as there are devices."""
_MOST_LISTS = 4096
_MOST_READS = 64
"""Remembered per device."""

type _Kind = Literal["attributes", "capacity"]


class AttributeRead(NamedTuple):
    """An attribute or capacity that an expression reads: `device.attributes["domain"].id`."""

    kind: _Kind
    domain: str
    id: str


class SelectorFacts:
    """A device as selectors see it. Made once per device, for any number of snapshots."""

    __slots__ = ("_seen", "_unreadable", "device", "driver")

    def __init__(self, driver: str, device: Device) -> None:
        self.driver = driver
        self.device = device
        self._seen: dict[Reads, Hashable] = {}
        self._unreadable: tuple[str | None, str | None] | None = None

    def unreadable(self, server: Server) -> str | None:
        """The first attribute that a scheduler cannot read: one that knows lists, or one that does not."""
        if self._unreadable is None:
            without = unreadable_attribute(self.device, lists=False)
            self._unreadable = without, None if without is None else unreadable_attribute(self.device, lists=True)
        return self._unreadable[server.list_values]

    def seen(self, reads: "Reads") -> Hashable:
        """All that a selector sees that reads this; None when that is not known."""
        if reads not in self._seen:
            if len(self._seen) >= _MOST_READS:
                self._seen.clear()
            self._seen[reads] = self._look(reads)
        return self._seen[reads]

    def _look(self, reads: "Reads") -> Hashable:
        seen: list[Hashable] = [self.driver, bool(self.device.allow_multiple_allocations)]
        for kind, domain, id_ in reads:
            attributes = kind == "attributes"
            values: Mapping[str, Attribute | Capacity] = self.device.attributes if attributes else self.device.capacity
            full, bare = values.get(f"{domain}/{id_}"), values.get(id_) if domain == self.driver else None
            if full is not None and bare is not None:
                return None  # which of the two counts depends on their order
            seen.append(_value(full if full is not None else bare))
        return tuple(seen)


def _value(attribute: Attribute | Capacity | None) -> Hashable:
    if attribute is None:
        return None
    if isinstance(attribute, Capacity):
        return attribute.value
    scalars: tuple[Hashable, ...] = (attribute.int_, attribute.bool_, attribute.string, attribute.version)
    lists = (attribute.ints, attribute.bools, attribute.strings, attribute.versions)
    return (scalars, *(None if list_ is None else tuple(list_) for list_ in lists))


type Reads = tuple[AttributeRead, ...]


@lru_cache(maxsize=4096)
def reads_of(expression: str) -> Reads | None:
    """What the expression, which compiles, reads."""
    return reads(parse(expression))


def reads(root: SyntaxNode) -> tuple[AttributeRead, ...] | None:
    """Every attribute and capacity that the expression can read; None when its text does not show that."""
    collected: dict[AttributeRead, None] = {}
    return tuple(collected) if _collect(root, collected) else None


def _collect(node: SyntaxNode, collected: dict[AttributeRead, None]) -> bool:
    if (read := _read(node)) is not None:
        collected[read] = None
        return True
    if _field_of_device(node) in ("driver", "allowMultipleAllocations"):
        return True
    if isinstance(node, Name) and node.name == "device":
        return False
    return all(_collect(child, collected) for child in children(node))


def _read(node: SyntaxNode) -> AttributeRead | None:
    """`device.attributes["domain"].id`, also as `["id"]` and in its optional forms."""
    match node:
        case Select(operand=Index(operand=whole, index=Constant(value=str(domain)), optional=False), field=id_):
            pass
        case Index(
            operand=Index(operand=whole, index=Constant(value=str(domain)), optional=False),
            index=Constant(value=str(id_)),
        ):
            pass
        case _:
            return None
    match _field_of_device(whole):
        case "attributes" | "capacity" as kind:
            return AttributeRead(kind, domain, id_)
    return None


def _field_of_device(node: SyntaxNode) -> str | None:
    match node:
        case Select(operand=Name(name="device"), field=field, optional=False):
            return field
    return None


# -- lists of selectors


@dataclass(frozen=True, slots=True)
class Failure:
    """The selector that failed on a device, by its index in the list."""

    index: int
    error: CelError


class OutOfTime(Exception):
    """Selectors took too long, so it is not known which devices they select."""

    def __init__(self) -> None:
        super().__init__(
            "not decided: evaluating the selectors ran out of time; make them simpler, or raise dractl's --timeout"
        )


def never() -> bool:
    """As a limit of time: there is none."""
    return False


class SelectorQuestion:
    """A list of selectors, which are asked about devices in their order. Those after the first that does not hold are
    not asked. It remembers what it answered for devices like this one."""

    def __init__(self, selectors: Sequence[CompiledSelector | CelError], server: Server) -> None:
        self._selectors = selectors
        self._server = server
        self._known: dict[Hashable, bool | Failure] = {}
        each = [reads_of(selector.expression) for selector in selectors if isinstance(selector, CompiledSelector)]
        self._reads = None if None in each else tuple(dict.fromkeys(read for item in each for read in item or ()))

    def verdict(self, device: SelectorFacts, enough: Callable[[], bool] = never) -> bool | Failure:
        """Whether all selectors hold for the device. Raises OutOfTime when they must be evaluated and it is `enough`:
        one selector may take a tenth of a second on each device of a cluster."""
        if not self._selectors:
            return True
        if (unreadable := device.unreadable(self._server)) is not None:
            return self._unreadable(unreadable)
        seen = device.seen(self._reads) if self._reads is not None else None
        if seen is not None and seen in self._known:
            return self._known[seen]
        if enough():
            raise OutOfTime
        verdict = self._judged(device)
        if seen is not None:
            if len(self._known) >= _MOST_CLASSES:
                self._known.clear()
            self._known[seen] = verdict
        return verdict

    def _unreadable(self, name: str) -> Failure:
        first = self._selectors[0]
        return Failure(0, first if isinstance(first, CelError) else unreadable_error(name, first.expression))

    def _judged(self, device: SelectorFacts) -> bool | Failure:
        seen = CelDevice(device.driver, device.device)
        for index, selector in enumerate(self._selectors):
            if isinstance(selector, CelError):
                return Failure(index, selector)
            try:
                if not selector.matches(seen):
                    return False
            except CelError as error:
                return Failure(index, error)
        return True


class Selectors:
    """All selectors of one snapshot's claims and classes, as its scheduler compiles them.

    No verdict outlives the snapshot, so no answer depends on what was asked before. A selector that does not compile is
    remembered, too: it fails on every device, and compiling it may be what takes longest.
    """

    def __init__(self, server: Server, compiled: Callable[..., CompiledSelector] = compile_selector) -> None:
        """`compiled` raises CelError for a selector that does not compile."""
        self._server = server
        self._compile = compiled
        self._questions: dict[tuple[str, ...], SelectorQuestion] = {}
        self._failed: dict[str, CelError] = {}

    def question(self, expressions: tuple[str, ...]) -> SelectorQuestion:
        if expressions not in self._questions:
            if len(self._questions) >= _MOST_LISTS:
                self._questions.clear()
                self._failed.clear()
            self._questions[expressions] = SelectorQuestion(
                [self._compiled(expression) for expression in expressions], self._server
            )
        return self._questions[expressions]

    def _compiled(self, expression: str) -> CompiledSelector | CelError:
        if expression in self._failed:
            return self._failed[expression]
        try:
            return self._compile(expression, self._server)
        except CelError as error:
            self._failed[expression] = error
            return error
