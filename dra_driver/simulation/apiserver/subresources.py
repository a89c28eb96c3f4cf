"""Subresources that are requests of their own: binding and eviction of pods, finalize of namespaces, reviews."""

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.status import bad_request, conflict
from dra_driver.simulation.apiserver.objects import DeleteOptions, Objects, copied, timestamp
from dra_driver.simulation.apiserver.requests import Target
from dra_driver.simulation.apiserver.store import Entry


def success(status: int = 201) -> JsonObject:
    """A Status that says nothing but that it worked."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": status}


def bind(objects: Objects, target: Target, binding: JsonObject) -> JsonObject:
    """pods/binding: puts a pod on a node, once. Raises ApiError 409 when it is on one already."""
    name = target.name or ""
    node = (binding.get("target") or {}).get("name")
    if binding.get("kind") != "Binding" or not node:
        raise bad_request("a Binding with a target name is required")
    old = objects.get(target.kind, target.place, name)
    taken, metadata = old.obj["spec"].get("nodeName"), old.obj["metadata"]
    if taken:
        raise conflict(target.kind.resource, name, f"pod {name} is already assigned to node {taken!r}")
    if metadata.get("deletionTimestamp"):
        raise conflict(target.kind.resource, name, f"pod {name} is being deleted, cannot be assigned to a host")
    pod = copied(old)
    pod["spec"]["nodeName"] = node
    conditions = [one for one in pod["status"].get("conditions") or () if one["type"] != "PodScheduled"]
    now = timestamp(objects.now())
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    pod["status"]["conditions"] = [*conditions, scheduled]
    objects.overwrite(target.kind, pod)
    return success()


def evict(objects: Objects, target: Target, eviction: JsonObject) -> JsonObject:
    """pods/eviction: a delete; disruption budgets are not consulted."""
    options = eviction.get("deleteOptions") or {}
    preconditions = options.get("preconditions") or {}
    objects.delete(
        target.kind,
        target.place,
        target.name or "",
        DeleteOptions(grace_period_s=options.get("gracePeriodSeconds"), uid=preconditions.get("uid")),
    )
    return success()


def finalize(objects: Objects, target: Target, namespace: JsonObject) -> Entry:
    """namespaces/finalize: replaces the finalizers in the spec; the namespace goes when none is left."""
    old = objects.get(target.kind, "", target.name or "")
    obj = copied(old)
    obj["spec"] = {"finalizers": (namespace.get("spec") or {}).get("finalizers") or []}
    if not obj["spec"]["finalizers"] and obj["metadata"].get("deletionTimestamp"):
        return objects.finish(target.kind, old)
    return objects.overwrite(target.kind, obj)


def answer_review(kind: str, body: JsonObject) -> JsonObject:
    """Reviews of access: everything is allowed, by everybody."""
    status: JsonObject = {"allowed": True, "reason": "this server has no authorization"}
    if kind == "SelfSubjectRulesReview":
        every = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
        urls = {"verbs": ["*"], "nonResourceURLs": ["*"]}
        status = {"resourceRules": [every], "nonResourceRules": [urls], "incomplete": False}
    if kind == "SelfSubjectReview":
        status = {"userInfo": {"username": "anybody", "groups": ["system:masters", "system:authenticated"]}}
    return {**body, "kind": kind, "metadata": body.get("metadata") or {}, "status": status}
