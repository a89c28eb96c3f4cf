"""Selectors on many devices: those that a selector cannot tell apart are one class, and it is evaluated once per class.

What a selector reads of a device is seen in its text, as long as it names every attribute and capacity in full. Of one
that does more, such as looking through all attributes, nothing is known, and every device is a class of its own. Pure.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dra_driver.api.resource import Attribute, Capacity, Device
from dra_driver.cel.device import CelDevice, compile_selector, unreadable_attribute, unreadable_error
from dra_driver.cel.errors import CelError
from dra_driver.cel.parser import parse
from dra_driver.cel.server import Server
from dra_driver.cel.tree import Constant, Index, Name, Node, Select, children

_MOST_CLASSES = 10_000
"""Remembered per selector; a selector on UUIDs has as many as there are devices."""
_MOST_SELECTORS = 4096

type _Kind = Literal["attributes", "capacity"]


class Read(NamedTuple):
    """An attribute or capacity that an expression reads: `device.attributes["domain"].id`."""

    kind: _Kind
    domain: str
    id: str


class ClassSelector:
    """A selector that remembers what it answered for devices like this one."""

    def __init__(self, expression: str, server: Server) -> None:
        """Raises CelError when it does not compile."""
        # What is stored is compiled whatever it costs; a scheduler ends it when it really costs too much.
        self._selector = compile_selector(expression, server, cost_limit=None)
        self._reads = reads(parse(expression))
        self._known: dict[Hashable, bool | CelError] = {}

    def answer(self, driver: str, device: Device) -> bool | CelError:
        """The error is that of an evaluation that failed. All attributes of the device must be readable."""
        seen = self._seen(driver, device)
        if seen is None:
            return self._evaluated(driver, device)
        if seen not in self._known:
            if len(self._known) >= _MOST_CLASSES:
                self._known.clear()
            self._known[seen] = self._evaluated(driver, device)
        return self._known[seen]

    def _evaluated(self, driver: str, device: Device) -> bool | CelError:
        try:
            return self._selector.matches(CelDevice(driver, device))
        except CelError as error:
            return error

    def _seen(self, driver: str, device: Device) -> Hashable:
        """All that the selector sees of the device; None when that is not known."""
        if self._reads is None:
            return None
        seen: list[Hashable] = [driver, bool(device.allow_multiple_allocations)]
        for kind, domain, id_ in self._reads:
            values: Mapping[str, Attribute | Capacity] = device.attributes if kind == "attributes" else device.capacity
            full, bare = values.get(f"{domain}/{id_}"), values.get(id_) if domain == driver else None
            if full is not None and bare is not None:
                return None  # which of the two counts depends on their order
            seen.append(_value(full if full is not None else bare))
        return tuple(seen)


def _value(found: Attribute | Capacity | None) -> Hashable:
    if found is None:
        return None
    if isinstance(found, Capacity):
        return found.value
    scalars: tuple[Hashable, ...] = (found.int_, found.bool_, found.string, found.version)
    lists = (found.ints, found.bools, found.strings, found.versions)
    return (scalars, *(None if one is None else tuple(one) for one in lists))


def reads(root: Node) -> tuple[Read, ...] | None:
    """Every attribute and capacity that the expression can read; None when that cannot be told from its text."""
    found: dict[Read, None] = {}
    return tuple(found) if _collect(root, found) else None


def _collect(node: Node, found: dict[Read, None]) -> bool:
    if (read := _read(node)) is not None:
        found[read] = None
        return True
    if _field_of_device(node) in ("driver", "allowMultipleAllocations"):
        return True
    if isinstance(node, Name) and node.name == "device":
        return False
    return all(_collect(child, found) for child in children(node))


def _read(node: Node) -> Read | None:
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
            return Read(kind, domain, id_)
    return None


def _field_of_device(node: Node) -> str | None:
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


@dataclass(frozen=True, slots=True)
class Readability:
    """The first attribute that a scheduler cannot read: one that knows lists, and one that does not."""

    with_lists: str | None
    without_lists: str | None

    @classmethod
    def of(cls, device: Device) -> "Readability":
        without = unreadable_attribute(device, lists=False)
        return _READABLE if without is None else cls(unreadable_attribute(device, lists=True), without)

    def unreadable(self, server: Server) -> str | None:
        return self.with_lists if server.list_values else self.without_lists


_READABLE = Readability(None, None)


class Selectors:
    """All selectors of one snapshot's claims and classes, as its scheduler compiles them.

    Nothing outlives the snapshot, so no answer depends on what was asked before. A selector that does not compile is
    remembered, too: it fails on every device, and compiling it may be what takes longest.
    """

    def __init__(self, server: Server, compiled: Callable[[str, Server], ClassSelector] = ClassSelector) -> None:
        """`compiled` raises CelError for a selector that does not compile."""
        self._server = server
        self._compile = compiled
        self._compiled: dict[str, ClassSelector | CelError] = {}

    def verdict(
        self, expressions: Iterable[str], driver: str, device: Device, attributes: "Readability | None" = None
    ) -> bool | Failure:
        """Whether all selectors hold for the device. They are asked in order, and those after the first that does not
        hold are not asked. `attributes` are what is known of the device's already."""
        unreadable = (attributes or Readability.of(device)).unreadable(self._server)
        for index, expression in enumerate(expressions):
            selector = self._selector(expression)
            if isinstance(selector, CelError):
                return Failure(index, selector)
            if unreadable is not None:
                return Failure(index, unreadable_error(unreadable, expression))
            answer = selector.answer(driver, device)
            if isinstance(answer, CelError):
                return Failure(index, answer)
            if not answer:
                return False
        return True

    def _selector(self, expression: str) -> ClassSelector | CelError:
        if expression not in self._compiled:
            if len(self._compiled) >= _MOST_SELECTORS:
                self._compiled.clear()
            try:
                self._compiled[expression] = self._compile(expression, self._server)
            except CelError as error:
                self._compiled[expression] = error
        return self._compiled[expression]
