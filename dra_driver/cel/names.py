"""Names in a selector that no device has: not wrong for the API server, but never what was meant.

An unknown domain is an empty map and an unknown attribute fails only when a device is looked at, so a misspelt name
shows as a pod that waits. Who knows what devices publish can ask here, before that.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dra_driver.cel.check import Checked
from dra_driver.cel.device import CelDevice, checked_selector
from dra_driver.cel.errors import CelError, closest
from dra_driver.cel.server import CURRENT, Server
from dra_driver.cel.tree import Bind, Call, Comprehension, Constant, Index, Name, Node, OptionalMap, Select, children
from dra_driver.errors import Help, Move

type Ids = Mapping[str, frozenset[str]]
"""Names by domain."""


@dataclass(frozen=True, slots=True)
class PublishedNames:
    """What devices publish, by `attributes` and `capacity`."""

    attributes: Ids
    capacity: Ids

    @classmethod
    def of(cls, devices: Iterable[CelDevice]) -> "PublishedNames":
        attributes: dict[str, set[str]] = {}
        capacity: dict[str, set[str]] = {}
        for device in devices:
            for domain, values in device.attributes.items():
                attributes.setdefault(domain, set()).update(values)
            for domain, amounts in device.capacity.items():
                capacity.setdefault(domain, set()).update(amounts)
        return cls(_frozen(attributes), _frozen(capacity))

    def of_field(self, field: str) -> Ids:
        return self.attributes if field == "attributes" else self.capacity


def _frozen(names: Mapping[str, set[str]]) -> Ids:
    return {domain: frozenset(ids) for domain, ids in names.items()}


class UnknownName(CelError):
    """`suggestion` is the name that was probably meant, if one is close. Returned, not raised."""

    help = Help(
        Move.USER,
        "A selector asks for an attribute or capacity that no device has: right for the API server,"
        " and never what was meant.",
        "Take the name that is suggested, or one of [attributes.md](attributes.md).",
    )

    def __init__(self, message: str, suggestion: str | None, expression: str, start: int, end: int) -> None:
        self.suggestion = suggestion
        super().__init__(message + (f"; did you mean `{suggestion}`?" if suggestion else ""), expression, start, end)


def unknown_names(expression: str, published: PublishedNames, server: Server = CURRENT) -> tuple[UnknownName, ...]:
    """Domains and names that no device publishes, in the order of the text. Raises CelSyntaxError, CelTypeError.

    Parts whose domain is only known during the evaluation are not looked at.
    """
    checked = checked_selector(expression, server)
    search = _Search(checked, published)
    found = {(one.start, one.end): one for one in search.below(checked.root, {})}
    return tuple(found[place] for place in sorted(found))


@dataclass(frozen=True, slots=True)
class _Domain:
    """The map of one domain, as a sub-expression."""

    field: str
    name: str


class _Search:
    def __init__(self, checked: Checked, published: PublishedNames) -> None:
        self._expression = checked.expression
        self._published = published

    def below(self, node: Node, scope: Mapping[str, _Domain | None]) -> Iterator[UnknownName]:
        """`scope` are the variables that stand for a domain's map, or hide one that does."""
        yield from self._at(node, scope)
        for child in children(node):
            yield from self.below(child, self._scope_of(node, child, scope))

    def _scope_of(self, node: Node, child: Node, scope: Mapping[str, _Domain | None]) -> Mapping[str, _Domain | None]:
        match node:
            case Bind(variable=variable, value=value, body=body) if child is body:
                return {**scope, variable: self._domain(value, scope)}
            case OptionalMap(variable=variable, target=target, body=body) if child is body:
                return {**scope, variable: self._domain(target, scope)}
            case Comprehension(variable=variable, second=second, target=target) if child is not target:
                return {**scope, variable: None, **({second: None} if second else {})}
        return scope

    def _at(self, node: Node, scope: Mapping[str, _Domain | None]) -> Iterator[UnknownName]:
        own = self._domain(node, scope)
        if own is not None and not isinstance(node, Name):
            yield from self._unknown_domain(own, node)
        match node:
            case Select(operand=operand, field=name, field_start=start):
                yield from self._unknown_id(operand, name, start, start + len(name), scope)
            case Index(operand=operand, index=Constant(value=str(name)) as place):
                yield from self._unknown_id(operand, name, place.start, place.end, scope)
            case Call(function="in", arguments=[Constant(value=str(name)) as place, operand]):
                yield from self._unknown_id(operand, name, place.start, place.end, scope)

    def _domain(self, node: Node, scope: Mapping[str, _Domain | None]) -> _Domain | None:
        """The domain whose map this is."""
        match node:
            case Name(name=name):
                return scope.get(name)
            case Index(operand=Select(operand=Name(name="device"), field=field), index=Constant(value=str(name))):
                return _Domain(field, name) if "device" not in scope else None
        return None

    def _unknown_domain(self, domain: _Domain, node: Node) -> Iterator[UnknownName]:
        known = self._published.of_field(domain.field)
        if domain.name in known or not isinstance(node, Index):
            return
        message = f"no device has {domain.field} of `{domain.name}`"
        place = node.index
        yield UnknownName(message, closest(domain.name, known), self._expression, place.start, place.end)

    def _unknown_id(
        self, operand: Node, name: str, start: int, end: int, scope: Mapping[str, _Domain | None]
    ) -> Iterator[UnknownName]:
        domain = self._domain(operand, scope)
        if domain is None:
            return
        known = self._published.of_field(domain.field).get(domain.name)
        if known is None or name in known:
            return
        message = f"no device has {_ONE[domain.field]} `{domain.name}/{name}`"
        elsewhere = self._published.of_field("capacity" if domain.field == "attributes" else "attributes")
        if name in elsewhere.get(domain.name, ()):
            other = "capacity" if domain.field == "attributes" else "attributes"
            message += f"; `{name}` is in device.{other}"
            yield UnknownName(message, None, self._expression, start, end)
        else:
            yield UnknownName(message, closest(name, known), self._expression, start, end)


_ONE = {"attributes": "an attribute", "capacity": "a capacity"}
