"""Queries of Prometheus, read word by word: what can be said of them without an engine.

Not a parser: brackets match, words are ones that PromQL has, and families and labels are ones that somebody tells.
`promtool` evaluates the same queries where it is installed.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

AGGREGATIONS = frozenset({"avg", "count", "group", "max", "min", "sum", "topk"})
FUNCTIONS = frozenset(
    {
        "absent", "clamp_max", "histogram_quantile", "increase", "label_replace", "last_over_time", "max_over_time",
        "rate", "time", "vector",
    }
)  # fmt: skip
MATCHING = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
OPERATORS = frozenset({"and", "or", "unless", "bool", "offset"})
ADDED = frozenset({"node", "pod", "namespace", "le", "job", "instance"})
"""Labels that monitors give to every series, and that of histograms."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<duration>\d+(?:ms|[smhdwy])\b)|(?P<number>\d+(?:\.\d+)?)"""
    r"""|(?P<word>[A-Za-z_:][\w:]*)|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){}\[\],])|(?P<variable>\$\w+))"""
)
_BRACKETS = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True)
class Token:
    kind: str
    text: str


def tokens(query: str) -> tuple[Token, ...]:
    """Raises ValueError at what no query can have."""
    words, at = [], 0
    query = query.rstrip()
    while at < len(query):
        match = _TOKEN.match(query, at)
        if match is None:
            raise ValueError(f"what is {query[at : at + 20]!r}")
        assert match.lastgroup is not None
        words.append(Token(match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return tuple(words)


def faults(query: str, families: Mapping[str, Collection[str]]) -> list[str]:
    """Sentences about what cannot be right; `families` have their labels."""
    try:
        words = tokens(query)
    except ValueError as error:
        return [str(error)]
    return [*_unbalanced(words), *_unknown(words, families)]


def _unbalanced(words: Sequence[Token]) -> Iterator[str]:
    opened: list[str] = []
    for word in words:
        if word.kind == "sign" and word.text in "([{":
            opened.append(word.text)
        elif word.kind == "sign" and word.text in _BRACKETS and (not opened or opened.pop() != _BRACKETS[word.text]):
            yield f"a {word.text} too many"
    if opened:
        yield f"{opened[-1]} is not closed"


def _unknown(words: Sequence[Token], families: Mapping[str, Collection[str]]) -> Iterator[str]:
    every_label = {label for labels in families.values() for label in labels} | ADDED
    for start, end in _lists(words):
        yield from (
            f"no family has the label {word.text}"
            for word in words[start:end]
            if word.kind == "word" and word.text not in every_label
        )
    inside = {index for start, end in _lists(words) for index in range(start, end)}
    for index, word in enumerate(words):
        if word.kind != "word" or index in inside or word.text in MATCHING | OPERATORS | AGGREGATIONS | FUNCTIONS:
            continue
        if word.text not in families:
            yield f"there is no family {word.text}"
            continue
        for label in _selected(words, index + 1):
            inside.add(label)
            if words[label].text not in {*families[word.text], *ADDED}:
                yield f"{word.text} has no label {words[label].text}"


def _lists(words: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """The labels between the brackets after `by` and its like."""
    for index, word in enumerate(words):
        if word.kind == "word" and word.text in MATCHING and words[index + 1 : index + 2] == (Token("sign", "("),):
            yield index + 2, words.index(Token("sign", ")"), index)


def _selected(words: Sequence[Token], start: int) -> Iterator[int]:
    """Where the labels of a selector are, if one begins there."""
    if words[start : start + 1] != (Token("sign", "{"),):
        return
    for index in range(start + 1, len(words)):
        if words[index] == Token("sign", "}"):
            return
        if words[index].kind == "word":
            yield index


def labels_left(query: str, families: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Labels that its result can have at most: of the first aggregation, or else of the first family."""
    words = tokens(query)
    for start, end in _lists(words):
        if words[start - 2].text == "by":
            return frozenset(word.text for word in words[start:end] if word.kind == "word")
    (first, *_) = [word.text for word in words if word.kind == "word" and word.text in families]
    return frozenset(families[first]) | ADDED
