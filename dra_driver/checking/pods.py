"""Pods and everything with a pod's spec inside: claims that are listed and used, and the objects that they name."""

from collections.abc import Collection, Iterator, Mapping

from dra_driver.allocation.placement import IMPLICIT_PREFIX, class_by_resource
from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import value_at
from dra_driver.checking import codes
from dra_driver.checking.claim_checks import check_gate, request_names
from dra_driver.checking.codes import Severity
from dra_driver.checking.findings import CheckReport
from dra_driver.checking.manifests import ClaimPart, Manifests, PodPart
from dra_driver.checking.selectors import fix_of, unknown
from dra_driver.names import FORMER_CLASSES, is_dns_label, is_dns_subdomain
from dra_driver.phrases import is_misspelled, listed, meant, shown

_WHERE: Mapping[str, str] = {
    "Pod": "spec",
    "PodTemplate": "template.spec",
    "ReplicationController": "spec.template.spec",
    "Deployment": "spec.template.spec",
    "ReplicaSet": "spec.template.spec",
    "StatefulSet": "spec.template.spec",
    "DaemonSet": "spec.template.spec",
    "Job": "spec.template.spec",
    "CronJob": "spec.jobTemplate.spec.template.spec",
}
KINDS = frozenset(_WHERE)
_NAMED = (("resourceClaimTemplateName", "ResourceClaimTemplate"), ("resourceClaimName", "ResourceClaim"))
_SIMILAR_GPU = ("nvidia.com/",)
_OF_HAMI = ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")
"""By its default configuration. Its number of GPUs is `nvidia.com/gpu`."""


def pod_spec(kind: str, obj: JsonObject) -> tuple[str, JsonObject] | None:
    """The path and the spec of the pod that an object of one of `KINDS` describes."""
    spec = value_at(obj, tuple(_WHERE[kind].split(".")))
    return (_WHERE[kind], spec) if isinstance(spec, dict) else None


def pod_specs_inside(value: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, JsonObject]]:
    """What looks like the spec of a pod with claims, or of KubeVirt's machine with claims, anywhere in an object of a
    kind that we do not know."""
    if depth > 12:
        return
    if isinstance(value, dict):
        is_machine = isinstance(value.get("domain"), dict)
        if isinstance(value.get("resourceClaims"), list) and (is_machine or isinstance(value.get("containers"), list)):
            yield path, value
            return
        for name, item in value.items():
            yield from pod_specs_inside(item, f"{path}.{name}" if path else str(name), depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from pod_specs_inside(item, f"{path}[{index}]", depth + 1)


def check_pod(pod: PodPart, manifests: Manifests) -> None:
    """Once everything that the documents define is known."""
    _check_containers(pod)
    claims = _check_listed(pod)
    used = _check_uses(pod, claims, manifests)
    for name, (path, _) in claims.items():
        if name not in used and pod.spec.get("containers"):
            fix = f"add `resources: {{claims: [{{name: {name}}}]}}` to a container"
            pod.report.find(codes.UNUSED_CLAIM, path, f"no container uses claim {shown(name)}", fix=fix)
    for index, entry in enumerate(pod.spec.get("resourceClaims") or ()):
        path = f"{pod.path}.resourceClaims[{index}]"
        for field, kind in _NAMED:
            if isinstance(name := entry.get(field), str) and name:
                _check_name(pod, f"{path}.{field}", kind, name, manifests)
        _check_unused_requests(pod, path, entry, used, manifests)
    _check_extended(pod, manifests)


def _check_containers(pod: PodPart) -> None:
    """What every pod must have. Kinds of others may fill in images."""
    if not pod.spec.get("containers") and not pod.beside and not pod.report.has(f"{pod.path}.containers"):
        pod.report.find(codes.MISSING_FIELD, f"{pod.path}.containers", "a pod must have a container")
    seen: set[str] = set()
    for path, container in containers(pod):
        name = str(container.get("name", ""))
        if not name and not pod.report.has(f"{path}.name"):
            pod.report.find(codes.MISSING_FIELD, f"{path}.name", "a container must have a name")
        if name and not is_dns_label(name):
            pod.report.find(codes.INVALID, f"{path}.name", f"is {shown(name)}; must be a DNS label like `main`")
        if name and name in seen:
            pod.report.find(codes.DUPLICATE, f"{path}.name", f"the pod has two containers called {shown(name)}")
        seen.add(name)
        if not container.get("image") and pod.whole and not pod.report.has(f"{path}.image"):
            pod.report.find(codes.MISSING_FIELD, f"{path}.image", "a container must have an image")


type _ListedClaims = Mapping[str, tuple[str, JsonObject]]
"""The pod's claims by name: path and entry."""


def _check_listed(pod: PodPart) -> _ListedClaims:
    claims: dict[str, tuple[str, JsonObject]] = {}
    for index, entry in enumerate(pod.spec.get("resourceClaims") or ()):
        path, name = f"{pod.path}.resourceClaims[{index}]", str(entry.get("name", ""))
        both = entry.get("resourceClaimName"), entry.get("resourceClaimTemplateName")
        if all(both):
            pod.report.find(codes.INVALID, path, "names a claim and a template; one of them is enough")
        elif not any(both):
            message = "names neither a claim (`resourceClaimName`) nor a template (`resourceClaimTemplateName`)"
            pod.report.find(codes.MISSING_FIELD, path, message)
        if entry.get("name") == "":
            pod.report.find(codes.MISSING_FIELD, f"{path}.name", "the claim must have a name")
        if name and not is_dns_label(name):
            pod.report.find(codes.INVALID, f"{path}.name", f"is {shown(name)}; must be a DNS label like `gpu`")
        for field, _ in _NAMED:
            named = entry.get(field)
            if named and not is_dns_subdomain(str(named)):
                pod.report.find(codes.INVALID, f"{path}.{field}", f"is {shown(named)}; that is not a valid object name")
        if name in claims:
            pod.report.find(codes.DUPLICATE, f"{path}.name", f"the pod has two claims called {shown(name)}")
        claims.setdefault(name, (path, entry))
    return claims


def containers(pod: PodPart) -> Iterator[tuple[str, JsonObject]]:
    for field in ("initContainers", "containers"):
        for index, container in enumerate(pod.spec.get(field) or ()):
            yield f"{pod.path}.{field}[{index}]", container
    yield from pod.beside


def _check_uses(pod: PodPart, claims: _ListedClaims, manifests: Manifests) -> dict[str, set[str]]:
    """Which requests of which claims containers use; the empty name stands for all requests."""
    used: dict[str, set[str]] = {}
    for path, container in containers(pod):
        seen: set[tuple[str, str]] = set()
        for index, use in enumerate((container.get("resources") or {}).get("claims") or ()):
            where = f"{path}.resources.claims[{index}]"
            name, request = str(use.get("name", "")), str(use.get("request", ""))
            if name not in claims:
                _unknown_claim(pod, f"{where}.name", name, claims)
                continue
            if (name, request) in seen or (name, "") in seen or (not request and any(name == text for text, _ in seen)):
                pod.report.find(codes.DUPLICATE, where, f"the container uses claim {shown(name)} already")
            seen.add((name, request))
            used.setdefault(name, set()).add(request)
            if request:
                _check_request(pod, f"{where}.request", claims[name][1], request, manifests)
    return used


def _unknown_claim(pod: PodPart, path: str, name: str, claims: Collection[str]) -> None:
    if not name:
        if not pod.report.has(path):
            pod.report.find(codes.MISSING_FIELD, path, "must name a claim of the pod")
        return
    message, fix = unknown(f"the pod has no claim {shown(name)}", name, claims)
    fix = fix or f"add an entry `name: {name}` to {pod.path}.resourceClaims"
    pod.report.find(codes.UNKNOWN_CLAIM, path, message, fix=fix)


def _claim_of(pod: PodPart, entry: JsonObject, manifests: Manifests) -> ClaimPart | None:
    if entry.get("resourceClaimTemplateName"):
        return manifests.templates.get((pod.namespace, str(entry["resourceClaimTemplateName"])))
    return manifests.claims.get((pod.namespace, str(entry.get("resourceClaimName"))))


def _check_request(pod: PodPart, path: str, entry: JsonObject, request: str, manifests: Manifests) -> None:
    part = _claim_of(pod, entry, manifests)
    if part is None:
        return
    known = list(request_names(part))
    if request in known:
        return
    top = request.partition("/")[0]
    if top in known:
        message = f"containers name requests, not their alternatives: `{top}`, not `{request}`"
        pod.report.find(codes.UNKNOWN_REQUEST, path, message, fix=f"write `{top}`")
        return
    message, fix = unknown(f"{part.report.document.title} has no request {shown(request)}", request, known)
    pod.report.find(codes.UNKNOWN_REQUEST, path, message, fix=fix)


def _check_unused_requests(
    pod: PodPart, path: str, entry: JsonObject, used: Mapping[str, set[str]], manifests: Manifests
) -> None:
    """A named claim may have requests for other pods; a template's claim is this pod's alone."""
    name = str(entry.get("name", ""))
    part = _claim_of(pod, entry, manifests) if entry.get("resourceClaimTemplateName") else None
    if part is None or not used.get(name) or "" in used[name]:
        return
    unused = [request_name for request_name in request_names(part) if request_name not in used[name]]
    if unused:
        message = f"no container uses request {listed(unused)} of claim {shown(name)}"
        pod.report.find(codes.UNUSED_REQUEST, path, message)


def _check_name(pod: PodPart, path: str, kind: str, name: str, manifests: Manifests) -> None:
    of_template, namespace = kind == "ResourceClaimTemplate", pod.namespace
    known, other = (manifests.templates, manifests.claims) if of_template else (manifests.claims, manifests.templates)
    if (namespace, name) in known:
        return
    if (namespace, name) in other:
        right, what = ("resourceClaimName", "claim") if of_template else ("resourceClaimTemplateName", "template")
        message = f"{shown(name)} is no {kind}; the files have a {what} of this name"
        pod.report.find(codes.MISNAMED, path, message, fix=f"write `{right}: {name}`", severity=Severity.ERROR)
        return
    elsewhere = sorted(text for text, other_name in known if other_name == name)
    if elsewhere:
        message = f"{kind} {name} is in namespace {elsewhere[0] or 'default'}, the pod is not"
        # A namespace that is not written is that of `kubectl apply -n`.
        severity = Severity.ERROR if namespace and all(elsewhere) else None
        pod.report.find(codes.MISNAMED, path, message, fix="put both into one namespace", severity=severity)
        return
    report_missing(pod.report, path, kind, name, [text for ns, text in known if ns == namespace], namespace, manifests)


def report_missing(
    report: CheckReport, path: str, kind: str, name: str, known: Collection[str], namespace: str, manifests: Manifests
) -> None:
    """An object that is not known here."""
    existing = (manifests.knowledge.existing or {}).get(kind)
    in_cluster = existing or ()
    if (namespace or ("" if kind == "DeviceClass" else "default"), name) in in_cluster:
        return
    if kind == "DeviceClass" and name in FORMER_CLASSES:
        message = f"DeviceClass {shown(name)} does not exist: only early releases of NVIDIA's driver had it"
        report.find(codes.MISNAMED, path, message, fix=FORMER_CLASSES[name], severity=Severity.ERROR)
        return
    guess = meant(name, [*known, *(text for ns, text in in_cluster if ns == namespace)])
    if guess:
        certain = existing is not None or is_misspelled(name, guess.split("`")[1])
        severity = Severity.ERROR if certain else None
        message = f"there is no {kind} {shown(name)}{guess}"
        report.find(codes.MISNAMED, path, message, fix=fix_of(guess), severity=severity)
    elif existing is not None:
        message = f"{kind} {shown(name)} is neither in these files nor in the cluster"
        report.find(codes.NOT_FOUND, path, message, severity=Severity.ERROR)
    else:
        report.find(codes.NOT_FOUND, path, f"{kind} {shown(name)} is not in these files; it must be in the cluster")


def _check_extended(pod: PodPart, manifests: Manifests) -> None:
    classes = class_by_resource(manifests.all_classes().values())
    for path, container in containers(pod):
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for field, amounts in (("limits", limits), ("requests", requests)):
            for name, amount in amounts.items():
                if name in limits and field == "requests":
                    if name in classes and str(limits[name]) != str(amount):
                        message = f"asks for {amount}, and {limits[name]} in limits; both must be the same"
                        pod.report.find(codes.INVALID, f"{path}.resources.requests[{name}]", message)
                    continue
                _check_resource(pod, f"{path}.resources.{field}[{name}]", name, classes, manifests)


def _check_resource(pod: PodPart, path: str, name: str, classes: Mapping[str, str], manifests: Manifests) -> None:
    if name in classes:
        check_gate("DRAExtendedResource", path, pod.report, manifests.knowledge.minor)
        return
    if not name.startswith((IMPLICIT_PREFIX, *_SIMILAR_GPU)):
        return
    if name in _OF_HAMI:
        message = f"{name} is a resource of HAMi, and no DeviceClass provides it"
        fix = "`dractl migrate` writes a claim of a share of a GPU in its place"
        pod.report.find(codes.EXTENDED_RESOURCE, path, message, fix=fix)
        return
    # The name that resembles that of a share is that of a whole GPU.
    guess = meant(name, classes) if not name.endswith(".shared") else ""
    message = f"no DeviceClass provides {name}{guess}"
    if name.startswith("nvidia.com/mig-"):
        message += "; ask for the profile with a claim of class mig.nvidia.com instead"
    elif name == "nvidia.com/gpu.shared":
        message += "; ask for a share with a claim of class shared.gpu.nvidia.com instead"
    pod.report.find(codes.EXTENDED_RESOURCE, path, message, fix=fix_of(guess))
