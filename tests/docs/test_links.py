"""Every link of every page leads somewhere, and every page can be reached from the README."""

from pathlib import Path

import pytest
from support.pages import DOCS, PAGES, ROOT, anchors, links, name

_ELSEWHERE = ("https://", "http://", "mailto:")


def target_of(page: Path, link: str) -> tuple[Path, str]:
    path, _, anchor = link.partition("#")
    return (page if not path else (page.parent / path).resolve()), anchor


@pytest.mark.parametrize("page", PAGES, ids=name)
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


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_heading_of_a_page_is_there_twice(page: Path) -> None:
    found = anchors(page)
    assert len(found) == len(set(found))


def test_every_page_is_in_the_index_of_docs() -> None:
    index = DOCS / "README.md"
    linked = {target_of(index, link)[0] for link in links(index)}
    assert {page for page in PAGES if page.parent == DOCS} - {index} - linked == set()


def test_the_readme_leads_to_the_index() -> None:
    assert DOCS / "README.md" in {target_of(ROOT / "README.md", link)[0] for link in links(ROOT / "README.md")}
