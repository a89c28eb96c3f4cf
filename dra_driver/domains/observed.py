"""What a decision about one domain may use: who uses it on which node, its nodes, its objects and daemons."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dra_driver.api.computedomain import ComputeDomain
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


class ObjectState(StrEnum):
    """Of an object that we make."""

    MISSING = "missing"
    OURS = "ours"
    DELETING = "deleting"
    """Ours, and on its way out."""
    FOREIGN = "foreign"
    """Somebody else's, under the name that ours would have; it is never touched."""


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A node that claims of the domain are on, or that has the domain's label.

    `clique` is empty where NVLink does not leave the machine; `fabric_problem` says why its NVLink fabric cannot be
    used now, None when it can. `imex_ready` is what the node says of an IMEX daemon of its own; None: it does not.
    """

    name: str
    label: str | None = None
    """UID of the domain that the node is in."""
    clique: str = ""
    fabric_problem: str | None = None
    address: str = ""
    imex_ready: bool | None = None
    imex_problem: str | None = None
    """What keeps an IMEX daemon of a domain from starting there."""
    domain: str | None = None
    """Namespace and name of the domain that the node is in, with `/` between them; None when they are not known."""


@dataclass(frozen=True, slots=True)
class ObservedDaemon:
    """The newest daemon pod of a node. `ready` is kubelet's word; one that is deleted is not ready, but still there."""

    node: str
    pod: str
    ip: str = ""
    ready: bool = False
    deleting: bool = False
    problem: str | None = None
    """Why its container does not run, as kubelet says it."""


@dataclass(frozen=True, slots=True)
class ObservedDomain:
    """`nodes` and `daemons` are by node name. `channel_uses` are those of this domain's claims in its own namespace.

    A node that is named by a use but not in `nodes` is gone from the cluster.
    """

    domain: ComputeDomain
    template: ObjectState = ObjectState.MISSING
    daemon_template: ObjectState = ObjectState.MISSING
    daemon_set: ObjectState = ObjectState.MISSING
    channel_uses: tuple[ChannelUse, ...] = ()
    nodes: Mapping[str, ObservedNode] = field(default_factory=dict)
    daemons: Mapping[str, ObservedDaemon] = field(default_factory=dict)
    outdated: bool = False
    """Whether the DaemonSet would be made otherwise today: with another image, for instance."""
    unplaced: int = 0
    """Claims of its template that have waited for a node for a while."""

    @property
    def uid(self) -> str:
        return self.domain.metadata.uid

    @property
    def deleting(self) -> bool:
        return self.domain.metadata.deletion_timestamp is not None

    @property
    def wanted_nodes(self) -> tuple[str, ...]:
        """Nodes that pods of the domain are on, or are about to be; sorted."""
        return tuple(sorted({use.node for use in self.channel_uses}))
