"""What the packages of the migration hand to each other: places, findings, demands, edits, and the result.

Paths are relative to the object of a `Document`. `None` is "not stated", never zero. Nothing here decides anything.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, TypedDict, Unpack

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import Path, path_text, value_at
from dra_driver.checking.codes import Severity
from dra_driver.migration.codes import FindingCode
from dra_driver.names import GPU_DRIVER
from dra_driver.quantity import Quantity


@dataclass(frozen=True, slots=True, order=True)
class DocumentPlace:
    file: str
    line: int
    """From 1."""
    path: str = ""
    """As `path_text` has it; empty is the whole object."""


@dataclass(frozen=True, slots=True, order=True)
class ObjectRef:
    kind: str
    namespace: str | None
    """None: not said in the file."""
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"

    @classmethod
    def of(cls, obj: JsonObject) -> "ObjectRef":
        """Of an object that is complete."""
        return cls(obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class MigrationFinding:
    code: FindingCode
    severity: Severity
    """That of the code, unless it is worse or better here."""
    object: ObjectRef
    place: DocumentPlace
    message: str
    """What is so, as a sentence."""
    advice: str
    """What to do about it; empty: nothing."""
    fixed: bool = False
    """Whether what we wrote takes care of it."""
    paste: str = ""
    """YAML that a person adds to the object, or to what the advice names; empty: there is none."""


def title_of(document: Document) -> str:
    """For people."""
    ref = ref_of(document)
    return str(ref if ref.name else replace(ref, name="without a name"))


def ref_of(document: Document) -> ObjectRef:
    """What is named when it is created is called by what its name begins with."""
    name = document.name or str(value_at(document.obj, ("metadata", "generateName")) or "")
    return ObjectRef(document.kind, document.namespace, name)


def place_of(document: Document, path: Path = ()) -> DocumentPlace:
    text = path_text(path)
    return DocumentPlace(document.file, document.place(text)[0], text)


class FindingDetails(TypedDict, total=False):
    """Of a finding, beside what its code says. `advice` and `severity` None are those of the code."""

    advice: str | None
    severity: Severity | None
    fixed: bool
    paste: str


def finding(
    code: FindingCode, document: Document, path: Path, message: str, **details: Unpack[FindingDetails]
) -> MigrationFinding:
    """Of a field of a document."""
    advice = details.get("advice")
    return MigrationFinding(
        code,
        details.get("severity") or code.severity,
        ref_of(document),
        place_of(document, path),
        message,
        code.advice if advice is None else advice,
        details.get("fixed", False),
        details.get("paste", ""),
    )


# -- edits


@dataclass(frozen=True, slots=True)
class Remove:
    """A key of a map, or an item of a list. A map or list that is emptied by that goes, too; comments stay.

    Indexes are those of the unchanged object, also if other places are edited.
    """

    path: Path


@dataclass(frozen=True, slots=True)
class Put:
    """A value where there was none, or another instead of the one there. Parents that are missing are made.

    An index at or beyond the end of a list appends, in the order of the edits.
    """

    path: Path
    value: Any


type Edit = Remove | Put


# -- where pods are


class Role(StrEnum):
    APP = "app"
    INIT = "init"
    """Runs before the others and ends."""
    SIDECAR = "sidecar"
    """An init container with restartPolicy Always."""
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True, eq=False)
class ContainerAt:
    """A container, or what stands for one in kinds that have only `resources`."""

    name: str
    """Empty where the kind gives it none."""
    path: Path
    obj: JsonObject = field(repr=False)
    """With `env`, `securityContext` and so on, as far as the kind has them."""
    role: Role = Role.APP
    resources_path: Path = ()
    """Of what holds `limits` and `requests`; `path + ("resources",)` in ordinary containers."""
    resources: JsonObject = field(default_factory=dict, repr=False)
    """What is there; empty when there is nothing, or nothing readable."""


class ClaimForm(StrEnum):
    """How an object of this kind names claims."""

    POD = "pod"
    """`resourceClaims` of the pod's spec and `resources.claims` of its containers."""
    ARGO = "argo"
    """Of an Argo template: `resourceClaims` beside its container."""
    NIM = "nim"
    """`draResources` of a NIMService."""
    NONE = "none"
    """Not at all: extended resources only."""


@dataclass(frozen=True, slots=True, eq=False)
class PodSpecAt:
    """A pod that an object describes."""

    document: Document
    path: Path
    """Of the pod's spec, or what stands for it."""
    spec: JsonObject = field(repr=False)
    metadata_path: Path = ()
    """Of the pod's own metadata: annotations and labels."""
    metadata: JsonObject = field(default_factory=dict, repr=False)
    containers: tuple[ContainerAt, ...] = ()
    """App containers in their order, then init containers and sidecars in theirs, then ephemeral ones."""
    form: ClaimForm = ClaimForm.POD
    why_no_claims: str = ""
    """With NONE: why, as a sentence."""
    group: str = ""
    """What of the object it is: a role, worker group, task or template; empty where there is one pod only."""
    inherited: frozenset[str] = frozenset()
    """Fields of `spec` that are not at its path: the pod has them from elsewhere in the object."""
    obj: JsonObject = field(default_factory=dict, repr=False)
    """What describes it: the document's object, or one that this holds, such as the component of an AppWrapper."""


# -- what containers ask for


class What(StrEnum):
    GPU = "gpu"
    MIG = "mig"
    VFIO = "vfio"


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A part of a device that others have parts of. All None: a share of the size that the driver offers."""

    number: int | None = None
    """Of the equal shares of a device (`replicas`)."""
    memory: Quantity | None = None
    memory_percent: int | None = None
    cores: int | None = None
    """Percent of the compute units."""


@dataclass(frozen=True, slots=True)
class Want:
    """Devices of one kind, in the terms of claims."""

    what: What
    count: int = 1
    profile: str | None = None
    """Of MIG devices, as NVML spells it: `1g.10gb+me`. None: any."""
    share: DeviceShare | None = None
    """None: the device alone."""
    selectors: tuple[str, ...] = ()
    """CEL, all of which must hold; beyond what class and profile say."""
    device_class: str | None = None
    """A class of the cluster's own that says what it is; None: that of the driver for such devices."""
    distinct: bool = False
    """With several demands of one container that have it: their shares are of different GPUs."""
    together: bool = False
    """With several demands of one pod that have it: their shares are of one GPU."""


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """One request to be made, and who uses its devices.

    Containers that had devices of their own have demands of their own. Containers of one demand share its devices.
    """

    containers: tuple[ContainerAt, ...]
    """The first one gives the request its name."""
    want: Want
    removes: tuple[Path, ...] = ()
    """What says it in the old way: keys of limits and requests, annotations, variables. `Remove` is made of each."""
    resource: str = ""
    """The extended resource that it was asked by, `nvidia.com/gpu`; empty when it was said in another way."""
    all_gpus: bool = False
    """Every GPU of the node, without taking it from other pods (admin access). `want.count` does not matter."""


class Purpose(StrEnum):
    GPUS = "gpus"
    OTHERS = "others"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Held:
    """A claim that a pod has already."""

    name: str
    """In the pod; of a class that is asked for by its implicit name, that of the resource."""
    path: Path
    """Of the entry in the pod's object."""
    purpose: Purpose
    why: str
    """What it is: `of class gpu.nvidia.com`; or what is not known, as a sentence."""


@dataclass(frozen=True, slots=True, eq=False)
class PodReading:
    """All that one pod asks for. A pod without demands is not changed."""

    demands: tuple[Demand, ...] = ()
    edits: tuple[Edit, ...] = ()
    """Made together with claims only: tolerations added, node labels taken out, a scheduler changed."""
    findings: tuple[MigrationFinding, ...] = ()
    """True in any case."""
    claim_findings: tuple[MigrationFinding, ...] = ()
    """True when claims are written."""
    extended_findings: tuple[MigrationFinding, ...] = ()
    """True when the pod stays as it is and its extended resources are answered by DeviceClasses."""
    needs_claims: str | None = None
    """Why extended resources cannot keep the meaning, as a sentence; None: they can."""
    leave: str | None = None
    """Why nothing can be done, as a sentence: the meaning is not known, or it has claims already."""
    prefers_claims: str | None = None
    """Why claims say it better, as a sentence, though extended resources keep the meaning as long as labels of nodes
    do."""
    held: tuple[Held, ...] = ()
    """Claims that the pod has already."""


# -- decisions and results


class StrategyOption(StrEnum):
    AUTO = "auto"
    """Extended resources where they keep the meaning and the cluster knows them, else claims."""
    EXTENDED = "extended"
    CLAIMS = "claims"


class MigrationTarget(StrEnum):
    EXTENDED = "extended"
    """The manifest stays as it is; a DeviceClass answers to the extended resource."""
    CLAIMS = "claims"
    LEAVE = "leave"
    """Nothing was done; the findings say what to do by hand."""


@dataclass(frozen=True, slots=True)
class Choice:
    target: MigrationTarget
    reason: str
    """Why, as a sentence."""
    cannot: tuple[str, ...] = ()
    """What the target cannot express, one sentence each."""


@dataclass(frozen=True, slots=True)
class ManifestText:
    """A text with documents. `file` is its name in messages and results; `-` is standard input."""

    file: str
    text: str = field(repr=False)
    """With its line ends and byte order mark."""


@dataclass(frozen=True, slots=True, eq=False)
class MigratedWorkload:
    """What became of one pod that asked for GPUs."""

    pod: PodSpecAt
    reading: PodReading
    choice: Choice
    templates: tuple[ObjectRef, ...] = ()
    """ResourceClaimTemplates that it names now."""

    @property
    def document(self) -> Document:
        """Its object, which may have several of them."""
        return self.pod.document

    @property
    def ref(self) -> ObjectRef:
        return ref_of(self.document)


@dataclass(frozen=True, slots=True, eq=False)
class FieldChange:
    """One field of a person's object."""

    object: ObjectRef
    place: DocumentPlace
    was: Any
    """None: it was not there."""
    now: Any
    """None: it was removed."""


@dataclass(frozen=True, slots=True, eq=False)
class NewObject:
    obj: JsonObject
    beside: str
    """File of the first document that needs it."""
    reason: str
    """For what, as a sentence."""

    @property
    def ref(self) -> ObjectRef:
        return ObjectRef.of(self.obj)


@dataclass(frozen=True, slots=True)
class FileResult:
    file: str
    before: str = field(repr=False)
    after: str = field(repr=False)

    @property
    def changed(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True, slots=True, eq=False)
class Migration:
    """The result. Nothing has been written anywhere."""

    files: tuple[FileResult, ...]
    """One for each source, in their order; new objects that fit into them are in them."""
    new_files: tuple[ManifestText, ...]
    """What must not stand in a source's own file: objects beside JSON files."""
    objects: tuple[NewObject, ...]
    """All new objects, wherever they were written to."""
    workloads: tuple[MigratedWorkload, ...]
    findings: tuple[MigrationFinding, ...]
    policy: JsonObject | None = None
    """A PublishingPolicy; None where there was no configuration to make one of."""
    chart_values: JsonObject | None = None
    reasons: tuple[str, ...] = ()
    """What a person should know about policy and values, a sentence each."""
    changes: tuple[FieldChange, ...] = ()
    """Of the fields in `files`."""

    @property
    def changed(self) -> bool:
        return bool(self.new_files) or any(file.changed for file in self.files)


@dataclass(frozen=True, slots=True)
class Options:
    """Decisions as the code uses them. `decisions.Decisions` is the file, and describes each."""

    strategy: StrategyOption = StrategyOption.AUTO
    strategy_of: tuple[tuple[str, StrategyOption], ...] = ()
    """Of some workloads only, by names as of `is_named`; the last match counts."""
    shared_claims: tuple[tuple[str, ...], ...] = ()
    driver: str = GPU_DRIVER
    """Its attributes' domain, too."""
    gpu_class: str = "gpu.nvidia.com"
    mig_class: str = "mig.nvidia.com"
    shared_class: str = "shared.gpu.nvidia.com"
    vfio_class: str = "vfio.gpu.nvidia.com"
    kubernetes_minor: int | None = None
    """1.`n` of the cluster; None: not known, and then 36."""
    extended_resource_gate: bool | None = None
    """DRAExtendedResource; None: the default of the version."""
    mig_strategy: str | None = None
    mig_profile: str | None = None
    replicas: int | None = None
    """Of each GPU, if no configuration says it. None: not decided; 1: GPUs are not shared."""
    sharing_strategy: str | None = None
    """Of `replicas`: `time-slicing` or `mps`."""
    gpu_memory: Quantity | None = None
    other_resources: tuple[str, ...] = ()
    """Names of resources that look like GPUs of NVIDIA, and are not."""
    several_shares: str = "shares"
    share_visible_all: bool = False
    remove_runtime_class: bool = False
    unknown_kinds: bool = False
    kserve_standard: bool = False
    argo_resource_claims: bool = False
    dynamic_mig: bool = False

    @property
    def attributes(self) -> str:
        """Of a device of the driver, in CEL."""
        return f"device.attributes['{self.driver}']"


# -- workloads by name


def strategy_of(document: Document, options: Options) -> StrategyOption:
    """What was decided for this workload."""
    own = [strategy for name, strategy in options.strategy_of if is_named(document, name)]
    return own[-1] if own else options.strategy


def shared_group(document: Document, options: Options) -> tuple[str, ...] | None:
    """Names of the workloads that have the same devices; None: it has its own."""
    groups = (names for names in options.shared_claims if any(is_named(document, name) for name in names))
    return next(groups, None)


def is_named(document: Document, name: str) -> bool:
    """Whether a name is that of the workload: `name`, `Kind/name` or `Kind/namespace/name`, with `*` as a wildcard.

    If the file has no namespace, any fits. Two parts can be namespace and name, too: `search/*`.
    """
    wanted = name.split("/")
    if len(wanted) > 3 or not fnmatchcase(document.name, wanted[-1]):
        return False
    kind = fnmatchcase(document.kind.lower(), wanted[0].lower())
    if len(wanted) == 3:
        return kind and (not document.namespace or fnmatchcase(document.namespace, wanted[1]))
    return len(wanted) == 1 or kind or fnmatchcase(document.namespace or "", wanted[0])
