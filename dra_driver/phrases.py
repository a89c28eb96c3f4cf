"""Parts of messages that all packages word the same way. Pure."""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
from textwrap import TextWrapper


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def and_more(texts: Sequence[str], most: int, *, separator: str = ", ") -> str:
    """The first `most` of them, and how many there are besides: `a, b and 3 more`."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


def how_many(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """An age as kubectl writes it: `45s`, `12m`, `3h`, `8d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def folded(head: str, text: str, width: int) -> list[str]:
    """The text in lines of `width`, the first after `head`, the others below it."""
    width, below = max(width, len(head) + 40), " " * len(head)
    wrapper = TextWrapper(width, head, below, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(" ".join(text.split())) or [head]


def shown(value: object) -> str:
    """A user's value in an error of one line: shortened, `missing` for None."""
    if value is None:
        return "missing"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def meant(value: object, known: Iterable[str]) -> str:
    """`; did you mean ...?` with the one of `known` that resembles the value, else nothing."""
    if not isinstance(value, str) or len(value) > 80:
        return ""
    plain = {_plain(name): name for name in known}
    close = get_close_matches(_plain(value), plain, cutoff=0.7)
    # People forget the middle or the end of a word rather than its beginning.
    close.sort(key=lambda name: not name.startswith(_plain(value)[:3]))
    return f"; did you mean `{plain[close[0]]}`?" if close else ""


def is_misspelled(value: str, right: str) -> bool:
    """Whether a name is another one with a slip of a letter or two; names that differ in digits are different names."""
    plain, other = _plain(value), _plain(right)
    letters = re.sub("[0-9]", "", plain) != re.sub("[0-9]", "", other) or plain == other
    return letters and SequenceMatcher(None, plain, other).ratio() >= 0.9


def has_typo(value: str, right: str) -> bool:
    """Whether a name of at least four letters is another one with a letter too many or too few, or with two neighbors
    exchanged: `memroy`. `is_misspelled` does not see that in short names."""
    plain, other = sorted((_plain(value), _plain(right)), key=len)
    if len(plain) < 4 or re.sub("[0-9]", "", plain) == re.sub("[0-9]", "", other):
        return False
    if len(plain) == len(other):
        return any(plain[:at] + plain[at : at + 2][::-1] + plain[at + 2 :] == other for at in range(len(plain) - 1))
    return any(other[:at] + other[at + 1 :] == plain for at in range(len(other)))


def _plain(text: str) -> str:
    return re.sub(r"[-_ ]", "", text).lower()
