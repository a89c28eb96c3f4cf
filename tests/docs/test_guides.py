"""The guides of docs/guides: each has the same parts, and they lead from one to the next."""

import re
from itertools import pairwise

from support.pages import DOCS

GUIDES = sorted((DOCS / "guides").glob("*.md"))
PARTS = ["Before you start", "Steps", "What you should see", "Next"]


def test_each_guide_has_prerequisites_steps_output_and_the_next_step() -> None:
    assert len(GUIDES) == 10
    for number, guide in enumerate(GUIDES, 1):
        text = guide.read_text(encoding="utf-8")
        assert text.startswith(f"# {number}. "), guide.name
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == PARTS, guide.name


def test_each_guide_leads_to_the_next_one() -> None:
    for guide, following in pairwise(GUIDES):
        assert f"]({following.name})" in guide.read_text(encoding="utf-8").partition("## Next")[2], guide.name
