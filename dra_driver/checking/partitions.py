"""Whether the GPUs of a claim can be one fabric partition, on nodes whose GPUs are connected by NVSwitches.

A claim that is no whole partition is refused when it is prepared, and a virtual machine without an active partition has
no CUDA or no NVLink; the scheduler knows nothing of either. Pure.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from dra_driver.api.meta import JsonObject
from dra_driver.checking import codes
from dra_driver.checking.fit import Wish, selected, wishes_of
from dra_driver.checking.knowledge import Knowledge, SampleNode
from dra_driver.checking.manifests import ClaimPart, Manifests
from dra_driver.names import PARTITION_SIZES

_PARTITION = re.compile(r"partition([0-9]+)")
_WHOLE = ("gpu", "vfio")


def check_partitions(part: ClaimPart, manifests: Manifests) -> None:
    """Reports constraints whose number of GPUs differs from the partition's, and what claims lack on known nodes.

    Claims with alternatives, admin access or `allocationMode: All` are not judged.
    """
    asked = list(_asked(part, manifests))
    if len(asked) != len(part.requests):
        return
    knowledge, matched = manifests.knowledge, False
    for index, constraint in enumerate((part.spec.get("devices") or {}).get("constraints") or ()):
        size = _size(constraint, knowledge)
        if size is not None:
            matched = True
            path = f"{part.path}.devices.constraints[{index}].matchAttribute"
            _check_count(part, path, size, _of(asked, constraint), knowledge)
    if not matched and knowledge.certain:
        for site in knowledge.sites.broad:
            if _report_missing(part, site, asked, knowledge):
                return


def _asked(part: ClaimPart, manifests: Manifests) -> Iterator[Wish]:
    for wish in wishes_of(part, manifests):
        alone = wish.name.alternative is None and not wish.request.get("adminAccess")
        if alone and not wish.wants_all and isinstance(wish.request.get("count", 1), int):
            yield wish


def _kinds(wish: Wish, site: SampleNode, driver: str) -> frozenset[str]:
    """`gpu`, `vfio` and others, of the devices of a node that it selects."""
    matching = selected(site, wish.expressions).matching
    return frozenset(item.device.text("type") for item in matching if item.id.driver == driver) - {""}


def _size(constraint: JsonObject, knowledge: Knowledge) -> int | None:
    """Of the partition that a constraint is about."""
    domain, _, name = str(constraint.get("matchAttribute") or "").rpartition("/")
    match = _PARTITION.fullmatch(name) if domain == knowledge.driver else None
    return int(match[1]) if match is not None else None


def _of(asked: Sequence[Wish], constraint: Mapping[str, object]) -> list[Wish]:
    names = constraint.get("requests") or [wish.name.request for wish in asked]
    return [wish for wish in asked if isinstance(names, list) and wish.name.request in names]


def _check_count(part: ClaimPart, path: str, size: int, asked: Sequence[Wish], knowledge: Knowledge) -> None:
    count = sum(request.count for request in asked)
    if asked and count != size:
        message = (
            f"{count} GPUs of a partition of {size}: the GPUs of a claim must be a whole partition, or the node plugin"
            " refuses the claim"
        )
        other = f", or match on {knowledge.driver}/partition{count}" if count in PARTITION_SIZES else ""
        part.report.find(codes.FABRIC_PARTITION, path, message, fix=f"request {size} GPUs{other}")


def _report_missing(part: ClaimPart, site: SampleNode, asked: Sequence[Wish], knowledge: Knowledge) -> bool:
    driver = knowledge.driver
    kinds = [_kinds(request, site, driver) for request in asked]
    whole = [
        request
        for request, request_kinds in zip(asked, kinds, strict=True)
        if request_kinds and request_kinds.issubset(_WHOLE)
    ]
    if not whole:
        return False
    count, attributes = sum(request.count for request in whole), _attributes(site, driver)
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


def _attributes(site: SampleNode, driver: str) -> dict[str, frozenset[str]]:
    """Names, and texts, of what the devices of a node have."""
    values_by_name: dict[str, set[str]] = {}
    for pool in site.catalog.pools(site.node):
        for candidate in pool.candidates:
            if candidate.id.driver == driver:
                for name, value in candidate.device.attributes.items():
                    values_by_name.setdefault(name, set()).add(value.string or "")
    return {name: frozenset(values) for name, values in values_by_name.items()}
