"""For troubleshooting.md: every kind of error, and every message in the code."""

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import controller
import dra_driver
import kubelet_plugin
from dra_driver.errors import DriverError

_ROOT = Path(__file__).parents[2]
_SERVICES = ("kubelet_plugin", "controller", "dra_driver/kube", "dra_driver/runtime", "dra_driver/publish")
_FEATURES = "dra_driver/features.py"
_NOT_THERE = ("simulation", "commands/inventory", "commands/simulate")
"""Only simulated hardware and commands use the messages of these modules."""


@cache
def kinds() -> tuple[type[DriverError], ...]:
    """All kinds that users can see, depth first; private kinds (`_…`) are left out."""
    for package in (dra_driver, kubelet_plugin, controller):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)
    return tuple(_below(DriverError))


def _below(kind: type[DriverError]) -> Iterator[type[DriverError]]:
    if not kind.__name__.startswith("_") and kind.__module__.split(".")[0] in (
        "dra_driver",
        "kubelet_plugin",
        "controller",
    ):
        yield kind
    for subclass in sorted(
        kind.__subclasses__(), key=lambda candidate: (candidate.__module__ != "dra_driver.errors", candidate.__name__)
    ):
        yield from _below(subclass)


def error_kinds() -> str:
    """A section for each kind."""
    messages_by_kind = messages()
    return "\n\n".join(part for kind in kinds() for part in _section(kind, messages_by_kind.get(kind.__name__, ())))


def _section(kind: type[DriverError], texts: tuple[str, ...]) -> Iterator[str]:
    if "help" not in vars(kind):
        raise LookupError(f"{kind.__module__}.{kind.__name__} has no documentation: set `help`")
    yield f"### {kind.__name__}"
    yield kind.help.event
    again = "only after that" if kind.retry_after_s is None else f"after {kind.retry_after_s:g} s"
    parents = [
        parent.__name__ for parent in kind.__mro__[1:] if issubclass(parent, DriverError) and parent is not DriverError
    ]
    is_a = f" **Kind of:** [{parents[0]}](#{parents[0].lower()})." if parents else ""
    yield f"**Who acts:** {kind.help.move}. **Retried:** {again}.{is_a}"
    yield kind.help.advice
    if texts:
        yield "<details><summary>Messages</summary>"
        yield "\n".join(f"- {text}" for text in texts)
        yield "</details>"


@cache
def messages() -> dict[str, tuple[str, ...]]:
    """The messages of each kind in services, with `…` for variable parts; sorted."""
    texts_by_kind: dict[str, set[str]] = {}
    names = {kind.__name__ for kind in kinds()}
    files = (path for folder in _SERVICES for path in (_ROOT / folder).rglob("*.py"))
    for path in sorted([*files, _ROOT / _FEATURES]):
        if any(word in path.relative_to(_ROOT).as_posix() for word in _NOT_THERE):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names and node.args:
                text = _text(node.args[0])
                if text is not None:
                    texts_by_kind.setdefault(node.func.id, set()).add(text)
    return {kind: tuple(sorted(texts)) for kind, texts in texts_by_kind.items()}


def _text(node: ast.expr) -> str | None:
    """The text of a string or an f-string; None if it has too few constant words."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        parts = [node.value]
    elif isinstance(node, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values]
    else:
        return None
    text = " ".join("".join(parts).split())
    known = [word for word in text.split() if "…" not in word]
    return f"`{text.replace('`', chr(39))}`" if len(known) > 2 else None
