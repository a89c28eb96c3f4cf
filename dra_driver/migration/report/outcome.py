"""All that one run of a migration found out, and what it comes to in numbers. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from dra_driver.migration.codes import UNKNOWN_RESOURCE, Severity
from dra_driver.migration.cutover.steps import Plan
from dra_driver.migration.decisions import Decisions
from dra_driver.migration.model import Migration, Target
from dra_driver.migration.report.readiness import ReadinessCheck
from dra_driver.migration.verify.trial import Verdict, Verification


@dataclass(frozen=True, slots=True)
class Unread:
    """What was to be read and could not be: the result leaves it out."""

    what: str
    """A file, or a kind of the cluster."""
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    migration: Migration
    verification: Verification | None = None
    """None: not tried."""
    checks: tuple[ReadinessCheck, ...] = ()
    plan: Plan | None = None
    """None: the nodes are not known."""
    command: str = "dractl migrate PATHS"
    """What a person typed, without the options that say where results go."""
    written: str | None = None
    """The folder that results were written to, or `.` where they are over the files; None: nowhere."""
    unread: tuple[Unread, ...] = ()
    decided: Decisions | None = None
    """What a person decided; None: nothing."""

    @property
    def unlike(self) -> int:
        """Workloads whose devices are not what was meant, or that fit none of the nodes there are."""
        if self.verification is None:
            return 0
        bad = (Verdict.DIFFERS, Verdict.NOWHERE) if self.verification.certain else (Verdict.DIFFERS,)
        return sum(one.verdict in bad for one in self.verification.checked)

    @property
    def failed(self) -> bool:
        """Whether something would not mean the same, or is left to be done by hand: exit status 1."""
        left = Target.LEAVE in targets_of(self.migration) or not_understood(self.migration) > 0
        return left or self.unlike > 0 or bool(count(self.migration, Severity.ERROR))


@dataclass(frozen=True, slots=True)
class NamespaceSum:
    """What became of one namespace."""

    namespace: str | None
    """None: files do not say it."""
    targets: dict[Target, int]
    severities: dict[Severity, int]


def by_namespace(migration: Migration) -> tuple[NamespaceSum, ...]:
    """Namespaces with workloads that ask for GPUs, or with errors or warnings; by name, those without one first."""
    found: dict[str | None, NamespaceSum] = {}

    def of(namespace: str | None) -> NamespaceSum:
        empty = NamespaceSum(namespace, dict.fromkeys(Target, 0), dict.fromkeys(Severity, 0))
        return found.setdefault(namespace, empty)

    for workload in migration.workloads:
        of(workload.pod.document.namespace).targets[workload.choice.target] += 1
    for one in migration.findings:
        if one.object.namespace in found or (one.object.namespace and one.severity is not Severity.INFO):
            of(one.object.namespace).severities[one.severity] += 1
    return tuple(sorted(found.values(), key=lambda one: one.namespace or ""))


def count(migration: Migration, severity: Severity) -> int:
    return sum(one.severity is severity for one in migration.findings)


def not_understood(migration: Migration) -> int:
    """Resources that pods ask for, which may be of GPUs; no class answers to them when the device plugin is gone."""
    return sum(one.code is UNKNOWN_RESOURCE for one in migration.findings)


def targets_of(migration: Migration) -> Sequence[Target]:
    return [one.choice.target for one in migration.workloads]
