"""Units of devices of one kind: which of them each container of a pod sees. Pure.

Lasting containers have units of their own; an init container's go to the containers after it, as kubelet's device
manager hands them on.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dra_driver.migration.model import ContainerAt, Demand, Path, Role, Want


@dataclass(frozen=True, slots=True)
class Ask:
    """Of one container, in units of one kind."""

    container: ContainerAt
    want: Want
    """Its count is what the container sees."""
    removes: tuple[Path, ...]
    resource: str
    single: bool = False
    """`nvidia.com/gpu` that stands for MIG devices."""


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
            free = [unit for unit, owner in owners.items() if not _runs_beside(owner, ask)]
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


def _runs_beside(owner: Ask, init: Ask) -> bool:
    """Sidecars that start before an init container run beside it; everything else starts after it."""
    return owner.container.role is Role.SIDECAR and _position(owner.container) < _position(init.container)


def _position(container: ContainerAt) -> int:
    """Among init containers."""
    return next((part for part in reversed(container.path) if isinstance(part, int)), 0)


def _users_of_units(spans: Iterable[tuple[Ask, list[int]]]) -> list[tuple[tuple[Ask, ...], list[int]]]:
    """Units with the same users together; lasting containers come first among users."""
    by_unit: dict[int, list[Ask]] = {}
    for ask, units in spans:
        for unit in units:
            by_unit.setdefault(unit, []).append(ask)
    found: dict[tuple[Path, ...], tuple[tuple[Ask, ...], list[int]]] = {}
    for unit, asks in sorted(by_unit.items()):
        key = tuple(ask.container.path for ask in asks)
        found.setdefault(key, (tuple(asks), []))[1].append(unit)
    return list(found.values())


def handed_on(demands: Iterable[Demand]) -> set[Path]:
    """Init containers that share a demand with a container after them."""
    shared = (one.containers for one in demands if len(one.containers) > 1)
    return {container.path for containers in shared for container in containers if container.role is Role.INIT}
