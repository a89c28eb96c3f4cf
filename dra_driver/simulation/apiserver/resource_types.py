"""The table of resource types: what is served, under which names, with which subresources and selectable fields.

Built-in types are rows here; types of CustomResourceDefinitions join at run time (`crds.py`). The facts are those of
the discovery documents of a kube-apiserver 1.36.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.apirules.schema import OPEN, Schema, builtin_schema, definition_name
from dra_driver.simulation.apiserver.store import TypeKey


@dataclass(frozen=True, slots=True)
class Column:
    """A printer column of a custom type."""

    name: str
    type: str
    json_path: str
    priority: int = 0
    description: str = ""
    format: str = ""


@dataclass(frozen=True)
class ResourceType:
    """One served version of a type. Versions of one type share their objects through `key`."""

    resource: Resource
    singular: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()
    fields: tuple[str, ...] = ()
    """Selectable fields beyond metadata.name and metadata.namespace."""
    schema: Schema = field(default=OPEN, compare=False)
    custom: bool = False
    columns: tuple[Column, ...] = ()
    """Printer columns of a custom type."""
    storage_version: str = ""
    """The version under which a custom type is stored; empty for built-in types."""

    @property
    def key(self) -> TypeKey:
        group = "" if self.resource.group == _EVENTS_GROUP else self.resource.group
        return group, self.resource.plural

    @property
    def storage_api_version(self) -> str:
        """The apiVersion that stored objects carry."""
        if self.resource.group == _EVENTS_GROUP:
            return "v1"
        version = self.storage_version or self.resource.version
        return f"{self.resource.group}/{version}" if self.resource.group else version

    @cached_property
    def storage_schema(self) -> Schema:
        """The schema of stored objects."""
        if self.custom or self.storage_api_version == self.resource.api_version:
            return self.schema
        group, _, version = self.storage_api_version.rpartition("/")
        name = definition_name(group, version, self.resource.kind)
        return Schema({"$ref": name}, self.schema.definitions) if name else OPEN

    @property
    def returns_deleted(self) -> bool:
        """A delete answers the object instead of a Status."""
        return self.resource.group == _DRA_GROUP or self.key in _RETURNS_DELETED

    @property
    def unconditional_update(self) -> bool:
        """A replace may leave out the resourceVersion."""
        return not self.custom and self.key not in _CONDITIONAL_UPDATE

    @property
    def deleted_gracefully(self) -> bool:
        """A deletion is announced before it happens, with the time that the object still has."""
        return self.key == ("", "pods")

    @property
    def resets_status(self) -> bool:
        """The status of a new object is not the client's to set."""
        return "status" in self.subresources and self.key not in _KEEPS_STATUS

    def fill_status(self, obj: JsonObject) -> None:
        """The empty status that typed objects show."""
        status = self.schema.properties.get("status")
        if status is not None and status.raw.get("default") == {} and not self.custom:
            obj["status"] = {}

    @property
    def tracks_generation(self) -> bool:
        return self.custom or self.key in _WITH_GENERATION

    @property
    def selectable(self) -> tuple[str, ...]:
        namespace = ("metadata.namespace",) if self.resource.namespaced else ()
        return ("metadata.name", *namespace, *self.fields)


_DRA_GROUP = "resource.k8s.io"
_EVENTS_GROUP = "events.k8s.io"
_RETURNS_DELETED = {
    ("", name)
    for name in (
        "namespaces",
        "persistentvolumeclaims",
        "persistentvolumes",
        "pods",
        "resourcequotas",
        "serviceaccounts",
        "services",
    )
}
_CONDITIONAL_UPDATE = {
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("coordination.k8s.io", "leases"),
    ("policy", "poddisruptionbudgets"),
}
_KEEPS_STATUS = {("", "nodes"), ("", "namespaces")}
_WITH_GENERATION = {
    ("", "pods"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("apps", "daemonsets"),
    ("apps", "deployments"),
    ("apps", "replicasets"),
    ("apps", "statefulsets"),
    ("batch", "cronjobs"),
    ("batch", "jobs"),
    ("resource.k8s.io", "deviceclasses"),
    ("resource.k8s.io", "devicetaintrules"),
    ("resource.k8s.io", "resourceslices"),
}

# group, version, plural, kind, namespaced, short names, category "all", subresources, selectable fields
type _Row = tuple[str, str, str, str, bool, str, str, str, str]

_PODS_FIELDS = (
    "spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName spec.hostNetwork status.phase "
    "status.podIP status.nominatedNodeName"
)
_EVENT_FIELDS = (
    "involvedObject.kind involvedObject.namespace involvedObject.name involvedObject.uid involvedObject.apiVersion "
    "involvedObject.resourceVersion involvedObject.fieldPath reason reportingComponent source type"
)
_ROWS: tuple[_Row, ...] = (
    ("", "v1", "configmaps", "ConfigMap", True, "cm", "", "", ""),
    ("", "v1", "endpoints", "Endpoints", True, "ep", "", "", ""),
    ("", "v1", "events", "Event", True, "ev", "", "", _EVENT_FIELDS),
    ("", "v1", "limitranges", "LimitRange", True, "limits", "", "", ""),
    ("", "v1", "namespaces", "Namespace", False, "ns", "", "status", "status.phase"),
    ("", "v1", "nodes", "Node", False, "no", "", "status", "spec.unschedulable"),
    ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, "pvc", "", "status", ""),
    ("", "v1", "persistentvolumes", "PersistentVolume", False, "pv", "", "status", ""),
    (
        "", "v1", "pods", "Pod",
        True, "po", "all", "attach binding ephemeralcontainers eviction exec log portforward status", _PODS_FIELDS,
    ),
    ("", "v1", "replicationcontrollers", "ReplicationController", True, "rc", "all", "scale status", "status.replicas"),
    ("", "v1", "resourcequotas", "ResourceQuota", True, "quota", "", "status", ""),
    ("", "v1", "secrets", "Secret", True, "", "", "", "type"),
    ("", "v1", "serviceaccounts", "ServiceAccount", True, "sa", "", "", ""),
    ("", "v1", "services", "Service", True, "svc", "all", "status", "spec.clusterIP spec.type"),
    ("apps", "v1", "controllerrevisions", "ControllerRevision", True, "", "", "", ""),
    ("apps", "v1", "daemonsets", "DaemonSet", True, "ds", "all", "status", ""),
    ("apps", "v1", "deployments", "Deployment", True, "deploy", "all", "scale status", ""),
    ("apps", "v1", "replicasets", "ReplicaSet", True, "rs", "all", "scale status", "status.replicas"),
    ("apps", "v1", "statefulsets", "StatefulSet", True, "sts", "all", "scale status", ""),
    ("batch", "v1", "cronjobs", "CronJob", True, "cj", "all", "status", ""),
    ("batch", "v1", "jobs", "Job", True, "", "all", "status", "status.successful"),
    ("coordination.k8s.io", "v1", "leases", "Lease", True, "", "", "", ""),
    ("events.k8s.io", "v1", "events", "Event", True, "ev", "", "", ""),
    ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, "netpol", "", "", ""),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, "pdb", "", "status", ""),
    ("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False, "", "", "", ""),
    ("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False, "", "", "", ""),
    ("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True, "", "", "", ""),
    ("rbac.authorization.k8s.io", "v1", "roles", "Role", True, "", "", "", ""),
    ("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, "pc", "", "", ""),
    (
        "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration",
        False, "", "api-extensions", "", "",
    ),
    (
        "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy",
        False, "", "api-extensions", "status", "",
    ),
    (
        "admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding",
        False, "", "api-extensions", "", "",
    ),
    (
        "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration",
        False, "", "api-extensions", "", "",
    ),
    (
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition",
        False, "crd crds", "api-extensions", "status", "",
    ),
)  # fmt: skip

_SLICE_FIELDS = "spec.nodeName spec.driver"


def _resource_rows(minor: int) -> tuple[_Row, ...]:
    group = _DRA_GROUP
    slice_fields = _SLICE_FIELDS + (" spec.pool.name" if minor >= 37 else "")
    rows: list[_Row] = [
        (group, "v1", "deviceclasses", "DeviceClass", False, "", "", "", ""),
        (group, "v1", "resourceclaims", "ResourceClaim", True, "", "", "status", ""),
        (group, "v1", "resourceclaimtemplates", "ResourceClaimTemplate", True, "", "", "", ""),
        (group, "v1", "resourceslices", "ResourceSlice", False, "", "", "", slice_fields),
    ]
    if minor >= 37:
        rows.append((group, "v1", "devicetaintrules", "DeviceTaintRule", False, "", "", "status", ""))
    return tuple(rows)


def _builtin(row: _Row, minor: int) -> ResourceType:
    group, version, plural, kind, namespaced, short_names, categories, subresources, fields = row
    return ResourceType(
        Resource(group, version, plural, kind, namespaced),
        kind.lower(),
        tuple(short_names.split()),
        tuple(categories.split()),
        frozenset(subresources.split()),
        tuple(fields.split()),
        builtin_schema(group, version, kind, minor),
    )


class TypeRegistry:
    """The types that are served now, in the order discovery shows them."""

    def __init__(self, minor: int) -> None:
        self._types: dict[tuple[str, str, str], ResourceType] = {}
        for row in (*_ROWS, *_resource_rows(minor)):
            self.add(_builtin(row, minor))

    def add(self, kind: ResourceType) -> None:
        """Serves `kind`, in place of an earlier definition of the same version."""
        resource = kind.resource
        self._types[resource.group, resource.version, resource.plural] = kind

    def drop(self, group: str, plural: str) -> None:
        """Stops serving every version of a type."""
        for key in [key for key in self._types if (key[0], key[2]) == (group, plural)]:
            del self._types[key]

    def find(self, group: str, version: str, plural: str) -> ResourceType | None:
        return self._types.get((group, version, plural))

    def of_kind(self, api_version: str, kind: str) -> ResourceType | None:
        """By the names that objects carry, as in an owner reference; any version of the group answers."""
        group = api_version.rpartition("/")[0]
        named = [
            type_ for type_ in self._types.values() if type_.resource.group == group and type_.resource.kind == kind
        ]
        exact = [resource_type for resource_type in named if resource_type.resource.api_version == api_version]
        return next(iter(exact or named), None)

    def of_key(self, key: TypeKey) -> ResourceType | None:
        """The first served version of a type."""
        return next((type_ for type_ in self._types.values() if type_.key == key), None)

    def __iter__(self) -> Iterator[ResourceType]:
        return iter(self._types.values())

    def groups(self) -> dict[str, dict[str, list[ResourceType]]]:
        """Group to version to types; the core group is the empty string."""
        groups: dict[str, dict[str, list[ResourceType]]] = {}
        for type_ in self._types.values():
            groups.setdefault(type_.resource.group, {}).setdefault(type_.resource.version, []).append(type_)
        return groups


def sorted_by_name(types: Iterable[ResourceType]) -> list[ResourceType]:
    """The order of types within a version, in every discovery document."""
    return sorted(types, key=lambda type_: type_.resource.plural)
