"""Who uses a domain where: read from allocated claims, which is all that makes a node join or leave."""

from dataclasses import dataclass

from dra_driver.api.resource import AllocatedConfig, AllocatedDevice, ResourceClaim
from dra_driver.domains.names import CHANNEL_CONFIG
from dra_driver.names import CONFIG_API_VERSION, ClaimRef, RequestName


@dataclass(frozen=True, slots=True, order=True)
class ChannelUse:
    """A claim that holds a channel of `node` for the domain with this UID. Devices of a node are in a pool of its name.

    `pods` are those the claim is reserved for, sorted; a named claim can have several, one that waits for none.
    """

    node: str
    domain_uid: str
    claim: ClaimRef
    pods: tuple[str, ...] = ()


def channel_uses(claim: ResourceClaim, driver: str) -> tuple[ChannelUse, ...]:
    """One for each node and domain, sorted; empty while the claim is not allocated, or holds no channel.

    The config that applies is the last that names the request, and those of the claim go before those of its class.
    What cannot be understood is nobody's use: its preparation is refused anyway.
    """
    allocation = claim.status.allocation
    if allocation is None:
        return ()
    ref = ClaimRef(claim.metadata.namespace or "", claim.metadata.name, claim.metadata.uid)
    pods = tuple(sorted(consumer.name for consumer in claim.status.reserved_for if consumer.resource == "pods"))
    found = set()
    for result in allocation.devices.results:
        uid = _domain_of(result, allocation.devices.config, driver) if result.driver == driver else None
        if uid is not None and not result.admin_access:
            found.add(ChannelUse(result.pool, uid, ref, pods))
    return tuple(sorted(found))


def _domain_of(result: AllocatedDevice, configs: list[AllocatedConfig], driver: str) -> str | None:
    request = RequestName.of(result.request)
    for source in ("FromClaim", "FromClass"):
        for config in reversed(configs):
            opaque = config.opaque
            if config.source != source or opaque is None or opaque.driver != driver:
                continue
            if not request.covered_by(config.requests):
                continue
            parameters = opaque.parameters
            if (parameters.get("apiVersion"), parameters.get("kind")) == (CONFIG_API_VERSION, CHANNEL_CONFIG):
                uid = parameters.get("domainID")
                return uid if isinstance(uid, str) and uid else None
    return None
