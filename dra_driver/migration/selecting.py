"""Objects while kustomize builds them, and which of them selectors find: targets of patches and replacements. Pure.

Kustomize finds an object by each name and namespace that it has had.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.migration.kind_table import kind_of
from dra_driver.migration.model import value_at

type Key = tuple[str, str, str]
"""Of a document: its file, kind and name. Patches that are written into a kustomization are of its file."""


@dataclass(slots=True, eq=False)
class Built:
    """An object, after the patches so far."""

    obj: JsonObject
    key: Key
    names: set[str]
    """All that it has had."""
    parts: list[Key] = field(default_factory=list)
    """Documents that it is made of: its own first, then patches."""
    given: dict[str, JsonObject] = field(default_factory=dict)
    """What kustomizations put into its metadata, by which patches find it: `labels`, `annotations`."""
    namespaces: set[str] = field(default_factory=set)
    """That they put it into."""
    sources: set[Key] = field(default_factory=set)
    """Parts of others, of which values were copied into it."""
    replaced: set[str] = field(default_factory=set)
    """Where it is said that they are copied: kustomizations and files."""
    unknown: str = ""
    """Why it is not known what it is; empty: it is."""


def is_of_one(target: Mapping[str, Any]) -> bool:
    """Whether it names its object, of which kustomize has no two."""
    told = [target.get(name) for name in ("kind", "name")]
    return all(isinstance(one, str) and re.fullmatch(r"[\w.-]+", one) and ".*" not in one for one in told)


def is_named(document: Document, one: Built) -> bool:
    """Whether a patch without a target is for it."""
    return kind_of(document.obj) == kind_of(one.obj) and document.name in one.names


def is_chosen(told: Mapping[str, Any], one: Built, *, exactly: bool = False) -> bool:
    """By a target: whether it is, or was, of this kind and name."""
    fits = _equals if exactly else _fits
    group, kind = kind_of(one.obj)
    version = f"{one.obj.get('apiVersion')}".rpartition("/")[2]
    return (
        fits(told.get("group"), group)
        and fits(told.get("version"), version)
        and fits(told.get("kind"), kind)
        and any(fits(told.get("name"), name) for name in one.names)
        and any(fits(told.get("namespace"), name) for name in _namespaces(one))
        and _selected(told.get("labelSelector"), one, "labels")
        and _selected(told.get("annotationSelector"), one, "annotations")
    )


def _fits(pattern: object, text: str) -> bool:
    """An expression for all of it; what is not said fits."""
    if not isinstance(pattern, str) or not pattern:
        return True
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error:
        return pattern == text


_TERM = re.compile(r"\s*(!?)([^\s=!,()]+)\s*(?:(==?|!=)\s*([^\s=!,()]*))?\s*")


def _selected(selector: object, one: Built, field_: str) -> bool:
    if not isinstance(selector, str) or not selector.strip():
        return True
    there = value_at(one.obj, ("metadata", field_))
    there = {**(there if isinstance(there, dict) else {}), **one.given.get(field_, {})}
    terms = [_TERM.fullmatch(term) for term in selector.split(",")]
    if None in terms:
        one.unknown = one.unknown or f"the selector {selector!r} of a patch is not followed"
        return False
    return all(_holds(there, *term.groups()) for term in terms if term is not None)


def _holds(there: Mapping[str, Any], absent: str, key: str, operator: str | None, value: str | None) -> bool:
    if operator is None:
        return (key in there) != bool(absent)
    return (there.get(key) == value) == (operator != "!=")


def is_target(target: object, one: Built) -> bool:
    """Of a replacement."""
    select = value_at(target, ("select",))
    reject = value_at(target, ("reject",))
    if not isinstance(select, dict) or not is_chosen(select, one):
        return False
    return not any(isinstance(not_, dict) and is_chosen(not_, one) for not_ in (reject or ()))


def _equals(wanted: object, text: str) -> bool:
    return not wanted or wanted == text


def rename(found: Sequence[Built], document: Document) -> None:
    prefix, suffix = (value_at(document.obj, (name,)) or "" for name in ("namePrefix", "nameSuffix"))
    if prefix or suffix:
        for one in found:
            one.names |= {f"{prefix}{name}{suffix}" for name in one.names}


def give(found: Sequence[Built], document: Document) -> None:
    """Labels, annotations and the namespace that a kustomization puts into all of its objects."""
    pairs = [value_at(document.obj, ("commonLabels",))]
    listed = document.obj.get("labels")
    pairs += [value_at(one, ("pairs",)) for one in (listed if isinstance(listed, list) else ())]
    given = {"labels": pairs, "annotations": [value_at(document.obj, ("commonAnnotations",))]}
    namespace = value_at(document.obj, ("namespace",))
    for one in found:
        for name, some in given.items():
            for more in some:
                one.given[name] = {**one.given.get(name, {}), **(more if isinstance(more, dict) else {})}
        one.namespaces |= {namespace} if isinstance(namespace, str) else set()


def _namespaces(one: Built) -> set[str]:
    """As it is written, and wherever it was put."""
    own = value_at(one.obj, ("metadata", "namespace"))
    return {own if isinstance(own, str) and own else "default", *one.namespaces}
