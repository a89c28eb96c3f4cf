"""Functions of texts, and regular expressions: `matches`, which is CEL's own, and Kubernetes' `find` and `findAll`.

The API server runs patterns with Go's `regexp`; they run with RE2 here. Both read the same syntax and take time linear
in the text. RE2 accepts a few things that Go refuses; they are refused here, too.
Source: cel-go's ext/strings version 2.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import re2

from dra_driver.cel.overloads import Failed, Library, bounded, function, method
from dra_driver.cel.types import BOOL, INT, STRING, list_of

_BYTE_CLASS = re.compile(r"\\(?:Q.*?(?:\\E|$)|(?P<byte>C)|.)", re.DOTALL)
"""`\\C` is one byte in RE2 and unknown to Go. A quoted `\\Q…\\E` is text."""

_BLANKS = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
"""Unicode's White_Space, which Go trims. Python also strips U+001C to U+001F."""

_MEMORY_BYTES = 256 * 1024
"""For one pattern: some ten thousand instructions, where typical patterns have a hundred. Go has no limit at this size,
but a search takes time in proportion to the text times these instructions: `\\pL{999}` would have a million."""


class PatternTooLarge(Failed):
    """A pattern that an API server may accept, and that is too large to be run here."""


@lru_cache(maxsize=128)
def compiled_pattern(pattern: str) -> Any:
    """The pattern, with the methods of Python's `re.Pattern`. Raises Failed for what no API server accepts, and
    PatternTooLarge."""
    if any(match["byte"] for match in _BYTE_CLASS.finditer(pattern)):
        raise Failed(r"invalid regular expression: `\C` is not supported")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = _text(error)
        if reason.startswith("pattern too large"):
            raise PatternTooLarge("the regular expression is too large to be run here") from None
        raise Failed(f"invalid regular expression: {reason}") from None


def _text(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


def _matches(text: str, pattern: str) -> bool:
    return compiled_pattern(pattern).search(text) is not None


def _find(text: str, pattern: str) -> str:
    match = compiled_pattern(pattern).search(text)
    return match.group() if match else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> tuple[str, ...]:
    """At most `limit` matches, all when it is negative. An empty match right behind another one does not count."""
    results: list[str] = []
    end = -1
    for match in compiled_pattern(pattern).finditer(text):
        if len(results) == limit:
            break
        if match.group() or match.start() != end:
            results.append(match.group())
        end = match.end()
    return bounded(tuple(results))


REGEXES: Library = {
    "matches": [method(BOOL, _matches, STRING, STRING), function(BOOL, _matches, STRING, STRING)],
    "find": [method(STRING, _find, STRING, STRING)],
    "findAll": [
        method(list_of(STRING), _find_all, STRING, STRING),
        method(list_of(STRING), _find_all, STRING, STRING, INT),
    ],
}


def _character(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise Failed(f"index {index} is out of range")
    return text[index : index + 1]


def _substring(text: str, start: int, end: int | None = None) -> str:
    last = len(text) if end is None else end
    if not 0 <= start <= last <= len(text):
        raise Failed(f"range {start} to {last} is outside of a text of {len(text)} characters")
    return text[start:last]


def _index_from(text: str, part: str, start: int) -> int:
    """The first place of `part` from `start` on; -1 when there is none. An empty part is wherever it is looked for."""
    if not part:
        return start
    if start < 0:
        raise Failed(f"index out of range: {start}")
    return text.find(part, start)


def _last_index_from(text: str, part: str, start: int) -> int:
    """The last place of `part` that is not after `start`."""
    if not part:
        return start
    if start < 0:
        raise Failed(f"index out of range: {start}")
    return text.rfind(part, 0, start + len(part)) if start < len(text) else -1


def _parts(text: str, separator: str, limit: int = -1) -> tuple[str, ...]:
    if limit == 0:
        return ()
    if separator == "":
        count = len(text) if limit < 0 else min(len(text), limit)
        return bounded((*text[: count - 1], text[count - 1 :])) if text else ()
    return bounded(tuple(text.split(separator, limit - 1 if limit > 0 else -1)))


def _replaced(text: str, old: str, new: str, limit: int = -1) -> str:
    return bounded(text.replace(old, new, limit))


def _joined(texts: Sequence[object], separator: str = "") -> str:
    # A list whose items were not known to be texts may hold anything.
    known = [text for text in texts if isinstance(text, str)]
    if len(known) != len(texts):
        raise Failed("join needs a list of strings")
    return bounded(separator.join(known))


def _ascii(text: str, change: Callable[[str], str]) -> str:
    if text.isascii():
        return change(text)
    return "".join(change(character) if character.isascii() else character for character in text)


_TEXTS = list_of(STRING)

STRINGS: Library = {
    "lowerAscii": [method(STRING, lambda text: _ascii(text, str.lower), STRING)],
    "upperAscii": [method(STRING, lambda text: _ascii(text, str.upper), STRING)],
    "trim": [method(STRING, lambda text: text.strip(_BLANKS), STRING)],
    "charAt": [method(STRING, _character, STRING, INT)],
    "substring": [method(STRING, _substring, STRING, INT), method(STRING, _substring, STRING, INT, INT)],
    "indexOf": [method(INT, str.find, STRING, STRING), method(INT, _index_from, STRING, STRING, INT)],
    "lastIndexOf": [method(INT, str.rfind, STRING, STRING), method(INT, _last_index_from, STRING, STRING, INT)],
    "replace": [
        method(STRING, _replaced, STRING, STRING, STRING),
        method(STRING, _replaced, STRING, STRING, STRING, INT),
    ],
    "split": [method(_TEXTS, _parts, STRING, STRING), method(_TEXTS, _parts, STRING, STRING, INT)],
    "join": [
        method(STRING, _joined, _TEXTS),
        method(STRING, _joined, _TEXTS, STRING),
    ],
}
