"""What the containers of a pod ask for in the old way, as devices. Pure.

Containers that had devices of their own have demands of their own. An init container's devices went to the containers
after it: its units are the first ones of theirs, and what it needs beyond is a demand of its own, so that the pod holds
as many devices as before and each container sees as many. Source: the reference on migration sources, section 3;
kubelet's device manager.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dra_driver.allocation.placement import IMPLICIT_PREFIX
from dra_driver.api.untyped import Path, path_text, value_at
from dra_driver.cel.device import compile_selector
from dra_driver.cel.errors import CelError
from dra_driver.checking.codes import Severity
from dra_driver.grouping import grouped
from dra_driver.kubernetes import GATES, OLDEST
from dra_driver.migration import codes
from dra_driver.migration.demands.placement import placed, requirements_of, unused_labels
from dra_driver.migration.demands.pod_settings import VISIBLE, bypasses, sees_all, settings, variables
from dra_driver.migration.demands.resources import (
    Amounts,
    Ask,
    PodNotes,
    amounts_of,
    ask_for,
    demands_of_kind,
    handed_on,
    is_of_virtual_machines,
    is_whole_or_mig,
    strange_resources,
)
from dra_driver.migration.demands.sharing_systems import parts_of
from dra_driver.migration.model import (
    ClaimForm,
    ContainerAt,
    Demand,
    MigrationFinding,
    Options,
    PodReading,
    PodSpecAt,
    Remove,
    Role,
    Want,
    What,
    finding,
)
from dra_driver.migration.understand.labels import RequestedDevices, hints_of
from dra_driver.migration.understand.meaning import Meaning
from dra_driver.migration.understand.offering import is_plumbing
from dra_driver.migration.understand.purposes import hindrances, remaining_claims, why_left

MOST_DEVICES = 32
"""Of one claim. Source: AllocationResultsMaxSize, resource.k8s.io/v1."""
_MOST_UNITS = 1000
"""No node has as many, by far."""
_KSERVE_CLASSES = ("serving.kserve.io/exp-dra-device-class", "serving.kserve.io/dra-device-class")
"""Of KServe, and as its annotation was first called."""
MOST_BYTES = 10 * 1024
"""Of one expression."""

_IMMUTABLE = frozenset(
    {
        "Pod", "Job", "JobSet", "PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MPIJob", "RayJob",
        "TrainJob", "SparkApplication", "Workflow", "AppWrapper",
    }
)  # fmt: skip
"""Kinds whose pods are described once and for all; a bare pod's claims are, too."""


def demands(pod: PodSpecAt, meaning: Meaning, options: Options) -> PodReading:
    """All that one pod asks for."""
    requirements = requirements_of(pod)
    held = meaning.purposes.held(pod, options)
    notes = PodNotes(pod, meaning, options, requirements, hints_of(requirements), held)
    # Ephemeral containers have no resources; the API server sees to that.
    containers = [container for container in pod.containers if container.role is not Role.EPHEMERAL]
    amounts = [(container, amounts_of(container, notes)) for container in containers]
    _strange(notes)
    asks = [_within_reason(notes, ask) for ask in _asks(notes, amounts)]
    _zeros(notes, amounts, asks)
    if not asks:
        return _without_asks(notes)
    _already(notes)
    demanded = _demanded(notes, asks)
    selectors = placed(notes, [_subject(notes, ask, asks) for ask in asks])
    users = list({container.path: container for demand in demanded for container in demand.containers}.values())
    own_selectors = settings(notes, users, list(dict.fromkeys(ask.resource for ask in asks if ask.resource)))
    demanded = _chosen(demanded, asks, selectors, own_selectors)
    if options.share_visible_all:
        more = tuple(container for container in pod.containers if container not in users and sees_all(container))
        demanded = [replace(demand, containers=(*demand.containers, *more)) for demand in demanded]
    _sizes(notes, demanded)
    _server(notes, demanded)
    if pod.document.kind in _IMMUTABLE:
        message = f"the pods of an existing {pod.document.kind} cannot be changed in place"
        notes.say_with_claims(codes.IMMUTABLE, (), message, fixed=False)
    beside = remaining_claims(held, pod.document)
    return PodReading(
        tuple(demanded),
        tuple(notes.edits),
        tuple(notes.findings),
        (*notes.claim_findings, *beside),
        (*notes.extended_findings, *beside),
        next(iter(notes.needs_claims), None),
        next(iter(notes.leave), None),
        next(iter(notes.prefers_claims), None),
        held,
    )


# -- amounts


def _strange(notes: PodNotes) -> None:
    for container in notes.pod.containers:
        for resource, path in strange_resources(container, notes.meaning, notes.options).items():
            if is_of_virtual_machines(resource):
                message = f"{resource} is a GPU, or a part of one, for a virtual machine"
                notes.say(codes.VIRTUAL_MACHINE, path, message)
            else:
                notes.say(codes.UNKNOWN_RESOURCE, path, f"{resource}: its meaning is unknown")
            notes.leave.append(f"the meaning of {resource} is unknown, and a pod is migrated as a whole or not at all")


def _zeros(notes: PodNotes, amounts: Sequence[tuple[ContainerAt, Amounts]], asks: Sequence[Ask]) -> None:
    """Amounts of nothing, besides those that stand beside an amount of something and go with it."""
    taken = {path for ask in asks for path in ask.removes}
    for container, given in amounts:
        for amount in given.values():
            if amount.number or amount.resource == notes.meaning.hami.priority or set(amount.paths) <= taken:
                continue
            message = f"{container.name or 'the container'} asks for {amount.resource}: 0"
            if asks:
                notes.say_with_claims(codes.ZERO, amount.paths[0], message)
                notes.edits += [Remove(path) for path in amount.paths]
            else:
                notes.say(codes.ZERO, amount.paths[0], message)


# -- what is asked for


def _asks(notes: PodNotes, amounts: Sequence[tuple[ContainerAt, Amounts]]) -> list[Ask]:
    asks = parts_of(notes, amounts)
    if asks:
        notes.needs_claims.append("extended resources cannot express parts of GPUs")
    of_systems = {ask.container.path for ask in asks if ask.resource}
    for container, given in amounts:
        for amount in given.values():
            own = amount.resource in notes.meaning.own
            if amount.number and (own or is_whole_or_mig(amount.resource)):
                if container.path in of_systems and amount.resource == notes.meaning.hami.count:
                    continue
                asks.append(ask_for(notes, container, amount))
    return asks


def _within_reason(notes: PodNotes, ask: Ask) -> Ask:
    """Units are looked at one by one, and an amount of `8Gi` was meant for something else."""
    if ask.want.count <= _MOST_UNITS:
        return ask
    message = f"{ask.want.count} devices; a claim has at most {MOST_DEVICES}"
    notes.refuse(codes.TOO_LARGE, notes.pod.path, message)
    return replace(ask, want=replace(ask.want, count=1))


# -- demands


def _demanded(notes: PodNotes, asks: Sequence[Ask]) -> list[Demand]:
    results: list[Demand] = []
    for want, alike in grouped(asks, lambda ask: replace(ask.want, count=1)).items():
        results += demands_of_kind(want, alike)
        if want.distinct:
            path = alike[0].removes[0] if alike[0].removes else alike[0].container.path
            message = f"{alike[0].want.count} shares are of {alike[0].want.count} different GPUs, by a constraint"
            notes.say_with_claims(codes.SAME_GPU_POSSIBLE, path, message)
    brief = [ask for ask in asks if ask.container.role is Role.INIT]
    if brief:
        names = ", ".join(dict.fromkeys(ask.container.name for ask in brief))
        shared = handed_on(results)
        alone = ", ".join(dict.fromkeys(ask.container.name for ask in brief if ask.container.path not in shared))
        message = f"{names} and the containers after it use the same GPUs, as before"
        if alone:
            message = f"{alone} asks for other GPUs than the containers after it, and the pod holds both"
        path = brief[0].removes[0] if brief[0].removes else brief[0].container.path
        notes.say_with_claims(codes.GPU_INIT_CONTAINER, path, message)
        message = f"{names}: Kubernetes before 1.36 gives init containers GPUs of their own"
        notes.say_with_extended(codes.GPU_INIT_CONTAINER, path, message)
    order = {container.path: index for index, container in enumerate(notes.pod.containers)}
    return sorted(results, key=lambda demand: order[demand.containers[0].path])


def _subject(notes: PodNotes, ask: Ask, asks: Sequence[Ask]) -> RequestedDevices:
    alike = [item for item in asks if replace(item.want, count=1) == replace(ask.want, count=1)]
    lasting = sum(item.want.count for item in alike if item.container.role is not Role.INIT)
    largest = max((item.want.count for item in alike if item.container.role is Role.INIT), default=0)
    return RequestedDevices(ask.want, notes.options.driver, max(lasting, largest), ask.single)


def _chosen(
    demands: Sequence[Demand], asks: Sequence[Ask], by_ask: Sequence[list[str]], by_container: Mapping[Path, list[str]]
) -> list[Demand]:
    """With selectors that node conditions and settings become."""
    kinds = {replace(ask.want, count=1): index for index, ask in enumerate(asks)}
    chosen = []
    for demand in demands:
        index = kinds[replace(demand.want, count=1)]
        of_containers = (text for container in demand.containers for text in by_container.get(container.path, ()))
        selectors = dict.fromkeys((*demand.want.selectors, *by_ask[index], *of_containers))
        chosen.append(replace(demand, want=replace(demand.want, selectors=tuple(selectors))))
    return chosen


# -- the pod as a whole


def _without_asks(notes: PodNotes) -> PodReading:
    if is_plumbing(notes.pod.spec) or (notes.pod.form is ClaimForm.NONE and not notes.pod.containers):
        return PodReading(findings=tuple(notes.findings))
    watcher = _watcher(notes)
    if watcher is not None:
        return watcher
    findings = (*notes.findings, *bypasses(notes.pod), *unused_labels(notes.pod), *_has_claims(notes))
    return PodReading(findings=findings, leave=next(iter(notes.leave), None))


def _watcher(notes: PodNotes) -> PodReading | None:
    """A DaemonSet that sees all GPUs of its node and asks for none: admin access says the same."""
    if notes.pod.document.kind != "DaemonSet" or any(map(why_left, notes.held)):
        return None
    if any("NVIDIA_MIG_CONFIG_DEVICES" in variables(container) for container in notes.pod.containers):
        return None
    seeing = [container for container in notes.pod.containers if sees_all(container)]
    visible = [variables(container)[VISIBLE] for container in seeing]
    if not seeing or any(variable.value != "all" for variable in visible):
        return None
    removes = tuple(variable.path for variable in visible)
    message = f"{seeing[0].name} sees all GPUs of its node and asks for none"
    if stays := notes.options.dynamic_mig or notes.meaning.cut_on_demand:
        message += "; where MIG devices are made on demand a claim may get nothing, so it stays as it is"
    note = finding(codes.ADMIN_ACCESS, notes.pod.document, removes[0], message)
    removed = {path_text(path) for path in removes}
    rest = (bypass for bypass in bypasses(notes.pod, seeing) if bypass.place.path not in removed)
    findings = (*notes.findings, note, *rest, *unused_labels(notes.pod))
    if stays:
        return PodReading(findings=findings)
    demand = Demand(tuple(seeing), Want(What.GPU), removes=removes, all_gpus=True)
    return PodReading(
        (demand,),
        findings=findings,
        claim_findings=remaining_claims(notes.held, notes.pod.document),
        needs_claims="it monitors all GPUs without asking for one, which only a claim with admin access expresses",
        held=notes.held,
    )


def _has_claims(notes: PodNotes) -> tuple[MigrationFinding, ...]:
    """Of a pod that has claims, or asks for a class by its implicit name."""
    path = (*notes.pod.path, "resourceClaims")
    if value_at(notes.pod.spec, ("resourceClaims",)):
        return (finding(codes.ALREADY_DRA, notes.pod.document, path, "the pod has claims"),)
    implicit = [held for held in notes.held if held.name.startswith(IMPLICIT_PREFIX)]
    return tuple(
        finding(codes.ALREADY_DRA, notes.pod.document, held.path, f"{held.name} is answered by a DeviceClass")
        for held in implicit[:1]
    )


def _already(notes: PodNotes) -> None:
    """What keeps a pod that asks for GPUs from being migrated at all."""
    notes.findings += hindrances(notes.held, notes.pod.document)
    notes.leave += [why for held in notes.held if (why := why_left(held)) is not None]
    annotated: list[Path] = [("metadata", "annotations", name) for name in _KSERVE_CLASSES]
    native = next((path for path in annotated if value_at(notes.pod.document.obj, path) is not None), None)
    if native is not None:
        message = "KServe creates claims for this, which would be added to the GPUs in its limits"
        notes.say(codes.ALREADY_DRA, native, message, severity=Severity.ERROR)
        notes.leave.append("KServe creates claims for it already; remove one of the two")
    path: Path = ("metadata", "annotations", "kubernetes.io/config.source")
    if value_at(notes.pod.document.obj, path) in ("file", "http"):
        message = "a static pod can use neither claims nor extended resources of a DeviceClass"
        notes.say(codes.PAST_THE_SCHEDULER, path, message)
        notes.leave.append("it is a static pod")


def _server(notes: PodNotes, results: Sequence[Demand]) -> None:
    """What the Kubernetes that is migrated to must have; nothing is said where it is not known."""
    minor, gate = notes.options.kubernetes_minor, GATES["DRAConsumableCapacity"]
    shares = [demand for demand in results if demand.want.share is not None]
    if minor is None or gate.default(minor):
        return
    if minor < OLDEST:
        message = f"Kubernetes 1.{minor} has no resource.k8s.io/v1; 1.{OLDEST} is the first that has"
    elif shares:
        message = f"Kubernetes 1.{minor} allocates no parts of devices (DRAConsumableCapacity is on from 1.{gate.on})"
    else:
        return
    notes.refuse(codes.SERVER_TOO_OLD, notes.pod.path, message)


def _sizes(notes: PodNotes, results: Sequence[Demand]) -> None:
    total = sum(demand.want.count for demand in results if not demand.all_gpus)
    if total > MOST_DEVICES:
        notes.refuse(codes.TOO_LARGE, notes.pod.path, f"{total} devices; a claim has at most {MOST_DEVICES}")
    for expression in dict.fromkeys(selector for demand in results for selector in demand.want.selectors):
        problem = _problem(expression)
        if problem is not None:
            notes.say(codes.TOO_LARGE, notes.pod.path, f"a condition of {len(expression)} characters: {problem}")
            notes.leave.append("its conditions on GPUs exceed the limits of an expression")


def _problem(expression: str) -> str | None:
    if len(expression.encode()) > MOST_BYTES:
        return f"at most {MOST_BYTES} bytes"
    try:
        compile_selector(expression)
    except CelError as error:
        return error.message
    return None
