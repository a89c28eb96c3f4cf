"""What can be seen of a ComputeDomain, made in a line: for tests of what is decided about it."""

from collections.abc import Iterable, Mapping
from typing import Any

from dra_driver.api.computedomain import (
    ChannelSpec,
    ComputeDomain,
    ComputeDomainSpec,
    ComputeDomainStatus,
    DomainNode,
    TemplateName,
)
from dra_driver.api.meta import ObjectMeta
from dra_driver.domains.names import FINALIZER
from dra_driver.domains.observed import ChannelUse, ObjectState, ObservedDaemon, ObservedDomain, ObservedNode
from dra_driver.names import ClaimRef

UID, OTHER = "uid-of-train", "uid-of-serve"
RACK = "rack.0"
NOW = "2026-01-02T00:00:00Z"


def domain(
    *, num_nodes: int = 0, status: ComputeDomainStatus | None = None, deleting: bool = False, finalizer: bool = True
) -> ComputeDomain:
    metadata = ObjectMeta(
        name="train",
        namespace="team",
        uid=UID,
        generation=3,
        deletion_timestamp=NOW if deleting else None,
        finalizers=["example.com/other", FINALIZER] if finalizer else [],
    )
    channel = ChannelSpec(resource_claim_template=TemplateName(name="train-channel"))
    spec = ComputeDomainSpec(num_nodes=num_nodes, channel=channel)
    return ComputeDomain(metadata=metadata, spec=spec, status=status or ComputeDomainStatus())


def use(node: str, claim: str | None = None, *pods: str) -> ChannelUse:
    name = claim or f"claim-{node}"
    return ChannelUse(node, UID, ClaimRef("team", name, f"uid-of-{name}"), pods)


def node(name: str, label: str | None = None, clique: str = RACK, problem: str | None = None) -> ObservedNode:
    return ObservedNode(name, label=label, clique=clique, fabric_problem=problem)


def member(name: str, clique: str = RACK, problem: str | None = None) -> ObservedNode:
    return node(name, UID, clique, problem)


def daemon(name: str, ip: str | None = None, *, ready: bool = True, deleting: bool = False) -> ObservedDaemon:
    return ObservedDaemon(name, f"daemon-{name}", f"10.0.0.{name[-1]}" if ip is None else ip, ready, deleting)


def entry(name: str, index: int, clique: str = RACK) -> DomainNode:
    return DomainNode(name=name, index=index, clique_id=clique, status="Ready")


def known(*entries: DomainNode) -> ComputeDomainStatus:
    return ComputeDomainStatus(nodes=list(entries))


def observed(
    subject: ComputeDomain | None = None,
    *,
    uses: Iterable[ChannelUse] = (),
    nodes: Iterable[ObservedNode] = (),
    daemons: Iterable[ObservedDaemon] = (),
    standing: Mapping[str, ObjectState] | None = None,
) -> ObservedDomain:
    """All that we make stands, unless `standing` says otherwise of `template`, `daemon_template` or `daemon_set`."""
    objects: dict[str, Any] = {
        "template": ObjectState.OURS,
        "daemon_template": ObjectState.OURS,
        "daemon_set": ObjectState.OURS,
    }
    return ObservedDomain(
        subject or domain(),
        channel_uses=tuple(sorted(uses)),
        nodes={node.name: node for node in nodes},
        daemons={daemon.node: daemon for daemon in daemons},
        **{**objects, **(standing or {})},
    )
