"""What differs between schedulers of the Kubernetes versions that we know. Pure.

Source: feature gates and structured allocator of 1.34 to 1.37.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from dra_driver import kubernetes
from dra_driver.cel.functions import Server
from dra_driver.kubernetes import FeatureGates


@dataclass(frozen=True)
class Behavior:
    """A kube-scheduler: its minor version and the gates that are on. Gates that are always on have no field here."""

    minor: int
    partitionable: bool
    """DRAPartitionableDevices: without it slices with counters are skipped, and devices that draw on them unused."""
    consumable: bool
    """DRAConsumableCapacity: without it every device goes to one claim, and requests may name no capacity."""
    taints: bool
    """DRADeviceTaints: without it taints are ignored."""
    binding_conditions: bool
    """DRADeviceBindingConditions: without it devices that are attached after the decision are not used."""
    list_attributes: bool = False
    """DRAListTypeAttributes (alpha): without it an attribute that is a list is an error for every selector."""
    admin_access: bool = True
    """DRAAdminAccess: without it a request for admin access is an error."""
    prioritized: bool = True
    """DRAPrioritizedList: without it a request with alternatives is an error."""

    @classmethod
    def of(cls, minor: int, **gates: bool) -> "Behavior":
        """Of Kubernetes 1.`minor` with its default gates, and with others by field name."""
        defaults = FeatureGates(minor)
        by_default = cls(
            minor,
            partitionable=defaults.enabled("DRAPartitionableDevices"),
            consumable=defaults.enabled("DRAConsumableCapacity"),
            taints=defaults.enabled("DRADeviceTaints"),
            binding_conditions=defaults.enabled("DRADeviceBindingConditions"),
        )
        return replace(by_default, **gates)

    @property
    def counters_apart(self) -> bool:
        """Counter sets belong to the pool and have slices of their own; up to 1.34 they belong to their slice."""
        return self.minor >= 35

    @property
    def repeats(self) -> bool:
        """One request may get several shares of one device. From 1.36 on it gets each device once."""
        return self.minor < 36 and self.consumable

    @property
    def any_order(self) -> bool:
        """The devices of one request are tried in every order, not only in that of their names."""
        return self.minor < 36

    @property
    def counts_shares(self) -> bool:
        """Devices that other claims have shares of draw on counters. Up to 1.35 they are not counted."""
        return self.minor >= 36

    @property
    def draws_per_share(self) -> bool:
        """Each share of a device draws on counters, not only the first."""
        return self.minor < 35

    @property
    def copies_tolerations(self) -> bool:
        """An allocation says which tolerations its request has."""
        return self.minor >= 35

    @property
    def init_containers_reuse(self) -> bool:
        """Init containers use the extended resources of the containers after them, instead of devices of their own."""
        return self.minor >= 35

    @property
    def later_all_is_cut(self) -> bool:
        """An alternative that asks for all devices and is not the first continues as the first after one device."""
        return self.minor < 36

    @property
    def fractional_steps(self) -> bool:
        """Steps of a request policy may be parts of one (DRAFractionalCapacityRange)."""
        return self.minor >= 37

    @cached_property
    def server(self) -> Server:
        """What the scheduler's selectors are compiled for. It reads what is stored."""
        return Server(self.minor, consumable_capacity=self.consumable, list_attributes=self.list_attributes)

    @property
    def empty_list_for_all(self) -> bool:
        """A class's config that applies to all requests names none of them."""
        return self.minor >= 37


CURRENT = Behavior.of(kubernetes.CURRENT)
