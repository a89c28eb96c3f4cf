"""How GPUs, nodes, ComputeDomains and racks look in a page. Pure.

A state has a word and a sign beside its color, and each bar has a text for screen readers. Colors of claims only help
the eye to see what belongs together: the names of the claims are there, too.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from urllib.parse import quote
from zlib import crc32

from dra_driver.api.computedomain import ComputeDomain, DomainNode
from dra_driver.cli.tables.bars import GpuCell, Mark
from dra_driver.cli.tables.seen import KnownGpus, NodeOverview
from dra_driver.cli.tables.sheets import ready_of
from dra_driver.cli.tables.usage import PublishedGpu, short_product
from dra_driver.cli.ui.parts import EMPTY, Html, Part, Rows, element, joined, part
from dra_driver.grouping import grouped
from dra_driver.phrases import and_more, how_many
from dra_driver.terminal import gibibytes

SIGNS: Mapping[str, str] = {
    "free": "○", "in use": "●", "partly": "◐", "tainted": "▲", "closed": "–", "unhealthy": "✕",
}  # fmt: skip
"""Of each state of a GPU, in words as everywhere else."""
_MEANINGS: Mapping[str, str] = {
    "partly": "partly in use",
    "tainted": "no new claims, but not unhealthy",
    "closed": "no new claims",
}
_MARKS = {Mark.FREE: "free", Mark.CLOSED: "blocked", Mark.TAINTED: "tainted", Mark.SEVERAL: "several claims"}
_COLORS = 10
"""Of claims, in ui.css."""
_MOST_PROBLEMS = 3
_ENDS = re.compile("(?<=[:/=,])(?! )")
_BREAK = element("wbr")


def address(*path: str) -> str:
    """Relative to the first page: pages have a `base`, so that they also work below the path of a proxy."""
    return "/".join(quote(name, safe="") for name in path)


def link(text: str, *path: str) -> Html:
    return element("a", text, href=address(*path))


def gpu_address(gpu: PublishedGpu) -> str:
    return address("gpus", gpu.uuid if gpu.uuid != "-" else gpu.name)


def sign(state: str) -> Html:
    return element("span", SIGNS[state], class_=f"sign {_class(state)}", aria_hidden="true")


def _class(state: str) -> str:
    return state.replace(" ", "-")


def breakable(text: str) -> Html:
    """Lines of a narrow column end between the parts of a taint or of a path rather than inside them."""
    return joined((part for part in _ENDS.split(text)), _BREAK)


# -- GPUs


def bar(cells: Sequence[GpuCell]) -> Html:
    """A GPU's memory slices, and who has them."""
    runs = [(cell, len(list(run))) for cell, run in groupby(cells)]
    words = ", ".join(f"{size} {_MARKS[cell] if isinstance(cell, Mark) else cell}" for cell, size in runs)
    drawn = (element("i", class_=f"{_cell_class(cell)} s{size}") for cell, size in runs)
    return element("span", *drawn, class_="cells", role="img", aria_label=f"memory slices: {words}")


def _cell_class(cell: GpuCell) -> str:
    return _class(_MARKS[cell]) if isinstance(cell, Mark) else f"c{crc32(cell.encode()) % _COLORS}"


def card(gpu: PublishedGpu, *, links: bool) -> Html:
    state, claims = gpu.drawn_state, gpu.claims
    title = "\n".join((f"{gpu.name}: {state}", *claims, *gpu.taints))
    content = (
        bar(gpu.cells),
        element("b", ", ".join(claim.rpartition("/")[2] for claim in claims) or state),
        element("small", sign(state), element("span", f" {state}" if claims else f" {gibibytes(gpu.memory_bytes())}")),
        element("small", gpu.name),
    )
    inner = element("a", *content, href=gpu_address(gpu)) if links else element("div", *content)
    return element("li", inner, class_=f"gpu {_class(state)}", title=title)


def cards(gpus: Iterable[PublishedGpu], *, links: bool) -> Html:
    return element("ul", *(card(gpu, links=links) for gpu in gpus), class_="gpus")


def legend() -> Html:
    items = (element("li", sign(state), f" {_MEANINGS.get(state, state)}") for state in SIGNS)
    return element("ul", *items, id="legend", class_="legend", aria_label="Signs of GPUs")


# -- nodes


def node_row(node: NodeOverview, *, links: bool) -> Part:
    more = len(node.problems) - _MOST_PROBLEMS
    about = [
        element("h2", link(node.name, "nodes", node.name) if links else node.name),
        *(element("p", f"{count} × {product}", class_="soft") for product, count in products_of(node).items()),
        element("p", f"{node.free} of {how_many(len(node.gpus), 'GPU')} free"),
        element("p", room, class_="soft") if (room := room_in(node)) else None,
        *(element("p", breakable(problem), class_="bad") for problem in node.problems[:_MOST_PROBLEMS]),
        element("p", f"and {how_many(more, 'more problem')}", class_="bad") if more > 0 else None,
    ]
    return part(f"node-{node.name}", "li", element("div", *about), cards(node.gpus, links=links), class_="node")


def products_of(node: NodeOverview) -> Mapping[str, int]:
    counts = Counter(short_product(gpu.whole.attribute("productName")) for gpu in node.gpus)
    return counts or {short_product(product): node.count for product in node.products}


def room_in(node: NodeOverview) -> str:
    """The largest requests that still fit; empty if nothing does."""
    largest = node.headroom.largest if node.headroom is not None else None
    if largest is None:
        return ""
    ways = [
        how_many(largest.whole_gpus, "whole GPU") if largest.whole_gpus else None,
        f"MIG {largest.mig_profile}" if largest.mig_profile else None,
        f"a share of {gibibytes(largest.memory_bytes)}"
        if largest.memory_bytes and not largest.whole_gpus and not largest.mig_profile
        else None,
    ]
    texts = [way for way in ways if way]
    return f"room for {' or '.join(texts)}" if texts else ""


class NodeRows:
    """Rows of nodes, drawn again for nodes that changed only: a board makes a new value for each of those."""

    def __init__(self) -> None:
        self._drawn: dict[str, tuple[NodeOverview, Part]] = {}

    def keep(self, nodes: Mapping[str, NodeOverview]) -> None:
        """Forgets nodes that have left."""
        if len(self._drawn) > len(nodes):
            self._drawn = {name: drawn for name, drawn in self._drawn.items() if name in nodes}

    def row(self, node: NodeOverview) -> Part:
        before = self._drawn.get(node.name)
        if before is None or before[0] is not node:
            before = self._drawn[node.name] = (node, node_row(node, links=True))
        return before[1]


# -- the cluster


def summary(known: KnownGpus) -> Html:
    texts: list[str] = [f"{how_many(known.gpus, 'GPU')} on {how_many(len(known.nodes), 'node')}"]
    states = [state for state in ("free", "partly", "in use") if known.states[state] or state == "free"]
    texts += [element("span", sign(state), f" {known.states[state]} {state}") for state in states]
    return joined(texts, " · ")


def alerts(known: KnownGpus, *, links: bool) -> Html:
    """What needs attention: unhealthy GPUs, pods that wait, and what cannot be read."""
    texts: list[str] = []
    if known.unhealthy:
        texts.append(element("strong", sign("unhealthy"), f" {known.unhealthy} unhealthy", class_="bad"))
    if known.waiting:
        waiting = f"{how_many(len(known.waiting), 'pod')} waiting"
        texts.append(element("strong", link(waiting, "waiting") if links else waiting, class_="warn"))
    return joined([*texts, *known.notes], " · ")


def proportions(known: KnownGpus) -> Html:
    """A bar of the whole cluster. `alerts` and `summary` say the same in words."""
    gpus: Counter[str] = sum((node.drawn_states for node in known.nodes.values()), Counter())
    order = [state for state in ("in use", "partly", "free", "closed", "tainted", "unhealthy") if gpus[state]]
    if not order:
        return EMPTY
    starts = {state: sum(gpus[before] for before in order[:place]) for place, state in enumerate(order)}
    rectangles = (
        element("rect", x=str(starts[state]), width=str(gpus[state]), height="1", class_=_class(state))
        for state in order
    )
    view = f"0 0 {gpus.total()} 1"
    return element("svg", *rectangles, viewBox=view, preserveAspectRatio="none", class_="whole", aria_hidden="true")


# -- ComputeDomains, and the racks that their nodes are in


@dataclass(frozen=True, slots=True)
class Tray:
    """A node in its rack; `node` None: it publishes no GPUs. `member` is what its domain says of it; None: no domain
    has it."""

    name: str
    node: NodeOverview | None
    domain: str | None = None
    member: DomainNode | None = None


type Racks = Mapping[str, Sequence[Tray]]
"""Nodes that NVLink connects, by clique."""


def racks_of(nodes: Mapping[str, NodeOverview], domains: Sequence[ComputeDomain]) -> Racks:
    """All nodes with a clique, and those that a domain says are in one; in order of name."""
    members = {node.name: (str(domain), node) for domain in domains for node in domain.status.nodes}
    cliques = {name: node.clique for name, node in nodes.items() if node.clique is not None}
    cliques |= {name: node.clique_id for name, (_, node) in members.items() if node.clique_id}
    names = sorted(cliques, key=lambda name: (cliques[name], name))
    trays = [Tray(name, nodes.get(name), *members.get(name, (None, None))) for name in names]
    return grouped(trays, lambda tray: cliques[tray.name])


def domain_parts(nodes: Mapping[str, NodeOverview], domains: Sequence[ComputeDomain]) -> list[Part | Rows]:
    racks = racks_of(nodes, domains)
    domains = sorted(domains, key=str)
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
        f"domain-{domain}",
        "li",
        element("h2", str(domain)),
        element("p", _ready_sign(is_ready), f" {status.status}, {status.ready_nodes or '0'} nodes ready"),
        element("p", ready.message, class_="warn") if ready is not None and not is_ready and ready.message else None,
        element("p", f"Waits for {how_many(absent, 'more node')}.", class_="warn") if absent else None,
        element("p", f"Without a clique: {_named([node.name for node in apart])}", class_="soft") if apart else None,
        element("p", f"Racks: {_named(sorted({node.clique_id for node in status.nodes if node.clique_id}))}"),
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
    gpus = tray.node.gpus if tray.node is not None else ()
    return element(
        "li",
        element("strong", link(tray.name, "nodes", tray.name) if tray.node is not None else tray.name),
        element("span", *(sign(gpu.drawn_state) for gpu in gpus), class_="signs"),
        element("span", _ready_sign(state == "ready") if member is not None else None, f" {words}"),
        element("span", tray.domain, class_="soft") if tray.domain is not None else None,
        element("span", member.message, class_="warn") if member is not None and member.message else None,
        class_=f"tray {state}",
    )


def _named(names: Sequence[str]) -> str:
    return and_more(names, 4) if names else "-"
