"""LimitRanges, which limit what containers and pods ask for, and admission policies that say it of claims. Pure.

Where pods get claims, every line about the old resource goes: what has a maximum and no default is given the maximum by
the API server, and a pod that asks for none is refused by a minimum. What the lines said is then said by a
ValidatingAdmissionPolicy, bound to the namespace, of claims and templates, and of pods that still use the resource.
Where the file does not say the namespace, which `kubectl -n` or a kustomization do, the policy has LimitRanges as its
parameters: it holds wherever the LimitRange is that has its label.
Source: SetDefaults_LimitRangeItem and plugin/pkg/admission/limitranger of Kubernetes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dra_driver.api.meta import JsonObject
from dra_driver.migration.claims.templates import MANAGED_BY, OWNER, hash_of
from dra_driver.migration.codes import INVALID_AMOUNT, QUOTA, Severity
from dra_driver.migration.counts.counting import Found, State, World, amount_of, dicts
from dra_driver.migration.demands.amounts import profile_of
from dra_driver.migration.model import NewObject, Path, Put, Remove, value_at

_API = "admissionregistration.k8s.io/v1"
_LABEL = "dra.gpu/limits"
"""On a LimitRange whose namespace is not known: which policies hold where it is."""
_DEFAULTS = ("default", "defaultRequest")
_BOUNDS = ("max", "min")
_ALL = 32
"""Devices that a request for all can get: the most of one claim. ResourceQuota counts as many."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """Of one line: `max` or `min` of a resource for containers or pods."""

    path: Path
    scope: str
    part: str
    resource: str
    number: int
    state: State


def limit_range(found: Found, world: World) -> None:
    bounds: list[_Bound] = []
    for path, scope, part, resource, value in _lines(found, world):
        state = world.state(resource, found.document.namespace or "default")
        if not state.claims:
            message = f"{part} {resource}: {value} goes on counting"
            found.say(QUOTA, path, message, severity=Severity.INFO, advice="")
            continue
        found.edits.append(Remove(path))
        found.reason = "claims are limited by an admission policy, and defaults would ask for the old resource again"
        if part in _DEFAULTS:
            _default_taken_out(found, path, part, resource, value)
        elif part in _BOUNDS:
            bounds += _bound(found, world, path, scope, part, resource, value, state)
        else:
            message = f"{part} {resource}: {value} is taken out: limit and request of such a resource are always equal"
            found.say(QUOTA, path, message, severity=Severity.INFO, fixed=True, advice="")
    if bounds:
        _policy_for(found, world, bounds)


def _lines(found: Found, world: World) -> Iterator[tuple[Path, str, str, str, object]]:
    limits = value_at(found.obj, ("spec", "limits"))
    for index, one in enumerate(dicts(limits)):
        for part, amounts in one.items():
            for resource in amounts if isinstance(amounts, dict) else ():
                if world.is_old(str(resource)):
                    path: Path = ("spec", "limits", index, str(part), str(resource))
                    yield path, str(one.get("type")), str(part), str(resource), amounts[resource]


def _default_taken_out(found: Found, path: Path, part: str, resource: str, value: object) -> None:
    amount = amount_of(value)
    if amount is None or amount.value == 0:
        message = f"{part} {resource}: {value} is taken out: pods that have claims ask for none of it"
        found.say(QUOTA, path, message, severity=Severity.INFO, fixed=True, advice="")
        return
    message = f"{part} {resource}: {value} is taken out: it would be put into pods that have claims"
    advice = "Claims have no defaults: containers that relied on this one must ask for GPUs themselves."
    found.say(QUOTA, path, message, advice=advice)


def _bound(
    found: Found, world: World, path: Path, scope: str, part: str, resource: str, value: object, state: State
) -> Iterator[_Bound]:
    amount = amount_of(value)
    if amount is None or amount.value.denominator != 1:
        found.say(INVALID_AMOUNT, path, f"{part} {resource}: {value!r} is no whole number")
    elif not world.is_number(resource) or scope not in ("Container", "Pod"):
        message = f"{part} {resource}: {value} is taken out, and nothing says it of claims"
        found.say(QUOTA, path, message, advice="Limit amounts of devices by Kueue or Volcano, or not at all.")
    elif part == "max" or amount.value > 0:
        yield _Bound(path, scope, part, resource, int(amount.value), state)


# -- the policies


def _policy_for(found: Found, world: World, bounds: Sequence[_Bound]) -> None:
    document = found.document
    of_claims = _claims_spec(document.title, world, bounds)
    where = _Where(document.namespace, document.name, hash_of(of_claims))
    if document.namespace is None:
        found.edits.append(Put(("metadata", "labels", _LABEL), where.mark))
    reason = f"What {document.title} said of GPUs, said of claims."
    _add_policy(found, where, "", reason, of_claims)
    old = [one for one in bounds if one.state.old]
    if old:
        reason = f"What {document.title} said of GPUs, said of pods that ask for the extended resource."
        _add_policy(found, where, "-of-pods", reason, _pods_spec(document.title, old))
    for one in bounds:
        what = "request" if one.scope == "Container" else "claim"
        classes = " and ".join(one.state.classes)
        message = (
            f"{one.part} {one.resource}: {one.number} is said of each {what} for class {classes}, "
            f"by policy {where.name}"
        )
        if document.namespace is None:
            message += f", wherever a LimitRange has the label {_LABEL}: {where.mark}"
        advice = f"A {one.scope.lower()} that names several {what}s has each of them limited, not their sum."
        if profile_of(one.resource.removesuffix(".shared")) is not None:
            advice += " Of several profiles the widest limit holds, since claims of all of them have one class."
        found.say(QUOTA, one.path, message, fixed=True, severity=Severity.INFO, advice=advice)


@dataclass(frozen=True, slots=True)
class _Where:
    """The namespace that policies are for; None: those where a LimitRange has the mark as its label."""

    namespace: str | None
    limit_range: str
    mark: str

    @property
    def name(self) -> str:
        if self.namespace is None:
            return f"{self.limit_range}.gpu-limits-{self.mark}"
        return f"{self.namespace}.{self.limit_range}.gpu-limits"

    @property
    def of_policy(self) -> JsonObject:
        return {"paramKind": {"apiVersion": "v1", "kind": "LimitRange"}} if self.namespace is None else {}

    @property
    def of_binding(self) -> JsonObject:
        if self.namespace is None:
            # Of parameters without a namespace, those of the namespace of the claim count.
            chosen = {"matchLabels": {_LABEL: self.mark}}
            return {"paramRef": {"selector": chosen, "parameterNotFoundAction": "Allow"}}
        in_namespace = {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}
        return {"matchResources": {"namespaceSelector": in_namespace}}


def _add_policy(found: Found, where: _Where, suffix: str, reason: str, spec: JsonObject) -> None:
    """With its binding to the namespace."""
    name = where.name + suffix
    policy = {**where.of_policy, **spec}
    binding = {"policyName": name, "validationActions": ["Deny"], **where.of_binding}
    for kind, one in (("ValidatingAdmissionPolicy", policy), ("ValidatingAdmissionPolicyBinding", binding)):
        metadata = {"name": name, "labels": {MANAGED_BY: OWNER}}
        obj = {"apiVersion": _API, "kind": kind, "metadata": metadata, "spec": one}
        found.objects.append(NewObject(obj, found.document.file, reason if one is policy else "Where it holds."))


def _spec(
    group: str, resources: Sequence[str], variables: Mapping[str, str], validations: list[JsonObject]
) -> JsonObject:
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": list(resources)}
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "variables": [{"name": name, "expression": expression} for name, expression in variables.items()],
        "validations": validations,
    }


_OF_CLAIMS = {
    "devices": (
        "request.resource.resource == 'resourceclaimtemplates' "
        "? dyn(object).spec.spec.devices : dyn(object).spec.devices"
    ),
    "requests": "has(variables.devices.requests) ? variables.devices.requests : []",
    # Of each request: its own terms, or those of each alternative; nothing of one that only watches.
    "terms": (
        "variables.requests.map(r, !has(r.exactly) ? r.firstAvailable : "
        "has(r.exactly.adminAccess) && r.exactly.adminAccess ? [] : [r.exactly])"
    ),
}


def _claims_spec(title: str, world: World, bounds: Sequence[_Bound]) -> JsonObject:
    """A class is limited as widely as the widest line says."""
    widest: dict[tuple[tuple[str, ...], str, str], list[int]] = {}
    for one in bounds:
        widest.setdefault((one.state.classes, one.scope, one.part), []).append(one.number)
    variables = dict(_OF_CLAIMS)
    validations = []
    for (classes, scope, part), numbers in widest.items():
        asked = "asked_for_" + re.sub(r"[^a-z0-9]", "_", "_or_".join(classes).lower())
        variables[asked] = _asked(classes, shares=world.options.shared_class in classes)
        number = max(numbers) if part == "max" else min(numbers)
        what, side = ("a request" if scope == "Container" else "a claim"), ("most" if part == "max" else "least")
        message = f"{title}: {what} asks for at {side} {number} of class {' or '.join(classes)}"
        validations.append(_validation(_bounded(f"variables.{asked}", scope, part, number), message))
    return _spec("resource.k8s.io", ("resourceclaims", "resourceclaimtemplates"), variables, validations)


def _asked(classes: Sequence[str], *, shares: bool) -> str:
    """Of each request: how many of the classes its terms ask for; nothing where they ask for others."""
    listed = ", ".join(f"'{name}'" for name in classes)
    count = f"(has(t.allocationMode) && t.allocationMode == 'All' ? {_ALL} : has(t.count) ? int(t.count) : 1)"
    if shares:
        has = "has(t.capacity) && has(t.capacity.requests) && 'shares' in t.capacity.requests"
        count += f" * ({has} ? quantity(string(t.capacity.requests['shares'])).asInteger() : 1)"
    return f"variables.terms.map(some, some.filter(t, t.deviceClassName in [{listed}]).map(t, {count}))"


def _bounded(asked: str, scope: str, part: str, number: int) -> str:
    sign = "<=" if part == "max" else ">="
    if scope == "Container":
        return f"{asked}.all(some, some.all(n, n {sign} {number}))"
    nothing = f"{asked}.all(some, some.size() == 0) || " if part == "min" else ""
    return f"{nothing}{asked}.map(some, some.size() == 0 ? 0 : some.{part}()).sum() {sign} {number}"


def _validation(expression: str, message: str) -> JsonObject:
    return {"expression": expression, "message": message, "reason": "Forbidden"}


def _pods_spec(title: str, bounds: Sequence[_Bound]) -> JsonObject:
    """As the LimitRange had it; a container that asks for none of it is none of these."""
    containers = (
        "object.spec.containers.map(c, has(c.resources) && has(c.resources.limits) ? c.resources.limits : {}) + "
        "(has(object.spec.initContainers) ? object.spec.initContainers.map(c, "
        "has(c.resources) && has(c.resources.limits) ? c.resources.limits : {}) : [])"
    )
    validations = []
    for one in bounds:
        sign = "<=" if one.part == "max" else ">="
        number = f"quantity(string(l['{one.resource}'])).asInteger()"
        asking = f"variables.limits.filter(l, '{one.resource}' in l).map(l, {number}).filter(n, n > 0)"
        if one.scope == "Container":
            expression = f"{asking}.all(n, n {sign} {one.number})"
        else:
            nothing = f"{asking}.size() == 0 || " if one.part == "min" else ""
            expression = f"{nothing}{asking}.sum() {sign} {one.number}"
        side = "most" if one.part == "max" else "least"
        message = f"{title}: a {one.scope.lower()} asks for at {side} {one.number} of {one.resource}"
        validations.append(_validation(expression, message))
    return _spec("", ("pods",), {"limits": containers}, validations)
