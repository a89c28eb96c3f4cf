"""Objects that count, limit, queue or look at the old resources: quotas, limits, queues, autoscalers, policies. Pure.

What can be said of claims is said under new keys; everything else stays as it is and is reported with its place. How
much changes depends on the workloads: where all of them get claims the old keys go, where none does they stay.
Source: the reference on migration sources, section 9; pkg/quota of Kubernetes.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from dra_driver.api.documents import Document
from dra_driver.migration.claims.publishing import takers_of_the_rest
from dra_driver.migration.codes import AUTOSCALER, INVALID_AMOUNT, NOT_EDITABLE, QUOTA, UNKNOWN_RESOURCE, Severity
from dra_driver.migration.counts import node_pools, queues
from dra_driver.migration.counts.counting import MENTION, Found, World, amount_of
from dra_driver.migration.counts.limit_ranges import limit_range
from dra_driver.migration.demands.amounts import is_strange, profile_of
from dra_driver.migration.model import (
    DocumentEdits,
    Finding,
    NewObject,
    Options,
    Path,
    Put,
    Remove,
    Workload,
    value_at,
)
from dra_driver.migration.text.changes import ANNOTATION
from dra_driver.migration.understand.meaning import Meaning
from dra_driver.migration.understand.other_resources import is_other
from dra_driver.quantity import Quantity

DEVICES_KEY = ".deviceclass.resource.k8s.io/devices"
"""After a class's name: how many of its devices the claims of a namespace may ask for."""
_REQUESTS = "requests."


@dataclass(frozen=True, slots=True)
class QuotaResult:
    """`beside`: objects that stand beside a document, in its file."""

    edits: tuple[DocumentEdits, ...] = ()
    findings: tuple[Finding, ...] = ()
    beside: Mapping[Document, tuple[NewObject, ...]] = field(default_factory=dict)


def rewrite(
    documents: Sequence[Document],
    workloads: Sequence[Workload],
    meaning: Meaning,
    options: Options,
    changeable: Collection[Document] | None = None,
    names_in_kueue: Mapping[str, str] | None = None,
) -> QuotaResult:
    """`workloads` are all of the run, as they were decided. Documents that are not `changeable` are read for what they
    say; None: all are."""
    world = World(workloads, meaning, options, names_in_kueue)
    findings: list[Finding] = [*takers_of_the_rest(workloads), *queues.not_admitted(world)]
    edits: list[DocumentEdits] = []
    beside: dict[Document, tuple[NewObject, ...]] = {}
    for document in documents:
        found = Found(document)
        handler = _HANDLERS.get((_group(document), document.kind))
        if handler is not None:
            handler(found, world)
        elif not world.is_workload(document):
            _mentions(found, world)
        if changeable is not None and document not in changeable:
            findings += map(_not_done, found.findings)
            continue
        findings += found.findings
        if found.objects:
            beside[document] = tuple(found.objects)
        if found.edits:
            edits.append(DocumentEdits(document, tuple(found.edits), found.reason))
    return QuotaResult(tuple(edits), tuple(findings), beside)


def _not_done(one: Finding) -> Finding:
    """Of a document that is only looked at."""
    if not one.fixed:
        return one
    advice = "This was given for what it says, and is not changed: give it among the files that are migrated."
    return replace(one, fixed=False, severity=Severity.WARNING, advice=advice)


def _group(document: Document) -> str:
    group, slash, _ = document.api_version.rpartition("/")
    return group if slash else ""


# -- ResourceQuota


def _resource_quota(found: Found, world: World) -> None:
    hard = value_at(found.obj, ("spec", "hard"))
    if not isinstance(hard, dict):
        return
    added: dict[str, list[tuple[Path, str, Quantity]]] = {}
    for key, value in hard.items():
        path: Path = ("spec", "hard", str(key))
        resource = str(key).removeprefix(_REQUESTS)
        if not world.is_old(resource) and not resource.startswith("nvidia.com/"):
            continue
        if is_other(resource.removeprefix("limits."), world.options.other_resources):
            continue
        of_hami = _of_hami(world, str(key))
        resource = of_hami or resource
        if of_hami is None and (str(key).startswith("limits.") or resource == key):
            message = f"{key}: a quota of an extended resource begins with {_REQUESTS}"
            found.say(INVALID_AMOUNT, path, message, severity=Severity.WARNING)
        elif not world.is_number(resource):
            message = f"{key}: Kubernetes has no quota of amounts of devices"
            found.say(QUOTA, path, message, advice="Limit amounts by Kueue or Volcano, or not at all.")
        else:
            _quota_key(found, world, path, resource, value, added)
    gone = {one.path[-1] for one in found.edits if isinstance(one, Remove)}
    for key, parts in added.items():
        _add_quota(found, hard, key, parts, gone)


def _of_hami(world: World, key: str) -> str | None:
    """The resource of a key with `limits.`, which HAMi's scheduler heeds and Kubernetes does not."""
    resource = key.removeprefix("limits.")
    hami = world.meaning.hami
    amounts = (hami.memory, hami.memory_percentage, hami.cores)
    return (
        resource if resource != key and (resource in amounts or (hami.installed and resource == hami.count)) else None
    )


def _quota_key(
    found: Found, world: World, path: Path, resource: str, value: object,
    added: dict[str, list[tuple[Path, str, Quantity]]],
) -> None:  # fmt: skip
    state = world.state(resource, found.document.namespace or "default")
    amount = amount_of(value)
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
        advice = "Limit claims by a quota without scopes, or by Kueue; or keep the workloads with `strategy: extended`."
        found.say(QUOTA, path, message, advice=advice)
        return
    if any(want.share is not None and (want.share.number or 1) > 1 for want in state.wants):
        message = f"{path[-1]}: a claim of several shares of one device counts as one device"
        found.say(QUOTA, path, message, advice="Lower the amount, or decide `severalShares: devices`.")
    for name in state.classes:
        added.setdefault(f"{name}{DEVICES_KEY}", []).append((path, resource, amount))
    if not state.old:
        found.edits.append(Remove(path))


def _add_quota(
    found: Found,
    hard: Mapping[str, object],
    key: str,
    parts: Sequence[tuple[Path, str, Quantity]],
    gone: Collection[object],
) -> None:
    """`gone` are the old keys that nobody needs any more."""
    if key in hard:
        return
    total = Quantity(sum((amount.value for _, _, amount in parts), Fraction(0)))
    found.edits.append(Put(("spec", "hard", key), str(total)))
    found.reason = "claims are counted by class"
    names = ", ".join(resource for _, resource, _ in parts)
    message = f"{key}: {total} limits claims as {names} did"
    if len(parts) > 1:
        message += "; a class is counted as a whole, so the amounts are added up"
    stays = any(path[-1] not in gone for path, _, _ in parts)
    advice = _about_profiles(parts[0][1]) or (_APART if len(parts) > 1 else "") or (_BOTH_COUNT if stays else "")
    found.say(QUOTA, parts[0][0], message, advice=advice, severity=Severity.INFO, fixed=True)


_BOTH_COUNT = (
    "Where the class answers to the extended resource (1.36; in 1.35 with DRAExtendedResource), both keys count both: "
    "claims of the class under the old key, too, and pods with the resource under the new one, once they have a node."
)

_APART = "To limit them one by one, make a DeviceClass of each one's conditions, and let the claims name it."


def _about_profiles(resource: str) -> str:
    profile = profile_of(resource.removesuffix(".shared"))
    if profile is None:
        return ""
    return f"To limit profiles one by one, let claims name the class of their profile, as {profile}.mig.nvidia.com."


# -- everything else


_ABOUT_METRICS = ("autoscaling", "keda.sh", "monitoring.coreos.com", "grafana", "victoriametrics")
_NOT_LOOKED_AT = frozenset(
    {
        ("", "Node"), ("resource.k8s.io", "ResourceSlice"), ("resource.k8s.io", "DeviceClass"), ("", "Event"),
        ("resource.k8s.io", "ResourceClaim"), ("resource.k8s.io", "ResourceClaimTemplate"),
        ("nvidia.com", "ClusterPolicy"), ("nvidia.com", "GPUCluster"),
        ("apiextensions.k8s.io", "CustomResourceDefinition"), ("kustomize.config.k8s.io", "Kustomization"),
        ("kustomize.config.k8s.io", "Component"),
    }
)  # fmt: skip
"""What mentions GPUs by its nature, and is read elsewhere."""


_OF_POLICIES = re.compile("admission|gatekeeper|kyverno|polic")
"""Groups whose objects speak of pods, and make none."""


def _mentions(found: Found, world: World) -> None:
    """Where an object that is not known here speaks of the old resources."""
    group, kind = _group(found.document), found.document.kind
    if not kind or kind == "ConfigMap" or (group, kind) in _NOT_LOOKED_AT:
        return
    of_metrics = any(group == one or group.endswith(one) or one in group for one in _ABOUT_METRICS)
    for path, text in _texts(found.obj, ()):
        asks = path[-3:-2] == ("resources",) and _OF_POLICIES.search(group) is None
        match = MENTION.search(text)
        if match is None:
            if asks and path[-1] == text and is_strange(text, world.meaning, world.options):
                message = f"{text}: it is not known what it stands for, nor what a {kind} makes of it"
                found.say(UNKNOWN_RESOURCE, path, message)
            continue
        if of_metrics:
            message = (
                f"{match[0]}…: series of the old resource end with it, and DCGM's name pods of claims only on request"
            )
            advice = "Ask for metrics of claims: the driver's own, or dcgm-exporter's with its DRA support on."
            found.say(AUTOSCALER, path, message, advice=advice)
        elif asks:
            message = (
                f"{kind} is not a kind that is known; what its controller makes of this asks for GPUs in the old way"
            )
            advice = (
                "It can stay where a DeviceClass answers to the resource. See whether it can pass claims on to pods."
            )
            found.say(NOT_EDITABLE, path, message, advice=advice)
        else:
            found.say(QUOTA, path, f"{match[0]}…: whatever this decides, it does not decide it for claims")


def _texts(value: object, path: Path) -> Iterator[tuple[Path, str]]:
    """Keys and strings, with where they are; without what was before the migration."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key != ANNOTATION:
                yield (*path, str(key)), str(key)
                yield from _texts(inner, (*path, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*path, index))
    elif isinstance(value, str):
        yield path, value


_HANDLERS: Mapping[tuple[str, str], Callable[[Found, World], None]] = {
    ("", "ResourceQuota"): _resource_quota,
    ("", "LimitRange"): limit_range,
    **queues.HANDLERS,
    **node_pools.HANDLERS,
}
