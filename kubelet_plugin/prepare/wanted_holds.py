"""What must be so on the hardware for the devices of a claim, as holds (`kubelet_plugin.prepare.holds`). Pure.

`kubelet_plugin.prepare.wanted` enters here when everything that the claim says was found right:

    a full GPU                          nothing
    … with TimeSlicing                  TimeSlice
    … with MPS                          ComputeMode exclusive of each GPU, one MpsDaemon for all with the same config
    a MIG device that exists            nothing
    a MIG device that is made           MigMode, GpuInstance, ComputeInstance
    … either with MPS                   and an MpsDaemon of its own
    a share by policy                   as above, with an MpsDaemon that belongs to the device and not to the claim
    a GPU for a virtual machine         VfioBinding

Admin access looks at a device and changes nothing: it never makes a hold.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dra_driver.api.config import DeviceConfig, GpuConfig, MigDeviceConfig, VfioDeviceConfig
from dra_driver.api.resource import AllocatedDevice
from dra_driver.api.sharing import Mps, Sharing
from dra_driver.devices.fit import identity
from dra_driver.devices.model import Kind, Offer
from dra_driver.errors import NodeNotReady
from dra_driver.names import ClaimRef, is_dns_label
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    ComputeMode,
    GpuIdentity,
    GpuInstance,
    Hold,
    MigDevice,
    MigMode,
    MpsDaemon,
    TimeSlice,
    VfioBinding,
)


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
    """What tells the MPS daemon of a device from others; None when it has none."""
    rule, sharing = result.offer.sharing, result.sharing
    if result.admin_access:
        return None
    if rule is not None:
        return _key_of_device(result.offer) if rule.strategy == "MPS" else None
    if sharing is None or sharing.mps is None:
        return None
    return result.config if result.offer.kind is Kind.GPU else _key_of_device(result.offer)


def holds_of(asked: ClaimRef, results: Sequence[Result]) -> Iterator[Hold]:
    for result in results:
        if not result.admin_access:
            yield from _of_hardware(result)
            yield from _of_policy(result)
    for _, group in by_config(results):
        exclusive = [result for result in group if result.offer.sharing is None]
        yield from _of_config(asked, exclusive)


def _of_hardware(result: Result) -> Iterator[Hold]:
    gpu = _identity(result.offer)
    if result.offer.kind is Kind.VFIO:
        config = result.config
        preferred = isinstance(config, VfioDeviceConfig) and config.iommu.backend_policy == "PreferIommuFD"
        yield VfioBinding(gpu, preferred)
    if result.offer.kind is Kind.MIG and result.offer.existing is None:
        device = _mig_device(result.offer)
        assert isinstance(device, ComputeInstance)
        yield from (MigMode(gpu), device.parent, device)


def _of_policy(result: Result) -> Iterator[Hold]:
    offer, rule = result.offer, result.offer.sharing
    if rule is None:
        return
    gpu = _identity(offer)
    if rule.strategy == "TimeSlicing" and rule.interval is not None and offer.kind is Kind.GPU:
        yield TimeSlice(gpu, rule.interval)
    if rule.strategy == "MPS":
        if offer.kind is Kind.GPU:
            yield ComputeMode(gpu, 3)
        yield MpsDaemon(_key_of_device(offer), (gpu,), _mig_device(offer), multi_user=rule.multi_user)


def _of_config(asked: ClaimRef, group: Sequence[Result]) -> Iterator[Hold]:
    """Of devices with one config that the claim has for itself."""
    sharing = group[0].sharing if group else None
    if sharing is None:
        return
    if sharing.time_slicing is not None:
        for result in group:
            if result.offer.kind is Kind.GPU:
                yield TimeSlice(_identity(result.offer), sharing.time_slicing.interval)
    if sharing.mps is not None:
        limits = dict(sharing.mps.memory_limits([identity(result.offer) for result in group]))
        if group[0].offer.kind is Kind.GPU:
            yield from _for_gpus(asked, [result.offer for result in group], sharing.mps, limits)
        else:
            for result in group:
                yield _for_mig(asked, result.offer, sharing.mps, limits)


def _for_gpus(asked: ClaimRef, offers: Sequence[Offer], mps: Mps, limits: Mapping[str, int]) -> Iterator[Hold]:
    gpus = tuple(sorted(_identity(offer) for offer in offers))
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
        (_identity(offer),),
        _mig_device(offer),
        multi_user=mps.multi_user,
        thread_percentage=mps.default_active_thread_percentage,
        memory_limits=() if limit is None else (("mig", limit),),
    )


def _identity(offer: Offer) -> GpuIdentity:
    return GpuIdentity(offer.gpu.uuid, offer.gpu.pci_bus_id)


def _mig_device(offer: Offer) -> MigDevice | None:
    """The UUID of one that exists, what is to be made of one that does not; None of a full GPU."""
    place = offer.partition
    if place is None:
        return None
    if offer.existing is not None:
        return offer.existing.uuid
    if offer.profile is None:
        raise NodeNotReady(f"the driver does not report the profile {place.profile} now", about=f"device {offer.name}")
    parent = GpuInstance(_identity(offer), place.profile, offer.profile.id, place.start, place.size)
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
