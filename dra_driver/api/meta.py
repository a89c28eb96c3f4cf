"""The common parts of API objects: resource types, metadata, conditions, operators of selectors; and the base of the
typed models. On the wire, objects are plain dicts (`JsonObject`); models are typed views of the parts that the driver
uses. `Model.of(obj)` makes them at the border, `to_wire()` converts them back.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from dra_driver.errors import InvalidInput
from dra_driver.phrases import and_more, listed, meant, shown

type JsonObject = dict[str, Any]
"""A decoded JSON object. Only code at the borders uses these."""


_LONGEST_TEXT = 1024


def _shortened(text: Any) -> Any:
    too_long = isinstance(text, str) and len(text) > _LONGEST_TEXT
    return text[: _LONGEST_TEXT - 1] + "…" if too_long else text


type Word = Annotated[str, Field(max_length=253)]
"""A name, a version, an identifier."""
type Text = Annotated[str, BeforeValidator(_shortened), Field(max_length=_LONGEST_TEXT)]
"""Text for people; longer text is truncated."""

_SHOWN = 12
"""Maximum problems in a message; the error has all of them."""


class Model(BaseModel):
    """Base of wire models: camelCase on the wire, frozen, fields of newer servers ignored."""

    # Built at first use, because no process needs the validators of all models, and they take memory on each node.
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", defer_build=True
    )

    @classmethod
    def model_rebuild(cls, *, force: bool = False, raise_errors: bool = True, **_: Any) -> bool | None:
        """Names in annotations are those of modules. Pydantic would also look at the caller's local variables, and
        Python 3.13.0 crashes when those are read in the middle of a comprehension."""
        return super().model_rebuild(force=force, raise_errors=raise_errors, _types_namespace={})

    @classmethod
    def of(cls, obj: object, *, about: str | None = None) -> Self:
        """Decode. Raises InvalidInput that lists every problem with its field path."""
        try:
            return cls.model_validate(obj)
        except ValidationError as error:
            problems = [f"{_path(issue['loc'])}: {_sentence(issue, cls)}" for issue in error.errors()]
            message = and_more(problems, _SHOWN, separator="; ")
            raise InvalidInput(message, about=about or cls.__name__, problems=problems) from error

    @classmethod
    def or_none(cls, obj: object) -> Self | None:
        """Decode; None for an object that cannot be decoded."""
        try:
            return cls.of(obj)
        except InvalidInput:
            return None

    def to_wire(self) -> JsonObject:
        """The JSON object, without unset and None fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _sentence(issue: ErrorDetails, model: type[BaseModel]) -> str:
    """Pydantic's error in plain words, with a likely correction of a misspelled word."""
    match issue["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            *outer, name = issue["loc"]
            return f"unknown field{meant(name, _fields(model, outer))}"
        case "literal_error" | "enum":
            words = re.findall(r"'([^']*)'", issue["ctx"]["expected"])
            must = "must be" if len(words) == 1 else "must be one of"
            return f"is {shown(issue['input'])}; {must} {listed(words)}{meant(issue['input'], words)}"
    message = message_without_prefix(issue["msg"]).replace("Input should be ", "must be ").partition(", unable to")[0]
    return f"is {shown(issue['input'])}; {message}" if message.startswith("must be a valid ") else message


def _fields(model: type[BaseModel], location: Iterable[int | str]) -> list[str]:
    """Names of the fields of the object at `location`."""
    root = model.model_json_schema()

    def resolved(schema: JsonObject) -> JsonObject:
        for choice in (schema, *schema.get("anyOf", ())):
            if "$ref" in choice:
                return resolved(root["$defs"][choice["$ref"].rpartition("/")[2]])
            if "properties" in choice or "items" in choice:
                return dict(choice)
        return {}

    here = resolved(root)
    for part in location:
        here = resolved(here.get("items", {}) if isinstance(part, int) else here.get("properties", {}).get(part, {}))
    return [*here.get("properties", ())]


def message_without_prefix(message: str) -> str:
    """Without Pydantic's prefix for messages of custom validators."""
    return message.removeprefix("Value error, ")


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


class CoreModel(Model):
    """Base of Kubernetes' own kinds: null is the same as a missing field, as for the API server."""

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, value: Any) -> Any:
        if not isinstance(value, dict) or None not in value.values():
            return value  # as nearly always
        return {key: item for key, item in value.items() if item is not None}


class OwnerReference(CoreModel):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None


class ObjectMeta(CoreModel):
    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    owner_references: list[OwnerReference] = Field(default_factory=list)
    finalizers: list[str] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource type of the API, with the location of its objects. `group` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path, from the server's root, of a collection (no `name`), an object or a subresource of it.

        `namespace` None addresses all namespaces, or the object of a cluster-scoped type. Raises InvalidInput for a
        name that no object can have: with a slash or as `..` it would address something else.
        """
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace is not None:
            parts += ["namespaces", _segment(namespace, "Namespace")]
        parts.append(self.plural)
        if name is not None:
            parts += [_segment(name, self.kind), *([subresource] if subresource is not None else [])]
        return "/" + "/".join(parts)


def _segment(name: str, kind: str) -> str:
    """The rule is that of the API server, for names of all kinds."""
    if name in ("", ".", "..") or "/" in name or "%" in name:
        raise InvalidInput("is not a name: names are not empty, . or .., and have no / or %", about=f"{kind} {name!r}")
    return quote(name, safe=":")


RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", True)
RESOURCE_CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", True)
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False)
GPU_POLICIES = Resource("dra.gpu", "v1alpha1", "gpupolicies", "GpuPolicy", False)
NODE_INVENTORIES = Resource("dra.gpu", "v1alpha1", "nodeinventories", "NodeInventory", False)
COMPUTE_DOMAINS = Resource("resource.nvidia.com", "v1beta1", "computedomains", "ComputeDomain", True)
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet", True)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True)
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True)
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet", True)
JOBS = Resource("batch", "v1", "jobs", "Job", True)
CRON_JOBS = Resource("batch", "v1", "cronjobs", "CronJob", True)
WORKLOADS = (DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS, DAEMON_SETS, JOBS, CRON_JOBS)
"""Kubernetes' own kinds that make pods."""
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", True)
NODES = Resource("", "v1", "nodes", "Node", False)
PODS = Resource("", "v1", "pods", "Pod", True)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False)
EVENTS = Resource("", "v1", "events", "Event", True)
SECRETS = Resource("", "v1", "secrets", "Secret", True)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", True)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", True)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", True)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False)

# -- conditions


class Condition(Model):
    """One statement about an object."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    last_transition_time: str
    """RFC 3339, UTC, seconds: when `status` last changed."""
    observed_generation: int | None = None


def condition_of(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """The condition of this type; None if there is none."""
    return next((condition for condition in conditions if condition.type == type_), None)


def dated(condition: Condition, before: Iterable[Condition]) -> Condition:
    """With the transition time of the condition of this type in `before`, if its status is the same."""
    known = next((old for old in before if old.type == condition.type and old.status == condition.status), None)
    since = known.last_transition_time if known is not None else condition.last_transition_time
    return condition.model_copy(update={"last_transition_time": since})


def wire_time(time: datetime) -> str:
    """A time as the API writes it, with seconds: RFC 3339."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time(time: datetime) -> str:
    """The same with microseconds, as in leases, Events and registrations."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# -- selectors

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")


def requirement_holds(operator: str, value: str | None, wanted: Iterable[str]) -> bool:
    """Whether a requirement of a selector holds. `value` None: the label is missing. An unknown operator, or a bound
    that is not a number, selects nothing.

    Source: core/v1 NodeSelectorRequirement and meta/v1 LabelSelectorRequirement.
    """
    values = tuple(wanted)
    match operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" if value is not None and len(values) == 1:
            if not (_WHOLE_NUMBER.fullmatch(value) and _WHOLE_NUMBER.fullmatch(values[0])):
                return False
            return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    return False
