"""docs/library.md is true: its code runs, from top to bottom, and what it asserts holds."""

import re
import subprocess
import sys
from pathlib import Path

import dra_driver.allocation

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "library.md"


def _code() -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL))


def test_the_code_of_the_page_runs() -> None:
    exec(compile(_code(), str(DOCUMENTATION), "exec"), {"__name__": "library"})


def test_every_name_of_the_library_can_be_had() -> None:
    for name in dra_driver.allocation.__all__:
        assert getattr(dra_driver.allocation, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    assert not hasattr(dra_driver.allocation, "nonsense")


def test_who_only_allocates_does_not_load_explanations() -> None:
    code = "import sys, dra_driver.allocation as a; a.allocate; print('dra_driver.allocation.explain' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
