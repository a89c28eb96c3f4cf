"""ComputeDomains: which one a node is in, for which claims it is none, and the template that stands for a domain.

The node's devices have the attribute `domain` once the node plugin has prepared the first claim. A search that places
several pods, one after the other, must know it before. A domain in files counts as the ResourceClaimTemplate that its
controller will make, so a pod that names it can be placed and explained. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from uuid import NAMESPACE_URL, uuid5

from dra_driver.allocation.snapshot import PublishedSlice
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.resource import Device, ResourceClaim, ResourceClaimTemplate
from dra_driver.domains.names import CHANNEL_CONFIG
from dra_driver.domains.objects import workload_template
from dra_driver.names import COMPUTE_DOMAIN_DRIVER


def domain_uid(claim: ResourceClaim) -> str | None:
    """Of the domain that the claim has a channel for, or will have."""
    for claim_config in claim.spec.devices.config:
        opaque = claim_config.opaque
        if opaque is not None and opaque.driver == COMPUTE_DOMAIN_DRIVER:
            uid = opaque.parameters.get("domainID")
            if opaque.parameters.get("kind") == CHANNEL_CONFIG and isinstance(uid, str):
                return uid
    return None


def domains_of_pools(claims: Iterable[ResourceClaim]) -> dict[str, str]:
    """UIDs of the domains that have allocated claims, by the name of the pool that the channels are in."""
    uids: dict[str, str] = {}
    for claim in claims:
        pools = [result.pool for result in claim.results_of(COMPUTE_DOMAIN_DRIVER) if not result.admin_access]
        if pools and (uid := domain_uid(claim)) is not None:
            uids |= dict.fromkeys(pools, uid)
    return uids


def with_uid(domain: ComputeDomain) -> ComputeDomain:
    """As it is, or with a UID of its own when it has none: no API server has seen it, and its name stands for it."""
    metadata = domain.metadata
    namespace = metadata.namespace or "default"
    uid = metadata.uid or str(uuid5(NAMESPACE_URL, f"computedomain:{namespace}/{metadata.name}"))
    return domain.model_copy(update={"metadata": metadata.model_copy(update={"namespace": namespace, "uid": uid})})


def templates_to_be(
    domains: Mapping[tuple[str, str], ComputeDomain], slices: Iterable[PublishedSlice]
) -> dict[tuple[str, str], ResourceClaimTemplate]:
    """What the controller will make of these domains, all `with_uid`; `slices` show whether nodes have more than one
    channel."""
    several = any(channel_number(device) > 0 for _, device in channels(slices))
    return {
        (namespace, domain.spec.channel.resource_claim_template.name): ResourceClaimTemplate.of(
            workload_template(domain, several_channels=several)
        )
        for (namespace, _), domain in domains.items()
    }


def channels(slices: Iterable[PublishedSlice]) -> Iterator[tuple[str, Device]]:
    """Node and channel device. An older generation of a pool may still be among them."""
    for slice_ in slices:
        if slice_.pool[0] == COMPUTE_DOMAIN_DRIVER:
            for device in slice_.spec.devices or ():
                if device.text("type") == "channel":
                    yield slice_.spec.node_name or slice_.spec.pool.name, device


def channel_number(device: Device) -> int:
    value = device.attributes.get("id")
    return value.int_ or 0 if value is not None else 0
