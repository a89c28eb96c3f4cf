"""Names in code: a variable says what it holds, and one public class name stands for one concept."""

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from support.pages import ROOT

SAY_NOTHING = {"one", "found", "said", "told", "kept"}
PRODUCT = ("controller", "dra_driver", "kubelet_plugin")
ALL_CODE = (*PRODUCT, "benchmarks", "charts", "docs", "release", "tests")
GENERATED = "kubelet_api/generated"


@functools.cache
def modules(folder: str) -> tuple[tuple[Path, ast.Module], ...]:
    return tuple(
        (path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted((ROOT / folder).rglob("*.py"))
        if GENERATED not in path.as_posix()
    )


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of what is assigned, given or defined."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name


def test_a_variable_says_what_it_holds() -> None:
    wrong = [
        f"{path}:{line}: {name}"
        for folder in ALL_CODE
        for path, tree in modules(folder)
        for line, name in names(tree)
        if name.strip("_") in SAY_NOTHING
    ]
    assert not wrong, "names that say nothing of what they hold:\n" + "\n".join(wrong)


def test_public_classes_of_the_product_have_names_of_their_own() -> None:
    places = defaultdict(list)
    for folder in PRODUCT:
        for path, tree in modules(folder):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path))
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


def test_a_name_that_says_nothing_is_noticed() -> None:
    text = "self._told = 1\nfor one in rows: pass\ndef f(found, *, kept=1): pass\nasync def said(): pass\nstone = 1\n"
    noticed = {name for _, name in names(ast.parse(text))} - {"f", "stone"}
    assert noticed == {"one", "said", "_told", "found", "kept"}
    assert {name.strip("_") for name in noticed} == SAY_NOTHING
