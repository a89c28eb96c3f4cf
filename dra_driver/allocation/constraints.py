"""Constraints on the devices of a claim while they are being chosen: add one, take the last one back. Pure.

Source: kubernetes/dynamic-resource-allocation, structured allocator, Kubernetes 1.36.
"""

from collections.abc import Hashable, Sequence

from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.requests import Cause, Refusal
from dra_driver.allocation.snapshot import Candidate
from dra_driver.api.resource import ResourceClaim
from dra_driver.errors import InvalidInput
from dra_driver.names import RequestName

type Value = tuple[str, object]
"""Type and value of an attribute, so that the int 1 and the bool true differ."""

_UNREADABLE = "unreadable"
"""The type of what the scheduler cannot compare: it is equal to nothing but itself."""


class _AttributeConstraint:
    def __init__(self, requests: Sequence[str], attribute: str, behavior: Behavior) -> None:
        self.requests, self.attribute = requests, attribute
        self._lists = behavior.server.list_values
        self._known: dict[Candidate, frozenset[Value]] = {}

    def covers(self, name: RequestName) -> bool:
        return name.covered_by(self.requests)

    def refusal(self, candidate: Candidate) -> Refusal:
        """Of a device that could not be added."""
        why = f"against {self}" if self.values(candidate) else f"without attribute {self.attribute}, which {self} needs"
        return Refusal(Cause.CONSTRAINT, why)

    def values(self, candidate: Candidate) -> frozenset[Value]:
        """One for a plain attribute, those of a list, none when the device has no such attribute."""
        if candidate not in self._known:
            self._known[candidate] = _values(candidate, self.attribute, self._lists)
        return self._known[candidate]


class MatchAttribute(_AttributeConstraint):
    """Every covered device has the attribute, with one value that all of them have."""

    def __init__(self, requests: Sequence[str], attribute: str, behavior: Behavior) -> None:
        super().__init__(requests, attribute, behavior)
        self._common: list[frozenset[Value]] = []
        """After each device, the values that it and those before it have."""

    def add(self, name: RequestName, candidate: Candidate) -> bool:
        if not self.covers(name):
            return True
        values = self.values(candidate)
        common = values & self._common[-1] if self._common else values
        if not common:
            return False
        self._common.append(common)
        return True

    def remove(self, name: RequestName) -> None:
        if self.covers(name):
            self._common.pop()

    @property
    def state(self) -> Hashable:
        """All that later devices are compared with."""
        return self._common[-1] if self._common else None

    def __str__(self) -> str:
        return f"matchAttribute {self.attribute}"


class DistinctAttribute(_AttributeConstraint):
    """Every covered device has the attribute, with values that no other has.

    Like upstream, the values of one device are kept per request: in a request of three devices the first and the third
    may be equal.
    """

    def __init__(self, requests: Sequence[str], attribute: str, behavior: Behavior) -> None:
        super().__init__(requests, attribute, behavior)
        self._taken: dict[str, frozenset[Value]] = {}

    def add(self, name: RequestName, candidate: Candidate) -> bool:
        if not self.covers(name):
            return True
        values = self.values(candidate)
        if not values or not all(values.isdisjoint(taken) for taken in self._taken.values()):
            return False
        if self._taken and any(kind == _UNREADABLE for kind, _ in values):
            return False
        self._taken[name.request] = values
        return True

    def remove(self, name: RequestName) -> None:
        if self.covers(name):
            self._taken.pop(name.request, None)

    @property
    def state(self) -> Hashable:
        """All that later devices are compared with."""
        return frozenset(self._taken.items())

    def __str__(self) -> str:
        return f"distinctAttribute {self.attribute}"


type AnyConstraint = MatchAttribute | DistinctAttribute


def constraints_of(claim: ResourceClaim, behavior: Behavior) -> tuple[AnyConstraint, ...]:
    constraints: list[AnyConstraint] = []
    for index, constraint in enumerate(claim.spec.devices.constraints):
        if constraint.match_attribute is not None:
            constraints.append(MatchAttribute(constraint.requests, constraint.match_attribute, behavior))
        elif constraint.distinct_attribute is not None:
            constraints.append(DistinctAttribute(constraint.requests, constraint.distinct_attribute, behavior))
        else:
            why, field = "neither matchAttribute nor distinctAttribute", f"constraints[{index}]"
            raise InvalidInput(why, about=f"claim {claim}", field=field)
    return tuple(constraints)


def _values(candidate: Candidate, name: str, lists: bool) -> frozenset[Value]:
    attributes = candidate.device.attributes
    domain, _, id_ = name.rpartition("/")
    attribute = attributes.get(name) or (attributes.get(id_) if domain == candidate.id.driver else None)
    if attribute is None:
        return frozenset()
    of_types = {
        "int": (attribute.int_, attribute.ints),
        "bool": (attribute.bool_, attribute.bools),
        "string": (attribute.string, attribute.strings),
        "version": (attribute.version, attribute.versions),
    }
    for kind, (_, values) in of_types.items():
        if lists and values:
            return frozenset((kind, value) for value in values)
    for kind, (value, _) in of_types.items():
        if value is not None:
            return frozenset([(kind, value)])
    return frozenset([(_UNREADABLE, candidate)])
