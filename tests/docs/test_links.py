"""Every link of every page leads somewhere, and every page can be reached from the README."""

import re
from pathlib import Path

import pytest
from support.pages import DOCS, PAGES, ROOT, anchors, links
from support.rows import rows
from typer.testing import CliRunner

from dra_driver.bundled import read_yaml
from dra_driver.cli.main import app
from kubelet_plugin.simulation.profiles import profile_names

_ELSEWHERE = ("https://", "http://", "mailto:")


def target_of(page: Path, link: str) -> tuple[Path, str]:
    path, _, anchor = link.partition("#")
    return (page if not path else (page.parent / path).resolve()), anchor


@rows("page", PAGES)
def test_every_link_leads_somewhere(page: Path) -> None:
    wrong = []
    for link in links(page):
        if link.startswith(_ELSEWHERE):
            continue
        target, anchor = target_of(page, link)
        if not target.exists() or not target.is_relative_to(ROOT):
            wrong.append(f"{link}: there is no such file")
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target)):
            wrong.append(f"{link}: there is no such heading")
    assert not wrong


@rows("page", PAGES)
def test_no_heading_of_a_page_is_there_twice(page: Path) -> None:
    names = anchors(page)
    assert len(names) == len(set(names))


def test_every_page_is_in_the_index_of_docs() -> None:
    index = DOCS / "README.md"
    linked = {target_of(index, link)[0] for link in links(index)}
    assert {page for page in PAGES if page.parent == DOCS} - {index} - linked == set()


@pytest.mark.parametrize("page", ["README.md", "docs/commands.md"])
def test_every_command_of_dractl_is_in_the_table_of_the_page(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    listed = CliRunner().invoke(app, ["--help"]).output.partition("Commands:")[2]
    names = re.findall(r"^  ([a-z]+) ", listed, re.MULTILINE)
    assert len(names) > 9
    assert {name for name in names if f"`dractl {name}" not in text} == set()


def test_the_readme_names_the_hardware_that_can_be_simulated() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    part = text.partition("Simulated hardware:")[2].partition("[examples]")[0]
    assert set(re.findall(r"`([a-z0-9-]+)`", part)) == set(profile_names())


@rows("page", [page for page in PAGES if page.parent in (ROOT, DOCS)])
def test_values_of_the_chart_that_the_page_names_exist(page: Path) -> None:
    values = read_yaml((ROOT / "charts" / "gpu-dra-driver" / "values.yaml").read_text())
    wrong = []
    for named in re.findall(r"`([A-Za-z]+(?:\.[A-Za-z]+)+)(?:: [^`]*)?`", page.read_text(encoding="utf-8")):
        here, *below = named.split(".")
        value = values.get(here)
        if not isinstance(value, dict):
            continue
        for key in below:
            if isinstance(value, dict) and value:
                if key not in value:
                    wrong.append(named)
                    break
                value = value[key]
    assert not wrong


def test_the_readme_leads_to_the_index() -> None:
    assert DOCS / "README.md" in {target_of(ROOT / "README.md", link)[0] for link in links(ROOT / "README.md")}
