"""Nodes as the scheduler sees them: node selectors, taints, and what pods leave of cpu, memory and the like. Pure.

Source: NodeSelector of core/v1: terms are alternatives, the requirements of a term must all hold. kube-scheduler's
NodeResourcesFit: containers add up, sidecars with them; init containers run one by one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from fractions import Fraction
from typing import Any

from dra_driver.api.core import Container, Node, PodSpec
from dra_driver.api.meta import JsonObject, requirement_holds
from dra_driver.api.resource import Taint, Toleration
from dra_driver.quantity import Quantity


@dataclass(frozen=True, slots=True)
class NodeView:
    """`allocatable` are quantities as text, by resource name."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    allocatable: Mapping[str, str] = field(default_factory=dict)
    not_ready: str | None = None
    """Why its kubelet does not work, as the node's condition has it; None if it works, or that is not known."""

    @classmethod
    def read(cls, obj: JsonObject) -> "NodeView":
        """From a Node as the API has it. Raises InvalidInput."""
        return cls.of(Node.of(obj))

    @classmethod
    def of(cls, node: Node) -> "NodeView":
        allocatable = {name: str(amount) for name, amount in node.status.allocatable.items()}
        taints, conditions = tuple(node.spec.taints), node.status.conditions
        bad = next((item for item in conditions if item.type == "Ready" and item.status != "True"), None)
        not_ready = (bad.message or bad.reason) if bad is not None else None
        return cls(node.name, node.metadata.labels, taints, node.spec.unschedulable, allocatable, not_ready)


def selector_matches(selector: Mapping[str, Any], node: NodeView) -> bool:
    """Whether a NodeSelector (`nodeSelectorTerms`) selects the node; a term without requirements selects nothing."""
    for term in selector.get("nodeSelectorTerms") or ():
        expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
        holds = _all_hold(expressions, node.labels) and _all_hold(fields, {"metadata.name": node.name})
        if holds and (expressions or fields):
            return True
    return False


def _all_hold(requirements: Iterable[Mapping[str, Any]], values: Mapping[str, str]) -> bool:
    return all(
        requirement_holds(requirement["operator"], values.get(requirement["key"]), requirement.get("values") or ())
        for requirement in requirements
    )


def provides(node: NodeView, resource: str) -> int:
    """How many of an extended resource a device plugin offers on the node; 0 when none does."""
    return int(Quantity.parse(str(node.allocatable.get(resource, "0"))).value)


class UnfitCause(Enum):
    CORDONED = auto()
    NOT_SELECTED = auto()
    TAINTED = auto()


@dataclass(frozen=True, slots=True)
class Unfit:
    cause: UnfitCause
    reason: str
    """A part of a sentence about the node: `tainted k=v`."""

    def __str__(self) -> str:
        return self.reason


def unfit_for(pod: PodSpec, node: NodeView) -> Unfit | None:
    """Why a pod may not run on the node, devices aside."""
    return Unfit(UnfitCause.CORDONED, "cordoned") if node.unschedulable else daemon_unfit_for(pod, node)


def daemon_unfit_for(pod: PodSpec, node: NodeView) -> Unfit | None:
    """The same for a pod of a DaemonSet, which runs on cordoned nodes, too."""
    for key, value in pod.node_selector.items():
        if node.labels.get(key) != value:
            return Unfit(UnfitCause.NOT_SELECTED, f"not selected by nodeSelector {key}={value}")
    affinity = pod.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    if affinity is not None and not selector_matches(affinity.to_wire(), node):
        return Unfit(UnfitCause.NOT_SELECTED, "not selected by the pod's node affinity")
    taint = untolerated(node.taints, pod.tolerations)
    return Unfit(UnfitCause.TAINTED, f"tainted {taint}") if taint else None


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> str | None:
    """All taints, as `key=value`, that keep something without these tolerations away; None when none does."""
    accepted = tuple(tolerations)
    hard = [
        f"{taint.key}={taint.value}" if taint.value else taint.key
        for taint in taints
        if taint.effect in ("NoSchedule", "NoExecute")
        and not any(tolerates(toleration, taint) for toleration in accepted)
    ]
    return " and ".join(dict.fromkeys(hard)) or None


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """One rule for nodes and devices: an empty key or effect stands for every one, `Exists` for every value."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and (toleration.value or "") == (taint.value or "")


@dataclass(frozen=True, slots=True)
class Shortage:
    """Amounts as Kubernetes writes them. `left` is what the pods of the node leave of `allocatable`."""

    resource: str
    wanted: str
    left: str
    allocatable: str

    def __str__(self) -> str:
        return f"{self.resource}: {self.wanted} wanted, {self.left} of {self.allocatable} left"


def shortage_on(node: NodeView, pod: PodSpec, others: Iterable[PodSpec]) -> Shortage | None:
    """The first resource of which the node has too little for the pod beside `others`.

    None for enough, and for a node that does not say what it has.
    """
    if not node.allocatable:
        return None  # as of all nodes of which only slices are known; the pod's amounts take a while
    wanted = amounts_of(pod)
    used: Mapping[str, Fraction] | None = None
    for resource, amount in sorted(wanted.items()):
        text = node.allocatable.get(resource)
        if text is None:
            continue
        if used is None:
            used = _sum(map(amounts_of, others))
        total = Quantity.parse(str(text))
        left = total.value - used.get(resource, Fraction(0))
        if amount > left:
            return Shortage(resource, *(str(Quantity(item, total.format)) for item in (amount, left, total.value)))
    return None


def amounts_of(pod: PodSpec) -> dict[str, Fraction]:
    """Resource name to what the pod takes at most at any time; a place on the node is called `pods`.

    Extended resources are not among them: DRA may serve those.
    """
    needed = most_at_a_time(pod, lambda name: "/" not in name)
    overhead = {name: Quantity.parse(str(value)).value for name, value in pod.overhead.items()}
    return {name: amount for name, amount in _sum((needed, overhead)).items() if amount} | {"pods": Fraction(1)}


def most_at_a_time(pod: PodSpec, counts: Callable[[str], bool]) -> dict[str, Fraction]:
    """What the pod's containers take at most at any time, of the resources that count, by name.

    Containers that run together add up, sidecars with them; an init container that ends needs its amount only while it
    runs, beside the sidecars that were started before it.
    """
    sidecars: dict[str, Fraction] = {}
    starting: list[dict[str, Fraction]] = []
    for container in pod.init_containers:
        starting.append(_sum((sidecars, _requests(container, counts))))
        if container.restart_policy == "Always":
            sidecars = starting[-1]
    running = _sum((sidecars, *(_requests(container, counts) for container in pod.containers)))
    moments = (running, *starting)
    names = dict.fromkeys(name for moment in moments for name in moment)
    return {name: max(moment.get(name, Fraction(0)) for moment in moments) for name in names}


def _requests(container: Container, counts: Callable[[str], bool]) -> dict[str, Fraction]:
    amounts = container.resources.wanted.items()
    return {name: Quantity.parse(str(value)).value for name, value in amounts if counts(name)}


def _sum(parts: Iterable[Mapping[str, Fraction]]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = defaultdict(Fraction)
    for part in parts:
        for name, amount in part.items():
            total[name] += amount
    return dict(total)
