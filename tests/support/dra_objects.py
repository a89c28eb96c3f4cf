"""Builders of resource.k8s.io objects for tests that speak to an API server: plain objects, only what is asked for."""

from typing import Any

type Obj = dict[str, Any]

DRA = "/apis/resource.k8s.io/v1"
SLICES = f"{DRA}/resourceslices"
CLASSES = f"{DRA}/deviceclasses"


def claims(namespace: str) -> str:
    """Path of the claims of a namespace."""
    return f"{DRA}/namespaces/{namespace}/resourceclaims"


def templates(namespace: str) -> str:
    """Path of the claim templates of a namespace."""
    return f"{DRA}/namespaces/{namespace}/resourceclaimtemplates"


def request(name: str = "gpu", **exactly: Any) -> Obj:
    """An exact request."""
    return {"name": name, "exactly": {"deviceClassName": "gpu.nvidia.com", **exactly}}


def claim_spec(*requests: Obj, **devices: Any) -> Obj:
    """A claim's spec; one exact request when none is given."""
    return {"devices": {"requests": list(requests) or [request()], **devices}}


def claim(name: str, spec: Obj | None = None, **metadata: Any) -> Obj:
    """A ResourceClaim."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, **metadata},
        "spec": claim_spec() if spec is None else spec,
    }


def result(device: str = "gpu-0", **fields: Any) -> Obj:
    """An allocation result of the request `gpu`."""
    return {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-1", "device": device, **fields}


def allocation(*results: Obj, **fields: Any) -> Obj:
    """An allocation; of one device when none is given."""
    return {"devices": {"results": list(results) or [result()]}, **fields}


def consumer(number: int = 0) -> Obj:
    """An entry of reservedFor."""
    return {"resource": "pods", "name": f"pod-{number}", "uid": f"uid-{number}"}


def opaque(parameters: Any, driver: str = "gpu.nvidia.com") -> Obj:
    """A device configuration."""
    return {"opaque": {"driver": driver, "parameters": parameters}}


def resource_slice(name: str, *devices: Obj, node: str = "node-1", generation: int = 1, **spec: Any) -> Obj:
    """A ResourceSlice: all that the pool of this node has. A field of the spec that is given as None is left out."""
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    fields = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, **spec}
    if devices:
        fields["devices"] = list(devices)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {key: value for key, value in fields.items() if value is not None},
    }


def device(name: str = "gpu-0", **fields: Any) -> Obj:
    """A device of a slice."""
    return {"name": name, **fields}


def crd(plural: str, version: Obj | None = None, *, scope: str = "Cluster", **spec: Any) -> Obj:
    """A CustomResourceDefinition in the group contract.dra.gpu with one version, v1."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": schema, **(version or {})}]
    names = {"plural": plural, "singular": plural[:-1], "kind": plural[:-1].capitalize()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.contract.dra.gpu"},
        "spec": {"group": "contract.dra.gpu", "scope": scope, "names": names, "versions": versions, **spec},
    }


def pod(name: str, **spec: Any) -> Obj:
    """A pod with one container, `main`."""
    container = {"name": "main", "image": "registry.example/image:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }
