"""Kueue: queues that count devices of claims under names of their own, and classes that are mapped to them. Pure.

A workload whose claims have a class that no mapping names is never admitted, and a class has one name only. So classes
that one resource became share a name, a name that an administrator gave is kept, and where two resources of a queue
became one name their amounts are added up. From 0.19 on pods with the extended resource of a mapped class are counted
under that name, too. Source: pkg/dra and apis/config of Kueue 0.14 to 0.19.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.migration.amounts import profile_of
from dra_driver.migration.claims import class_name
from dra_driver.migration.codes import NO_CLAIMS_HERE, NODE_ONLY_LABEL, QUOTA, Severity
from dra_driver.migration.counting import MEMORY, Found, World, amount_of, dicts
from dra_driver.migration.label_table import is_gpu_label
from dra_driver.migration.model import Finding, Path, Put, Remove, Target, What, finding, value_at
from dra_driver.names import INVENTORY_GROUP
from dra_driver.quantity import Quantity

GROUP = "kueue.x-k8s.io"
PREFIX = f"{INVENTORY_GROUP}/"
"""Of the names that are given here; not the extended resource's, which pods may use, too."""
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_QUEUES = ("ClusterQueue", "Cohort")
_LIMITS = ("nominalQuota", "borrowingLimit", "lendingLimit")
_SHARES = "shares"


# -- names of classes


@dataclass(frozen=True, slots=True)
class ClassMapping:
    """An entry of `deviceClassMappings`. `source` None: devices are counted."""

    name: str
    classes: tuple[str, ...]
    source: JsonObject | None = None

    @property
    def entry(self) -> JsonObject:
        entry: JsonObject = {"name": self.name, "deviceClassNames": list(self.classes)}
        return entry if self.source is None else {**entry, "sources": [self.source]}


@dataclass(frozen=True, slots=True)
class Names:
    """`of_resource`: under which name a resource of queues counts claims. `mappings` are to be written."""

    of_resource: Mapping[str, str]
    mappings: tuple[ClassMapping, ...]
    units: Mapping[str, Fraction]
    """Of resources whose number is another under the name: what one of them is."""


def names(documents: Iterable[Document], world: World, given: Mapping[str, str]) -> Names:
    """For the resources of all queues, and the classes of queued workloads. `given` are classes that have a name."""
    resources = [one for one in dict.fromkeys(_covered_resources(documents)) if _gets_claims(one, world)]
    of_resource: dict[str, str] = {}
    units: dict[str, Fraction] = {}
    mappings: list[ClassMapping] = []
    for group in _by_classes(resources, world):
        classes = tuple(sorted({name for one in group for name in _classes(one, world)}))
        source = _source(group, classes, world)
        counted = [one for one in group if _dimension(one, source, world)]
        known = next((given[name] for name in classes if name in given), None)
        name = known or _name(classes, source, world)
        of_resource |= dict.fromkeys(counted, name)
        units |= {one: unit for one in counted if (unit := _unit(one, source, world)) != 1}
        if any(one not in given for one in classes):
            mappings.append(ClassMapping(name, tuple(one for one in classes if one not in given), source))
    mapped = {*given, *(name for one in mappings for name in one.classes)}
    for name in sorted({name for *_, name in _queued(world)} - mapped):
        mappings.append(ClassMapping(PREFIX + _label(name), (name,)))
    return Names(of_resource, tuple(mappings), units)


def _covered_resources(documents: Iterable[Document]) -> Iterator[str]:
    for document in documents:
        if document.kind in _QUEUES and document.api_version.startswith(f"{GROUP}/"):
            for group in dicts(value_at(document.obj, ("spec", "resourceGroups"))):
                covered = group.get("coveredResources")
                yield from (one for one in covered if isinstance(one, str)) if isinstance(covered, list) else ()


def _gets_claims(resource: str, world: World) -> bool:
    known = world.is_number(resource) or world.unit_of(resource) is not None
    return known and world.is_old(resource) and world.state(resource).claims


def _by_classes(resources: Sequence[str], world: World) -> list[list[str]]:
    """Resources with a class in common stand together: Kueue gives a class one name."""
    groups: list[list[str]] = []
    for resource in resources:
        classes = set(_classes(resource, world))
        joined = [one for one in groups if classes & {name for other in one for name in _classes(other, world)}]
        groups = [one for one in groups if one not in joined]
        groups.append([*(other for one in joined for other in one), resource])
    return groups


def _classes(resource: str, world: World) -> tuple[str, ...]:
    return world.state(resource).classes


def _source(group: Sequence[str], classes: Sequence[str], world: World) -> JsonObject | None:
    """What is charged instead of a number of devices, where that says what the old resource said."""
    options = world.options
    profiles = [one for one in group if profile_of(one) is not None]
    if options.dynamic_mig and len(profiles) == len(group) > 1:
        return {"counter": _counted(MEMORY, world, What.MIG.value)}
    if tuple(classes) != (options.shared_class,):
        return None
    numbers = [one for one in group if world.is_number(one)]
    amounts = [unit.dimension for one in group if (unit := world.unit_of(one)) is not None]
    wants = [want for one in numbers for want in world.state(one).wants]
    if not numbers:
        return {"capacity": _counted(MEMORY if MEMORY in amounts else amounts[0], world, None)}
    several = any(want.share is not None and (want.share.number or 1) > 1 for want in wants)
    return {"capacity": _counted(_SHARES, world, None)} if several else None


def _counted(name: str, world: World, kind: str | None) -> JsonObject:
    """Names are compared as they are written: slices and claims have them without a domain."""
    driver = world.options.driver
    expression = f"device.driver == '{driver}'"
    if kind is not None:
        expression += f" && device.attributes['{driver}'].type == '{kind}'"
    return {"name": name, "driver": driver, "deviceSelector": {"cel": {"expression": expression}}}


def _dimension(resource: str, source: JsonObject | None, world: World) -> bool:
    """Whether the mapping charges what the resource says."""
    unit = world.unit_of(resource)
    charged = source["capacity"]["name"] if source is not None and "capacity" in source else None
    return charged == unit.dimension if unit is not None else charged in (None, _SHARES)


def _unit(resource: str, source: JsonObject | None, world: World) -> Fraction:
    unit = world.unit_of(resource)
    if unit is not None:
        return unit.one
    profile = profile_of(resource.removesuffix(".shared"))
    if source is not None and "counter" in source and profile is not None:
        gigabytes = profile.partition("g.")[2].partition("gb")[0]
        return Quantity.parse(f"{gigabytes}Gi").value
    return Fraction(1)


def _name(classes: Sequence[str], source: JsonObject | None, world: World) -> str:
    first = world.options.gpu_class if world.options.gpu_class in classes else classes[0]
    charged = next(iter(source.values()))["name"] if source is not None else _SHARES
    return PREFIX + _label(first) + (f"-{charged}" if charged != _SHARES else "")


def _label(class_of: str) -> str:
    return class_of.split(".")[0]


# -- ClusterQueue and Cohort


def queue(found: Found, world: World, known: Names) -> None:
    groups = dicts(value_at(found.obj, ("spec", "resourceGroups")))
    covered = {one for group in groups for one in _texts(group.get("coveredResources"))}
    for index, group in enumerate(groups):
        path: Path = ("spec", "resourceGroups", index)
        renamed: dict[str, list[int]] = {}
        for position, resource in enumerate(_texts(group.get("coveredResources"))):
            name = known.of_resource.get(resource)
            if name is not None and name not in covered:
                renamed.setdefault(name, []).append(position)
            elif name is None and world.is_old(resource):
                _not_renamed(found, world, (*path, "coveredResources", position), resource)
        added = 0
        for name, positions in renamed.items():
            added += _renamed(found, world, known, path, group, name, positions, added)


def covers(document: Document, mapping: ClassMapping, known: Names) -> bool:
    """Whether the queue counts by it, or is to."""
    return any(known.of_resource.get(one, one) == mapping.name for one in _covered_resources([document]))


def _texts(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []


def _not_renamed(found: Found, world: World, path: Path, resource: str) -> None:
    state = world.state(resource)
    if state.known and not state.claims:
        message = f"{resource} goes on counting: workloads stay with the extended resource"
        found.say(QUOTA, path, message, severity=Severity.INFO, advice="")
    else:
        message = f"{resource}: Kueue counts one amount of a class, and this is not the one"
        advice = "Take it out of the queue: pods that have claims do not ask for it."
        found.say(QUOTA, path, message, advice=advice)


def _renamed(
    found: Found, world: World, known: Names, path: Path, group: JsonObject, name: str, positions: list[int],
    added: int,
) -> int:  # fmt: skip
    """How many resources were put at the end."""
    covered = _texts(group["coveredResources"])
    resources = [covered[one] for one in positions]
    flavors = dicts(group.get("flavors"))
    rows = [[_row(flavor, resource) for resource in resources] for flavor in flavors]
    where = (*path, "coveredResources", positions[0])
    if not flavors or any(None in row for row in rows):
        found.say(QUOTA, where, f"{', '.join(resources)}: not each flavor says how much of it there is")
        return 0
    old = any(world.state(one).old for one in resources)
    end = len(covered) + added
    found.edits.append(Put((*path, "coveredResources", end) if old else where, name))
    found.edits += [Remove((*path, "coveredResources", one)) for one in positions[1:] if not old]
    for index, row in enumerate(rows):
        entries = dicts(flavors[index]["resources"])
        places = [place for place in row if place is not None]
        at = (*path, "flavors", index, "resources")
        summed = _summed([entries[place] for place in places], resources, known)
        if old:
            merged = {**entries[places[0]], **summed, "name": name}
            found.edits.append(Put((*at, end), {key: value for key, value in merged.items() if value is not None}))
            continue
        found.edits.append(Put((*at, places[0], "name"), name))
        found.edits += [Put((*at, places[0], key), value) for key, value in summed.items() if value is not None]
        found.edits += [Remove((*at, places[0], key)) for key, value in summed.items() if value is None]
        found.edits += [Remove((*at, place)) for place in places[1:]]
    found.reason = "claims are counted under a name of their own"
    _say_renamed(found, world, where, resources, name, old=old)
    return int(old)


def _row(flavor: JsonObject, resource: str) -> int | None:
    entries = dicts(flavor.get("resources"))
    return next((place for place, one in enumerate(entries) if one.get("name") == resource), None)


def _summed(entries: Sequence[JsonObject], resources: Sequence[str], known: Names) -> dict[str, Any]:
    """What differs from the first entry's amounts. None: it goes, since one of them has no such limit."""
    units = [known.units.get(one, Fraction(1)) for one in resources]
    if len(entries) == 1 and units == [1]:
        return {}
    found: dict[str, Any] = {}
    for key in _LIMITS:
        amounts = [amount.value for one in entries if (amount := amount_of(one.get(key))) is not None]
        if len(amounts) == len(entries):
            total = sum((amount * unit for amount, unit in zip(amounts, units, strict=True)), Fraction(0))
            found[key] = _written(total)
        elif key in entries[0]:
            found[key] = None
    return found


def _written(total: Fraction) -> int | str:
    """A number, or an amount of memory as people write it."""
    for suffix, one in (("Gi", 1 << 30), ("Mi", 1 << 20)):
        if total and total % one == 0:
            return f"{total // one}{suffix}"
    return int(total) if total.denominator == 1 else str(Quantity(total))


def _say_renamed(found: Found, world: World, where: Path, resources: Sequence[str], name: str, *, old: bool) -> None:
    classes = sorted({one for resource in resources for one in _classes(resource, world)})
    names_of = ", ".join(resources)
    more = "; a class is counted as a whole, so the amounts are added up" if len(resources) > 1 else ""
    if not old:
        message = f"{names_of} became {name}, which counts claims of class {' and '.join(classes)}{more}"
        found.say(QUOTA, where, message, fixed=True, severity=Severity.INFO, advice="")
        return
    message = f"{name} counts claims of class {' and '.join(classes)} beside {names_of}, with as much{more}"
    advice = (
        "Before Kueue 0.19 each of the two counts for itself: divide the amounts. From 0.19 on pods with the extended "
        "resource of such a class count under the new name, too, and the old one can go with the device plugin."
    )
    found.say(QUOTA, where, message, fixed=True, advice=advice)


# -- what Kueue does not admit


def queued(world: World, minor: int | None, known: Names) -> Iterator[Finding]:
    """Workloads that Kueue holds for what their claims have. `minor` is of Kueue's version, 0.`minor`."""
    covered = set(known.of_resource.values())
    for document, path, name in _queued(world):
        mapping = next((one for one in known.mappings if name in one.classes), None)
        if mapping is not None and mapping.name not in covered:
            message = f"Kueue admits claims of class {name} when they have a quota, under {mapping.name}"
            advice = f"Add {mapping.name} to coveredResources and to each flavor of the queue's ClusterQueue."
            yield finding(QUOTA, document, path, message, advice=advice)
    for one in world.workloads:
        if not _is_queued(one.pod.document) or one.choice.target is not Target.CLAIMS:
            continue
        for demand in one.reading.demands:
            want = demand.want
            selects = bool(want.selectors) or want.profile is not None or want.share is not None
            reasons = [
                ("alternatives", bool(demand.alternatives), None),
                ("admin access", demand.all_gpus, 20),
                ("a config", want.config is not None, 19),
                ("constraints", want.distinct or want.together, 19),
                ("selectors", selects, 18),
            ]
            for what, has, since in reasons:
                if has and (since is None or (minor or 19) < since):
                    newer = f"; 0.{since} and newer do" if since is not None else ""
                    message = f"Kueue{f' 0.{minor}' if minor else ''} takes no claims with {what}{newer}"
                    yield finding(NO_CLAIMS_HERE, one.pod.document, ("metadata", "labels", _QUEUE_LABEL), message)


def _is_queued(document: Document) -> bool:
    labels = value_at(document.obj, ("metadata", "labels"))
    return isinstance(labels, dict) and _QUEUE_LABEL in labels


def _queued(world: World) -> Iterator[tuple[Document, Path, str]]:
    """Classes that workloads in queues name, with where the queue is said."""
    for one in world.workloads:
        if one.choice.target is Target.CLAIMS and _is_queued(one.pod.document):
            wants = [want for demand in one.reading.demands if not demand.all_gpus for want in (demand.want,)]
            for name in sorted({class_name(want, world.options) for want in wants}):
                yield one.pod.document, ("metadata", "labels", _QUEUE_LABEL), name


def resource_flavor(found: Found, world: World) -> None:
    labels = value_at(found.obj, ("spec", "nodeLabels"))
    for key in labels if isinstance(labels, dict) else ():
        if is_gpu_label(str(key)):
            message = f"{key}: Kueue puts it into the pods as a label of their node, which somebody must keep"
            found.say(NODE_ONLY_LABEL, ("spec", "nodeLabels", str(key)), message)
