"""Which claims use which devices: slices, claims and pods become rows for people. Pure.

A device is free, held by a claim, shared by several, visible to monitoring claims only (admin access does not hold a
device), or closed: no claim holds it, but devices of the same GPU that are in use exclude it. The devices that one GPU
is published as (itself, its partitions, its shares, its twin for virtual machines) are put together again here.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from dra_driver.allocation.amounts import amount
from dra_driver.allocation.headroom import DeviceRoom
from dra_driver.allocation.requests import Cause
from dra_driver.api.core import Pod
from dra_driver.api.resource import AllocatedDevice, Device, ResourceClaim, ResourceSlice
from dra_driver.cli.tables.bars import DEFAULT_CELLS, GpuCell, Holding, Mark, bar
from dra_driver.grouping import grouped
from dra_driver.names import WAITING_TAINT, DeviceId, RequestName
from dra_driver.quantity import Quantity
from dra_driver.terminal import Row

SHOWN_ATTRIBUTES = frozenset(
    (
        "type",
        "productName",
        "profile",
        "sharing",
        "uuid",
        "parentUUID",
        "driverVersion",
    )
)
"""Of devices: what this package shows, and what `Headroom` selects by."""
_SLICE_COUNTER = "memory-slice-"
_SLICE_CAPACITY = "memorySlice"
_SHARE_CAPACITIES = ("shares", "memory", "cores")
"""By which a share is measured: the first of them that claims consume of the device."""

type Consumers = Mapping[str, Mapping[str, Sequence["ContainerUse"]]]
"""Claim to name of the pod to those of its containers that use the claim."""


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """`request` None is for all of the claim's devices."""

    name: str
    request: str | None


@dataclass(frozen=True, slots=True)
class DeviceHolder:
    """A claim that got a device. `pods` are the names of the pods that it is reserved for."""

    claim: str
    pods: tuple[str, ...]
    admin_access: bool
    request: str
    share: str | None
    """ID of its share, of a device that several claims may hold."""
    consumed: Mapping[str, str]
    """What the share takes of the device's capacities."""
    containers: tuple[str, ...]
    """`pod/container` of those that use it, where pods could be read."""

    @property
    def takes(self) -> str:
        """`memory 8Gi, cores 50`; empty for who has the device for itself."""
        return ", ".join(f"{name} {value}" for name, value in sorted(self.consumed.items()) if value != "0")


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device of a pool's newest generation, with the claims that have it."""

    id: DeviceId
    node: str | None
    device: Device
    holders: tuple[DeviceHolder, ...]
    standing: DeviceRoom | None
    """What the allocator says of it; None where it was not asked, or cannot use the pool."""

    @property
    def free(self) -> bool:
        """Whether a claim could have it, or a share of it."""
        if self.standing is not None:
            return self.standing.refusal is None
        return all(holder.admin_access for holder in self.holders)

    @property
    def holding(self) -> tuple[DeviceHolder, ...]:
        return tuple(holder for holder in self.holders if not holder.admin_access)

    @property
    def state(self) -> str:
        """`free`, `in use`, `shared` (with room for another claim), `full`, `tainted` or `closed`."""
        if self.holding:
            return "in use" if not self.device.allow_multiple_allocations else "shared" if self.free else "full"
        if self.free:
            return "free"
        refusal = self.standing.refusal if self.standing is not None else None
        return "tainted" if refusal is not None and refusal.cause is Cause.TAINT else "closed"

    @property
    def users(self) -> tuple[str, ...]:
        """The claims that have it."""
        return tuple(f"{holder.claim}{' (admin)' if holder.admin_access else ''}" for holder in self.holders)

    @property
    def taints(self) -> tuple[str, ...]:
        return tuple(
            f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
            for taint in self.device.taints or ()
        )

    @property
    def kind(self) -> str:
        return self.attribute("type")

    @property
    def is_share(self) -> bool:
        """Whether it is a share as a device of its own, which clusters without consumable capacity have."""
        return not self.device.allow_multiple_allocations and self.attribute("sharing") in ("time-slicing", "mps")

    def attribute(self, name: str) -> str:
        """An attribute as text, by name or by driver-qualified name; `-` when it has none."""
        attribute = self.device.attributes.get(name) or self.device.attributes.get(f"{self.id.driver}/{name}")
        if attribute is None:
            return "-"
        if attribute.string is not None:
            return attribute.string  # as nearly always
        values = (attribute.version, attribute.int_, attribute.bool_)
        return next((str(value) for value in values if value is not None), "-")

    def memory_bytes(self) -> int | None:
        return self._amount("memory")

    @property
    def size(self) -> tuple[int, int]:
        """Of a partition, to compare it with others: memory, then multiprocessors."""
        return self._amount("memory") or 0, self._amount("multiprocessors") or 0

    def memory_left(self) -> int | None:
        """Of a device that several claims may hold, what no claim has; otherwise all or nothing."""
        if self.standing is not None and "memory" in self.standing.left:
            return int(self.standing.left["memory"])
        return self.memory_bytes() if self.free else 0

    def slices(self) -> range | None:
        """Which memory slices of its GPU a partition has."""
        if self.kind != "mig":
            return None
        numbers = {*_numbers(self.device.capacity, _SLICE_CAPACITY), *self.counted_slices()}
        return range(min(numbers), max(numbers) + 1) if numbers else None

    def counted_slices(self) -> Iterator[int]:
        """Memory slices that its counters name."""
        for taken in self.device.consumes_counters or ():
            yield from _numbers(taken.counters, _SLICE_COUNTER)

    def part_of(self, holder: DeviceHolder) -> float:
        """How much of the device a holder has, 0 to 1."""
        for name in _SHARE_CAPACITIES:
            total = self._amount(name)
            if holder.share is not None and total and _quantity(holder.consumed.get(name, "0")):
                return _quantity(holder.consumed[name]) / total
        return 1.0 / len(self.holding) if holder.share is not None else 1.0

    def _amount(self, name: str) -> int | None:
        capacity = self.device.capacity.get(name)
        return _quantity(capacity.value) if capacity is not None else None


type HeldDevice = tuple[PublishedDevice, DeviceHolder]


def users_of(held: Iterable[HeldDevice]) -> list[str]:
    """`pod/container` where that is known, else names of pods."""
    return sorted({user for _, holder in held for user in holder.containers or holder.pods})


def by_claim(held: Iterable[HeldDevice]) -> dict[str, list[HeldDevice]]:
    return grouped(held, lambda pair: pair[1].claim)


def claim_rows(gpus: Iterable["PublishedGpu"]) -> dict[str, Row]:
    """By claim that has something of these GPUs: what, and for whom."""
    return {
        claim: {
            "CLAIM": claim,
            "DEVICES": tuple(dict.fromkeys(device.id.device for device, _ in had)),
            "TAKES": tuple(dict.fromkeys(holder.takes for _, holder in had if holder.takes)),
            "PODS": tuple(users_of(had)),
        }
        for claim, had in by_claim(held for gpu in gpus for held in gpu.held).items()
    }


def _quantity(text: str) -> int:
    return int(amount(text))


def _numbers(names: Iterable[str], prefix: str) -> Iterator[int]:
    """What follows the prefix in those that are otherwise a number."""
    numbers = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    return (int(number) for number in numbers if number.isdecimal())


# -- who holds what


def consumers_of(pods: Iterable[Pod]) -> Consumers:
    """Which containers use which claims."""
    uses: defaultdict[str, dict[str, list[ContainerUse]]] = defaultdict(dict)
    for pod in pods:
        names = claims_of_pod(pod)
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            for use in container.resources.claims:
                if (claim := names.get(use.name)) is not None:
                    users = uses[f"{pod.namespace}/{claim}"].setdefault(pod.name, [])
                    users.append(ContainerUse(container.name, use.request))
        extended = pod.status.extended_resource_claim_status
        if extended is not None:
            users = uses[f"{pod.namespace}/{extended.resource_claim_name}"].setdefault(pod.name, [])
            users += [ContainerUse(item.container_name, item.request_name) for item in extended.request_mappings]
    return uses


def claims_of_pod(pod: Pod) -> dict[str, str]:
    """Names of the existing claims by the pod's entries."""
    named = {entry.name: entry.resource_claim_name for entry in pod.spec.resource_claims}
    named |= {made.name: made.resource_claim_name for made in pod.status.resource_claim_statuses}
    return {entry: claim for entry, claim in named.items() if claim is not None}


def holders_by_device(
    claims: Iterable[ResourceClaim], consumers: Consumers
) -> Mapping[DeviceId, tuple[DeviceHolder, ...]]:
    """Allocated device to the claims that have it, in order of claim name."""
    holders: defaultdict[DeviceId, list[DeviceHolder]] = defaultdict(list)
    for claim in sorted(claims, key=str):
        for result in claim.results:
            holders[result.id].append(_holder(claim, result, consumers))
    return {device: tuple(of_device) for device, of_device in holders.items()}


def _holder(claim: ResourceClaim, result: AllocatedDevice, consumers: Consumers) -> DeviceHolder:
    pods = tuple(user.name for user in claim.status.reserved_for if user.resource == "pods")
    using = consumers.get(str(claim), {})
    request = RequestName.of(result.request).request
    containers = [
        f"{pod}/{container.name}"
        for pod in pods
        for container in using.get(pod, ())
        if container.request in (None, request)
    ]
    return DeviceHolder(
        str(claim),
        pods,
        bool(result.admin_access),
        result.request,
        result.share_id,
        result.consumed_capacity or {},
        tuple(dict.fromkeys(containers)),
    )


def published_devices(
    slices: Iterable[ResourceSlice],
    claims: Iterable[ResourceClaim],
    consumers: Consumers = MappingProxyType({}),
    *,
    drivers: Collection[str] | None = None,
    standings: Mapping[DeviceId, DeviceRoom] = MappingProxyType({}),
) -> tuple[PublishedDevice, ...]:
    """The devices of these drivers (None: all) as the scheduler sees them: newest generation of each pool, in order of
    name."""
    ours = [item for item in slices if drivers is None or item.spec.driver in drivers]
    newest: dict[tuple[str, str], int] = {}
    for item in ours:
        pool = (item.spec.driver, item.spec.pool.name)
        newest[pool] = max(newest.get(pool, 0), item.spec.pool.generation)
    holders = holders_by_device(claims, consumers)
    devices = [
        PublishedDevice(identity, item.spec.node_name, device, holders.get(identity, ()), standings.get(identity))
        for item in ours
        if item.spec.pool.generation == newest[(item.spec.driver, item.spec.pool.name)]
        for device in item.spec.devices or ()
        for identity in (DeviceId(item.spec.driver, item.spec.pool.name, device.name),)
    ]
    return tuple(sorted(devices, key=lambda device: (device.id.driver, device.id.pool, device.id.device)))


# -- GPUs


@dataclass(frozen=True)
class PublishedGpu:
    """A physical GPU: all devices that it is published as."""

    devices: tuple[PublishedDevice, ...]

    @cached_property
    def whole(self) -> PublishedDevice:
        """The device that is the GPU itself; where that is not published, the first that is a part of it."""
        return next(
            (device for device in self.devices if device.kind == "gpu" and not device.is_share), self.devices[0]
        )

    @property
    def name(self) -> str:
        return self.whole.id.device

    @property
    def uuid(self) -> str:
        return _gpu_uuid(self.whole) or "-"

    @property
    def free(self) -> bool:
        """Whether a claim could have something of it."""
        return any(device.free for device in self.devices)

    @cached_property
    def state(self) -> str:
        """`free`, `in use`, `partly` (something is left of it), `tainted` or `closed`."""
        if not any(device.holding for device in self.devices):
            return "free" if self.free else self.whole.state
        return "partly" if self.free else "in use"

    @property
    def drawn_state(self) -> str:
        """As `state`, except that an unhealthy GPU is `unhealthy`."""
        return "unhealthy" if self.unhealthy else self.state

    def memory_bytes(self) -> int | None:
        """Of the GPU; where it is not published, of the largest part that it is published as."""
        return max((size for device in self.devices if (size := device.memory_bytes()) is not None), default=None)

    @property
    def held(self) -> tuple[HeldDevice, ...]:
        return tuple((device, holder) for device in self.devices for holder in device.holders)

    @property
    def claims(self) -> list[str]:
        """Those that have the GPU or a part of it, in order of its devices."""
        return list(dict.fromkeys(holder.claim for _, holder in self.held))

    @cached_property
    def taints(self) -> tuple[str, ...]:
        """With how many devices have each when not all do."""
        counted = Counter(taint for device in self.devices for taint in device.taints)
        every = len(self.devices)
        return tuple(
            taint if count == every else f"{taint} ({count} of {every} devices)" for taint, count in counted.items()
        )

    @property
    def unhealthy(self) -> bool:
        """Whether the driver taints it, but for a change of policies that waits for claims."""
        return any(
            not taint.key.endswith(f"/{WAITING_TAINT}")
            for device in self.devices
            for taint in device.device.taints or ()
        )

    def left(self) -> tuple[str, ...]:
        """What a claim could still have of it: the whole, shares, and how many places each profile still has."""
        results = []
        if self.whole.free and self.whole.kind in ("gpu", "vfio") and not self.whole.is_share:
            results.append(_room(self.whole))
        shares = sum(device.free for device in self.devices if device.kind == "gpu" and device.is_share)
        results += [f"{shares} shares"] if shares else []
        places = Counter(device.attribute("profile") for device in self.devices if device.free and device.kind == "mig")
        sizes = {device.attribute("profile"): device.size for device in self.devices if device.kind == "mig"}
        largest_first = sorted(places, key=lambda name: (sizes[name], name), reverse=True)
        return (*results, *(f"{places[name]} x {name}" for name in largest_first))

    @cached_property
    def cells(self) -> tuple[GpuCell, ...]:
        """As `dra_driver.cli.tables.bars` draws it: partitions lie in their slices, separate shares beside each other,
        other devices on all of them."""
        slices = {device.id: place for device in self.devices if (place := device.slices()) is not None}
        counted = (number + 1 for device in self.devices for number in device.counted_slices())
        count = max([*(place.stop for place in slices.values()), *counted], default=DEFAULT_CELLS)
        shares = [device for device in self.devices if device.kind == "gpu" and device.is_share]
        width = count // len(shares) if shares else 0
        beside = {share.id: range(number * width, (number + 1) * width) for number, share in enumerate(shares) if width}
        # Compute instances fit into the same slices together, so each has a part of them.
        kinds = {device.id: (slices.get(device.id), device.attribute("profile")) for device in self.devices}
        together = Counter(kinds[device.id] for device in self.devices if not device.is_share)
        rest, holdings = [Mark.CLOSED] * count, list[Holding]()
        for device in self.devices:
            place = slices.get(device.id) or beside.get(device.id, range(count))
            parts = together[kinds[device.id]] if device.id in slices else 1
            for holder in device.holding:
                holdings.append(Holding(holder.claim, place.start, len(place), device.part_of(holder) / max(parts, 1)))
            mark = Mark.FREE if device.free else Mark.TAINTED if device.state == "tainted" else Mark.CLOSED
            for cell in place:
                rest[cell] = min(rest[cell], mark, key=_OPENNESS.index)
        return bar(count, holdings, rest)


_OPENNESS = (Mark.FREE, Mark.TAINTED, Mark.CLOSED)


def _room(device: PublishedDevice) -> str:
    left = device.standing.left if device.standing is not None else {}
    if not left:
        return "whole GPU"
    amounts = [
        f"{name} {Quantity.of_bytes(int(left[name])) if name == 'memory' else left[name]}"
        for name in _SHARE_CAPACITIES
        if name in left
    ]
    return "share: " + ", ".join(amounts)


def _gpu_uuid(device: PublishedDevice) -> str | None:
    own = device.attribute("parentUUID")
    uuid = own if own != "-" else device.attribute("uuid")
    return uuid if uuid != "-" else None


def waits_for_devices(pod: Pod) -> bool:
    """Whether it has claims, and no scheduler has found a node for it."""
    return pod.waits and bool(pod.spec.resource_claims)


def why_waiting(pod: Pod) -> str:
    """As the scheduler says it in the status of a pod that waits for a node."""
    if pod.spec.scheduling_gates:
        return f"scheduling gates: {', '.join(gate.name for gate in pod.spec.scheduling_gates)}"
    conditions = [item for item in pod.status.conditions if (item.type, item.status) == ("PodScheduled", "False")]
    return next((item.message for item in conditions if item.message), "no scheduler has processed it yet")


def short_product(name: str) -> str:
    """`H100 80GB HBM3`: without what all of them have in common."""
    return name.removeprefix("NVIDIA ")


def published_gpus(devices: Iterable[PublishedDevice]) -> tuple[PublishedGpu, ...]:
    """Devices by GPU, in their order. One that does not say of which GPU it is stands alone."""
    groups = grouped(devices, lambda device: (device.id.driver, device.id.pool, _gpu_uuid(device) or device.id.device))
    return tuple(PublishedGpu(tuple(group)) for group in groups.values())
