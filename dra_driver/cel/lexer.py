"""Expression text to tokens, by the lexical rules of the CEL language definition.

Literals are decoded here, so that an error in one points at its character.
"""

import re
from dataclasses import dataclass
from typing import Literal

from dra_driver.cel.errors import CelSyntaxError
from dra_driver.cel.types import Uint, decimal

type Kind = Literal["name", "constant", "sign", "end"]

_IGNORED = re.compile(r"(?:[\t\n\f\r ]|//[^\n]*)*")
_NAME = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
_FLOAT = re.compile(r"[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+")
_INTEGER = re.compile(r"(0x[0-9a-fA-F]+|[0-9]+)([uU]?)")
_STRING = re.compile(r"([rRbB]{0,2})('''|\"\"\"|'|\")")
_SIGNS = ("&&", "||", "==", "!=", "<=", ">=", *"<>+-*/%!?:.,()[]{}")
_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\?\"'`])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2}))"
)
_SIMPLE_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Token:
    """`value` is the value of a constant. `text` of a name or sign is what the parser compares."""

    kind: Kind
    text: str
    start: int
    end: int
    value: object = None


def tokens(expression: str) -> list[Token]:
    """All tokens, the last one of kind `end`. Raises CelSyntaxError."""
    results: list[Token] = []
    position = 0
    while True:
        position = _skip(expression, position)
        if position == len(expression):
            results.append(Token("end", "", position, position))
            return results
        results.append(_token(expression, position))
        position = results[-1].end


def _skip(expression: str, position: int) -> int:
    match = _IGNORED.match(expression, position)
    assert match is not None
    return match.end()


def _token(text: str, start: int) -> Token:
    if match := _STRING.match(text, start):
        return _string(text, match)
    if match := _NAME.match(text, start):
        word = match.group()
        if word in _WORDS:
            return Token("constant", word, start, match.end(), _WORDS[word])
        return Token("name", word, start, match.end())
    if match := _FLOAT.match(text, start):
        return Token("constant", match.group(), start, match.end(), float(match.group()))
    if match := _INTEGER.match(text, start):
        number = int(match[1], 16) if match[1].startswith("0x") else decimal(match[1])
        return Token("constant", match.group(), start, match.end(), Uint(number) if match[2] else number)
    for sign in _SIGNS:
        if text.startswith(sign, start):
            return Token("sign", sign, start, start + len(sign))
    hint = {"=": "; equality is `==`", "&": "; the logical and is `&&`", "|": "; the logical or is `||`"}
    raise CelSyntaxError(f"unexpected character {text[start]!r}{hint.get(text[start], '')}", text, start)


def _string(text: str, opening: re.Match[str]) -> Token:
    prefix, quote = opening[1].lower(), opening[2]
    if prefix in ("rr", "bb"):
        raise CelSyntaxError(f"unknown string prefix {opening[1]!r}", text, opening.start(), opening.end())
    raw, is_bytes = "r" in prefix, "b" in prefix
    pieces: list[str | bytes] = []
    position = opening.end()
    while not text.startswith(quote, position):
        if position >= len(text) or (len(quote) == 1 and text[position] in "\r\n"):
            raise CelSyntaxError(f"string is not closed with {quote}", text, opening.start(), position)
        if text[position] == "\\" and not raw:
            piece, position = _escape(text, position, is_bytes)
            pieces.append(piece)
        else:
            pieces.append(text[position])
            position += 1
    end = position + len(quote)
    return Token("constant", text[opening.start() : end], opening.start(), end, _joined(pieces, is_bytes))


def _escape(text: str, position: int, is_bytes: bool) -> tuple[str | bytes, int]:
    match = _ESCAPE.match(text, position)
    if match is None:
        raise CelSyntaxError("unknown escape; write a backslash as `\\\\`", text, position, position + 2)
    simple, hexadecimal, short, long, octal = match.groups()
    if simple:
        return _SIMPLE_ESCAPES.get(simple, simple), match.end()
    digits = short or long
    if digits:
        code = int(digits, 16)
        if is_bytes or code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise CelSyntaxError("not a Unicode character", text, position, match.end())
        return chr(code), match.end()
    code = int(hexadecimal, 16) if hexadecimal else int(octal, 8)
    return bytes([code]) if is_bytes else chr(code), match.end()


def _joined(pieces: list[str | bytes], is_bytes: bool) -> str | bytes:
    if is_bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece.encode() for piece in pieces)
    return "".join(piece for piece in pieces if isinstance(piece, str))
