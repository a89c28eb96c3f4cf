"""Whether a workload keeps its extended resources, answered by DeviceClasses, or gets claims; and what prevents claims:
old servers, frameworks, virtual machines. Pure.

Source: the reference on migration sources, section 1 (targets T0 and T1).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import Path, maps_in, value_at
from dra_driver.apirules.dra_gates import dropped_fields
from dra_driver.checking.codes import Severity
from dra_driver.kubernetes import GATES, OLDEST
from dra_driver.migration import codes
from dra_driver.migration.demands.placement import BY_LABELS
from dra_driver.migration.demands.pod_settings import sees_all
from dra_driver.migration.model import (
    Choice,
    ClaimForm,
    DeviceShare,
    MigratedWorkload,
    MigrationFinding,
    MigrationTarget,
    Options,
    PodReading,
    PodSpecAt,
    Role,
    StrategyOption,
    finding,
    shared_group,
    strategy_of,
)
from dra_driver.migration.read.kind_table import kind_of

_GATE = GATES["DRAExtendedResource"]


def choose(pod: PodSpecAt, reading: PodReading, options: Options) -> Choice:
    """For a pod that asks for GPUs."""
    choice = _chosen(pod, reading, options)
    if reading.held and choice.target is not MigrationTarget.LEAVE:
        return replace(choice, reason=f"{choice.reason}; its claims for other devices stay unchanged")
    return choice


def _chosen(pod: PodSpecAt, reading: PodReading, options: Options) -> Choice:
    if reading.leave is not None:
        return Choice(MigrationTarget.LEAVE, reading.leave)
    shares = [demand.want.share for demand in reading.demands]
    if any(share is not None and share.memory_percent is not None and share.memory is None for share in shares):
        reason = "it asks for percent of a memory of unknown size: decide `gpuMemory: 80Gi`, or give nodes"
        return Choice(MigrationTarget.LEAVE, reason)
    if shared_group(pod.document, options) is not None and pod.form is not ClaimForm.NONE:
        return _with_others(shares)
    if pod.form is ClaimForm.NONE:
        return _without_claims(pod, reading, options)
    strategy = strategy_of(pod.document, options)
    if strategy is StrategyOption.CLAIMS:
        return Choice(MigrationTarget.CLAIMS, "claims are decided")
    if reading.needs_claims is not None:
        if strategy is StrategyOption.EXTENDED:
            reason = f"extended resources are decided, but cannot keep the meaning: {reading.needs_claims}"
            return Choice(MigrationTarget.LEAVE, reason)
        return Choice(MigrationTarget.CLAIMS, reading.needs_claims)
    if strategy is StrategyOption.EXTENDED:
        return _extended(pod, reading, "extended resources are decided")
    if reading.prefers_claims is not None:
        return Choice(MigrationTarget.CLAIMS, reading.prefers_claims)
    if not knows_extended_resources(options):
        reason = f"the cluster does not support DeviceClasses for extended resources ({_why_not(options)})"
        return Choice(MigrationTarget.CLAIMS, reason)
    return _extended(pod, reading, "it asks only for whole devices, which extended resources can express")


def _with_others(shares: Sequence[DeviceShare | None]) -> Choice:
    """One claim for all of them would be one part for all of them, where each had a part."""
    if any(share is not None and (share.memory is not None or share.cores is not None) for share in shares):
        reason = "it asks for memory or cores of its own, which one claim for several workloads would divide"
        return Choice(MigrationTarget.LEAVE, reason)
    return Choice(MigrationTarget.CLAIMS, "it is decided that it shares devices with others")


def knows_extended_resources(options: Options) -> bool:
    if options.extended_resource_gate is not None:
        return options.extended_resource_gate
    return options.kubernetes_minor is None or _GATE.default(options.kubernetes_minor)


def _why_not(options: Options) -> str:
    if options.extended_resource_gate is False:
        return "feature gate DRAExtendedResource is off"
    return f"Kubernetes 1.{options.kubernetes_minor}: feature gate DRAExtendedResource is off before 1.{_GATE.on}"


def _without_claims(pod: PodSpecAt, reading: PodReading, options: Options) -> Choice:
    if reading.needs_claims is not None:
        reason = f"{pod.why_no_claims}, and extended resources cannot keep the meaning: {reading.needs_claims}"
        return Choice(MigrationTarget.LEAVE, reason)
    if not knows_extended_resources(options):
        return Choice(MigrationTarget.LEAVE, f"{pod.why_no_claims}, and {_why_not(options)}")
    return _extended(pod, reading, pod.why_no_claims)


def _extended(pod: PodSpecAt, reading: PodReading, reason: str) -> Choice:
    return Choice(MigrationTarget.EXTENDED, reason, tuple(_cannot(pod, reading)))


def _cannot(pod: PodSpecAt, reading: PodReading) -> Iterator[str]:
    """What would matter to this pod, and is not said by an extended resource."""
    asking = {container.path: container for demand in reading.demands for container in demand.containers}
    if reading.prefers_claims == BY_LABELS:
        yield "node labels still select its GPUs, so on a node with several models it may get any of them"
    if len(asking) > 1:
        yield "its containers cannot share a GPU, nor have GPUs that are near each other"
    elif any(demand.want.count > 1 for demand in reading.demands):
        yield "its GPUs need not be near each other (NVLink, one NUMA node)"
    if any(sees_all(container) for container in pod.containers if container.path not in asking):
        yield "containers that see all GPUs by NVIDIA_VISIBLE_DEVICES cannot be given those of the others"
    if any(container.role is Role.INIT for container in asking.values()):
        yield "before Kubernetes 1.36 an init container's GPUs are not given to the containers after it"


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


def too_old(workload: MigratedWorkload, reason: str) -> MigrationFinding:
    pod = workload.pod
    return finding(codes.SERVER_TOO_OLD, pod.document, pod.path, reason)


def of_form(workload: MigratedWorkload, options: Options) -> Iterator[MigrationFinding]:
    """What the kind of the object makes of claims, and the cluster of extended resources."""
    pod, target = workload.pod, workload.choice.target
    if target is MigrationTarget.EXTENDED and not knows_extended_resources(options):
        yield too_old(workload, "this needs feature gate DRAExtendedResource")
    if pod.form is ClaimForm.NONE and target is not MigrationTarget.CLAIMS:
        stays = target is MigrationTarget.EXTENDED
        advice = "Nothing to do: a DeviceClass answers to the extended resource." if stays else None
        severity = Severity.INFO if stays else Severity.ERROR
        why = pod.why_no_claims
        yield finding(codes.NO_CLAIMS_HERE, pod.document, pod.path, why, advice=advice, severity=severity)
        if not stays and not knows_extended_resources(options):
            yield too_old(workload, workload.choice.reason)


_RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
_OF_THE_CLUSTER = ("ClusterTrainingRuntime", "ClusterWorkflowTemplate")


def of_the_cluster(workload: MigratedWorkload) -> Iterator[MigrationFinding]:
    """Objects of no namespace, whose pods are made in any, name templates of each."""
    document = workload.document
    if workload.choice.target is MigrationTarget.CLAIMS and document.kind in _OF_THE_CLUSTER:
        message = f"a {document.kind} is for all namespaces; the template that it names now must be in each of them"
        advice = "Apply the ResourceClaimTemplate in every namespace where pods are created from this."
        yield finding(codes.NO_CLAIMS_HERE, document, (), message, advice=advice)
    if workload.choice.target is MigrationTarget.CLAIMS and document.kind in _RUNTIMES:
        message = "the GPUs of a TrainJob that has resourcesPerNode of its own are added to those of the claim"
        advice = "Let TrainJobs of this runtime ask for no GPUs, or keep both as they are with `strategy: extended`."
        yield finding(codes.NO_CLAIMS_HERE, document, workload.pod.path, message, advice=advice)


_MACHINES = ("VirtualMachine", "VirtualMachineInstance", "VirtualMachineInstanceReplicaSet")


def virtual_machines(document: Document) -> Iterator[MigrationFinding]:
    """GPUs of KubeVirt's machines, which are no container's."""
    group, kind = kind_of(document.obj)
    if group != "kubevirt.io" or kind not in _MACHINES:
        return
    spec: Path = ("spec",) if kind == "VirtualMachineInstance" else ("spec", "template", "spec")
    for field in ("gpus", "hostDevices"):
        path = (*spec, "domain", "devices", field)
        for index, device in enumerate(maps_in(value_at(document.obj, path))):
            name = device.get("deviceName")
            if isinstance(name, str) and name.startswith("nvidia.com/"):
                message = f"{name} is for a virtual machine"
                yield finding(codes.VIRTUAL_MACHINE, document, (*path, index, "deviceName"), message)
