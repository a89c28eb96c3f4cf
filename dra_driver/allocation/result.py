"""What was chosen for a claim, as its status has it: results, configs, node selector. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.prospects import Site
from dra_driver.allocation.requests import Wanted
from dra_driver.allocation.snapshot import Candidate
from dra_driver.api.resource import AllocatedConfig, AllocatedDevice, Allocation, DeviceAllocation, ResourceClaim
from dra_driver.names import DeviceId


@dataclass(frozen=True, slots=True)
class Chosen:
    wanted: Wanted
    candidate: Candidate


type ShareIds = Callable[[ResourceClaim, str, DeviceId], str]
"""A new lower-case UUID for a share of a device, by claim and request. kube-scheduler takes random ones."""


def derived_share_id(claim: ResourceClaim, request: str, device: DeviceId) -> str:
    """The same for the same claim, request and device."""
    return str(uuid5(NAMESPACE_OID, f"{claim.metadata.uid or claim.metadata.name}/{request}/{device}"))


def allocation_of(claim: ResourceClaim, chosen: Sequence[Chosen], site: Site, share_ids: ShareIds) -> Allocation:
    used = list(dict.fromkeys(item.wanted for item in chosen))
    before = [chosen[:place].count(item) for place, item in enumerate(chosen)]
    config = [*_class_configs(used, site), *_claim_configs(claim, used)]
    return Allocation(
        devices=DeviceAllocation(results=list(map(partial(_result, site, share_ids), chosen, before)), config=config),
        node_selector=_node_selector([item.candidate for item in chosen], site.node),
    )


def _result(site: Site, share_ids: ShareIds, chosen: Chosen, before: int) -> AllocatedDevice:
    """`before` is how many shares of the device the request has already."""
    wanted, candidate = chosen.wanted, chosen.candidate
    share_of = f"{wanted.name}#{before}" if before else str(wanted.name)
    ledger = site.untouched
    shared = ledger.shares(candidate)
    consumed = ledger.consumption(wanted, candidate) if shared else {}
    return AllocatedDevice(
        request=str(wanted.name),
        driver=candidate.id.driver,
        pool=candidate.id.pool,
        device=candidate.id.device,
        admin_access=True if wanted.admin_access else None,
        tolerations=(list(wanted.tolerations) or None) if site.behavior.copies_tolerations else None,
        binding_conditions=candidate.device.binding_conditions,
        binding_failure_conditions=candidate.device.binding_failure_conditions,
        share_id=share_ids(wanted.claim, share_of, candidate.id) if shared else None,
        consumed_capacity={name: str(quantity) for name, quantity in consumed.items()} or None,
    )


# -- configs


def _class_configs(used: Sequence[Wanted], site: Site) -> Iterator[AllocatedConfig]:
    """Each class's configs once, with all requests of that class, in the order of first use."""
    requests: dict[str, list[str]] = defaultdict(list)
    classes = {item.device_class.metadata.name: item.device_class for item in used}
    for wanted in used:
        requests[wanted.device_class.metadata.name].append(str(wanted.name))
    if site.behavior.empty_list_for_all and len(classes) == 1:
        requests.clear()
    for name, device_class in classes.items():
        for config in device_class.spec.config:
            yield AllocatedConfig(source="FromClass", requests=requests[name], opaque=config.opaque)


def _claim_configs(claim: ResourceClaim, used: Sequence[Wanted]) -> Iterator[AllocatedConfig]:
    """Those that apply. One that names several requests comes once for each of them, as upstream has it."""
    for config in claim.spec.devices.config:
        times = sum(wanted.name.covered_by(config.requests) for wanted in used) if config.requests else 1
        for _ in range(times):
            yield AllocatedConfig(source="FromClaim", requests=config.requests, opaque=config.opaque)


# -- where the devices can be used


def _node_selector(chosen: Sequence[Candidate], node: NodeView) -> dict[str, object] | None:
    """This node, or what all the devices demand; None for anywhere."""
    if any(_is_local(item) for item in chosen):
        only = {"key": "metadata.name", "operator": "In", "values": [node.name]}
        return {"nodeSelectorTerms": [{"matchFields": [only]}]}
    term: dict[str, list[object]] = {}
    for candidate in chosen:
        for terms in (_selector(candidate) or {}).get("nodeSelectorTerms") or ():
            for kind in ("matchExpressions", "matchFields"):
                _add_new(term.setdefault(kind, []), terms.get(kind) or ())
    term = {kind: requirements for kind, requirements in term.items() if requirements}
    return {"nodeSelectorTerms": [term]} if term else None


def _is_local(candidate: Candidate) -> bool:
    spec, device = candidate.slice.spec, candidate.device
    node_name = device.node_name if spec.per_device_node_selection else spec.node_name
    return node_name is not None or bool(device.binds_to_node)


def _selector(candidate: Candidate) -> Mapping[str, Any] | None:
    spec = candidate.slice.spec
    return candidate.device.node_selector if spec.per_device_node_selection else spec.node_selector


def _add_new(known: list[Any], requirements: Iterable[Mapping[str, Any]]) -> None:
    for requirement in requirements:
        if all(_identity(requirement) != _identity(other) for other in known):
            known.append(requirement)


def _identity(requirement: Mapping[str, Any]) -> tuple[object, ...]:
    return requirement.get("key"), requirement.get("operator"), frozenset(requirement.get("values") or ())
