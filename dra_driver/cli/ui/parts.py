"""HTML as values, and what differs between two states of a page. Pure.

Text becomes markup in `element` only, which escapes it, so that no name or message of a cluster can become markup, or
change the direction of the text around it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from html import escape
from typing import Any

from dra_driver.terminal import shown_safely

_VOID = frozenset({"base", "input", "link", "meta", "wbr"})
"""Elements without an end tag."""


class Html(str):
    """Markup that `element` made. Any other text is escaped before it gets into a page."""

    __slots__ = ()


EMPTY = Html()


def element(tag: str, *content: str | None, **attributes: str | bool | None) -> Html:
    """`<tag …>content</tag>`. An attribute is named without its last underscore, and with hyphens for the others; None
    and False leave it out, True needs no value."""
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{joined(content)}</{tag}>")


def _attribute(name: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(shown_safely(value))}"'


def joined(content: Iterable[str | None], between: str = "") -> Html:
    """None is left out."""
    return Html(_escaped(between).join(_escaped(item) for item in content if item is not None))


def _escaped(text: str) -> str:
    return text if isinstance(text, Html) else escape(shown_safely(text), quote=False)


def listing(items: Iterable[str], **attributes: str | bool | None) -> Html:
    return element("ul", *(element("li", item) for item in items), **attributes)


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """The first cell of each row is its heading."""
    lines = [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in rows
    ]
    head = element("tr", *(element("th", heading, scope="col") for heading in headings))
    content = (element("caption", caption), element("thead", head), element("tbody", *lines))
    # What is wider than the window scrolls by itself, with the keyboard, too.
    return element("div", element("table", *content), class_="wide", role="region", aria_label=caption, tabindex="0")


# -- pages


@dataclass(frozen=True, slots=True)
class Part:
    """An element that is replaced when it changes. `html` has this `id`, which is unique on its page."""

    id: str
    html: Html


def part(id_: str, tag: str, *content: str | None, **attributes: str | bool | None) -> Part:
    return Part(id_, element(tag, *content, id=id_, **attributes))


@dataclass(frozen=True, slots=True)
class Rows:
    """A list whose items come, go and move each by itself."""

    id: str
    items: Sequence[Part]
    class_: str

    @property
    def html(self) -> Html:
        return element("ul", *(item.html for item in self.items), id=self.id, class_=self.class_)


@dataclass(frozen=True)
class HtmlPage:
    """The first of `parts` is the heading. `status` is that of HTTP.

    A browser reloads a page whose parts are others, such as that of a pod that has gone.
    """

    title: str
    parts: Sequence[Part | Rows]
    status: int = 200

    @cached_property
    def flat(self) -> Mapping[str, Html]:
        """Every part and item by its ID."""
        pairs = (item for piece in self.parts for item in (piece.items if isinstance(piece, Rows) else (piece,)))
        return {item.id: item.html for item in pairs}

    @cached_property
    def orders(self) -> Mapping[str, Sequence[str]]:
        """IDs of items by list."""
        return {rows.id: [item.id for item in rows.items] for rows in self.parts if isinstance(rows, Rows)}

    @cached_property
    def state(self) -> str:
        """Two pages with the same state show the same."""
        digest = blake2b(self.title.encode(), digest_size=9)
        for piece in self.parts:
            digest.update(piece.html.encode())
        return digest.hexdigest()


def changes(before: HtmlPage | None, after: HtmlPage) -> dict[str, Any] | None:
    """What `ui.js` does to a page that shows `before` (None: an unknown state): `set` has new and changed elements by
    ID, `rows` the items of the lists whose items came, went or moved, `parts` all but the heading.

    None: nothing changed.
    """
    known = before.flat if before is not None else {}
    orders = before.orders if before is not None else {}
    changed = {name: html for name, html in after.flat.items() if known.get(name) != html}
    moved = {name: order for name, order in after.orders.items() if orders.get(name) != order}
    parts = [piece.id for piece in after.parts[1:]]
    others = before is not None and [piece.id for piece in before.parts[1:]] != parts
    return {"title": after.title, "set": changed, "rows": moved, "parts": parts} if changed or moved or others else None
