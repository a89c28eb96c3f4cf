"""resource.k8s.io/v1: the parts of ResourceSlice, ResourceClaim, ResourceClaimTemplate and DeviceClass that the driver
uses.

Names, types and limits: Kubernetes' API reference for 1.34 to 1.37. Fields of newer servers are ignored when reading;
written objects are built from these models, so they contain nothing else.
"""

from typing import Any, Literal, Self

from pydantic import Field

from dra_driver.api.meta import Model, ObjectMeta
from dra_driver.names import ClaimRef, DeviceId, RequestName


class Attribute(Model):
    """Exactly one is set. `version` is semver 2.0.0; strings and versions are at most 64 bytes.

    The lists, of up to 48 values, exist where DRAListTypeAttributes is on (alpha since 1.36).
    """

    int_: int | None = Field(default=None, alias="int")
    bool_: bool | None = Field(default=None, alias="bool")
    string: str | None = None
    version: str | None = None
    ints: list[int] | None = None
    bools: list[bool] | None = None
    strings: list[str] | None = None
    versions: list[str] | None = None


class Capacity(Model):
    value: str
    request_policy: dict[str, Any] | None = None


class Taint(Model):
    key: str
    value: str | None = None
    effect: str
    time_added: str | None = None


class CounterConsumption(Model):
    counter_set: str
    counters: dict[str, Capacity]


class Device(Model):
    name: str
    attributes: dict[str, Attribute] = Field(default_factory=dict)
    capacity: dict[str, Capacity] = Field(default_factory=dict)
    consumes_counters: list[CounterConsumption] | None = None
    node_name: str | None = None
    node_selector: dict[str, Any] | None = None
    all_nodes: bool | None = None
    taints: list[Taint] | None = None
    allow_multiple_allocations: bool | None = None
    binds_to_node: bool | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None

    def text(self, name: str) -> str:
        """An attribute that is a string; empty if it has none of this name."""
        attribute = self.attributes.get(name)
        return (attribute.string or "") if attribute is not None else ""


class CounterSet(Model):
    name: str
    counters: dict[str, Capacity]


class ResourcePool(Model):
    name: str
    generation: int
    resource_slice_count: int


class ResourceSliceSpec(Model):
    driver: str
    pool: ResourcePool
    node_name: str | None = None
    node_selector: dict[str, Any] | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    shared_counters: list[CounterSet] | None = None
    devices: list[Device] | None = None


class ResourceSlice(Model):
    metadata: ObjectMeta
    spec: ResourceSliceSpec


class CelSelector(Model):
    expression: str


class Selector(Model):
    cel: CelSelector | None = None


class Opaque(Model):
    driver: str
    parameters: dict[str, Any]


class DeviceClassConfig(Model):
    opaque: Opaque | None = None


class DeviceClassSpec(Model):
    selectors: list[Selector] = Field(default_factory=list)
    config: list[DeviceClassConfig] = Field(default_factory=list)
    extended_resource_name: str | None = None

    @property
    def expressions(self) -> tuple[str, ...]:
        """Of its selectors."""
        return tuple(selector.cel.expression for selector in self.selectors if selector.cel is not None)


class DeviceClass(Model):
    metadata: ObjectMeta
    spec: DeviceClassSpec


class Toleration(Model):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class CapacityRequests(Model):
    requests: dict[str, str] = Field(default_factory=dict)


class ExactRequest(Model):
    device_class_name: str
    selectors: list[Selector] = Field(default_factory=list)
    allocation_mode: Literal["ExactCount", "All"] = "ExactCount"
    count: int | None = None
    admin_access: bool | None = None
    tolerations: list[Toleration] = Field(default_factory=list)
    capacity: CapacityRequests | None = None


class SubRequest(Model):
    name: str
    device_class_name: str
    selectors: list[Selector] = Field(default_factory=list)
    allocation_mode: Literal["ExactCount", "All"] = "ExactCount"
    count: int | None = None
    tolerations: list[Toleration] = Field(default_factory=list)
    capacity: CapacityRequests | None = None


class DeviceRequest(Model):
    name: str
    exactly: ExactRequest | None = None
    first_available: list[SubRequest] | None = None

    @property
    def ways(self) -> list[tuple[RequestName, ExactRequest | SubRequest]]:
        """Itself, or its alternatives, each with its name."""
        if self.exactly is not None:
            return [(RequestName(self.name), self.exactly)]
        return [(RequestName(self.name, item.name), item) for item in self.first_available or ()]


class Constraint(Model):
    requests: list[str] = Field(default_factory=list)
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class ClaimConfig(Model):
    requests: list[str] = Field(default_factory=list)
    opaque: Opaque | None = None


class DeviceClaim(Model):
    requests: list[DeviceRequest] = Field(default_factory=list)
    constraints: list[Constraint] = Field(default_factory=list)
    config: list[ClaimConfig] = Field(default_factory=list)


class ResourceClaimSpec(Model):
    devices: DeviceClaim = Field(default_factory=DeviceClaim)

    def with_devices(self, **fields: object) -> Self:
        """With other fields of `devices`."""
        return self.model_copy(update={"devices": self.devices.model_copy(update=fields)})


class AllocatedDevice(Model):
    """One entry of `status.allocation.devices.results`; `request` may be `request/alternative`."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    tolerations: list[Toleration] | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None
    share_id: str | None = Field(default=None, alias="shareID")
    consumed_capacity: dict[str, str] | None = None

    @property
    def id(self) -> DeviceId:
        return DeviceId(self.driver, self.pool, self.device)


class AllocatedConfig(Model):
    source: Literal["FromClass", "FromClaim"]
    requests: list[str] = Field(default_factory=list)
    opaque: Opaque | None = None


class DeviceAllocation(Model):
    results: list[AllocatedDevice] = Field(default_factory=list)
    config: list[AllocatedConfig] = Field(default_factory=list)


class Allocation(Model):
    devices: DeviceAllocation = Field(default_factory=DeviceAllocation)
    node_selector: dict[str, Any] | None = None
    allocation_timestamp: str | None = None
    """RFC 3339 in seconds; only with DRADeviceBindingConditions."""


class Consumer(Model):
    """One entry of `status.reservedFor`."""

    api_group: str | None = None
    resource: str
    name: str
    uid: str


class ResourceClaimStatus(Model):
    allocation: Allocation | None = None
    reserved_for: list[Consumer] = Field(default_factory=list)


class ResourceClaim(Model):
    metadata: ObjectMeta
    spec: ResourceClaimSpec = Field(default_factory=ResourceClaimSpec)
    status: ResourceClaimStatus = Field(default_factory=ResourceClaimStatus)

    def __str__(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def results(self) -> list[AllocatedDevice]:
        """The devices that it has; empty if it is not allocated."""
        return self.status.allocation.devices.results if self.status.allocation is not None else []

    @property
    def node_selector(self) -> dict[str, Any] | None:
        """Which nodes these devices are for; None: all, or it is not allocated."""
        return self.status.allocation.node_selector if self.status.allocation is not None else None

    def results_of(self, driver: str, pool: str | None = None) -> list[AllocatedDevice]:
        """Those of one driver, or of one of its pools."""
        return [item for item in self.results if item.driver == driver and pool in (None, item.pool)]

    @property
    def pods(self) -> list[Consumer]:
        """Those for which it is reserved. What stands for several, as a PodGroup does, does not name them."""
        return [item for item in self.status.reserved_for if item.resource == "pods" and not item.api_group]

    @property
    def ref(self) -> ClaimRef:
        return ClaimRef(self.metadata.namespace or "", self.metadata.name, self.metadata.uid)


class ResourceClaimTemplateSpec(Model):
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: ResourceClaimSpec


class ResourceClaimTemplate(Model):
    metadata: ObjectMeta
    spec: ResourceClaimTemplateSpec


class DeviceTaintSelector(Model):
    """All set fields must match; without any, the taint applies to every device."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Model):
    """Without a selector the taint applies to no device."""

    device_selector: DeviceTaintSelector | None = None
    taint: Taint


class DeviceTaintRule(Model):
    metadata: ObjectMeta
    spec: DeviceTaintRuleSpec
