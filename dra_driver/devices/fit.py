"""Whether a config fits the devices that it is for. Pure; asked by prepare, and by checks before there is a pod.

A config can be right in itself and still ask for what a GPU cannot do, name devices that the claim does not have, or
contradict the policy by which a device is shared. Such a config is refused, before anything is changed. What is
accepted and has no effect is a warning.
"""

from collections.abc import Sequence

from dra_driver.api.config import DeviceConfig, GpuConfig, MigDeviceConfig, Mps, Sharing, TimeSlicing, VfioDeviceConfig
from dra_driver.api.opaque import Problems
from dra_driver.api.policy import SharingRule
from dra_driver.devices.exclusion import PlannedUse, unsupported, without_effect
from dra_driver.devices.model import DeviceKind, Offer
from dra_driver.errors import InvalidConfig
from dra_driver.quantity import Quantity

CONFIG_KIND: dict[DeviceKind, type[DeviceConfig]] = {
    DeviceKind.GPU: GpuConfig,
    DeviceKind.MIG: MigDeviceConfig,
    DeviceKind.VFIO: VfioDeviceConfig,
}
"""The kind of config that devices of a kind take; without arguments it is their default."""


def identity(offer: Offer) -> str:
    """What a config names a device by: its UUID, or its name while it has none, as MIG devices made on demand."""
    if offer.kind is not DeviceKind.MIG:
        return offer.gpu.uuid
    return offer.name if offer.existing is None else offer.existing.uuid


def checked_against(config: DeviceConfig, devices: Sequence[Offer]) -> tuple[str, ...]:
    """Warnings about a config for these devices: all of one claim that it applies to, but those for admin access.

    `sharing` of a device is None where the claim was given all of it, even if the policy shares it.

    Raises InvalidConfig (final) with every way in which the config does not fit one of them. The field is counted from
    the kind (`GpuConfig.sharing...`), because it may have come from any of several configs.
    """
    if not isinstance(config, GpuConfig | MigDeviceConfig) or (sharing := config.sharing) is None:
        return ()
    path = f"{config.kind}.sharing"
    problems: Problems = []
    warnings: list[str] = []
    for device in devices:
        problems += _misfits(sharing, device, path)
        warnings += _idle(sharing, device)
    if sharing.mps is not None:
        problems += _unknown_devices(sharing.mps, devices, path)
        warnings += _idle_limits(sharing.mps, devices)
    if problems:
        raise InvalidConfig.of_all(problems)
    return tuple(warnings)


def _misfits(sharing: Sharing, device: Offer, path: str) -> Problems:
    problems: Problems = []
    mps = sharing.mps
    multi_user, limits = (mps.multi_user, mps.limited) if mps is not None else (False, False)
    if reason := unsupported(device.gpu, PlannedUse(device.kind, sharing.strategy, multi_user, limits)):
        message = f"strategy {sharing.strategy} is not possible on {device.name}: {reason}"
        problems.append(InvalidConfig(message, field=path))
    if device.sharing is not None and sharing != _of_policy(device.sharing):
        offered = "by time-slicing" if device.sharing.strategy == "TimeSlicing" else "by MPS"
        message = (
            f"{device.name} is shared {offered} with other claims, with the settings of the publishing policy;"
            " leave `sharing` out"
        )
        problems.append(InvalidConfig(message, field=path))
    return problems


def _of_policy(rule: SharingRule) -> Sharing:
    """The only config that changes nothing about a shared device."""
    if rule.strategy == "TimeSlicing":
        return Sharing("TimeSlicing", time_slicing=TimeSlicing(rule.interval or "Default"))
    return Sharing("MPS", mps=Mps(multi_user=rule.multi_user))


def _unknown_devices(mps: Mps, devices: Sequence[Offer], path: str) -> Problems:
    """A limit for a device that is not there would give a false sense of safety."""
    known = [identity(device) for device in devices]
    named = ", ".join(f"`{index}` or `{uuid}`" for index, uuid in enumerate(sorted(known)))
    return [
        InvalidConfig(
            f"is none of the devices that the config is for; they are {named}; `*` is all",
            field=f"{path}.mpsConfig.defaultPerDevicePinnedMemoryLimit[{key}]",
        )
        for key in mps.strangers(known)
    ]


def _idle(sharing: Sharing, device: Offer) -> list[str]:
    sets_interval = sharing.time_slicing is not None and sharing.time_slicing.interval != "Default"
    reason = without_effect(device.gpu, PlannedUse(device.kind, sharing.strategy, sets_interval=sets_interval))
    return [] if reason is None else [f"{device.name}: the interval has no effect: {reason}"]


def _idle_limits(mps: Mps, devices: Sequence[Offer]) -> list[str]:
    limits = dict(mps.memory_limits([identity(device) for device in devices]))
    warnings = []
    for device in devices:
        limit, memory = limits.get(identity(device)), device.memory_bytes
        if limit is not None and memory is not None and limit > memory:
            amounts = f"{Quantity.of_bytes(limit)}, and the device has {Quantity.of_bytes(memory)}"
            warnings.append(f"{device.name}: the memory limit has no effect: it is {amounts}")
    return warnings
