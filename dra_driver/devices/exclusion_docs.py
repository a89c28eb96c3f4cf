"""The table of what excludes what as Markdown, for `docs/sharing.md`.

`python -m dra_driver.devices.exclusion_docs` writes it between the two marks in that page, which is otherwise written
by hand; a test compares.
"""

from collections.abc import Iterable
from pathlib import Path

from dra_driver.devices.exclusion import LIMITS, PAIRS

FILE = Path(__file__).parents[2] / "docs" / "sharing.md"
BEGIN = "<!-- generated from dra_driver/devices/exclusion.py by `make generate`; do not edit below -->"
END = "<!-- end of the generated part -->"


def rendered() -> str:
    """Both tables, without the marks."""
    pairs = [(row.one, row.other, "yes" if row.allowed else "**no**", row.reason) for row in PAIRS]
    limits = [(row.wish, row.where, "**no**" if row.refused else "no effect", row.reason) for row in LIMITS]
    return "\n\n".join(
        (
            "### Two claims on one GPU\n\nThe first line that fits decides; the order of the two does not matter.",
            _table(("One claim has", "another wants", "both?", "because"), pairs),
            "### What some GPUs cannot do",
            _table(("Wanted", "on", "possible?", "because"), limits),
        )
    )


def with_table(page: str) -> str:
    """`page` with the generated part as it must be. Raises ValueError when the page has lost its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{FILE.name} wants the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{rendered()}\n\n{END}{after}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    FILE.write_text(with_table(FILE.read_text(encoding="utf-8")), encoding="utf-8")
