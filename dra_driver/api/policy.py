"""The PublishingPolicy: which hardware is published, and how. An administrator writes it as YAML; it is decoded
strictly.

```yaml
apiVersion: dra.gpu/v1alpha1
kind: PublishingPolicy
publish:                        # default: every GPU of every node
- nodes: {labelSelector: {matchLabels: {pool: ml}}}
  gpus: {products: ["NVIDIA H100*"]}
withhold:                       # overrides publish
- nodes: {names: ["build-*"]}
- gpus: {uuids: [GPU-5a7b8d0e-...]}
attributes:                     # added to the devices; the last matching rule wins
- nodes: {names: ["rack1-*"]}
  values: {rack: r1, tier: 2, spot: false, example.com/firmware: {version: 1.4.0}}
mig:                            # default: only MIG devices that an administrator created are offered
- gpus: {products: ["NVIDIA H100*"]}
  mode: Dynamic                 # the GPU, and every partition that it supports
  profiles: ["1g.*", "3g.40gb"] # default: all
  computeInstances: ["1c.3g.40gb"]
sharing:                        # several claims can share a GPU, or each MIG device
- gpus: {products: ["Tesla T4"]}
  strategy: TimeSlicing         # or MPS, or Exclusive: not shared, overriding earlier rules
  replicas: 4                   # or: capacity: [memory, cores], or: unlimited: true
passthrough:                    # these GPUs are also offered to virtual machines
- nodes: {labelSelector: {matchLabels: {virt: "true"}}}
computeDomains:
- nodes: {labelSelector: {matchLabels: {rack: nvl72}}}
  channels: 4                   # pods of one ComputeDomain that can run on such a node; default: 1
health:
  ignoreXids: [94]              # no taint for these, in addition to application faults
  escalateXids: [109]           # these make a GPU unhealthy; overrides ignoreXids
  evict: false                  # true: pods on an unhealthy GPU are deleted (taint effect NoExecute)
  validate: true                # a new or returned GPU is tainted until a check on its node has passed
```

In `nodes` and `gpus` all given fields must match; in each list one entry must match. Names, products and UUIDs may be
shell patterns. Without `nodes` or `gpus` a rule applies to all.
"""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from dra_driver.api.inventory import GpuFacts
from dra_driver.api.meta import Model
from dra_driver.api.resource import Attribute
from dra_driver.api.selection import requirement_holds
from dra_driver.errors import InvalidInput
from dra_driver.features import Feature
from dra_driver.names import DEVICE_ATTRIBUTES, STANDARD_DOMAIN
from dra_driver.quantity import Version

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_DOMAIN = re.compile(r"(?=.{1,63}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VALUE_BYTES = 64
_INT64 = range(-(2**63), 2**63)


class _Strict(Model):
    model_config = ConfigDict(**{**Model.model_config, "extra": "forbid"})


class LabelRequirement(_Strict):
    """One entry of `matchExpressions`, as everywhere in Kubernetes."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _values_fit_the_operator(self) -> Self:
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            raise ValueError(f"{self.operator} takes {'no ' if self.values else ''}values")
        return self

    def holds(self, labels: Mapping[str, str]) -> bool:
        return requirement_holds(self.operator, labels.get(self.key), self.values)


class LabelSelector(_Strict):
    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: list[LabelRequirement] = Field(default_factory=list)

    def matches(self, labels: Mapping[str, str]) -> bool:
        return self.match_labels.items() <= labels.items() and all(
            requirement.holds(labels) for requirement in self.match_expressions
        )


type _Patterns = Annotated[list[str], Field(min_length=1)]


class NodeSelection(_Strict):
    names: _Patterns | None = None
    label_selector: LabelSelector | None = None

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        return _any(self.names, name) and (self.label_selector is None or self.label_selector.matches(labels))


class GpuSelection(_Strict):
    uuids: _Patterns | None = None
    products: _Patterns | None = None
    names: _Patterns | None = None
    """Published device names, `gpu-5a7b8d0e`."""

    def matches(self, gpu: GpuFacts) -> bool:
        return _any(self.uuids, gpu.uuid) and _any(self.products, gpu.product_name) and _any(self.names, gpu.name)


class Rule(_Strict):
    nodes: NodeSelection | None = None
    gpus: GpuSelection | None = None

    def matches(self, node: str, labels: Mapping[str, str], gpu: GpuFacts) -> bool:
        return (self.nodes is None or self.nodes.matches(node, labels)) and (
            self.gpus is None or self.gpus.matches(gpu)
        )


def _attributes(values: Any) -> dict[str, Attribute]:
    if not isinstance(values, dict) or not values:
        raise ValueError("must be a map from attribute names to values")
    return {_attribute_name(name): _attribute(name, value) for name, value in values.items()}


class AttributeRule(Rule):
    values: Annotated[dict[str, Attribute], BeforeValidator(_attributes)]


class MigRule(Rule):
    """How a GPU is partitioned. Of several rules that match, the last one wins."""

    mode: Literal["Static", "Dynamic"]
    profiles: _Patterns | None = None
    """Profiles of GPU instances, as shell patterns; None is all."""
    compute_instances: list[str] = Field(default_factory=list)
    """Compute instances that are parts of a GPU instance, `1c.3g.40gb`; all of one GPU instance profile."""

    @model_validator(mode="after")
    def _fits_the_mode(self) -> Self:
        if self.mode == "Static" and (self.profiles is not None or self.compute_instances):
            raise ValueError("mode Static offers what exists; profiles and computeInstances are for mode Dynamic")
        parents = {_parent_profile(name) for name in self.compute_instances}
        if len(parents) > 1:
            raise ValueError(f"computeInstances are of several GPU instance profiles ({', '.join(sorted(parents))})")
        return self


class SharingRule(Rule):
    """A GPU or MIG device that several claims may hold at once. Of several rules that match, the last one wins.

    Exactly one of `replicas`, `capacity` and `unlimited` is set. `replicas` are equal shares. With `capacity` a claim
    requests the amount that it needs: `memory` in bytes (step 1Mi), `cores` in percent of the compute units (1 to 100).
    With the strategy `Exclusive` none is set: it exempts its devices from earlier rules.
    """

    devices: Literal["gpu", "mig"] = "gpu"
    profiles: _Patterns | None = None
    """With `devices: mig`: the profiles, as shell patterns; None is all."""
    strategy: Literal["TimeSlicing", "MPS", "Exclusive"]
    replicas: Annotated[int, Field(ge=2, le=128)] | None = None
    capacity: Annotated[list[Literal["memory", "cores"]], Field(min_length=1)] | None = None
    unlimited: bool = False
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
    def enforced(self) -> bool:
        """Whether a share has limits that a program cannot exceed."""
        return self.strategy == "MPS" and not self.unlimited


class PassthroughRule(Rule):
    """GPUs that are also offered as `type == 'vfio'`."""


class DomainRule(_Strict):
    """What nodes offer to ComputeDomains. Of several rules that match, the last one wins."""

    nodes: NodeSelection | None = None
    channels: Annotated[int, Field(ge=0, le=64)]
    """Maximum pods of one domain on a node; 0: the node joins no domain."""


class HealthPolicy(_Strict):
    """Reactions to reported conditions. Xids of application faults are ignored unless escalated."""

    ignore_xids: list[Annotated[int, Field(ge=1, le=9999)]] = Field(default_factory=list)
    escalate_xids: list[Annotated[int, Field(ge=1, le=9999)]] = Field(default_factory=list)
    evict: bool = False
    validate_gpus: bool = Field(default=False, alias="validate")


_COMPUTE_INSTANCE = re.compile(r"[1-8]c\.([1-8]g\.\d+gb.*)")


def _parent_profile(name: str) -> str:
    match = _COMPUTE_INSTANCE.fullmatch(name)
    if match is None:
        raise ValueError(f"{name}: not a compute instance profile like 1c.3g.40gb")
    return match.group(1)


class PublishingPolicy(_Strict):
    """The default, `PublishingPolicy()`, publishes every GPU of every node and adds nothing."""

    EVERYTHING: ClassVar["PublishingPolicy"]

    api_version: Literal["dra.gpu/v1alpha1"] = "dra.gpu/v1alpha1"
    kind: Literal["PublishingPolicy"] = "PublishingPolicy"
    publish: Annotated[list[Rule], Field(min_length=1)] | None = None
    withhold: list[Rule] = Field(default_factory=list)
    attributes: list[AttributeRule] = Field(default_factory=list)
    mig: list[MigRule] = Field(default_factory=list)
    sharing: list[SharingRule] = Field(default_factory=list)
    passthrough: list[PassthroughRule] = Field(default_factory=list)
    compute_domains: list[DomainRule] = Field(default_factory=list)
    health: HealthPolicy = Field(default_factory=HealthPolicy)

    @property
    def features(self) -> tuple[tuple[str, Feature], ...]:
        """Every feature that the policy requires, with the field that requires it; each gate must be on."""
        results: list[tuple[str, Feature]] = []
        for index, rule in enumerate(self.mig):
            if rule.mode == "Dynamic":
                results.append((f"mig[{index}].mode", Feature.DYNAMIC_MIG))
        for index, shared in enumerate(self.sharing):
            if shared.strategy == "Exclusive":
                continue
            results.append((f"sharing[{index}]", Feature.SHARES))
            strategy = Feature.MPS if shared.strategy == "MPS" else Feature.TIME_SLICING
            results.append((f"sharing[{index}].strategy", strategy))
        if self.passthrough:
            results.append(("passthrough", Feature.PASSTHROUGH))
        if self.compute_domains:
            results.append(("computeDomains", Feature.COMPUTE_DOMAINS))
        if self.health != HealthPolicy():
            results.append(("health", Feature.HEALTH))
        return tuple(results)

    @property
    def asks_for_labels(self) -> bool:
        """Whether rules select nodes by labels; otherwise nodes need not be watched."""
        rules: tuple[Rule, ...] = (
            *(self.publish or ()),
            *self.withhold,
            *self.attributes,
            *self.mig,
            *self.sharing,
            *self.passthrough,
        )
        selections = [*(rule.nodes for rule in rules), *(rule.nodes for rule in self.compute_domains)]
        return any(nodes is not None and nodes.label_selector is not None for nodes in selections)

    def publishes(self, node: str, labels: Mapping[str, str], gpu: GpuFacts) -> bool:
        if any(rule.matches(node, labels, gpu) for rule in self.withhold):
            return False
        return self.publish is None or any(rule.matches(node, labels, gpu) for rule in self.publish)

    def publishes_node(self, node: str, labels: Mapping[str, str]) -> bool:
        """Whether this node has a pool, possibly an empty one: no rule excludes the whole node."""
        whole = [rule.nodes for rule in self.withhold if rule.gpus is None]
        if any(nodes is None or nodes.matches(node, labels) for nodes in whole):
            return False
        return self.publish is None or any(
            rule.nodes is None or rule.nodes.matches(node, labels) for rule in self.publish
        )

    def mig_rule(self, node: str, labels: Mapping[str, str], gpu: GpuFacts) -> MigRule | None:
        """None: static."""
        return next((rule for rule in reversed(self.mig) if rule.matches(node, labels, gpu)), None)

    def sharing_rule(
        self, node: str, labels: Mapping[str, str], gpu: GpuFacts, mig_profile: str | None = None
    ) -> SharingRule | None:
        """For the full GPU, or for a MIG device of `mig_profile` on it. None: one claim at a time."""
        for rule in reversed(self.sharing):
            wanted = rule.devices == "gpu" if mig_profile is None else rule.devices == "mig"
            if wanted and rule.matches(node, labels, gpu) and (mig_profile is None or _any(rule.profiles, mig_profile)):
                return None if rule.strategy == "Exclusive" else rule
        return None

    def passthrough_rule(self, node: str, labels: Mapping[str, str], gpu: GpuFacts) -> PassthroughRule | None:
        """The rule that also offers the GPU to virtual machines."""
        return next((rule for rule in self.passthrough if rule.matches(node, labels, gpu)), None)

    def domain_rule(self, node: str, labels: Mapping[str, str]) -> DomainRule:
        """Maximum pods of one ComputeDomain on the node."""
        rules = (
            rule for rule in reversed(self.compute_domains) if rule.nodes is None or rule.nodes.matches(node, labels)
        )
        return next(rules, DomainRule(channels=1))

    def field_of(self, rule: object) -> str | None:
        """`mig[0]`; None if it is not a rule of this policy. By identity, because two rules may be equal."""
        for field in ("attributes", "mig", "sharing", "passthrough", "compute_domains"):
            for index, known in enumerate(getattr(self, field)):
                if known is rule:
                    return f"{type(self).model_fields[field].alias}[{index}]"
        return None

    @property
    def several_channels(self) -> bool:
        """Whether any node may have more than one channel; then pods of domains must not request only channel 0."""
        return any(rule.channels > 1 for rule in self.compute_domains)

    def extra_attributes(self, node: str, labels: Mapping[str, str], gpu: GpuFacts) -> dict[str, Attribute]:
        extra: dict[str, Attribute] = {}
        for rule in self.attributes:
            if rule.matches(node, labels, gpu):
                extra.update(rule.values)
        return extra


PublishingPolicy.EVERYTHING = PublishingPolicy()


class _UniqueKeys(yaml.SafeLoader):
    """In YAML a later duplicate key silently overrides an earlier one; a policy must not contain any."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def decode_policy(text: str, *, about: str) -> PublishingPolicy:
    """From YAML or JSON. Raises InvalidInput that lists every problem with its field; `about` names the file."""
    try:
        document = yaml.load(text, _UniqueKeys)
    except yaml.YAMLError as error:
        raise InvalidInput(f"not YAML: {error}", about=about) from error
    if not isinstance(document, dict):
        raise InvalidInput("a PublishingPolicy is a mapping with apiVersion, kind and rules", about=about)
    missing = [f"{field}: is missing" for field in ("apiVersion", "kind") if field not in document]
    if missing:
        raise InvalidInput("; ".join(missing), about=about, problems=missing)
    return PublishingPolicy.of(document, about=about)


def _any(patterns: list[str] | None, text: str) -> bool:
    return patterns is None or any(fnmatchcase(text, pattern) for pattern in patterns)


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
