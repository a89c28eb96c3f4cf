"""Converts YAML nodes to plain JSON data, as the API server reads them: Go's YAML 1.1 without dates and base 60. Pure.

Source: go-yaml v2, the reader of sigs.k8s.io/yaml.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import yaml

from dra_driver.api.manifest_nodes import DEEPEST, MERGE, PLAIN, STRING, TEMPLATE, TOO_DEEP, Text, line_at


class Values:
    """Nodes to plain data, for one document."""

    def __init__(self, source: Text) -> None:
        self._source = source
        self._done: dict[int, tuple[object, int]] = {}
        self._open: set[int] = set()

    def value(self, node: yaml.Node) -> object:
        value, _ = self._of(node)
        return value

    def _of(self, node: yaml.Node) -> tuple[object, int]:
        """With the number of values in it; anchors count at each use."""
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node), 1
        done = self._done.get(id(node))
        if done is not None:
            return done
        if id(node) in self._open:
            raise self._source.bad("contains itself through an anchor", node.start_mark)
        if len(self._open) >= DEEPEST:
            raise self._source.bad(TOO_DEEP, node.start_mark)
        self._open.add(id(node))
        done = self._sequence(node) if isinstance(node, yaml.SequenceNode) else self._mapping(node)
        self._open.discard(id(node))
        if done[1] > _MOST_VALUES:
            raise self._source.bad("has too many values through its anchors", node.start_mark)
        self._done[id(node)] = done
        return done

    def _sequence(self, node: yaml.SequenceNode) -> tuple[list[object], int]:
        values, size = [], 1
        for item in node.value:
            value, inner = self._of(item)
            values.append(value)
            size += inner
        return values, size

    def _mapping(self, node: yaml.Node) -> tuple[dict[str, object], int]:
        values: dict[str, object] = {}
        merged: list[yaml.Node] = []
        size = 1
        for key, written in node.value:
            if key.tag == MERGE:
                merged += written.value if isinstance(written, yaml.SequenceNode) else [written]
                continue
            name = self._key(key)
            if name in values:
                raise self._source.bad(f"`{name}` is given twice", key.start_mark)
            values[name], inner = self._of(written)
            size += inner
        for other in merged:
            value, inner = self._of(other)
            if not isinstance(value, dict):
                raise self._source.bad("`<<` can merge only maps", other.start_mark)
            values = {**value, **values}
            size += inner
        return values, size

    def _key(self, node: yaml.Node) -> str:
        """JSON keys are strings; numbers and booleans become their text."""
        value = self._scalar(node) if isinstance(node, yaml.ScalarNode) else None
        if isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | float):
            return str(value)
        template = "{{" in line_at(self._source.text, node.start_mark)
        raise self._source.bad(TEMPLATE if template else "a key must be a string", node.start_mark)

    def _scalar(self, node: yaml.ScalarNode) -> object:
        if node.tag == PLAIN or node.tag == MERGE:
            return plain_value(node.value)
        if node.tag == STRING:
            return node.value
        typed = plain_value(node.value)
        wanted = _TAGS.get(node.tag)
        if wanted is None:
            raise self._source.bad(f"the tag `{node.tag}` is not known to Kubernetes", node.start_mark)
        if not isinstance(typed, wanted):
            raise self._source.bad(f"{node.value!r} is not what its tag says", node.start_mark)
        return node.value if wanted is object else typed


_MOST_VALUES = 5_000_000
_TAGS: dict[str, Any] = {
    "tag:yaml.org,2002:bool": bool,
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:float": (int, float),
    "tag:yaml.org,2002:null": type(None),
    "tag:yaml.org,2002:timestamp": object,
    "tag:yaml.org,2002:binary": object,
}
_WORDS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_INTEGER = re.compile(r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[1-9][0-9_]*|0)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_LONGEST_NUMBER = 400


def plain_value(text: str) -> object:
    """The value of a scalar without quotes. Source: go-yaml v2, the reader of sigs.k8s.io/yaml; dates stay strings."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "0123456789+-." or len(text) > _LONGEST_NUMBER:
        return text
    digits = text if text[0] == "." else text.replace("_", "")
    whole = _integer(digits) if _INTEGER.fullmatch(text) else None
    if whole is not None:
        return whole
    number = float(digits) if _FLOAT.fullmatch(digits) else math.inf
    return number if math.isfinite(number) else text


_BASES: Mapping[str, Literal[2, 8, 16]] = {"0b": 2, "0o": 8, "0x": 16}


def _integer(text: str) -> int | None:
    """None for what has more than 64 bits."""
    digits = text.lstrip("+-")
    sign = -1 if text.startswith("-") else 1
    base: Literal[2, 8, 10, 16] = 10
    if digits[:2] in _BASES:
        base, digits = _BASES[digits[:2]], digits[2:]
    elif len(digits) > 1 and digits[0] == "0":
        base = 8
    if not digits:
        return None
    value = sign * int(digits, base)
    return value if -(2**63) <= value < 2**64 else None
