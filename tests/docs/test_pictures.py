"""Pictures of the documentation: each has the script that made it, is small, and is shown on a page."""

import re
from xml.etree import ElementTree

from rich.text import Text
from support.pages import DOCS, PAGES

from docs.pictures.top import Shown, moving_picture
from dra_driver.cli.top.screen import Size

PICTURES = sorted((DOCS / "pictures").glob("*.svg"))
LARGEST = 200 * 1024


def test_each_picture_is_small_has_its_script_and_is_shown() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert PICTURES
    for picture in PICTURES:
        assert picture.stat().st_size < LARGEST
        assert picture.with_suffix(".py").exists()
        assert f"pictures/{picture.name})" in pages
        assert "<script" not in picture.read_text(encoding="utf-8")


def test_screens_follow_each_other_and_keep_their_words_and_colors() -> None:
    screens = [
        Shown([Text("dead <GPU> & more", style="bold red")], "It fails", 1),
        Shown([Text("alive", style="reverse")], "It is back", 3),
    ]
    picture = moving_picture(screens, Size(40, 2))
    root = ElementTree.fromstring(picture)
    groups = root.findall("{*}g/{*}g[@opacity]")
    texts = [
        ["".join(text.itertext()).replace("\xa0", " ") for text in group.iterfind(".//{*}text")] for group in groups
    ]
    assert [[line.strip() for line in lines if line.strip()] for lines in texts] == [
        ["dead <GPU> & more", "It fails"],
        ["alive", "It is back"],
    ]
    assert root.get("aria-label") == "It fails; It is back"
    assert re.search(r"\.s0-r1 \{[^}]*fill: #[0-9a-f]{6};font-weight: bold", picture)
    assert groups[1].find("{*}rect") is not None, "what is reversed has a back"
    # The first is shown for a quarter of the time, the second for the rest.
    assert "@keyframes k0{0%{opacity:1}0.00%{opacity:1}25.00%{opacity:0}}" in picture
    assert "@keyframes k1{0%{opacity:0}25.00%{opacity:1}}" in picture and "4s step-end infinite" in picture
