"""The pages of the documentation: their blocks, headings and links.

A fence says what its block is: `sh` are commands, `console` are commands after `$ ` with their answers, `yaml`, `json`
and `python` are what they are, `text` is for people alone. Words may follow:

    no-run: WHY         commands that no test can run
    no-check: WHY       YAML that nobody checks
    values              YAML that is given to the chart
    file=NAME           what later commands of the page find under that name
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "charts").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
)
LANGUAGES = ("sh", "console", "yaml", "json", "python", "text", "dockerfile", "mermaid")

_FENCE = re.compile(r"^( *)```(.*?)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HTML_ANCHOR = re.compile(r'<a (?:id|name)="([^"]+)">')


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    """Of the fence, from 1."""
    info: str
    text: str

    def __str__(self) -> str:
        return f"{name(self.page)}:{self.line}"

    @property
    def language(self) -> str:
        return self.info.split(" ", 1)[0]

    @property
    def not_run(self) -> str | None:
        return self._reason("no-run")

    @property
    def not_checked(self) -> str | None:
        return self._reason("no-check")

    @property
    def file(self) -> str | None:
        match = re.search(r"\bfile=(\S+)", self.info)
        return None if match is None else match[1]

    @property
    def values(self) -> bool:
        return "values" in self.info.split()

    def _reason(self, word: str) -> str | None:
        match = re.search(rf"\b{word}: *(.*)$", self.info)
        return None if match is None else match[1].strip()


@dataclass(frozen=True)
class Command:
    block: Block
    line: str
    """One line, whatever it was before."""
    answer: str | None = None
    """What the page says that it answers; None: nothing is said."""

    def __str__(self) -> str:
        return f"{self.block}: {self.line}"


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match[2].strip(), _dedented(match[3], len(match[1])))
        for match in _FENCE.finditer(text)
    ]


def commands(block: Block) -> Iterator[Command]:
    """Of a `sh` or `console` block."""
    if block.language == "console":
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            line, _, answer = part.partition("\n")
            yield Command(block, line, answer)
    elif block.language == "sh":
        for line in block.text.replace("\\\n", " ").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                yield Command(block, re.sub(r"  +", " ", line.strip()))


def links(page: Path) -> list[str]:
    return _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> list[str]:
    """As GitHub makes them of headings, and those that are written down."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    slugs: list[str] = []
    for heading in _HEADING.findall(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        slugs.append(slug if slug not in slugs else f"{slug}-{slugs.count(slug)}")
    return slugs + _HTML_ANCHOR.findall(text)


def _dedented(text: str, indent: int) -> str:
    return re.sub(rf"^ {{{indent}}}", "", text, flags=re.MULTILINE) if indent else text
