"""Whether migrating the parts of kustomize folders gives what migrating the built whole would. Pure.

A base asks for a GPU on a node of some model, and an overlay for four, for another node, or for a toleration less: each
is migrated where it stands, and only together do they make a pod. What the folders build after the migration is
compared with what the migration makes of what they built before; where the two differ, the parts keep to what they had.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.migration.building import Tree
from dra_driver.migration.changes import ANNOTATION, changed
from dra_driver.migration.model import Demand, Edit, Path, PodReading, PodSpecAt, Put, Remove
from dra_driver.migration.selecting import Built, Key

type Alone = Callable[[JsonObject], tuple[JsonObject, Sequence[JsonObject]]]
"""What becomes of an object that stands for itself, and the templates that it names then."""

_TEMPLATE = "ResourceClaimTemplate"


@dataclass(slots=True, eq=False)
class Strayed:
    """What the folders build otherwise than the migration of the whole would have it."""

    reasons: dict[Key, str] = field(default_factory=dict)
    """Documents whose claims would change the meaning of a pod, and why, as a sentence."""
    labels: dict[tuple[PurePosixPath, str], tuple[str, ...]] = field(default_factory=dict)
    """By folder and kind and name of the object: labels of GPUs that patches put on its nodes, and that stay there."""


def strayed(before: Tree, after: Tree, converted: Set[Key], kept: Mapping[Key, str], alone: Alone) -> Strayed:
    """`converted` are the documents that were given claims, `kept` patches that stay as they are, and why."""
    found = Strayed()
    for folder in before.folders:
        there = before.built(folder)
        was = [one for one in there if not converted.isdisjoint({*one.parts, *one.sources})]
        if not was:
            continue
        now, old = after.built(folder), [one.obj for one in there]
        broken = next((one.unknown for one in now if one.unknown and one.obj.get("kind") == _TEMPLATE), None)
        for one, new in _paired(was, now):
            told = broken or _twice(now) or _difference(one, new, [new.obj for new in now], old, alone)
            if isinstance(told, str):
                parts = (*one.parts, *sorted(one.sources))
                told = next((kept[key] for key in one.parts if key in kept), told)
                found.reasons |= {key: _sentence(one, folder, told) for key in parts if key not in found.reasons}
            elif told:
                found.labels[folder, _title(one)] = told
    return found


def _paired(was: Sequence[Built], now: Sequence[Built]) -> Iterator[tuple[Built, Built | None]]:
    """Objects of one file with one kind and name are told apart by their order."""
    left: dict[Key, list[Built]] = {}
    for one in now:
        left.setdefault(one.key, []).append(one)
    for one in was:
        yield one, left[one.key].pop(0) if left.get(one.key) else None


def _difference(
    was: Built, now: Built | None, beside: Sequence[JsonObject], old: Sequence[JsonObject], alone: Alone
) -> str | tuple[str, ...] | None:
    """Why it is not what it should be; or the labels that a patch keeps with the pod; None: there is no difference.

    `beside` are the objects of the folder, `old` those that it had before.
    """
    if was.unknown:
        return was.unknown
    if now is None or now.unknown:
        return now.unknown if now is not None else "it would not be there any more"
    wanted, templates = alone(was.obj)
    built = _comparable(now.obj, beside)
    if _comparable(wanted, (*templates, *old)) == built:
        return None
    kept = dict(_kept_labels(wanted, now.obj, ()))
    if kept:
        wanted, templates = alone(changed(was.obj, [Remove((*path, key)) for path in kept for key in kept[path]]))
        wanted = changed(wanted, [Put((*path, key), one) for path in kept for key, one in kept[path].items()])
        if _comparable(wanted, (*templates, *old)) == built:
            return tuple(sorted({key for labels in kept.values() for key in labels}))
    others = sorted({file for file, *_ in was.parts[1:]} | was.replaced)
    return f"what is changed there ({', '.join(others)}) would not fit the claims" if others else "it would differ"


def _twice(now: Sequence[Built]) -> str | None:
    """Of one base that is built several times, prefixes and namespaces tell the templates apart."""
    templates = [one for one in now if one.obj.get("kind") == _TEMPLATE]
    told = [(name, one.names, one.namespaces) for one in templates for name, _ in _templates([one.obj])]
    twice = next((name for index, (name, *rest) in enumerate(told) if (name, *rest) in told[:index]), None)
    return f"two files would bring the template {twice}" if twice is not None else None


def _kept_labels(wanted: Any, now: Any, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Of each node selector: the labels that are there and should have become a condition of the claim."""
    if isinstance(now, dict):
        for key, one in now.items():
            other = wanted.get(key) if isinstance(wanted, dict) else None
            if key == "nodeSelector" and isinstance(one, dict):
                there = other if isinstance(other, dict) else {}
                if labels := {name: value for name, value in one.items() if name not in there}:
                    yield (*path, key), labels
            else:
                yield from _kept_labels(other, one, (*path, key))
    elif isinstance(now, list) and isinstance(wanted, list) and len(now) == len(wanted):
        for index, one in enumerate(now):
            yield from _kept_labels(wanted[index], one, (*path, index))


def _title(one: Built) -> str:
    return f"{one.obj.get('kind')} {one.key[2]}"


def _sentence(one: Built, folder: PurePosixPath, why: str) -> str:
    return (
        f"in {folder}, {_title(one)} would not mean the same with claims: {why}; "
        "migrate what kustomize renders instead (kubectl kustomize FOLDER | dractl migrate -)"
    )


# -- compared without what is only a name


def _comparable(obj: JsonObject, objects: Sequence[JsonObject]) -> str:
    text = json.dumps(plainly(obj), sort_keys=True)
    for name, spec in _templates(objects):
        text = text.replace(f'"{name}"', spec).replace(f'\\"{name}\\"', spec)
    return text


def _templates(objects: Sequence[JsonObject]) -> Iterator[tuple[str, str]]:
    for one in objects:
        metadata = one.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        if one.get("kind") == _TEMPLATE and isinstance(name, str):
            yield name, json.dumps(one.get("spec"), sort_keys=True)


def plainly(value: Any, name: str = "") -> Any:
    """Without what the migration remembers, and with the order of what has none."""
    if isinstance(value, dict):
        inner = {key: plainly(one, key) for key, one in value.items() if key != ANNOTATION}
        return {key: one for key, one in inner.items() if one not in ({}, [])}
    if isinstance(value, list):
        items = [plainly(one) for one in value]
        return sorted(items, key=lambda one: json.dumps(one, sort_keys=True)) if name == "tolerations" else items
    return value


# -- a patch, read as a part of what it patches


def as_part(pod: PodSpecAt, own: PodReading, whole_pod: PodSpecAt, whole: PodReading, *, alone: bool) -> PodReading:
    """What a patch asks for, with what the object that it is put over says of the devices.

    `own` is read of the patch, `whole` of the object with it; `alone`: the object asks for GPUs only by this patch.
    """
    wanted = {_users(one): one for one in whole.demands}
    if {_users(one) for one in own.demands} == wanted.keys() and len(wanted) == len(own.demands):
        demands = tuple(
            replace(one, want=wanted[_users(one)].want, alternatives=wanted[_users(one)].alternatives)
            for one in own.demands
        )
        own = replace(own, demands=demands)
    if "tolerations" in pod.spec:
        return own
    # Kustomize takes a patch's list instead of the object's, which would lose its tolerations.
    where = (*pod.path, "tolerations")
    kept = tuple(one for one in own.edits if one.path[:-1] != where)
    return replace(own, edits=(*kept, *_all_tolerations(whole_pod, whole, where)) if alone else kept)


def _users(demand: Demand) -> tuple[str, ...]:
    return tuple(one.name for one in demand.containers)


def _all_tolerations(pod: PodSpecAt, reading: PodReading, where: Path) -> Iterator[Edit]:
    """Those that the object has, where one is added to them."""
    added = [one.value for one in reading.edits if isinstance(one, Put) and one.path[:-1] == (*pod.path, "tolerations")]
    there = pod.spec.get("tolerations")
    if added:
        for index, one in enumerate([*(there if isinstance(there, list) else ()), *added]):
            yield Put((*where, index), one)
