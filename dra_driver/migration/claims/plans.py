"""What is planned for each document: its claims, its edits, what is said of it. Pure.

A workload keeps its extended resources, answered by DeviceClasses, or gets claims; old servers and frameworks prevent
claims. A pod is converted entirely or not at all: if one step of a document cannot be taken, its plan is to leave it.
Source: the reference on migration sources, section 1 (targets T0 and T1).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import Path, maps_in, value_at
from dra_driver.apirules.dra_gates import dropped_fields
from dra_driver.checking.codes import Severity
from dra_driver.kubernetes import GATES, OLDEST
from dra_driver.migration import codes
from dra_driver.migration.claims.frameworks import after_claims
from dra_driver.migration.claims.templates import Claims, claims_for
from dra_driver.migration.demands import reading
from dra_driver.migration.demands.placement import BY_LABELS
from dra_driver.migration.demands.pod_settings import sees_all
from dra_driver.migration.demands.resources import strange_resources
from dra_driver.migration.model import (
    Choice,
    ClaimForm,
    DeviceShare,
    Edit,
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
    title_of,
)
from dra_driver.migration.read.kind_table import KSERVE, Kind, is_known, kind_of
from dra_driver.migration.read.kinds import is_part_of_an_object, pods_by_shape, pods_of
from dra_driver.migration.read.kustomize import OverlayChange, Overlays, is_kustomization
from dra_driver.migration.read.unrendered import (
    delivers,
    delivery_findings,
    gpu_keys,
    gpu_texts,
    is_sealed,
    sealed_findings,
    values_findings,
)
from dra_driver.migration.text.edited import changed, differences
from dra_driver.migration.understand.meaning import Meaning
from dra_driver.phrases import and_more


@dataclass(slots=True, eq=False)
class Draft:
    """What a document asks for; `workloads` change while documents are made to agree."""

    document: Document
    workloads: list[MigratedWorkload] = field(default_factory=list)
    findings: list[MigrationFinding] = field(default_factory=list)


def drafted(document: Document, meaning: Meaning, options: Options) -> Draft:
    draft = Draft(document)
    if is_sealed(document) or delivers(document):
        draft.findings += sealed_findings(document) if is_sealed(document) else delivery_findings(document)
        return draft
    if is_kustomization(document):
        return draft
    draft.findings += values_findings(document)
    if is_part_of_an_object(document):
        draft.findings += _of_a_patch(document)
        return draft
    owner = _owner(document)
    for pod in pods_of(document, options):
        read = reading.demands(pod, meaning, options)
        if owner is not None and read.demands:
            message = f"is created by {owner}, so migrate that; this stays unchanged"
            draft.findings.append(finding(codes.NOT_EDITABLE, document, (), message, advice="", severity=Severity.INFO))
            break
        draft.findings += read.findings
        if read.demands:
            draft.workloads.append(MigratedWorkload(pod, read, choose(pod, read, options)))
    draft.findings += virtual_machines(document)
    if not options.unknown_kinds:
        draft.findings += _of_unknown_kind(document, meaning, options)
    if is_known(document.obj):
        draft.findings += _outside_of_pods(document, [pod.path for pod in pods_of(document, options)])
    for path in gpu_texts(document.obj):
        message = "is a text that mentions GPUs; it stays unchanged"
        draft.findings.append(finding(codes.NOT_EDITABLE, document, path, message, advice=_ABOUT_TEXTS))
    return draft


def _of_a_patch(document: Document) -> Iterator[MigrationFinding]:
    for path in list(gpu_keys(document.obj))[:1]:
        message = "is a part of an object (its containers have no image), so it stays unchanged"
        advice = "Render, then migrate: `kubectl kustomize FOLDER | dractl migrate -`."
        yield finding(codes.NOT_EDITABLE, document, path, message, advice=advice)


_ABOUT_TEXTS = (
    "It can stay if it asks for whole devices of a resource that a DeviceClass answers. Otherwise migrate the manifest "
    "in it alone (… | dractl migrate -), and write the result into the text by hand."
)


def _owner(document: Document) -> str | None:
    """The object whose controller makes this one."""
    for owner in maps_in(value_at(document.obj, ("metadata", "ownerReferences"))):
        if owner.get("controller") is True:
            return f"{owner.get('kind')} {owner.get('name')}"
    return None


def _outside_of_pods(document: Document, pods: Sequence[Path]) -> Iterator[MigrationFinding]:
    """Of a kind that is known, in a shape that is not, such as that of an old version: nothing is passed over."""
    for path in gpu_keys(document.obj):
        if path[-2:-1] in (("limits",), ("requests",)) and not any(path[: len(pod)] == pod for pod in pods):
            message = f"asks for GPUs in a place where no pod of a {document.kind} is known; it stays unchanged"
            advice = "Check that the cluster still serves this version."
            yield finding(codes.NOT_EDITABLE, document, path, message, advice=advice)


def _of_unknown_kind(document: Document, meaning: Meaning, options: Options) -> Iterator[MigrationFinding]:
    for pod in pods_by_shape(document):
        if any(True for _ in gpu_keys(pod.spec)):
            message = f"{document.kind} is an unknown kind; this looks like a pod that asks for GPUs"
            advice = (
                "Check whether its controller passes claims to pods; then decide to convert it (`unknownKinds: true`)."
            )
            yield finding(codes.NOT_EDITABLE, document, pod.path, message, advice=advice)
        for container in pod.containers:
            for resource, path in strange_resources(container, meaning, options).items():
                message = f"{resource}: neither its meaning nor what a {document.kind} does with it is known"
                yield finding(codes.UNKNOWN_RESOURCE, document, path, message)


def without_claims(draft: Draft, reason: str, options: Options) -> None:
    draft.workloads = [_unclaimed(workload, reason, options) for workload in draft.workloads]


def _unclaimed(workload: MigratedWorkload, reason: str, options: Options) -> MigratedWorkload:
    if workload.pod.form is ClaimForm.NONE:
        return workload
    pod = replace(workload.pod, form=ClaimForm.NONE, why_no_claims=reason)
    return replace(workload, pod=pod, choice=choose(pod, workload.reading, options))


_MERGED: tuple[tuple[Kind, str, Path, bool], ...] = (
    (KSERVE, "ServingRuntime", ("spec", "predictor", "model", "runtime"), False),
    (("serving.kserve.io", "LLMInferenceService"), "LLMInferenceServiceConfig", ("spec", "baseRefs"), False),
    (("trainer.kubeflow.org", "TrainJob"), "TrainingRuntime", ("spec", "runtimeRef", "name"), True),
)
"""Kinds whose pods are made of two objects: the kind, the kind that it names, also with `Cluster` before it, the field
with the names, and whether it is the named object that keeps the extended resource."""


def agree(drafts: Sequence[Draft], options: Options) -> None:
    """Takes claims back if two documents that make one pod both ask for GPUs: the pod would have both."""
    asking = [draft for draft in drafts if draft.workloads]
    for user, kind, path, named_keeps in _MERGED:
        for draft in (draft for draft in asking if kind_of(draft.document.obj) == user):
            for other in (other for other in asking if other.document.kind.removeprefix("Cluster") == kind):
                if _may_name(draft.document, path, other.document.name):
                    reason = f"{other.document.title} asks for GPUs, too, and {draft.document.title} is made of both"
                    without_claims(other if named_keeps else draft, reason, options)


def _may_name(document: Document, path: Path, name: str) -> bool:
    """Also if it leaves the choice to its controller."""
    value = value_at(document.obj, path)
    if value is None:
        return isinstance(value_at(document.obj, path[:-1]), dict)
    return value == name or (isinstance(value, list) and any(value_at(item, ("name",)) == name for item in value))


@dataclass(frozen=True, slots=True, eq=False)
class DocumentPlan:
    """For one document. `edits` are made besides those that the claims need."""

    document: Document
    workloads: tuple[MigratedWorkload, ...] = ()
    claims: tuple[Claims, ...] = ()
    edits: tuple[Edit, ...] = ()
    findings: tuple[MigrationFinding, ...] = ()

    @property
    def all_edits(self) -> tuple[Edit, ...]:
        return (*(edit for claim in self.claims for edit in claim.edits), *self.edits)


def wanted_plans(
    documents: Sequence[Document], over: Overlays, meaning: Meaning, options: Options
) -> list[DocumentPlan]:
    """What is wanted for each document; files with patches are none."""
    drafts = [drafted(document, meaning, options) for document in documents if document.file not in over.patches]
    met: dict[OverlayChange, list[str]] = {}
    for draft in drafts:
        _render_first(draft, over, met, options)
    agree(drafts, options)
    plans = [planned(draft, options) for draft in drafts]
    return [replace(plan, findings=(*plan.findings, *_overlay_findings(plan.document, over, met))) for plan in plans]


def _render_first(draft: Draft, over: Overlays, met: dict[OverlayChange, list[str]], options: Options) -> None:
    """Takes claims back if a kustomization changes what they would change, and adds the fields to `met`."""
    changes = list(over.of(draft.document))
    if not changes:
        return
    edits = planned(draft, options).all_edits
    fields = [path for path, _, _ in differences(draft.document.obj, changed(draft.document.obj, edits))]
    common = [(change, field) for change in changes if (field := change.meets(fields)) is not None]
    for change, field in common:
        met.setdefault(change, []).append(f"{field} of {title_of(draft.document)}")
    if common:
        change, field = common[0]
        reason = f"{change.where} is {change.what}, and concerns {field}; render, then migrate"
        without_claims(draft, reason, options)


def _overlay_findings(
    document: Document, over: Overlays, met: Mapping[OverlayChange, Sequence[str]]
) -> Iterator[MigrationFinding]:
    """Of a kustomization: what it changes that the migration would change, too, and what it says of GPUs."""
    for change in over.changes:
        if change.kustomization is not document or not (change in met or change.about_gpus):
            continue
        message = f"is {change.what} that asks for GPUs, and is not read further"
        if change in met:
            message = f"is {change.what}, and concerns {and_more(met[change], 1)}, which stays unchanged"
        advice = f"Render, then migrate: {change.commands}."
        yield finding(codes.NOT_EDITABLE, document, change.at, message, advice=advice)


def planned(draft: Draft, options: Options) -> DocumentPlan:
    """Claims and edits as the choices of the draft want them."""
    workloads: list[MigratedWorkload] = []
    claims: list[Claims] = []
    findings = list(draft.findings)
    for workload in draft.workloads:
        if workload.choice.target is MigrationTarget.CLAIMS:
            wanted = claims_for(workload.pod, workload.reading, options)
            reason = why_too_old(wanted.template, options)
            if reason is None:
                claims.append(wanted)
                workload = replace(workload, templates=(wanted.ref,))
                findings += workload.reading.claim_findings
            else:
                workload = replace(workload, choice=Choice(MigrationTarget.LEAVE, reason))
                findings.append(too_old(workload, reason))
        elif workload.choice.target is MigrationTarget.EXTENDED:
            findings += workload.reading.extended_findings
        findings += of_form(workload, options)
        findings += of_the_cluster(workload)
        workloads.append(workload)
    edits, more = after_claims(workloads, options)
    return DocumentPlan(draft.document, tuple(workloads), tuple(claims), edits, (*findings, *more))


def refused(plan: DocumentPlan, reason: str) -> DocumentPlan:
    """Nothing is edited."""
    if not plan.all_edits:
        return plan
    workloads = tuple(
        replace(workload, choice=Choice(MigrationTarget.LEAVE, reason), templates=())
        if workload.choice.target is MigrationTarget.CLAIMS
        else workload
        for workload in plan.workloads
    )
    findings = tuple(finding for finding in plan.findings if not finding.fixed)
    note = finding(codes.NOT_EDITABLE, plan.document, (), f"nothing was changed: {reason}")
    return DocumentPlan(plan.document, workloads, findings=(*findings, note))


# -- extended resources or claims

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
    for name in ("gpus", "hostDevices"):
        path = (*spec, "domain", "devices", name)
        for index, device in enumerate(maps_in(value_at(document.obj, path))):
            resource = device.get("deviceName")
            if isinstance(resource, str) and resource.startswith("nvidia.com/"):
                message = f"{resource} is for a virtual machine"
                yield finding(codes.VIRTUAL_MACHINE, document, (*path, index, "deviceName"), message)
