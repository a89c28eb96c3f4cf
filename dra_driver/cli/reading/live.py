"""What `dractl explain` reads of a cluster, typed. Kinds that the user may not list are noted."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.loading import pods_of_workload, typed_pod, world_of
from dra_driver.allocation.world import UnreadKind, World
from dra_driver.api import meta
from dra_driver.api.core import Key, ObjectCondition
from dra_driver.api.meta import JsonObject, Resource
from dra_driver.api.resource import Device
from dra_driver.cli.reading.session import FORBIDDEN, listed
from dra_driver.cli.tables.seen import TAINT_RULES
from dra_driver.errors import ClusterError, NoSuchObject, NotFound
from dra_driver.explain.subjects import Workload
from dra_driver.kube.client import Kube

_OF_CLUSTER = (meta.RESOURCE_SLICES, meta.DEVICE_CLASSES, meta.NODES, meta.NODE_INVENTORIES, *TAINT_RULES)
_OF_NAMESPACES = (meta.PODS, meta.RESOURCE_CLAIMS, meta.COMPUTE_DOMAINS)
"""Those of all namespaces, because they have devices; if the user may not list these, those of one namespace."""
_OF_ITS_NAMESPACE = (meta.RESOURCE_CLAIM_TEMPLATES, meta.RESOURCE_QUOTAS)
EXPLAINED_BY = (*_OF_CLUSTER, *_OF_NAMESPACES, *_OF_ITS_NAMESPACE, meta.NAMESPACES)
"""Kinds that an explanation needs."""
_OPTIONAL = (meta.NODE_INVENTORIES, meta.COMPUTE_DOMAINS, meta.RESOURCE_QUOTAS, *TAINT_RULES)
"""Kinds that a cluster need not have."""


JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", True)
WORKLOADS = (*meta.WORKLOADS, JOB_SETS)
_BETWEEN = {meta.DEPLOYMENTS: meta.REPLICA_SETS, meta.CRON_JOBS: meta.JOBS, JOB_SETS: meta.JOBS}
"""What makes the pods, where it is not the workload itself."""


async def live_workload(kube: Kube, kind: Resource, key: Key) -> tuple[World, Workload]:
    """With its world; if it has no pods, the world has those that its controller would make. Raises NoSuchObject if
    there is none of this name."""
    namespace, name = key
    world = await live_world(kube, namespace)
    try:
        obj = await kube.get(kind, name, namespace=namespace)
    except NotFound:
        raise NoSuchObject("does not exist", about=f"{kind.kind} {namespace}/{name}") from None
    makers = {obj["metadata"]["uid"]}
    if between := _BETWEEN.get(kind):
        made = await listed(kube, between, namespace)
        if isinstance(made, ClusterError):
            why = f"you may not list them, so it is not known which pods are those of {kind.kind} {name}"
            world, made = replace(world, unread=(*world.unread, UnreadKind(between.kind, why))), []
        makers |= {item["metadata"]["uid"] for item in made if _owners(item) & makers}
    pods = [pod for pod in world.pods.values() if any(owner.uid in makers for owner in pod.metadata.owner_references)]
    if not pods:
        pods = [typed_pod(pod) for pod in pods_of_workload({**obj, "kind": kind.kind})]
        world = replace(world, pods={**world.pods, **{pod.key: pod for pod in pods}})
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return world, Workload(kind.kind, key, tuple(pod.key for pod in pods), tuple(map(ObjectCondition.of, conditions)))


def _owners(obj: JsonObject) -> set[str]:
    return {owner["uid"] for owner in obj["metadata"].get("ownerReferences") or ()}


async def live_world(kube: Kube, namespace: str) -> World:
    """`namespace` is that of the pod or claim; templates and quotas of other namespaces are not needed."""
    _, minor = await kube.server_version()
    readings = await asyncio.gather(
        *(_read(kube, kind) for kind in _OF_CLUSTER),
        *(_read(kube, kind, or_in=namespace) for kind in _OF_NAMESPACES),
        *(_read(kube, kind, namespace) for kind in _OF_ITS_NAMESPACE),
        _read_namespace(kube, namespace),
    )
    objects = _each_once(obj for results, _ in readings for obj in results)
    # Taint rules are of two versions.
    unread = tuple(dict.fromkeys(item for _, item in readings if item is not None))
    loaded = world_of(objects, unread=unread, live=True)
    # The server has accepted them, so what we cannot read is new to us: better said than guessed.
    strange = tuple(UnreadKind(problem.about or "object", problem.message) for problem in loaded.problems)
    behavior = _behavior(minor, loaded.world)
    return replace(loaded.world, behavior=behavior, unread=(*loaded.world.unread, *strange))


async def _read(
    kube: Kube, resource: Resource, namespace: str | None = None, *, or_in: str | None = None
) -> tuple[list[JsonObject], UnreadKind | None]:
    """All objects, or those of namespace `or_in` if this user may not list all of them."""
    cluster_error = await listed(kube, resource, namespace)
    if isinstance(cluster_error, list):
        return cluster_error, None
    if isinstance(cluster_error, NotFound):
        return [], None if resource in _OPTIONAL else UnreadKind(resource.kind, "this cluster does not have it")
    if or_in is not None:
        some, unread = await _read(kube, resource, or_in)
        return some, unread or UnreadKind(resource.kind, f"you may list those of namespace {or_in} only", True)
    return [], UnreadKind(resource.kind, "you may not list them; the answer leaves them out")


async def _read_namespace(kube: Kube, name: str) -> tuple[list[JsonObject], UnreadKind | None]:
    try:
        return [{**await kube.get(meta.NAMESPACES, name), "kind": meta.NAMESPACES.kind}], None
    except NotFound:
        return [], None
    except ClusterError as error:
        if error.status not in FORBIDDEN:
            raise
        return [], UnreadKind(meta.NAMESPACES.kind, f"you may not read {name}; its labels are not known")


def _each_once(objects: Iterable[JsonObject]) -> list[JsonObject]:
    """Taint rules are served in more than one version."""
    by_key = {(obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"]): obj for obj in objects}
    return list(by_key.values())


def _has_list(device: Device) -> bool:
    return any(
        values is not None
        for attribute in device.attributes.values()
        for values in (attribute.ints, attribute.bools, attribute.strings, attribute.versions)
    )


def _behavior(minor: int, world: World) -> Behavior:
    """Of the version with its default gates, and those that must be on, since the server kept what they are for."""
    behavior = Behavior.of(minor)
    models = {slice_.model for slice_ in world.slices}
    devices = [device for model in models for device in model.spec.devices or ()]
    return replace(
        behavior,
        partitionable=behavior.partitionable
        or any(model.has_counters for model in models)
        or any(device.consumes_counters for device in devices),
        consumable=behavior.consumable or any(device.allow_multiple_allocations for device in devices),
        taints=behavior.taints or bool(world.taint_rules) or any(device.taints for device in devices),
        list_attributes=behavior.list_attributes or any(map(_has_list, devices)),
    )
