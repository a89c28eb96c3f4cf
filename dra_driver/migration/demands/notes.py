"""What is collected while a pod is read: findings, edits, and reasons. Pure."""

from dataclasses import dataclass, field

from dra_driver.api.documents import Document
from dra_driver.migration.codes import FindingCode, FindingSeverity
from dra_driver.migration.model import ContainerAt, Edit, MigrationFinding, Path, Want, finding


@dataclass(frozen=True, slots=True)
class Ask:
    """Of one container, in units of one kind."""

    container: ContainerAt
    want: Want
    """Its count is what the container sees."""
    removes: tuple[Path, ...]
    resource: str
    """Empty for annotations."""
    single: bool = False
    """`nvidia.com/gpu` that means MIG devices."""


@dataclass(slots=True)
class Notes:
    document: Document
    findings: list[MigrationFinding] = field(default_factory=list)
    claim_findings: list[MigrationFinding] = field(default_factory=list)
    """If the pod gets claims."""
    extended_findings: list[MigrationFinding] = field(default_factory=list)
    """If it keeps the extended resource."""
    edits: list[Edit] = field(default_factory=list)
    """Made with claims only."""
    needs_claims: list[str] = field(default_factory=list)
    """Why extended resources are not enough, a sentence each."""
    prefers_claims: list[str] = field(default_factory=list)
    leave: list[str] = field(default_factory=list)
    """Why the pod cannot be migrated, a sentence each."""

    def say(
        self,
        code: FindingCode,
        path: Path,
        message: str,
        *,
        severity: FindingSeverity | None = None,
        advice: str | None = None,
    ) -> None:
        """Once for all containers."""
        if all((finding.code, finding.message) != (code, message) for finding in self.findings):
            self.findings.append(finding(code, self.document, path, message, severity=severity, advice=advice))

    def say_with_claims(
        self,
        code: FindingCode,
        path: Path,
        message: str,
        *,
        fixed: bool = True,
        severity: FindingSeverity | None = None,
    ) -> None:
        note = finding(code, self.document, path, message, fixed=fixed, severity=severity)
        if note not in self.claim_findings:
            self.claim_findings.append(note)

    def say_with_extended(
        self,
        code: FindingCode,
        path: Path,
        message: str,
        *,
        severity: FindingSeverity | None = None,
        advice: str | None = None,
    ) -> None:
        self.extended_findings.append(finding(code, self.document, path, message, severity=severity, advice=advice))
