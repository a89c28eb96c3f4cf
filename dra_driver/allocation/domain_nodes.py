"""Which ComputeDomain a node is in by what claims hold of it, and so for which claims it is none. Pure.

The node's devices say it in their attribute `domain`, once the node plugin has seen the first claim. Whoever places
several pods one after the other must know it before.
"""

from collections.abc import Iterable, Mapping, Sequence

from dra_driver.api.resource import ResourceClaim
from dra_driver.domains.names import CHANNEL_CONFIG
from dra_driver.names import COMPUTE_DOMAIN_DRIVER

IN_ANOTHER = "in another ComputeDomain"


def domain_uid(claim: ResourceClaim) -> str | None:
    """Of the domain that the claim has a channel for, or will have."""
    for one in claim.spec.devices.config:
        opaque = one.opaque
        if opaque is not None and opaque.driver == COMPUTE_DOMAIN_DRIVER:
            uid = opaque.parameters.get("domainID")
            if opaque.parameters.get("kind") == CHANNEL_CONFIG and isinstance(uid, str):
                return uid
    return None


def domains_of_pools(claims: Iterable[ResourceClaim]) -> dict[str, str]:
    """UIDs of the domains that have allocated claims, by the name of the pool that the channels are in."""
    found: dict[str, str] = {}
    for claim in claims:
        if claim.status.allocation is not None and (uid := domain_uid(claim)) is not None:
            for result in claim.status.allocation.devices.results:
                if result.driver == COMPUTE_DOMAIN_DRIVER and not result.admin_access:
                    found[result.pool] = uid
    return found


def is_in_another(claims: Sequence[ResourceClaim], pools: Iterable[str], domains: Mapping[str, str]) -> bool:
    """Whether a node with these `pools` of channels would be in two domains, if one pod got these claims there.

    `domains` as `domains_of_pools` has them.
    """
    wanted = {uid for claim in claims if (uid := domain_uid(claim)) is not None}
    return bool(wanted) and len(wanted | {domains[pool] for pool in pools if pool in domains}) > 1
