"""Amounts of extended resources in containers: which resources are of GPUs, and how many of them. Pure.

An extended resource is a whole number, the same in limits and requests; what is only in limits is requested, too, and
what is only in requests is refused by the API server. Source: core/v1 validation; section 3 of the reference.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from dra_driver.allocation.placement import IMPLICIT_PREFIX
from dra_driver.api.documents import Document
from dra_driver.migration.codes import INVALID_AMOUNT, NOT_EDITABLE, FindingCode, FindingSeverity
from dra_driver.migration.model import (
    ContainerAt,
    Edit,
    MigrationFinding,
    Options,
    Path,
    PodSpecAt,
    Want,
    finding,
    value_at,
)
from dra_driver.migration.understand.labels import is_other, restored_profile
from dra_driver.migration.understand.meaning import Meaning
from dra_driver.quantity import Quantity


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


_SHARING_SYSTEMS = re.compile(
    r"volcano\.sh/(vgpu-(number|memory|memory-percentage|cores)|gpu-(memory|number))"
    r"|aliyun\.com/gpu-(mem|count|core\.percentage)"
)
_FILLED_IN = re.compile(r"\{\{|\$\{|\$\(")
"""What Argo, Katib, OpenShift and others put values into."""
_FILLED_IN_ADVICE = (
    "Leave it unchanged if a DeviceClass answers the resource; or write a template for each number, and fill in the "
    "template's name."
)
_VIRTUAL = re.compile(r"nvidia\.com/((GRID_|NVIDIA_)?[A-Z][A-Z0-9_-]*-[0-9]+[A-Z]|[A-Z0-9_]+|pgpu|.*passthrough.*)")


@dataclass(frozen=True, slots=True)
class Amount:
    """Of one resource in one container. `paths` are its keys in limits and requests."""

    resource: str
    number: int
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Amounts:
    """Of one container, by resource. `wrong` are reasons why they cannot be read, as sentences."""

    by_resource: Mapping[str, Amount]
    findings: tuple[MigrationFinding, ...] = ()
    wrong: tuple[str, ...] = ()

    def __contains__(self, resource: str) -> bool:
        return resource in self.by_resource

    def number(self, resource: str) -> int | None:
        amount = self.by_resource.get(resource)
        return None if amount is None else amount.number

    def paths(self, *resources: str) -> tuple[Path, ...]:
        return tuple(path for name in resources if name in self.by_resource for path in self.by_resource[name].paths)


def amounts_of(pod: PodSpecAt, container: ContainerAt, is_gpu: Callable[[str], bool]) -> Amounts:
    """Of the resources for which `is_gpu`."""
    given = {name: value for name in ("limits", "requests") if isinstance(value := container.resources.get(name), dict)}
    reader = _Reader(pod, container, given)
    names = sorted({str(name) for amounts in given.values() for name in amounts if is_gpu(str(name))})
    amounts_by_name = {name: amount for name in names if (amount := reader.amount(name)) is not None}
    return Amounts(amounts_by_name, tuple(reader.findings), tuple(reader.wrong))


class _Reader:
    def __init__(self, pod: PodSpecAt, container: ContainerAt, given: Mapping[str, Mapping[str, object]]) -> None:
        self._pod = pod
        self._container = container
        self._given = given
        self.findings: list[MigrationFinding] = []
        self.wrong: list[str] = []

    def amount(self, resource: str) -> Amount | None:
        """None: it cannot be read, which is said."""
        named = [name for name, given in self._given.items() if resource in given]
        numbers = {name: self._number(name, resource) for name in named}
        if None in numbers.values():
            return None
        limit, request = numbers.get("limits"), numbers.get("requests")
        paths = tuple(self._path(name, resource) for name in numbers)
        if limit is not None and request is not None and limit != request:
            message = f"{resource}: the limit is {limit} and the request {request}; they must be equal"
            self._say(paths[1], message)
            self.wrong.append(message)
            return None
        if limit is None:
            message = f"{resource} is requested without a limit, which the API server refuses; {request} is used"
            self.findings.append(
                finding(INVALID_AMOUNT, self._pod.document, paths[0], message, severity=FindingSeverity.WARNING)
            )
        number = limit if limit is not None else request
        return Amount(resource, number or 0, paths)

    def _number(self, name: str, resource: str) -> int | None:
        value = self._given[name][resource]
        path = self._path(name, resource)
        if value is None:
            # What a template leaves where a value is empty. Source: Quantity.UnmarshalJSON takes null for 0.
            return 0
        if not isinstance(value, bool) and isinstance(value, int | float | str):
            try:
                exact = Quantity.parse(str(value).strip()).value
            except ValueError:
                exact = None
            if exact is not None and exact.denominator == 1 and exact >= 0:
                return int(exact)
        if isinstance(value, str) and _FILLED_IN.search(value):
            message = f"{resource}: {value!r} is filled in later, but a claim needs a number"
            self.findings.append(finding(NOT_EDITABLE, self._pod.document, path, message, advice=_FILLED_IN_ADVICE))
            self.wrong.append(message)
            return None
        message = f"{resource}: {value!r} is not a whole number"
        self._say(path, message)
        self.wrong.append(message)
        return None

    def _path(self, name: str, resource: str) -> Path:
        """Of limits that stand for another field, that field."""
        path = self._container.resources_path
        written = value_at(self._pod.document.obj, path) == self._container.resources
        return (*path, name, resource) if written else path

    def _say(self, path: Path, message: str) -> None:
        self.findings.append(finding(INVALID_AMOUNT, self._pod.document, path, message))


def is_whole_or_mig(resource: str) -> bool:
    """`nvidia.com/gpu`, `nvidia.com/mig-1g.5gb`, and either with `.shared`."""
    name = resource.removesuffix(".shared")
    return name == "nvidia.com/gpu" or profile_of(name) is not None


def profile_of(name: str) -> str | None:
    """Of `nvidia.com/mig-1g.10gb.me`, or of the profile alone, as NVML spells it."""
    return restored_profile(name.removeprefix("nvidia.com/mig-"))


def is_gpu_resource(resource: str, meaning: Meaning, options: Options) -> bool:
    """Whether it is one whose meaning is known here."""
    if resource in options.other_resources:
        return False
    hami = meaning.hami
    own = {hami.count, hami.memory, hami.memory_percentage, hami.cores, hami.priority}
    named = resource in own or resource in meaning.own
    return is_whole_or_mig(resource) or named or _SHARING_SYSTEMS.fullmatch(resource) is not None


def is_of_virtual_machines(resource: str) -> bool:
    """`nvidia.com/GRID_T4-1Q`, `nvidia.com/GA102_A10`: what the sandbox device plugins hand out."""
    return _VIRTUAL.fullmatch(resource) is not None


def is_strange(resource: str, meaning: Meaning, options: Options) -> bool:
    """Whether a name looks like one of GPUs of NVIDIA, and is not known here."""
    known = is_gpu_resource(resource, meaning, options) or resource.startswith(IMPLICIT_PREFIX)
    if known or is_other(resource, options.other_resources) or "/" not in resource:
        return False
    return resource.startswith("nvidia.com/") or "gpu" in resource.lower() or "vcuda" in resource


def strange_resources(container: ContainerAt, meaning: Meaning, options: Options) -> Iterator[tuple[str, Path]]:
    """Each, and where it is."""
    for name in ("limits", "requests"):
        given = container.resources.get(name)
        for resource in given if isinstance(given, dict) else ():
            if is_strange(str(resource), meaning, options):
                yield str(resource), (*container.resources_path, name, str(resource))
