"""What can be seen of one domain in the cluster: everything that decisions about it may look at."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.domains.demand import ChannelUse


class Standing(StrEnum):
    """Of an object that we make."""

    MISSING = "missing"
    OURS = "ours"
    DELETING = "deleting"
    """Ours, and on its way out."""
    FOREIGN = "foreign"
    """Somebody else's, under the name that ours would have; it is never touched."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
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
class DaemonSeen:
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
    template: Standing = Standing.MISSING
    daemon_template: Standing = Standing.MISSING
    daemon_set: Standing = Standing.MISSING
    channel_uses: tuple[ChannelUse, ...] = ()
    nodes: Mapping[str, NodeSeen] = field(default_factory=dict)
    daemons: Mapping[str, DaemonSeen] = field(default_factory=dict)
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
