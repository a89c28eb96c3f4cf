"""What kubelet's Topology Manager put near the GPUs of a container: network cards, exclusive CPUs, huge pages. Pure.

It asks kubelet's managers of devices, CPUs and memory for hints when a pod is admitted. Devices of DRA were chosen by
the scheduler before that, for claims and for extended resources alike, and give no hints: the others are put near each
other, and not near the GPUs. Source: pkg/kubelet/cm, where the manager for DRA is no hint provider; kubernetes/website
56232; the CPU manager's policy `static`, the memory manager's policy `Static`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from dra_driver.migration.codes import ALIGNMENT, Severity
from dra_driver.migration.model import ContainerAt, Finding, PodSpecAt, Role, finding
from dra_driver.migration.other_resources import is_network_card
from dra_driver.quantity import Quantity

_CARD = re.compile(
    r"rdma/.+|[^/]+/(?:.*(?:sriov|rdma|roce|infiniband|mlnx|mellanox|connectx|hca|netdevice).*|efa)", re.I
)
"""Virtual functions and network adapters, under whatever prefix."""


def aligned(pod: PodSpecAt, asking: Sequence[ContainerAt]) -> Iterator[Finding]:
    """`asking` are containers with GPUs. At most one finding of a pod."""
    guaranteed = not pod.patch and _is_guaranteed(pod.containers)
    found = [(one, beside) for one in asking if (beside := (*_cards(one), *(_exclusive(one) if guaranteed else ())))]
    if not found:
        return
    first = found[0][0]
    users: dict[str, list[str]] = {}
    for one, beside in found:
        users.setdefault(_listed(beside), []).append(one.name or "the container")
    said = [f"{_listed(names)} {'has' if len(names) == 1 else 'have'} {what}" for what, names in users.items()]
    message = f"{'; '.join(said)} beside GPUs"
    cards = any(next(_cards(one), None) for one, _ in found)
    severity = Severity.WARNING if cards else Severity.INFO
    yield finding(ALIGNMENT, pod.document, first.resources_path, message, severity=severity)


def _listed(parts: Sequence[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]


def _cards(container: ContainerAt) -> Iterator[str]:
    names = {str(name) for key in ("limits", "requests") for name in _amounts(container, key)}
    yield from sorted(name for name in names if is_network_card(name) or _CARD.fullmatch(name))


def _exclusive(container: ContainerAt) -> Iterator[str]:
    """Of a container of a Guaranteed pod."""
    limits = _amounts(container, "limits")
    cpus = _quantity(limits.get("cpu"))
    if cpus is not None and cpus.value >= 1 and cpus.value.denominator == 1:
        yield f"{cpus.value} CPU{'s' * (cpus.value > 1)} to itself"
    if any(str(name).startswith("hugepages-") for name in limits):
        yield "huge pages"


def _is_guaranteed(containers: Iterable[ContainerAt]) -> bool:
    """Source: GetPodQOS in pkg/apis/core/v1/helper/qos: limits of CPU and memory, and no requests that are less."""
    return all(_has_all_it_may_use(one) for one in containers if one.role is not Role.EPHEMERAL)


def _has_all_it_may_use(container: ContainerAt) -> bool:
    limits, requests = _amounts(container, "limits"), _amounts(container, "requests")
    for name in ("cpu", "memory"):
        limit = _quantity(limits.get(name))
        if limit is None or not limit.value or (name in requests and _quantity(requests[name]) != limit):
            return False
    return True


def _amounts(container: ContainerAt, key: str) -> dict[str, object]:
    given = container.resources.get(key)
    return given if isinstance(given, dict) else {}


def _quantity(value: object) -> Quantity | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return Quantity.parse(str(value))
    except ValueError:
        return None
