"""Whole documents: a page for a browser that follows it, a refusal, and the map as one file. Pure."""

from datetime import datetime

from dra_driver.cli.tables.usage import why_waiting
from dra_driver.cli.top.board import KnownGpus
from dra_driver.cli.ui import drawing
from dra_driver.cli.ui.pages import SORTS, PageAddress, Place
from dra_driver.cli.ui.parts import Html, HtmlPage, element, listing

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
