"""What of the nodes' hardware is published: written by an administrator as YAML, decoded strictly.

```yaml
apiVersion: dra.gpu/v1alpha1
kind: PublishingPolicy
publish:                        # left out: every GPU of every node
- nodes: {labelSelector: {matchLabels: {pool: ml}}}
  gpus: {products: ["NVIDIA H100*"]}
withhold:                       # wins over publish
- nodes: {names: ["build-*"]}
- gpus: {uuids: [GPU-5a7b8d0e-...]}
attributes:                     # added to the devices; of several rules the last one wins
- nodes: {names: ["rack1-*"]}
  values: {rack: r1, tier: 2, spot: false, example.com/firmware: {version: 1.4.0}}
```

In `nodes` and `gpus` everything that is given must hold, and in each list one entry is enough. Names, products and
UUIDs may be shell patterns. A node or GPU selection that is left out selects all.
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
from dra_driver.errors import InvalidInput
from dra_driver.names import GPU_ATTRIBUTES, STANDARD_DOMAIN
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
        if self.operator == "In":
            return labels.get(self.key) in self.values
        if self.operator == "NotIn":
            return labels.get(self.key) not in self.values
        return (self.key in labels) == (self.operator == "Exists")


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
        raise ValueError("wants a mapping of attribute names to values")
    return {_attribute_name(name): _attribute(name, value) for name, value in values.items()}


class AttributeRule(Rule):
    values: Annotated[dict[str, Attribute], BeforeValidator(_attributes)]


class PublishingPolicy(_Strict):
    """The default, `PublishingPolicy()`, publishes every GPU of every node and adds nothing."""

    EVERYTHING: ClassVar["PublishingPolicy"]

    api_version: Literal["dra.gpu/v1alpha1"] = "dra.gpu/v1alpha1"
    kind: Literal["PublishingPolicy"] = "PublishingPolicy"
    publish: Annotated[list[Rule], Field(min_length=1)] | None = None
    withhold: list[Rule] = Field(default_factory=list)
    attributes: list[AttributeRule] = Field(default_factory=list)

    @property
    def asks_for_labels(self) -> bool:
        """Whether nodes' labels matter; without, nobody needs to watch nodes."""
        rules = (*(self.publish or ()), *self.withhold, *self.attributes)
        return any(rule.nodes is not None and rule.nodes.label_selector is not None for rule in rules)

    def publishes(self, node: str, labels: Mapping[str, str], gpu: GpuFacts) -> bool:
        if any(rule.matches(node, labels, gpu) for rule in self.withhold):
            return False
        return self.publish is None or any(rule.matches(node, labels, gpu) for rule in self.publish)

    def publishes_node(self, node: str, labels: Mapping[str, str]) -> bool:
        """Whether this node has a pool at all, be it an empty one: no rule about it as a whole says otherwise."""
        whole = [rule.nodes for rule in self.withhold if rule.gpus is None]
        if any(nodes is None or nodes.matches(node, labels) for nodes in whole):
            return False
        return self.publish is None or any(
            rule.nodes is None or rule.nodes.matches(node, labels) for rule in self.publish
        )

    def extra_attributes(self, node: str, labels: Mapping[str, str], gpu: GpuFacts) -> dict[str, Attribute]:
        extra: dict[str, Attribute] = {}
        for rule in self.attributes:
            if rule.matches(node, labels, gpu):
                extra.update(rule.values)
        return extra


PublishingPolicy.EVERYTHING = PublishingPolicy()


class _UniqueKeys(yaml.SafeLoader):
    """YAML lets a later key silently win over an earlier one of the same name; a policy must not."""

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
    if name in GPU_ATTRIBUTES:
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
    raise ValueError(f"{name}: wants a string, an integer, true, false, or {{version: <semver>}}")
