"""Names in code: a variable says what it holds; no public class and few modules share a name."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from support.pages import ROOT

SAY_NOTHING = {"one", "found", "said", "told", "kept"}
PRODUCT = ("controller", "dra_driver", "kubelet_plugin")
ALL_CODE = (*PRODUCT, "benchmarks", "charts", "docs", "release", "tests")
GENERATED = "kubelet_api/generated"
MAY_BIND = re.compile(
    rf"(?:\b(?:for|as|def|lambda) |[(\[,*.] ?|^ *)_*(?:{'|'.join(SAY_NOTHING)})_*(?: in\b| ?[=:,)(])", re.MULTILINE
)
"""What may be such a name: few files must be parsed, which takes longer than to look for this."""


def sources(folders: Iterable[str]) -> Iterator[tuple[Path, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if GENERATED not in path.as_posix():
                yield path.relative_to(ROOT), path.read_text(encoding="utf-8")


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
        for path, text in sources(ALL_CODE)
        if MAY_BIND.search(text)
        for line, name in names(ast.parse(text))
        if name.strip("_") in SAY_NOTHING
    ]
    assert not wrong, "names that say nothing of what they hold:\n" + "\n".join(wrong)


def test_public_classes_of_the_product_have_names_of_their_own() -> None:
    places = defaultdict(list)
    for path, text in sources(PRODUCT):
        for name in re.findall(r"^ *class ([A-Z]\w*)", text, re.MULTILINE):
            places[name].append(str(path))
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


def test_few_packages_have_modules_of_one_name() -> None:
    """Whoever opens a file by its name has the right one in front of them. Each process has its `settings`."""
    places = defaultdict(list)
    for path, _ in sources(PRODUCT):
        if not path.stem.startswith("__") and path.stem != "settings":
            places[path.stem].append(str(path))
    assert not {name: paths for name, paths in places.items() if len(paths) > 3}


def test_a_name_that_says_nothing_is_noticed() -> None:
    text = "self._told = 1\nfor one in rows: pass\ndef f(found, *, kept=1): pass\nasync def said(): pass\nstone = 1\n"
    assert all(MAY_BIND.search(line) for line in text.splitlines()[:-1])
    assert not MAY_BIND.search("stone = 1")
    noticed = {name for _, name in names(ast.parse(text))} - {"f", "stone"}
    assert noticed == {"one", "said", "_told", "found", "kept"}
    assert {name.strip("_") for name in noticed} == SAY_NOTHING
