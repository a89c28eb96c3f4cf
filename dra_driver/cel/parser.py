"""Expression text to a tree. Errors point at the character that cannot be.

Precedence, from weak to strong: `? :`, `||`, `&&`, comparison and `in`, `+ -`, `* / %`, unary `! -`, then member
access, index and call. `has`, `cel.bind`, comprehensions and `optMap` are recognized here, because their arguments are
names and not values. Source: CEL language definition, grammar and macros.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dra_driver.cel.errors import CelNotJudged, CelSyntaxError
from dra_driver.cel.tree import (
    Bind,
    CallNode,
    Comprehension,
    ComprehensionKind,
    Conditional,
    Constant,
    Has,
    Index,
    ListLiteral,
    Logical,
    MapLiteral,
    Name,
    OptionalMap,
    Select,
    SyntaxNode,
    children,
)
from dra_driver.cel.types import INT_MAX, INT_MIN, WRAPPERS, decimal

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
        if match[2]:
            raise CelNotJudged("unsigned numbers are not known here", text, start, match.end())
        number = int(match[1], 16) if match[1].startswith("0x") else decimal(match[1])
        return Token("constant", match.group(), start, match.end(), number)
    for sign in _SIGNS:
        if text.startswith(sign, start):
            return Token("sign", sign, start, start + len(sign))
    hint = {"=": "; equality is `==`", "&": "; the logical and is `&&`", "|": "; the logical or is `||`"}
    raise CelSyntaxError(f"unexpected character {text[start]!r}{hint.get(text[start], '')}", text, start)


def _string(text: str, opening: re.Match[str]) -> Token:
    prefix, quote = opening[1].lower(), opening[2]
    if prefix in ("rr", "bb"):
        raise CelSyntaxError(f"unknown string prefix {opening[1]!r}", text, opening.start(), opening.end())
    if "b" in prefix:
        raise CelNotJudged("bytes are not known here", text, opening.start(), opening.end())
    raw = "r" in prefix
    pieces: list[str] = []
    position = opening.end()
    while not text.startswith(quote, position):
        if position >= len(text) or (len(quote) == 1 and text[position] in "\r\n"):
            raise CelSyntaxError(f"string is not closed with {quote}", text, opening.start(), position)
        if text[position] == "\\" and not raw:
            piece, position = _escape(text, position)
            pieces.append(piece)
        else:
            pieces.append(text[position])
            position += 1
    end = position + len(quote)
    return Token("constant", text[opening.start() : end], opening.start(), end, "".join(pieces))


def _escape(text: str, position: int) -> tuple[str, int]:
    match = _ESCAPE.match(text, position)
    if match is None:
        raise CelSyntaxError("unknown escape; write a backslash as `\\\\`", text, position, position + 2)
    simple, hexadecimal, short, long, octal = match.groups()
    if simple:
        return _SIMPLE_ESCAPES.get(simple, simple), match.end()
    digits = short or long
    if digits:
        code = int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise CelSyntaxError("not a Unicode character", text, position, match.end())
        return chr(code), match.end()
    code = int(hexadecimal, 16) if hexadecimal else int(octal, 8)
    return chr(code), match.end()


MAX_LENGTH = 10 * 1024
"""Bytes; the API server refuses longer selectors."""

_MOST_LEVELS = 55
"""Of parentheses within each other; twice as many of operations. An API server takes more."""

_LEVELS = (
    frozenset({"<", "<=", ">", ">=", "==", "!=", "in"}),
    frozenset({"+", "-"}),
    frozenset({"*", "/", "%"}),
)
"""Operators between two operands, the weaker ones first."""

_RESERVED = frozenset(
    {
        *("as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop"),
        *("package", "namespace", "return", "var", "void", "while"),
    }
)
_COMPREHENSIONS: dict[tuple[str, int], ComprehensionKind] = {
    ("all", 2): "all", ("exists", 2): "exists", ("exists_one", 2): "exists_one", ("map", 2): "map", ("map", 3): "map",
    ("filter", 2): "filter",
}  # fmt: skip
_OF_TWO_VARIABLES: dict[tuple[str, int], ComprehensionKind] = {
    ("all", 3): "all", ("exists", 3): "exists", ("exists_one", 3): "exists_one", ("existsOne", 3): "exists_one",
}  # fmt: skip
"""Macros by name and number of arguments."""


def parse(expression: str) -> SyntaxNode:
    """The tree of `expression`. Raises CelSyntaxError."""
    try:
        size = len(expression.encode())
    except UnicodeEncodeError as error:
        raise CelSyntaxError("not a Unicode character", expression, error.start, error.end) from None
    if size > MAX_LENGTH:
        raise CelSyntaxError(f"longer than {MAX_LENGTH} bytes", expression, 0)
    if not expression.strip():
        raise CelSyntaxError("the expression is empty", expression, 0)
    tree = _Parser(expression).whole()
    if _depth(tree) > 2 * _MOST_LEVELS:
        raise CelNotJudged("so many operations within each other", expression, tree.start, tree.end)
    return tree


def _depth(root: SyntaxNode) -> int:
    deepest, todo = 0, [(root, 1)]
    while todo:
        node, depth = todo.pop()
        deepest = max(deepest, depth)
        todo += [(child, depth + 1) for child in children(node)]
    return deepest


class _Parser:
    def __init__(self, expression: str) -> None:
        self._text = expression
        self._tokens = tokens(expression)
        self._position = 0
        self._depth = 0

    # -- tokens

    @property
    def _next(self) -> Token:
        return self._tokens[self._position]

    def _take(self) -> Token:
        token = self._next
        self._position += 1
        return token

    def _at(self, sign: str) -> bool:
        return self._next.kind == "sign" and self._next.text == sign

    def _skip(self, sign: str) -> bool:
        if self._at(sign):
            self._position += 1
            return True
        return False

    def _expect(self, sign: str, after: str) -> Token:
        if not self._at(sign):
            raise self._error(f"expected `{sign}` {after}, found {self._token_text()}")
        return self._take()

    def _token_text(self) -> str:
        return "the end of the expression" if self._next.kind == "end" else f"`{self._next.text}`"

    def _error(self, message: str, token: Token | None = None) -> CelSyntaxError:
        token = token or self._next
        return CelSyntaxError(message, self._text, token.start, token.end)

    def _not_known(self, subject: str, start: int | None = None) -> CelNotJudged:
        start = self._next.start if start is None else start
        return CelNotJudged(f"{subject} not known here", self._text, start, self._next.end)

    # -- grammar

    def whole(self) -> SyntaxNode:
        node = self._expression()
        if self._next.kind != "end":
            raise self._error(f"expected an operator or the end of the expression, found {self._token_text()}")
        return node

    def _expression(self) -> SyntaxNode:
        self._depth += 1
        if self._depth > _MOST_LEVELS:
            raise self._not_known("so many levels of parentheses are")
        condition = self._logical("||")
        if self._skip("?"):
            then = self._logical("||")
            self._expect(":", "of the conditional `? :`")
            otherwise = self._expression()
            condition = Conditional(condition, then, otherwise, start=condition.start, end=otherwise.end)
        self._depth -= 1
        return condition

    def _logical(self, operator: Literal["&&", "||"]) -> SyntaxNode:
        parts = [self._operand_of(operator)]
        while self._skip(operator):
            parts.append(self._operand_of(operator))
        if len(parts) == 1:
            return parts[0]
        return Logical(operator, tuple(parts), start=parts[0].start, end=parts[-1].end)

    def _operand_of(self, operator: Literal["&&", "||"]) -> SyntaxNode:
        return self._logical("&&") if operator == "||" else self._infix(0)

    def _infix(self, weakest: int) -> SyntaxNode:
        """Operands and the operators between them, from the level `weakest` on."""
        if weakest == len(_LEVELS):
            return self._unary()
        left = self._infix(weakest + 1)
        while self._next.kind in ("sign", "name") and self._next.text in _LEVELS[weakest]:
            operator = self._take()
            right = self._infix(weakest + 1)
            left = CallNode(operator.text, None, (left, right), operator.start, start=left.start, end=right.end)
        return left

    def _unary(self) -> SyntaxNode:
        signs: list[Token] = []
        while self._at("!") or self._at("-"):
            if signs and signs[-1].text != self._next.text:
                raise self._error(f"`{self._next.text}` cannot follow `{signs[-1].text}`; use parentheses")
            signs.append(self._take())
        negative = bool(signs) and signs[-1].text == "-" and self._is_number(self._next)
        node = self._member(signs.pop() if negative else None)
        if len(signs) % 2 == 0:  # an API server leaves out pairs of signs
            return node
        sign = signs[-1]
        return CallNode(f"{sign.text}_", None, (node,), sign.start, start=sign.start, end=node.end)

    @staticmethod
    def _is_number(token: Token) -> bool:
        return token.kind == "constant" and type(token.value) in (int, float)

    def _member(self, minus: Token | None) -> SyntaxNode:
        node = self._number(minus) if minus else self._primary()
        while True:
            if self._skip("."):
                node = self._after_dot(node)
            elif self._at("["):
                node = self._index(node)
            elif self._at("{"):
                node = self._message(node)
            else:
                return node

    def _message(self, node: SyntaxNode) -> SyntaxNode:
        """A wrapper as a call with its name: `google.protobuf.Int64Value{value: 3}` has one argument, `…{}` none."""
        name = _dotted(node)
        if name not in WRAPPERS and name.startswith("google.protobuf."):
            raise self._not_known(f"`{name}{{…}}` is", node.start)
        if name not in WRAPPERS:
            raise self._error(f"there is no message type `{name}`; maps are written `{{key: value}}`")

        def value() -> SyntaxNode:
            field = self._take()
            if field.text != "value":
                raise self._error(f"`{name}` has only the field `value`", field)
            self._expect(":", "between field and value")
            return self._expression()

        _, values, end = self._literal("}", "message", value)
        if len(values) > 1:
            raise self._not_known("several fields in one message are", node.start)
        return CallNode(name, None, values, node.start, start=node.start, end=end)

    def _literal[T](self, closing: str, what: str, item: Callable[[], T]) -> tuple[int, tuple[T, ...], int]:
        """From the opening sign on: start, what is between the commas, and end. A comma may follow the last one."""
        start, items = self._take().start, list[T]()
        while not self._at(closing):
            if self._at("?"):
                raise self._not_known("`?` in a list, map or message is")
            items.append(item())
            if not self._skip(","):
                break
        return start, tuple(items), self._expect(closing, f"to close the {what}").end

    def _after_dot(self, operand: SyntaxNode) -> SyntaxNode:
        optional = self._skip("?")
        name = self._take()
        if name.kind != "name" or name.text == "in":
            actual = f"`{name.text}`" if name.text else "the end of the expression"
            raise self._error(f"expected a field name after `.`, found {actual}", name)
        if not optional and self._at("("):
            return self._call(operand, name)
        return Select(operand, name.text, name.start, optional, start=operand.start, end=name.end)

    def _index(self, operand: SyntaxNode) -> SyntaxNode:
        self._take()
        optional = self._skip("?")
        index = self._expression()
        end = self._expect("]", "after the index").end
        return Index(operand, index, optional, start=operand.start, end=end)

    def _primary(self) -> SyntaxNode:
        token = self._next
        if token.kind == "constant":
            return self._number(None) if type(token.value) is int else self._constant()
        if token.kind == "name" and token.text != "in":
            return self._name()
        if self._skip("("):
            inner = self._expression()
            self._expect(")", "to close the parenthesis")
            return inner
        if self._at("["):
            start, items, end = self._literal("]", "list", self._expression)
            return ListLiteral(items, start=start, end=end)
        if self._at("{"):
            start, entries, end = self._literal("}", "map", self._entry)
            return MapLiteral(entries, start=start, end=end)
        if self._at("."):
            self._take()
            return self._name()
        raise self._error(f"expected a value, found {self._token_text()}")

    def _constant(self) -> SyntaxNode:
        token = self._take()
        return Constant(token.value, start=token.start, end=token.end)

    def _number(self, minus: Token | None) -> SyntaxNode:
        token = self._take()
        start = minus.start if minus else token.start
        value = token.value
        assert isinstance(value, int | float)
        if minus:
            value = -value
        if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
            raise CelSyntaxError("the number does not fit in 64 bits", self._text, start, token.end)
        return Constant(value, start=start, end=token.end)

    def _name(self) -> SyntaxNode:
        name = self._take()
        if name.kind != "name":
            raise self._error(f"expected a name, found `{name.text}`", name)
        if name.text in _RESERVED:
            raise self._error(f"`{name.text}` is a reserved word", name)
        if self._at("("):
            return self._call(None, name)
        return Name(name.text, start=name.start, end=name.end)

    def _entry(self) -> tuple[SyntaxNode, SyntaxNode]:
        key = self._expression()
        self._expect(":", "between key and value")
        return key, self._expression()

    # -- calls and macros

    def _call(self, target: SyntaxNode | None, name: Token) -> SyntaxNode:
        self._take()
        arguments = [] if self._at(")") else [self._expression()]
        while self._skip(","):
            arguments.append(self._expression())
        end = self._expect(")", f"to close the call of `{name.text}`").end
        start = target.start if target else name.start
        macro = self._macro(target, name, arguments, start, end)
        return macro or CallNode(name.text, target, tuple(arguments), name.start, start=start, end=end)

    def _macro(
        self, target: SyntaxNode | None, name: Token, arguments: list[SyntaxNode], start: int, end: int
    ) -> SyntaxNode | None:
        """A macro's node when name and number of arguments are those of one; otherwise it is an ordinary call."""
        word, count = name.text, len(arguments)
        if target is None:
            return self._has(arguments[0], start, end) if word == "has" and count == 1 else None
        if word == "bind" and count == 3 and isinstance(target, Name) and target.name == "cel":
            return Bind(self._variable(arguments[0]), arguments[1], arguments[2], start=start, end=end)
        if word == "optMap" and count == 2:
            return OptionalMap(target, self._variable(arguments[0]), arguments[1], start=start, end=end)
        return self._comprehension(target, word, arguments, start, end)

    def _comprehension(
        self, target: SyntaxNode, word: str, arguments: list[SyntaxNode], start: int, end: int
    ) -> SyntaxNode | None:
        count = len(arguments)
        two = _OF_TWO_VARIABLES.get((word, count))
        kind = two or _COMPREHENSIONS.get((word, count))
        if kind is None:
            return None
        variable, second = self._variable(arguments[0]), self._variable(arguments[1]) if two else None
        if variable == second:
            raise CelSyntaxError(
                f"both variables are called `{second}`", self._text, arguments[1].start, arguments[1].end
            )
        names = 2 if two else 1
        condition = arguments[names] if count == names + 2 else None
        return Comprehension(kind, target, variable, arguments[-1], condition, second, start=start, end=end)

    def _has(self, argument: SyntaxNode, start: int, end: int) -> SyntaxNode:
        if isinstance(argument, Select) and not argument.optional:
            return Has(argument, start=start, end=end)
        if isinstance(argument, Index):
            operand = self._text[argument.operand.start : argument.operand.end]
            index = self._text[argument.index.start : argument.index.end]
            message = f"has() needs a field, as in has(a.b); to ask for a key write `{index} in {operand}`"
        else:
            message = "has() needs a field, as in has(a.b)"
        raise CelSyntaxError(message, self._text, argument.start, argument.end)

    def _variable(self, node: SyntaxNode) -> str:
        if not isinstance(node, Name):
            raise CelSyntaxError("a variable must be a simple name", self._text, node.start, node.end)
        return node.name


def _dotted(node: SyntaxNode) -> str:
    """`a.b.c` as a name; its end when it begins with something else."""
    fields: list[str] = []
    while isinstance(node, Select):
        fields.insert(0, node.field)
        node = node.operand
    return ".".join([node.name, *fields] if isinstance(node, Name) else fields)
