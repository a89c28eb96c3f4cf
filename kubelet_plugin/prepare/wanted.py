"""From a claim and this node's offers to the claim's devices and the holds that they need on the hardware. Pure.

The service enters here with the claim's object. Only the claim, its configs and the node's table of offers decide. All
mistakes of the user are found here, before anything is changed.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dra_driver.api.config import DeviceConfig, GpuConfig, MigDeviceConfig, Mps, Sharing, VfioDeviceConfig
from dra_driver.api.inventory import FABRIC_MANAGER_SUBJECT, GpuFacts
from dra_driver.api.opaque import ListedConfig, config_for, listed_configs
from dra_driver.api.policy import SharingRule
from dra_driver.api.resource import AllocatedDevice, ResourceClaim
from dra_driver.cdi.edits import cdi_device_id
from dra_driver.devices.exclusion import PlannedUse, conflict, unsupported
from dra_driver.devices.fit import CONFIG_KIND, checked_against, identity
from dra_driver.devices.model import DeviceKind, Offer
from dra_driver.errors import InvalidConfig, InvalidInput, NodeNotReady, UnknownDevice
from dra_driver.features import Feature, check_strategy
from dra_driver.names import PARTITION_SIZES, ClaimRef, RequestName, is_dns_label, is_dns_subdomain, is_uid
from dra_driver.phrases import and_more
from dra_driver.quantity import Quantity
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    ComputeMode,
    FabricPartition,
    GpuIdentity,
    GpuInstance,
    Hold,
    MigDevice,
    MigMode,
    MpsDaemon,
    TimeSlice,
    VfioBinding,
    in_order,
)
from kubelet_plugin.prepare.known_node import KnownNode
from kubelet_plugin.prepare.lifecycle import BindingStage, ClaimMetadata, HeldDevice, SharedUse
from kubelet_plugin.prepare.metadata import wanted_metadata


@dataclass(frozen=True, slots=True)
class Result:
    """An allocation result with what it leads to. `offer.sharing` is None when the claim has the device for itself."""

    place: str
    allocated: AllocatedDevice
    offer: Offer
    config: DeviceConfig

    @property
    def admin_access(self) -> bool:
        return self.allocated.admin_access is True

    @property
    def sharing(self) -> Sharing | None:
        """What the config says; nothing for admin access."""
        config = self.config
        if self.admin_access or not isinstance(config, GpuConfig | MigDeviceConfig):
            return None
        return config.sharing


def by_config(results: Sequence[Result]) -> Iterator[tuple[DeviceConfig, list[Result]]]:
    """Devices with the same config, of the same kind: they have one MPS daemon, and one numbering for its limits."""
    groups: dict[DeviceConfig, list[Result]] = {}
    for result in results:
        if not result.admin_access:
            groups.setdefault(result.config, []).append(result)
    yield from groups.items()


def daemon_of(result: Result) -> object | None:
    """The key of a device's MPS daemon; None when it has none."""
    rule, sharing = result.offer.sharing, result.sharing
    if result.admin_access:
        return None
    if rule is not None:
        return _key_of_device(result.offer) if rule.strategy == "MPS" else None
    if sharing is None or sharing.mps is None:
        return None
    return result.config if result.offer.kind is DeviceKind.GPU else _key_of_device(result.offer)


def holds_of(asked: ClaimRef, results: Sequence[Result]) -> Iterator[Hold]:
    for result in results:
        if not result.admin_access:
            yield from _of_hardware(result)
            yield from _of_policy(result)
    for _, group in by_config(results):
        exclusive = [result for result in group if result.offer.sharing is None]
        yield from _of_config(asked, exclusive)


def _of_hardware(result: Result) -> Iterator[Hold]:
    gpu = GpuIdentity.of(result.offer.gpu)
    if result.offer.kind is DeviceKind.VFIO:
        config = result.config
        preferred = isinstance(config, VfioDeviceConfig) and config.iommu.backend_policy == "PreferIommuFD"
        yield VfioBinding(gpu, preferred)
    if result.offer.kind is DeviceKind.MIG and result.offer.existing is None:
        device = _mig_device(result.offer)
        assert isinstance(device, ComputeInstance)
        yield from (MigMode(gpu), device.parent, device)


def _of_policy(result: Result) -> Iterator[Hold]:
    offer, rule = result.offer, result.offer.sharing
    if rule is None:
        return
    gpu = GpuIdentity.of(offer.gpu)
    if rule.strategy == "TimeSlicing" and rule.interval is not None and offer.kind is DeviceKind.GPU:
        yield TimeSlice(gpu, rule.interval)
    if rule.strategy == "MPS":
        if offer.kind is DeviceKind.GPU:
            yield ComputeMode(gpu, 3)
        yield MpsDaemon(_key_of_device(offer), (gpu,), _mig_device(offer), multi_user=rule.multi_user)


def _of_config(asked: ClaimRef, group: Sequence[Result]) -> Iterator[Hold]:
    """Of devices with one config that the claim has for itself."""
    sharing = group[0].sharing if group else None
    if sharing is None:
        return
    if sharing.time_slicing is not None:
        for result in group:
            if result.offer.kind is DeviceKind.GPU:
                yield TimeSlice(GpuIdentity.of(result.offer.gpu), sharing.time_slicing.interval)
    if sharing.mps is not None:
        limits = dict(sharing.mps.memory_limits([identity(result.offer) for result in group]))
        if group[0].offer.kind is DeviceKind.GPU:
            yield from _for_gpus(asked, [result.offer for result in group], sharing.mps, limits)
        else:
            for result in group:
                yield _for_mig(asked, result.offer, sharing.mps, limits)


def _for_gpus(asked: ClaimRef, offers: Sequence[Offer], mps: Mps, limits: Mapping[str, int]) -> Iterator[Hold]:
    gpus = tuple(sorted(GpuIdentity.of(offer.gpu) for offer in offers))
    yield from (ComputeMode(gpu, 3) for gpu in gpus)
    yield MpsDaemon(
        _key_of_claim(asked, [gpu.uuid for gpu in gpus]),
        gpus,
        multi_user=mps.multi_user,
        thread_percentage=mps.default_active_thread_percentage,
        memory_limits=tuple(sorted(limits.items())),
    )


def _for_mig(asked: ClaimRef, offer: Offer, mps: Mps, limits: Mapping[str, int]) -> MpsDaemon:
    limit = limits.get(identity(offer))
    return MpsDaemon(
        _key_of_claim(asked, [identity(offer)]),
        (GpuIdentity.of(offer.gpu),),
        _mig_device(offer),
        multi_user=mps.multi_user,
        thread_percentage=mps.default_active_thread_percentage,
        memory_limits=() if limit is None else (("mig", limit),),
    )


def _mig_device(offer: Offer) -> MigDevice | None:
    """The UUID of a MIG device that exists, the hold of one that must be made; None for a full GPU."""
    place = offer.partition
    if place is None:
        return None
    if offer.existing is not None:
        return offer.existing.uuid
    if offer.profile is None:
        raise NodeNotReady(f"the driver does not report the profile {place.profile} now", about=f"device {offer.name}")
    parent = GpuInstance(GpuIdentity.of(offer.gpu), place.profile, offer.profile.id, place.start, place.size)
    return ComputeInstance(parent, place.compute_slices, place.compute_start)


def _key_of_device(offer: Offer) -> str:
    """From the hardware, not from the published name: that may change while claims have shares."""
    if offer.existing is not None:
        return offer.existing.uuid.lower()
    place = offer.partition
    if place is None:
        return offer.gpu.uuid.lower()
    part = "" if place.compute_slices is None else f"-{place.compute_slices}c{place.compute_start}"
    return f"{offer.gpu.uuid.lower()}-{place.size}at{place.start}{part}"


def _key_of_claim(asked: ClaimRef, devices: Sequence[str]) -> str:
    digest = hashlib.sha256("\n".join([asked.uid, *sorted(devices)]).encode()).hexdigest()
    key = f"{asked.uid}-{digest[:5]}"
    return key if is_dns_label(key) else f"claim-{digest[:20]}"


_RESULTS = "status.allocation.devices.results"
_MOST_NAMES = 16


@dataclass(frozen=True, slots=True)
class WantedClaim:
    """What a claim was allocated: one device for each result, in their order; and its holds, in the order of making.

    `warnings` are sentences about settings of the claim that have no effect.
    """

    devices: tuple[HeldDevice, ...]
    holds: tuple[Hold, ...] = ()
    warnings: tuple[str, ...] = ()
    metadata: ClaimMetadata | None = None
    """None: its containers get no device metadata."""
    binding: BindingStage = BindingStage.NONE


def well_formed(asked: ClaimRef) -> ClaimRef:
    """`asked` if there can be such a claim: its parts go into URLs and file names. Raises InvalidInput."""
    parts = (
        ("metadata.namespace", asked.namespace, is_dns_label, "the name of a namespace"),
        ("metadata.name", asked.name, is_dns_subdomain, "the name of a claim"),
        ("metadata.uid", asked.uid, is_uid, "the UID of an object"),
    )
    for place, value, is_right, what in parts:
        if not is_right(value):
            raise InvalidInput(f"{value[:80]!r} cannot be {what}", about=str(asked), field=place)
    return asked


def checked(claim: ResourceClaim | None, asked: ClaimRef) -> ResourceClaim:
    """`claim` if it is the object that kubelet asked for, and allocated. Raises InvalidInput."""
    if claim is None:
        raise InvalidInput("no longer exists; there is nothing to prepare", about=str(asked))
    if claim.metadata.uid != asked.uid:
        raise InvalidInput(
            f"has UID {claim.metadata.uid}, kubelet asked for UID {asked.uid}: the claim was deleted and created again;"
            " a pod that uses the new claim is prepared by itself",
            about=str(asked),
            field="metadata.uid",
        )
    if claim.status.allocation is None:
        raise InvalidInput(
            "is not allocated; the scheduler allocates it for a pod, and the kubelet tries again",
            about=str(asked),
            field="status.allocation",
        )
    return claim


def wanted_of(claim: ResourceClaim, asked: ClaimRef, node: KnownNode) -> WantedClaim:
    """The devices of this driver that the claim was allocated, and what must be made for them.

    Raises InvalidInput, InvalidConfig, UnknownDevice or NodeNotReady; each names the claim and the field.
    """
    allocation = checked(claim, asked).status.allocation
    assert allocation is not None
    ours = [
        (f"{_RESULTS}[{index}]", result)
        for index, result in enumerate(allocation.devices.results)
        if result.driver == node.driver
    ]
    if not ours:
        raise InvalidInput(
            f"has no device of driver {node.driver} in its allocation; this node's plugin serves no other",
            about=str(asked),
            field=_RESULTS,
        )
    configs = listed_configs(allocation.devices.config, node.driver, claim.spec.devices)
    results, warnings = _results(asked, ours, configs, node)
    devices = tuple(_device(asked, result, node) for result in results)
    _check_distinct(asked, devices)
    _check_one_daemon(asked, results)
    whole = [result.offer.gpu for result in results if result.offer.partition is None and not result.admin_access]
    fabric = partition_of(asked, whole, node, field=_RESULTS)
    holds = [*holds_of(asked, results), *([fabric] if fabric is not None else [])]
    metadata, ignored = wanted_metadata(claim, node)
    binds = any(result.binding_conditions for _, result in ours)
    stage = BindingStage.ASKED if binds else BindingStage.NONE
    return WantedClaim(devices, in_order(holds), (*warnings, *ignored), metadata, stage)


def _results(
    asked: ClaimRef, ours: Sequence[tuple[str, AllocatedDevice]], configs: Sequence[ListedConfig], node: KnownNode
) -> tuple[list[Result], tuple[str, ...]]:
    """And what is accepted but has no effect."""
    offers = [_offer(asked, place, result, node) for place, result in ours]
    try:
        results = [
            Result(place, result, offer, _config(result, offer, configs))
            for (place, result), offer in zip(ours, offers, strict=True)
        ]
        warnings: list[str] = []
        for config, devices in by_config(results):
            warnings += checked_against(config, [device.offer for device in devices])
        for result in results:
            _check_passthrough(result)
            if result.sharing is not None:
                check_strategy(result.sharing.strategy, node.gates, field=f"{result.place}.device")
    except InvalidConfig as error:
        raise InvalidConfig(error.message, about=str(asked), field=error.field, problems=error.problems) from error
    return results, tuple(warnings)


def _config(result: AllocatedDevice, offer: Offer, configs: Sequence[ListedConfig]) -> DeviceConfig:
    kind: type[Any] = CONFIG_KIND[offer.kind]
    config: DeviceConfig = config_for(RequestName.of(result.request), configs, kind)
    return config


def _check_passthrough(result: Result) -> None:
    if result.offer.kind is DeviceKind.VFIO and not result.admin_access:
        reason = unsupported(result.offer.gpu, PlannedUse(DeviceKind.VFIO))
        if reason is not None:
            raise InvalidConfig(f"{result.offer.name}: {reason}", field=f"{result.place}.device")


def _offer(asked: ClaimRef, place: str, result: AllocatedDevice, node: KnownNode) -> Offer:
    if result.pool != node.pool:
        raise InvalidInput(
            f"device {result.device} is in pool {result.pool}; this is node {node.pool}, which has its own pool only",
            about=str(asked),
            field=f"{place}.pool",
        )
    offer = node.table().get(result.device)
    if offer is None:
        raise _unknown(asked, place, result.device, node)
    # Without consumable capacity the server gives a shared device to one claim, and says so by naming no share.
    alone = offer.sharing is None or offer.share is not None or result.share_id is not None
    return offer if alone else replace(offer, sharing=None)


def _unknown(asked: ClaimRef, place: str, device: str, node: KnownNode) -> UnknownDevice | NodeNotReady:
    """A device that may be among those that cannot be read now is worth another try; any other is not."""
    about, field_path = str(asked), f"{place}.device"
    hiding = [problem for problem in node.problems if problem.subject == "driver" or problem.subject.startswith("GPU ")]
    if hiding:
        reasons = "; ".join(f"{problem.subject}: {problem.message}" for problem in hiding)
        return NodeNotReady(
            f"device {device} cannot be found on node {node.pool}, which has problems: {reasons}",
            about=about,
            field=field_path,
        )
    if node.undecided:
        return NodeNotReady(
            f"device {device} cannot be found on node {node.pool} until the publisher has decided what holds for"
            f" {', '.join(node.undecided)}; the kubelet tries again",
            about=about,
            field=field_path,
        )
    names = sorted(node.table())
    return UnknownDevice(
        f"node {node.pool} has no device {device}; it has {and_more(names, _MOST_NAMES) or 'none'}."
        " Delete the pod and its claim, so that the claim is allocated again",
        about=about,
        field=field_path,
    )


def _device(asked: ClaimRef, result: Result, node: KnownNode) -> HeldDevice:
    allocated, offer = result.allocated, result.offer
    existing = offer.existing
    request = _request(asked, result)
    return HeldDevice(
        request_names=(request.request,),
        pool=allocated.pool,
        device=allocated.device,
        gpu_uuid=offer.gpu.uuid,
        pci_bus_id=offer.gpu.pci_bus_id,
        cdi_ids=(cdi_device_id(node.driver, asked.uid, allocated.device, allocated.share_id),),
        admin_access=result.admin_access,
        share_id=allocated.share_id,
        kind=offer.kind,
        partition=offer.partition,
        mig_uuid=existing.uuid if existing is not None else None,
        gpu_instance=_instance_text(offer) if existing is not None else "",
        vfio_api=isinstance(result.config, VfioDeviceConfig) and result.config.iommu.enable_api_device,
        sharing=None if result.admin_access else _sharing(asked, result, node),
        alternative=request.alternative or "",
    )


def _request(asked: ClaimRef, result: Result) -> RequestName:
    """Its parts go into file names."""
    request = RequestName.of(result.allocated.request)
    if all(part is None or is_dns_label(part) for part in (request.request, request.alternative)):
        return request
    raise InvalidInput(
        f"{result.allocated.request[:80]!r} cannot be the name of a request",
        about=str(asked),
        field=f"{result.place}.request",
    )


def _instance_text(offer: Offer) -> str:
    """The GPU instance of a MIG device that exists, with nothing else in it."""
    existing = offer.existing
    instances = offer.gpu.mig.instances if offer.gpu.mig is not None else []
    for instance in instances:
        if existing is not None and any(
            compute_instance.uuid == existing.uuid for compute_instance in instance.compute_instances
        ):
            return instance.model_copy(update={"compute_instances": [existing]}).model_dump_json(by_alias=True)
    return ""


def _sharing(asked: ClaimRef, result: Result, node: KnownNode) -> SharedUse | None:
    rule = result.offer.sharing
    if rule is not None:
        threads, memory = _amounts(asked, result, rule, node)
        return SharedUse(rule.shares_by, True, result.offer.share, _settings(rule), threads, memory)
    sharing = result.sharing
    if sharing is None:
        return None
    interval = sharing.time_slicing.interval if sharing.time_slicing is not None else None
    return SharedUse(sharing.strategy, settings=f"time slice {interval}" if interval is not None else "")


def _settings(rule: SharingRule) -> str:
    if rule.interval is not None:
        return f"time slice {rule.interval}"
    return "MPS for several users" if rule.multi_user else ""


def _amounts(asked: ClaimRef, result: Result, rule: SharingRule, node: KnownNode) -> tuple[int | None, int | None]:
    """What a share has of its device at most: percent of threads, bytes of memory; None where nothing limits it."""
    if not rule.enforced:
        return None, None
    if rule.replicas is not None:
        shares = int(_consumed(result, "shares", node) or 1)
        threads = max(1, 100 * shares // rule.replicas)
        # Where memory is consumed, the scheduler counts on everybody having just that.
        if consumed := _consumed(result, "memory", node):
            return threads, consumed
        memory = result.offer.memory_bytes
        return threads, None if memory is None else memory * shares // rule.replicas
    amounts: dict[str, int] = {}
    for name in rule.capacity or ():
        amount = _consumed(result, name, node)
        if amount is None:
            raise InvalidInput(
                f"does not say how much of {name} of {result.offer.name} the claim has; delete the claim, so that it is"
                " allocated again",
                about=str(asked),
                field=f"{result.place}.consumedCapacity",
            )
        amounts[name] = int(amount)
    return amounts.get("cores"), amounts.get("memory")


def _consumed(result: Result, name: str, node: KnownNode) -> int | None:
    consumed = result.allocated.consumed_capacity or {}
    text = consumed.get(name) or consumed.get(f"{node.driver}/{name}")
    return None if text is None else int(Quantity.parse(text).value)


def _check_distinct(asked: ClaimRef, devices: Sequence[HeldDevice]) -> None:
    """A claim may have what two claims may have side by side."""
    held: list[HeldDevice] = []
    for device in devices:
        if device.admin_access:
            continue
        for other in held:
            reason = conflict(other.use, device.use)
            if reason is not None:
                what = f"{device.gpu_uuid} twice" if other.use == device.use else device.gpu_uuid
                raise InvalidInput(
                    f"is allocated {what}, as {other.device} and {device.device}: {reason};"
                    " delete the claim, so that it is allocated again",
                    about=str(asked),
                    field=_RESULTS,
                )
        held.append(device)


def _check_one_daemon(asked: ClaimRef, results: Sequence[Result]) -> None:
    """A container has all devices of a request and reaches one MPS daemon. The others' devices would not answer it."""
    daemons: dict[str, dict[object, str]] = {}
    for result in results:
        if (daemon := daemon_of(result)) is not None:
            request = RequestName.of(result.allocated.request).request
            daemons.setdefault(request, {})[daemon] = result.offer.name
    for request, devices in daemons.items():
        if len(devices) > 1:
            raise InvalidInput(
                f"request {request} has {', '.join(sorted(devices.values()))}, each with its own MPS daemon, but a"
                " container can use only one; request each separately, for a separate container",
                about=str(asked),
                field=_RESULTS,
            )


def partition_of(asked: ClaimRef, gpus: Iterable[GpuFacts], node: KnownNode, *, field: str) -> FabricPartition | None:
    """The fabric partition that consists of `gpus`, which are those that the claim uses as a whole; None where
    NVSwitches are not shared, and for no GPUs. MIG devices use no NVLink and are not counted.

    NVSwitches that are shared connect the GPUs of an active partition, and Fabric Manager offers certain sets of GPUs
    only, one of which these must be, as with kubernetes-sigs/dra-driver-nvidia-gpu.
    Raises InvalidInput when they form none, and NodeNotReady while the partitions are not known.
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    if not by_uuid or Feature.FABRIC_PARTITIONS not in node.gates:
        return None
    sets = [{(part.id, part.size) for part in gpu.fabric_partitions} for gpu in by_uuid.values()]
    if not any(sets):
        _check_known(asked, node, field)
        return None
    common = sorted(id_ for id_, size in set.intersection(*sets) if size == len(by_uuid))
    if not common:
        raise InvalidInput(_no_partition(list(by_uuid.values())), about=str(asked), field=field)
    return FabricPartition(common[0], tuple(sorted(map(GpuIdentity.of, by_uuid.values()))))


def _check_known(asked: ClaimRef, node: KnownNode, field: str) -> None:
    problem = next((known for known in node.problems if known.subject == FABRIC_MANAGER_SUBJECT), None)
    if problem is not None:
        raise NodeNotReady(f"may need a fabric partition, and {problem.message}", about=str(asked), field=field)


def _no_partition(gpus: list[GpuFacts]) -> str:
    names = ", ".join(sorted(gpu.name for gpu in gpus))
    count, sizes = len(gpus), sorted({part.size for gpu in gpus for part in gpu.fabric_partitions})
    if count in sizes and count in PARTITION_SIZES:
        way = (
            f"add the constraint `matchAttribute: gpu.nvidia.com/partition{count}` to the claim, for all requests of"
            " GPUs, and delete the pod and its claim, so that the claim is allocated again"
        )
    else:
        offered = ", ".join(map(str, sizes))
        way = f"request as many GPUs as a partition of this node has ({offered}), with matchAttribute on that partition"
    return f"{names} are not a fabric partition, so Fabric Manager cannot connect them; {way}"
