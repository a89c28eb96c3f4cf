"""The table of resource types: what is served, under which names, with which subresources and selectable fields.

Built-in types are rows of `resource_types.yaml`; types of CustomResourceDefinitions join at run time (`crds.py`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.apirules.schema import OPEN, Schema, builtin_schema
from dra_driver.bundled import read_yaml
from dra_driver.simulation.apiserver.store import TypeKey


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a type's table. `path` leads to the value, or names a function of `tables.py`; `missing` is shown for
    a text or a number that is not there, if it is not None."""

    name: str
    type: str
    path: str
    priority: int = 0
    description: str = ""
    format: str = ""
    missing: str | None = None

    @classmethod
    def read(cls, text: str, filled: str | None) -> "Column":
        """In the form of `resource_types.yaml`."""
        name, _, type_ = text.partition(":")
        path, _, missing = (filled or name.lower().replace(" ", "_")).partition("|")
        form = "name" if name == "Name" else ""
        return cls(name.rstrip("*"), type_ or "string", path, int("*" in name), format=form, missing=missing)


NAME_AND_AGE: Mapping[str, str | None] = {"Name": None, "Age": None}
"""The columns of types that show nothing else."""


@dataclass(frozen=True)
class ResourceType:
    """One served version of a type. Versions of one type share their objects through `key`."""

    resource: Resource
    singular: str
    columns: tuple[Column, ...]
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()
    fields: tuple[str, ...] = ()
    """Selectable fields beyond metadata.name and metadata.namespace."""
    schema: Schema = field(default=OPEN, compare=False)
    marks: frozenset[str] = frozenset()
    """How it differs from other types; see `resource_types.yaml`."""
    defaults: JsonObject = field(default_factory=dict, compare=False)
    """What a built-in type fills in; custom ones have defaults in their schema."""
    storage_version: str = ""
    """The version under which a custom type is stored; empty for built-in types."""

    @property
    def custom(self) -> bool:
        return bool(self.storage_version)

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

    @property
    def resets_status(self) -> bool:
        """The status of a new object is not the client's to set."""
        return "status" in self.subresources and "own status" not in self.marks

    @property
    def empty_status(self) -> JsonObject:
        """What typed objects show while they have no status."""
        status = self.schema.properties.get("status")
        shown = status is not None and status.raw.get("default") == {} and not self.custom
        return {"status": {}} if shown else {}

    @property
    def selectable(self) -> tuple[str, ...]:
        namespace = ("metadata.namespace",) if self.resource.namespaced else ()
        return ("metadata.name", *namespace, *self.fields)


_EVENTS_GROUP = "events.k8s.io"


@cache
def _table() -> JsonObject:
    text = files(__package__).joinpath("resource_types.yaml").read_text(encoding="utf-8")
    table: JsonObject = read_yaml(text)
    return table


def _builtin_types(minor: int) -> Iterator[ResourceType]:
    for api_version, rows in _table().items():
        group, _, version = api_version.rpartition("/")
        for plural, row in rows.items():
            yield ResourceType(
                Resource(group, version, plural, row["kind"], not row.get("cluster")),
                row["kind"].lower(),
                tuple(Column.read(*item) for item in row.get("columns", NAME_AND_AGE).items()),
                tuple(row.get("short", ())),
                tuple([row["category"]] if "category" in row else ()),
                frozenset(row.get("subresources", ())),
                tuple(row.get("fields", ())),
                builtin_schema(group, version, row["kind"], minor),
                frozenset(row.get("is", ())),
                row.get("defaults", {}),
            )


class TypeRegistry:
    """The types that are served now, in the order discovery shows them."""

    def __init__(self, minor: int) -> None:
        self._types: dict[tuple[str, str, str], ResourceType] = {}
        for kind in _builtin_types(minor):
            self.add(kind)

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
        named = [type_ for type_ in self if (type_.resource.group, type_.resource.kind) == (group, kind)]
        exact = [type_ for type_ in named if type_.resource.api_version == api_version]
        return next(iter(exact or named), None)

    def of_key(self, key: TypeKey) -> ResourceType | None:
        """The first served version of a type."""
        return next((type_ for type_ in self if type_.key == key), None)

    def __iter__(self) -> Iterator[ResourceType]:
        return iter(self._types.values())

    def groups(self) -> dict[str, dict[str, list[ResourceType]]]:
        """Group to version to types; the core group is the empty string."""
        groups: dict[str, dict[str, list[ResourceType]]] = {}
        for type_ in self:
            groups.setdefault(type_.resource.group, {}).setdefault(type_.resource.version, []).append(type_)
        return groups
