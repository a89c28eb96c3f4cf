"""JSONPath as far as printer columns use it: fields, indexes, wildcards, and filters on equality.

Sources: Kubernetes' "JSONPath Support"; a field with dots in its name is written `.a\\.b` or `['a.b']`.
"""

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

type _Step = Callable[[Any], list[Any]]

_TOKEN = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\]\\])+)
      | \[(?P<index>-?\d+)\]
      | \[(?P<all>\*)\]
      | \[\?\(@\.(?P<path>[^=!]+?)\s*(?P<op>==|!=)\s*(?P<value>[^)]*?)\)\]
      | \[(?P<quote>['"])(?P<key>.*?)(?P=quote)\]""",
    re.VERBOSE,
)


class InvalidPath(ValueError):
    """Not a JSONPath that printer columns may use."""


@cache
def compiled(path: str) -> tuple[_Step, ...]:
    """Raises InvalidPath."""
    text = path if path.startswith((".", "[")) else f".{path}"
    if text == ".":
        return ()
    steps, position = [], 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise InvalidPath(f"cannot read {text[position:]!r} in {path!r}")
        steps.append(_step(found))
        position = found.end()
    return tuple(steps)


def find(path: str, obj: object) -> list[Any]:
    """All values at `path`, in order; empty when there is none."""
    values: list[Any] = [obj]
    for step in compiled(path):
        values = [child for value in values for child in step(value)]
    return values


def _step(token: re.Match[str]) -> _Step:
    if token["index"] is not None:
        return _at(int(token["index"]))
    if token["all"] is not None or token["name"] == "*":
        return _children
    if token["path"] is not None:
        return _where(token["path"], token["op"] == "==", _literal(token["value"]))
    return _named(token["key"] if token["key"] is not None else re.sub(r"\\(.)", r"\1", token["name"]))


def _at(index: int) -> _Step:
    return lambda value: [value[index]] if isinstance(value, list) and -len(value) <= index < len(value) else []


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _named(name: str) -> _Step:
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _where(path: str, equal: bool, wanted: object) -> _Step:
    return lambda value: [item for item in _children(value) if (find(path, item)[:1] == [wanted]) is equal]


def _literal(text: str) -> object:
    if text[:1] in "'\"":
        return text[1:-1]
    try:
        return json.loads(text)
    except ValueError:
        return text
