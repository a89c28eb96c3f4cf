"""Extended resources of a pod: how many of each its containers ask for, what they mean, and who sees which unit. Pure.

An amount is a whole number, the same in limits and requests; what is only in limits is requested, too, and what is
only in requests is refused by the API server. Source: core/v1 validation; section 3 of the reference.

Configurations and nodes define the meaning, then a DeviceClass that answers the name, then labels by which the pod
selects its nodes, then the name. Long-running containers have separate units; those of an init container go to the
containers after it, as in the device manager of the kubelet.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

from dra_driver.allocation.placement import IMPLICIT_PREFIX
from dra_driver.api.untyped import Path, map_in, value_at
from dra_driver.checking.codes import Severity
from dra_driver.grouping import grouped
from dra_driver.migration import codes
from dra_driver.migration.codes import FindingCode
from dra_driver.migration.model import (
    ContainerAt,
    Demand,
    DeviceShare,
    Edit,
    FindingDetails,
    Held,
    MigrationFinding,
    Options,
    PodSpecAt,
    Role,
    Want,
    What,
    finding,
)
from dra_driver.migration.understand.labels import Hints, Requirement, is_other, restored_profile
from dra_driver.migration.understand.meaning import SYSTEMS, UNKNOWN_NODES, Meaning, Stands
from dra_driver.migration.understand.plugin_config import GPU_RESOURCE, MIG_RESOURCE, PluginSharing
from dra_driver.phrases import and_more
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
class PodNotes:
    """One pod: by what it is read, and what is noted about it meanwhile."""

    pod: PodSpecAt
    meaning: Meaning
    options: Options
    requirements: Sequence[Requirement]
    """What certainly holds of its node."""
    hints: Hints
    held: tuple[Held, ...]
    """Claims that it has already."""
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

    @property
    def annotations(self) -> dict[str, str]:
        return {str(key): str(value) for key, value in map_in(self.pod.metadata.get("annotations")).items()}

    @property
    def gpu_memory(self) -> Quantity | None:
        """Of one GPU where the pod can run; None if it is not known."""
        return self.meaning.gpu_memory(self.requirements) or self.options.gpu_memory

    def say(self, code: FindingCode, path: Path, message: str, **details: Unpack[FindingDetails]) -> None:
        """Once for all containers."""
        if all((finding.code, finding.message) != (code, message) for finding in self.findings):
            self.findings.append(finding(code, self.pod.document, path, message, **details))

    def refuse(self, code: FindingCode, path: Path, message: str, **details: Unpack[FindingDetails]) -> None:
        """Says it, and that the pod cannot be migrated."""
        self.say(code, path, message, **details)
        self.leave.append(message)

    def say_with_claims(self, code: FindingCode, path: Path, message: str, **details: Unpack[FindingDetails]) -> None:
        """Done by the edits, unless the details say otherwise."""
        details.setdefault("fixed", True)
        note = finding(code, self.pod.document, path, message, **details)
        if note not in self.claim_findings:
            self.claim_findings.append(note)

    def say_with_extended(self, code: FindingCode, path: Path, message: str, **details: Unpack[FindingDetails]) -> None:
        self.extended_findings.append(finding(code, self.pod.document, path, message, **details))


_FILLED_IN = re.compile(r"\{\{|\$")
"""What Argo, Katib, OpenShift, envsubst and others put values into."""
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


class Amounts(dict[str, Amount]):
    """Of one container, by resource."""

    def number(self, resource: str) -> int | None:
        return self[resource].number if resource in self else None

    def paths(self, *resources: str) -> tuple[Path, ...]:
        return tuple(path for name in resources if name in self for path in self[name].paths)


def amounts_of(container: ContainerAt, notes: PodNotes) -> Amounts:
    """Of the resources that are known; those that cannot be read are in the notes only."""
    given = {name: map_in(container.resources.get(name)) for name in ("limits", "requests")}
    names = sorted({str(name) for amounts in given.values() for name in amounts})
    known = (name for name in names if is_gpu_resource(name, notes.meaning, notes.options))
    amounts = (_amount(container, name, given, notes) for name in known)
    return Amounts({amount.resource: amount for amount in amounts if amount is not None})


def _amount(
    container: ContainerAt, resource: str, given: Mapping[str, Mapping[str, object]], notes: PodNotes
) -> Amount | None:
    at, document = container.resources_path, notes.pod.document
    # Limits that stand for another field are that field.
    written = value_at(document.obj, at) == container.resources
    paths = {name: (*at, name, resource) if written else at for name in given if resource in given[name]}
    numbers = {name: _number(resource, given[name][resource], path, notes) for name, path in paths.items()}
    if None in numbers.values():
        return None
    limit, request = numbers.get("limits"), numbers.get("requests")
    if limit is not None and request is not None and limit != request:
        message = f"{resource}: the limit is {limit} and the request {request}; they must be equal"
        _unreadable(codes.INVALID_AMOUNT, paths["requests"], message, notes)
        return None
    if limit is None:
        message = f"{resource} is requested without a limit, which the API server refuses; {request} is used"
        path = paths["requests"]
        notes.findings.append(finding(codes.INVALID_AMOUNT, document, path, message, severity=Severity.WARNING))
    return Amount(resource, limit or request or 0, tuple(paths.values()))


def _number(resource: str, value: object, path: Path, notes: PodNotes) -> int | None:
    if value is None:
        # What a template leaves where a value is empty. Source: Quantity.UnmarshalJSON takes null for 0.
        return 0
    quantity = Quantity.read(value.strip() if isinstance(value, str) else value)
    if quantity is not None and quantity.value.denominator == 1 and quantity.value >= 0:
        return int(quantity.value)
    if isinstance(value, str) and _FILLED_IN.search(value):
        message = f"{resource}: {value!r} is filled in later, but a claim needs a number"
        _unreadable(codes.NOT_EDITABLE, path, message, notes, _FILLED_IN_ADVICE)
    else:
        _unreadable(codes.INVALID_AMOUNT, path, f"{resource}: {value!r} is not a whole number", notes)
    return None


def _unreadable(code: FindingCode, path: Path, message: str, notes: PodNotes, advice: str | None = None) -> None:
    """Said of each container, also if others have the same."""
    notes.findings.append(finding(code, notes.pod.document, path, message, advice=advice))
    notes.leave.append(message)


def is_whole_or_mig(resource: str) -> bool:
    """`nvidia.com/gpu`, `nvidia.com/mig-1g.5gb`, and either with `.shared`."""
    name = resource.removesuffix(".shared")
    return name == GPU_RESOURCE or profile_of(name) is not None


def profile_of(name: str) -> str | None:
    """Of `nvidia.com/mig-1g.10gb.me`, or of the profile alone, as NVML spells it."""
    return restored_profile(name.removeprefix(MIG_RESOURCE))


def is_gpu_resource(resource: str, meaning: Meaning, options: Options) -> bool:
    """Whether it is one whose meaning is known here."""
    if resource in options.other_resources:
        return False
    known = any(resource in system.resources for system in (*SYSTEMS, meaning.hami.system))
    return known or resource in meaning.own or is_whole_or_mig(resource)


def is_of_virtual_machines(resource: str) -> bool:
    """`nvidia.com/GRID_T4-1Q`, `nvidia.com/GA102_A10`: what the sandbox device plugins hand out."""
    return _VIRTUAL.fullmatch(resource) is not None


def is_strange(resource: str, meaning: Meaning, options: Options) -> bool:
    """Whether a name looks like one of GPUs of NVIDIA, and is not known here."""
    known = is_gpu_resource(resource, meaning, options) or resource.startswith(IMPLICIT_PREFIX)
    if known or is_other(resource, options.other_resources) or "/" not in resource:
        return False
    return resource.startswith("nvidia.com/") or "gpu" in resource.lower() or "vcuda" in resource


def strange_resources(container: ContainerAt, meaning: Meaning, options: Options) -> dict[str, Path]:
    """Each, and where it is."""
    return {
        str(resource): (*container.resources_path, name, str(resource))
        for name in ("limits", "requests")
        for resource in map_in(container.resources.get(name))
        if is_strange(str(resource), meaning, options)
    }


# -- what a resource means in one pod


def demands_of_kind(want: Want, asks: Sequence[Ask]) -> Iterator[Demand]:
    """Demands for units that are alike, cut so that each unit is seen by those who used it.

    Lasting containers have units of their own, one after the other. An init container uses units of those that are not
    running beside it, the first ones, and units beyond where those are not enough.
    """
    spans: list[tuple[Ask, list[int]]] = []
    owners: dict[int, Ask] = {}
    for ask in asks:
        if ask.container.role is not Role.INIT:
            units = list(range(len(owners), len(owners) + ask.want.count))
            owners |= dict.fromkeys(units, ask)
            spans.append((ask, units))
    for ask in asks:
        if ask.container.role is Role.INIT:
            free = [unit for unit, owner in owners.items() if not _starts_before(owner.container, ask.container)]
            missing = max(0, ask.want.count - len(free))
            spans.append((ask, [*free, *range(len(owners), len(owners) + missing)][: ask.want.count]))
    users = _users_of_units(spans)
    seen: set[Path] = set()
    for together, units in users:
        removes = tuple(path for ask in together for path in ask.removes if path not in seen)
        seen.update(removes)
        containers = tuple({ask.container.path: ask.container for ask in together}.values())
        counts = [1] * len(units) if want.distinct else [len(units)]
        for number, count in enumerate(counts):
            yield Demand(
                containers, replace(want, count=count), removes=() if number else removes, resource=together[0].resource
            )


def _starts_before(owner: ContainerAt, init: ContainerAt) -> bool:
    """Whether it is a sidecar that runs beside an init container; everything else starts after it."""
    own, other = (next((part for part in reversed(at.path) if isinstance(part, int)), 0) for at in (owner, init))
    return owner.role is Role.SIDECAR and own < other


def _users_of_units(spans: Iterable[tuple[Ask, list[int]]]) -> list[tuple[tuple[Ask, ...], list[int]]]:
    """Units with the same users together; lasting containers come first among users."""
    of_units = grouped(((unit, ask) for ask, units in spans for unit in units), lambda pair: pair[0])
    users = {unit: tuple(ask for _, ask in pairs) for unit, pairs in sorted(of_units.items())}
    together = grouped(users, lambda unit: tuple(ask.container.path for ask in users[unit]))
    return [(users[units[0]], units) for units in together.values()]


def handed_on(demands: Iterable[Demand]) -> set[Path]:
    """Init containers that share a demand with a container after them."""
    shared = (demand.containers for demand in demands if len(demand.containers) > 1)
    return {container.path for containers in shared for container in containers if container.role is Role.INIT}


_DEFAULTS = Options()


def ask_for(notes: PodNotes, container: ContainerAt, amount: Amount) -> Ask:
    """As what the resource means in this pod."""
    resource, number, paths = amount.resource, amount.number, amount.paths
    own = notes.meaning.own.get(resource)
    if own is not None and not is_whole_or_mig(resource):
        return Ask(container, replace(own, count=number), paths, resource)
    stands = _stands(notes, resource, paths[0])
    single = stands.what is What.MIG and resource.startswith(GPU_RESOURCE)
    if single:
        notes.needs_claims.append(f"{resource} means MIG devices here, not whole GPUs")
        if stands.profile is None:
            message = f"{resource} means MIG devices here (strategy single), of an unknown profile"
            notes.refuse(codes.MEANING_UNKNOWN, paths[0], message, severity=Severity.ERROR)
    if stands.sharing is not None:
        return Ask(container, _share(notes, stands, stands.sharing, amount), paths, resource, single)
    want = Want(stands.what, number, stands.profile, selectors=_alone(notes, stands))
    if own is not None and own.what is What.GPU is stands.what and notes.options.gpu_class == _DEFAULTS.gpu_class:
        want = replace(want, device_class=own.device_class)
    return Ask(container, want, paths, resource, single)


def _stands(notes: PodNotes, resource: str, path: Path) -> Stands:
    meanings = notes.meaning.meanings(resource, notes.requirements, notes.hints)
    if len(meanings) > 1:
        different = "; ".join(f"{_words(stands)} on {and_more(titles, 2)}" for stands, titles in meanings.items())
        notes.say(codes.CONFLICTING_NODES, path, f"{resource} is {different}")
    if meanings:
        return max(meanings, key=lambda stands: len(meanings[stands]))
    if notes.meaning.views:
        message = f"none of the given nodes and configurations has {resource} for this pod"
        notes.say(codes.MEANING_UNKNOWN, path, message)
    elif resource == GPU_RESOURCE and notes.hints == Hints():
        advice = "pass the device-plugin configuration with --with to be sure"
        notes.say(codes.MEANING_UNKNOWN, path, f"{resource} is assumed to mean a whole GPU; {advice}")
    return UNKNOWN_NODES.means(resource, notes.hints)


def _alone(notes: PodNotes, stands: Stands) -> tuple[str, ...]:
    """Where some devices are shared, a condition for those that are not."""
    if not notes.meaning.shares(stands.what):
        return ()
    notes.needs_claims.append("some GPUs are shared, and extended resources do not distinguish them from others")
    return (f"{notes.options.attributes}.sharing == 'exclusive'",)


def _share(notes: PodNotes, stands: Stands, sharing: PluginSharing, amount: Amount) -> Want:
    number = amount.number
    notes.needs_claims.append("extended resources do not distinguish shares from whole devices")
    # No device has more shares than replicas, so these were of several.
    beyond = sharing.replicas is not None and number > sharing.replicas
    several = beyond or notes.options.several_shares == "devices"
    if number > 1:
        why = f", because no device has more than {sharing.replicas}" * beyond
        how = f"{number} devices, a share of each{why}" if several else f"{number} shares of one device"
        refused = "; the device plugin refused more than one" if sharing.one_only else ""
        message = f"{amount.resource}: {number} became {how}{refused}"
        notes.say(codes.SHARES_ABOVE_ONE, amount.paths[0], message)
    count, shares = (number, 1) if several else (1, number)
    selectors = (f"{notes.options.attributes}.sharing == 'mps'",) if sharing.strategy == "MPS" else ()
    share = DeviceShare(number=shares)
    return Want(stands.what, count, stands.profile, share, selectors, distinct=several and number > 1)


def _words(stands: Stands) -> str:
    what = {What.GPU: "a whole GPU", What.MIG: f"a MIG device {stands.profile or ''}".rstrip()}[stands.what]
    if stands.sharing is None:
        return what
    return f"one of {stands.sharing.replicas or 'several'} shares of {what}"
