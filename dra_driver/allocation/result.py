"""What was chosen for a claim, as its status has it: results, configs, node selector. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
    configs = [*_class_configs(used, site)]
    for config in claim.spec.devices.config:
        # One that names several requests comes once for each of them, as upstream has it.
        times = sum(wanted.name.covered_by(config.requests) for wanted in used) if config.requests else 1
        configs += [AllocatedConfig(source="FromClaim", requests=config.requests, opaque=config.opaque)] * times
    return Allocation(
        devices=DeviceAllocation(results=list(map(partial(_result, site, share_ids), chosen, before)), config=configs),
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


# -- where the devices can be used


def _node_selector(chosen: Sequence[Candidate], node: NodeView) -> dict[str, object] | None:
    """This node, or what all the devices demand; None for anywhere."""
    term: dict[str, dict[object, object]] = {}
    for candidate in chosen:
        spec, device = candidate.slice.spec, candidate.device
        place = device if spec.per_device_node_selection else spec
        if place.node_name is not None or device.binds_to_node:
            only = {"key": "metadata.name", "operator": "In", "values": [node.name]}
            return {"nodeSelectorTerms": [{"matchFields": [only]}]}
        for terms in (place.node_selector or {}).get("nodeSelectorTerms") or ():
            for kind in ("matchExpressions", "matchFields"):
                for item in terms.get(kind) or ():
                    identity = item.get("key"), item.get("operator"), frozenset(item.get("values") or ())
                    term.setdefault(kind, {}).setdefault(identity, item)
    every = {kind: list(term[kind].values()) for kind in ("matchExpressions", "matchFields") if kind in term}
    return {"nodeSelectorTerms": [every]} if every else None
