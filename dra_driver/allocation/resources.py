"""What a pod takes of a node besides devices (cpu, memory and the like), and what the pods there leave. Pure.

Source: kube-scheduler's NodeResourcesFit: containers add up, sidecars with them; init containers run one by one.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from dra_driver.allocation.nodes import NodeView
from dra_driver.api.meta import JsonObject
from dra_driver.quantity import Quantity


@dataclass(frozen=True, slots=True)
class Shortage:
    """Amounts as Kubernetes writes them. `left` is what the pods of the node leave of `allocatable`."""

    resource: str
    wanted: str
    left: str
    allocatable: str

    def __str__(self) -> str:
        return f"{self.resource}: {self.wanted} wanted, {self.left} of {self.allocatable} left"


def shortage_on(node: NodeView, pod: JsonObject, others: Iterable[JsonObject]) -> Shortage | None:
    """The first resource of which the node has too little for the pod beside `others`.

    None for enough, and for a node that does not say what it has.
    """
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
            return Shortage(resource, *(str(Quantity(one, total.format)) for one in (amount, left, total.value)))
    return None


def amounts_of(pod: JsonObject) -> dict[str, Fraction]:
    """Resource name to what the pod takes at most at any time; a place on the node is called `pods`.

    Extended resources are not among them: DRA may serve those.
    """
    spec = pod["spec"]
    lasting = _sum(map(_requests, spec.get("containers") or ()))
    needed = dict(lasting)
    sidecars: dict[str, Fraction] = {}
    for container in spec.get("initContainers") or ():
        own = _requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum((sidecars, own))
            lasting = _sum((lasting, own))
            beside = sidecars
        else:
            beside = _sum((sidecars, own))
        for name, amount in beside.items():
            needed[name] = max(needed.get(name, Fraction(0)), amount)
    for name, amount in lasting.items():
        needed[name] = max(needed.get(name, Fraction(0)), amount)
    overhead = {name: Quantity.parse(str(value)).value for name, value in (spec.get("overhead") or {}).items()}
    return {name: amount for name, amount in _sum((needed, overhead)).items() if amount} | {"pods": Fraction(1)}


def _requests(container: JsonObject) -> dict[str, Fraction]:
    resources = container.get("resources") or {}
    # The API server fills in requests from limits; manifests may never have met one.
    found = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return {name: Quantity.parse(str(value)).value for name, value in found.items() if "/" not in name}


def _sum(parts: Iterable[Mapping[str, Fraction]]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = defaultdict(Fraction)
    for part in parts:
        for name, amount in part.items():
            total[name] += amount
    return dict(total)
