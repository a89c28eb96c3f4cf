"""Opaque configs: what users and DeviceClasses write for this driver's devices (`resource.nvidia.com/v1beta1`). Pure.

One model for each kind, for decoding (`dra_driver.api.opaque`) and for the JSON schemas of docs/schemas. Kinds and
fields have NVIDIA's spelling and defaults, so configs written for its own driver mean the same here. The docstrings of
fields are their descriptions in the schemas.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from dra_driver.api.meta import JsonObject
from dra_driver.errors import InvalidConfig
from dra_driver.names import is_uid
from dra_driver.quantity import Quantity

type SharingStrategy = Literal["TimeSlicing", "MPS"]
type Interval = Literal["Default", "Short", "Medium", "Long"]

MEBIBYTE = 2**20
_INT64 = 2**63
PER_DEVICE = "defaultPerDevicePinnedMemoryLimit"
"""The only map: a field whose keys are no fields."""
_UUID = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_QUANTITY: JsonObject = {
    "anyOf": [
        {
            "type": "string",
            "pattern": r"^\+?([0-9]+\.?[0-9]*|\.[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|[kMGTPE]|[eE]\+?[0-9]{1,3})?$",
        },
        {"type": "number", "minimum": MEBIBYTE, "exclusiveMaximum": _INT64},
    ]
}
ANY_PREFIX = "(GPU|MIG)"
"""In the schema of a device's UUID, until the kind of config is known."""
_LIMITS: JsonObject = {
    "type": "object",
    "propertyNames": {"pattern": rf"^(\*|0|[1-9][0-9]{{0,3}}|{ANY_PREFIX}-{_UUID})$"},
    "additionalProperties": _QUANTITY,
}
_WIRE_NAMES = {
    "time_slicing": "timeSlicingConfig",
    "mps": "mpsConfig",
    "per_device": PER_DEVICE,
    "enable_api_device": "enableAPIDevice",
    "domain_id": "domainID",
}


def wire_name(name: str) -> str:
    return _WIRE_NAMES.get(name) or to_camel(name)


def _memory(value: object) -> int:
    """Bytes of a quantity, rounded down to whole MiB, so that a limit never exceeds what was written. The API server
    takes quantities as numbers, too."""
    try:
        amount = Quantity.parse("" if isinstance(value, bool) else str(value)).value
    except ValueError:
        raise ValueError("must be a quantity of memory like `8Gi`") from None
    if amount < MEBIBYTE:
        bare = str(value)
        hint = f", and a number without a unit is in bytes (`{bare}Gi`?)" if bare.isdecimal() and bare != "0" else ""
        raise ValueError(f"must be at least `1Mi`{hint}")
    if amount >= _INT64:
        raise ValueError("must be less than `8Ei`")
    return int(amount // MEBIBYTE) * MEBIBYTE


def _device(key: str, info: ValidationInfo) -> str:
    if key == "*" or re.fullmatch(r"0|[1-9][0-9]{0,3}", key, re.ASCII):
        return key
    prefix, _, digits = key.partition("-")
    if prefix == info.context and re.fullmatch(_UUID, digits):
        return f"{prefix}-{digits.lower()}"
    raise ValueError(f"names no device; must be an index like `0`, a UUID like `{info.context}-…`, or `*`")


_Memory = Annotated[int, BeforeValidator(_memory), WithJsonSchema(_QUANTITY)]


@cache
def _limits_adapter() -> TypeAdapter[dict[str, int]]:
    return TypeAdapter(dict[Annotated[str, AfterValidator(_device)], _Memory])


def _limits(value: object, info: ValidationInfo) -> tuple[tuple[str, int], ...]:
    limits = _limits_adapter().validate_python(value, context=info.context)
    if isinstance(value, dict) and len(limits) < len(value):
        raise ValueError("names a device twice, in different spellings")
    return tuple(sorted(limits.items()))


def _uid(value: object) -> object:
    if not (isinstance(value, str) and is_uid(value)):
        raise ValueError("must be the UID of an object")
    return value


_CONFIG = ConfigDict(extra="forbid", alias_generator=wire_name)


@dataclass(frozen=True, slots=True)
class TimeSlicing:
    __pydantic_config__ = _CONFIG

    interval: Interval = "Default"
    """How long a program runs before the next one has its turn. MIG devices have no such setting."""


@dataclass(frozen=True, slots=True)
class Mps:
    __pydantic_config__ = _CONFIG

    default_active_thread_percentage: (
        Annotated[StrictInt, Field(ge=0, le=100), AfterValidator(lambda percent: percent or None)] | None
    ) = None
    """Percent of the device's threads that each program can have. 0, or left out: no limit."""
    default_pinned_device_memory_limit: _Memory | None = None
    """Device memory that each program can have, on every device that the config is for: a quantity of at least 1Mi,
    rounded down to whole MiB. Left out: no limit."""
    per_device: Annotated[tuple[tuple[str, int], ...], BeforeValidator(_limits), WithJsonSchema(_LIMITS)] = ()
    """The same for single devices: by index (in the claim's devices that the config is for, sorted by UUID), by UUID,
    or `*` for all others. Goes before defaultPinnedDeviceMemoryLimit."""
    multi_user: StrictBool = False
    """Programs of several users at once. Requires compute capability 7.0 (Volta) or newer."""

    @property
    def limited(self) -> bool:
        return bool(self.per_device) or not (
            self.default_active_thread_percentage is None and self.default_pinned_device_memory_limit is None
        )

    def memory_limits(self, uuids: Sequence[str]) -> tuple[tuple[str, int], ...]:
        """Bytes by UUID, sorted, of the devices that have a limit. `uuids` are those of all devices of the claim that
        the config is for. A UUID goes before an index, an index before `*`, and `*` before the default for all."""
        limits = dict(self.per_device)
        by_device = []
        for index, uuid in enumerate(sorted(uuids)):
            keys = (uuid, str(index), "*")
            limit = next((limits[key] for key in keys if key in limits), self.default_pinned_device_memory_limit)
            if limit is not None:
                by_device.append((uuid, limit))
        return tuple(by_device)

    def strangers(self, uuids: Sequence[str]) -> tuple[str, ...]:
        """Keys of `per_device` that are none of these devices: no limit would be set for them, so they are refused."""
        known = {"*", *uuids, *(str(index) for index in range(len(uuids)))}
        return tuple(key for key, _ in self.per_device if key not in known)


BLOCK_OF: dict[str, str] = {"TimeSlicing": "timeSlicingConfig", "MPS": "mpsConfig"}


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the programs of a claim share its device. Only the settings of the strategy are there."""

    __pydantic_config__ = ConfigDict(
        **_CONFIG,
        json_schema_extra={
            "allOf": [
                {
                    "if": {"properties": {"strategy": {"const": strategy}}, "required": ["strategy"]},
                    "then": {"properties": {block: {"type": "null"}}},
                }
                for strategy, block in zip(BLOCK_OF, reversed(BLOCK_OF.values()), strict=True)
            ]
        },
    )

    strategy: SharingStrategy
    """How the programs that use the claim share the device. A claim may leave it to the config of its class."""
    time_slicing: TimeSlicing | None = None
    """Settings of strategy TimeSlicing."""
    mps: Mps | None = None
    """Settings of strategy MPS."""


@dataclass(frozen=True, slots=True)
class Iommu:
    __pydantic_config__ = _CONFIG

    backend_policy: Literal["LegacyOnly", "PreferIommuFD"] = "LegacyOnly"
    """Which of the kernel's interfaces the container gets: the IOMMU group's, or IOMMUFD where the node has it."""
    enable_api_device: StrictBool = False
    """Whether the container also gets the interface's common device: /dev/vfio/vfio, or /dev/iommu."""


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """A config of one kind, complete: what applies to a device. The default applies when there is no config."""

    __pydantic_config__ = _CONFIG
    kind: ClassVar[str]
    devices: ClassVar[str]
    """The devices that it is for, in the plural."""
    uuid_prefix: ClassVar[str] = "GPU"


@dataclass(frozen=True, slots=True)
class GpuConfig(DeviceConfig):
    """For a full GPU. Without `sharing` nothing is set on the GPU."""

    kind: ClassVar[str] = "GpuConfig"
    devices: ClassVar[str] = "full GPUs"

    sharing: Sharing | None = None
    """Left out: nothing is set on the GPU."""


@dataclass(frozen=True, slots=True)
class MigDeviceConfig(DeviceConfig):
    """For a MIG device. TimeSlicing is accepted for compatibility with NVIDIA's driver; it sets nothing."""

    kind: ClassVar[str] = "MigDeviceConfig"
    devices: ClassVar[str] = "MIG devices"
    uuid_prefix: ClassVar[str] = "MIG"

    sharing: Sharing | None = None
    """Left out: nothing is set."""


@dataclass(frozen=True, slots=True)
class VfioDeviceConfig(DeviceConfig):
    """For a GPU that is passed to a virtual machine."""

    kind: ClassVar[str] = "VfioDeviceConfig"
    devices: ClassVar[str] = "GPUs passed to virtual machines"

    iommu: Iommu = Iommu()
    """How the virtual machine's process reaches the GPU."""


_DomainId = Annotated[str, BeforeValidator(_uid), WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 128})]


@dataclass(frozen=True, slots=True)
class ComputeDomainChannelConfig(DeviceConfig):
    """For a channel: which domain its container belongs to."""

    kind: ClassVar[str] = "ComputeDomainChannelConfig"
    devices: ClassVar[str] = "channels of a ComputeDomain"

    domain_id: _DomainId = ""  # left out, which `domain_of` refuses
    """UID of the ComputeDomain. The claim template that the controller creates for a domain contains it."""
    allocation_mode: Literal["Single", "All"] = "Single"
    """The one IMEX channel of the domain, or all channels that the driver has."""


@dataclass(frozen=True, slots=True)
class ComputeDomainDaemonConfig(DeviceConfig):
    """For the daemon of a domain on one of its nodes."""

    kind: ClassVar[str] = "ComputeDomainDaemonConfig"
    devices: ClassVar[str] = "daemons of a ComputeDomain"

    domain_id: _DomainId = ""
    """UID of the ComputeDomain. The claim template that the controller creates for a domain contains it."""


def domain_of(config: ComputeDomainChannelConfig | ComputeDomainDaemonConfig, *, field: str) -> str:
    """The UID of the domain. Raises InvalidConfig (final) when the config has none."""
    if not config.domain_id:
        raise InvalidConfig("is missing; must be the UID of a ComputeDomain", field=f"{field}.domainID")
    return config.domain_id


DEVICE_CONFIGS: tuple[type[DeviceConfig], ...] = (GpuConfig, MigDeviceConfig, VfioDeviceConfig)
"""The kinds for devices of `gpu.nvidia.com`."""

DOMAIN_CONFIGS: tuple[type[DeviceConfig], ...] = (ComputeDomainChannelConfig, ComputeDomainDaemonConfig)
"""The kinds for devices of `compute-domain.nvidia.com`."""

CONFIG_KINDS = {kind.kind: kind for kind in (*DEVICE_CONFIGS, *DOMAIN_CONFIGS)}


@cache
def adapter(kind: str) -> TypeAdapter[Any]:
    """Built at first use: most processes need one or two of the kinds, or none."""
    return TypeAdapter(CONFIG_KINDS[kind])
