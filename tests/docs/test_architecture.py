"""docs/architecture.md names files, functions and classes that exist."""

import ast
import re

from support.pages import DOCS, ROOT
from support.rows import rows

PAGE = (DOCS / "architecture.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`((?:dra_driver|kubelet_plugin|controller)/[\w/]+\.py)(?::([\w.]+))?`", PAGE)
DEFINITIONS = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def test_each_walk_has_ten_steps() -> None:
    for walk in ("One claim", "One slice", "One explanation"):
        part = PAGE.partition(f"## {walk}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| (\d+) \|", part, re.MULTILINE) == [str(step) for step in range(1, 11)], walk


@rows("path, name", NAMED)
def test_what_the_page_names_exists(path: str, name: str) -> None:
    body = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    for word in name.split(".") if name else ():
        inner = {
            definition.name: definition
            for definition in body
            if isinstance(definition, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert word in inner, f"{path} has no {name}"
        body = inner[word].body
