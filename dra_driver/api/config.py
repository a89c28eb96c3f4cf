"""Opaque configs: what users and DeviceClasses write for our devices (`resource.nvidia.com/v1beta1`).

Decoded strictly, because a misspelt field that is silently ignored is a setting that somebody believes in. An error
names the field's path, what may stand there, and what was probably meant; all problems are named at once. Kinds and
fields have NVIDIA's spelling and defaults, so that configs written for its own driver mean the same here.

Each kind is described once, as fields (`dra_driver.api.fields`). A config is decoded in two steps, because a claim's
config and its class's make one together: `written_config` reads one of them, `combined` makes the config that applies
(`dra_driver.opaque` knows which ones, and in which order). `decode_config` does both for one that stands alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, cast

from dra_driver.api.fields import (
    Block,
    Choice,
    Field,
    Flag,
    Problems,
    Tree,
    Uid,
    listed,
    meant,
    shown,
    together,
)
from dra_driver.api.meta import JsonObject
from dra_driver.api.sharing import (
    Sharing,
    Written,
    block_of,
    of_another_strategy,
    sharing_block,
    sharing_of,
    sharing_tree,
    without_strategy,
)
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

_IOMMU = Block(
    (
        Field(
            "backendPolicy",
            Choice(("LegacyOnly", "PreferIommuFD")),
            "Which of the kernel's interfaces the container gets: the IOMMU group's, or IOMMUFD where the node has it.",
            default="LegacyOnly",
        ),
        Field(
            "enableAPIDevice",
            Flag(),
            "Whether the container gets the interface's common device, too: /dev/vfio/vfio, or /dev/iommu.",
            default=False,
        ),
    )
)


@dataclass(frozen=True, slots=True)
class Iommu:
    backend_policy: Literal["LegacyOnly", "PreferIommuFD"] = "LegacyOnly"
    enable_api_device: bool = False


class DeviceConfig(ABC):
    """A config of one kind, complete: what applies to a device. The default is what applies when nobody wrote one."""

    __slots__ = ()

    kind: ClassVar[str]
    described: ClassVar[Block]
    """The fields besides apiVersion and kind."""

    @classmethod
    @abstractmethod
    def of(cls, tree: Tree) -> Self:
        """From what was written, combined and found right; what was not written has its default."""

    @abstractmethod
    def tree(self) -> Tree:
        """What to write for it, so that `of` gives it back."""


@dataclass(frozen=True, slots=True)
class GpuConfig(DeviceConfig):
    """For a full GPU. Without `sharing` nothing is set on the GPU."""

    kind: ClassVar[str] = "GpuConfig"
    described: ClassVar[Block] = Block(
        (Field("sharing", sharing_block("GPU"), "Left out: nothing is set on the GPU."),)
    )

    sharing: Sharing | None = None

    @classmethod
    def of(cls, tree: Tree) -> Self:
        return cls(sharing_of(tree))

    def tree(self) -> Tree:
        return sharing_tree(self.sharing)


@dataclass(frozen=True, slots=True)
class MigDeviceConfig(DeviceConfig):
    """For a MIG device. TimeSlicing is accepted for NVIDIA's sake; it sets nothing."""

    kind: ClassVar[str] = "MigDeviceConfig"
    described: ClassVar[Block] = Block((Field("sharing", sharing_block("MIG"), "Left out: nothing is set."),))

    sharing: Sharing | None = None

    @classmethod
    def of(cls, tree: Tree) -> Self:
        return cls(sharing_of(tree))

    def tree(self) -> Tree:
        return sharing_tree(self.sharing)


@dataclass(frozen=True, slots=True)
class VfioDeviceConfig(DeviceConfig):
    """For a GPU that is passed to a virtual machine."""

    kind: ClassVar[str] = "VfioDeviceConfig"
    described: ClassVar[Block] = Block((Field("iommu", _IOMMU, "How the virtual machine's process reaches the GPU."),))

    iommu: Iommu = Iommu()

    @classmethod
    def of(cls, tree: Tree) -> Self:
        iommu = block_of(tree, "iommu") or {}
        policy = cast(Literal["LegacyOnly", "PreferIommuFD"], iommu.get("backendPolicy", "LegacyOnly"))
        return cls(Iommu(policy, iommu.get("enableAPIDevice") is True))

    def tree(self) -> Tree:
        iommu = self.iommu
        return {"iommu": {"backendPolicy": iommu.backend_policy, "enableAPIDevice": iommu.enable_api_device}}


_DOMAIN_ID = Field(
    "domainID",
    Uid(),
    "UID of the ComputeDomain. The claim template that the controller makes for a domain has it.",
)


@dataclass(frozen=True, slots=True)
class ComputeDomainChannelConfig(DeviceConfig):
    """For a channel: which domain its container belongs to."""

    kind: ClassVar[str] = "ComputeDomainChannelConfig"
    described: ClassVar[Block] = Block(
        (
            _DOMAIN_ID,
            Field(
                "allocationMode",
                Choice(("Single", "All")),
                "The one IMEX channel of the domain, or all channels that the driver has.",
                default="Single",
            ),
        )
    )

    domain_id: str = ""
    """Empty: nobody has written it, which `domain_of` refuses."""
    allocation_mode: Literal["Single", "All"] = "Single"

    @classmethod
    def of(cls, tree: Tree) -> Self:
        mode = cast(Literal["Single", "All"], tree.get("allocationMode", "Single"))
        return cls(cast(str, tree.get("domainID", "")), mode)

    def tree(self) -> Tree:
        return {"domainID": self.domain_id, "allocationMode": self.allocation_mode}


@dataclass(frozen=True, slots=True)
class ComputeDomainDaemonConfig(DeviceConfig):
    """For the daemon of a domain on one of its nodes."""

    kind: ClassVar[str] = "ComputeDomainDaemonConfig"
    described: ClassVar[Block] = Block((_DOMAIN_ID,))

    domain_id: str = ""
    """Empty: nobody has written it, which `domain_of` refuses."""

    @classmethod
    def of(cls, tree: Tree) -> Self:
        return cls(cast(str, tree.get("domainID", "")))

    def tree(self) -> Tree:
        return {"domainID": self.domain_id}


def domain_of(config: ComputeDomainChannelConfig | ComputeDomainDaemonConfig, *, field: str) -> str:
    """The UID of the domain. Raises InvalidConfig (final) when nobody has written one."""
    if not config.domain_id:
        raise InvalidConfig("is missing; must be the UID of a ComputeDomain", field=f"{field}.domainID")
    return config.domain_id


DEVICE_CONFIGS: tuple[type[DeviceConfig], ...] = (GpuConfig, MigDeviceConfig, VfioDeviceConfig)
"""The kinds that devices of `gpu.nvidia.com` take."""

DOMAIN_CONFIGS: tuple[type[DeviceConfig], ...] = (ComputeDomainChannelConfig, ComputeDomainDaemonConfig)
"""The kinds that devices of `compute-domain.nvidia.com` take."""


def kind_of(parameters: object, *, field: str) -> str:
    """The kind of config in an opaque `parameters` object; `field` is its path, for errors.

    Raises InvalidConfig (final) when it is not an object, of another API version, or of a kind that does not exist.
    """
    if not isinstance(parameters, Mapping):
        raise InvalidConfig(f"must be an object with {listed(_HEADER)}", field=field)
    version = parameters.get("apiVersion")
    if version != CONFIG_API_VERSION:
        raise InvalidConfig(f"is {shown(version)}; must be `{CONFIG_API_VERSION}`", field=f"{field}.apiVersion")
    kind = parameters.get("kind")
    if not isinstance(kind, str) or kind not in _MEANT_FOR:
        allowed = f"must be one of {listed(_MEANT_FOR)}{meant(kind, _MEANT_FOR)}"
        raise InvalidConfig(f"is {shown(kind)}; {allowed}", field=f"{field}.kind")
    return kind


def meant_for(kind: str) -> str:
    """The devices that configs of this kind are for, in the plural: `MIG devices`."""
    return _MEANT_FOR[kind]


def written_config(parameters: Mapping[str, object], kind: type[DeviceConfig], *, field: str) -> Written:
    """A config that `kind_of` says is of this kind, on its own. `field` is the path of `parameters`, for errors.

    Raises InvalidConfig (final) with all problems, which none of the other configs of a claim can make good.
    """
    problems: Problems = []
    fields = {name: value for name, value in parameters.items() if name not in _HEADER}
    tree = kind.described.read(fields, field, problems) or {}
    written = Written(tree, field)
    problems += of_another_strategy([written])
    if problems:
        raise together(problems)
    return written


def combined[C: DeviceConfig](configs: Sequence[Written], kind: type[C]) -> C:
    """One config of all, which are given lowest precedence first; no config is the default of the kind.

    Field by field: one that a later config has not written is as an earlier one wrote it. A map is one field. Where
    a later config has another strategy, the settings of the earlier one have no say. Raises InvalidConfig (final) with
    all problems: a sharing without a strategy, or settings of another strategy than the one that they are given for.
    """
    problems = [*without_strategy(configs), *of_another_strategy(configs)]
    if problems:
        raise together(problems)
    tree: Tree = {}
    for config in configs:
        tree = over(config.tree, tree)
    return kind.of(tree)


def decode_config[C: DeviceConfig](parameters: Mapping[str, object], kind: type[C], *, field: str) -> C:
    """A config that stands alone. Raises InvalidConfig (final) with all problems."""
    return combined([written_config(parameters, kind, field=field)], kind)


def encode_config(config: DeviceConfig) -> JsonObject:
    """The `parameters` that decode to this config, in full: defaults are written out, no limit is left out."""
    fields = cast(JsonObject, config.described.write(config.tree()))
    return {"apiVersion": CONFIG_API_VERSION, "kind": config.kind, **fields}


def over(upper: Tree, lower: Tree) -> Tree:
    """`upper` where it has a value, else `lower`, block by block. Associative: a stack of configs has one meaning."""
    merged = dict(lower)
    for name, value in upper.items():
        below = lower.get(name)
        merged[name] = over(value, below) if isinstance(value, dict) and isinstance(below, dict) else value
    return merged
