"""YAML with comments: plain objects in which some values have a note that stands above them. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from textwrap import TextWrapper
from typing import Any

import yaml

_WIDTH = 100
_UNMISTAKABLE = re.compile(r"(?!(?:true|false|yes|no|on|off|null|y|n)\Z)[A-Za-z][A-Za-z0-9._/-]*", re.IGNORECASE)
"""Words that no reader of YAML takes for anything else; asking PyYAML about each costs more than all the rest."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A value of a mapping or list, and why it is there."""

    note: str
    value: Any


def plain(value: Any) -> Any:
    """Without notes."""
    if isinstance(value, Noted):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def written(objects: Sequence[Any]) -> str:
    """YAML documents; the note of an object stands at its top. What was said once in a document is not said again."""
    return "---\n".join("".join(f"{line}\n" for line in _Writer().document(obj)) for obj in objects)


class _Writer:
    """Of one document."""

    def __init__(self) -> None:
        self._noted: set[str] = set()

    def document(self, obj: Any) -> Iterator[str]:
        if isinstance(obj, Noted):
            yield from self._note(obj.note, 0)
            obj = obj.value
        yield from self._mapping(obj, 0)

    def _note(self, note: str, indent: int) -> Iterator[str]:
        """Each paragraph begins on a line of its own."""
        if note in self._noted:
            return
        self._noted.add(note)
        prefix = f"{' ' * indent}# "
        wrapper = TextWrapper(_WIDTH, prefix, prefix, break_long_words=False, break_on_hyphens=False)
        for paragraph in note.splitlines():
            yield from wrapper.wrap(paragraph)

    def _mapping(self, mapping: Mapping[str, Any], indent: int) -> Iterator[str]:
        for name, value in mapping.items():
            if isinstance(value, Noted):
                yield from self._note(value.note, indent)
                value = value.value
            if isinstance(value, Mapping) and value:
                yield f"{' ' * indent}{_key(name)}:"
                yield from self._mapping(value, indent + 2)
            elif isinstance(value, list) and value and all(map(_has_fields, value)):
                yield f"{' ' * indent}{_key(name)}:"
                yield from self._items(value, indent)
            else:
                yield from _scalar(name, value, indent)

    def _items(self, items: Sequence[Any], indent: int) -> Iterator[str]:
        """Items are mappings with something in them; other lists are written in one line."""
        for item in items:
            if isinstance(item, Noted):
                yield from self._note(item.note, indent)
                item = item.value
            # The first line has the dash instead of its indentation; a note of its first field stands above the dash.
            lines = list(self._mapping(item, indent + 2))
            first = next(index for index, line in enumerate(lines) if not line.lstrip().startswith("#"))
            yield from (line[2:] for line in lines[:first])
            yield f"{' ' * indent}- {lines[first].lstrip()}"
            yield from lines[first + 1 :]


def _has_fields(item: Any) -> bool:
    return isinstance(value := item.value if isinstance(item, Noted) else item, Mapping) and bool(value)


def _scalar(name: str, value: Any, indent: int) -> Iterator[str]:
    """`name: value`, quoted where it must be; a long expression has a line for each of its parts."""
    before = " " * indent
    if isinstance(value, str) and len(value) + indent > _WIDTH and " && " in value and "  " not in value:
        yield f"{before}{_key(name)}: >-"
        first, *rest = value.split(" && ")
        yield f"{before}  {first}"
        yield from (f"{before}  && {part}" for part in rest)
    elif isinstance(value, list):
        words = yaml.safe_dump(plain(value), width=10**6, allow_unicode=True, default_flow_style=True)
        yield f"{before}{_key(name)}: {words.strip()}"
    elif type(value) is int or (type(value) is str and _UNMISTAKABLE.fullmatch(value)):
        yield f"{before}{_key(name)}: {value}"
    else:
        text = yaml.safe_dump({name: value}, width=10**6, allow_unicode=True)
        yield from (f"{before}{line}" for line in text.splitlines())


@lru_cache(maxsize=1000)
def _key(name: str) -> str:
    """Quoted where it would mean something else, such as `no`."""
    return yaml.safe_dump({name: 0}).removesuffix(": 0\n")
