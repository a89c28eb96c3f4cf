"""What a node's facts and the cluster's policy make of its GPUs: the devices and counter sets of its pool.

`dra_driver.devices.offers` says what there could be, `publishable` what this cluster can have of it; here it gets
attributes, capacities, counters and taints, within the limits of the API. Pure: same input, same devices, in the order
of the offers, which is the order in which the scheduler tries them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from dra_driver.api.binding import BINDING_FAILED, BINDING_READY
from dra_driver.api.inventory import GpuFacts, HealthCondition, NodeInventorySpec
from dra_driver.api.policy import AttributeRule, PublishingPolicy, SharingRule
from dra_driver.api.resource import Capacity, CounterConsumption, CounterSet, Device, Taint
from dra_driver.devices.counters import Amounts, GpuCounters, gpu_counters
from dra_driver.devices.health import affecting, taints, worst
from dra_driver.devices.limitations import LimitationCause, Note
from dra_driver.devices.model import DeviceKind, Offer
from dra_driver.devices.offers import offers
from dra_driver.names import WAITING_TAINT
from dra_driver.slices.features import ServerFeatures
from dra_driver.slices.properties import DeviceAttributes, device_capacity, plain_capacity


def publishable(
    offers: Sequence[Offer],
    features: ServerFeatures,
    rule_of: Callable[[GpuFacts, DeviceKind], object] = lambda *_: None,
) -> tuple[list[Offer], list[Note]]:
    """The devices to publish, and why others are not. One with `sharing` and without `share` is for several claims at
    once; one without `sharing` is for one at a time, even if the policy shares it.

    `offers` are those of one node, GPU after GPU. `rule_of` is the rule that asks for such devices of a GPU.
    """
    chosen: list[Offer] = []
    notes: list[Note] = []
    for _, group in groupby(offers, key=lambda offer: offer.gpu.uuid):
        devices = list(group)
        gpu = devices[0].gpu
        if not features.partitionable and gpu_counters(gpu, devices) is not None:
            devices, dropped = _without_counters(devices)
            notes += [
                Note(LimitationCause.NO_PARTITIONABLE_DEVICES, _DROPPED[kind], gpu, rule_of(gpu, kind))
                for kind in dropped
            ]
        devices, alone = _with_shares(devices, features)
        notes += [Note(LimitationCause.NO_CONSUMABLE_CAPACITY, _ALONE, gpu, rule) for rule in alone]
        chosen += devices
    return chosen, notes


_DROPPED = {
    DeviceKind.MIG: "MIG devices are not made on demand because this cluster has no partitionable devices",
    DeviceKind.VFIO: "the GPU is not offered to virtual machines because this cluster has no partitionable devices",
}
_ALONE = "devices are for one claim at a time because this cluster has no consumable capacity"


def _without_counters(devices: Sequence[Offer]) -> tuple[list[Offer], list[DeviceKind]]:
    """Nothing keeps two devices of one GPU apart then, so only what cannot collide is published."""
    dropped = []
    remaining = [offer for offer in devices if offer.kind is not DeviceKind.MIG or offer.existing is not None]
    if len(remaining) < len(devices):
        dropped.append(DeviceKind.MIG)
    others = [offer for offer in remaining if offer.kind is not DeviceKind.VFIO]
    if others and len(others) < len(remaining):
        dropped.append(DeviceKind.VFIO)
        remaining = others
    return remaining, dropped


def _with_shares(devices: Sequence[Offer], features: ServerFeatures) -> tuple[list[Offer], list[SharingRule]]:
    """Shares in the form that the cluster has, and the rules that cannot be followed for want of one."""
    if features.consumable:
        return [offer for offer in devices if offer.share is None], []
    shared = {_place(offer) for offer in devices if offer.share is not None}
    alone = {
        id(offer.sharing): offer.sharing
        for offer in devices
        if offer.sharing is not None and _place(offer) not in shared
    }
    separate = [
        offer if offer.share is not None else replace(offer, sharing=None)
        for offer in devices
        if offer.share is not None or _place(offer) not in shared or features.partitionable
    ]
    return separate, list(alone.values())


def _place(offer: Offer) -> object:
    return offer.kind, offer.partition


@dataclass(frozen=True, slots=True)
class DescribedGpu:
    """The devices of one GPU, which exclude each other by `counters` where they need to."""

    devices: tuple[Device, ...]
    counters: CounterSet | None = None
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Description:
    """One node's pool, GPU after GPU. `notes` says what is not published, or not as it is, and why."""

    gpus: tuple[DescribedGpu, ...]
    notes: tuple[Note, ...]

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(device for gpu in self.gpus for device in gpu.devices)


def described_devices(
    inventory: NodeInventorySpec,
    policy: PublishingPolicy,
    labels: Mapping[str, str],
    driver_name: str,
    features: ServerFeatures,
) -> Description:
    """The devices that `inventory`'s node offers. `labels` are the node's; only the policy looks at them."""
    offered = offers(inventory, policy, labels)
    healthy, notes = _usable(offered.offers, policy, features)
    node = inventory.node_name

    def rule_of(gpu: GpuFacts, kind: DeviceKind) -> object:
        find = policy.passthrough_rule if kind is DeviceKind.VFIO else policy.mig_rule
        return find(node, labels, gpu)

    chosen, more_notes = publishable(healthy, features, rule_of)
    attributes = DeviceAttributes(inventory, policy, labels, driver_name, features.list_attributes)
    view = _View(attributes, features)
    gpus = [view.gpu(list(group)) for _, group in groupby(chosen, key=lambda offer: offer.gpu.uuid)]
    return Description(tuple(gpus), (*offered.notes, *notes, *more_notes, *view.notes))


def _usable(
    offered: Sequence[Offer], policy: PublishingPolicy, features: ServerFeatures
) -> tuple[list[Offer], list[Note]]:
    """Devices that are not healthy are published with a taint; where there can be none, they are not published."""
    results: list[Offer] = []
    notes: list[Note] = []
    for offer in offered:
        reason = _illness(offer, policy, features)
        if reason is None:
            results.append(offer)
        else:
            text = f"not published because {reason}"
            notes.append(Note(LimitationCause.UNHEALTHY, text, offer.gpu, device=offer.name))
    return results, notes


def _illness(offer: Offer, policy: PublishingPolicy, features: ServerFeatures) -> str | None:
    health = offer.gpu.health
    if not health.healthy and not health.conditions:
        return health.message or health.reason or "it is not healthy"
    condition = None if features.taints else worst(_conditions(offer), policy.health)
    return None if condition is None else condition.message or condition.type


def _conditions(offer: Offer) -> tuple[HealthCondition, ...]:
    """What happened to the device. A partition that is made on demand is new each time."""
    return affecting(offer.gpu.health.conditions, _instance(offer))


def _instance(offer: Offer) -> str | None:
    """UUID of the MIG device; empty for a partition that is made on demand, None for a GPU."""
    if offer.kind is not DeviceKind.MIG:
        return None
    return offer.existing.uuid if offer.existing is not None else ""


@dataclass
class _View:
    """Of the offers of one node, as devices."""

    attributes: DeviceAttributes
    features: ServerFeatures
    notes: list[Note] = field(default_factory=list)
    _known_taints: dict[tuple[str, str | None], list[Taint]] = field(default_factory=dict)
    """By GPU and instance: a GPU can have hundreds of partitions that feel the same."""

    def gpu(self, published: Sequence[Offer]) -> DescribedGpu:
        gpu = published[0].gpu
        counters = gpu_counters(gpu, published) if self.features.partitionable else None
        crowded: dict[str, None] = {}
        devices = tuple(self._device(offer, counters, crowded) for offer in published)
        self._note_crowded(gpu, crowded)
        if counters is None:
            return DescribedGpu(devices, None, gpu.uuid)
        return DescribedGpu(devices, CounterSet(name=counters.name, counters=_amounts(counters.totals)), gpu.uuid)

    def _device(self, offer: Offer, counters: GpuCounters | None, crowded: dict[str, None]) -> Device:
        """Adds the attributes that find no room to `crowded`."""
        capacity = device_capacity(offer)
        attributes, dropped = self.attributes.of(offer, capacity)
        for attribute in dropped:
            crowded[attribute] = None
        return Device(
            name=offer.name,
            attributes=attributes,
            capacity=capacity,
            consumes_counters=_consumed(counters, offer.name),
            taints=self._taints(offer) or None,
            allow_multiple_allocations=True if offer.sharing is not None and offer.share is None else None,
            binding_conditions=[BINDING_READY] if self._binds(offer) else None,
            binding_failure_conditions=[BINDING_FAILED] if self._binds(offer) else None,
        )

    def _binds(self, offer: Offer) -> bool:
        """Whether the node must prepare the device before a pod is bound, because that can fail."""
        prepares = self.features.binding and self.attributes.inventory.prepares_for_binding is True
        return prepares and offer.kind is DeviceKind.MIG and offer.existing is None

    def _taints(self, offer: Offer) -> list[Taint]:
        if not self.features.taints:
            return []
        key = offer.gpu.uuid, _instance(offer)
        if key not in self._known_taints:
            policy, driver = self.attributes.policy, self.attributes.driver_name
            results = taints(_conditions(offer), policy.health, driver)
            if policy.changes_later(offer.gpu):
                results.append(Taint(key=f"{driver}/{WAITING_TAINT}", value="Waiting", effect="NoSchedule"))
            if not self.features.counters_apart:  # Servers of Kubernetes 1.34 refuse a taint without an effect.
                results = [taint for taint in results if taint.effect != "None"]
            self._known_taints[key] = results
        return self._known_taints[key]

    def _note_crowded(self, gpu: GpuFacts, attributes: Iterable[str]) -> None:
        """One note for each rule, and one for all of our own attributes."""
        names: dict[int, list[str]] = {}
        rules = {attribute: self._rule_of(gpu, attribute) for attribute in attributes}
        for attribute, rule in rules.items():
            names.setdefault(id(rule), []).append(attribute)
        for own in names.values():
            text = f"some devices have no room for attributes {', '.join(sorted(own))}"
            self.notes.append(Note(LimitationCause.NO_ROOM_FOR_ATTRIBUTE, text, gpu, rules[own[0]]))

    def _rule_of(self, gpu: GpuFacts, attribute: str) -> AttributeRule | None:
        """The rule that asks for the attribute; None for one of our own."""
        of = self.attributes
        names = (attribute, f"{of.driver_name}/{attribute}")
        for rule in reversed(of.policy.attributes):
            if not rule.values.keys().isdisjoint(names) and rule.matches(of.inventory.node_name, of.labels, gpu):
                return rule
        return None


def _consumed(counters: GpuCounters | None, device: str) -> list[CounterConsumption] | None:
    amounts = counters.consumption.get(device) if counters is not None else None
    if counters is None or amounts is None:
        return None
    return [CounterConsumption(counter_set=counters.name, counters=_amounts(amounts))]


def _amounts(amounts: Amounts) -> dict[str, Capacity]:
    return {name: plain_capacity(name, amount) for name, amount in sorted(amounts.items())}
