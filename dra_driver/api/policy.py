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
  wholeGpu: true                # false: only the partitions, also while MIG mode is off
  modeChange: Never             # WhenIdle: may reset an idle GPU to switch its MIG mode (A100, A30)
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

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from dra_driver.api.gpu_settings import (
    DomainSettings,
    GpuDecisions,
    HealthPolicy,
    MigSettings,
    NodeMig,
    NodePolicy,
    NodeSharing,
    Patterns,
    SharingSettings,
    Strict,
    checked_attributes,
)
from dra_driver.api.inventory import GpuFacts
from dra_driver.api.meta import requirement_holds
from dra_driver.api.resource import Attribute
from dra_driver.features import Feature


class LabelRequirement(Strict):
    """One entry of `matchExpressions`, as everywhere in Kubernetes."""

    key: str
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label's value is compared."""
    values: list[str] = Field(default_factory=list)
    """Values for `In` and `NotIn`."""

    @model_validator(mode="after")
    def _values_fit_the_operator(self) -> Self:
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            raise ValueError(f"{self.operator} takes {'no ' if self.values else ''}values")
        return self

    def holds(self, labels: Mapping[str, str]) -> bool:
        return requirement_holds(self.operator, labels.get(self.key), self.values)


class LabelSelector(Strict):
    match_labels: dict[str, str] = Field(default_factory=dict)
    """Labels and values that must all match."""
    match_expressions: list[LabelRequirement] = Field(default_factory=list)
    """Requirements that must all match."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        return self.match_labels.items() <= labels.items() and all(
            requirement.holds(labels) for requirement in self.match_expressions
        )


class NodeSelection(Strict):
    names: Patterns | None = None
    """Names of nodes, as shell patterns. One must match."""
    label_selector: LabelSelector | None = None
    """Labels of nodes."""

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        return _any(self.names, name) and (self.label_selector is None or self.label_selector.matches(labels))


def selects(nodes: NodeSelection | None, name: str, labels: Mapping[str, str]) -> bool:
    """Whether the node is among `nodes`; None is all."""
    return nodes is None or nodes.matches(name, labels)


class GpuSelection(Strict):
    uuids: Patterns | None = None
    """UUIDs, as shell patterns. One must match."""
    products: Patterns | None = None
    """Product names, as in the attribute `productName`, as shell patterns."""
    names: Patterns | None = None
    """Published device names, `gpu-5a7b8d0e`."""

    def matches(self, gpu: GpuFacts) -> bool:
        return _any(self.uuids, gpu.uuid) and _any(self.products, gpu.product_name) and _any(self.names, gpu.name)


class NodeRule(Strict):
    nodes: NodeSelection | None = None
    """The nodes that the rule applies to. Default: all."""
    _origin: str | None = None
    """What people call a rule that is not one of a file: `mig of GpuPolicy ml`."""

    def called(self, origin: str) -> Self:
        """This rule, called so from now on."""
        self._origin = origin
        return self

    def matches_node(self, node: str, labels: Mapping[str, str]) -> bool:
        return selects(self.nodes, node, labels)


class Rule(NodeRule):
    gpus: GpuSelection | None = None
    """The GPUs that the rule applies to. Default: all."""

    def matches(self, node: str, labels: Mapping[str, str], gpu: GpuFacts) -> bool:
        return self.matches_node(node, labels) and (self.gpus is None or self.gpus.matches(gpu))


class AttributeRule(Rule):
    values: Annotated[dict[str, Attribute], BeforeValidator(checked_attributes)]
    """Values by `name` or `domain/name`: a string, a number, true or false, or `{version: 1.2.3}`."""


class MigRule(MigSettings, Rule):
    """Of several rules that match, the last one wins."""


class SharingRule(SharingSettings, Rule):
    """Of several rules that match, the last one wins."""


class PassthroughRule(Rule):
    """GPUs that are also offered as `type == 'vfio'`."""

    _offers: bool = True

    def that_offers(self, offers: bool) -> Self:
        """This rule; whether it offers GPUs or overrides others that do."""
        self._offers = offers
        return self


class PublishRule(Rule):
    """Whether GPUs are published at all. Of several rules that match, the last one wins."""

    published: bool


class HealthRule(NodeRule):
    """Of several rules that match, the last one wins."""

    health: HealthPolicy


class DomainRule(DomainSettings, NodeRule):
    """Of several rules that match, the last one wins."""


class PublishingPolicy(Strict):
    """The default, `PublishingPolicy()`, publishes every GPU of every node and adds nothing."""

    EVERYTHING: ClassVar["PublishingPolicy"]

    api_version: Literal["dra.gpu/v1alpha1"] = "dra.gpu/v1alpha1"
    """`dra.gpu/v1alpha1`; the chart sets it."""
    kind: Literal["PublishingPolicy"] = "PublishingPolicy"
    """`PublishingPolicy`; the chart sets it."""
    publish: Annotated[list[Rule], Field(min_length=1)] | None = None
    """Which GPUs to publish. Default: all GPUs of all nodes."""
    withhold: list[Rule] = Field(default_factory=list)
    """Which GPUs not to publish; overrides `publish`. A rule without `gpus` removes the pools of its nodes."""
    attributes: list[AttributeRule] = Field(default_factory=list)
    """Attributes to add to devices. If several rules set one name, the last one applies."""
    mig: list[MigRule] = Field(default_factory=list)
    """How GPUs are partitioned. Default: existing MIG devices are offered."""
    sharing: list[SharingRule] = Field(default_factory=list)
    """Which GPUs or MIG devices several claims can share."""
    passthrough: list[PassthroughRule] = Field(default_factory=list)
    """Which GPUs are also offered to virtual machines."""
    compute_domains: list[DomainRule] = Field(default_factory=list)
    """What nodes offer to ComputeDomains."""
    health: HealthPolicy = Field(default_factory=HealthPolicy)
    """How the driver reacts to conditions of GPUs."""
    _publishing: tuple[PublishRule, ...] = ()
    """Override `publish` and `withhold`."""
    _health_rules: tuple[HealthRule, ...] = ()
    """Override `health`."""
    _waiting: frozenset[str] = frozenset()

    def that_overrides(
        self, publishing: Sequence[PublishRule], health: Sequence[HealthRule], waiting: Collection[str] = ()
    ) -> Self:
        """This policy, with rules that a file cannot have. `waiting`: UUIDs of GPUs, see `changes_later`."""
        self._publishing, self._health_rules = tuple(publishing), tuple(health)
        self._waiting = frozenset(waiting)
        return self

    def selecting(self, nodes: Callable[[NodeSelection | None], NodeSelection | None]) -> Self:
        """This policy, with `nodes` of what each rule selects in place of that."""

        def changed[R: NodeRule](rules: Iterable[R]) -> list[R]:
            return [rule.model_copy(update={"nodes": nodes(rule.nodes)}) for rule in rules]

        given = {field: rules for field in _RULE_FIELDS if (rules := getattr(self, field)) is not None}
        policy = self.model_copy(update={field: changed(rules) for field, rules in given.items()})
        return policy.that_overrides(changed(self._publishing), changed(self._health_rules), self._waiting)

    @property
    def features(self) -> tuple[tuple[str, Feature], ...]:
        """Every feature that the policy requires, with the field that requires it; each gate must be on."""
        return tuple(self._features())

    def _features(self) -> Iterator[tuple[str, Feature]]:
        for index, rule in enumerate(self.mig):
            yield from ((f"mig[{index}].{field}", feature) for field, feature in rule.features)
        for index, shared in enumerate(self.sharing):
            yield from ((f"sharing[{index}]{field}", feature) for field, feature in shared.features)
        if self.passthrough:
            yield "passthrough", Feature.PASSTHROUGH
        if self.compute_domains:
            yield "computeDomains", Feature.COMPUTE_DOMAINS
        if self.health != HealthPolicy():
            yield "health", Feature.HEALTH

    @property
    def asks_for_labels(self) -> bool:
        """Whether rules select nodes by labels; otherwise nodes need not be watched."""
        written = chain.from_iterable(getattr(self, field) or () for field in _RULE_FIELDS)
        rules: Iterable[NodeRule] = (*self._publishing, *self._health_rules, *written)
        return any(rule.nodes is not None and rule.nodes.label_selector is not None for rule in rules)

    def publishes(self, node: str, labels: Mapping[str, str], gpu: GpuFacts) -> bool:
        for rule in reversed(self._publishing):
            if rule.matches(node, labels, gpu):
                return rule.published
        if any(rule.matches(node, labels, gpu) for rule in self.withhold):
            return False
        return self.publish is None or any(rule.matches(node, labels, gpu) for rule in self.publish)

    def publishes_node(self, node: str, labels: Mapping[str, str]) -> bool:
        """Whether this node has a pool, possibly an empty one: no rule excludes the whole node."""
        for rule in reversed(self._publishing):
            if rule.matches_node(node, labels) and (rule.published or rule.gpus is None):
                return rule.published
        if any(rule.gpus is None and rule.matches_node(node, labels) for rule in self.withhold):
            return False
        return self.publish is None or any(rule.matches_node(node, labels) for rule in self.publish)

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
        rule = next((rule for rule in reversed(self.passthrough) if rule.matches(node, labels, gpu)), None)
        return None if rule is None or not rule._offers else rule

    def health_of(self, node: str, labels: Mapping[str, str]) -> HealthPolicy:
        rules = (rule.health for rule in reversed(self._health_rules) if rule.matches_node(node, labels))
        return next(rules, self.health)

    def changes_later(self, gpu: GpuFacts) -> bool:
        """Whether other rules wait for the GPU until no claim uses it. Until then, no new claim gets it."""
        return gpu.uuid in self._waiting

    def domain_rule(self, node: str, labels: Mapping[str, str]) -> DomainRule:
        """Maximum pods of one ComputeDomain on the node."""
        rules = (rule for rule in reversed(self.compute_domains) if rule.matches_node(node, labels))
        return next(rules, DomainRule(channels=1))

    def field_of(self, rule: object) -> str | None:
        """`mig[0]`, or what the rule is called; None if it is not a rule of this policy. By identity, because two rules
        may be equal."""
        for field in ("attributes", "mig", "sharing", "passthrough", "compute_domains"):
            rules: Sequence[NodeRule] = getattr(self, field)
            for index, known in enumerate(rules):
                if known is rule:
                    return known._origin or f"{type(self).model_fields[field].alias}[{index}]"
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
_RULE_FIELDS = ("publish", "withhold", "attributes", "mig", "sharing", "passthrough", "compute_domains")


def settings_of(rule: MigRule | SharingRule | NodeMig | NodeSharing) -> dict[str, Any]:
    """Without what it selects and what it is called."""
    return {name: value for name, value in dict(rule).items() if name not in ("nodes", "gpus", "rule")}


def rules_of(policy: NodePolicy) -> PublishingPolicy:
    """For the node alone, so nodes and labels do not matter. A GPU that it does not name is not published."""
    return _rules(policy.gpus, policy)


def rules_before(policy: NodePolicy) -> PublishingPolicy:
    """What held before, for the GPUs that changed the last time; no others are published."""
    return _rules(policy.before, policy)


def _rules(groups: Sequence[GpuDecisions], policy: NodePolicy) -> PublishingPolicy:
    publishing = [PublishRule(published=False, gpus=GpuSelection(names=["*"]) if policy.publish else None)]
    attributes, mig, sharing, passthrough = [], [], [], []
    for group in groups:
        gpus = GpuSelection(uuids=group.uuids)
        if group.publish and policy.publish:
            publishing.append(PublishRule(gpus=gpus, published=True))
        for attribute in group.attributes:
            attributes.append(AttributeRule(gpus=gpus, values=attribute.values).called(attribute.rule))
        if group.mig is not None:
            mig.append(MigRule(gpus=gpus, **settings_of(group.mig)).called(group.mig.rule))
        for shared in group.sharing:
            sharing.append(SharingRule(gpus=gpus, **settings_of(shared)).called(shared.rule))
        if group.passthrough is not None:
            passthrough.append(PassthroughRule(gpus=gpus).called(group.passthrough.rule))
    return PublishingPolicy(
        attributes=attributes,
        mig=mig,
        sharing=sharing,
        passthrough=passthrough,
        compute_domains=[DomainRule(channels=policy.channels)],
        health=policy.health,
    ).that_overrides(publishing, (), [waiting.uuid for waiting in policy.waiting])


_WILD = frozenset("*?[")
"""What makes a shell pattern of a text."""


def _any(patterns: list[str] | None, text: str) -> bool:
    # A rule of a node names its GPUs. To compile a pattern costs a hundred times more than to compare it, and 40,000 of
    # them are more than `fnmatch` remembers.
    return patterns is None or any(
        fnmatchcase(text, pattern) if _WILD.intersection(pattern) else text == pattern for pattern in patterns
    )
