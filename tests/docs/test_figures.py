"""Figures beside NVIDIA's own driver: docs/compared.md and the README say what the recorded run says."""

import json
from pathlib import Path

from support.pages import DOCS, ROOT

RECORD = json.loads((ROOT / "benchmarks/records/against.json").read_text(encoding="utf-8"))
FIGURES = RECORD["figures"]


def section(page: Path, heading: str) -> str:
    return page.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]


COMPARED = section(DOCS / "compared.md", "Speed and memory")
README = section(ROOT / "README.md", "Figures")
IN_README = (
    "one prepare",
    "one unprepare",
    "prepare of eight in one call",
    "unprepare of eight in one call",
    "processor time, prepare and unprepare of one",
    "resident memory after the start",
)


def ratio(name: str) -> str:
    figure = FIGURES[name]
    return f"{figure['ratio']:g} ({figure['lowest']:g} to {figure['highest']:g})"


def rows(text: str) -> list[list[str]]:
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [cells for cells in lines if cells[0] in FIGURES]


def test_the_comparison_has_every_figure_of_the_record() -> None:
    wanted = [
        [name, ratio(name), f"{figure['ours']:g} {figure['unit']}", f"{figure['peer']:g} {figure['unit']}"]
        for name, figure in FIGURES.items()
    ]
    assert rows(COMPARED) == wanted, "\n".join(f"| {' | '.join(cells)} |" for cells in wanted)


def test_the_readme_has_the_ratios_of_the_record() -> None:
    wanted = [[name, ratio(name)] for name in IN_README]
    assert rows(README) == wanted, "\n".join(f"| {' | '.join(cells)} |" for cells in wanted)


def test_both_name_the_run() -> None:
    for page in (COMPARED, README):
        assert RECORD["date"] in page
        assert RECORD["versions"]["peer"].split()[-1].strip("()") in page
    assert f"{RECORD['rounds']} rounds" in COMPARED
    assert RECORD["versions"]["kubernetes"] in COMPARED
