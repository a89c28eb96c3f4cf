"""Opaque configs: what users and DeviceClasses write for our devices (`resource.nvidia.com/v1beta1`).

Decoded strictly, because a misspelt field that is silently ignored is a setting that somebody believes in. An error
names the field's path and what may stand there. Kinds and fields have NVIDIA's spelling, so that configs written for
its own driver mean the same here; those that this version cannot honour are refused by name rather than dropped.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from dra_driver.errors import InvalidConfig
from dra_driver.names import CONFIG_API_VERSION

_HEADER = ("apiVersion", "kind")
_MEANT_FOR = {
    "GpuConfig": "full GPUs",
    "MigDeviceConfig": "MIG devices",
    "VfioDeviceConfig": "GPUs passed to virtual machines",
    "ComputeDomainChannelConfig": "channels of a ComputeDomain",
    "ComputeDomainDaemonConfig": "daemons of a ComputeDomain",
}
"""Every kind of this group, and the devices it is for."""


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """For a full GPU. It holds no setting: exclusive use is what this version offers, and the default."""

    kind: ClassVar[str] = "GpuConfig"
    fields: ClassVar[tuple[str, ...]] = ("sharing",)


def kind_of(parameters: object, *, field: str) -> str:
    """The kind of config in an opaque `parameters` object; `field` is its path, for errors.

    Raises InvalidConfig (final) when it is not an object, of another API version, or of a kind that does not exist.
    """
    if not isinstance(parameters, Mapping):
        raise InvalidConfig(f"must be an object with {_listed(_HEADER)}", field=field)
    version = parameters.get("apiVersion")
    if version != CONFIG_API_VERSION:
        raise InvalidConfig(f"is {_shown(version)}; must be `{CONFIG_API_VERSION}`", field=f"{field}.apiVersion")
    kind = parameters.get("kind")
    if not isinstance(kind, str) or kind not in _MEANT_FOR:
        raise InvalidConfig(f"is {_shown(kind)}; must be one of {_listed(_MEANT_FOR)}", field=f"{field}.kind")
    return kind


def meant_for(kind: str) -> str:
    """The devices that configs of this kind are for, in the plural: `MIG devices`."""
    return _MEANT_FOR[kind]


def decode_config[C: GpuConfig](parameters: Mapping[str, object], kind: type[C], *, field: str) -> C:
    """A config that `kind_of` says is of this kind. `field` is the path of `parameters`, for errors.

    Raises InvalidConfig (final) with all problems: unknown fields, and settings that this version does not support.
    """
    allowed = (*_HEADER, *kind.fields)
    unknown = sorted(str(key) for key in parameters if key not in allowed)
    problems = [
        InvalidConfig(f"unknown field; {kind.kind} has {_listed(allowed)}", field=f"{field}.{name}") for name in unknown
    ]
    sharing = parameters.get("sharing")
    if sharing is not None:
        problems.append(InvalidConfig(_unsupported(sharing), field=f"{field}.sharing"))
    if problems:
        message = "; ".join([problems[0].message, *(str(other) for other in problems[1:])])
        raise InvalidConfig(message, field=problems[0].field, problems=[str(one) for one in problems])
    return kind()


def _unsupported(sharing: object) -> str:
    strategy = sharing.get("strategy") if isinstance(sharing, Mapping) else None
    named = "sharing" if strategy is None else f"sharing strategy {_shown(strategy)}"
    return f"{named} is not supported on full GPUs by this version of the driver; leave `sharing` out"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _shown(value: object) -> str:
    """A user's value in an error of one line: short, and absent is said so."""
    if value is None:
        return "missing"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
