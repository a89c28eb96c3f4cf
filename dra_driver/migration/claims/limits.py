"""What keeps claims from where they are wanted: servers that are too old, frameworks, virtual machines. Pure."""

from collections.abc import Iterator

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.apirules.dra_gates import dropped_fields
from dra_driver.kubernetes import OLDEST
from dra_driver.migration.claims.strategy import knows_extended_resources
from dra_driver.migration.codes import NO_CLAIMS_HERE, SERVER_TOO_OLD, VIRTUAL_MACHINE, Severity
from dra_driver.migration.model import (
    Finding,
    Form,
    Options,
    Path,
    Target,
    Workload,
    finding,
    value_at,
)
from dra_driver.migration.read.kind_table import kind_of


def why_too_old(template: JsonObject, options: Options) -> str | None:
    """Why the cluster would not take the template, or would drop a part of it, as a sentence; None: it takes all."""
    minor = options.kubernetes_minor
    if minor is None:
        return None
    if minor < OLDEST:
        return f"Kubernetes 1.{minor} does not serve resource.k8s.io/v1, which came with 1.{OLDEST}"
    dropped = dropped_fields(template, minor)
    if not dropped:
        return None
    return f"Kubernetes 1.{minor} drops {', '.join(dropped)} from claims unless a feature gate is switched on"


def too_old(workload: Workload, reason: str) -> Finding:
    pod = workload.pod
    return finding(SERVER_TOO_OLD, pod.document, pod.path, reason)


def _of_defaults(workload: Workload) -> Iterator[Finding]:
    """Of Argo's `templateDefaults`: its containers are for some templates only, its pod settings for all."""
    pod = workload.pod
    if workload.choice.target is not Target.CLAIMS or pod.path[-1] != "templateDefaults":
        return
    templates = value_at(pod.document.obj, (*pod.path[:-1], "templates"))
    others = [
        str(one.get("name"))
        for one in (templates if isinstance(templates, list) else ())
        if isinstance(one, dict) and any(kind in one for kind in ("script", "resource", "data", "containerSet"))
    ]
    if others:
        message = f"the claim of templateDefaults comes to templates without a container, too: {', '.join(others)}"
        advice = "Move what is said of GPUs from templateDefaults to the templates that need them, and migrate again."
        yield finding(NO_CLAIMS_HERE, pod.document, pod.path, message, advice=advice, severity=Severity.ERROR)


def of_form(workload: Workload, options: Options) -> Iterator[Finding]:
    """What the kind of the object makes of claims, and the cluster of extended resources."""
    pod, target = workload.pod, workload.choice.target
    yield from _of_defaults(workload)
    if target is Target.EXTENDED and not knows_extended_resources(options):
        yield too_old(workload, "feature gate DRAExtendedResource is to be switched on for this")
    if pod.form is Form.NONE and target is not Target.CLAIMS:
        kept = target is Target.EXTENDED
        yield finding(
            NO_CLAIMS_HERE,
            pod.document,
            pod.path,
            pod.why_no_claims,
            advice="Nothing to do: a DeviceClass answers to the extended resource." if kept else None,
            severity=Severity.INFO if kept else Severity.ERROR,
        )
        if not kept and not knows_extended_resources(options):
            yield too_old(workload, workload.choice.reason)


_RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
_OF_THE_CLUSTER = ("ClusterTrainingRuntime", "ClusterWorkflowTemplate")


def of_the_cluster(workload: Workload) -> Iterator[Finding]:
    """Objects of no namespace, whose pods are made in any, name templates of each."""
    document = workload.pod.document
    if workload.choice.target is Target.CLAIMS and document.kind in _OF_THE_CLUSTER:
        message = f"a {document.kind} is for all namespaces; the template that it names now must be in each of them"
        advice = "Apply the ResourceClaimTemplate in every namespace where pods are made of this."
        yield finding(NO_CLAIMS_HERE, document, (), message, advice=advice)
    if workload.choice.target is Target.CLAIMS and document.kind in _RUNTIMES:
        message = "the GPUs of a TrainJob that has resourcesPerNode of its own are added to those of the claim"
        advice = "Let TrainJobs of this runtime ask for no GPUs, or keep both as they are with `strategy: extended`."
        yield finding(NO_CLAIMS_HERE, document, workload.pod.path, message, advice=advice)


_MACHINES = ("VirtualMachine", "VirtualMachineInstance", "VirtualMachineInstanceReplicaSet")


def virtual_machines(document: Document) -> Iterator[Finding]:
    """GPUs of KubeVirt's machines, which are no container's."""
    group, kind = kind_of(document.obj)
    if group != "kubevirt.io" or kind not in _MACHINES:
        return
    spec: Path = ("spec",) if kind == "VirtualMachineInstance" else ("spec", "template", "spec")
    for field in ("gpus", "hostDevices"):
        path = (*spec, "domain", "devices", field)
        listed = value_at(document.obj, path)
        for index, one in enumerate(listed if isinstance(listed, list) else ()):
            name = one.get("deviceName") if isinstance(one, dict) else None
            if isinstance(name, str) and name.startswith("nvidia.com/"):
                yield finding(
                    VIRTUAL_MACHINE, document, (*path, index, "deviceName"), f"{name} is for a virtual machine"
                )
