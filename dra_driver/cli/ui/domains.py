"""ComputeDomains, and the racks that their nodes are in. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from dra_driver.api.computedomain import ComputeDomain, DomainNode
from dra_driver.cli.sheets import ready_of
from dra_driver.cli.top.board import NodeLine
from dra_driver.cli.ui.drawing import link, named, sign
from dra_driver.cli.ui.parts import Html, Part, Rows, element, part
from dra_driver.phrases import how_many


@dataclass(frozen=True, slots=True)
class Tray:
    """A node in its rack. `member` is what its domain says of it; None: no domain has it."""

    node: str
    line: NodeLine | None
    domain: str | None = None
    member: DomainNode | None = None


type Racks = Mapping[str, Sequence[Tray]]
"""Nodes that NVLink connects, by clique."""


def racks_of(lines: Mapping[str, NodeLine], domains: Sequence[ComputeDomain]) -> Racks:
    """All nodes with a clique, and those that a domain says are in one; in order of name."""
    members = {node.name: (_name(domain), node) for domain in domains for node in domain.status.nodes}
    cliques = {name: line.node.clique for name, line in lines.items() if line.node.clique is not None}
    cliques |= {name: node.clique_id for name, (_, node) in members.items() if node.clique_id}
    trays = [
        (clique, Tray(name, lines.get(name), *members.get(name, (None, None)))) for name, clique in cliques.items()
    ]
    ordered = sorted(trays, key=lambda pair: (pair[0], pair[1].node))
    return {clique: [tray for _, tray in group] for clique, group in groupby(ordered, key=lambda pair: pair[0])}


def _name(domain: ComputeDomain) -> str:
    return f"{domain.metadata.namespace}/{domain.metadata.name}"


def domain_parts(lines: Mapping[str, NodeLine], domains: Sequence[ComputeDomain]) -> list[Part | Rows]:
    racks = racks_of(lines, domains)
    domains = sorted(domains, key=_name)
    empty = "This cluster has no ComputeDomains." if not domains else how_many(len(domains), "ComputeDomain")
    none = "No node reports an NVLink clique, so there are no racks."
    return [
        part("text", "p", empty),
        Rows("domains", [_domain(domain) for domain in domains], "domains"),
        part("racks-head", "h2", "Racks"),
        part("racks-text", "p", "Nodes that NVLink connects are one rack." if racks else none),
        Rows("racks", [_rack(clique, trays) for clique, trays in racks.items()], "racks"),
    ]


def _domain(domain: ComputeDomain) -> Part:
    status, ready = domain.status, ready_of(domain)
    is_ready = status.status == "Ready"
    absent = max(domain.spec.num_nodes - len(status.nodes), 0)
    apart = [node for node in status.nodes if not node.clique_id]
    return part(
        f"domain-{_name(domain)}",
        "li",
        element("h2", _name(domain)),
        element("p", _ready_sign(is_ready), f" {status.status}, {status.ready_nodes or '0'} nodes ready"),
        element("p", ready.message, class_="warn") if ready is not None and not is_ready and ready.message else None,
        element("p", f"Waits for {how_many(absent, 'more node')}.", class_="warn") if absent else None,
        element("p", f"Without a clique: {named([node.name for node in apart])}", class_="soft") if apart else None,
        element("p", f"Racks: {named(sorted({node.clique_id for node in status.nodes if node.clique_id}))}"),
    )


def _ready_sign(ready: bool) -> Html:
    name = "ready" if ready else "waits"
    return element("span", "✓" if ready else "…", class_=f"sign {name}", aria_hidden="true")


def _rack(clique: str, trays: Sequence[Tray]) -> Part:
    content = (element("h3", clique), element("ol", *map(_tray, trays), class_="trays"))
    return part(f"rack-{clique}", "li", *content, class_="rack")


def _tray(tray: Tray) -> Html:
    member = tray.member
    state = "free" if member is None else "ready" if member.status == "Ready" else "waits"
    words = {"free": "no domain", "ready": "ready", "waits": "not ready"}[state]
    gpus = tray.line.node.gpus if tray.line is not None else ()
    return element(
        "li",
        element("strong", link(tray.node, "nodes", tray.node) if tray.line is not None else tray.node),
        element("span", *(sign(gpu.drawn_state) for gpu in gpus), class_="signs"),
        element("span", _ready_sign(state == "ready") if member is not None else None, f" {words}"),
        element("span", tray.domain, class_="soft") if tray.domain is not None else None,
        element("span", member.message, class_="warn") if member is not None and member.message else None,
        class_=f"tray {state}",
    )
