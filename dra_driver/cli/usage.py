"""Who uses which device: slices and claims to rows that a person reads. Pure.

A device is free, held by claims, or visible to monitoring claims only (admin access does not hold a device).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.api.resource import Device, ResourceClaim, ResourceSlice
from dra_driver.names import DeviceId
from dra_driver.quantity import Quantity


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim that got a device. `pods` are the names of the pods that it is reserved for."""

    claim: str
    pods: tuple[str, ...]
    admin_access: bool


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device of a pool's newest generation, with the claims that have it."""

    id: DeviceId
    node: str | None
    device: Device
    holders: tuple[Holder, ...] = field(default=())

    @property
    def free(self) -> bool:
        return all(holder.admin_access for holder in self.holders)

    @property
    def users(self) -> tuple[str, ...]:
        """The claims that have it."""
        return tuple(f"{holder.claim}{' (admin)' if holder.admin_access else ''}" for holder in self.holders)

    def attribute(self, name: str) -> str:
        """An attribute as text, by name or by driver-qualified name; `-` when it has none."""
        attribute = self.device.attributes.get(name) or self.device.attributes.get(f"{self.id.driver}/{name}")
        if attribute is None:
            return "-"
        values = (attribute.string, attribute.version, attribute.int_, attribute.bool_)
        return next((str(value) for value in values if value is not None), "-")

    def memory_bytes(self) -> int | None:
        capacity = self.device.capacity.get("memory")
        return int(Quantity.parse(capacity.value).value) if capacity is not None else None


def holders_by_device(claims: Iterable[ResourceClaim]) -> Mapping[DeviceId, tuple[Holder, ...]]:
    """Allocated device to the claims that have it, in order of claim name."""
    found: defaultdict[DeviceId, list[Holder]] = defaultdict(list)
    for claim in sorted(claims, key=claim_name):
        if claim.status.allocation is None:
            continue
        pods = tuple(user.name for user in claim.status.reserved_for if user.resource == "pods")
        for result in claim.status.allocation.devices.results:
            device = DeviceId(result.driver, result.pool, result.device)
            found[device].append(Holder(claim_name(claim), pods, bool(result.admin_access)))
    return {device: tuple(holders) for device, holders in found.items()}


def claim_name(claim: ResourceClaim) -> str:
    return f"{claim.metadata.namespace}/{claim.metadata.name}"


def published_devices(
    slices: Iterable[ResourceSlice], claims: Iterable[ResourceClaim], drivers: Sequence[str]
) -> tuple[PublishedDevice, ...]:
    """The devices of these drivers as the scheduler sees them: newest generation of each pool, in order of name."""
    ours = [item for item in slices if item.spec.driver in drivers]
    newest: dict[tuple[str, str], int] = {}
    for item in ours:
        pool = (item.spec.driver, item.spec.pool.name)
        newest[pool] = max(newest.get(pool, 0), item.spec.pool.generation)
    holders = holders_by_device(claims)
    devices = [
        PublishedDevice(identity, item.spec.node_name, device, holders.get(identity, ()))
        for item in ours
        if item.spec.pool.generation == newest[(item.spec.driver, item.spec.pool.name)]
        for device in item.spec.devices or ()
        for identity in (DeviceId(item.spec.driver, item.spec.pool.name, device.name),)
    ]
    return tuple(sorted(devices, key=lambda device: device.id))
