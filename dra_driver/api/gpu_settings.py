"""What can be decided for GPUs and nodes: MIG, sharing, channels, health, attributes; and `NodePolicy`: what
of it holds for one node.

Policies decide it for many nodes (`dra_driver.api.policy`, `dra_driver.api.gpupolicy`). The publisher finds out what
holds for a node and writes that in the node's inventory, where the node's plugin reads it.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from dra_driver.api.meta import Model, Word
from dra_driver.api.resource import Attribute
from dra_driver.features import Feature
from dra_driver.names import DEVICE_ATTRIBUTES, STANDARD_DOMAIN
from dra_driver.quantity import Version

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_DOMAIN = re.compile(r"(?=.{1,63}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VALUE_BYTES = 64
_INT64 = range(-(2**63), 2**63)
_MOST_RULES = 64
_MOST_GPUS = 64
_MOST_NAMES = 8


class Strict(Model):
    model_config = ConfigDict(**{**Model.model_config, "extra": "forbid"})


type Patterns = Annotated[list[Annotated[str, Field(max_length=253)]], Field(min_length=1, max_length=256)]


class MigSettings(Strict):
    """How a GPU is partitioned."""

    mode: Literal["Static", "Dynamic"]
    """`Static` offers existing MIG devices; `Dynamic` the whole GPU and every partition, created with their claims."""
    profiles: Patterns | None = None
    """Profiles of GPU instances, as shell patterns; None is all."""
    compute_instances: list[str] = Field(default_factory=list)
    """Compute instances that are parts of a GPU instance, `1c.3g.40gb`; all of one GPU instance profile."""
    whole_gpu: bool = True
    """Whether the whole GPU is offered beside its partitions, while its MIG mode is off."""
    mode_change: Literal["Never", "WhenIdle"] = "Never"
    """Whether the driver may reset a GPU that nothing uses to switch its MIG mode, if the model needs that (A100,
    A30). Alpha, and never seen on hardware."""

    @model_validator(mode="after")
    def _fits_the_mode(self) -> Self:
        dynamic = self.profiles is not None or self.compute_instances or self.changes_mode or not self.whole_gpu
        if self.mode == "Static" and dynamic:
            raise ValueError(
                "mode Static offers what exists; profiles, computeInstances, wholeGpu and modeChange are for mode"
                " Dynamic"
            )
        parents = {_parent_profile(name) for name in self.compute_instances}
        if len(parents) > 1:
            raise ValueError(f"computeInstances are of several GPU instance profiles ({', '.join(sorted(parents))})")
        return self

    @property
    def changes_mode(self) -> bool:
        return self.mode_change == "WhenIdle"

    @property
    def features(self) -> list[tuple[str, Feature]]:
        """What is required, with the field that requires it."""
        dynamic = [("mode", Feature.DYNAMIC_MIG)] if self.mode == "Dynamic" else []
        return [*dynamic, ("modeChange", Feature.MIG_MODE_CHANGE)] if self.changes_mode else dynamic


class SharingSettings(Strict):
    """A GPU or MIG device that several claims may hold at once.

    Exactly one of `replicas`, `capacity` and `unlimited` is set. `replicas` are equal shares. With `capacity` a claim
    requests the amount that it needs: `memory` in bytes (step 1Mi), `cores` in percent of the compute units (1 to 100).
    With the strategy `Exclusive` none is set: it exempts its devices from earlier rules.
    """

    devices: Literal["gpu", "mig"] = "gpu"
    """Whether the rule is for whole GPUs or for MIG devices."""
    profiles: Patterns | None = None
    """With `devices: mig`: the profiles, as shell patterns; None is all."""
    strategy: Literal["TimeSlicing", "MPS", "Exclusive"]
    """Whether programs take turns or run at the same time. `Exclusive`: not shared, despite earlier rules."""
    replicas: Annotated[int, Field(ge=2, le=128)] | None = None
    """The number of equal shares."""
    capacity: Annotated[list[Literal["memory", "cores"]], Field(min_length=1)] | None = None
    """Claims request an amount: `memory` in steps of 1Mi, `cores` in percent, 1 to 100."""
    unlimited: bool = False
    """Any number of claims, without limits."""
    interval: Literal["Default", "Short", "Medium", "Long"] | None = None
    """With TimeSlicing on full GPUs. None: the GPU's time slice is not changed."""
    multi_user: bool = False
    """With MPS: whether programs of several user IDs can run at once."""

    @model_validator(mode="after")
    def _is_one_way(self) -> Self:
        ways = [self.replicas is not None, self.capacity is not None, self.unlimited]
        if self.strategy == "Exclusive":
            if any(ways) or self.interval is not None or self.multi_user:
                raise ValueError("strategy Exclusive shares nothing; set only nodes, gpus, devices and profiles")
        elif sum(ways) != 1:
            raise ValueError("set exactly one of replicas, capacity and unlimited")
        if self.strategy == "MPS" and self.interval is not None:
            raise ValueError("interval is for strategy TimeSlicing")
        if self.strategy == "TimeSlicing" and self.multi_user:
            raise ValueError("multiUser is for strategy MPS")
        if self.devices == "mig" and self.interval is not None:
            raise ValueError("the time slice of MIG devices cannot be set; remove interval")
        if self.devices == "gpu" and self.profiles is not None:
            raise ValueError("profiles are for devices: mig")
        return self

    @property
    def shares_by(self) -> Literal["TimeSlicing", "MPS"]:
        """For a rule from `PublishingPolicy.sharing_rule`, which is never `Exclusive`."""
        if self.strategy == "Exclusive":
            raise ValueError("strategy Exclusive shares nothing")
        return self.strategy

    @property
    def features(self) -> list[tuple[str, Feature]]:
        """What is required, with the path of the field that requires it, which is empty for all of it."""
        if self.strategy == "Exclusive":
            return []
        return [("", Feature.SHARES), (".strategy", Feature.MPS if self.strategy == "MPS" else Feature.TIME_SLICING)]

    @property
    def enforced(self) -> bool:
        """Whether a share has limits that a program cannot exceed."""
        return self.strategy == "MPS" and not self.unlimited


class DomainSettings(Strict):
    """What nodes offer to ComputeDomains."""

    channels: Annotated[int, Field(ge=0, le=64)]
    """Maximum pods of one domain on a node; 0: the node joins no domain."""


class HealthPolicy(Strict):
    """Reactions to reported conditions. Xids of application faults are ignored unless escalated."""

    ignore_xids: list[Annotated[int, Field(ge=1, le=9999)]] = Field(default_factory=list)
    """Xids that do not taint a GPU, in addition to application faults."""
    escalate_xids: list[Annotated[int, Field(ge=1, le=9999)]] = Field(default_factory=list)
    """Xids that make a GPU unhealthy; overrides `ignoreXids`."""
    evict: bool = False
    """Whether pods on an unhealthy GPU are deleted: its taints have the effect `NoExecute`."""
    validate_gpus: bool = Field(default=False, alias="validate")
    """Whether a new or returned GPU is tainted until a check on its node has passed."""


_COMPUTE_INSTANCE = re.compile(r"[1-8]c\.([1-8]g\.\d+gb.*)")


def _parent_profile(name: str) -> str:
    match = _COMPUTE_INSTANCE.fullmatch(name)
    if match is None:
        raise ValueError(f"{name}: not a compute instance profile like 1c.3g.40gb")
    return match.group(1)


def checked_attributes(values: Any) -> dict[str, Attribute]:
    if not isinstance(values, dict) or not values:
        raise ValueError("must be a map from attribute names to values")
    plain = {name: value.plain() if isinstance(value, AttributeValue) else value for name, value in values.items()}
    return {_attribute_name(name): _attribute(name, value) for name, value in plain.items()}


def _attribute_name(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"{name!r}: attribute names are strings")
    domain, slash, identifier = name.rpartition("/")
    if _IDENTIFIER.fullmatch(identifier) is None or (slash and _DOMAIN.fullmatch(domain) is None):
        raise ValueError(f"{name}: not `identifier` or `domain/identifier` (letters, digits, _; at most 32)")
    if domain == STANDARD_DOMAIN:
        raise ValueError(f"{name}: {STANDARD_DOMAIN} is reserved for standard attributes")
    if name in DEVICE_ATTRIBUTES:
        raise ValueError(f"{name}: is published by the driver itself")
    return name


def _attribute(name: Any, value: Any) -> Attribute:
    if isinstance(value, bool):
        return Attribute(bool_=value)
    if isinstance(value, int):
        if value not in _INT64:
            raise ValueError(f"{name}: {value} does not fit 64 bits")
        return Attribute(int_=value)
    if isinstance(value, str):
        if len(value.encode()) > _VALUE_BYTES:
            raise ValueError(f"{name}: longer than {_VALUE_BYTES} bytes")
        return Attribute(string=value)
    if isinstance(value, dict) and value.keys() == {"version"} and isinstance(value["version"], str):
        if len(value["version"]) > _VALUE_BYTES:
            raise ValueError(f"{name}: longer than {_VALUE_BYTES} bytes")
        return Attribute(version=str(Version.parse(value["version"])))
    raise ValueError(f"{name}: must be a string, an integer, true, false, or {{version: <semver>}}")


class AttributeValue(Strict):
    """Exactly one is set, as in a ResourceSlice."""

    int_: int | None = Field(default=None, alias="int")
    """A number of 64 bits."""
    bool_: bool | None = Field(default=None, alias="bool")
    """True or false."""
    string: Annotated[str, Field(max_length=_VALUE_BYTES)] | None = None
    """A text of at most 64 bytes."""
    version: Annotated[str, Field(max_length=_VALUE_BYTES)] | None = None
    """A semantic version: `1.2.3`."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self.to_wire()) != 1:
            raise ValueError("set exactly one of int, bool, string and version")
        return self

    def plain(self) -> object:
        """As a file has it: the value, or a map with the version."""
        ((name, value),) = self.to_wire().items()
        return {"version": value} if name == "version" else value


type Attributes = Annotated[dict[str, AttributeValue], Field(min_length=1, max_length=32)]

_LENIENT = ConfigDict(extra="ignore")
"""A plugin reads what a newer publisher writes."""


class NodeAttributes(Model):
    """Here and below, `rule` is what people call the rule that decided: `attributes of GpuPolicy ml`."""

    values: Attributes
    rule: Word


class NodeMig(MigSettings):
    model_config = _LENIENT

    rule: Word


class NodeSharing(SharingSettings):
    model_config = _LENIENT

    rule: Word


class NodePassthrough(Model):
    rule: Word


class NodeHealth(HealthPolicy):
    model_config = _LENIENT


class GpuDecision(Model):
    """What holds for one GPU."""

    publish: bool = True
    attributes: list[NodeAttributes] = Field(default_factory=list, max_length=_MOST_RULES)
    """The last overrides the others; so does the last entry of `sharing` that fits a device."""
    mig: NodeMig | None = None
    sharing: list[NodeSharing] = Field(default_factory=list, max_length=_MOST_RULES)
    passthrough: NodePassthrough | None = None
    policies: list[Word] = Field(default_factory=list, max_length=_MOST_RULES)
    """The GpuPolicies that select the GPU; the first overrides the others."""


class GpuDecisions(GpuDecision):
    """What holds for several GPUs."""

    uuids: list[Word] = Field(max_length=_MOST_GPUS)


type ModeName = Literal["On", "Off"]


class WaitingGpu(Model):
    """A GPU for which something else was decided. That holds when the claims that use the GPU are gone, and its MIG
    mode is switched."""

    gpu: Word
    """Its published name."""
    uuid: Word
    claims: list[Word] = Field(default_factory=list, max_length=_MOST_NAMES)
    """`namespace/name` of the first of them. Empty: none uses it."""
    policies: list[Word] = Field(default_factory=list, max_length=_MOST_RULES)
    """The GpuPolicies that will select it."""
    mig_mode: ModeName | None = None
    """The MIG mode that the node's plugin switches it to by a reset, as soon as `claims` is empty. None: no reset."""

    def __str__(self) -> str:
        """`GPU gpu-5a7b8d0e changes because of GpuPolicy ml when claims team/a are gone`."""
        because = f" because of GpuPolicy {', '.join(self.policies)}" if self.policies else ""
        return f"GPU {self.gpu} changes{because} {when_it_changes(self.claims, self.mig_mode)}"


def when_it_changes(claims: Sequence[str], mig_mode: ModeName | None) -> str:
    """`when claims team/a are gone and a reset has switched its MIG mode on`."""
    when = [f"claims {', '.join(claims)} are gone"] if claims else []
    if mig_mode is not None:
        when.append(f"a reset has switched its MIG mode {mig_mode.lower()}")
    return f"when {' and '.join(when)}"


class OfferedDevices(Model):
    """Published devices of the GPUs that a GpuPolicy selects."""

    policy: Word
    kind: Word
    """`gpu`, `mig` or `vfio`; with `-share` for those that several claims can have."""
    devices: int


class NodePolicy(Model):
    """What holds for one node. Equal GPUs are in one entry of `gpus`."""

    publish: bool = True
    """Whether the node has a pool of devices."""
    channels: int = 1
    health: NodeHealth = Field(default_factory=NodeHealth)
    gpus: list[GpuDecisions] = Field(default_factory=list, max_length=_MOST_GPUS)
    before: list[GpuDecisions] = Field(default_factory=list, max_length=_MOST_GPUS)
    """What held for GPUs before it changed the last time: a claim can have been allocated at that moment."""
    waiting: list[WaitingGpu] = Field(default_factory=list, max_length=_MOST_GPUS)
    offered: list[OfferedDevices] = Field(default_factory=list, max_length=4 * _MOST_RULES)
    """Sorted by policy and kind."""
