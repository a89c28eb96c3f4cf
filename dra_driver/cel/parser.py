"""Expression text to a tree. Errors point at the character that cannot be.

Precedence, from weak to strong: `? :`, `||`, `&&`, comparison and `in`, `+ -`, `* / %`, unary `! -`, then member
access, index and call. `has`, `cel.bind`, comprehensions and `optMap` are recognised here, because their arguments are
names and not values. Source: CEL language definition, grammar and macros.
"""

import sys
from typing import Literal

from dra_driver.cel.errors import CelNotJudged, CelSyntaxError
from dra_driver.cel.lexer import Token, tokens
from dra_driver.cel.messages import MESSAGES, NOT_JUDGED
from dra_driver.cel.tree import (
    Bind,
    Call,
    Comprehension,
    ComprehensionKind,
    Conditional,
    Constant,
    Has,
    Index,
    ListLiteral,
    Logical,
    MapLiteral,
    MessageLiteral,
    Name,
    Node,
    OptionalMap,
    Select,
    children,
)
from dra_driver.cel.values import INT_MAX, INT_MIN, UINT_MAX, Uint

MAX_LENGTH = 10 * 1024
"""Bytes; the API server refuses longer selectors."""

_MOST_LEVELS = 250
"""Of each rule of the grammar within itself, and of operations within each other; so many an API server takes."""

type _Rule = Literal["expression", "relation", "sum"]

_LEVELS: dict[_Rule, tuple[frozenset[str], ...]] = {
    "relation": (frozenset({"<", "<=", ">", ">=", "==", "!=", "in"}),),
    "sum": (frozenset({"+", "-"}), frozenset({"*", "/", "%"})),
}
"""Operators between two operands, the weaker ones first."""

_USUAL_LEVELS = 50
_FRAMES = 20_000
"""Python frames for an expression as deep as an API server takes: parsing one needs ten times its depth."""
_RESERVED = frozenset(
    {
        *("as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop"),
        *("package", "namespace", "return", "var", "void", "while"),
    }
)
_COMPREHENSIONS: dict[tuple[str, int], ComprehensionKind] = {
    ("all", 2): "all", ("exists", 2): "exists", ("exists_one", 2): "exists_one", ("map", 2): "map", ("map", 3): "map",
    ("filter", 2): "filter", ("sortBy", 2): "sortBy",
}  # fmt: skip
_OF_TWO_VARIABLES: dict[tuple[str, int], ComprehensionKind] = {
    ("all", 3): "all", ("exists", 3): "exists", ("exists_one", 3): "exists_one", ("existsOne", 3): "exists_one",
    ("transformList", 3): "transformList", ("transformList", 4): "transformList",
    ("transformMap", 3): "transformMap", ("transformMap", 4): "transformMap",
    ("transformMapEntry", 3): "transformMapEntry", ("transformMapEntry", 4): "transformMapEntry",
}  # fmt: skip
"""Macros by name and number of arguments."""


def parse(expression: str) -> Node:
    """The tree of `expression`. Raises CelSyntaxError."""
    if len(expression.encode()) > MAX_LENGTH:
        raise CelSyntaxError(f"longer than {MAX_LENGTH} bytes", expression, 0)
    if not expression.strip():
        raise CelSyntaxError("the expression is empty", expression, 0)
    tree = _Parser(expression).whole()
    operations = _operations(tree)
    if operations > _USUAL_LEVELS:
        _make_room()
    if operations > _MOST_LEVELS:
        raise CelSyntaxError(f"more than {_MOST_LEVELS} operations within each other", expression, tree.start, tree.end)
    return tree


def _make_room() -> None:
    """For an expression that is deeper than Python's usual limit allows. It stays so: the tree is checked and evaluated
    later, and by other threads. Python's frames are on the heap, and C's stack has a limit of its own."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _FRAMES))


def _operations(root: Node) -> int:
    """Operations within each other, as an API server counts them: without `!`, `-x`, `&&`, `||` and functions."""
    deepest, todo = 0, [(root, 0)]
    while todo:
        node, above = todo.pop()
        counts = isinstance(node, Select | Index | Conditional | Comprehension | Bind | OptionalMap) or (
            isinstance(node, Call) and (node.target is not None or node.function in _INFIX)
        )
        depth = above + counts
        deepest = max(deepest, depth)
        todo += [(child, depth) for child in children(node)]
    return deepest


_INFIX = frozenset(sign for levels in _LEVELS.values() for level in levels for sign in level)


class _Parser:
    def __init__(self, expression: str) -> None:
        self._text = expression
        self._tokens = tokens(expression)
        self._position = 0
        self._depths: dict[_Rule, int] = dict.fromkeys(("expression", "relation", "sum"), 0)

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
            raise self._error(f"expected `{sign}` {after}, found {self._found()}")
        return self._take()

    def _found(self) -> str:
        return "the end of the expression" if self._next.kind == "end" else f"`{self._next.text}`"

    def _error(self, message: str, token: Token | None = None) -> CelSyntaxError:
        token = token or self._next
        return CelSyntaxError(message, self._text, token.start, token.end)

    # -- grammar

    def whole(self) -> Node:
        node = self._expression()
        if self._next.kind != "end":
            raise self._error(f"expected an operator or the end of the expression, found {self._found()}")
        return node

    def _deeper(self, rule: _Rule) -> None:
        self._depths[rule] += 1
        if self._depths[rule] > _USUAL_LEVELS:
            _make_room()
        if self._depths[rule] > _MOST_LEVELS:
            raise self._error(f"nested more than {_MOST_LEVELS} levels deep")

    def _expression(self) -> Node:
        self._deeper("expression")
        condition = self._logical("||")
        if self._skip("?"):
            then = self._logical("||")
            self._expect(":", "of the conditional `? :`")
            otherwise = self._expression()
            condition = Conditional(condition, then, otherwise, start=condition.start, end=otherwise.end)
        self._depths["expression"] -= 1
        return condition

    def _logical(self, operator: Literal["&&", "||"]) -> Node:
        parts = [self._operand_of(operator)]
        while self._skip(operator):
            parts.append(self._operand_of(operator))
        if len(parts) == 1:
            return parts[0]
        return Logical(operator, tuple(parts), start=parts[0].start, end=parts[-1].end)

    def _operand_of(self, operator: Literal["&&", "||"]) -> Node:
        return self._logical("&&") if operator == "||" else self._infix("relation", 0)

    def _infix(self, rule: _Rule, weakest: int) -> Node:
        """Operands and the operators of `rule` between them, from the level `weakest` on."""
        self._deeper(rule)
        left = self._infix("sum", 0) if rule == "relation" else self._unary()
        while (level := self._level(rule)) >= weakest:
            operator = self._take()
            right = self._infix(rule, level + 1)
            left = Call(operator.text, None, (left, right), operator.start, start=left.start, end=right.end)
        self._depths[rule] -= 1
        return left

    def _level(self, rule: _Rule) -> int:
        """How strong the next operator is; -1 when it is none of the rule."""
        if self._next.kind not in ("sign", "name"):
            return -1
        return next((place for place, signs in enumerate(_LEVELS[rule]) if self._next.text in signs), -1)

    def _unary(self) -> Node:
        signs: list[Token] = []
        while self._at("!") or self._at("-"):
            if signs and signs[-1].text != self._next.text:
                raise self._error(f"`{self._next.text}` cannot follow `{signs[-1].text}`; use parentheses")
            signs.append(self._take())
        negative = bool(signs) and signs[-1].text == "-" and self._is_number(self._next)
        node = self._member(signs.pop() if negative else None)
        if len(signs) % 2 == 0:  # an API server leaves out pairs of signs, whatever follows
            return node
        sign = signs[-1]
        return Call(f"{sign.text}_", None, (node,), sign.start, start=sign.start, end=node.end)

    @staticmethod
    def _is_number(token: Token) -> bool:
        return token.kind == "constant" and type(token.value) in (int, float)

    def _member(self, minus: Token | None) -> Node:
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

    def _message(self, node: Node) -> Node:
        name = _dotted(node)
        if name == NOT_JUDGED:
            raise CelNotJudged(f"`{name}{{…}}` is not known here", self._text, node.start, self._next.end)
        if name not in MESSAGES:
            raise self._error(f"there is no message type `{name}`; maps are written `{{key: value}}`")
        self._take()
        given: list[tuple[str, Node, bool]] = []
        while not self._at("}"):
            optional, field = self._skip("?"), self._take()
            if field.kind != "name":
                raise self._error(f"expected a field of `{name}`, found `{field.text}`", field)
            self._expect(":", "between field and value")
            given.append((field.text, self._expression(), optional))
            if not self._skip(","):
                break
        end = self._expect("}", "to close the message").end
        return MessageLiteral(name, tuple(given), start=node.start, end=end)

    def _after_dot(self, operand: Node) -> Node:
        optional = self._skip("?")
        name = self._take()
        if name.kind != "name" or name.text == "in":
            found = f"`{name.text}`" if name.text else "the end of the expression"
            raise self._error(f"expected a field name after `.`, found {found}", name)
        if not optional and self._at("("):
            return self._call(operand, name)
        return Select(operand, name.text, name.start, optional, start=operand.start, end=name.end)

    def _index(self, operand: Node) -> Node:
        self._take()
        optional = self._skip("?")
        index = self._expression()
        end = self._expect("]", "after the index").end
        return Index(operand, index, optional, start=operand.start, end=end)

    def _primary(self) -> Node:
        token = self._next
        if token.kind == "constant":
            return self._number(None) if type(token.value) in (int, Uint) else self._constant()
        if token.kind == "name" and token.text != "in":
            return self._name()
        if self._skip("("):
            inner = self._expression()
            self._expect(")", "to close the parenthesis")
            return inner
        if self._at("["):
            return self._list()
        if self._at("{"):
            return self._map()
        if self._at("."):
            self._take()
            return self._name()
        raise self._error(f"expected a value, found {self._found()}")

    def _constant(self) -> Node:
        token = self._take()
        return Constant(token.value, start=token.start, end=token.end)

    def _number(self, minus: Token | None) -> Node:
        token = self._take()
        start = minus.start if minus else token.start
        value = token.value
        assert isinstance(value, int | float)
        if minus:
            value = -value
        lowest, highest = (0, UINT_MAX) if isinstance(value, Uint) else (INT_MIN, INT_MAX)
        if isinstance(value, int) and not lowest <= value <= highest:
            raise CelSyntaxError("the number does not fit in 64 bits", self._text, start, token.end)
        return Constant(value, start=start, end=token.end)

    def _name(self) -> Node:
        name = self._take()
        if name.kind != "name":
            raise self._error(f"expected a name, found `{name.text}`", name)
        if name.text in _RESERVED:
            raise self._error(f"`{name.text}` is a reserved word", name)
        if self._at("("):
            return self._call(None, name)
        return Name(name.text, start=name.start, end=name.end)

    def _list(self) -> Node:
        opening = self._take()
        items: list[Node] = []
        optional: set[int] = set()
        while not self._at("]"):
            if self._skip("?"):
                optional.add(len(items))
            items.append(self._expression())
            if not self._skip(","):
                break
        end = self._expect("]", "to close the list").end
        return ListLiteral(tuple(items), frozenset(optional), start=opening.start, end=end)

    def _map(self) -> Node:
        opening = self._take()
        entries: list[tuple[Node, Node]] = []
        optional: set[int] = set()
        while not self._at("}"):
            if self._skip("?"):
                optional.add(len(entries))
            key = self._expression()
            self._expect(":", "between key and value")
            entries.append((key, self._expression()))
            if not self._skip(","):
                break
        end = self._expect("}", "to close the map").end
        return MapLiteral(tuple(entries), frozenset(optional), start=opening.start, end=end)

    # -- calls and macros

    def _call(self, target: Node | None, name: Token) -> Node:
        self._take()
        arguments = [] if self._at(")") else [self._expression()]
        while self._skip(","):
            arguments.append(self._expression())
        end = self._expect(")", f"to close the call of `{name.text}`").end
        start = target.start if target else name.start
        macro = self._macro(target, name, arguments, start, end)
        return macro or Call(name.text, target, tuple(arguments), name.start, start=start, end=end)

    def _macro(self, target: Node | None, name: Token, arguments: list[Node], start: int, end: int) -> Node | None:
        """A macro's node when name and number of arguments are those of one; otherwise it is an ordinary call."""
        word, count = name.text, len(arguments)
        if target is None:
            return self._has(arguments[0], start, end) if word == "has" and count == 1 else None
        if word == "bind" and count == 3 and isinstance(target, Name) and target.name == "cel":
            return Bind(self._variable(arguments[0]), arguments[1], arguments[2], start=start, end=end)
        if word in ("optMap", "optFlatMap") and count == 2:
            variable = self._variable(arguments[0])
            return OptionalMap(target, variable, arguments[1], word == "optFlatMap", start=start, end=end)
        return self._comprehension(target, word, arguments, start, end)

    def _comprehension(self, target: Node, word: str, arguments: list[Node], start: int, end: int) -> Node | None:
        count = len(arguments)
        two = _OF_TWO_VARIABLES.get((word, count))
        kind = two or _COMPREHENSIONS.get((word, count))
        if kind is None:
            return None
        if kind == "sortBy" and isinstance(target, Constant | MapLiteral):
            raise CelSyntaxError("sortBy needs a list", self._text, target.start, target.end)
        variable, second = self._variable(arguments[0]), self._variable(arguments[1]) if two else None
        if variable == second:
            raise CelSyntaxError(
                f"both variables are called `{second}`", self._text, arguments[1].start, arguments[1].end
            )
        names = 2 if two else 1
        condition = arguments[names] if count == names + 2 else None
        return Comprehension(kind, target, variable, arguments[-1], condition, second, start=start, end=end)

    def _has(self, argument: Node, start: int, end: int) -> Node:
        if isinstance(argument, Select) and not argument.optional:
            return Has(argument, start=start, end=end)
        if isinstance(argument, Index):
            operand = self._text[argument.operand.start : argument.operand.end]
            index = self._text[argument.index.start : argument.index.end]
            message = f"has() needs a field, as in has(a.b); to ask for a key write `{index} in {operand}`"
        else:
            message = "has() needs a field, as in has(a.b)"
        raise CelSyntaxError(message, self._text, argument.start, argument.end)

    def _variable(self, node: Node) -> str:
        if not isinstance(node, Name):
            raise CelSyntaxError("a variable must be a simple name", self._text, node.start, node.end)
        return node.name


def _dotted(node: Node) -> str:
    """`a.b.c` as a name; its end when it begins with something else."""
    fields: list[str] = []
    while isinstance(node, Select):
        fields.insert(0, node.field)
        node = node.operand
    return ".".join([node.name, *fields] if isinstance(node, Name) else fields)
