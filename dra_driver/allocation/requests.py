"""Claims and classes to checked requests: what to choose, and how many; and why a device is refused. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dra_driver.allocation.behavior import Behavior
from dra_driver.api.resource import (
    DeviceClass,
    DeviceRequest,
    ExactRequest,
    ResourceClaim,
    Selector,
    SubRequest,
    Toleration,
)
from dra_driver.errors import InvalidInput
from dra_driver.names import RequestName

MAX_RESULTS = 32
"""Devices that a claim can have. Source: AllocationResultsMaxSize of resource.k8s.io."""


@dataclass(frozen=True, eq=False)
class Wanted:
    """A request, or one alternative of it."""

    claim: ResourceClaim
    name: RequestName
    spec: ExactRequest | SubRequest
    device_class: DeviceClass
    expressions: tuple[str, ...]
    """Selectors of the class, then of the request."""

    @property
    def about(self) -> str:
        return f"claim {self.claim}"

    @property
    def wants_all(self) -> bool:
        return self.spec.allocation_mode == "All"

    @property
    def count(self) -> int:
        """Of an exact count."""
        return self.spec.count or 1

    @property
    def admin_access(self) -> bool:
        return isinstance(self.spec, ExactRequest) and bool(self.spec.admin_access)

    @property
    def tolerations(self) -> Sequence[Toleration]:
        return self.spec.tolerations

    @property
    def capacity(self) -> Mapping[str, str]:
        """Amounts that are asked for, by the name of the capacity."""
        return self.spec.capacity.requests if self.spec.capacity is not None else {}

    def writer_of(self, index: int) -> tuple[str, int]:
        """Where the selector with this index in `expressions` was written: the object, and its index there."""
        own = index - len(self.device_class.spec.selectors)
        if own < 0:
            return f"DeviceClass {self.device_class.metadata.name}", index
        return f'{self.about}, request "{self.name}"', own

    def __str__(self) -> str:
        # The claim that a scheduler would make for extended resources has no name until there is one.
        name = self.claim.metadata.name
        return f'request "{self.name}" of {f"claim {name}" if name else "the extended resources"}'


type Alternatives = tuple[Wanted, ...]
"""Of one request: itself, or the entries of its preference list."""


def checked_requests(
    claims: Sequence[ResourceClaim], classes: Mapping[str, DeviceClass], behavior: Behavior
) -> list[list[Alternatives]]:
    """For each claim its requests. Raises InvalidInput for what no node can help with.

    A claim that is too large is refused before later claims are looked at, as kube-scheduler does it.
    """
    checked: list[list[Alternatives]] = []
    for claim in claims:
        requests = [_alternatives(claim, request, classes, behavior) for request in claim.spec.devices.requests]
        if not any(wanted.wants_all for alternatives in requests for wanted in alternatives):
            check_size(requests, lambda wanted: wanted.count)
        checked.append(requests)
    return checked


def check_size(requests: Sequence[Alternatives], count: Callable[[Wanted], int]) -> None:
    """Raises InvalidInput for a claim whose `requests` are for more devices than a claim can have."""
    least = sum(min(map(count, alternatives)) for alternatives in requests)
    if least > MAX_RESULTS:
        about = requests[0][0].about
        raise InvalidInput(f"asks for {least} devices; a claim can have {MAX_RESULTS}", about=about)


def _alternatives(
    claim: ResourceClaim, request: DeviceRequest, classes: Mapping[str, DeviceClass], behavior: Behavior
) -> Alternatives:
    about = f"claim {claim}"
    if request.first_available and not behavior.prioritized:
        message = f'request "{request.name}" has alternatives; kube-scheduler has DRAPrioritizedList switched off'
        raise InvalidInput(message, about=about)
    alternatives: list[Wanted] = []
    for name, spec in request.ways:
        if isinstance(spec, ExactRequest) and spec.admin_access is not None and not behavior.admin_access:
            message = f'request "{name}" asks for admin access; kube-scheduler has DRAAdminAccess switched off'
            raise InvalidInput(message, about=about)
        device_class = classes.get(spec.device_class_name)
        if device_class is None:
            class_name = spec.device_class_name
            text = f"there is no DeviceClass {class_name}" if class_name else "no DeviceClass is named"
            raise InvalidInput(f'request "{name}": {text}', about=about)
        if spec.capacity is not None and not behavior.consumable:
            message = f'request "{name}" asks for capacity; kube-scheduler has DRAConsumableCapacity switched off'
            raise InvalidInput(message, about=about)
        expressions = (
            *_expressions(device_class.spec.selectors, f"DeviceClass {device_class.metadata.name}"),
            *_expressions(spec.selectors, f'{about}, request "{name}"'),
        )
        alternatives.append(Wanted(claim, name, spec, device_class, expressions))
    return tuple(alternatives)


def _expressions(selectors: Sequence[Selector], about: str) -> list[str]:
    expressions: list[str] = []
    for index, selector in enumerate(selectors):
        if selector.cel is None:
            raise InvalidInput(f"selector {index} has no CEL expression", about=about)
        expressions.append(selector.cel.expression)
    return expressions


# -- refusals


class Cause(StrEnum):
    """Why a device may not be chosen."""

    IN_USE = "in-use"
    CHOSEN = "chosen"
    """By an earlier request of the same pod."""
    CLASS = "class"
    SELECTOR = "selector"
    NODE = "node"
    CAPACITY = "capacity"
    COUNTERS = "counters"
    TAINT = "taint"
    CONSTRAINT = "constraint"
    GATE = "gate"
    """The scheduler has a feature switched off that the device needs."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """`text` follows "3 devices are …" and is the same for devices that are refused for the same reason."""

    cause: Cause
    text: str
