"""Objects that count, limit, queue or look at the old resources: quotas, limits, queues, autoscalers, policies. Pure.

What can be said of claims is said under new keys; everything else stays as it is and is reported with its place. How
much changes depends on the workloads: where all of them get claims the old keys go, where none does they stay.
Source: the reference on migration sources, section 9; resource.k8s.io quota keys; Kueue 0.19; Volcano's queues.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.migration.amounts import is_whole_or_mig, profile_of
from dra_driver.migration.claims import class_name
from dra_driver.migration.codes import (
    AUTOSCALER,
    INVALID_AMOUNT,
    NO_CLAIMS_HERE,
    NODE_ONLY_LABEL,
    NOT_EDITABLE,
    QUOTA,
    Code,
    Severity,
)
from dra_driver.migration.crossing import crossings
from dra_driver.migration.kinds import is_known, pods_of
from dra_driver.migration.labels import Hints, is_gpu_label
from dra_driver.migration.meaning import Meaning
from dra_driver.migration.model import (
    DocumentEdits,
    Edit,
    Finding,
    NewObject,
    Options,
    Path,
    Put,
    Remove,
    Share,
    Target,
    Want,
    What,
    Workload,
    finding,
    value_at,
)
from dra_driver.migration.publishing import takers_of_the_rest
from dra_driver.names import INVENTORY_GROUP
from dra_driver.quantity import Quantity

DEVICES_KEY = ".deviceclass.resource.k8s.io/devices"
"""After a class's name: how many of its devices the claims of a namespace may ask for."""
_REQUESTS = "requests."
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_MENTION = re.compile(r"nvidia\.com/(?:gpu|mig-)|nvidia_com_(?:gpu|mig)|DCGM_FI_|volcano\.sh/v?gpu|aliyun\.com/gpu")


@dataclass(frozen=True, slots=True)
class QuotaResult:
    edits: tuple[DocumentEdits, ...] = ()
    objects: tuple[NewObject, ...] = ()
    findings: tuple[Finding, ...] = ()


def rewrite(
    documents: Sequence[Document], workloads: Sequence[Workload], meaning: Meaning, options: Options
) -> QuotaResult:
    """`workloads` are all of the run, as they were decided."""
    world = _World(workloads, meaning, options)
    findings: list[Finding] = [*crossings(workloads), *takers_of_the_rest(workloads), *world.queued()]
    edits: list[DocumentEdits] = []
    for document in sorted(documents, key=_is_configuration):
        found = _Found(document)
        room = _ROOMS.get((_group(document), document.kind))
        if room is not None:
            room(found, world)
        elif not world.is_workload(document):
            _mentions(found)
        findings += found.findings
        if found.edits:
            edits.append(DocumentEdits(document, tuple(found.edits), found.reason))
    if world.mappings:
        findings += world.without_configuration(documents)
    return QuotaResult(tuple(edits), (), tuple(findings))


def _is_configuration(document: Document) -> bool:
    """These come last: what they map is known when all queues have been read."""
    return document.kind in ("Configuration", "ConfigMap")


def _group(document: Document) -> str:
    group, slash, _ = document.api_version.rpartition("/")
    return group if slash else ""


# -- what the workloads become


class _World:
    def __init__(self, workloads: Sequence[Workload], meaning: Meaning, options: Options) -> None:
        self._workloads = workloads
        self._meaning = meaning
        self.options = options
        self._of_workloads = {one.pod.document for one in workloads}
        self._anywhere = replace(options, unknown_kinds=True)
        self.mappings: dict[str, str] = {}
        """Logical resources that Kueue is to count, to classes."""
        self.asking: dict[str, Document] = {}
        """Logical resource to the queue that wants it."""

    def is_workload(self, document: Document) -> bool:
        """Whether pods are in there, which are read and reported elsewhere."""
        return document in self._of_workloads or is_known(document.obj) or bool(pods_of(document, self._anywhere))

    def state(self, resource: str, namespace: str | None = None) -> "_State":
        """Of workloads that ask for the resource, in a namespace, or in all."""
        targets: set[Target] = set()
        classes: set[str] = set()
        for one in self._workloads:
            if namespace is not None and (one.pod.document.namespace or "default") != namespace:
                continue
            for demand in one.reading.demands:
                if demand.resource == resource:
                    targets.add(one.choice.target)
                    if one.choice.target is Target.CLAIMS:
                        wants = demand.alternatives or (demand.want,)
                        classes |= {class_name(want, self.options) for want in wants}
        return _State(
            claims=Target.CLAIMS in targets or not targets,
            old=bool(targets - {Target.CLAIMS}) or not targets,
            known=bool(targets),
            classes=tuple(sorted(classes)) or (class_name(self._want(resource), self.options),),
        )

    def _want(self, resource: str) -> Want:
        """What nobody asked for, as it would be read."""
        stands = next(iter(self._meaning.meanings(resource, (), Hints())), None)
        if stands is not None:
            return Want(stands.what, profile=stands.profile, share=Share() if stands.sharing is not None else None)
        what = What.GPU if resource.startswith("nvidia.com/gpu") else What.MIG
        return Want(what, share=Share() if resource.endswith(".shared") else None)

    def queued(self) -> Iterator[Finding]:
        """Claims that Kueue does not count."""
        for one in self._workloads:
            labels = value_at(one.pod.document.obj, ("metadata", "labels"))
            if one.choice.target is not Target.CLAIMS or not isinstance(labels, dict) or _QUEUE_LABEL not in labels:
                continue
            for demand in one.reading.demands:
                why = "a config" if demand.want.config is not None else "admin access" if demand.all_gpus else ""
                if why or demand.alternatives:
                    message = f"Kueue takes no claims with {why or 'alternatives'}"
                    path: Path = ("metadata", "labels", _QUEUE_LABEL)
                    yield finding(NO_CLAIMS_HERE, one.pod.document, path, message)

    def without_configuration(self, documents: Sequence[Document]) -> Iterator[Finding]:
        """Where Kueue's own configuration is not among the files."""
        if any(one.kind == "Configuration" and _group(one).startswith("config.kueue") for one in documents):
            return
        for logical, document in self.asking.items():
            message = f"Kueue counts {logical} when its configuration maps it to class {self.mappings[logical]}"
            advice = (
                "Add to the manager's configuration, under `resources.deviceClassMappings`: "
                f"`- {{name: {logical}, deviceClassNames: [{self.mappings[logical]}]}}`."
            )
            yield finding(QUOTA, document, (), message, advice=advice)


@dataclass(frozen=True, slots=True)
class _State:
    """`claims`: some use claims, or nothing is known; `old`: some go on with the resource, or nothing is known."""

    claims: bool
    old: bool
    known: bool
    classes: tuple[str, ...]


class _Found:
    """What is to be done with one document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.obj = document.obj
        self.edits: list[Edit] = []
        self.findings: list[Finding] = []
        self.reason = ""

    def say(self, code: Code, path: Path, message: str, **more: Any) -> None:
        self.findings.append(finding(code, self.document, path, message, **more))


# -- ResourceQuota


def _resource_quota(found: _Found, world: _World) -> None:
    hard = value_at(found.obj, ("spec", "hard"))
    if not isinstance(hard, dict):
        return
    added: dict[str, list[tuple[Path, str, Quantity]]] = {}
    for key, value in hard.items():
        path: Path = ("spec", "hard", str(key))
        resource = str(key).removeprefix(_REQUESTS)
        if not _MENTION.search(resource) and not resource.startswith("nvidia.com/"):
            continue
        if str(key).startswith("limits.") or resource == key:
            message = f"{key}: a quota of an extended resource begins with {_REQUESTS}"
            found.say(INVALID_AMOUNT, path, message, severity=Severity.WARNING)
        elif not is_whole_or_mig(resource):
            message = f"{key}: Kubernetes has no quota of amounts of devices"
            found.say(QUOTA, path, message, advice="Limit amounts by Kueue or Volcano, or not at all.")
        else:
            _quota_key(found, world, path, resource, value, added)
    for key, parts in added.items():
        _add_quota(found, hard, key, parts)


def _quota_key(
    found: _Found, world: _World, path: Path, resource: str, value: object,
    added: dict[str, list[tuple[Path, str, Quantity]]],
) -> None:  # fmt: skip
    state = world.state(resource, found.document.namespace or "default")
    amount = _amount(value)
    if amount is None:
        found.say(INVALID_AMOUNT, path, f"{path[-1]}: {value!r} is no amount")
        return
    if not state.claims:
        message = f"{path[-1]} goes on counting: the workloads of this namespace stay with {resource}"
        found.say(QUOTA, path, message, severity=Severity.INFO, advice="")
        return
    spec = value_at(found.obj, ("spec",))
    if spec.get("scopes") or spec.get("scopeSelector"):
        # Of what is counted only pods have scopes. Source: claimEvaluator.Matches in pkg/quota of Kubernetes.
        message = f"{path[-1]}: a quota with scopes counts no claims, so nothing limits those of {resource} now"
        advice = (
            "Limit claims by a quota without scopes, or by Kueue; or keep the workloads with `--strategy extended`."
        )
        found.say(QUOTA, path, message, advice=advice)
        return
    for name in state.classes:
        added.setdefault(f"{name}{DEVICES_KEY}", []).append((path, resource, amount))
    if not state.old:
        found.edits.append(Remove(path))


def _add_quota(
    found: _Found, hard: Mapping[str, object], key: str, parts: Sequence[tuple[Path, str, Quantity]]
) -> None:
    if key in hard:
        return
    total = Quantity(sum((amount.value for _, _, amount in parts), Fraction(0)))
    found.edits.append(Put(("spec", "hard", key), str(total)))
    found.reason = "claims are counted by class"
    names = ", ".join(resource for _, resource, _ in parts)
    message = f"{key}: {total} limits claims as {names} did"
    if len(parts) > 1:
        message += "; a class is counted as a whole, so the amounts are added up"
    profile = profile_of(parts[0][1].removesuffix(".shared"))
    advice = ""
    if profile is not None:
        advice = (
            f"To limit profiles one by one, let claims name the class of their profile, as {profile}.mig.nvidia.com."
        )
    found.say(QUOTA, parts[0][0], message, advice=advice, severity=Severity.INFO, fixed=True)


def _amount(value: object) -> Quantity | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return Quantity.parse(str(value))
    except ValueError:
        return None


# -- LimitRange


def _limit_range(found: _Found, world: _World) -> None:
    limits = value_at(found.obj, ("spec", "limits"))
    for index, one in enumerate(limits if isinstance(limits, list) else ()):
        for part, amounts in one.items() if isinstance(one, dict) else ():
            for resource in amounts if isinstance(amounts, dict) else ():
                if _MENTION.search(str(resource)):
                    path: Path = ("spec", "limits", index, part, str(resource))
                    _limit(found, world, path, str(part), str(resource), amounts[resource])


def _limit(found: _Found, world: _World, path: Path, part: str, resource: str, value: object) -> None:
    state = world.state(resource, found.document.namespace or "default")
    if part in ("default", "defaultRequest"):
        if state.claims:
            found.edits.append(Remove(path))
            found.reason = "a default would ask for the old resource again"
            message = f"{part} {resource}: {value} is taken out: it would be put back into pods that have claims"
            found.say(QUOTA, path, message, severity=Severity.INFO, fixed=True, advice="")
        return
    if state.claims and not state.old:
        found.edits.append(Remove(path))
    if not state.claims:
        message = f"{part} {resource}: {value} goes on counting"
        found.say(QUOTA, path, message, severity=Severity.INFO, advice="")
        return
    sign = "<=" if part == "max" else ">="
    advice = (
        "Limit claims by a ValidatingAdmissionPolicy on resourceclaims and resourceclaimtemplates: "
        f"`requests.all(r, !has(r.exactly) || !has(r.exactly.count) || r.exactly.count {sign} {value})`."
    )
    found.say(QUOTA, path, f"{part} {resource}: {value} says nothing about claims", advice=advice)


# -- Kueue


def _logical(class_of: str) -> str:
    """The name under which Kueue counts devices of a class; not the extended resource's, which pods may use, too."""
    return f"{INVENTORY_GROUP}/{class_of.split('.')[0]}"


def _cluster_queue(found: _Found, world: _World) -> None:
    groups = value_at(found.obj, ("spec", "resourceGroups"))
    for index, group in enumerate(groups if isinstance(groups, list) else ()):
        covered = group.get("coveredResources") if isinstance(group, dict) else None
        for position, resource in enumerate(covered if isinstance(covered, list) else ()):
            if _MENTION.search(str(resource)):
                path: Path = ("spec", "resourceGroups", index)
                _covered(found, world, path, group, position, str(resource))


def _covered(found: _Found, world: _World, path: Path, group: JsonObject, position: int, resource: str) -> None:
    state = world.state(resource)
    where = (*path, "coveredResources", position)
    if state.known and not state.claims:
        message = f"{resource} goes on counting: workloads stay with the extended resource"
        found.say(QUOTA, where, message, severity=Severity.INFO, advice="")
        return
    if not is_whole_or_mig(resource) or profile_of(resource.removesuffix(".shared")) is not None:
        message = (
            f"{resource}: Kueue counts MIG devices and parts of devices of claims by `sources` of its configuration"
        )
        found.say(
            QUOTA, where, message, advice="Map the class with `sources[].counter` or `sources[].capacity` (0.19)."
        )
        return
    name = _logical(state.classes[0])
    if not state.known or state.old or len(state.classes) > 1:
        advice = (
            f"Give claims a quota of their own: {name} in coveredResources and in each flavor, with a part of what "
            f"{resource} has, and in the manager's configuration `resources.deviceClassMappings: "
            f"[{{name: {name}, deviceClassNames: [{state.classes[0]}]}}]`."
        )
        found.say(QUOTA, where, f"{resource} does not count claims; other workloads still use it", advice=advice)
        return
    found.edits.append(Put(where, name))
    for index, flavor in enumerate(_dicts(group.get("flavors"))):
        for place, one in enumerate(_dicts(flavor.get("resources"))):
            if one.get("name") == resource:
                found.edits.append(Put((*path, "flavors", index, "resources", place, "name"), name))
    found.reason = "all workloads that are queued have claims"
    found.say(QUOTA, where, f"{resource} became {name}, which counts claims of class {state.classes[0]}", fixed=True)
    world.mappings[name] = state.classes[0]
    world.asking[name] = found.document


def _configuration(found: _Found, world: _World) -> None:
    """Of Kueue's manager."""
    _transformations(found, found.obj, ())
    there = value_at(found.obj, ("resources", "deviceClassMappings"))
    known = {one.get("name") for one in _dicts(there)}
    for logical, class_of in sorted(world.mappings.items()):
        if logical not in known:
            path: Path = ("resources", "deviceClassMappings", len(_dicts(there)))
            found.edits.append(Put(path, {"name": logical, "deviceClassNames": [class_of]}))
            found.reason = "Kueue counts devices of claims under a name of its own"
            message = f"{logical} counts devices of class {class_of}"
            found.say(QUOTA, ("resources",), message, severity=Severity.INFO, fixed=True, advice="")


def _transformations(found: _Found, obj: JsonObject, at: Path) -> None:
    for index, one in enumerate(_dicts(value_at(obj, ("resources", "transformations")))):
        if _MENTION.search(str(one.get("input"))):
            message = f"the transformation of {one['input']} is of pods' resources; claims are counted by `sources`"
            found.say(QUOTA, at or ("resources", "transformations", index), message)


def _config_map(found: _Found, world: _World) -> None:
    """Kueue's configuration is a text in a ConfigMap."""
    data = found.obj.get("data")
    for key, text in (data or {}).items() if isinstance(data, dict) else ():
        if not isinstance(text, str) or "config.kueue.x-k8s.io" not in text:
            continue
        path: Path = ("data", str(key))
        if _MENTION.search(text):
            message = "resources of pods are transformed here; claims are counted by `sources` of deviceClassMappings"
            found.say(QUOTA, path, message)
        for logical, class_of in sorted(world.mappings.items()):
            advice = (
                f"Add under `resources.deviceClassMappings`: `- {{name: {logical}, deviceClassNames: [{class_of}]}}`."
            )
            found.say(NOT_EDITABLE, path, f"{logical} is to be mapped to class {class_of} in this text", advice=advice)


def _resource_flavor(found: _Found, world: _World) -> None:
    labels = value_at(found.obj, ("spec", "nodeLabels"))
    for key in labels if isinstance(labels, dict) else ():
        if is_gpu_label(str(key)):
            message = f"{key}: Kueue puts it into the pods as a label of their node, which somebody must keep"
            found.say(NODE_ONLY_LABEL, ("spec", "nodeLabels", str(key)), message)


# -- other queues and autoscalers


def _volcano_queue(found: _Found, world: _World) -> None:
    for at in (("capability",), ("deserved",), ("guarantee", "resource")):
        amounts = value_at(found.obj, ("spec", *at))
        for resource in amounts if isinstance(amounts, dict) else ():
            if not _MENTION.search(str(resource)):
                continue
            state = world.state(str(resource))
            path: Path = ("spec", *at, str(resource))
            if not state.claims:
                message = f"{resource} goes on counting: workloads stay with the extended resource"
                found.say(QUOTA, path, message, severity=Severity.INFO, advice="")
                continue
            name = f"deviceclass/{state.classes[0]}"
            if name not in amounts:
                found.edits.append(Put(("spec", *at, name), amounts[resource]))
            if not state.old:
                found.edits.append(Remove(path))
            found.reason = "Volcano counts claims by class"
            message = f"{name} limits claims as {resource} did{'; both keys count' if state.old else ''}"
            found.say(QUOTA, path, message, fixed=True, severity=Severity.INFO if not state.old else None)


def _kai_queue(found: _Found, world: _World) -> None:
    if value_at(found.obj, ("spec", "resources", "gpu")) is not None:
        message = "the queue counts claims, too, where the scheduler's DRA support is on"
        found.say(QUOTA, ("spec", "resources", "gpu"), message, severity=Severity.INFO, advice="")


def _node_pool(found: _Found, world: _World) -> None:
    limits = value_at(found.obj, ("spec", "limits"))
    for resource in limits if isinstance(limits, dict) else ():
        if _MENTION.search(str(resource)):
            message = (
                f"{resource} limits nodes by what a device plugin has to give; nodes of the driver have none of it"
            )
            advice = "Limit the pool by cpu or nodes, too, and see whether this Karpenter makes nodes for claims."
            found.say(AUTOSCALER, ("spec", "limits", str(resource)), message, advice=advice)


# -- everything else


_ABOUT_METRICS = ("autoscaling", "keda.sh", "monitoring.coreos.com", "grafana", "victoriametrics")
_NOT_LOOKED_AT = frozenset(
    {
        ("", "Node"), ("resource.k8s.io", "ResourceSlice"), ("resource.k8s.io", "DeviceClass"), ("", "Event"),
        ("resource.k8s.io", "ResourceClaim"), ("resource.k8s.io", "ResourceClaimTemplate"),
        ("nvidia.com", "ClusterPolicy"), ("nvidia.com", "GPUCluster"),
        ("apiextensions.k8s.io", "CustomResourceDefinition"),
    }
)  # fmt: skip
"""What mentions GPUs by its nature, and is read elsewhere."""


def _mentions(found: _Found) -> None:
    """Where an object that is not known here speaks of the old resources."""
    group, kind = _group(found.document), found.document.kind
    if not kind or kind == "ConfigMap" or (group, kind) in _NOT_LOOKED_AT:
        return
    of_metrics = any(group == one or group.endswith(one) or one in group for one in _ABOUT_METRICS)
    for path, text in _texts(found.obj, ()):
        match = _MENTION.search(text)
        if match is None:
            continue
        if of_metrics:
            message = (
                f"{match[0]}…: series of the old resource end with it, and DCGM's name pods of claims only on request"
            )
            advice = "Ask for metrics of claims: the driver's own, or dcgm-exporter's with its DRA support on."
            found.say(AUTOSCALER, path, message, advice=advice)
        else:
            found.say(QUOTA, path, f"{match[0]}…: whatever this decides, it does not decide it for claims")


def _texts(value: object, path: Path) -> Iterator[tuple[Path, str]]:
    """Keys and strings, with where they are."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, str(key)), str(key)
            yield from _texts(inner, (*path, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*path, index))
    elif isinstance(value, str):
        yield path, value


def _dicts(value: object) -> list[JsonObject]:
    return [one if isinstance(one, dict) else {} for one in value] if isinstance(value, list) else []


_ROOMS: Mapping[tuple[str, str], Callable[[_Found, _World], None]] = {
    ("", "ResourceQuota"): _resource_quota,
    ("", "LimitRange"): _limit_range,
    ("", "ConfigMap"): _config_map,
    ("kueue.x-k8s.io", "ClusterQueue"): _cluster_queue,
    ("kueue.x-k8s.io", "Cohort"): _cluster_queue,
    ("kueue.x-k8s.io", "ResourceFlavor"): _resource_flavor,
    ("config.kueue.x-k8s.io", "Configuration"): _configuration,
    ("scheduling.volcano.sh", "Queue"): _volcano_queue,
    ("scheduling.run.ai", "Queue"): _kai_queue,
    ("karpenter.sh", "NodePool"): _node_pool,
}
