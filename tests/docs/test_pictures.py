"""Pictures of the documentation: each has the script that made it, is small, and is shown on a page."""

import re
from xml.etree import ElementTree

from support.pages import DOCS, PAGES

from docs.pictures.frames import Frame, last_frame, moving_picture

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


def test_a_frame_is_what_stood_last_on_the_terminal() -> None:
    output = "\x1b[?1049h\x1b[H\x1b[1mNodes\x1b[0m\r\na\r\n\x1b[HNodes\r\nb\r\n\x1b[HNod"
    assert last_frame(output) == "Nodes\nb"
    assert last_frame(output.removesuffix("\x1b[HNod")) == "Nodes\nb"


def test_frames_follow_each_other_and_keep_their_words_and_colors() -> None:
    frames = [
        Frame("\x1b[1;31mdead\x1b[0m <GPU> & more", "It fails", 1),
        Frame("\x1b[7malive\x1b[0m", "It is back", 3),
    ]
    picture = moving_picture(frames, columns=40, lines=2)
    root = ElementTree.fromstring(picture)
    groups = root.findall("{*}g")
    texts = [["".join(text.itertext()) for text in group.findall("{*}text")] for group in groups]
    assert texts == [["dead <GPU> & more", "It fails"], ["alive", "It is back"]]
    assert root.get("aria-label") == "It fails; It is back"
    (dead, *_), (alive,) = (group.findall("{*}text/{*}tspan") for group in groups)
    assert dead.get("font-weight") == "bold" and dead.get("fill") not in (None, alive.get("fill"))
    assert groups[1].find("{*}rect") is not None, "what is reversed has a back"
    # The first is shown for a quarter of the time, the second for the rest.
    assert re.search(r"@keyframes k0\{0\.00%\{opacity:1\}25\.00%\{opacity:1\}25\.01%\{opacity:0\}", picture)
    assert "25.01%{opacity:1}100.00%{opacity:1}}" in picture and "4s step-end infinite" in picture
