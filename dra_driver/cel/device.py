"""What `device` means in a selector, and selectors ready to be asked.

A domain that the device does not have is an empty map; an id that it does not have is an error ("no such key"), which
`has()` and `&&` can guard. Attributes without a domain are found under the driver's name.
Source: Kubernetes, DeviceClass and ResourceClaim selectors, environment of 1.34 to 1.37.
"""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from dra_driver.api.resource import Attribute, Device
from dra_driver.cel.check import check
from dra_driver.cel.cost import LIMIT, estimate
from dra_driver.cel.errors import CelCostError, CelRuntimeError, CelTypeError, CelUnreadableDevice
from dra_driver.cel.evaluate import CelProgram, WatchedProgram
from dra_driver.cel.functions import CURRENT, Server, functions_of
from dra_driver.cel.overloads import CheckedTree, Environment, Field, ObjectType
from dra_driver.cel.parser import parse
from dra_driver.cel.tree import CallNode, SyntaxNode
from dra_driver.cel.types import ANY, BOOL, DYN, QUANTITY, STRING, Type, map_of, type_name
from dra_driver.quantity import Quantity, Version

_NOTHING: Mapping[str, object] = MappingProxyType({})


class _Domains[T](dict[str, dict[str, T]]):
    """Domain to id to value. Indexing with an unknown domain answers an empty map, and does not add it."""

    def __missing__(self, domain: str) -> Mapping[str, object]:
        return _NOTHING


class CelDevice:
    """A device as selectors see it. Made once per device, used for any number of evaluations."""

    __slots__ = ("allow_multiple_allocations", "attributes", "capacity", "device", "driver")

    def __init__(self, driver: str, device: Device) -> None:
        """Raises ValueError for a quantity or version that is none; the API server does not store such a device."""
        self.driver = driver
        self.attributes: _Domains[object] = _Domains()
        self.capacity: _Domains[Quantity] = _Domains()
        self.allow_multiple_allocations = bool(device.allow_multiple_allocations)
        self.device = device
        for name, attribute in device.attributes.items():
            domain, id_ = _qualified(name, driver)
            self.attributes.setdefault(domain, {})[id_] = attribute_value(attribute)
        for name, capacity in device.capacity.items():
            domain, id_ = _qualified(name, driver)
            self.capacity.setdefault(domain, {})[id_] = Quantity.parse(capacity.value)


def attribute_value(attribute: Attribute) -> object:
    """The value as CEL compares it: int, bool, str or Version, or a tuple of one of them; None when it has none."""
    for values in (attribute.ints, attribute.bools, attribute.strings):
        if values is not None:
            return tuple(values)
    if attribute.versions is not None:
        return tuple(map(Version.parse, attribute.versions))
    if attribute.version is not None:
        return Version.parse(attribute.version)
    for value in (attribute.int_, attribute.bool_, attribute.string):
        if value is not None:
            return value
    return None


def unreadable_attribute(device: Device, *, lists: bool) -> str | None:
    """An attribute without a value, or, for a server that does not know `lists`, with one; None when there is none."""
    for name, attribute in device.attributes.items():
        if (
            attribute.string is None
            and attribute.int_ is None
            and attribute.bool_ is None
            and attribute.version is None
        ):
            values = (attribute.ints, attribute.bools, attribute.strings, attribute.versions)
            if not lists or all(value is None for value in values):
                return name
    return None


def unreadable_error(name: str, expression: str) -> CelUnreadableDevice:
    """What a selector answers for a device with an attribute that the server cannot read."""
    return CelUnreadableDevice(f"attribute {name}: unsupported attribute value", expression, 0, len(expression))


def _qualified(name: str, driver: str) -> tuple[str, str]:
    domain, _, id_ = name.rpartition("/")
    return domain or driver, id_


@lru_cache
def device_environment(server: Server) -> Environment:
    """The one variable `device`, as a server of this version and with these gates has it."""
    attribute = DYN if server.list_attributes else ANY
    fields = {
        "driver": Field(STRING, "driver"),
        "attributes": Field(map_of(STRING, map_of(STRING, attribute)), "attributes"),
        "capacity": Field(map_of(STRING, map_of(STRING, QUANTITY)), "capacity"),
    }
    if server.multiple_allocations:
        fields["allowMultipleAllocations"] = Field(BOOL, "allow_multiple_allocations")
    return Environment({"device": ObjectType(Type("device"), fields)}, functions_of(server))


class CompiledSelector:
    """A compiled selector. `matches` is asked for every candidate device; `cost` is how many steps it may take."""

    def __init__(self, checked: CheckedTree, server: Server) -> None:
        self.expression = checked.expression
        self.estimate = estimate(checked.root)
        self._server = server
        self._program = CelProgram(checked)

    @property
    def cost(self) -> int:
        return self.estimate.cost

    def matches(self, device: CelDevice) -> bool:
        """Raises CelRuntimeError, which ends the scheduling attempt of the whole pod."""
        if (name := unreadable_attribute(device.device, lists=self._server.list_values)) is not None:
            raise unreadable_error(name, self.expression)
        result = self._program.evaluate(device)
        if result is True or result is False:
            return bool(result)
        raise _no_bool(self._program.root, self.expression, result)


def _no_bool(root: SyntaxNode, expression: str, result: object) -> CelRuntimeError:
    message = f"the result must be bool, not {type_name(result)}"
    return CelRuntimeError(message, expression, root.start, root.end)


def checked_selector(expression: str, server: Server = CURRENT) -> CheckedTree:
    """Raises CelSyntaxError, CelTypeError, CelNotJudged."""
    root = parse(expression)
    checked = check(root, expression, device_environment(server))
    result = checked.types[root]
    wanted = (BOOL, ANY, DYN) if server.list_attributes else (BOOL, ANY)
    if result not in wanted or result.is_wrapper:
        raise CelTypeError(f"a selector must be bool, not {result}", expression, root.start, root.end)
    return checked


@lru_cache(maxsize=4096)
def compile_selector(expression: str, server: Server = CURRENT) -> CompiledSelector:
    """Compiled once per expression and server. Raises CelSyntaxError, CelTypeError, CelNotJudged, and CelCostError for
    what could run too long."""
    checked = checked_selector(expression, server)
    if not server.stored:
        _refuse_compared_types(checked)
    selector = CompiledSelector(checked, server)
    if selector.cost > LIMIT:
        place = selector.estimate.dearest
        why = f"this part may take {selector.cost} steps on one device, {LIMIT} are allowed"
        raise CelCostError(why, expression, place.start, place.end)
    return selector


def _refuse_compared_types(checked: CheckedTree) -> None:
    """An API server takes types for values of unlimited size. It stores no selector that compares them with `==`; the
    elements of a list cost it nothing. Raises CelCostError."""
    comparisons = (node for node in checked.overloads if isinstance(node, CallNode) and node.function in ("==", "!="))
    for node in comparisons:
        if any(checked.types[operand].name == "type" for operand in node.arguments):
            why = "an API server stores no selector that compares types with `==`; write `type(x) in [int]`"
            raise CelCostError(why, checked.expression, node.start, node.end)


@lru_cache(maxsize=512)
def _watched(expression: str, server: Server) -> WatchedProgram:
    return WatchedProgram(checked_selector(expression, server))


def values_of_parts(
    expression: str, device: CelDevice, server: Server = CURRENT
) -> tuple[SyntaxNode, dict[SyntaxNode, object]]:
    """The root of the selector's tree, and the value of every part that the scheduler evaluates for the device: behind
    the first false part of a `&&` chain nothing is known. Raises CelError."""
    program = _watched(expression, server)
    values = program.values(device)
    if not isinstance(values[program.root], bool):
        raise _no_bool(program.root, expression, values[program.root])
    return program.root, values
