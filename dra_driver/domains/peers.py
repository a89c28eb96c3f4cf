"""The peers of the IMEX daemon on one node, from the domain's status. The peers of a clique have stable names,
`compute-domain-daemon-0003`, in a list that is the same on all nodes and never changes; a hosts file maps each name to
its current address. When an address changes, the supervisor makes the daemon resolve the names again, and its
connections to all others stay. Drivers before 570.158.01 cannot do that: their list contains addresses, and the daemon
is restarted when it changes. Source: NVIDIA's own driver.
"""

from dataclasses import dataclass
from enum import StrEnum

from dra_driver.api.computedomain import ComputeDomainStatus
from dra_driver.domains.names import daemon_host
from dra_driver.quantity import Version, padded_version

_NAMES_SINCE = Version(570, 158, 1)

_BEGIN = "# ComputeDomain: begin"
_END = "# ComputeDomain: end"


@dataclass(frozen=True, slots=True)
class Peers:
    """The members of one clique. `addresses` are by index, sorted, without members that have no address. `clique` is
    empty on a node whose NVLink does not leave the machine: it has no peers and needs no daemon.
    """

    clique: str
    index: int
    addresses: tuple[tuple[int, str], ...]


class PeerUpdate(StrEnum):
    """The action for a running daemon after its peers changed."""

    NOTHING = "nothing"
    LOOK_UP = "look up"
    RESTART = "restart"


def peers_of(status: ComputeDomainStatus, node: str, address: str) -> Peers | None:
    """None until the status has `node` with this `address`: a daemon that its peers cannot find must not report that it
    is ready."""
    own = next((item for item in status.nodes if (item.name, item.ip_address) == (node, address)), None)
    if own is None:
        return None
    if not own.clique_id:
        return Peers("", own.index, ((own.index, address),))
    members = sorted((item.index, item.ip_address) for item in status.nodes if item.clique_id == own.clique_id)
    return Peers(own.clique_id, own.index, tuple((index, ip) for index, ip in members if ip))


def knows_names(driver_version: str | None) -> bool:
    """Whether the driver's IMEX daemon can resolve names again on request. An unknown version counts as new."""
    version = padded_version(driver_version) if driver_version is not None else None
    return version is None or not version < _NAMES_SINCE


def node_list(peers: Peers, max_nodes: int, *, by_name: bool) -> str:
    """The daemon's file of nodes, one per line: all possible names, or the current addresses."""
    lines = [daemon_host(index) for index in range(max_nodes)] if by_name else [ip for _, ip in peers.addresses]
    return "".join(f"{line}\n" for line in lines)


def hosts(before: str, peers: Peers) -> str:
    """The hosts file `before` with the current peers' lines; other lines stay unchanged."""
    other_lines: list[str] = []
    inside = False
    for line in before.splitlines():
        if line == _BEGIN:
            inside = True
        elif line == _END:
            inside = False
        elif not inside:
            other_lines.append(line)
    own = [f"{ip}\t{daemon_host(index)}" for index, ip in peers.addresses]
    return "".join(f"{line}\n" for line in (*other_lines, _BEGIN, *own, _END))


def step_after(before: Peers | None, now: Peers, *, by_name: bool) -> PeerUpdate:
    """`before` is None if the daemon does not run yet. A changed index requires a restart."""
    if before is None or (before.clique, before.index) != (now.clique, now.index):
        return PeerUpdate.RESTART
    if before.addresses == now.addresses:
        return PeerUpdate.NOTHING
    return PeerUpdate.LOOK_UP if by_name else PeerUpdate.RESTART
