"""The objects that an intent stands for, with notes that say why each part is there. Pure.

An intent comes here after `refusals` found nothing in it.
"""

from collections.abc import Sequence
from typing import Any

from dra_driver.api.meta import COMPUTE_DOMAINS, JsonObject
from dra_driver.apirules.metadata import dns_label
from dra_driver.authoring.intent import (
    IMAGE,
    SAME_ATTRIBUTES,
    Intent,
    ObjectForm,
    Same,
    WorkloadKind,
    product_pattern,
)
from dra_driver.authoring.writing import Noted
from dra_driver.devices.model import DeviceKind
from dra_driver.errors import InvalidInput
from dra_driver.names import ADMIN_ACCESS_LABEL, CONFIG_API_VERSION, GPU_DRIVER, dns_label_of

_API = "resource.k8s.io/v1"
_OWN = f'device.attributes["{GPU_DRIVER}"]'
_MEMORY = f'device.capacity["{GPU_DRIVER}"].memory'
_NIC_DRIVER = "dra.net"
_PCIE_ROOT = SAME_ATTRIBUTES[Same.PCIE]
_ENTRY = "gpu"
"""What the pod's containers call their claim."""

_SAME_NOTES = {
    Same.NUMA: "Attached to one NUMA node, so that no memory traffic crosses between sockets.",
    Same.PCIE: "Below one PCIe root, the shortest way between devices that NVLink does not connect.",
    Same.NVLINK: "Connected by NVLink: GPUs without it do not have this attribute, and are never chosen.",
    Same.GPU: "Parts of one GPU.",
}


def objects_of(intent: Intent) -> tuple[Any, ...]:
    """The claim, template or class, and the workload, if any; `writing.plain` makes API objects of them."""
    if intent.form is ObjectForm.CLASS:
        return (_class(intent),)
    return (_claim(intent), _workload(intent)) if intent.workload is not None else (_claim(intent),)


def name_of(intent: Intent) -> str:
    if intent.name is not None:
        return intent.name
    base = {DeviceKind.VFIO: "vm-gpu", DeviceKind.MIG: f"mig-{intent.mig}", DeviceKind.GPU: "gpu", None: "gpu-share"}[
        intent.kind
    ]
    if intent.share is not None and intent.mig is not None:
        base = f"{base}-share"
    model = intent.gpu or (f"best-{base}" if intent.prefer else None)
    parts = [model or base, *([base] if intent.gpu is not None and base != "gpu" else [])]
    return dns_label_of("-".join([*parts, *([f"x{intent.devices}"] if intent.devices > 1 else [])]))


# -- claims


def _claim(intent: Intent) -> Noted:
    kind, spec = "ResourceClaim", {"devices": _devices(intent)}
    life = "Pods that name this claim use the same devices, on the same node, until the claim is deleted."
    if intent.form is ObjectForm.TEMPLATE:
        kind, spec = "ResourceClaimTemplate", {"spec": spec}
        life = "Kubernetes creates a claim for each pod that names this template, and deletes it with the pod."
    return Noted(f"{_summary(intent)}\n{life}", _api_object(_API, kind, name_of(intent), spec))


def _devices(intent: Intent) -> JsonObject:
    requests, own = _requests(intent)
    constraints = _constraints(intent, own)
    config = _configs(intent, own if intent.nic else [])
    return {
        "requests": requests,
        **({"constraints": constraints} if constraints else {}),
        **({"config": config} if config else {}),
    }


def _requests(intent: Intent) -> tuple[list[Any], list[str]]:
    """All requests, and the names of those for GPUs or parts of them."""
    if not intent.nic:
        return [_request(intent, "gpu", intent.count)], ["gpu"]
    numbers = [""] if intent.devices == 1 else [f"-{number}" for number in range(intent.devices)]
    results: list[Any] = []
    for number in numbers:
        results += [_request(intent, f"gpu{number}", None), _nic_request(intent, f"nic{number}")]
    return results, [f"gpu{number}" for number in numbers]


def _request(intent: Intent, name: str, count: int | None) -> Any:
    if intent.prefer:
        alternatives = [{"name": dns_label_of(model), **_wanted(intent, model, count)} for model in intent.prefer]
        note = "The first of these that a node has. Nodes with an earlier one are preferred."
        return {"name": name, "firstAvailable": Noted(note, alternatives)}
    return {"name": name, "exactly": _wanted(intent, intent.gpu, count)}


def _wanted(intent: Intent, model: str | None, count: int | None) -> JsonObject:
    selectors = _selectors(intent, model)
    wanted: JsonObject = {"deviceClassName": _class_name(intent)}
    if selectors:
        wanted["selectors"] = selectors
    if intent.admin:
        label = f'The namespace needs the label {ADMIN_ACCESS_LABEL}: "true".'
        wanted["adminAccess"] = Noted(
            f"For monitoring: other claims can use the devices at the same time. {label}", True
        )
    if intent.admin and count is None:
        wanted["allocationMode"] = Noted("Every device of the node that matches, also those in use.", "All")
    elif count is not None:
        wanted["count"] = count
    if intent.share:
        note = "A share of a device that other claims share, too; cores are percent of its compute."
        wanted["capacity"] = Noted(f"{note} Needs Kubernetes 1.36.", {"requests": dict(intent.share)})
    if intent.tolerate:
        note = "Also devices with these taints. Needs Kubernetes 1.36; older ones drop this."
        wanted["tolerations"] = Noted(note, [_toleration(text) for text in intent.tolerate])
    return wanted


def _toleration(text: str) -> JsonObject:
    key, equals, value = text.partition("=")
    if equals and value:
        return {"key": key, "operator": "Equal", "value": value}
    return {"key": key, "operator": "Exists"}


def _nic_request(intent: Intent, name: str) -> Any:
    attribute = f'device.attributes["{_NIC_DRIVER}"].rdma'
    expression = f"has({attribute}) && {attribute}"
    selectors = [Noted("Able to do RDMA: DRANET publishes every network interface of the node.", _cel(expression))]
    return Noted(
        f"A network device of DRANET, by its class {intent.nic_class}.",
        {"name": name, "exactly": {"deviceClassName": intent.nic_class, "selectors": selectors}},
    )


def _class_name(intent: Intent) -> str:
    if intent.share is not None:
        return "isolated.gpu.nvidia.com" if intent.isolated else "shared.gpu.nvidia.com"
    return {
        DeviceKind.GPU: "gpu.nvidia.com",
        DeviceKind.MIG: "mig.nvidia.com",
        DeviceKind.VFIO: "vfio.gpu.nvidia.com",
        None: "shared.gpu.nvidia.com",
    }[intent.kind]


def _selectors(intent: Intent, model: str | None) -> list[Any]:
    results: list[Any] = []
    if model is not None:
        # A raw string of CEL, so that the backslashes of the pattern stand for themselves.
        expression = f'{_OWN}.productName.matches(r"{product_pattern(model)}")'
        results.append(Noted(f"{model} as words in the product name, in any case.", _cel(expression)))
    if intent.mig is not None:
        of_mig = f"has({_OWN}.profile) && " if intent.share is not None else ""
        results.append(_cel(f'{of_mig}{_OWN}.profile == "{intent.mig}"'))
    if intent.memory is not None:
        note = "Some GPUs share the memory of their machine and publish none; without has() they would stop the pod."
        results.append(Noted(note, _cel(f'has({_MEMORY}) && {_MEMORY}.compareTo(quantity("{intent.memory}")) >= 0')))
    if intent.isolated and intent.share is not None:
        note = "Shares with limits that MPS enforces; a neighbor's fault can still end all programs on the GPU."
        results.append(Noted(note, _cel(f'{_OWN}.sharing == "mps"')))
    elif intent.isolated:
        note = "Exclusive hardware: no shares, and no part of a GPU instance that others have parts of."
        results.append(Noted(note, _cel(f'{_OWN}.isolation == "hardware"')))
    return results


def _cel(expression: str) -> JsonObject:
    return {"cel": {"expression": expression}}


def _constraints(intent: Intent, own: Sequence[str]) -> list[Any]:
    pairs = [[gpu, gpu.replace("gpu", "nic", 1)] for gpu in own] if intent.nic else [[gpu] for gpu in own]
    constraints: list[Any] = []
    if intent.nic and intent.same is not Same.PCIE:
        for pair in pairs:
            constraint = {"requests": pair, "matchAttribute": _PCIE_ROOT}
            constraints.append(Noted("GPU and network device below one PCIe root, for GPUDirect RDMA.", constraint))
    if intent.same in SAME_ATTRIBUTES:
        # What is below the PCIe root of its GPU is on its NUMA node; NVLink does not reach network devices.
        requests = [name for pair in pairs for name in pair] if intent.same is Same.PCIE else list(own)
        constraint = {"requests": requests, "matchAttribute": SAME_ATTRIBUTES[intent.same]}
        constraints.append(Noted(_SAME_NOTES[intent.same], constraint))
    return constraints


# -- how programs share


def _configs(intent: Intent, requests: Sequence[str]) -> list[Any]:
    """At most one; `requests` empty is all of them."""
    if intent.strategy is None:
        return []
    opaque = {"driver": GPU_DRIVER, "parameters": _parameters(intent)}
    config = {**({"requests": list(requests)} if requests else {}), "opaque": opaque}
    who = {
        ObjectForm.CLAIM: "Programs of all pods that name this claim",
        ObjectForm.TEMPLATE: "Programs of the containers of one pod (one claim for several pods: dractl new claim)",
        ObjectForm.CLASS: "Programs of one claim",
    }[intent.form]
    how = "run at the same time, as clients of their own MPS daemon" if intent.strategy == "MPS" else "take turns"
    return [Noted(f"{who} {how}.", config)]


def _parameters(intent: Intent) -> JsonObject:
    kind = "MigDeviceConfig" if intent.kind is DeviceKind.MIG else "GpuConfig"
    sharing: JsonObject = {"strategy": intent.strategy}
    if intent.interval is not None:
        sharing["timeSlicingConfig"] = {"interval": intent.interval}
    if intent.mps is not None:
        limits: JsonObject = {}
        if intent.mps.threads is not None:
            note = "Percent of the threads, for each program."
            limits["defaultActiveThreadPercentage"] = Noted(note, intent.mps.threads)
        if intent.mps.memory is not None:
            limits["defaultPinnedDeviceMemoryLimit"] = Noted("Device memory of each program.", intent.mps.memory)
        if limits:
            sharing["mpsConfig"] = limits
    return {"apiVersion": CONFIG_API_VERSION, "kind": kind, "sharing": sharing}


# -- workloads and classes


def _workload(intent: Intent) -> Noted:
    name, pod = name_of(intent), _pod_spec(intent)
    if intent.workload is WorkloadKind.POD:
        return Noted("A pod that uses it.", _api_object("v1", "Pod", name, pod))
    if intent.workload is WorkloadKind.JOB:
        note = f"{_pods(intent)}."
        return Noted(note, _api_object("batch/v1", "Job", name, _job_spec(pod, intent.replicas)))
    if intent.workload is WorkloadKind.JOB_SET:
        workers = {"name": "workers", "replicas": 1, "template": {"spec": _job_spec(pod, intent.replicas)}}
        note = f"{_pods(intent)}. Needs the JobSet controller in the cluster."
        return Noted(note, _api_object("jobset.x-k8s.io/v1alpha2", "JobSet", name, {"replicatedJobs": [workers]}))
    labels = {"app": name}
    spec: JsonObject = {"replicas": intent.replicas, "selector": {"matchLabels": labels}}
    if intent.workload is WorkloadKind.DEPLOYMENT:
        note = "An update ends an old pod before it starts a new one, which waits for devices otherwise."
        spec["strategy"] = Noted(note, {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}})
    else:
        spec["serviceName"] = Noted("A headless Service of this name gives each pod a DNS name.", name)
    spec["template"] = {"metadata": {"labels": labels}, "spec": pod}
    note = f"{_pods(intent)}; a pod that ends is made again."
    return Noted(note, _api_object("apps/v1", str(intent.workload), name, spec))


def _pods(intent: Intent) -> str:
    several = intent.replicas > 1
    return f"{intent.replicas} pods, each with devices of its own" if several else "One pod, with devices of its own"


def _pod_spec(intent: Intent) -> JsonObject:
    reference = "resourceClaimName" if intent.form is ObjectForm.CLAIM else "resourceClaimTemplateName"
    # A pod that shows its devices ends, and so do those of jobs.
    ends = intent.shows_devices or intent.workload in (WorkloadKind.JOB, WorkloadKind.JOB_SET)
    claims = Noted("Containers without this see no GPU.", [{"name": _ENTRY}])
    return {
        **({"restartPolicy": "Never"} if ends else {}),
        "resourceClaims": [{"name": _ENTRY, reference: name_of(intent)}],
        "containers": [_container(intent, claims)],
    }


def _container(intent: Intent, claims: Noted) -> JsonObject:
    command: Any = list(intent.command)
    if intent.shows_devices:
        shown = ["ls", "-l", "/dev/vfio"] if intent.vm else ["nvidia-smi", "-L"]
        command = Noted("Shows the devices in the pod's log, and ends.", shown)
    return {
        "name": "main",
        "image": intent.image or IMAGE,
        **({"command": command} if command else {}),
        "resources": {"claims": claims},
    }


def _job_spec(pod: JsonObject, pods: int) -> JsonObject:
    """Of `pods` pods that run at the same time."""
    mode = Noted("Each pod knows its number, JOB_COMPLETION_INDEX.", "Indexed")
    several = {"completions": pods, "parallelism": pods, "completionMode": mode}
    return {**(several if pods > 1 else {}), "template": {"spec": pod}}


_OF_CLASS = {
    "gpu.nvidia.com": f'{_OWN}.type == "gpu"',
    "mig.nvidia.com": f'{_OWN}.type == "mig"',
    "vfio.gpu.nvidia.com": f'{_OWN}.type == "vfio"',
    "shared.gpu.nvidia.com": f'{_OWN}.type in ["gpu", "mig"] && {_OWN}.sharing in ["time-slicing", "mps"]',
    "isolated.gpu.nvidia.com": f'{_OWN}.type in ["gpu", "mig"] && {_OWN}.isolation in ["hardware", "limits"]',
}
"""What each of the classes that come with the driver selects."""


def _class(intent: Intent) -> Noted:
    first = f'device.driver == "{GPU_DRIVER}" && {_OF_CLASS[_class_name(intent)]}'
    selectors = [
        Noted("This comes first, so that the other selectors see only these devices.", _cel(first)),
        *_selectors(intent, intent.gpu),
    ]
    config = _configs(intent, [])
    spec = {"selectors": selectors, **({"config": config} if config else {})}
    note = f"{_summary(intent)}\nClaims name it in deviceClassName."
    return Noted(note, _api_object(_API, "DeviceClass", name_of(intent), spec))


# -- words


def _summary(intent: Intent) -> str:
    """One sentence."""
    models = intent.gpu or " or ".join(intent.prefer)
    number = f"{intent.devices} x"
    if intent.form is ObjectForm.CLASS:
        number = "Any"
    elif intent.admin and intent.count is None:
        number = "Every"
    more = [
        *([f"with at least {intent.memory} of memory"] if intent.memory else []),
        *([f"with the same {_SAME_WORDS[intent.same]}"] if intent.same is not None else []),
        *(["each with a network device" if intent.devices > 1 else "with a network device"] if intent.nic else []),
        *(["isolated from other claims"] if intent.isolated else []),
        *(["for monitoring only"] if intent.admin else []),
    ]
    return f"{number} {_what(intent)}{f' ({models})' if models else ''}{''.join(f', {text}' for text in more)}."


_SAME_WORDS = {
    Same.NODE: "node, as all devices of a claim are",
    Same.NUMA: "NUMA node",
    Same.PCIE: "PCIe root",
    Same.NVLINK: "NVLink domain",
    Same.GPU: "GPU",
}


def _what(intent: Intent) -> str:
    if intent.share is not None:
        amounts = ", ".join(f"{name} {value}" for name, value in intent.share.items())
        return f"share{f' ({amounts})' if amounts else ''} of a {f'MIG device {intent.mig}' if intent.mig else 'GPU'}"
    return {
        DeviceKind.GPU: "GPU",
        DeviceKind.MIG: f"MIG device {intent.mig}",
        DeviceKind.VFIO: "GPU for a virtual machine",
        None: "share of a GPU",
    }[intent.kind]


MOST_NODES = 1000
_LONGEST_NAME = 50
"""So that names made of it are still labels."""


def domain_objects(name: str, nodes: int, program: Intent, *, all_channels: bool) -> tuple[Any, ...]:
    """The domain, a template for the GPUs, and a Job with one pod for each of `nodes`, with image and command of
    `program`.

    `writing.plain` makes API objects of them. Raises InvalidInput for a name that the Job's pods could not have.
    """
    why = dns_label(name) if len(name) <= _LONGEST_NAME else f"has more than {_LONGEST_NAME} characters"
    if why is not None:
        raise InvalidInput(f"{name!r}: {why}", about="NAME")
    return _domain(name, all_channels), _gpus(name), _job(name, nodes, program)


def _domain(name: str, all_channels: bool) -> Noted:
    note = "The controller makes a ResourceClaimTemplate of this name; pods name it."
    channel: JsonObject = {"resourceClaimTemplate": Noted(note, {"name": f"{name}-channel"})}
    if all_channels:
        note = (
            "All IMEX channels of the driver instead of the domain's own, for programs that manage channels themselves."
        )
        channel["allocationMode"] = Noted(note, "All")
    note = (
        "Pods on several nodes whose GPUs share memory over NVLink.\n"
        "A node joins when a pod that names the template is placed on it, and leaves with the last of them."
    )
    return Noted(note, _api_object(COMPUTE_DOMAINS.api_version, COMPUTE_DOMAINS.kind, name, {"channel": channel}))


def _gpus(name: str) -> Noted:
    exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}
    spec = {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}}
    note = "All GPUs of a node, for each pod."
    return Noted(note, _api_object(_API, "ResourceClaimTemplate", f"{name}-gpus", spec))


def _job(name: str, nodes: int, program: Intent) -> Noted:
    note = "The channel lets its programs share GPU memory with those of the other pods."
    claims = Noted(note, [{"name": "gpus"}, {"name": "channel"}])
    pod = {
        "restartPolicy": "Never",
        "resourceClaims": [
            {"name": "gpus", "resourceClaimTemplateName": f"{name}-gpus"},
            {"name": "channel", "resourceClaimTemplateName": f"{name}-channel"},
        ],
        "containers": [_container(program, claims)],
    }
    note = f"{nodes} pods, each on its own node."
    return Noted(note, _api_object("batch/v1", "Job", name, _job_spec(pod, nodes)))


def _api_object(api_version: str, kind: str, name: str, spec: JsonObject) -> JsonObject:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}
