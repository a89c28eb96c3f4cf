"""Whether the devices that there are can ever serve a claim: on a node of each kind, with nothing in use. Pure.

On nodes whose GPUs are connected by NVSwitches, the GPUs of a claim must also be one fabric partition. A claim that is
no whole partition is refused when it is prepared, and a virtual machine without an active partition has no CUDA or no
NVLink; the scheduler knows nothing of either.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dra_driver.allocation.search import Allocated, Undecided, allocate
from dra_driver.allocation.selection import Failure
from dra_driver.allocation.snapshot import Candidate, SelectedDevices, Snapshot
from dra_driver.api.meta import JsonObject, ObjectMeta
from dra_driver.api.resource import DeviceClass, DeviceRequest, ResourceClaim, ResourceClaimSpec
from dra_driver.checking import codes
from dra_driver.checking.codes import Severity
from dra_driver.checking.knowledge import Knowledge, SampleNode
from dra_driver.checking.manifests import ClaimPart, ClassPart, Manifests
from dra_driver.errors import DriverError
from dra_driver.names import PARTITION_SIZES, RequestName

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Wish:
    """A request, or one alternative of it, of a known class. `of_class` and `own` are selectors."""

    name: RequestName
    path: str
    request: JsonObject
    device_class: DeviceClass

    @property
    def of_class(self) -> tuple[str, ...]:
        return self.device_class.spec.expressions

    @property
    def own(self) -> tuple[str, ...]:
        selectors = self.request.get("selectors") or ()
        return tuple(str((selector.get("cel") or {}).get("expression", "")) for selector in selectors)

    @property
    def expressions(self) -> tuple[str, ...]:
        return (*self.of_class, *self.own)

    @property
    def wants_all(self) -> bool:
        return self.request.get("allocationMode") == "All"

    @property
    def count(self) -> int:
        count = self.request.get("count", 1)
        return count if isinstance(count, int) else 1


def wishes_of(part: ClaimPart, manifests: Manifests) -> list[Wish]:
    """All but those of an unknown class."""
    known = (
        (RequestName.of(name), path, request, manifests.device_class(str(request.get("deviceClassName", ""))))
        for name, path, request in part.alternatives()
    )
    return [Wish(name, path, request, class_) for name, path, request, class_ in known if class_ is not None]


def selected(site: SampleNode, expressions: tuple[str, ...]) -> SelectedDevices:
    """What selectors make of all devices of a site."""
    matching: list[Candidate] = []
    failing: dict[Candidate, Failure] = {}
    for pool in site.catalog.pools(site.node):
        selection = pool.select(expressions)
        matching += selection.matching
        failing.update(selection.failing)
    return SelectedDevices(tuple(matching), failing)


def is_matched(sites: Iterable[SampleNode], expressions: tuple[str, ...]) -> bool:
    """Whether selectors let a device of any of the sites through."""
    return any(selected(site, expressions).matching for site in sites)


def kinds_of(
    expressions: tuple[str, ...], knowledge: Knowledge, sites: Iterable[SampleNode] | None = None
) -> frozenset[str]:
    """The types (`gpu`, `mig`, `vfio`) of the devices of our driver that selectors let through, on `sites`; None: all
    that there can be.

    Nothing where that is not known, or where a selector cannot be compiled.
    """
    matching = (selected(site, expressions).matching for site in (knowledge.sites.broad if sites is None else sites))
    ours = (item.device for items in matching for item in items if item.id.driver == knowledge.driver)
    return frozenset(device.text("type") for device in ours) - {""}


def check_class_fit(part: ClassPart, manifests: Manifests) -> None:
    """A class that is about our devices should select some of them."""
    knowledge = manifests.knowledge
    if part.typed is None or not knowledge.sites:
        return
    expressions = part.typed.spec.expressions
    if not any(knowledge.driver in expression for expression in expressions):
        return
    paths = [f"spec.selectors[{index}].cel.expression" for index in range(len(expressions))]
    if _report_failures(part, expressions, paths, knowledge) or not knowledge.sites.complete:
        return
    if not is_matched(knowledge.sites, expressions):
        message = "no known device satisfies all selectors of the class"
        part.report.find(codes.NEVER_FITS, "spec.selectors", message, severity=_severity(knowledge))


def check_claim_fit(part: ClaimPart, manifests: Manifests) -> None:
    """Requests that fail on some devices, that no device satisfies, or that cannot be had together."""
    knowledge, claim = manifests.knowledge, part.typed
    if claim is None or not knowledge.sites:
        return
    wishes = [wish for wish in wishes_of(part, manifests) if _is_known(wish, knowledge)]
    fine = True
    for wish in wishes:
        start = len(wish.of_class)
        paths = [f"{wish.path}.selectors[{index}].cel.expression" for index in range(len(wish.own))]
        fine &= not _report_failures(part, wish.expressions, paths, knowledge, first=start)
    if not knowledge.sites.complete:
        return
    # How many there are to have all of depends on what an administrator made of the GPUs.
    everything = [wish for wish in wishes if wish.wants_all and is_matched(knowledge.sites, wish.expressions)]
    wishes = [wish for wish in wishes if wish.name.request not in {item.name.request for item in everything}]
    unjudged = any(finding.code in (codes.SELECTOR.name, codes.NOT_JUDGED.name) for finding in part.report.findings)
    if not fine or not wishes or unjudged:
        return
    spec = _only(claim, [wish.name for wish in wishes])
    if not _fits(spec, manifests):
        _report_misfit(part, spec, wishes, manifests)


def _report_failures(
    part: ClaimPart | ClassPart,
    expressions: tuple[str, ...],
    paths: Sequence[str],
    knowledge: Knowledge,
    first: int = 0,
) -> bool:
    """Selectors that end with an error on a known device; those before `first` are reported where they are written."""
    answers = [(site, selected(site, expressions)) for site in knowledge.sites.broad]
    elsewhere = not knowledge.certain and any(answer.matching and not answer.failing for _, answer in answers)
    severity = Severity.INFO if elsewhere else None
    for site, answer in answers:
        for candidate, failure in answer.failing.items():
            if failure.index >= first:
                kind = candidate.device.text("type") or candidate.id.driver
                on = f"on devices of type {kind} ({site.title}); then the pod gets no devices"
                message = f"{failure.error.message}, {on}"
                fix = "guard it with has(…) &&, or ask for it with .?… and orValue(…)"
                path = paths[failure.index - first]
                if not part.report.has(path):
                    offset = failure.error.start
                    part.report.find(codes.SELECTOR_FAILS, path, message, fix=fix, offset=offset, severity=severity)
    return any(answer.failing for _, answer in answers)


def _is_known(wish: Wish, knowledge: Knowledge) -> bool:
    """Whether it is not for devices of another driver."""
    ours = any(knowledge.driver in text for text in wish.expressions)
    return is_matched(knowledge.sites if ours else knowledge.sites.broad, wish.of_class)


def _only(claim: ResourceClaimSpec, names: Sequence[RequestName]) -> ResourceClaimSpec:
    """The claim without requests of other drivers, and without what is about them."""
    own = {name.request for name in names}
    requests = []
    for request in claim.devices.requests:
        alternatives = [item for item in request.first_available or () if RequestName(request.name, item.name) in names]
        if request.name in own:
            requests.append(request.model_copy(update={"first_available": alternatives} if alternatives else {}))
    every = [request.name for request in claim.devices.requests]
    constraints = [
        constraint
        for constraint in claim.devices.constraints
        if {RequestName.of(name).request for name in constraint.requests or every} <= own
    ]
    return claim.with_devices(requests=requests, constraints=constraints, config=[])


def _fits(spec: ResourceClaimSpec, manifests: Manifests) -> bool:
    known = repr(spec.devices)
    if known not in manifests.fitting:
        sites = manifests.knowledge.sites
        manifests.fitting[known] = any(_refusal(spec, site, manifests) is None for site in sites)
    return manifests.fitting[known]


def _refusal(spec: ResourceClaimSpec, site: SampleNode, manifests: Manifests, name: str = "") -> str | None:
    """Why the claim, called `name`, does not fit; None when it does."""
    claim = ResourceClaim(metadata=ObjectMeta(name=name, namespace="default"), spec=spec)
    try:
        answer = allocate([claim], site.node, Snapshot(site.catalog, manifests.all_classes()))
    except DriverError as error:
        return error.message
    # Of a claim that takes too long nothing is known, so nothing is said against it.
    return None if isinstance(answer, Allocated | Undecided) else answer.reason


def _report_misfit(part: ClaimPart, spec: ResourceClaimSpec, wishes: Sequence[Wish], manifests: Manifests) -> None:
    severity, fits_alone = _severity(manifests.knowledge), True
    for request in spec.devices.requests:
        if _fits(_alone(spec, request), manifests):
            continue
        fits_alone = False
        for wish in wishes:
            if wish.name.request == request.name:
                only = _alone(spec, _without_others(request, wish.name.alternative))
                path, message = _why(wish, only, part.report.document.name, manifests)
                part.report.find(codes.NEVER_FITS, path, message, severity=severity)
    if not fits_alone:
        return
    reason = _reason(spec, list(manifests.knowledge.sites.broad), part.report.document.name, manifests)
    message = f"each request fits alone, but all together fit no node; {reason}"
    part.report.find(codes.NEVER_FITS, f"{part.path}.devices.requests", message, severity=severity)


def _alone(spec: ResourceClaimSpec, request: DeviceRequest) -> ResourceClaimSpec:
    return spec.with_devices(requests=[request], constraints=[])


def _without_others(request: DeviceRequest, alternative: str | None) -> DeviceRequest:
    if alternative is None or request.first_available is None:
        return request
    only = [item for item in request.first_available if item.name == alternative]
    return request.model_copy(update={"first_available": only})


def _why(wish: Wish, alone: ResourceClaimSpec, name: str, manifests: Manifests) -> tuple[str, str]:
    """Where, and the sentence."""
    sites = sorted(manifests.knowledge.sites, key=lambda site: -len(selected(site, wish.expressions).matching))
    most = len(selected(sites[0], wish.expressions).matching)
    if most == 0:
        for index, expression in enumerate(wish.own):
            if not is_matched(sites, (*wish.of_class, expression)):
                path = f"{wish.path}.selectors[{index}].cel.expression"
                return path, f"no device of the known {_models(sites)} satisfies this selector"
        path = f"{wish.path}.selectors" if wish.own else f"{wish.path}.deviceClassName"
        return path, f"no device of the known {_models(sites)} satisfies all selectors at once"
    if not wish.wants_all and most < wish.count:
        message = f"asks for {wish.count} devices; no known node has more than {most} that match"
        return f"{wish.path}.count", message
    return wish.path, f"fits no known node; {_reason(alone, sites, name, manifests)}"


def _reason(spec: ResourceClaimSpec, sites: Sequence[SampleNode], name: str, manifests: Manifests) -> str:
    """What the first of the nodes says."""
    site = sites[0]
    return f"on {site.title}, for instance: {_refusal(spec, site, manifests, name)}"


def _models(sites: Sequence[SampleNode]) -> str:
    titles = list(dict.fromkeys(site.title for site in sites))
    return f"nodes ({', '.join(titles)})" if len(titles) <= _SHOWN else f"{len(titles)} kinds of nodes"


def _severity(knowledge: Knowledge) -> Severity:
    return Severity.ERROR if knowledge.certain else codes.NEVER_FITS.severity


_PARTITION = re.compile(r"partition([0-9]+)")
_WHOLE = ("gpu", "vfio")


def check_partitions(part: ClaimPart, manifests: Manifests) -> None:
    """Reports constraints whose number of GPUs differs from the partition's, and what claims lack on known nodes.

    Claims with alternatives, admin access or `allocationMode: All` are not judged.
    """
    asked = list(_counted_wishes(part, manifests))
    if len(asked) != len(part.listed("requests")):
        return
    knowledge, matched = manifests.knowledge, False
    for index, constraint in enumerate(part.listed("constraints")):
        domain, _, name = str(constraint.get("matchAttribute") or "").rpartition("/")
        partition = _PARTITION.fullmatch(name) if domain == knowledge.driver else None
        if partition is not None:
            matched = True
            path = f"{part.path}.devices.constraints[{index}].matchAttribute"
            names = constraint.get("requests")
            wishes = [wish for wish in asked if not names or wish.name.request in names]
            _check_partition_count(part, path, int(partition[1]), wishes, knowledge)
    if not matched and knowledge.certain:
        for site in knowledge.sites.broad:
            if _report_missing_partition(part, site, asked, knowledge):
                return


def _counted_wishes(part: ClaimPart, manifests: Manifests) -> Iterator[Wish]:
    for wish in wishes_of(part, manifests):
        alone = wish.name.alternative is None and not wish.request.get("adminAccess")
        if alone and not wish.wants_all and isinstance(wish.request.get("count", 1), int):
            yield wish


def _check_partition_count(part: ClaimPart, path: str, size: int, asked: Sequence[Wish], knowledge: Knowledge) -> None:
    count = sum(request.count for request in asked)
    if asked and count != size:
        message = (
            f"{count} GPUs of a partition of {size}: the GPUs of a claim must be a whole partition, or the node plugin"
            " refuses the claim"
        )
        other = f", or match on {knowledge.driver}/partition{count}" if count in PARTITION_SIZES else ""
        part.report.find(codes.FABRIC_PARTITION, path, message, fix=f"request {size} GPUs{other}")


def _report_missing_partition(part: ClaimPart, site: SampleNode, asked: Sequence[Wish], knowledge: Knowledge) -> bool:
    driver = knowledge.driver
    kinds = [kinds_of(wish.expressions, knowledge, [site]) for wish in asked]
    whole = [wish for wish, of_wish in zip(asked, kinds, strict=True) if of_wish and of_wish.issubset(_WHOLE)]
    if not whole:
        return False
    count, attributes = sum(request.count for request in whole), _attributes_on(site, driver)
    path = f"{part.path}.devices.requests" if len(whole) > 1 else whole[0].path
    if "partition1" in attributes:
        # Of models that are chosen by name, this is one way to run them.
        if count == 1 or knowledge.existing is None:
            return False
        message = f"on {site.title} NVSwitches are shared, and any {count} GPUs need not be a fabric partition"
        fix = f"add the constraint matchAttribute: {driver}/partition{count}"
        part.report.find(codes.FABRIC_PARTITION, path, message, fix=fix)
        return True
    if {"vfio"} not in kinds or not attributes.get("fabric", frozenset()) - {"none"}:
        return False
    message = (
        f"on {site.title} GPUs are connected by NVSwitches, and no fabric partition is activated for a virtual machine:"
        " CUDA fails in it, or has no NVLink"
    )
    fix = "switch on the feature gate FabricManagerPartitioning; docs/hardware.md, section Fabric partitions"
    part.report.find(codes.FABRIC_PARTITION, path, message, fix=fix)
    return True


def _attributes_on(site: SampleNode, driver: str) -> dict[str, frozenset[str]]:
    """Names, and texts, of what the devices of a node have."""
    values_by_name: dict[str, set[str]] = {}
    for pool in site.catalog.pools(site.node):
        for candidate in pool.candidates:
            if candidate.id.driver == driver:
                for name, value in candidate.device.attributes.items():
                    values_by_name.setdefault(name, set()).add(value.string or "")
    return {name: frozenset(values) for name, values in values_by_name.items()}
