"""Which devices a pod's claims get on a node: the scheduler's decision as a pure function.

`allocate` searches like kube-scheduler's structured allocator: claims, requests and devices in their order, depth
first with backtracking, the first complete solution wins. It knows whole devices: exact counts, all devices,
preference lists, constraints, taints, admin access. Devices that draw on shared counters, that several claims may
hold at once or that are attached after the decision are never chosen here.

Source: kubernetes/dynamic-resource-allocation, structured allocator ("incubating"), Kubernetes 1.36.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.allocation.constraints import constraints_of
from dra_driver.allocation.nodes import NodeView, untolerated
from dra_driver.allocation.snapshot import Candidate, Pool, Snapshot
from dra_driver.api.resource import (
    AllocatedConfig,
    AllocatedDevice,
    Allocation,
    Device,
    DeviceAllocation,
    DeviceClass,
    DeviceRequest,
    ExactRequest,
    ResourceClaim,
    ResourceSlice,
    Selector,
    SubRequest,
)
from dra_driver.cel.device import compile_selector
from dra_driver.cel.errors import CelError
from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.names import DeviceId, RequestName
from dra_driver.quantity import Quantity

MAX_RESULTS = 32
"""Devices in one claim; the API has no room for more."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """One allocation per claim, in the order of the claims."""

    allocations: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class NotAllocatable:
    """The claims do not fit on this node now; `reason` is a sentence without the node's name."""

    reason: str


def allocate(claims: Sequence[ResourceClaim], node: NodeView, snapshot: Snapshot) -> Allocated | NotAllocatable:
    """Devices for all of `claims` on `node`, or why there are none.

    Some things keep the pod from every node, because kube-scheduler gives up on the whole attempt then. Raises
    InvalidInput: a class that does not exist, a selector that does not compile or fails on a device, a constraint
    that one of "all" devices violates, a claim of more than 32 devices. Raises NodeNotReady: a request for all
    devices while a pool is being updated.
    """
    return _Search(claims, node, snapshot).result()


class _TooMany(Exception):
    """This way leads to more devices in a claim than the API has room for."""


@dataclass(frozen=True, eq=False)
class _Wanted:
    """A request, or one alternative of it, that was checked: what is to be chosen and from what."""

    claim: ResourceClaim
    name: RequestName
    spec: ExactRequest | SubRequest
    device_class: DeviceClass
    count: int
    every: tuple[Candidate, ...] | None
    """The devices of allocationMode All; None for an exact count."""

    @property
    def admin_access(self) -> bool:
        return isinstance(self.spec, ExactRequest) and bool(self.spec.admin_access)

    def __str__(self) -> str:
        return f'request "{self.name}" of claim {self.claim.metadata.name}'


@dataclass(frozen=True, slots=True)
class _Chosen:
    wanted: _Wanted
    candidate: Candidate


class _Search:
    """One attempt on one node. State is what was chosen so far; every step can be taken back."""

    def __init__(self, claims: Sequence[ResourceClaim], node: NodeView, snapshot: Snapshot) -> None:
        self._claims = claims
        self._node = node
        self._snapshot = snapshot
        self._pools = snapshot.pools(node)
        self._matches: dict[tuple[_Wanted, Candidate], str | None] = {}
        self._chosen: list[list[_Chosen]] = [[] for _ in claims]
        self._holders: dict[DeviceId, list[int]] = defaultdict(list)
        self._constraints = [constraints_of(claim) for claim in claims]
        self._wanted = [[self._alternatives(claim, one) for one in claim.spec.devices.requests] for claim in claims]
        self._refusals = _Refusals()

    def result(self) -> Allocated | NotAllocatable:
        for claim, requests in zip(self._claims, self._wanted, strict=True):
            least = sum(min(one.count for one in alternatives) for alternatives in requests)
            if least > MAX_RESULTS:
                about = f"claim {claim.metadata.namespace}/{claim.metadata.name}"
                raise InvalidInput(f"asks for {least} devices; a claim can have {MAX_RESULTS}", about=about)
        try:
            found = self._claim(0)
        except _TooMany:
            found = False
        if not found:
            return NotAllocatable(self._refusals.sentence(self._pools))
        return Allocated(
            tuple(
                _allocation(claim, chosen, self._node) for claim, chosen in zip(self._claims, self._chosen, strict=True)
            )
        )

    # -- what is asked for

    def _alternatives(self, claim: ResourceClaim, request: DeviceRequest) -> tuple[_Wanted, ...]:
        if request.exactly is not None:
            return (self._checked(claim, RequestName(request.name), request.exactly),)
        return tuple(
            self._checked(claim, RequestName(request.name, one.name), one) for one in request.first_available or ()
        )

    def _checked(self, claim: ResourceClaim, name: RequestName, spec: ExactRequest | SubRequest) -> _Wanted:
        device_class = self._snapshot.classes.get(spec.device_class_name)
        if device_class is None:
            about = f"claim {claim.metadata.namespace}/{claim.metadata.name}"
            raise InvalidInput(f'request "{name}": there is no DeviceClass {spec.device_class_name}', about=about)
        wanted = _Wanted(claim, name, spec, device_class, spec.count or 1, None)
        if spec.allocation_mode != "All":
            return wanted
        every = tuple(self._every(wanted))
        return _Wanted(claim, name, spec, device_class, len(every), every)

    def _every(self, wanted: _Wanted) -> Iterator[Candidate]:
        for pool in self._pools:
            if pool.problem is not None:
                raise NodeNotReady(f"{pool.problem}, and {wanted} asks for all devices", about=f"pool {pool}")
            for candidate in pool.candidates:
                if self._mismatch(wanted, candidate) is None:
                    yield candidate

    # -- the search

    def _claim(self, claim: int) -> bool:
        if claim == len(self._claims):
            return True
        return self._request(claim, 0)

    def _request(self, claim: int, request: int) -> bool:
        if request == len(self._wanted[claim]):
            try:
                return self._claim(claim + 1)
            except _TooMany:
                return False
        alternatives = self._wanted[claim][request]
        if len(alternatives) == 1:
            return self._devices(claim, request, alternatives[0], 0, (0, 0))
        exceeded = 0
        for wanted in alternatives:
            try:
                if self._devices(claim, request, wanted, 0, (0, 0)):
                    return True
            except _TooMany:
                exceeded += 1
        if exceeded == len(alternatives):
            raise _TooMany
        return False

    def _devices(self, claim: int, request: int, wanted: _Wanted, taken: int, start: tuple[int, int]) -> bool:
        """The devices of one request from the `taken`-th on; `start` is the pool and device to go on from."""
        self._refusals.reached(claim, request, wanted)
        if wanted.every == ():
            return False
        if taken == wanted.count:
            return self._request(claim, request + 1)
        if len(self._chosen[claim]) + wanted.count - taken > MAX_RESULTS:
            raise _TooMany
        if wanted.every is not None:
            return self._one_of_all(claim, request, wanted, taken)
        for pool_index in range(start[0], len(self._pools)):
            pool = self._pools[pool_index]
            if pool.problem is not None:
                continue
            first = start[1] if pool_index == start[0] else 0
            for index in range(first, len(pool.candidates)):
                if not self._try(claim, request, wanted, pool.candidates[index]):
                    continue
                if self._devices(claim, request, wanted, taken + 1, (pool_index, index + 1)):
                    return True
                self._undo(claim, wanted)
        return False

    def _one_of_all(self, claim: int, request: int, wanted: _Wanted, taken: int) -> bool:
        assert wanted.every is not None
        candidate = wanted.every[taken]
        if not self._try(claim, request, wanted, candidate):
            return False
        if self._devices(claim, request, wanted, taken + 1, (0, 0)):
            return True
        self._undo(claim, wanted)
        return False

    def _try(self, claim: int, request: int, wanted: _Wanted, candidate: Candidate) -> bool:
        """Choose the device if it may be chosen; otherwise note why not."""
        refusal = self._refusal(claim, wanted, candidate) or self._violated(claim, wanted, candidate)
        if refusal is not None:
            self._refusals.note(claim, request, wanted, candidate, refusal)
            return False
        self._holders[candidate.id].append(claim)
        self._chosen[claim].append(_Chosen(wanted, candidate))
        return True

    def _undo(self, claim: int, wanted: _Wanted) -> None:
        chosen = self._chosen[claim].pop()
        self._holders[chosen.candidate.id].remove(claim)
        for constraint in self._constraints[claim]:
            constraint.remove(wanted.name)

    # -- why a device may not be chosen

    def _refusal(self, claim: int, wanted: _Wanted, candidate: Candidate) -> str | None:
        holders = self._holders.get(candidate.id, ())
        if wanted.admin_access:
            if claim in holders:
                return "already chosen for this claim"
        elif candidate.id in self._snapshot.in_use:
            return "in use"
        elif holders:
            return "already chosen for this pod"
        if (mismatch := self._mismatch(wanted, candidate)) is not None:
            return mismatch
        taint = untolerated(candidate.device.taints or (), wanted.spec.tolerations)
        return f"tainted {taint}" if taint else None

    def _mismatch(self, wanted: _Wanted, candidate: Candidate) -> str | None:
        """Why a device is not what is asked for, whoever holds it; found once per request and device."""
        key = (wanted, candidate)
        if key not in self._matches:
            self._matches[key] = _mismatch(wanted, candidate)
        return self._matches[key]

    def _violated(self, claim: int, wanted: _Wanted, candidate: Candidate) -> str | None:
        """Adds the device to all constraints of the claim, or to none when it violates one."""
        constraints = self._constraints[claim]
        for index, constraint in enumerate(constraints):
            if not constraint.add(wanted.name, candidate):
                for added in constraints[:index]:
                    added.remove(wanted.name)
                if wanted.every is not None:
                    about = f"claim {wanted.claim.metadata.namespace}/{wanted.claim.metadata.name}"
                    message = (
                        f'request "{wanted.name}" asks for all devices, but {candidate.id} is against {constraint}'
                    )
                    raise InvalidInput(message, about=about)
                return f"against {constraint}"
        return None


def _mismatch(wanted: _Wanted, candidate: Candidate) -> str | None:
    device = candidate.device
    class_name = wanted.device_class.metadata.name
    if device.consumes_counters or device.allow_multiple_allocations or device.binding_conditions:
        return "of a kind that this scheduler does not allocate"
    if not _selected(wanted.device_class.spec.selectors, candidate, f"DeviceClass {class_name}"):
        return f"not of class {class_name}"
    about = f"claim {wanted.claim.metadata.namespace}/{wanted.claim.metadata.name}"
    if not _selected(wanted.spec.selectors, candidate, f'{about}, request "{wanted.name}"'):
        return "not selected by the request"
    return _too_small(wanted, device)


def _selected(selectors: Iterable[Selector], candidate: Candidate, about: str) -> bool:
    """Raises InvalidInput when a selector does not compile or fails on the device: that stops the whole pod."""
    for index, selector in enumerate(selectors):
        if selector.cel is None:
            raise InvalidInput(f"selector {index} has no CEL expression", about=about)
        try:
            if not compile_selector(selector.cel.expression).matches(candidate.cel):
                return False
        except CelError as error:
            message = f"selector {index} on device {candidate.id}: {error}\n{error.excerpt}"
            raise InvalidInput(message, about=about) from error
    return True


def _too_small(wanted: _Wanted, device: Device) -> str | None:
    requests = wanted.spec.capacity.requests if wanted.spec.capacity is not None else {}
    for name, amount in sorted(requests.items()):
        offered = device.capacity.get(name)
        if offered is None:
            return f"without capacity {name}"
        if Quantity.parse(offered.value) < Quantity.parse(amount):
            return f"with less than {amount} of {name}"
    return None


# -- the result


def _allocation(claim: ResourceClaim, chosen: Sequence[_Chosen], node: NodeView) -> Allocation:
    results = [
        AllocatedDevice(
            request=str(one.wanted.name),
            driver=one.candidate.id.driver,
            pool=one.candidate.id.pool,
            device=one.candidate.id.device,
            admin_access=True if one.wanted.admin_access else None,
            tolerations=one.wanted.spec.tolerations or None,
        )
        for one in chosen
    ]
    used = list(dict.fromkeys(one.wanted for one in chosen))
    config = [*_class_configs(used), *_claim_configs(claim, used)]
    return Allocation(
        devices=DeviceAllocation(results=results, config=config),
        node_selector=_node_selector([one.candidate.slice for one in chosen], node),
    )


def _class_configs(used: Sequence[_Wanted]) -> Iterator[AllocatedConfig]:
    """Each class's configs once, with all requests of that class, in the order of first use."""
    requests: dict[str, list[str]] = defaultdict(list)
    classes = {one.device_class.metadata.name: one.device_class for one in used}
    for one in used:
        requests[one.device_class.metadata.name].append(str(one.name))
    for name, device_class in classes.items():
        for config in device_class.spec.config:
            yield AllocatedConfig(source="FromClass", requests=requests[name], opaque=config.opaque)


def _claim_configs(claim: ResourceClaim, used: Sequence[_Wanted]) -> Iterator[AllocatedConfig]:
    for config in claim.spec.devices.config:
        if any(one.name.covered_by(config.requests) for one in used):
            yield AllocatedConfig(source="FromClaim", requests=config.requests, opaque=config.opaque)


def _node_selector(slices: Sequence[ResourceSlice], node: NodeView) -> dict[str, object] | None:
    """Where the devices can be used: this node, or what all their slices demand; None for anywhere."""
    if any(one.spec.node_name is not None for one in slices):
        only = {"key": "metadata.name", "operator": "In", "values": [node.name]}
        return {"nodeSelectorTerms": [{"matchFields": [only]}]}
    term: dict[str, list[object]] = {}
    for one in slices:
        for terms in (one.spec.node_selector or {}).get("nodeSelectorTerms") or ():
            for kind in ("matchExpressions", "matchFields"):
                known = term.setdefault(kind, [])
                known += [requirement for requirement in terms.get(kind) or () if requirement not in known]
    term = {kind: requirements for kind, requirements in term.items() if requirements}
    return {"nodeSelectorTerms": [term]} if term else None


# -- the reason


@dataclass(slots=True)
class _Refusals:
    """Why devices were refused for the request that the search could get to but not past."""

    _furthest: tuple[int, int] = (-1, -1)
    _wanted: dict[_Wanted, dict[Candidate, str]] = field(default_factory=dict)

    def reached(self, claim: int, request: int, wanted: _Wanted) -> dict[Candidate, str] | None:
        """Where to note refusals for this request; None when the search got further than that."""
        if (claim, request) < self._furthest:
            return None
        if (claim, request) > self._furthest:
            self._furthest = (claim, request)
            self._wanted.clear()
        return self._wanted.setdefault(wanted, {})

    def note(self, claim: int, request: int, wanted: _Wanted, candidate: Candidate, refusal: str) -> None:
        notes = self.reached(claim, request, wanted)
        if notes is not None:
            # The first refusal is the one that does not depend on what else was tried.
            notes.setdefault(candidate, refusal)

    def sentence(self, pools: Sequence[Pool]) -> str:
        problems = [f"pool {pool} {pool.problem}" for pool in pools if pool.problem is not None]
        usable = sum(len(pool.candidates) for pool in pools if pool.problem is None)
        if usable == 0:
            return "; ".join(problems) or "no devices are published for it"
        return "; ".join([*(_refused(wanted, notes, usable) for wanted, notes in self._wanted.items()), *problems])


def _refused(wanted: _Wanted, refusals: Mapping[Candidate, str], usable: int) -> str:
    number = (
        "all devices" if wanted.every is not None else "1 device" if wanted.count == 1 else f"{wanted.count} devices"
    )
    if wanted.every == ():
        return f"{wanted} needs all devices of class {wanted.device_class.metadata.name}, and none matches"
    if not refusals:
        return f"{wanted} needs {number}; the node has {usable}"
    counted = sorted(Counter(refusals.values()).items(), key=_most_first)
    reasons = ", ".join(f"{count} {reason}" for reason, count in counted)
    return f"{wanted} needs {number}; of {usable} on the node: {reasons}"


def _most_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]
