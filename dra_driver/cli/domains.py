"""`dractl get domains`: ComputeDomains, whether they are ready, why not, and the status of each of their nodes.

All of it is in their status, which the controller writes.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.conditions import Condition
from dra_driver.api.meta import COMPUTE_DOMAINS, JsonObject
from dra_driver.cli.session import ContextOption, KubeconfigOption, ask, listed
from dra_driver.domains.status import READY
from dra_driver.errors import InvalidInput, NotFound
from dra_driver.kube.client import Kube
from dra_driver.terminal import Row, Sheet, Shown, WideFormat, WideOutputOption, age_cell, messages, show

NameArgument = Annotated[str | None, typer.Argument(help="One domain; default: all.", show_default=False)]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", help="One namespace; default: all.", show_default=False)
]


def domains(
    name: NameArgument = None,
    output: WideOutputOption = WideFormat.TABLE,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """ComputeDomains: how many of their nodes are ready, why a domain is not, and what each node says.

    The second table has the nodes. With -o json or yaml each domain has its nodes.
    """
    compute_domains = _chosen(ask(kubeconfig, context, lambda kube: _read(kube, namespace)), name, namespace)
    show(domain_sheet(compute_domains, datetime.now(UTC)), output)
    nodes = node_sheet(compute_domains)
    if nodes.rows and output in (WideFormat.TABLE, WideFormat.WIDE):
        typer.echo()
        show(nodes, output)
    unseen = sum(ready_of(compute_domain) is None for compute_domain in compute_domains)
    if unseen:
        messages.print(
            f"{unseen} of them no controller has looked at yet; if that lasts, is feature gate ComputeDomains on?"
        )


async def _read(kube: Kube, namespace: str | None) -> list[JsonObject]:
    cluster_error = await listed(kube, COMPUTE_DOMAINS, namespace)
    if isinstance(cluster_error, NotFound):
        message = "this cluster does not have them; their definition comes with the driver's chart"
        raise InvalidInput(message, about=COMPUTE_DOMAINS.kind)
    if not isinstance(cluster_error, list):
        raise cluster_error
    return cluster_error


def _chosen(items: Iterable[JsonObject], name: str | None, namespace: str | None) -> list[ComputeDomain]:
    chosen = [
        compute_domain
        for compute_domain in map(ComputeDomain.of, items)
        if name in (None, compute_domain.metadata.name)
    ]
    if name is not None and not chosen:
        where = f" in namespace {namespace}" if namespace is not None else ""
        raise InvalidInput(f"there is none of this name{where}", about=f"{COMPUTE_DOMAINS.kind} {name}")
    return sorted(chosen, key=_key)


def _key(domain: ComputeDomain) -> tuple[str, str]:
    return domain.metadata.namespace or "", domain.metadata.name


def ready_of(domain: ComputeDomain) -> Condition | None:
    """None until the controller has looked at it."""
    return next((condition for condition in domain.status.conditions if condition.type == READY), None)


def domain_sheet(domains: Sequence[ComputeDomain], now: datetime) -> Sheet:
    """A row for each domain. Its nodes are in it for programs only."""
    return Sheet(
        [_domain_row(domain, now) for domain in domains],
        "No ComputeDomains.",
        keys={"DOMAIN": "name", "CHANNELS": "allocationMode", "AGE": "created"},
        wide=("CHANNELS",),
    )


def _domain_row(domain: ComputeDomain, now: datetime) -> Row:
    status, ready, channel = domain.status, ready_of(domain), domain.spec.channel
    return {
        "NAMESPACE": domain.metadata.namespace,
        "DOMAIN": domain.metadata.name,
        "STATUS": "Deleting" if domain.metadata.deletion_timestamp else status.status,
        "NODES": Shown(status.ready_nodes or "-", [node.to_wire() for node in status.nodes]),
        "REASON": ready.reason if ready is not None else None,
        "TEMPLATE": channel.resource_claim_template.name,
        "CHANNELS": channel.allocation_mode,
        "AGE": age_cell(domain.metadata.creation_timestamp, now),
        "MESSAGE": ready.message if ready is not None and ready.status != "True" else None,
    }


def node_sheet(domains: Sequence[ComputeDomain]) -> Sheet:
    """A row for each node of each domain, in the order of the status: by clique and index."""
    rows: list[Row] = [
        {
            "DOMAIN": "/".join(_key(domain)),
            "NODE": node.name,
            "CLIQUE": node.clique_id or None,
            "INDEX": node.index,
            "ADDRESS": node.ip_address or None,
            "STATUS": node.status,
            "MESSAGE": node.message,
        }
        for domain in domains
        for node in domain.status.nodes
    ]
    return Sheet(rows, "No nodes.")
