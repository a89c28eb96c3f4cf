"""docs/observability.md names every span and every attribute of spans that the code has."""

import re

from support.pages import DOCS, ROOT

from dra_driver.runtime import tracing

PAGE = (DOCS / "observability.md").read_text(encoding="utf-8").partition("## Traces")[2]


def test_every_span_is_in_the_table() -> None:
    code = "".join(
        path.read_text(encoding="utf-8")
        for package in ("dra_driver", "kubelet_plugin", "controller")
        for path in sorted((ROOT / package).rglob("*.py"))
    )
    names = set(re.findall(r"tracer\.span\(\s*\"([^\"]+)\"", code))
    assert {"publish", "keep classes"} <= names
    assert {name for name in (*names, "prepare", "unprepare") if f"`{name}`" not in PAGE} == set()


def test_every_attribute_is_on_the_page() -> None:
    names = {
        value for name, value in vars(tracing).items() if name.isupper() and isinstance(value, str) and "." in value
    }
    assert len(names) > 8
    assert {name for name in names if f"`{name}`" not in PAGE} == set()
