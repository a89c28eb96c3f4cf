"""Objects that count or limit the old resources. ResourceQuotas and LimitRanges are edited, others reported. Pure.

How much changes depends on the workloads: if all of them get claims the old keys go; if none does they stay.
Source: the reference on migration sources, section 9; pkg/quota and plugin/pkg/admission/limitranger of Kubernetes.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from dra_driver.api.documents import Document
from dra_driver.api.untyped import Path, maps_in, value_at
from dra_driver.checking.codes import Severity
from dra_driver.migration import codes
from dra_driver.migration.claims.publishing import takers_of_the_rest
from dra_driver.migration.counts import systems
from dra_driver.migration.counts.systems import MENTION, Changes, Workloads
from dra_driver.migration.demands.resources import is_strange, profile_of
from dra_driver.migration.model import Edit, MigratedWorkload, MigrationFinding, Options, Put, Remove
from dra_driver.migration.read.kind_table import Kind, kind_of
from dra_driver.migration.understand.labels import is_other
from dra_driver.migration.understand.meaning import Meaning
from dra_driver.quantity import Quantity

DEVICES_KEY = ".deviceclass.resource.k8s.io/devices"
"""After a class's name: how many of its devices the claims of a namespace may ask for."""
_REQUESTS = "requests."


@dataclass(frozen=True, slots=True)
class QuotaResult:
    edits: Mapping[Document, tuple[Edit, ...]] = field(default_factory=dict)
    findings: tuple[MigrationFinding, ...] = ()


def rewrite(
    documents: Sequence[Document],
    workloads: Sequence[MigratedWorkload],
    meaning: Meaning,
    options: Options,
    changeable: Collection[Document],
) -> QuotaResult:
    """`workloads` are all of the run, with what was decided. Documents that are not `changeable` are only read."""
    known = Workloads(workloads, meaning, options)
    findings: list[MigrationFinding] = [*takers_of_the_rest(workloads), *systems.not_admitted(known)]
    edits: dict[Document, tuple[Edit, ...]] = {}
    for document in documents:
        changes = Changes(document)
        handlers = _HANDLERS.get(kind_of(document.obj), ())
        for handle in handlers:
            handle(changes, known)
        if not handlers and not known.contain(document):
            _mentions(changes, known)
        if document not in changeable:
            findings += map(_not_done, changes.findings)
            continue
        findings += changes.findings
        if changes.edits:
            edits[document] = tuple(changes.edits)
    return QuotaResult(edits, tuple(findings))


def _not_done(finding: MigrationFinding) -> MigrationFinding:
    """Of a document that is only read."""
    if not finding.fixed:
        return finding
    advice = "This file was given for information and is not changed: pass it among the files to migrate."
    return replace(finding, fixed=False, severity=Severity.WARNING, advice=advice)


# -- ResourceQuota


def _resource_quota(changes: Changes, known: Workloads) -> None:
    hard = value_at(changes.obj, ("spec", "hard"))
    if not isinstance(hard, dict):
        return
    added: dict[str, list[tuple[Path, str, Quantity]]] = {}
    for key, value in hard.items():
        path: Path = ("spec", "hard", str(key))
        resource = str(key).removeprefix(_REQUESTS)
        if not known.is_old(resource) and not resource.startswith("nvidia.com/"):
            continue
        if is_other(resource.removeprefix("limits."), known.options.other_resources):
            continue
        of_hami = _of_hami(known, str(key))
        resource = of_hami or resource
        if of_hami is None and (str(key).startswith("limits.") or resource == key):
            message = f"{key}: a quota of an extended resource begins with {_REQUESTS}"
            changes.say(codes.INVALID_AMOUNT, path, message, severity=Severity.WARNING)
        elif not known.is_number(resource):
            message = f"{key}: Kubernetes has no quota for amounts of devices"
            changes.say(codes.QUOTA, path, message, advice="Limit numbers of devices instead.")
        else:
            _quota_key(changes, known, path, resource, value, added)
    gone = {edit.path[-1] for edit in changes.edits if isinstance(edit, Remove)}
    for key, parts in added.items():
        if key not in hard:
            _add_quota(changes, key, parts, gone)


def _of_hami(known: Workloads, key: str) -> str | None:
    """The resource of a key with `limits.`, which HAMi's scheduler reads and Kubernetes does not."""
    resource = key.removeprefix("limits.")
    hami = known.meaning.hami
    counted = (hami.memory, hami.memory_percentage, hami.cores, *((hami.count,) if hami.installed else ()))
    return resource if resource != key and resource in counted else None


def _quota_key(
    changes: Changes, known: Workloads, path: Path, resource: str, value: object,
    added: dict[str, list[tuple[Path, str, Quantity]]],
) -> None:  # fmt: skip
    use = known.use_of(resource, changes.document.namespace or "default")
    amount = Quantity.read(value)
    if amount is None:
        changes.say(codes.INVALID_AMOUNT, path, f"{path[-1]}: {value!r} is no amount")
        return
    if not use.claims:
        changes.say_unchanged(path, f"{path[-1]} keeps counting: the workloads of this namespace keep {resource}")
        return
    spec = value_at(changes.obj, ("spec",))
    if spec.get("scopes") or spec.get("scopeSelector"):
        # Only pods have scopes. Source: claimEvaluator.Matches in pkg/quota of Kubernetes.
        message = f"{path[-1]}: a quota with scopes counts no claims, so nothing limits claims for {resource}"
        advice = "Limit claims with a quota without scopes, or keep the workloads with `strategy: extended`."
        changes.say(codes.QUOTA, path, message, advice=advice)
        return
    if any(want.share is not None and (want.share.number or 1) > 1 for want in use.wants):
        message = f"{path[-1]}: a claim of several shares of one device counts as one device"
        changes.say(codes.QUOTA, path, message, advice="Lower the amount, or decide `severalShares: devices`.")
    for name in use.classes:
        added.setdefault(f"{name}{DEVICES_KEY}", []).append((path, resource, amount))
    if not use.old:
        changes.edits.append(Remove(path))


def _add_quota(
    changes: Changes, key: str, parts: Sequence[tuple[Path, str, Quantity]], gone: Collection[object]
) -> None:
    """`gone` are the old keys that are removed."""
    total = Quantity(sum((amount.value for _, _, amount in parts), Fraction(0)))
    changes.edits.append(Put(("spec", "hard", key), str(total)))
    names = ", ".join(resource for _, resource, _ in parts)
    message = f"{key}: {total} limits claims as {names} did"
    if len(parts) > 1:
        message += "; a class is counted as a whole, so the amounts are added up"
    stays = any(path[-1] not in gone for path, _, _ in parts)
    advice = _about_profiles(parts[0][1]) or (_APART if len(parts) > 1 else "") or (_BOTH_COUNT if stays else "")
    changes.say(codes.QUOTA, parts[0][0], message, advice=advice, severity=Severity.INFO, fixed=True)


_BOTH_COUNT = (
    "If the class answers the extended resource (1.36; in 1.35 with DRAExtendedResource), both keys count both: the "
    "old key also counts claims of the class, and the new one also counts scheduled pods with the resource."
)
_APART = "To limit them separately, create a DeviceClass for each, and let the claims name it."


def _about_profiles(resource: str) -> str:
    profile = profile_of(resource.removesuffix(".shared"))
    if profile is None:
        return ""
    return f"To limit profiles separately, let claims name the class of their profile: {profile}.mig.nvidia.com."


# -- LimitRange


def _limit_range(changes: Changes, known: Workloads) -> None:
    """Lines about the resource must go, because the API server adds defaults, and a maximum as a default, to pods that
    have claims, and a minimum refuses those pods. LimitRanges cannot limit claims."""
    namespace = changes.document.namespace or "default"
    for index, limits in enumerate(maps_in(value_at(changes.obj, ("spec", "limits")))):
        for part, amounts in limits.items():
            for resource in amounts if isinstance(amounts, dict) else ():
                if not known.is_old(str(resource)):
                    continue
                path: Path = ("spec", "limits", index, str(part), str(resource))
                line = f"{part} {resource}: {amounts[resource]}"
                if not known.use_of(str(resource), namespace).claims:
                    changes.say_unchanged(path, f"{line} keeps its effect: the workloads keep the resource")
                    continue
                changes.edits.append(Remove(path))
                amount = Quantity.read(amounts[resource])
                if amount is None or amount.value == 0 or part == "maxLimitRequestRatio":
                    message = f"{line} is removed: pods with claims do not ask for it"
                    changes.say(codes.QUOTA, path, message, severity=Severity.INFO, fixed=True, advice="")
                else:
                    message = f"{line} is removed: it would apply to pods with claims, and it cannot limit claims"
                    changes.say(codes.QUOTA, path, message, advice=_LIMIT_CLAIMS)


_LIMIT_CLAIMS = (
    "Limit the devices of a namespace with a ResourceQuota (`CLASS.deviceclass.resource.k8s.io/devices`); to limit "
    "each claim, write a ValidatingAdmissionPolicy for resourceclaimtemplates. Containers that relied on a default "
    "must ask for GPUs themselves."
)


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
"""Kinds that mention GPUs and are read elsewhere."""


_OF_POLICIES = re.compile("admission|gatekeeper|kyverno|polic")
"""Groups whose objects are about pods, and create none."""


def _is_amount(path: Path) -> bool:
    """Of `resources: {limits: …}`, or of fields of its own that `resources` has: `gpuType: nvidia.com/gpu`."""
    return path[-3:-2] == ("resources",) or (path[-2:-1] == ("resources",) and isinstance(path[-1], str))


def _mentions(changes: Changes, known: Workloads) -> None:
    """Where an object of an unknown kind mentions the old resources."""
    group, kind = kind_of(changes.obj)
    if not kind or kind == "ConfigMap" or (group, kind) in _NOT_LOOKED_AT:
        return
    of_metrics = any(group == part or group.endswith(part) or part in group for part in _ABOUT_METRICS)
    for path, text in systems.texts_in(changes.obj):
        asks = _is_amount(path) and _OF_POLICIES.search(group) is None
        match = MENTION.search(text)
        if match is None:
            if asks and path[-1] == text and is_strange(text, known.meaning, known.options):
                message = f"{text}: neither its meaning nor what a {kind} does with it is known"
                changes.say(codes.UNKNOWN_RESOURCE, path, message)
            continue
        if of_metrics:
            message = (
                f"{match[0]}…: metrics of the old resource end with it; DCGM's name pods with claims only on request"
            )
            advice = "Use metrics of claims: the driver's own, or dcgm-exporter's with its DRA support on."
            changes.say(codes.AUTOSCALER, path, message, advice=advice)
        elif asks:
            message = (
                f"{kind} is an unknown kind; its controller makes pods from this that ask for the extended resource"
            )
            advice = (
                "It can stay if a DeviceClass answers the resource. Check whether the controller passes claims to pods."
            )
            changes.say(codes.NOT_EDITABLE, path, message, advice=advice)
        else:
            changes.say(codes.QUOTA, path, f"{match[0]}…: this rule does not apply to claims")


_HANDLERS: Mapping[Kind, tuple[systems.Handler, ...]] = {
    ("", "ResourceQuota"): (_resource_quota,),
    ("", "LimitRange"): (_limit_range,),
    **systems.HANDLERS,
}
