"""docs/library.md is true: its code runs, from top to bottom, and what it asserts holds."""

import re
from pathlib import Path

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "library.md"


def _code() -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL))


def test_the_code_of_the_page_runs() -> None:
    exec(compile(_code(), str(DOCUMENTATION), "exec"), {"__name__": "library"})
