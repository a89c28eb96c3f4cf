"""The results of one run of a migration, in numbers, and what to do next. Pure."""

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dra_driver.api.meta import JsonObject
from dra_driver.kubernetes import GATES, OLDEST
from dra_driver.migration.claims.publishing import kept_resources
from dra_driver.migration.codes import UNKNOWN_RESOURCE, FindingSeverity
from dra_driver.migration.cutover.commands import CutoverPlan
from dra_driver.migration.cutover.plan import FINAL_VALUES_FILE
from dra_driver.migration.decisions import Decisions
from dra_driver.migration.model import Migration, MigrationTarget, Options
from dra_driver.migration.understand.offering import Offering
from dra_driver.migration.verify.trial import TrialVerdict, Verification
from dra_driver.names import ADMIN_ACCESS_LABEL


class ReadinessAnswer(StrEnum):
    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ReadinessFacts:
    """What is known of the cluster. None: not known."""

    minor: int | None = None
    classes: Collection[str] | None = None
    """Names of its DeviceClasses."""
    answered: Collection[str] | None = None
    """Extended resources that its DeviceClasses answer."""
    admin_namespaces: Collection[str] | None = None
    """Namespaces with the label for admin access."""
    offering: Offering | None = None
    slices_missing: bool = False
    """Whether `offering` comes from files without any slice, so slices of the cluster are not known."""
    unread: Collection[str] = ()
    """Kinds that this user may not list."""


@dataclass(frozen=True, slots=True)
class ReadinessCheck:
    question: str
    answer: ReadinessAnswer
    why: str
    """A sentence: what is known, and who needs it."""
    advice: str = ""


def readiness(migration: Migration, options: Options, facts: ReadinessFacts) -> tuple[ReadinessCheck, ...]:
    """In the order in which a person would fix things."""
    return tuple(_checks(migration, options, facts))


def _checks(migration: Migration, options: Options, facts: ReadinessFacts) -> Iterator[ReadinessCheck]:
    minor = facts.minor if facts.minor is not None else options.kubernetes_minor
    texts = [str(obj.obj) for obj in migration.objects if obj.obj.get("kind") == "ResourceClaimTemplate"]
    extended = sum(workload.choice.target is MigrationTarget.EXTENDED for workload in migration.workloads)
    yield _version(minor)
    if minor is not None:
        if extended:
            why = f"{extended} workload{'s' * (extended != 1)} keep the extended resource"
            yield _gate("DRAExtendedResource", minor, options.extended_resource_gate, why)
        if any("'capacity'" in text and "'requests'" in text for text in texts):
            yield _gate("DRAConsumableCapacity", minor, None, "claims ask for shares of devices")
        if any(item.get("mode") == "Dynamic" for item in (migration.policy or {}).get("mig") or ()):
            yield _gate("DRAPartitionableDevices", minor, None, "the policy creates MIG devices on demand")
    if extended and facts.answered is not None:
        yield _answered(migration, facts.answered)
    if facts.classes is not None:
        yield from _classes(migration, facts.classes)
    if facts.admin_namespaces is not None:
        yield from _namespaces(migration, facts.admin_namespaces)
    yield _offered(facts)


def _version(minor: int | None) -> ReadinessCheck:
    question = f"Kubernetes 1.{OLDEST} or newer"
    if minor is None:
        advice = "Pass `--kubernetes`, or ask the cluster with `--cluster`."
        return ReadinessCheck(question, ReadinessAnswer.UNKNOWN, "The version is not known.", advice)
    if minor < OLDEST:
        return ReadinessCheck(
            question, ReadinessAnswer.NO, f"It is 1.{minor}.", "Upgrade first: it has no claims of v1."
        )
    return ReadinessCheck(question, ReadinessAnswer.YES, f"It is 1.{minor}.")


def _gate(name: str, minor: int, decided: bool | None, why: str) -> ReadinessCheck:
    question, why = f"Feature gate {name}", f"needed because {why}."
    enable = f"enable {name} in API server, controller manager, scheduler and kubelets."
    if decided is not None:
        advice = "" if decided else enable.capitalize()
        return ReadinessCheck(
            question, ReadinessAnswer.YES if decided else ReadinessAnswer.NO, f"As decided; {why}", advice
        )
    if GATES[name].default(minor):
        return ReadinessCheck(question, ReadinessAnswer.YES, f"On by default in 1.{minor}; {why}")
    advice = f"Upgrade to 1.{GATES[name].on}, or {enable}"
    return ReadinessCheck(question, ReadinessAnswer.NO, f"Off by default in 1.{minor}; {why}", advice)


def _answered(migration: Migration, answered: Collection[str]) -> ReadinessCheck:
    question = "DeviceClasses that answer extended resources"
    wanted = sorted(kept_resources(migration))
    if missing := [text for text in wanted if text not in answered]:
        advice = "Install the driver's chart with the values of this report; the controller adds those of MIG profiles."
        return ReadinessCheck(question, ReadinessAnswer.NO, f"None answers {', '.join(missing)} yet.", advice)
    return ReadinessCheck(question, ReadinessAnswer.YES, f"They answer {', '.join(wanted)}.")


_DEFAULTS = Options()
_OF_THE_CHART = {_DEFAULTS.gpu_class, _DEFAULTS.mig_class, _DEFAULTS.shared_class, _DEFAULTS.vfio_class}


def _classes(migration: Migration, known: Collection[str]) -> Iterator[ReadinessCheck]:
    wanted = sorted({name for obj in migration.objects for name in _named_classes(obj.obj)})
    question = "DeviceClasses that claims name"
    if missing := [name for name in wanted if name not in known]:
        advice = (
            "Install the driver's chart, which has its classes, before you apply the manifests."
            if _OF_THE_CHART.issuperset(missing)
            else "Create these classes before you apply the manifests (`deviceClasses.extra` of the chart)."
        )
        yield ReadinessCheck(question, ReadinessAnswer.NO, f"The cluster has no {', '.join(missing)}.", advice)
    elif wanted:
        yield ReadinessCheck(question, ReadinessAnswer.YES, f"The cluster has {', '.join(wanted)}.")


def _named_classes(obj: JsonObject) -> Iterator[str]:
    spec = obj.get("spec") or {}
    for request in ((spec.get("spec") or spec).get("devices") or {}).get("requests") or ():
        if name := (request.get("exactly") or {}).get("deviceClassName"):
            yield str(name)


def _namespaces(migration: Migration, allowed: Collection[str]) -> Iterator[ReadinessCheck]:
    watching = (
        workload.pod.document.namespace or "default"
        for workload in migration.workloads
        if workload.choice.target is MigrationTarget.CLAIMS
        and any(demand.all_gpus for demand in workload.reading.demands)
    )
    for namespace in sorted(set(watching)):
        question = f"Namespace {namespace} allows admin access"
        if namespace in allowed:
            yield ReadinessCheck(question, ReadinessAnswer.YES, "It has the label.")
        else:
            advice = f"`kubectl label namespace {namespace} {ADMIN_ACCESS_LABEL}=true`"
            yield ReadinessCheck(question, ReadinessAnswer.NO, f"It lacks the label {ADMIN_ACCESS_LABEL}.", advice)


def _offered(facts: ReadinessFacts) -> ReadinessCheck:
    question = "Each GPU is offered by one side only"
    offering = facts.offering
    unread = [kind for kind in ("Node", "ResourceSlice") if kind in facts.unread]
    if offering is None and not unread:
        advice = "Ask the cluster with `--cluster`, or pass what `kubectl get nodes,resourceslices -o yaml` prints."
        return ReadinessCheck(question, ReadinessAnswer.UNKNOWN, "Nodes and slices were not given.", advice)
    if offering is not None and offering.other_drivers:
        why = f"{', '.join(offering.other_drivers)} installs NVIDIA's own DRA driver, with the same driver name."
        return ReadinessCheck(question, ReadinessAnswer.NO, why, "Remove one of the two; until then there is no plan.")
    both = [node.name for node in offering.nodes if node.resources and node.driver] if offering is not None else []
    if both:
        why = f"Device plugin and driver both offer GPUs on {', '.join(both)}."
        return ReadinessCheck(question, ReadinessAnswer.NO, why, "Run the first steps of the cut-over plan now.")
    if unread:
        why = f"You may not list {' and '.join(f'{text}s' for text in unread)}."
        return ReadinessCheck(question, ReadinessAnswer.UNKNOWN, why, "Ask the cluster with an account that may.")
    if facts.slices_missing and offering is not None and any(node.resources for node in offering.nodes):
        advice = "Ask the cluster with `--cluster`, or check that `kubectl get resourceslices` has none of this driver."
        return ReadinessCheck(question, ReadinessAnswer.UNKNOWN, "Nodes were given, but no slices.", advice)
    return ReadinessCheck(question, ReadinessAnswer.YES, "No node has both.")


@dataclass(frozen=True, slots=True)
class UnreadInput:
    """Input that could not be read: the result leaves it out."""

    what: str
    """A file, or a kind of the cluster."""
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class MigrationReport:
    migration: Migration
    verification: Verification | None = None
    """None: not tried."""
    checks: tuple[ReadinessCheck, ...] = ()
    plan: CutoverPlan | None = None
    """None: the nodes are not known."""
    command: str = "dractl migrate PATHS"
    """What a person typed, without the options that say where results go."""
    written: str | None = None
    """The folder that results were written to, or `.` where they are over the files; None: nowhere."""
    unread: tuple[UnreadInput, ...] = ()
    decided: Decisions | None = None
    """What a person decided; None: nothing."""

    @property
    def unlike(self) -> int:
        """Workloads whose devices are not what was meant, or that fit none of the nodes there are."""
        if self.verification is None:
            return 0
        bad = (TrialVerdict.DIFFERS, TrialVerdict.NOWHERE) if self.verification.certain else (TrialVerdict.DIFFERS,)
        return sum(checked.verdict in bad for checked in self.verification.checked)

    @property
    def failed(self) -> bool:
        """Whether something would not mean the same, or is left to be done by hand: exit status 1."""
        left = MigrationTarget.LEAVE in targets_of(self.migration) or not_understood(self.migration) > 0
        return left or self.unlike > 0 or bool(count(self.migration, FindingSeverity.ERROR))


@dataclass(frozen=True, slots=True)
class NamespaceSum:
    """What became of one namespace."""

    namespace: str | None
    """None: files do not say it."""
    targets: dict[MigrationTarget, int]
    severities: dict[FindingSeverity, int]


def by_namespace(migration: Migration) -> tuple[NamespaceSum, ...]:
    """Namespaces with workloads that ask for GPUs, or with errors or warnings; by name, those without one first."""
    sums: dict[str | None, NamespaceSum] = {}

    def of(namespace: str | None) -> NamespaceSum:
        empty = NamespaceSum(namespace, dict.fromkeys(MigrationTarget, 0), dict.fromkeys(FindingSeverity, 0))
        return sums.setdefault(namespace, empty)

    for workload in migration.workloads:
        of(workload.pod.document.namespace).targets[workload.choice.target] += 1
    for finding in migration.findings:
        if finding.object.namespace in sums or (
            finding.object.namespace and finding.severity is not FindingSeverity.INFO
        ):
            of(finding.object.namespace).severities[finding.severity] += 1
    return tuple(sorted(sums.values(), key=lambda namespace_sum: namespace_sum.namespace or ""))


def count(migration: Migration, severity: FindingSeverity) -> int:
    return sum(finding.severity is severity for finding in migration.findings)


def not_understood(migration: Migration) -> int:
    """Resources that pods ask for, which may be of GPUs; no class answers to them when the device plugin is gone."""
    return sum(finding.code is UNKNOWN_RESOURCE for finding in migration.findings)


def targets_of(migration: Migration) -> Sequence[MigrationTarget]:
    return [workload.choice.target for workload in migration.workloads]


@dataclass(frozen=True, slots=True)
class NextStep:
    what: str
    """A sentence."""
    command: str | None = None
    """For a shell; None: there is none."""


def next_steps(report: MigrationReport) -> tuple[NextStep, ...]:
    """Empty where there is nothing to do."""
    migration = report.migration
    if not migration.workloads and not migration.findings and not migration.changed:
        return ()
    return (*_first(report), *_files(report), *_cluster(report))


def _first(report: MigrationReport) -> Iterator[NextStep]:
    """What stands in the way of all else."""
    errors = count(report.migration, FindingSeverity.ERROR)
    if report.unread:
        yield NextStep("Check what could not be read (`Not read`, below).")
    if errors:
        these = "the error" if errors == 1 else f"the {errors} errors"
        yield NextStep(f"Fix {these} below, then run this again; do not apply these objects.")
    if report.unlike:
        yield NextStep(f"Check why {report.unlike} of the workloads would not get the same devices (`Tried`, below).")


def _files(report: MigrationReport) -> Iterator[NextStep]:
    migration = report.migration
    if report.written is not None:
        if migration.changed:
            where = "." if report.written == "." else f"{report.written}/manifests"
            yield NextStep("Check what was written.", f"dractl check {shlex.quote(where)}")
    elif migration.changed:
        yield NextStep("Review every change.", f"{report.command} --diff")
        yield NextStep("Write the results and the reports into a folder.", f"{report.command} -o new/")
    elif MigrationTarget.EXTENDED in targets_of(migration):
        yield NextStep(
            f"No manifest changes: get the values for the driver's chart (`{FINAL_VALUES_FILE}`).",
            f"{report.command} -o new/",
        )


def _cluster(report: MigrationReport) -> Iterator[NextStep]:
    if not report.migration.workloads:
        return
    if report.plan is None and any(unread.what == "Node" for unread in report.unread):
        yield NextStep(
            "Run this with an account that may list nodes, pods, DaemonSets and slices; then the plan, node "
            "by node, is in the report.",
            f"{report.command} --report md",
        )
        return
    if report.plan is None:
        yield NextStep(
            "Read the cluster, too; then the report has the plan, node by node.",
            f"{report.command} --cluster --report md",
        )
        return
    if any(check.answer is ReadinessAnswer.NO for check in report.checks):
        yield NextStep("Prepare the cluster: the report lists what it lacks. Then check its nodes.", "dractl doctor")
    if report.plan.has_only_its_end:
        yield NextStep("Every node is moved: run the last steps of the plan, below.")
    elif not report.plan.empty:
        yield NextStep("Move the cluster node by node, as below, and apply each manifest when its nodes are moved.")
