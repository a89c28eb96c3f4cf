"""GpuPolicy (`dra.gpu/v1alpha1`, cluster-scoped): what is published of the GPUs that it selects, and how.

```yaml
apiVersion: dra.gpu/v1alpha1
kind: GpuPolicy
metadata:
  name: ml
spec:
  priority: 10                  # higher overrides lower; of equals, the first by name
  nodes: {labelSelector: {matchLabels: {pool: ml}}}
  gpus: {products: ["NVIDIA H100*"]}
  mig: {mode: Dynamic, profiles: ["1g.*", "3g.40gb"]}
```

A policy decides what it sets, and leaves everything else to policies of lower priority. `attributes` of several
policies are put together; of `sharing`, the first entry that fits a device decides.

`combined` makes the rules of a cluster of all policies. The publisher finds out what of it applies to one node, and
writes that in the status of its inventory (`NodePolicy`), where the node's plugin reads it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from dra_driver.api.gpu_settings import (
    Attributes,
    AttributeValue,
    DomainSettings,
    HealthPolicy,
    MigSettings,
    ModeName,
    SharingSettings,
    Strict,
    checked_attributes,
    when_it_changes,
)
from dra_driver.api.meta import GPU_POLICIES, Condition, JsonObject, Model, ObjectMeta, Text, Word, condition_of
from dra_driver.api.policy import (
    AttributeRule,
    DomainRule,
    GpuSelection,
    HealthRule,
    MigRule,
    NodeRule,
    NodeSelection,
    PassthroughRule,
    PublishingPolicy,
    PublishRule,
    SharingRule,
    settings_of,
)
from dra_driver.features import Feature, Gates

MOST_SHARING = 32
MOST_LISTED = 32
MOST_EXAMPLES = 8
"""Of the status."""

FILE_KIND = "PublishingPolicy"
"""Several rules in one file; no kind of the API."""
INSTALLED = "installed"
"""Prefix of the names of policies that come with the installation."""

GATE_OFF = "FeatureGateOff"
"""Reason of a problem: the driver ignores the field."""
ACCEPTED = "Accepted"
FOLLOWED = "Followed"
"""Condition types: the policy makes sense; every node does what it says."""


type SharingList = Annotated[list[SharingSettings], Field(min_length=1, max_length=MOST_SHARING)]


class GpuPolicySpec(Strict):
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0
    """A policy overrides those of lower priority; of equals, the first by name overrides the others."""
    nodes: NodeSelection | None = None
    """None: all nodes."""
    gpus: GpuSelection | None = None
    """None: all GPUs of the nodes."""
    publish: bool | None = None
    """Whether the GPUs are published. Those that no policy decides on are."""
    attributes: Attributes | None = None
    """Added to the devices, by name."""
    mig: MigSettings | None = None
    """How the GPUs are partitioned. Without a policy, what an administrator partitioned is offered."""
    sharing: SharingList | None = None
    """How several claims share a device; the first entry that fits a device decides."""
    passthrough: bool | None = None
    """Whether the GPUs are also offered to virtual machines."""
    compute_domains: DomainSettings | None = None
    """What the nodes offer to ComputeDomains."""
    health: HealthPolicy | None = None
    """How conditions of GPUs are reacted to."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.gpus is not None and (self.compute_domains is not None or self.health is not None):
            raise ValueError("computeDomains and health apply to whole nodes; move them to a policy without gpus")
        if self.attributes is not None:
            checked_attributes(self.attributes)
        return self

    def without(self, gates: Gates) -> tuple["GpuPolicySpec", tuple[tuple[str, Feature], ...]]:
        """This, without what needs a feature that is off; and those fields, each with its feature."""
        needs = [(field, feature) for field, feature in self.features if feature not in gates]
        return self.model_copy(update={field: None for field, _ in needs}), tuple(needs)

    @property
    def features(self) -> Iterator[tuple[str, Feature]]:
        """Every feature that the policy requires, with the field that requires it."""
        if self.mig is not None:
            yield from (("mig", feature) for _, feature in self.mig.features)
        for shared in self.sharing or ():
            yield from (("sharing", feature) for _, feature in shared.features)
        if self.passthrough:
            yield "passthrough", Feature.PASSTHROUGH
        if self.compute_domains is not None:
            yield "compute_domains", Feature.COMPUTE_DOMAINS
        if self.health is not None:
            yield "health", Feature.HEALTH


class PolicyProblem(Model):
    """A rule that nodes cannot follow. `nodes` counts them, `examples` names some."""

    rule: Word
    reason: Word
    nodes: int
    examples: list[Word] = Field(default_factory=list, max_length=MOST_EXAMPLES)
    message: Text
    fix: Text
    """The commands or the change that resolve it, for the first example."""


class PolicyWait(Model):
    """A GPU that changes when the claims that use it are gone, and its MIG mode is switched."""

    node: Word
    gpu: Word
    claims: list[Word] = Field(default_factory=list, max_length=MOST_EXAMPLES)
    mig_mode: ModeName | None = None
    """The MIG mode that the node's plugin switches it to by a reset, as soon as `claims` is empty. None: no reset."""

    def __str__(self) -> str:
        """`GPU gpu-5a7b8d0e of node n1 changes when claims team/a are gone`."""
        return f"GPU {self.gpu} of node {self.node} changes {when_it_changes(self.claims, self.mig_mode)}"


class GpuPolicyStatus(Model):
    """What became of a policy."""

    observed_generation: int | None = None
    nodes: int = 0
    """Nodes with GPUs that it selects."""
    gpus: int = 0
    """GPUs that it selects."""
    offered: Word = ""
    """Their published devices by kind: `8 gpu, 56 mig`."""
    waiting_gpus: int = Field(default=0, alias="waitingGPUs")
    """GPUs that change when the claims that use them are gone, or their MIG mode is switched."""
    waiting: list[PolicyWait] = Field(default_factory=list, max_length=MOST_LISTED)
    """The first of them."""
    problems: list[PolicyProblem] = Field(default_factory=list, max_length=MOST_LISTED)
    conditions: list[Condition] = Field(default_factory=list, max_length=8)
    """`Accepted` and `Followed`."""


class SeenPolicy(Model):
    """A GpuPolicy as it is in a cluster, whether it makes sense or not."""

    metadata: ObjectMeta
    spec: JsonObject = Field(default_factory=dict)
    status: GpuPolicyStatus = Field(default_factory=GpuPolicyStatus)

    @property
    def priority(self) -> int:
        value = self.spec.get("priority")
        return value if isinstance(value, int) else 0

    @property
    def refused(self) -> str | None:
        """Why it is not accepted."""
        accepted = condition_of(self.status.conditions, ACCEPTED)
        return accepted.message if accepted is not None and accepted.status == "False" else None

    @property
    def selects_nothing(self) -> bool:
        """Whether it is accepted and no GPU is selected; false before the controller has looked at it."""
        accepted = condition_of(self.status.conditions, ACCEPTED)
        return accepted is not None and accepted.status == "True" and self.status.gpus == 0


class GpuPolicy(Model):
    metadata: ObjectMeta
    spec: GpuPolicySpec
    status: GpuPolicyStatus = Field(default_factory=GpuPolicyStatus)

    @property
    def name(self) -> str:
        return self.metadata.name

    @classmethod
    def read(cls, obj: JsonObject) -> Self:
        """Raises InvalidInput that lists every problem with its field."""
        metadata = obj.get("metadata")
        name = metadata.get("name", "") if isinstance(metadata, dict) else ""
        return cls.of({**obj, "spec": obj.get("spec") or {}}, about=f"GpuPolicy {name}")

    def to_object(self) -> JsonObject:
        """To create or apply it."""
        return {
            "apiVersion": GPU_POLICIES.api_version,
            "kind": GPU_POLICIES.kind,
            "metadata": {"name": self.name},
            "spec": self.spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True),
        }


def in_order(policies: Iterable[GpuPolicy]) -> list[GpuPolicy]:
    """The one that overrides all others first."""
    return sorted(policies, key=lambda policy: (-policy.spec.priority, policy.name))


def combined(policies: Iterable[GpuPolicy]) -> PublishingPolicy:
    """The rules of all policies, those that override others last."""
    rules: dict[str, list[Any]] = defaultdict(list)
    for policy in reversed(in_order(policies)):
        for field, rule in _rules_of(policy.spec):
            rules[field].append(rule.called(f"{field} of GpuPolicy {policy.name}"))
    publishing, health = rules.pop("publish", []), rules.pop("health", [])
    return PublishingPolicy(**rules).that_overrides(publishing, health)


def _rules_of(spec: GpuPolicySpec) -> Iterator[tuple[str, NodeRule]]:
    """Each with the field that it is made of."""
    where = {"nodes": spec.nodes, "gpus": spec.gpus}
    if spec.publish is not None:
        yield "publish", PublishRule(**where, published=spec.publish)
    if spec.health is not None:
        yield "health", HealthRule(nodes=spec.nodes, health=spec.health)
    if spec.attributes is not None:
        yield "attributes", AttributeRule(**where, values=spec.attributes)
    if spec.mig is not None:
        yield "mig", MigRule(**where, **dict(spec.mig))
    for entry in reversed(spec.sharing or ()):
        yield "sharing", SharingRule(**where, **dict(entry))
    if spec.passthrough is not None:
        yield "passthrough", PassthroughRule(**where).that_offers(spec.passthrough)
    if spec.compute_domains is not None:
        yield "computeDomains", DomainRule(nodes=spec.nodes, channels=spec.compute_domains.channels)


def is_policy(obj: JsonObject) -> bool:
    """Whether it is a GpuPolicy, or several rules in one file."""
    return obj.get("apiVersion") == GPU_POLICIES.api_version and obj.get("kind") in (GPU_POLICIES.kind, FILE_KIND)


def policies_among(objects: Iterable[JsonObject], prefix: str = "file", *, about: str | None = None) -> list[GpuPolicy]:
    """The GpuPolicies, and those that say what the PublishingPolicies say, whose names begin with `prefix`. Objects of
    other kinds are passed over. Raises InvalidInput; `about` names the file for problems of PublishingPolicies."""
    made: list[GpuPolicy] = []
    files = 0
    for obj in filter(is_policy, objects):
        if obj["kind"] == GPU_POLICIES.kind:
            made.append(GpuPolicy.read(obj))
        else:
            files += 1
            policy = PublishingPolicy.of(obj, about=about)
            made += policies_of(policy, prefix if files == 1 else f"{prefix}-{files}")
    return made


def rules_among(objects: Iterable[JsonObject], *, about: str | None = None) -> PublishingPolicy:
    """What `policies_among` say together. One PublishingPolicy alone is returned as it is. Raises InvalidInput."""
    policies = [obj for obj in objects if is_policy(obj)]
    if len(policies) == 1 and policies[0]["kind"] == FILE_KIND:
        return PublishingPolicy.of(policies[0], about=about)
    return combined(policies_among(policies, about=about))


def policies_of(policy: PublishingPolicy, prefix: str) -> list[GpuPolicy]:
    """GpuPolicies that say what a policy of a file says. Their names begin with `prefix`, and their priorities are
    negative, so that they override each other as the rules do, and other policies override them."""
    made: list[GpuPolicy] = []

    def add(field: str, number: int, priority: int, rule: NodeRule | None, **settings: object) -> None:
        where = {"nodes": getattr(rule, "nodes", None), "gpus": getattr(rule, "gpus", None)}
        spec = GpuPolicySpec(priority=priority, **where, **settings)
        made.append(GpuPolicy(metadata=ObjectMeta(name=f"{prefix}-{field}-{number}"), spec=spec))

    if policy.publish is not None:
        add("publish", 0, -1003, None, publish=False)
        for number, rule in enumerate(policy.publish, 1):
            add("publish", number, -1002, rule, publish=True)
    for number, rule in enumerate(policy.withhold):
        add("withhold", number, -1001, rule, publish=False)
    for number, attribute in enumerate(policy.attributes):
        values = {name: AttributeValue.of(value.to_wire()) for name, value in attribute.values.items()}
        add("attributes", number, number - 1000, attribute, attributes=values)
    for number, mig in enumerate(policy.mig):
        add("mig", number, number - 1000, mig, mig=MigSettings(**settings_of(mig)))
    for number, shared in enumerate(policy.sharing):
        add("sharing", number, number - 1000, shared, sharing=[SharingSettings(**settings_of(shared))])
    for number, passthrough in enumerate(policy.passthrough):
        add("passthrough", number, -1000, passthrough, passthrough=True)
    for number, domains in enumerate(policy.compute_domains):
        settings = DomainSettings(channels=domains.channels)
        add("domains", number, number - 1000, domains, compute_domains=settings)
    if policy.health != HealthPolicy():
        add("health", 0, -1000, None, health=policy.health)
    return made
