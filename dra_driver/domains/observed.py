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
    """A claim that holds a channel of `node` for the domain with this UID. The pool of a node's devices has the node's
    name. `pods` are those for which the claim is reserved, sorted; a named claim can have several, an unused claim
    none.
    """

    node: str
    domain_uid: str
    claim: ClaimRef
    pods: tuple[str, ...]


def channel_uses(claim: ResourceClaim, driver: str) -> tuple[ChannelUse, ...]:
    """One use for each node and domain, sorted; empty if the claim is not allocated or holds no channel. The last
    config for the request applies, and configs of the claim override those of its class. Invalid configs are ignored,
    because their preparation is refused.
    """
    allocation = claim.status.allocation
    if allocation is None:
        return ()
    pods = tuple(sorted(pod.name for pod in claim.pods))
    results = set()
    for result in claim.results_of(driver):
        uid = _domain_of(result, allocation.devices.config, driver)
        if uid is not None and not result.admin_access:
            results.add(ChannelUse(result.pool, uid, claim.ref, pods))
    return tuple(sorted(results))


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
    """State of an object that the driver creates."""

    MISSING = "missing"
    OURS = "ours"
    DELETING = "deleting"
    """The driver's, being deleted."""
    FOREIGN = "foreign"
    """Another owner's object under the driver's name; the driver never changes it."""


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A node with claims of the domain, or with the domain's label. `clique` is empty if NVLink does not leave the
    machine; `fabric_problem` is why its NVLink fabric cannot be used now, or None. `imex_ready` is the state of the
    node's own IMEX daemon; None if the node does not report it.
    """

    name: str
    label: str | None = None
    """UID of the domain that the node is in."""
    clique: str = ""
    fabric_problem: str | None = None
    address: str = ""
    imex_ready: bool | None = None
    imex_problem: str | None = None
    """Why an IMEX daemon of a domain cannot start there."""
    domain: str | None = None
    """`namespace/name` of the domain that the node is in; None if unknown."""


@dataclass(frozen=True, slots=True)
class ObservedDaemon:
    """The newest daemon pod of a node. `ready` comes from the kubelet; a pod that is being deleted is not ready, but
    still exists."""

    node: str
    pod: str
    ip: str = ""
    ready: bool = False
    deleting: bool = False
    problem: str | None = None
    """Why its container does not run, from the kubelet."""


@dataclass(frozen=True, slots=True)
class ObservedDomain:
    """`nodes` and `daemons` are by node name. `channel_uses` are those of this domain's claims in its own namespace.

    A node that a use names but that is not in `nodes` has left the cluster.
    """

    domain: ComputeDomain
    template: ObjectState = ObjectState.MISSING
    daemon_template: ObjectState = ObjectState.MISSING
    daemon_set: ObjectState = ObjectState.MISSING
    channel_uses: tuple[ChannelUse, ...] = ()
    nodes: Mapping[str, ObservedNode] = field(default_factory=dict)
    daemons: Mapping[str, ObservedDaemon] = field(default_factory=dict)
    outdated: bool = False
    """Whether the DaemonSet differs from the current settings, for example in the image."""
    unplaced: int = 0
    """Claims of its template that have waited for a node for some time."""

    @property
    def uid(self) -> str:
        return self.domain.metadata.uid

    @property
    def deleting(self) -> bool:
        return self.domain.metadata.deletion_timestamp is not None

    @property
    def wanted_nodes(self) -> tuple[str, ...]:
        """Nodes that have pods of the domain, or will have them soon; sorted."""
        return tuple(sorted({use.node for use in self.channel_uses}))
