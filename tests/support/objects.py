"""Builders of API objects: the smallest ones that the API server takes."""

from collections.abc import Iterable
from typing import Any

from dra_driver.api.meta import NODES, PODS, RESOURCE_CLAIMS, JsonObject
from dra_driver.kube.client import Kube
from dra_driver.names import GPU_DRIVER


def node(name: str = "node-1") -> JsonObject:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def claim(name: str = "gpu", namespace: str = "default", requests: Iterable[str] = ("gpu",)) -> JsonObject:
    """A claim of one device of class gpu.nvidia.com a request."""
    wanted = [{"name": request, "exactly": {"deviceClassName": "gpu.nvidia.com"}} for request in requests]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": wanted}},
    }


def result(
    device: str, request: str = "gpu", *, pool: str = "node-1", driver: str = GPU_DRIVER, **more: Any
) -> JsonObject:
    """One allocated device."""
    return {"request": request, "driver": driver, "pool": pool, "device": device, **more}


def allocation(*results: JsonObject, config: Iterable[JsonObject] = ()) -> JsonObject:
    devices: JsonObject = {"results": list(results)}
    if config := list(config):
        devices["config"] = config
    return {"devices": devices}


def held(name: str, *results: JsonObject) -> JsonObject:
    """A claim that has these devices, for the pod `NAME-pod`."""
    pod_name = {"resource": "pods", "name": f"{name}-pod", "uid": "u"}
    return {**claim(name), "status": {"allocation": allocation(*results), "reservedFor": [pod_name]}}


def pod(
    name: str = "pod",
    claims: Iterable[str] = ("gpu",),
    *,
    namespace: str = "default",
    node_name: str | None = "node-1",
    use: Iterable[JsonObject] | None = None,
) -> JsonObject:
    """A pod with one container; it uses all its claims unless `use` lists entries of `resources.claims`."""
    names = list(claims)
    uses = list(use) if use is not None else [{"name": claim} for claim in names]
    spec: JsonObject = {
        "containers": [{"name": "main", "image": "ubuntu:24.04", "resources": {"claims": uses} if uses else {}}],
        "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in names],
        "terminationGracePeriodSeconds": 1,
    }
    if node_name is not None:
        spec["nodeName"] = node_name
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


async def allocate(kube: Kube, claim: JsonObject, *results: JsonObject, pods: Iterable[JsonObject] = ()) -> JsonObject:
    """Give a created claim its devices, and reserve it for created pods, as the scheduler does."""
    reserved = [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]} for pod in pods]
    metadata = claim["metadata"]
    status: JsonObject = {"allocation": allocation(*results)}
    if reserved:
        status["reservedFor"] = reserved
    return await kube.merge_patch(
        RESOURCE_CLAIMS, metadata["name"], {"status": status}, namespace=metadata["namespace"], subresource="status"
    )


async def running_setup(
    kube: Kube, *results: JsonObject, pod_object: JsonObject | None = None
) -> tuple[JsonObject, JsonObject]:
    """Node, an allocated claim `gpu`, and a pod that it is reserved for; answers claim and pod."""
    await kube.create(NODES, node())
    created = await kube.create(RESOURCE_CLAIMS, claim())
    consumer = await kube.create(PODS, pod_object or pod())
    allocated = await allocate(kube, created, *(results or (result("gpu-0"),)), pods=[consumer])
    return allocated, consumer
