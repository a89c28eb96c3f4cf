"""Queues and groups of other projects that count GPUs: what they make of claims, and the text to add to them. Pure.

Nothing of theirs is edited: each finding says what counts no claims, and shows the YAML that makes it count them.
Source: Kueue 0.14 to 0.19 (pkg/dra, apis/config); Volcano's capacity plugin and its action `enqueue`; KAI 0.17, whose
queues count devices of claims as whole GPUs; plugins of kubernetes-sigs/scheduler-plugins, Koordinator and nos.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import yaml

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.migration.claims.templates import class_name
from dra_driver.migration.codes import NO_CLAIMS_HERE, NODE_ONLY_LABEL, QUOTA, Severity
from dra_driver.migration.counts.counting import Found, State, World, amount_of, dicts, goes_on_counting, pasted
from dra_driver.migration.demands.label_table import is_gpu_label
from dra_driver.migration.model import Finding, Path, Target, Want, Workload, finding, value_at
from dra_driver.names import INVENTORY_GROUP
from dra_driver.quantity import Quantity

KUEUE = "kueue.x-k8s.io"
_QUEUE_LABEL = f"{KUEUE}/queue-name"
_LIMITS = ("nominalQuota", "borrowingLimit", "lendingLimit")


# -- Kueue


def names_in_kueue(documents: Iterable[Document]) -> dict[str, str]:
    """Names by which the configuration of Kueue already counts classes, wherever that configuration is written."""
    return {
        str(name): str(entry["name"])
        for document in documents
        for config in _configurations(document.obj)
        for entry in dicts(value_at(config, ("resources", "deviceClassMappings")))
        if "name" in entry and isinstance(entry.get("deviceClassNames"), list)
        for name in entry["deviceClassNames"]
    }


def _configurations(value: object) -> Iterator[JsonObject]:
    """Documents, and texts in ConfigMaps and in values of charts."""
    if isinstance(value, dict):
        if value.get("kind") == "Configuration" and str(value.get("apiVersion")).startswith(f"config.{KUEUE}/"):
            yield value
        for inner in value.values():
            yield from _configurations(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _configurations(inner)
    elif isinstance(value, str) and re.search(r"^kind: Configuration\b", value, re.MULTILINE):
        try:
            yield from _configurations(yaml.safe_load(value))
        except yaml.YAMLError:
            return  # The text is a template. A name that it has is proposed again.


def _name_in_kueue(class_of: str, world: World) -> str:
    """A name of its own: pods may use that of the extended resource, too."""
    return world.names_in_kueue.get(class_of) or f"{INVENTORY_GROUP}/{class_of.split('.')[0]}"


def _kueue_queue(found: Found, world: World) -> None:
    for index, group in enumerate(dicts(value_at(found.obj, ("spec", "resourceGroups")))):
        covered = [str(one) for one in value_at(group, ("coveredResources",)) or ()]
        at: Path = ("spec", "resourceGroups", index, "coveredResources")
        counted: dict[str, list[str]] = {}
        for position, resource in enumerate(covered):
            state = world.state(resource)
            if not world.is_old(resource):
                continue
            if not state.claims:
                goes_on_counting(found, (*at, position), resource)
            elif not world.is_number(resource):
                message = f"{resource}: Kueue counts devices of claims, and this is an amount of a device"
                advice = "Limit devices instead, or count the amount by `sources` of Kueue 0.19."
                found.say(QUOTA, (*at, position), message, advice=advice)
            else:
                for class_of in state.classes:
                    counted.setdefault(class_of, []).append(resource)
        added = {one: resources for one, resources in counted.items() if _name_in_kueue(one, world) not in covered}
        if added:
            _say_group(found, world, at, group, added)


def _say_group(found: Found, world: World, at: Path, group: JsonObject, added: Mapping[str, list[str]]) -> None:
    names = {class_of: _name_in_kueue(class_of, world) for class_of in added}
    flavors = [
        {"name": flavor.get("name"), "resources": [_quota(flavor, names[one], added[one]) for one in added]}
        for flavor in dicts(group.get("flavors"))
    ]
    new = {"coveredResources": [*group["coveredResources"], *dict.fromkeys(names.values())], "flavors": flavors}
    counted = ", ".join(sorted({resource for resources in added.values() for resource in resources}))
    listed = ", ".join(f"{one} as {name}" for one, name in names.items())
    message = f"{counted} counts no claims; Kueue counts claims of a class by a name of their own: {listed}"
    advice = (
        "Add these names and amounts to the resource group; the amounts of several resources of one class are added "
        "up. Before Kueue 0.19 the old and the new name each count for themselves: divide the amounts. Take the old "
        "resource out when no pod asks for it."
    )
    unmapped = [one for one in names if one not in world.names_in_kueue]
    found.say(
        QUOTA, at, message, advice=advice, paste=pasted(new) + ("---\n" + _mapping(unmapped, world)) * bool(unmapped)
    )


def _quota(flavor: JsonObject, name: str, resources: list[str]) -> JsonObject:
    entries = [one for one in dicts(flavor.get("resources")) if one.get("name") in resources]
    limits: JsonObject = {}
    for key in _LIMITS:
        amounts = [amount.value for one in entries if (amount := amount_of(one.get(key))) is not None]
        if amounts and len(amounts) == len(entries):
            total = sum(amounts, Fraction(0))
            limits[key] = int(total) if total.denominator == 1 else str(total)
    return {"name": name, **limits}


def _mapping(classes: Iterable[str], world: World) -> str:
    entries = [{"name": _name_in_kueue(one, world), "deviceClassNames": [one]} for one in classes]
    note = (
        "# Kueue's configuration: ConfigMap kueue-manager-config, or managerConfig of its chart. Restart its manager.\n"
        "# Kueue 0.14 to 0.17 need their feature gate DynamicResourceAllocation, too.\n"
    )
    return note + pasted({"resources": {"deviceClassMappings": entries}})


def not_admitted(world: World) -> Iterator[Finding]:
    """Workloads that Kueue holds for what their claims have."""
    for workload in world.workloads:
        document = workload.pod.document
        labels = value_at(document.obj, ("metadata", "labels"))
        if workload.choice.target is not Target.CLAIMS or not isinstance(labels, dict) or _QUEUE_LABEL not in labels:
            continue
        where: Path = ("metadata", "labels", _QUEUE_LABEL)
        demands = workload.reading.demands
        classes = {class_name(one.want, world.options) for one in demands if not one.all_gpus}
        if unmapped := sorted(classes - world.names_in_kueue.keys()):
            message = f"Kueue admits claims of class {' and '.join(unmapped)} when its configuration maps the class"
            advice = "Add the mapping, and the name with a quota to the ClusterQueue."
            yield finding(QUOTA, document, where, message, advice=advice, paste=_mapping(unmapped, world))
        wants = [one.want for one in demands]
        needs: list[tuple[str, bool, int | None]] = [
            ("alternatives", any(one.alternatives for one in demands), None),
            ("admin access", any(one.all_gpus for one in demands), 20),
            ("a config", any(one.config is not None for one in wants), 19),
            ("constraints", any(one.distinct or one.together for one in wants), 19),
            ("selectors", any(one.selectors or one.profile or one.share for one in wants), 18),
        ]
        for what, has, since in needs:
            if has and since is None:
                yield finding(NO_CLAIMS_HERE, document, where, f"Kueue admits no claims with {what}")
            elif has:
                message = f"Kueue admits claims with {what} from 0.{since} on"
                yield finding(NO_CLAIMS_HERE, document, where, message, severity=Severity.INFO, advice="")


def _resource_flavor(found: Found, world: World) -> None:
    labels = value_at(found.obj, ("spec", "nodeLabels"))
    for key in filter(is_gpu_label, map(str, labels if isinstance(labels, dict) else ())):
        message = f"{key}: Kueue puts it into the pods as a label of their node, which somebody must keep"
        found.say(NODE_ONLY_LABEL, ("spec", "nodeLabels", key), message)


# -- Volcano, scheduler-plugins, Koordinator, nos


def _volcano_queue(found: Found, world: World) -> None:
    for at in (("capability",), ("deserved",), ("guarantee", "resource")):
        keys: dict[str, Fraction] = {}
        path: Path = ("spec", *at)
        for where, resource, value, state in _old_amounts(found, world, path):
            amount, unit = amount_of(value), world.unit_of(resource)
            if not state.claims:
                goes_on_counting(found, where, resource)
            elif amount is None or (unit is None and not world.is_number(resource)):
                found.say(QUOTA, where, f"{resource}: {value}: Volcano cannot count this of claims", advice="")
            else:
                prefix = f"{unit.dimension}." if unit is not None else ""
                for class_of in state.classes:
                    key = f"{prefix}deviceclass/{class_of}"
                    keys[key] = keys.get(key, Fraction(0)) + amount.value * (unit.one if unit is not None else 1)
        missing = {key: _written(total) for key, total in keys.items() if key not in value_at(found.obj, path)}
        if missing:
            message = "Volcano counts claims by class, under keys of their own"
            advice = (
                "Add the keys; the old ones can go when no pod asks for the old resource. Volcano counts claims by its "
                "capacity plugin, with `capacity.DynamicResourceAllocationEnable` on."
            )
            found.say(QUOTA, path, message, advice=advice, paste=pasted(_nested(path, missing)))


def _nested(path: Path, value: JsonObject) -> JsonObject:
    for part in reversed(path):
        value = {str(part): value}
    return value


def _written(total: Fraction) -> str:
    mebibytes = total / (1 << 20)
    return f"{mebibytes}Mi" if mebibytes >= 1 and mebibytes.denominator == 1 else str(Quantity(total))


def _old_amounts(
    found: Found, world: World, path: Path, namespace: str | None = None
) -> Iterator[tuple[Path, str, object, State]]:
    amounts = value_at(found.obj, path)
    for resource, value in amounts.items() if isinstance(amounts, dict) else ():
        if world.is_old(str(resource)) and "deviceclass/" not in str(resource):
            yield (*path, str(resource)), str(resource), value, world.state(str(resource), namespace)


def _pod_group(found: Found, world: World) -> None:
    """Volcano's, and those of scheduler-plugins: their pods wait until the cluster has `minResources` left."""
    namespace = found.document.namespace or "default"
    for where, resource, value, state in _old_amounts(found, world, ("spec", "minResources"), namespace):
        if not state.claims:
            goes_on_counting(found, where, resource)
        else:
            message = (
                f"minResources {resource}: {value}: nodes of the driver have none, and pods with claims would wait"
            )
            found.say(QUOTA, where, message, advice="Take it out when the pods of the group have claims.")


_ELASTIC_MEMORY = "nos.nebuly.com/gpu-memory"
"""Of nos: gigabytes, which it works out of a pod's GPUs, MIG devices and slices."""


def _elastic_quota(found: Found, world: World) -> None:
    """Of schedulers that lend among namespaces: they add up what pods request, and claims are no request of a pod."""
    listed = value_at(found.obj, ("spec", "namespaces"))
    own = found.document.namespace or "default"
    namespaces = [str(one) for one in listed] if isinstance(listed, list) else [own]
    for name in ("min", "max"):
        amounts = value_at(found.obj, ("spec", name))
        for resource in map(str, amounts if isinstance(amounts, dict) else ()):
            if resource != _ELASTIC_MEMORY and not world.is_old(resource):
                continue
            path: Path = ("spec", name, resource)
            if not _may_have_claims(world, resource, namespaces):
                goes_on_counting(found, path, resource)
            else:
                message = f"{name} {resource}: its scheduler counts what pods request, and no claims"
                advice = (
                    "Limit claims by a ResourceQuota of each namespace, or by Kueue, whose cohorts lend, too; or keep "
                    "the workloads with `strategy: extended`."
                )
                found.say(QUOTA, path, message, advice=advice)


def _may_have_claims(world: World, resource: str, namespaces: list[str]) -> bool:
    """Of memory whatever asks for GPUs counts."""
    if resource != _ELASTIC_MEMORY:
        return any(world.state(resource, one).claims for one in namespaces)
    asking = [one for one in world.workloads if (one.pod.document.namespace or "default") in namespaces]
    return not asking or any(one.choice.target is Target.CLAIMS for one in asking)


# -- KAI and Run:ai


def _kai_queue(found: Found, world: World) -> None:
    path: Path = ("spec", "resources", "gpu")
    if value_at(found.obj, path) is None:
        return
    message = "the queue's GPUs stay as they are: devices of claims count as one each, if the scheduler's DRA is on"
    found.say(QUOTA, path, message, severity=Severity.INFO, advice="")
    wants = [want for one in world.workloads if one.choice.target is Target.CLAIMS for want in _wants(one)]
    if any(want.share is not None for want in wants):
        message = "a claim of a share counts as one GPU, and fractions counted as such"
        found.say(QUOTA, path, message, advice="Raise quota and limit for claims of shares.")
    names = {class_name(want, world.options) for want in wants}
    if uncounted := sorted(name for name in names if "gpu" not in name.lower()):
        message = f"KAI does not count claims of class {' and '.join(uncounted)}: their names have no gpu in them"
        advice = "Use a class with gpu in its name, or limit these claims by a ResourceQuota."
        found.say(QUOTA, path, message, advice=advice)


def _wants(workload: Workload) -> list[Want]:
    return [want for demand in workload.reading.demands for want in demand.alternatives or (demand.want,)]


def _runai_project(found: Found, world: World) -> None:
    for path in (("spec", "deservedGpus"), ("spec", "nodePoolsResources")):
        if value_at(found.obj, path) is not None:
            message = "the project's GPUs stay as they are; the release of Run:ai decides whether it counts claims"
            found.say(QUOTA, path, message, advice="Read Run:ai's notes on DRA before its workloads get claims.")


HANDLERS: Mapping[tuple[str, str], Callable[[Found, World], Any]] = {
    (KUEUE, "ClusterQueue"): _kueue_queue,
    (KUEUE, "Cohort"): _kueue_queue,
    (KUEUE, "ResourceFlavor"): _resource_flavor,
    ("scheduling.volcano.sh", "Queue"): _volcano_queue,
    ("scheduling.volcano.sh", "PodGroup"): _pod_group,
    ("scheduling.x-k8s.io", "PodGroup"): _pod_group,
    ("scheduling.x-k8s.io", "ElasticQuota"): _elastic_quota,
    ("scheduling.sigs.k8s.io", "ElasticQuota"): _elastic_quota,
    ("nos.nebuly.com", "ElasticQuota"): _elastic_quota,
    ("nos.nebuly.com", "CompositeElasticQuota"): _elastic_quota,
    ("scheduling.run.ai", "Queue"): _kai_queue,
    ("run.ai", "Project"): _runai_project,
}
"""By group and kind."""
