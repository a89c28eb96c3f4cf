"""What one more claim could still get on a node, as the allocator itself answers. Pure.

The claim that is asked for has no tolerations and no admin access: what most people mean by "free". Nothing is guessed
from counters or names; whole GPUs, MIG devices and amounts of memory are requests, put to `allocate`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dra_driver.allocation.amounts import Amount, amount
from dra_driver.allocation.nodes import NodeView, untolerated
from dra_driver.allocation.prospects import Site
from dra_driver.allocation.requests import MAX_RESULTS, Cause, Refusal
from dra_driver.allocation.search import Allocated, Limit, Undecided, allocate
from dra_driver.allocation.snapshot import Candidate, Snapshot
from dra_driver.allocation.usage import Ledger
from dra_driver.api.meta import ObjectMeta
from dra_driver.api.resource import Capacity, DeviceClass, DeviceClassSpec, ResourceClaim
from dra_driver.errors import DriverError
from dra_driver.quantity import Quantity

_CLASS = "any"
_ASKED = ("type", "profile", "sharing")
"""The attributes that requests select by."""

type Shape = tuple[object, ...]
_USUAL = Limit()


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """How a device stands: `refusal` is why no further claim gets it, None when one could."""

    candidate: Candidate
    refusal: Refusal | None
    left: Mapping[str, Amount]
    """Of a device that several claims may hold: what is left of each capacity. Empty for others."""


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest requests that still fit, each of them asked for alone."""

    whole_gpus: int
    mig_profile: str | None
    memory_bytes: int | None
    """Of one device: a GPU, a part of a GPU or a share."""
    undecided: str | None = None
    """Why a larger request may fit, too: the search for it reached its limit. None when all is known."""


class Headroom:
    """Of one node. `driver` is the name of the GPU driver: other drivers' devices stand here, too, but are no GPUs."""

    def __init__(
        self,
        node: NodeView,
        snapshot: Snapshot,
        driver: str,
        limit: Limit = _USUAL,
        answers: "dict[Shape, Largest] | None" = None,
    ) -> None:
        """`answers` are those of other nodes of the cluster: many nodes have the same devices free."""
        everything = DeviceClass(metadata=ObjectMeta(name=_CLASS), spec=DeviceClassSpec())
        self._node = node
        self._snapshot = replace(snapshot, classes={_CLASS: everything})
        self._site = Site(node, self._snapshot)
        self._driver = driver
        self._limit = limit
        self._answers = answers if answers is not None else {}
        self._undecided: str | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """Pools of which no claim gets anything, and why."""
        return tuple(f"pool {pool} {pool.problem}" for pool in self._site.pools if pool.problem is not None)

    @cached_property
    def standings(self) -> tuple[DeviceRoom, ...]:
        """Of every device that the node sees, in the order in which they are tried."""
        ledger = self._site.ledger()
        standings = []
        for candidate in self._site.candidates:
            taken = self._snapshot.usage.taken_of(candidate)
            capacity = candidate.device.capacity.items() if ledger.shares(candidate) else ()
            left = {name: amount(total.value) - taken.get(name, 0) for name, total in capacity}
            standings.append(DeviceRoom(candidate, self._refusal(candidate, ledger, left), left))
        return tuple(standings)

    @cached_property
    def counters(self) -> Mapping[tuple[str, str, str], tuple[Amount, Amount]]:
        """By pool, counter set and counter: what is left, and of how much."""
        left = self._site.ledger().left
        return {
            (pool.name, id_.set, id_.counter): (left[pool.id][id_], total)
            for pool in self._site.usable
            for id_, total in pool.counters.items()
        }

    @cached_property
    def largest(self) -> Largest:
        shape = self._shape()
        if shape is None:
            return self._asked()
        if shape not in self._answers:
            self._answers[shape] = self._asked()
        return self._answers[shape]

    def _asked(self) -> Largest:
        self._undecided = None
        gpus, profile, memory = self._whole_gpus(), self._mig_profile(), self._memory_bytes()
        return Largest(gpus, profile, memory, self._undecided)

    def _shape(self) -> "Shape | None":
        """All that the questions are about; None if devices share something, so that more than these facts counts."""
        shape = []
        for standing in self._open():
            candidate = standing.candidate
            device = candidate.device
            capacity = tuple((name, item.value) for name, item in device.capacity.items())
            if candidate.shareable or device.consumes_counters or device.binding_conditions is not None:
                return None
            asked = (device.attributes.get(name) for name in _ASKED)
            shape.append((*(item.string if item is not None else None for item in asked), capacity))
        return tuple(shape)

    # -- how devices stand

    def _refusal(self, candidate: Candidate, ledger: Ledger, left: Mapping[str, Amount]) -> Refusal | None:
        if ledger.in_use(candidate):
            return Refusal(Cause.IN_USE, "in use")
        behavior = self._site.behavior
        taint = untolerated(self._snapshot.taints(candidate), ()) if behavior.taints else None
        if taint is not None:
            return Refusal(Cause.TAINT, f"tainted {taint}")
        if candidate.device.consumes_counters and not behavior.partitionable:
            return Refusal(Cause.GATE, "a partition, which this scheduler does not support")
        for name, remaining in left.items():
            if _least(candidate.device.capacity[name]) > remaining:
                return Refusal(Cause.CAPACITY, f"without enough {name} left")
        return ledger.short_of_counters(candidate)

    # -- what fits

    def _fits(self, request: Mapping[str, object]) -> bool:
        spec = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": _CLASS, **request}}]}
        claim = ResourceClaim.of({"metadata": {"name": "another", "namespace": "default"}, "spec": {"devices": spec}})
        try:
            result = allocate([claim], self._node, self._snapshot, limit=self._limit)
        except DriverError:
            return False
        if isinstance(result, Undecided):
            self._undecided = result.reason
        return isinstance(result, Allocated)

    def _whole_gpus(self) -> int:
        free = sum(standing.candidate.device.text("type") == "gpu" for standing in self._open())
        exclusive = f"device.attributes['{self._driver}'].?sharing.orValue('exclusive') == 'exclusive'"
        selectors = [*self._select("type", "gpu")["selectors"], {"cel": {"expression": exclusive}}]
        counts = range(min(free, MAX_RESULTS), 0, -1)
        return next((count for count in counts if self._fits({"selectors": selectors, "count": count})), 0)

    def _mig_profile(self) -> str | None:
        sizes: dict[str, tuple[Amount, Amount]] = {}
        for standing in self._open():
            device = standing.candidate.device
            if profile := device.text("profile"):
                capacity = device.capacity
                sizes[profile] = (_value(capacity.get("memory")), _value(capacity.get("multiprocessors")))
        largest_first = sorted(sizes, key=lambda name: (sizes[name], name), reverse=True)
        return next((name for name in largest_first if self._fits(self._select("profile", name))), None)

    def _memory_bytes(self) -> int | None:
        amounts: dict[int, bool] = {}
        for standing in self._open():
            memory = standing.left.get("memory", _value(standing.candidate.device.capacity.get("memory")))
            amounts[int(memory)] = amounts.get(int(memory), False) or "cores" in standing.left
        for size in sorted((size for size in amounts if size), reverse=True):
            # Who does not say how many cores takes all.
            asked: list[dict[str, str]] = [{"memory": str(Quantity.of_bytes(size))}]
            asked += [asked[0] | {"cores": "1"}] if amounts[size] else []
            if any(self._fits(self._with_amounts(item)) for item in asked):
                return size
        return None

    def _with_amounts(self, requests: Mapping[str, str]) -> dict[str, object]:
        of_driver = {"cel": {"expression": f"device.driver == '{self._driver}'"}}
        if self._site.behavior.consumable:
            return {"selectors": [of_driver], "capacity": {"requests": dict(requests)}}
        memory = f"device.capacity['{self._driver}'].memory.compareTo(quantity('{requests['memory']}')) >= 0"
        return {"selectors": [of_driver, {"cel": {"expression": memory}}]}

    def _open(self) -> Iterator[DeviceRoom]:
        """GPUs, parts of them and shares that a claim could still get."""
        for standing in self.standings:
            if standing.refusal is None and standing.candidate.id.driver == self._driver:
                yield standing

    def _select(self, attribute: str, value: str) -> dict[str, Sequence[object]]:
        own = f"device.attributes['{self._driver}'].?{attribute}.orValue('') == '{value}'"
        return {"selectors": [{"cel": {"expression": f"device.driver == '{self._driver}' && {own}"}}]}


def _least(capacity: Capacity) -> Amount:
    """The smallest amount that a claim can take of it."""
    policy = capacity.request_policy or {}
    if (valid := policy.get("validRange")) is not None:
        return amount(valid["min"])
    if values := policy.get("validValues"):
        return amount(values[0])
    if "default" in policy:
        return amount(policy["default"])
    # Who says nothing takes all, but who asks may ask for as little as one.
    return min(1, amount(capacity.value))


def _value(capacity: Capacity | None) -> Amount:
    return amount(capacity.value) if capacity is not None else 0
