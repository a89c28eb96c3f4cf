"""Types of every part of a tree, found before anything is evaluated.

`check` answers which functions a call can mean and in which slot a variable lives; it refuses what can never work:
unknown names (with the name that was probably meant), functions for other types, fields that an object has not.
What is known only during evaluation is DYN and passes.
"""

from collections.abc import Mapping, Sequence

from dra_driver.cel.closures import picked
from dra_driver.cel.errors import CelError, CelNotJudged, CelTypeError, closest
from dra_driver.cel.functions import INCLUDES_SINCE, LAZY_METHODS, NOT_KNOWN
from dra_driver.cel.library.formatting import MOST_DIGITS, clauses, need
from dra_driver.cel.library.texts import PatternTooLarge, compiled_pattern
from dra_driver.cel.overloads import CheckedTree, Environment, Failed, Overload
from dra_driver.cel.tree import (
    Bind,
    CallNode,
    Comprehension,
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
from dra_driver.cel.types import (
    ANY,
    BOOL,
    DYN,
    FREE,
    INT,
    NAMES_OF_TYPES,
    NULL,
    Type,
    TypeValue,
    filled,
    fits,
    is_dynamic,
    joined,
    list_of,
    map_of,
    optional_of,
    type_name,
    type_of,
)

_NO_INDICES = frozenset(["list", "map", "null_type", "type"])
_OF_TIMES = frozenset(["+", "-", "<", "<=", ">", ">="])
"""Operators that a server also has for durations and timestamps. Null fits there, and fails in the evaluation."""
_SIGNS = frozenset(["==", "!=", "<", "<=", ">", ">=", "in", "+", "-", "*", "/", "%", "-_", "!_", "[]", "[?]"])


def check(root: SyntaxNode, expression: str, environment: Environment) -> CheckedTree:
    """Raises CelTypeError."""
    checker = _Checker(expression, environment, CheckedTree(root, expression))
    checker.type_of(root)
    return checker.tree


class _Checker:
    def __init__(self, expression: str, environment: Environment, checked: CheckedTree) -> None:
        self.tree = checked
        self._expression = expression
        self._functions = environment.functions
        self._objects = {variable.type: variable for variable in environment.variables.values()}
        self._scope: list[tuple[str, Type]] = [
            (name, variable.type) for name, variable in environment.variables.items()
        ]
        self.tree.slots = len(self._scope)
        self._mixed = 0
        """How many calls of `format` are around: literals in them may have items of several types."""
        self._converted: dict[SyntaxNode, object] = {}
        """Literals that a conversion takes, and the values of such conversions."""

    def type_of(self, node: SyntaxNode) -> Type:
        kind = self._rule(node)
        self.tree.types[node] = kind
        return kind

    def _rule(self, node: SyntaxNode) -> Type:
        match node:
            case Constant(value=value):
                return Type(type_name(value))
            case Name():
                return self._name(node)
            case Select():
                return self._select(node)
            case Has(select=select):
                self.type_of(select)
                return BOOL
            case Index():
                return self._index(node)
            case Logical():
                for part in node.parts:
                    self._wants_bool(part, f"`{node.operator}`")
                return BOOL
            case Conditional():
                return self._conditional(node)
            case ListLiteral(items=items):
                return list_of(self._common(items, "list items"))
            case MapLiteral(entries=entries):
                return map_of(
                    self._common([key for key, _ in entries], "map keys"),
                    self._common([value for _, value in entries], "map values"),
                )
            case CallNode():
                return self._call(node)
            case Comprehension():
                return self._comprehension(node)
            case Bind():
                return self._within(node, [(node.variable, self.type_of(node.value))], node.body)
            case OptionalMap():
                return self._optional_map(node)
        raise AssertionError(f"unknown node {node}")

    # -- names and fields

    def _name(self, node: Name) -> Type:
        for slot in reversed(range(len(self._scope))):
            name, kind = self._scope[slot]
            if name == node.name:
                self.tree.variables[node] = slot
                return kind
        if node.name in NAMES_OF_TYPES:
            self.tree.constants[node] = TypeValue(node.name)
            return type_of(Type(node.name))
        if node.name in ("google", "net"):
            raise CelNotJudged(f"types of `{node.name}` are not known here", self._expression, *_span(node))
        known = [name for name, _ in self._scope]
        raise self._error(f"unknown name `{node.name}`{_meant(node.name, known)}", node.start, node.end)

    def _select(self, node: Select) -> Type:
        operand = self.type_of(node.operand)
        chained = operand.name == "optional_type"
        if chained:
            (operand,) = operand.parameters
        result = self._field(node, operand)
        return optional_of(result) if node.optional or chained else result

    def _field(self, node: Select, operand: Type) -> Type:
        if is_dynamic(operand):
            return DYN
        if operand.name == "map":
            return operand.parameters[1]
        end = node.field_start + len(node.field)
        owner = self._objects.get(operand)
        if owner is None:
            raise self._error(f"a {operand} has no fields, so not `{node.field}`", node.field_start, end)
        if node.field not in owner.fields:
            known = ", ".join(owner.fields)
            message = f"`{operand}` has no field `{node.field}`{_meant(node.field, owner.fields)}; it has {known}"
            raise self._error(message, node.field_start, end)
        field = owner.fields[node.field]
        self.tree.attributes[node] = field.attribute
        return field.type

    def _index(self, node: Index) -> Type:
        operand, index = self.type_of(node.operand), self.type_of(node.index)
        chained = operand.name == "optional_type"
        if chained:
            (operand,) = operand.parameters
        if self._is_literal(node.index) and self.tree.types[_undynamic(node.index)].name in _NO_INDICES:
            raise self._error(f"nothing can be indexed with {index}", *_span(node.index))
        if operand == NULL and not chained:
            # It fits where an optional list or map is expected, and fails in the evaluation. An index of both leaves
            # the type of the result open.
            return DYN if index == INT or is_dynamic(index) else optional_of(DYN)
        sign = "[?]" if node.optional or chained else "[]"
        result = self._resolved(node, sign, self._functions[sign], [operand, index], node.index)
        return DYN if is_dynamic(operand) else result

    def _is_literal(self, node: SyntaxNode) -> bool:
        """Whether a server makes the value when it compiles."""
        match node:
            case ListLiteral() | MapLiteral() | CallNode(function="dyn" | "type", target=None):
                return all(map(self._is_literal, children(node)))
        return isinstance(node, Constant) or node in self.tree.constants

    # -- operators and functions

    def _call(self, node: CallNode) -> Type:
        qualified = self._qualified(node)
        if qualified is not None:
            candidates = [function for function in self._functions[qualified] if not function.is_method]
            return self._resolved(
                node, qualified, candidates, [self.type_of(argument) for argument in node.arguments], node
            )
        if node.target is not None and node.function in LAZY_METHODS:
            return self._lazy(node, node.target)
        is_method = node.target is not None
        candidates = [each for each in self._functions.get(node.function, ()) if each.is_method == is_method]
        if not candidates:
            raise self._unknown(node)
        operands = ((node.target,) if node.target else ()) + node.arguments
        self._mixed += node.function == "format"
        given = [self.type_of(operand) for operand in operands]
        self._mixed -= node.function == "format"
        result = self._resolved(node, node.function, candidates, given, node)
        self._check_literals(node, operands)
        # A server also has unsigned numbers, so the type of the remainder is known only with the types of both.
        return DYN if node.function == "%" and all(map(is_dynamic, given)) else result

    def _check_literals(self, node: CallNode, operands: Sequence[SyntaxNode]) -> None:
        """Literals are converted, regular expressions and texts with clauses read, now and not for every device."""
        match node.function, operands:
            case "int" | "double" | "bool" | "string" | "dyn" | "type", [operand]:
                if isinstance(operand, Constant):
                    self._converted[operand] = operand.value
                if operand in self.tree.constants:
                    self._converted[operand] = self.tree.constants[operand]
                if operand in self._converted:
                    convert = picked(node, self.tree.overloads[node], lambda why, _: self._error(why, *_span(operand)))
                    self._converted[node] = convert(self._converted[operand])
            case "matches" | "find" | "findAll", [_, Constant(value=str(pattern)) as place, *_]:
                try:
                    compiled_pattern(pattern)
                except PatternTooLarge as error:
                    raise CelNotJudged(str(error), self._expression, place.start, place.end) from None
                except Failed as error:
                    raise self._error(str(error), *_span(place)) from None
            case "format", [Constant(value=str(text)) as place, ListLiteral(items=items)]:
                self._check_format(text, place, items)

    def _check_format(self, text: str, place: SyntaxNode, items: Sequence[SyntaxNode]) -> None:
        try:
            wanted = clauses(text)
        except Failed as error:
            raise self._error(str(error), *_span(place)) from None
        if len(wanted) != len(items):
            message = (
                f"clauses in the text: {len(wanted)}, values in the list: {len(items)}; each clause takes one value"
            )
            raise self._error(message, *_span(place))
        for (letter, precision), item in zip(wanted, items, strict=True):
            if precision > MOST_DIGITS:
                message = f"more than {MOST_DIGITS} digits are not known here"
                raise CelNotJudged(message, self._expression, place.start, place.end)
            self._must_be_shown(letter, item)

    def _must_be_shown(self, letter: str, node: SyntaxNode) -> None:
        """An API server refuses an attribute, whose type it does not know; `dyn(…)` leaves that to the evaluation."""
        kind = self.tree.types[node]
        if kind not in (DYN, FREE):
            try:
                need(letter, kind.name)
            except Failed as error:
                hint = "; write dyn(…) around the attribute" if kind == ANY else ""
                raise self._error(f"{error}{hint}", *_span(node)) from None
        if letter == "s" and isinstance(node, ListLiteral | MapLiteral):
            for item in children(node):
                self._must_be_shown(letter, item)

    def _qualified(self, node: CallNode) -> str | None:
        """`optional.of(x)` is a function with a dotted name unless `optional` is a variable."""
        target = node.target
        if not isinstance(target, Name) or any(name == target.name for name, _ in self._scope):
            return None
        name = f"{target.name}.{node.function}"
        return name if name in self._functions else None

    def _resolved(
        self, node: SyntaxNode, name: str, candidates: Sequence[Overload], given: Sequence[Type], where: SyntaxNode
    ) -> Type:
        """Keeps the overloads that the types allow; the result's type when they agree on it, else DYN."""
        possible: list[Overload] = []
        results: list[Type] = []
        for overload in candidates:
            variables: dict[str, Type] = {}
            if len(overload.parameters) == len(given) and all(
                fits(wanted, actual, variables) for wanted, actual in zip(overload.parameters, given, strict=True)
            ):
                possible.append(overload)
                results.append(filled(overload.result, variables))
        if not possible and name in _OF_TIMES and all(kind == NULL or is_dynamic(kind) for kind in given):
            self.tree.overloads[node] = ()
            return DYN if name in "+-" else BOOL
        if not possible:
            raise self._mismatch(name, candidates, given, where)
        self.tree.overloads[node] = tuple(possible)
        return results[0] if all(result == results[0] for result in results) else DYN

    def _lazy(self, node: CallNode, target: SyntaxNode) -> Type:
        """`or` and `orValue` of optionals, whose argument is only evaluated when there is no value."""
        owner = self.type_of(target)
        if len(node.arguments) != 1:
            raise self._error(f"`{node.function}` takes one argument", node.name_start, node.end)
        (argument,) = node.arguments
        given = self.type_of(argument)
        if owner.name not in ("optional_type", "dyn", "any", "free"):
            message = f"`{node.function}` is a method of optional values, not of {owner}"
            raise self._error(message, node.name_start, node.end)
        if node.function == "or":
            wanted = given if is_dynamic(owner) else owner
            wanted = wanted if wanted.name == "optional_type" else optional_of(FREE)
            result = wanted if is_dynamic(given) else joined(wanted, given)
        else:
            wanted = given if is_dynamic(owner) else owner.parameters[0]
            result = joined(wanted, given)
        if result is None:
            raise self._error(f"`{node.function}` needs {wanted} here, not {given}", *_span(argument))
        return result

    def _conditional(self, node: Conditional) -> Type:
        self._wants_bool(node.condition, "`? :`")
        then, otherwise = self.type_of(node.then), self.type_of(node.otherwise)
        result = joined(then, otherwise)
        if result is None:
            raise self._error(
                f"both results of `? :` must have one type, not {then} and {otherwise}", *_span(node.otherwise)
            )
        return result

    def _common(self, nodes: Sequence[SyntaxNode], subject: str) -> Type:
        """One type for all, as Kubernetes demands of literals: what is known only later goes with nothing else."""
        common: Type | None = None
        for node in nodes:
            kind = self.type_of(node)
            result = kind if common is None else joined(common, kind)
            if self._mixed:
                common = result or DYN
                continue
            if result is None or (common is not None and not _alike(common, kind)):
                message = f"{subject} must have one type, not {common} and {kind}"
                mixed = common is not None and is_dynamic(common) != is_dynamic(kind)
                raise self._error(f"{message}; write dyn(…) around each" if mixed else message, *_span(node))
            common = result
        return common or FREE

    # -- macros

    def _comprehension(self, node: Comprehension) -> Type:
        target = self.type_of(node.target)
        if target.name not in ("list", "map", "dyn", "free"):
            raise self._error(f"`{node.kind}` needs a list or a map, not {_type_text(target)}", *_span(node.target))
        variables = _elements(node, target)
        if node.condition is not None:
            self._within(node, variables, node.condition)
            self._must_be_bool(node.condition, f"the condition of `{node.kind}`")
        body = self._within(node, variables, node.body)
        if node.kind == "map":
            return list_of(body)
        self._must_be_bool(node.body, f"the condition of `{node.kind}`")
        return list_of(variables[0][1]) if node.kind == "filter" else BOOL

    def _optional_map(self, node: OptionalMap) -> Type:
        target = self.type_of(node.target)
        if target.name not in ("optional_type", "dyn", "any", "free"):
            raise self._error(f"optMap is a method of optional values, not of {target}", *_span(node.target))
        item = target.parameters[0] if target.parameters else DYN
        return optional_of(self._within(node, [(node.variable, item)], node.body))

    def _within(self, node: SyntaxNode, variables: Sequence[tuple[str, Type]], body: SyntaxNode) -> Type:
        """The type of `body` where `variables` are known too; they get slots one after the other."""
        for name, kind in variables:
            if kind.name == "type":
                message = f"`{name}` would hold a type, which an API server cannot read; write dyn(…) around the type"
                raise self._error(message, *_span(node))
        outer = len(self._scope)
        self.tree.variables[node] = outer
        self._scope.extend(variables)
        self.tree.slots = max(self.tree.slots, len(self._scope))
        result = self.type_of(body)
        del self._scope[outer:]
        return result

    # -- complaints

    def _wants_bool(self, node: SyntaxNode, subject: str) -> None:
        self.type_of(node)
        self._must_be_bool(node, subject)

    def _must_be_bool(self, node: SyntaxNode, subject: str) -> None:
        kind = self.tree.types[node]
        if kind != BOOL and not is_dynamic(kind):
            raise self._error(f"{subject} needs bool, not {kind}", *_span(node))

    def _unknown(self, node: CallNode) -> CelError:
        is_method = node.target is not None
        names = [
            name for name, all_ in self._functions.items() if any(overload.is_method == is_method for overload in all_)
        ]
        if isinstance(node.target, CallNode):
            self.type_of(node.target)  # what is wrong there comes first
        other = node.function in self._functions
        noun, hint = ("method", "function") if is_method else ("function", "method")
        message = f"unknown {noun} `{node.function}`"
        if node.function in NOT_KNOWN or (isinstance(node.target, Name) and node.target.name == "format"):
            return CelNotJudged(f"`{node.function}` is not known here", self._expression, node.start, node.end)
        if other:
            message += f"; it is a {hint}"
        elif node.function == "includes":
            message += (
                f"; it can be used from Kubernetes 1.{INCLUDES_SINCE} on, and in new objects from the next one on"
            )
        else:
            message += _meant(node.function, [name for name in names if name.isidentifier()])
        return self._error(message, node.name_start, node.name_start + len(node.function))

    def _mismatch(
        self, name: str, candidates: Sequence[Overload], given: Sequence[Type], where: SyntaxNode
    ) -> CelTypeError:
        start = where.name_start if isinstance(where, CallNode) else where.start
        end = start + len(name.rstrip("_")) if isinstance(where, CallNode) else where.end
        return self._error(_mismatch(name, candidates, given), start, end)

    def _error(self, message: str, start: int, end: int) -> CelTypeError:
        return CelTypeError(message, self._expression, start, end)


def _elements(node: Comprehension, target: Type) -> list[tuple[str, Type]]:
    """The variables of a comprehension and their types."""
    parameters = target.parameters or (DYN,)
    if node.second is None:
        return [(node.variable, parameters[0])]
    first = INT if target.name == "list" else parameters[0]
    return [(node.variable, first), (node.second, parameters[-1])]


def _alike(left: Type, right: Type) -> bool:
    """Not whether one type fits the other, but whether they are the same as far as they are known."""
    same = left.name == right.name and len(left.parameters) == len(right.parameters)
    return FREE in (left, right) or (same and all(map(_alike, left.parameters, right.parameters)))


def _type_text(kind: Type) -> str:
    """The type in words."""
    return "an attribute, which has one value while DRAListTypeAttributes is off" if kind == ANY else str(kind)


def _span(node: SyntaxNode) -> tuple[int, int]:
    return node.start, node.end


def _meant(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    close = closest(name, known)
    return f"; did you mean `{close}`?" if close else ""


def _mismatch(name: str, candidates: Sequence[Overload], given: Sequence[Type]) -> str:
    """One sentence on types that do not fit, with a way out where it is known."""
    kinds = [kind.name for kind in given]
    if name == "[]":
        return f"{given[0]} cannot be indexed with {given[1]}"
    if name in _SIGNS and len(given) == 1:
        return f"`{name[0]}` does not work on {given[0]}"
    if name in _SIGNS:
        message = f"`{name}` does not work between {given[0]} and {given[1]}"
        for constructor in ("quantity", "semver"):
            if constructor in kinds and "string" in kinds:
                return f'{message}; write {constructor}("…") around the text'
            if kinds == [constructor, constructor]:
                method = "isLessThan" if "<" in name else "isGreaterThan"
                return f"{message}; use a.{method}(b) or a.compareTo(b)"
        return message
    accepted = " or ".join(sorted({f"({', '.join(map(str, candidate.parameters))})" for candidate in candidates}))
    return f"`{name}` does not accept ({', '.join(map(str, given))}), only on {accepted}"


def _undynamic(node: SyntaxNode) -> SyntaxNode:
    while isinstance(node, CallNode) and node.function == "dyn" and node.target is None:
        (node,) = node.arguments
    return node
