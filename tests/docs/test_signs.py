"""The docstring of a module is the sign on its door: who it names is there, and who is called pure is held to it."""

import ast
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("dra_driver", "kubelet_plugin", "controller")
REFERENCE = re.compile(rf"`((?:{'|'.join(PACKAGES)})(?:\.\w+)+)`")
PURE = re.compile(r"\bPure\.")


@cache
def signs() -> dict[str, tuple[str, str]]:
    """By module: its own docstring, and all of it and of what it defines."""
    docstrings = {}
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        text = path.read_text()
        if REFERENCE.search(text) or PURE.search(text):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            tree = ast.parse(text)
            docstrings[name] = (ast.get_docstring(tree) or "", "\n".join(_docstrings(tree)))
    return docstrings


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


@cache
def is_there(name: str) -> bool:
    """A module, or what one of them has at its top."""
    try:
        if importlib.util.find_spec(name) is not None:
            return True
    except ModuleNotFoundError:
        pass
    parent, _, attribute = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(parent), attribute)
    except ModuleNotFoundError:
        return False


def test_whoever_a_docstring_names_is_there() -> None:
    named = [
        (name, reference) for name, (_, all_of_them) in signs().items() for reference in REFERENCE.findall(all_of_them)
    ]
    assert named
    assert [(name, reference) for name, reference in named if not is_there(reference)] == []


def test_the_newcomers_route_leads_somewhere() -> None:
    named = re.findall(r"`([\w./-]+(?:\.py|/))`", (ROOT / "CONTRIBUTING.md").read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_a_module_that_calls_itself_pure_is_in_the_contract_of_decisions() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (held,) = (
        contract["source_modules"]
        for contract in contracts
        if contract["name"] == "Decisions touch nothing outside themselves"
    )
    pure = [name for name, (own, _) in signs().items() if PURE.search(own)]
    assert pure
    assert [name for name in pure if not any(f"{name}.".startswith(f"{package}.") for package in held)] == []
