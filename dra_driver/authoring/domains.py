"""A ComputeDomain and a Job whose pods are in it, with notes that say why each part is there. Pure."""

from typing import Any

from dra_driver.api.meta import COMPUTE_DOMAINS, JsonObject
from dra_driver.apirules.metadata import dns_label
from dra_driver.authoring.writing import Noted
from dra_driver.errors import InvalidInput

MOST_NODES = 1000
_LONGEST_NAME = 50
"""So that names made of it are still labels."""


def domain_objects(name: str, nodes: int, image: str, *, all_channels: bool) -> tuple[Any, ...]:
    """The domain, a template for the GPUs, and a Job with one pod for each of `nodes`.

    `writing.plain` makes API objects of them. Raises InvalidInput for a name that the Job's pods could not have.
    """
    why = dns_label(name) if len(name) <= _LONGEST_NAME else f"has more than {_LONGEST_NAME} characters"
    if why is not None:
        raise InvalidInput(f"{name!r}: {why}", about="NAME")
    return _domain(name, all_channels), _gpus(name), _job(name, nodes, image)


def _domain(name: str, all_channels: bool) -> Noted:
    template = Noted(
        "The controller makes a ResourceClaimTemplate of this name; pods name it.", {"name": _channel(name)}
    )
    channel: JsonObject = {"resourceClaimTemplate": template}
    if all_channels:
        note = (
            "All IMEX channels of the driver instead of the domain's own, for programs that manage channels themselves."
        )
        channel["allocationMode"] = Noted(note, "All")
    note = (
        "Pods on several nodes whose GPUs share memory over NVLink.\n"
        "A node joins when a pod that names the template is placed on it, and leaves with the last of them."
    )
    return Noted(note, _object(COMPUTE_DOMAINS.api_version, COMPUTE_DOMAINS.kind, name, {"channel": channel}))


def _gpus(name: str) -> Noted:
    exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}
    spec = {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}}
    return Noted(
        "All GPUs of a node, for each pod.",
        _object("resource.k8s.io/v1", "ResourceClaimTemplate", f"{name}-gpus", spec),
    )


def _job(name: str, nodes: int, image: str) -> Noted:
    container = {
        "name": "main",
        "image": image,
        "command": ["sleep", "infinity"],
        "resources": {
            "claims": Noted("The channel lets its programs share GPU memory with those of the other pods.", _ENTRIES)
        },
    }
    pod = {
        "restartPolicy": "Never",
        "resourceClaims": [
            {"name": "gpus", "resourceClaimTemplateName": f"{name}-gpus"},
            {"name": "channel", "resourceClaimTemplateName": _channel(name)},
        ],
        "containers": [container],
    }
    spec = {
        "completions": nodes,
        "parallelism": nodes,
        "completionMode": Noted("Each pod knows its number, JOB_COMPLETION_INDEX.", "Indexed"),
        "template": {"spec": pod},
    }
    return Noted(f"{nodes} pods, each on its own node.", _object("batch/v1", "Job", name, spec))


_ENTRIES = [{"name": "gpus"}, {"name": "channel"}]


def _channel(name: str) -> str:
    return f"{name}-channel"


def _object(api_version: str, kind: str, name: str, spec: JsonObject) -> JsonObject:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}
