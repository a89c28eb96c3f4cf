"""Claims for what a pod asks for: the template, and the edits that make the pod's object name it. Pure.

One claim for each pod, with a request for each demand, so that all devices of a pod are found together, on one node.
Containers that share devices name the same request; others name requests of their own. Templates are named after
their owner and their content: the same content is the same template, and changed content never changes a template that
pods were made with.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import Path, map_in, value_at
from dra_driver.grouping import grouped
from dra_driver.migration.model import (
    ClaimForm,
    Demand,
    DeviceShare,
    Edit,
    ObjectRef,
    Options,
    PodReading,
    PodSpecAt,
    Put,
    Remove,
    Want,
    What,
    ref_of,
    shared_group,
)
from dra_driver.names import dns_label_of

MANAGED_BY = "app.kubernetes.io/managed-by"
OWNER = "dractl-migrate"
_API = "resource.k8s.io/v1"
_ENTRY = "gpu"
"""What the pod's containers call their claim."""
_LONGEST_OWNER = 46


@dataclass(frozen=True, slots=True)
class Claims:
    """Of one pod."""

    template: JsonObject
    """Or the one ResourceClaim that it has in common with others."""
    edits: tuple[Edit, ...]

    @property
    def ref(self) -> ObjectRef:
        return ObjectRef.of(self.template)


def claims_for(pod: PodSpecAt, reading: PodReading, options: Options) -> Claims:
    """For a pod with at least one demand."""
    names = request_names(reading.demands)
    spec = {"devices": _devices(reading.demands, names, options)}
    group = shared_group(pod.document, options)
    template = _template(pod, spec) if group is None else _shared(pod, spec, group)
    edits = (
        *(Remove(path) for demand in reading.demands for path in demand.removes),
        *reading.edits,
        *_references(pod, reading, names, template),
    )
    return Claims(template, edits)


# -- requests


def request_names(demands: Sequence[Demand]) -> tuple[str, ...]:
    """One for each demand: `gpu` if it is alone, else with the container's name, and with what it is where need be."""
    if len(demands) == 1:
        return (_ENTRY,)
    names = [dns_label_of(f"{_ENTRY}-{demand.containers[0].name or index}") for index, demand in enumerate(demands)]
    if len(set(names)) == len(names):
        return tuple(names)
    one_container = len({demand.containers[0].path for demand in demands}) == 1
    longer = [
        dns_label_of(_what(demand.want) if one_container else f"{name}-{_what(demand.want)}")
        for name, demand in zip(names, demands, strict=True)
    ]
    return tuple(_numbered(longer))


def _what(want: Want) -> str:
    return f"mig-{want.profile}" if want.profile is not None else want.what.value


def _numbered(names: Sequence[str]) -> Iterator[str]:
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        yield f"{name[:58]}-{seen[name]}" if names.count(name) > 1 else name


def _devices(demands: Sequence[Demand], names: Sequence[str], options: Options) -> JsonObject:
    requests = [
        {"name": name, "exactly": _exactly(demand, options)} for demand, name in zip(demands, names, strict=True)
    ]
    constraints = list(_constraints(demands, names, options))
    return {"requests": requests, **({"constraints": constraints} if constraints else {})}


def _constraints(demands: Sequence[Demand], names: Sequence[str], options: Options) -> Iterator[JsonObject]:
    """Containers had shares of different GPUs each on its own: two of them may have shares of the same ones."""
    uuid = f"{options.driver}/uuid"
    named = list(zip(demands, names, strict=True))
    containers = {container.path: container for demand in demands for container in demand.containers}
    apart = (
        tuple(name for demand, name in named if demand.want.distinct and container in demand.containers)
        for container in containers.values()
    )
    for requests in dict.fromkeys(apart):
        if len(requests) > 1:
            yield {"requests": list(requests), "distinctAttribute": uuid}
    together = [name for demand, name in named if demand.want.together]
    if len(together) > 1:
        yield {"requests": together, "matchAttribute": uuid}


def _exactly(demand: Demand, options: Options) -> JsonObject:
    want = demand.want
    exactly: JsonObject = {"deviceClassName": class_name(want, options)}
    selectors = [{"cel": {"expression": expression}} for expression in _selectors(want, options)]
    if selectors:
        exactly["selectors"] = selectors
    if demand.all_gpus:
        return {**exactly, "allocationMode": "All", "adminAccess": True}
    exactly["count"] = want.count
    if want.share is not None and (amounts := _amounts(want.share)):
        exactly["capacity"] = {"requests": amounts}
    return exactly


def class_name(want: Want, options: Options) -> str:
    if want.device_class is not None:
        return want.device_class
    if want.share is not None:
        return options.shared_class
    return {What.GPU: options.gpu_class, What.MIG: options.mig_class, What.VFIO: options.vfio_class}[want.what]


def _selectors(want: Want, options: Options) -> Iterator[str]:
    own = options.attributes
    if want.profile is not None:
        # Devices of a class of shares can be whole GPUs, which have no profile; reading it would be an error.
        has = f"has({own}.profile) && " if want.share is not None else ""
        yield f"{has}{own}.profile == '{want.profile}'"
    elif want.share is not None:
        yield f"{own}.type == '{want.what.value}'"
    yield from want.selectors


def _amounts(share: DeviceShare) -> dict[str, str]:
    amounts = {"shares": share.number, "memory": share.memory, "cores": share.cores}
    return {name: str(amount) for name, amount in amounts.items() if amount is not None}


# -- templates


def _template(pod: PodSpecAt, spec: JsonObject) -> JsonObject:
    document = pod.document
    annotations = _annotations_beside(document)
    # Who is applied at another time has a template of its own: Argo CD may take a hook's away when it is done.
    # One of another kind with this name has one, too: kustomize refuses an object that it is given twice.
    content = {**spec, "kind": document.kind, "annotations": annotations}
    metadata: JsonObject = {"name": f"{_owner(document)}-gpu-{hash_of(content)}"}
    namespace = value_at(pod.obj, ("metadata", "namespace")) or document.namespace
    if isinstance(namespace, str) and namespace:
        metadata["namespace"] = namespace
    metadata["labels"] = {MANAGED_BY: OWNER}
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": _API, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": {"spec": spec}}


_ARGO = ("argocd.argoproj.io/hook", "argocd.argoproj.io/hook-delete-policy", "argocd.argoproj.io/sync-wave")
_HELM = ("helm.sh/hook", "helm.sh/hook-delete-policy")
_HELM_WEIGHT = "helm.sh/hook-weight"


def _annotations_beside(document: Document) -> dict[str, str]:
    """Hooks and waves of Helm and Argo CD: a template must exist before a hook, or an early wave, that names it."""
    given = map_in(value_at(document.obj, ("metadata", "annotations")))
    copied = {key: str(given[key]) for key in (*_ARGO, *_HELM) if given.get(key) is not None}
    weight = str(given.get(_HELM_WEIGHT, 0))
    if _HELM[0] in copied and weight.removeprefix("-").isdecimal():
        # Helm waits for each hook, in the order of their weights.
        copied[_HELM_WEIGHT] = str(int(weight) - 1)
    return copied


def _shared(pod: PodSpecAt, spec: JsonObject, group: tuple[str, ...]) -> JsonObject:
    """One claim, named after the workloads that share it and what they ask for. Other requests have another claim."""
    template = _template(pod, spec)
    name = f"shared-gpu-{hash_of({'of': group, **spec})}"
    return {**template, "kind": "ResourceClaim", "metadata": {**template["metadata"], "name": name}, "spec": spec}


def _owner(document: Document) -> str:
    name = ref_of(document).name or document.kind
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower())[:_LONGEST_OWNER].strip("-.") or "pod"


def hash_of(spec: JsonObject) -> str:
    """Short enough for a name: other contents have other names."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:6]


# -- references


def _references(pod: PodSpecAt, reading: PodReading, names: Sequence[str], made: JsonObject) -> Iterator[Edit]:
    key = "resourceClaimName" if made["kind"] == "ResourceClaim" else "resourceClaimTemplateName"
    source = {key: made["metadata"]["name"]}
    name = _entry_name(reading)
    entry = {"name": name, **source}
    if pod.form is ClaimForm.NIM:
        yield _appended(pod.document, (*pod.path, "draResources"), source)
        return
    yield _appended(pod.document, (*pod.path, "resourceClaims"), entry)
    users = (
        (container.resources_path, request)
        for demand, request in zip(reading.demands, names, strict=True)
        for container in demand.containers
    )
    for path, pairs in grouped(users, lambda pair: pair[0]).items():
        for index, use in enumerate(_uses(name, [request for _, request in pairs], names)):
            yield _appended(pod.document, (*path, "claims"), use, index)


def _entry_name(reading: PodReading) -> str:
    """Other than those of the claims that the pod has."""
    there = {held.name for held in reading.held}
    names = (_ENTRY if number == 1 else f"{_ENTRY}-{number}" for number in count(1))
    return next(name for name in names if name not in there)


def _appended(document: Document, path: Path, value: Any, index: int = 0) -> Put:
    there = value_at(document.obj, path)
    return Put((*path, (len(there) if isinstance(there, list) else 0) + index), value)


def _uses(entry: str, requests: Sequence[str], names: Sequence[str]) -> list[dict[str, str]]:
    """Without the request's name where it is all of them."""
    if len(requests) == len(names):
        return [{"name": entry}]
    return [{"name": entry, "request": request} for request in requests]
