"""Regular expressions of expressions: RE2's syntax, run by Python's `re`.

The two agree on what people write. What Python has and RE2 has not is refused, so that nothing passes here that the
API server would refuse; what both spell differently is translated.
"""

import re
from functools import lru_cache

_POSIX_CLASSES = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7F", "blank": r"\t ", "cntrl": r"\x00-\x1F\x7F",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~", "space": r"\t\n\v\f\r ",
    "upper": "A-Z", "word": "0-9A-Za-z_", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
_PIECE = re.compile(
    r"(?P<escape>\\.)"
    r"|(?P<posix>\[:\w+:\])"
    r"|(?P<open>\[\^?\]?)"
    r"|(?P<close>\])"
    r"|(?P<named>\(\?<(?=[A-Za-z_]))"
    r"|(?P<group>\(\?(?:P<|[imsU-]*[:)])?)"
    r"|(?P<possessive>(?:[*+?]|\{[0-9,]+\})\+)"
    r"|(?P<dollar>\$)",
    re.DOTALL,
)
_FLAGS = re.compile(r"\(\?([imsU]*)(?:-[imsU]*)?[:)]")


class Unsupported(Exception):
    """Not a regular expression, or one that RE2 does not have."""


@lru_cache(maxsize=512)
def compiled(pattern: str) -> re.Pattern[str]:
    """Raises Unsupported."""
    multiline = any("m" in flags for flags in _FLAGS.findall(pattern))
    try:
        return re.compile(_translated(pattern, multiline), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise Unsupported(f"invalid regular expression: {error}") from None


def _translated(pattern: str, multiline: bool) -> str:
    in_class = False
    pieces: list[str] = []
    position = 0
    while match := _PIECE.search(pattern, position):
        pieces.append(pattern[position : match.start()])
        kind, text = match.lastgroup, match.group()
        position = match.end()
        if kind == "open":
            # In a class an opening bracket is a character; `[]` and `[^]` begin with a bracket that is one too.
            pieces.append("\\[" if in_class else text.replace("]", "\\]"))
            position = match.start() + 1 if in_class else position
            in_class = True
        elif kind == "close":
            in_class = False
            pieces.append(text)
        elif in_class and kind != "escape" and kind != "posix":
            pieces.append(text)
        else:
            pieces.append(_piece(kind, text, in_class, multiline))
    return "".join(pieces) + pattern[position:]


def _piece(kind: str | None, text: str, in_class: bool, multiline: bool) -> str:
    if kind == "escape":
        if text[1] in "123456789" or text[1] == "Z":
            raise Unsupported(f"invalid regular expression: `{text}` is not supported")
        return r"\Z" if text == r"\z" else text
    if kind == "posix":
        if not in_class or text[2:-2] not in _POSIX_CLASSES:
            raise Unsupported(f"invalid regular expression: unknown class {text}")
        return _POSIX_CLASSES[text[2:-2]]
    if kind == "dollar":
        # RE2's $ is the end of the text; Python's also stands before a final newline.
        return "$" if multiline else r"\Z"
    if kind == "named":
        return "(?P<"
    if kind == "possessive" or text == "(?":
        raise Unsupported(f"invalid regular expression: `{text}` is not supported")
    return text
