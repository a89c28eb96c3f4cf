"""What a browser and a screen reader find in a page."""

from html.parser import HTMLParser


class HtmlReader(HTMLParser):
    """Fails where an element is closed that is not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style" and data.strip():
            self.words.append(data.strip())

    def __str__(self) -> str:
        return " ".join(" ".join(self.words).split())

    def labels(self) -> list[str | None]:
        return [attributes["aria-label"] for _, attributes in self.tags if attributes.get("role") == "img"]
