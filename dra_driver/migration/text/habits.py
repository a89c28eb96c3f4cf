"""How a text is written: its steps of indentation, dashes and quotes, which what is new in it is to have too. Pure."""

import re
from collections import Counter
from collections.abc import Sequence

from dra_driver.migration.text.rendering import Style
from dra_driver.migration.text.tree import ListNode, MapNode, Scalar, Tree, column_of, leaves


def style_of(text: str, roots: Sequence[Tree]) -> Style:
    steps: Counter[int] = Counter()
    dashes: Counter[int] = Counter()
    quotes: Counter[str] = Counter()
    pending: list[Tree] = list(roots)
    while pending:
        tree = pending.pop()
        if isinstance(tree, Scalar):
            quotes[tree.style] += 1
        elif isinstance(tree, ListNode):
            pending += tree.items
        elif isinstance(tree, MapNode):
            for key, value in tree.pairs:
                pending += (key, value)
                if not tree.flow and isinstance(value, MapNode | ListNode) and not value.flow:
                    found = column_of(text, value.body) - column_of(text, key.start)
                    (dashes if isinstance(value, ListNode) else steps)[found] += 1
    is_json = text.lstrip().startswith(("{", "[")) and not quotes[""] - _words(roots)
    if is_json:
        return Style(_json_step(text), 0, '"', json=True)
    return Style(
        _most(steps, 2, lowest=1),
        _most(dashes, 0, lowest=0),
        '"' if quotes['"'] > quotes["'"] else "'",
    )


def _words(roots: Sequence[Tree]) -> int:
    """How many values without quotes are numbers or words that JSON has."""
    return sum(
        isinstance(leaf, Scalar) and not leaf.style and not isinstance(leaf.value, str)
        for root in roots
        for leaf in leaves(root)
    )


def _json_step(text: str) -> int:
    match = re.search(r"\{[ \t]*\n( +)", text)
    return len(match[1]) if match is not None else 2


def _most(counted: Counter[int], default: int, *, lowest: int) -> int:
    usual = [(times, -number) for number, times in counted.items() if number >= lowest]
    return -max(usual)[1] if usual else default
