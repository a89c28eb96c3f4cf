"""Constraints on the devices of a claim while they are being chosen: add one, take the last one back. Pure.

Source: kubernetes/dynamic-resource-allocation, structured allocator, Kubernetes 1.36.
"""

from collections.abc import Hashable, Sequence

from dra_driver.allocation.snapshot import Candidate
from dra_driver.api.resource import Constraint, ResourceClaim
from dra_driver.cel.device import attribute_value
from dra_driver.errors import InvalidInput
from dra_driver.names import RequestName

type Value = tuple[str, object]
"""Type and value of an attribute, so that the int 1 and the bool true differ."""


class _AttributeConstraint:
    def __init__(self, requests: Sequence[str], attribute: str) -> None:
        self.requests, self.attribute = requests, attribute
        self._known: dict[Candidate, Value | None] = {}

    def covers(self, name: RequestName) -> bool:
        return name.covered_by(self.requests)

    def value(self, candidate: Candidate) -> Value | None:
        """None when the device has no such attribute."""
        if candidate not in self._known:
            self._known[candidate] = _attribute(candidate, self.attribute)
        return self._known[candidate]


class MatchAttribute(_AttributeConstraint):
    """Every covered device has the attribute, with one value."""

    def __init__(self, requests: Sequence[str], attribute: str) -> None:
        super().__init__(requests, attribute)
        self._values: list[Value] = []

    def add(self, name: RequestName, candidate: Candidate) -> bool:
        if not self.covers(name):
            return True
        value = self.value(candidate)
        if value is None or (self._values and self._values[0] != value):
            return False
        self._values.append(value)
        return True

    def remove(self, name: RequestName) -> None:
        if self.covers(name):
            self._values.pop()

    @property
    def state(self) -> Hashable:
        """All that later devices are compared with."""
        return self._values[0] if self._values else None

    def __str__(self) -> str:
        return f"matchAttribute {self.attribute}"


class DistinctAttribute(_AttributeConstraint):
    """Every covered device has the attribute, with a value that no other has.

    Like upstream, one value is kept per request: in a request of three devices the first and the third may be equal.
    """

    def __init__(self, requests: Sequence[str], attribute: str) -> None:
        super().__init__(requests, attribute)
        self._values: dict[str, Value] = {}

    def add(self, name: RequestName, candidate: Candidate) -> bool:
        if not self.covers(name):
            return True
        value = self.value(candidate)
        if value is None or value in self._values.values():
            return False
        self._values[name.request] = value
        return True

    def remove(self, name: RequestName) -> None:
        if self.covers(name):
            self._values.pop(name.request, None)

    @property
    def state(self) -> Hashable:
        """All that later devices are compared with."""
        return frozenset(self._values.items())

    def __str__(self) -> str:
        return f"distinctAttribute {self.attribute}"


type AnyConstraint = MatchAttribute | DistinctAttribute


def constraints_of(claim: ResourceClaim) -> tuple[AnyConstraint, ...]:
    return tuple(_constraint(claim, index, one) for index, one in enumerate(claim.spec.devices.constraints))


def _constraint(claim: ResourceClaim, index: int, constraint: Constraint) -> AnyConstraint:
    if constraint.match_attribute is not None:
        return MatchAttribute(constraint.requests, constraint.match_attribute)
    if constraint.distinct_attribute is not None:
        return DistinctAttribute(constraint.requests, constraint.distinct_attribute)
    about = f"claim {claim.metadata.namespace}/{claim.metadata.name}"
    raise InvalidInput("neither matchAttribute nor distinctAttribute", about=about, field=f"constraints[{index}]")


def _attribute(candidate: Candidate, name: str) -> Value | None:
    attributes = candidate.device.attributes
    domain, _, id_ = name.rpartition("/")
    attribute = attributes.get(name) or (attributes.get(id_) if domain == candidate.id.driver else None)
    if attribute is None:
        return None
    if attribute.version is not None:
        return "version", attribute.version
    value = attribute_value(attribute)
    return (type(value).__name__, value)
