"""AdmissionReviews as an API server sends them, in every served version, and objects with configs to put into them."""

import copy
import json
from typing import Any

from support.shipped import classes

from dra_driver.api.meta import JsonObject

VERSIONS = ("v1", "v1beta2", "v1beta1")
KINDS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass")
CLASSES = classes()
"""Those that come with the driver."""

GOOD: JsonObject = {"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {}}}
BAD: JsonObject = {"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", "mpsConfig": {}}}


def config(parameters: Any, driver: str = "gpu.nvidia.com", **more: Any) -> JsonObject:
    """An entry of `config`; the version is added where the parameters are an object without one."""
    if isinstance(parameters, dict):
        parameters = {"apiVersion": "resource.nvidia.com/v1beta1", **parameters}
    return {"opaque": {"driver": driver, "parameters": parameters}, **more}


def an_object(
    kind: str,
    *configs: JsonObject,
    version: str = "v1",
    selectors: tuple[str, ...] = (),
    class_name: str = "gpu.nvidia.com",
    metadata: JsonObject | None = None,
) -> JsonObject:
    """A claim, a template or a class with these configs, in the shape of a version."""
    chosen = [{"cel": {"expression": expression}} for expression in selectors]
    if kind == "DeviceClass":
        spec: JsonObject = {"selectors": chosen, "config": list(configs)}
    else:
        exactly = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": 1, "selectors": chosen}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}], "config": list(configs)}}
        spec = {"spec": spec} if kind == "ResourceClaimTemplate" else spec
    named = {"name": "x", **({} if kind == "DeviceClass" else {"namespace": "team-a"}), **(metadata or {})}
    obj = {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "metadata": named, "spec": spec}
    return _flat(copy.deepcopy(obj)) if version == "v1beta1" else copy.deepcopy(obj)


def _flat(obj: JsonObject) -> JsonObject:
    """As v1beta1 has it: fields of exact requests are those of the request."""
    spec = obj["spec"].get("spec", obj["spec"])
    for request in spec.get("devices", {}).get("requests", ()):
        request |= request.pop("exactly")
    return obj


def a_review(
    obj: JsonObject, old: JsonObject | None = None, *, operation: str | None = None, **request: Any
) -> JsonObject:
    """As an API server asks about a creation, or, where there is an old one, about an update."""
    group, _, version = obj["apiVersion"].partition("/")
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": group, "version": version, "kind": obj["kind"]},
            "operation": operation or ("CREATE" if old is None else "UPDATE"),
            "dryRun": False,
            "object": obj,
            "oldObject": old,
            **request,
        },
    }


def body_of(review: Any) -> bytes:
    return json.dumps(review).encode()
