"""Which pages there are, what each of them shows, and the documents that browsers get. Pure.

`/` is the map. The others are `/nodes/NAME`, `/gpus/UUID` (or the name), `/waiting`, `/waiting/NAMESPACE/POD` and
`/domains`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from urllib.parse import urlencode

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.core import Event, Pod, moment
from dra_driver.api.inventory import GpuFacts, NodeInventory
from dra_driver.cli.tables.seen import KnownGpus, NodeOverview
from dra_driver.cli.tables.usage import PublishedGpu, claim_rows, short_product, why_waiting
from dra_driver.cli.top.screen import Sort, sorted_nodes
from dra_driver.cli.ui import drawing
from dra_driver.cli.ui.drawing import NodeRows, domain_parts, link, sign
from dra_driver.cli.ui.history import GpuChange
from dra_driver.cli.ui.parts import EMPTY, Html, HtmlPage, Part, Rows, element, joined, listing, part, table
from dra_driver.phrases import how_many
from dra_driver.terminal import cell_text, gibibytes

MOST_NODES = 250
"""On one page of the map."""
_COMPACT_FROM = 40
"""Nodes from which on the map draws a GPU as a sign only."""
_MOST_EVENTS = 50
MOST_EXPLAINED = 20
"""Waiting pods whose reason the list has; the others have that of the scheduler, and a page."""


class Place(StrEnum):
    MAP = "map"
    NODE = "nodes"
    GPU = "gpus"
    WAITING = "waiting"
    POD = "pod"
    DOMAINS = "domains"


SORTS: Mapping[str, Sort] = {"problems": Sort.PROBLEMS, "name": Sort.NAME, "free": Sort.FREE}


@dataclass(frozen=True, slots=True)
class PageAddress:
    """A page, and how to draw the map. `start` is the number of its first node."""

    place: Place
    name: str = ""
    """Of the node, the GPU or `namespace/pod`."""
    filter: str = ""
    sort: str = "problems"
    start: int = 0
    compact: bool | None = None
    """None: as the number of nodes suggests."""

    @property
    def depth(self) -> int:
        """How many folders below the first page it is."""
        return {Place.NODE: 1, Place.GPU: 1, Place.POD: 2}.get(self.place, 0)

    @property
    def path(self) -> str:
        place = Place.WAITING if self.place is Place.POD else self.place
        return drawing.address(place, *self.name.split("/")) if self.depth else ""

    @classmethod
    def of(cls, path: str, query: Mapping[str, str]) -> "PageAddress | None":
        """None: there is no such page. What a query says wrongly is left out."""
        match path.strip("/").split("/"):
            case [""]:
                place, name = Place.MAP, ""
            case [("nodes" | "gpus") as kind, name]:
                place = Place(kind)
            case ["waiting"]:
                place, name = Place.WAITING, ""
            case ["waiting", namespace, pod]:
                place, name = Place.POD, f"{namespace}/{pod}"
            case ["domains"]:
                place, name = Place.DOMAINS, ""
            case _:
                return None
        sort, start = query.get("sort", ""), query.get("start", "")
        return cls(
            place,
            name,
            query.get("filter", "")[:200],
            sort if sort in SORTS else "problems",
            int(start) if start.isdecimal() and len(start) < 8 else 0,
            {"signs": True, "cards": False}.get(query.get("view", "")),
        )


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """What is read for the page of a node or GPU only. `notes` say what could not be read."""

    inventory: NodeInventory | None = None
    events: Sequence[Event] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class WaitingReasons:
    """Why a pod waits: in a line, and in full. `full` empty: the question is not answered yet."""

    short: str
    full: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PageData:
    """All that pages show. `explained` is by `namespace/pod`."""

    known: KnownGpus
    domains: Sequence[ComputeDomain] = ()
    detail: NodeDetail = field(default_factory=NodeDetail)
    explained: Mapping[str, WaitingReasons] = field(default_factory=dict)
    changes: Sequence[GpuChange] = ()
    """Of the page's node or GPU, newest first."""
    since: datetime | None = None
    """Since when all changes are known."""


def page_of(address: PageAddress, seen: PageData, rows: NodeRows) -> HtmlPage:
    match address.place:
        case Place.MAP:
            return _map(address, seen.known, rows)
        case Place.NODE:
            return _node(address.name, seen)
        case Place.GPU:
            return _gpu(address.name, seen)
        case Place.WAITING:
            return _waiting(seen)
        case Place.POD:
            return _pod(address.name, seen)
        case Place.DOMAINS:
            return _page("ComputeDomains", seen.known, *domain_parts(seen.known.nodes, seen.domains))


def node_of(address: PageAddress, known: KnownGpus) -> str | None:
    """The node whose detail the page shows."""
    if address.place is Place.NODE:
        return address.name
    node = gpu_named(address.name, known)[0] if address.place is Place.GPU else None
    return node.name if node is not None else None


def gpu_named(name: str, known: KnownGpus) -> tuple[NodeOverview | None, PublishedGpu | None]:
    for node in known.nodes.values():
        for gpu in node.gpus:
            if name in (gpu.uuid, gpu.name):
                return node, gpu
    return None, None


def _page(title: str, known: KnownGpus, *parts: Part | Rows, status: int = 200) -> HtmlPage:
    """With the heading, and what needs attention in the cluster."""
    alerts = part("alerts", "p", drawing.alerts(known, links=True), role="status")
    return HtmlPage(title, [part("head", "h1", title), alerts, *parts], status)


def _gone(title: str, known: KnownGpus, text: str) -> HtmlPage:
    return _page(title, known, part("gone", "p", text), status=404)


def _section(title: str, *content: str) -> Part:
    return part(title.lower().replace(" ", "-"), "section", element("h2", title), *content)


# -- the map


def _map(address: PageAddress, known: KnownGpus, rows: NodeRows) -> HtmlPage:
    nodes = sorted_nodes(known, address.filter, SORTS[address.sort])
    rows.keep(known.nodes)
    # There may be fewer nodes than when this address was made.
    address = replace(address, start=min(address.start, max(len(nodes) - 1, 0) // MOST_NODES * MOST_NODES))
    shown = nodes[address.start : address.start + MOST_NODES]
    compact = address.compact if address.compact is not None else len(shown) > _COMPACT_FROM
    return _page(
        "GPUs",
        known,
        part("summary", "p", drawing.summary(known)),
        part("whole", "div", drawing.proportions(known)),
        Part("legend", drawing.legend()),
        part("found", "p", *_matching(address, len(nodes), len(known.nodes))),
        Rows("nodes", [rows.row(node) for node in shown], f"nodes{' compact' if compact else ''}"),
        part("more", "p", *_turning(address, len(nodes))),
    )


def _matching(address: PageAddress, count: int, every: int) -> list[str]:
    if not every:
        return ["No node has reported GPUs yet."]
    texts = [f"{count} of {how_many(every, 'node')} match {address.filter!r}."] if address.filter else []
    if count > MOST_NODES:
        last = min(address.start + MOST_NODES, count)
        texts.append(f" Nodes {address.start + 1} to {last} of {count}.")
    return texts


def _turning(address: PageAddress, count: int) -> list[str]:
    links: list[str] = []
    view = {} if address.compact is None else {"view": "signs" if address.compact else "cards"}
    for text, start in (("Nodes before", address.start - MOST_NODES), ("More nodes", address.start + MOST_NODES)):
        if -MOST_NODES < start < count:
            query = {"filter": address.filter, "sort": address.sort, "start": max(start, 0), **view}
            links += [element("a", text, href=f"?{urlencode(query)}"), " "]
    return links


# -- nodes


def _node(name: str, seen: PageData) -> HtmlPage:
    known, node, detail = seen.known, seen.known.nodes.get(name), seen.detail
    title = f"Node {name}"
    if node is None:
        return _gone(title, known, f"Node {name} has no GPUs, or the cluster has no node of this name.")
    facts = detail.inventory.spec.gpus if detail.inventory is not None else ()
    return _page(
        title,
        known,
        part("about", "dl", *_terms(_about_node(node))),
        part("problems", "div", _problems(node.problems)),
        _section("GPUs", drawing.cards(node.gpus, links=True)),
        _section("Claims", _claims(node.gpus)),
        _section("Health", *_health(facts, detail.notes)),
        _section("History", _changes(seen), _events(detail.events)),
    )


def _about_node(node: NodeOverview) -> dict[str, str]:
    products = ", ".join(f"{count} × {product}" for product, count in drawing.products_of(node).items())
    return {
        "Hardware": products or "-",
        "Free": f"{node.free} of {how_many(len(node.gpus), 'GPU')}",
        "Fits": drawing.room_in(node).removeprefix("room for ") or "nothing more",
        "Unhealthy": str(node.unhealthy),
        "NVIDIA driver": node.driver or "-",
        "NVLink clique": node.clique or "-",
    }


def _terms(terms: Mapping[str, str]) -> Iterable[Html]:
    for term, text in terms.items():
        yield element("div", element("dt", term), element("dd", text))


def _problems(problems: Sequence[str]) -> Html:
    return listing(map(drawing.breakable, problems), class_="bad", aria_label="Problems") if problems else EMPTY


def _claims(gpus: Iterable[PublishedGpu]) -> Html:
    rows = [[str(cell_text(cell)) for cell in row.values()] for row in claim_rows(gpus).values()]
    return table("Who has what", ("Claim", "Devices", "Takes", "Pods"), rows) if rows else element("p", "None.")


def _health(gpus: Iterable[GpuFacts], notes: Sequence[str]) -> list[Html]:
    """What is wrong now, the newest first. A note says why it is not known."""
    conditions = [(gpu.name, condition) for gpu in gpus for condition in gpu.health.conditions]
    conditions.sort(key=lambda pair: pair[1].since, reverse=True)
    rows = [
        (name, f"{item.type} {item.value or ''}".rstrip(), item.severity, _time(item.since), item.message)
        for name, item in conditions
    ]
    texts = [element("p", note, class_="soft") for note in notes]
    if rows:
        return [*texts, table("What the node reports", ("GPU", "Fault", "Severity", "Since", "Message"), rows)]
    return texts or [element("p", "The node reports no fault.")]


def _changes(seen: PageData) -> Html:
    rows = [
        (joined(["before " if change.earlier else None, _time(change.seen)]), change.gpu, change.text)
        for change in seen.changes
    ]
    if rows:
        return table("Changes that this server saw, newest first", ("Time", "GPU", "What"), rows)
    return element("p", "This server has seen no change since ", _time(seen.since), ".")


def _events(events: Sequence[Event]) -> Html:
    """The API server keeps Events for an hour, unless it is set otherwise."""
    dated = sorted(events, key=lambda event: str(event.last or ""), reverse=True)[:_MOST_EVENTS]
    rows = [
        (
            _time(event.last),
            event.reason,
            event.type,
            event.message,
            str(max(event.series.count, 1) if event.series else 1),
        )
        for event in dated
    ]
    if not rows:
        return element("p", "No Events of this node. The API server keeps them for an hour by default.")
    return table("Events, newest first", ("Last", "Reason", "Type", "Message", "Times"), rows)


def _time(given: datetime | str | None) -> Html:
    time = given if isinstance(given, datetime) else moment(given)
    if time is None:
        return element("span", "-")
    return element("time", f"{time:%Y-%m-%d %H:%M:%S}", datetime=time.isoformat())


# -- GPUs


def _gpu(name: str, seen: PageData) -> HtmlPage:
    known = seen.known
    node, gpu = gpu_named(name, known)
    title = f"GPU {gpu.name if gpu is not None else name}"
    if node is None or gpu is None:
        return _gone(title, known, f"No node publishes GPU {name}: it may be lost, or its node may have left.")
    detail, facts = seen.detail, seen.detail.inventory
    own = [item for item in facts.spec.gpus if item.uuid == gpu.uuid] if facts is not None else []
    left = f"A claim can still have: {', '.join(gpu.left()) or 'nothing'}."
    events = [event for event in detail.events if gpu.name in event.message or gpu.uuid in event.message]
    return _page(
        title,
        known,
        part("about", "dl", *_terms(_about_gpu(node, gpu, own))),
        part("problems", "div", _problems(gpu.taints)),
        _section("Memory slices", drawing.bar(gpu.cells), element("p", left)),
        _section("Claims", _claims([gpu])),
        _section("Health", *_health(own, detail.notes), _taints(gpu)),
        _section("History", _changes(seen), _events(events)),
    )


def _about_gpu(node: NodeOverview, gpu: PublishedGpu, facts: Sequence[GpuFacts]) -> dict[str, str]:
    state = gpu.drawn_state
    more = {"PCI address": facts[0].pci_bus_id, "Serial": facts[0].serial or "-"} if facts else {}
    return {
        "State": joined([sign(state), f" {state}"]),
        "Node": link(node.name, "nodes", node.name),
        "Product": short_product(gpu.whole.attribute("productName")),
        "Memory": gibibytes(gpu.memory_bytes()),
        "UUID": gpu.uuid,
        **more,
    }


def _taints(gpu: PublishedGpu) -> Html:
    """With the time, which shows the order in which things went wrong."""
    taints = {
        (taint.key, taint.value or "-", taint.effect): taint.time_added
        for device in gpu.devices
        for taint in device.device.taints or ()
    }
    rows = [(key, value, effect, _time(added)) for (key, value, effect), added in taints.items()]
    return table("Taints", ("Key", "Value", "Effect", "Since"), rows) if rows else EMPTY


# -- pods that wait


def _waiting(seen: PageData) -> HtmlPage:
    pods = [seen.known.waiting[name] for name in sorted(seen.known.waiting)]
    items = [_waiting_pod(pod, seen.explained.get(str(pod))) for pod in pods]
    title = "Waiting pods"
    text = "These pods have claims, and no node." if pods else "No pod with claims waits for a node."
    return _page(title, seen.known, part("text", "p", text), Rows("pods", items, "pods"))


def _waiting_pod(pod: Pod, reasons: WaitingReasons | None) -> Part:
    created = pod.metadata.creation_timestamp
    return part(
        f"pod-{pod}",
        "li",
        element("h2", link(str(pod), "waiting", pod.namespace, pod.name)),
        element("p", "Since ", _time(created), class_="soft") if created else None,
        element("p", reasons.short) if reasons is not None and reasons.short else None,
        element("p", "The scheduler: ", why_waiting(pod), class_="soft"),
    )


def _pod(name: str, seen: PageData) -> HtmlPage:
    title, pod = f"Pod {name}", seen.known.waiting.get(name)
    if pod is None:
        return _gone(title, seen.known, f"Pod {name} does not wait, or has no claims: it has a node, or is gone.")
    reasons = seen.explained.get(name)
    lines = reasons.full if reasons is not None and reasons.full else ("Trying each node…",)
    return _page(
        title,
        seen.known,
        part("scheduler", "p", "The scheduler: ", why_waiting(pod), class_="soft"),
        part("reasons", "pre", "\n".join(lines), tabindex="0", aria_label="Why it waits"),
    )


# -- whole documents

_META = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'


def document(page: HtmlPage, address: PageAddress, version: str) -> str:
    """The page as a whole, for a browser: its first part is the heading. `version` is part of the addresses of style
    and script, so that browsers may keep them forever."""
    places = (
        ("GPUs", Place.MAP, "./"),
        ("Waiting pods", Place.WAITING, "waiting"),
        ("ComputeDomains", Place.DOMAINS, "domains"),
    )
    items = (
        element("li", element("a", text, href=href, aria_current="page" if address.place is place else None))
        for text, place, href in places
    )
    body = element(
        "body",
        element("a", "Skip to content", href=f"{address.path if address.depth else ''}#view", class_="skip"),
        element(
            "header",
            element("nav", element("ul", *items), aria_label="Pages"),
            element("p", "", id="live", role="status"),
        ),
        element(
            "main",
            page.parts[0].html,
            _filter(address) if address.place is Place.MAP else None,
            element("div", *(piece.html for piece in page.parts[1:]), id="view", data_state=page.state),
        ),
    )
    files = (
        element("link", rel="icon", href="data:,"),
        element("link", rel="stylesheet", href=f"static/{version}/ui.css"),
        element("script", src=f"static/{version}/ui.js", defer=True),
    )
    return _whole(page.title, body, *files, base="../" * address.depth)


def _whole(title: str, body: Html, *head: Html, base: str = "") -> str:
    """`base` is what the addresses of the page begin with."""
    parts = (Html(_META), element("base", href=base) if base else None, element("title", title), *head)
    return f"<!doctype html>{element('html', element('head', *parts), body, lang='en')}"


def _filter(address: PageAddress) -> Html:
    sorts = (element("option", sort.value, value=name, selected=name == address.sort) for name, sort in SORTS.items())
    views = (
        element("option", text, value=name, selected=address.compact is chosen)
        for name, text, chosen in (("", "by size", None), ("cards", "cards", False), ("signs", "signs", True))
    )
    content = (
        element(
            "label",
            "Filter ",
            element(
                "input",
                type="search",
                name="filter",
                value=address.filter,
                maxlength="200",
                placeholder="node, GPU, claim, pod, problem",
            ),
        ),
        element("label", "Sort ", element("select", *sorts, name="sort")),
        element("label", "Draw ", element("select", *views, name="view")),
        element("button", "Apply", type="submit"),
    )
    return element("form", *content, role="search", id="filter")


def refusal_document(text: str, ask: str | None, style: str, enter: str) -> str:
    """For people who may not look. `ask` names the secret that would help; None: none would. `style` and `enter` are
    addresses."""
    field = element("label", ask or "", " ", element("input", type="password", name="secret", required=True))
    form = element("form", field, element("button", "Show"), method="post", action=enter)
    main = element("main", element("h1", "GPUs"), element("p", text, role="alert"), form if ask is not None else None)
    return _whole("GPUs", element("body", main), element("link", rel="stylesheet", href=style))


def static_page(known: KnownGpus, style: str, now: datetime) -> str:
    """The map alone, as one file that loads nothing and runs nothing: what `-o html` writes."""
    waiting = listing((f"{name}: {why_waiting(pod)}" for name, pod in known.waiting.items()), class_="warn")
    body = element(
        "body",
        element(
            "main",
            element("h1", "GPUs"),
            element("p", drawing.summary(known)),
            element("p", drawing.alerts(known, links=False)),
            drawing.proportions(known),
            element("p", f"Made by dractl at {now.isoformat(timespec='seconds')}.", class_="soft"),
            element("section", element("h2", "Waiting pods"), waiting) if known.waiting else None,
            drawing.legend(),
            element("ul", *(drawing.node_row(node, links=False).html for node in known.nodes.values()), class_="nodes"),
        ),
    )
    return _whole("GPUs", body, Html(f"<style>{style}</style>"))
