"""Lists of JSON whose items are alike, as those of thousands of nodes with the same GPUs: few items are parsed. Pure.

Two items have one layout if their texts are equal but for integers and for strings without escapes. Such an item
is made from one that was parsed before: a copy in which those values are its own, and which shares all else. What is
valid about one item is valid about all of its layout, because only a value was exchanged for one of its type.
`dra_driver.api.documents` calls this for each text that is a list.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import Path, places_in

_DEEPEST = 24
"""Brackets in brackets of an item; deeper ones make the whole list one to be parsed as it is."""
_MOST_LESSONS = 32
"""Items of one kind that are compared with earlier ones: a list without items that are alike costs little more."""

_STRING = rb'"[^"\\]*"'
_FLAT = rb"(?:" + _STRING + rb"|\{(?:\s*" + _STRING + rb"\s*:\s*(?:" + _STRING + rb"|[0-9]+)\s*,?)*\s*\})"
_HEAD = re.compile(rb"\s*\{(?:\s*" + _STRING + rb"\s*:\s*" + _FLAT + rb'\s*,)*\s*"items"\s*:\s*\[\s*(?=\{)')
"""A list up to its first item."""
_BETWEEN = re.compile(rb"[ \t\n\r]*(?:,[ \t\n\r]*(?=\{)|(?=\]))")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"(\s*:)?|-?[0-9][0-9.eE+-]*|true|false|null')
"""A value that is no list and no object, or a key."""
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,17}")
_PLAIN = re.compile(rb"[^\\\x00-\x1f]*")


def read_items(data: bytes, parse: Callable[[bytes], JsonObject | None]) -> tuple[list[JsonObject], bytes] | None:
    """The items of a list, and the list without them. None for what is no list of objects, or none that is valid.

    `parse` reads a whole text, and returns None for one that is not valid. Raises UnicodeDecodeError for what is not
    UTF-8.
    """
    head = _HEAD.match(data)
    if head is None:
        return None
    items: list[JsonObject] = []
    layouts = _Layouts()
    position = head.end()
    while data[position] != _END_OF_LIST:
        read = layouts.read(data, position)
        if read is None:
            whole = _object().match(data, position)
            obj = parse(whole[0]) if whole is not None else None
            if whole is None or obj is None:
                return None
            layouts.learn(whole[0], obj)
            read = obj, whole.end()
        items.append(read[0])
        between = _BETWEEN.match(data, read[1])
        if between is None:
            return None
        position = between.end()
    return items, data[: head.end()] + data[position:]


_END_OF_LIST = ord("]")


@cache
def _object() -> Any:
    """An object in JSON up to its end; whether it is valid is not said."""
    import re2  # manifests are mostly YAML

    inner = rb'(?:[^"{}\[\]]|"(?:[^"\\]|\\.)*")*'
    for _ in range(_DEEPEST):
        inner = rb'(?:[^"{}\[\]]|"(?:[^"\\]|\\.)*"|[{\[]' + inner + rb"[}\]])*"
    return re2.compile(rb"(?s)\{" + inner + rb"\}")


class _Layouts:
    """The layouts of items that were parsed."""

    def __init__(self) -> None:
        self._all: dict[tuple[bytes, ...], _Layout] = {}
        self._in_use: list[_Layout] = []
        self._lessons: Counter[str] = Counter()

    def read(self, data: bytes, position: int) -> tuple[JsonObject, int] | None:
        """The item at this position and its end; None if it must be parsed."""
        for place, layout in enumerate(self._in_use):
            read = layout.read(data, position)
            if read is not None:
                if place:
                    self._in_use.insert(0, self._in_use.pop(place))  # the next one is probably of the same layout
                return read
        return None

    def learn(self, text: bytes, obj: JsonObject) -> None:
        """Later items are compared with this one."""
        kind = str(obj.get("kind"))
        self._lessons[kind] += 1
        if self._lessons[kind] > _MOST_LESSONS:
            return
        parts, values = _split(text, obj)
        layout = self._all.get(parts)
        if layout is None:
            self._all[parts] = _Layout(obj, parts, values)
        elif layout.widen(values) and layout not in self._in_use:
            self._in_use.append(layout)


class _Value(NamedTuple):
    """A value that may differ between items: an integer, or a text without escapes."""

    path: Path
    text: bytes


def _split(text: bytes, obj: JsonObject) -> tuple[tuple[bytes, ...], tuple[_Value, ...]]:
    """The values that may differ, and the parts of the text around them."""
    parts: list[bytes] = []
    values: list[_Value] = []
    last = 0
    leaves = (token for token in _TOKEN.finditer(text) if token[1] is None)
    paths = (path for path, value in places_in(obj) if not isinstance(value, dict | list))
    for token, path in zip(leaves, paths, strict=True):
        is_text = token[0].startswith(b'"')
        if (_PLAIN if is_text else _INTEGER).fullmatch(token[0]):
            start = token.start() + is_text  # quotes are the same in all items
            parts.append(text[last:start])
            last = token.end() - is_text
            values.append(_Value(path, text[start:last]))
    return (*parts, text[last:]), tuple(values)


type _Plan = dict[str | int, Any]
"""By key or index: which of the differing values goes there, as its number, or the plan of what differs below."""


class _Layout:
    """Items whose texts differ in values only, of which one was parsed."""

    def __init__(self, obj: JsonObject, parts: Sequence[bytes], values: Sequence[_Value]) -> None:
        self._obj = obj
        self._parts = parts
        self._values = values
        self._differing: frozenset[int] = frozenset()
        self._before: list[bytes] = []
        self._last = b""
        self._integers: list[int] = []
        self._plan: _Plan = {}

    def widen(self, values: Sequence[_Value]) -> bool:
        """Lets items differ where this one does; False if it does not."""
        more = {index for index, (own, other) in enumerate(zip(self._values, values, strict=True)) if own != other}
        self._differing |= more
        self._before, self._integers, self._plan = [], [], {}
        before = b""
        for index, (part, value) in enumerate(zip(self._parts, self._values, strict=False)):
            before += part
            if index in self._differing:
                if not part.endswith(b'"'):
                    self._integers.append(len(self._before))
                _enter(self._plan, value.path, len(self._before))
                self._before.append(before)
                before = b""
            else:
                before += value.text
        self._last = before + self._parts[-1]
        return bool(more)

    def read(self, data: bytes, position: int) -> tuple[JsonObject, int] | None:
        """The item at this position and its end; None if it has another layout."""
        texts: list[bytes] = []
        for before in self._before:
            if not data.startswith(before, position):
                return None
            start = position + len(before)
            if before.endswith(b'"'):
                position = data.find(b'"', start)
            else:
                integer = _INTEGER.match(data, start)
                position = integer.end() if integer is not None else -1
            if position < 0:
                return None
            texts.append(data[start:position])
        together = b'"'.join(texts)
        if not (data.startswith(self._last, position) and _PLAIN.fullmatch(together)):
            return None
        values: list[str | int] = [*together.decode().split('"')]
        for index in self._integers:
            values[index] = int(values[index])
        return _made(self._obj, self._plan, values), position + len(self._last)


def _enter(plan: _Plan, path: Path, value: int) -> None:
    *outer, last = path
    for step in outer:
        plan = plan.setdefault(step, {})
    plan[last] = value


def _made(like: Any, plan: _Plan, values: Sequence[str | int]) -> Any:
    """A copy of the object or list `like`, with these values where the plan has them."""
    made = like.copy()
    for step, part in plan.items():
        made[step] = values[part] if type(part) is int else _made(like[step], part, values)
    return made
