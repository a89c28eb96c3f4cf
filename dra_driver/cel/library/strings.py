"""Functions of texts. Source: cel-go's ext/strings version 2."""

from collections.abc import Callable, Sequence

from dra_driver.cel.overloads import MOST_CHARACTERS, Failed, Library, affordable, function, method
from dra_driver.cel.types import INT, STRING, list_of


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
        return (*text[: count - 1], text[count - 1 :]) if text else ()
    return tuple(text.split(separator, limit - 1 if limit > 0 else -1))


def _replaced(text: str, old: str, new: str, limit: int = -1) -> str:
    count = text.count(old) if limit < 0 else min(text.count(old), limit)
    affordable(len(text) + count * (len(new) - len(old)), MOST_CHARACTERS)
    return text.replace(old, new, limit)


def _joined(texts: Sequence[object], separator: str = "") -> str:
    # A list whose items were not known to be texts may hold anything.
    known = [text for text in texts if isinstance(text, str)]
    if len(known) != len(texts):
        raise Failed("join needs a list of strings")
    affordable(sum(map(len, known)) + len(known) * len(separator), MOST_CHARACTERS)
    return separator.join(known)


def _ascii(text: str, change: Callable[[str], str]) -> str:
    if text.isascii():
        return change(text)
    return "".join(change(character) if character.isascii() else character for character in text)


_ESCAPES = str.maketrans(
    {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v", "\\": r"\\", '"': r"\""}
)


def quoted(text: str) -> str:
    """The text as a literal."""
    return f'"{text.translate(_ESCAPES)}"'


_TEXTS = list_of(STRING)

STRINGS: Library = {
    "strings.quote": [function(STRING, quoted, STRING)],
    "lowerAscii": [method(STRING, lambda text: _ascii(text, str.lower), STRING)],
    "upperAscii": [method(STRING, lambda text: _ascii(text, str.upper), STRING)],
    "trim": [method(STRING, str.strip, STRING)],
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
