"""A checked tree to Python closures: compiled once, evaluated for every device.

A closure takes a frame (a list of variables by slot) and answers a value or raises CelRuntimeError with its place.
Where the types are known the function is called at once; where they are not, the overload is chosen by what the values
turn out to be.

A WatchedProgram keeps the value of every part, for explanations; a plain one is as fast as it can be.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dra_driver.cel.closures import Elements, Frame, Run, decides, loop, picked, placed
from dra_driver.cel.errors import CelRuntimeError
from dra_driver.cel.functions import FUNCTIONS, LAZY_METHODS, equals
from dra_driver.cel.overloads import CheckedTree
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
)
from dra_driver.cel.types import ABSENT, BOOL, Optional, find, type_name


class CelProgram:
    """A compiled expression, evaluated for an environment of one variable, or of several."""

    def __init__(self, checked: CheckedTree) -> None:
        self.expression = checked.expression
        self.root = checked.root
        self._run = _Compiler(checked).run_of(checked.root)
        self._rest: Frame = [None] * (checked.slots - 1)

    def evaluate(self, variable: object) -> Any:
        """The value. Raises CelRuntimeError."""
        return self._run([variable, *self._rest])

    def evaluate_all(self, variables: Sequence[object]) -> Any:
        """The value, for all variables in the order of the environment. Raises CelRuntimeError."""
        return self._run([*variables, *self._rest])


class WatchedProgram:
    """The same, slower: it also answers the value of every part that was evaluated, of a loop in its last round."""

    def __init__(self, checked: CheckedTree) -> None:
        self.root = checked.root
        self._run = _WatchedCompiler(checked).run_of(checked.root)
        self._rest: Frame = [None] * (checked.slots - 1)

    def values(self, variable: object) -> dict[SyntaxNode, object]:
        """Raises CelRuntimeError."""
        values: dict[SyntaxNode, object] = {}
        self._run([variable, *self._rest, values])
        return values


class _Compiler:
    def __init__(self, checked: CheckedTree) -> None:
        self._checked = checked
        self._bound: dict[int, Run] = {}
        """By slot: how a variable of `cel.bind` gets its value; only where the body is compiled."""

    def run_of(self, node: SyntaxNode) -> Run:
        match node:
            case Constant(value=value):
                return lambda frame: value
            case Name() if (constant := self._checked.constants.get(node)) is not None:
                return lambda frame: constant
            case Name():
                return self._name(self._checked.variables[node])
            case Select():
                return self._select(node)
            case Has(select=select):
                return self._has(select)
            case Index():
                return self._index(node)
            case CallNode():
                return self._call(node)
            case Logical(operator=operator, parts=parts):
                runs = [self._bool(part) for part in parts]
                return decides(lambda _: runs, deciding=operator == "||")
            case Conditional():
                return self._conditional(node)
            case ListLiteral(items=items):
                return self._list([self.run_of(item) for item in items])
            case MapLiteral():
                return self._map(node)
            case Comprehension():
                return self._comprehension(node)
            case Bind():
                return self._bind(node)
            case OptionalMap():
                return self._optional_map(node)
        raise AssertionError(f"unknown node {node}")

    def _name(self, slot: int) -> Run:
        value = self._bound.get(slot)
        if value is None:
            return lambda frame: frame[slot]

        def bound(frame: Frame) -> Any:
            result = frame[slot]
            if result is _NOT_YET:
                # A copy: the value's own variables share slots with those of the body.
                result = frame[slot] = value(frame.copy())
            return result

        return bound

    def _error(self, message: str, node: SyntaxNode) -> CelRuntimeError:
        return CelRuntimeError(message, self._checked.expression, node.start, node.end)

    def _no_such_key(self, key: str, entries: Any, node: SyntaxNode) -> CelRuntimeError:
        message = f"no such key: {key}"
        return CelRuntimeError(message, self._checked.expression, node.start, node.end, name=key, known=entries)

    # -- fields and elements

    def _select(self, node: Select) -> Run:
        operand, field = self.run_of(node.operand), node.field
        attribute = self._checked.attributes.get(node)
        optional = node.optional
        if attribute is not None and not optional:
            return _attribute_of(operand, attribute)
        if self._checked.types[node.operand].name == "map" and not optional:
            return self._entry(node, operand, field)

        def run(frame: Frame) -> Any:
            value = operand(frame)
            chained = isinstance(value, Optional)
            if chained:
                if not value.present:
                    return ABSENT
                value = value.value
            if (optional or chained) and not attribute and not isinstance(value, Mapping | tuple):
                return ABSENT  # an API server finds nothing in a number or text, and has an error for a list
            member = Optional(getattr(value, attribute)) if attribute else self._member(node, value, field)
            if optional or chained:
                return member
            if not member.present:
                raise self._no_such_key(field, value, node)
            return member.value

        return run

    def _entry(self, node: SyntaxNode, operand: Run, key: str) -> Run:
        """A key of what is known to be a map: the step that nearly every selector consists of."""

        def run(frame: Frame) -> Any:
            entries = operand(frame)
            try:
                return entries[key]
            except KeyError:
                raise self._no_such_key(key, entries, node) from None

        return run

    def _member(self, node: SyntaxNode, value: object, field: str) -> Optional:
        if not isinstance(value, Mapping):
            raise self._error(f"a {type_name(value)} has no field `{field}`", node)
        return find(value, field)

    def _has(self, select: Select) -> Run:
        operand, field = self.run_of(select.operand), select.field
        if select in self._checked.attributes:
            return lambda frame: True

        def run(frame: Frame) -> bool:
            value = operand(frame)
            if isinstance(value, Optional):
                if not value.present:
                    return False
                value = value.value
            if not isinstance(value, Mapping | tuple):
                return False  # an API server finds nothing in a number or text, and has an error for a list
            return self._member(select, value, field).present

        return run

    def _index(self, node: Index) -> Run:
        operand, index = self.run_of(node.operand), self.run_of(node.index)
        operand_type = self._checked.types[node.operand]
        key = node.index.value if isinstance(node.index, Constant) else None
        if operand_type.name == "map" and not node.optional and isinstance(key, str):
            return self._entry(node, operand, key)
        plain = placed(node, FUNCTIONS["[]"][0].run, self._error)
        gentle = placed(node, FUNCTIONS["[?]"][0].run, self._error)

        def run(frame: Frame) -> Any:
            value = operand(frame)
            if isinstance(value, Optional):
                return gentle(value.value, index(frame)) if value.present else ABSENT
            return (gentle if node.optional else plain)(value, index(frame))

        return run

    # -- functions

    def _call(self, node: CallNode) -> Run:
        if node.function in LAZY_METHODS and node.target is not None:
            return self._lazy(node, node.target)
        if node.function == "in" and isinstance(node.arguments[1], ListLiteral) and not node.arguments[1].items:
            return lambda frame: False  # an API server leaves the other side alone, even if it would fail
        overloads = self._checked.overloads[node]
        with_target = bool(overloads and overloads[0].is_method)
        operands = ((node.target,) if with_target and node.target else ()) + node.arguments
        runs = [self.run_of(operand) for operand in operands]
        if node.function == "==" and (fast := self._equals_text(node, operands, runs)):
            return fast
        chosen = picked(node, overloads, self._error)
        literals = [operand.value for operand in operands if isinstance(operand, Constant)]
        if node.function in _OF_LITERALS and len(literals) == len(operands):
            return _once(lambda: chosen(*literals))
        if len(runs) == 1:
            (only,) = runs
            return lambda frame: chosen(only(frame))
        if len(runs) == 2:
            first, second = runs
            return lambda frame: chosen(first(frame), second(frame))
        return lambda frame: chosen(*[run(frame) for run in runs])

    def _equals_text(self, node: SyntaxNode, operands: Sequence[SyntaxNode], runs: Sequence[Run]) -> Run | None:
        """`something == "text"`: what nearly every selector asks, without a call when the answer is yes."""
        constant, run = operands[1], runs[0]
        if not isinstance(constant, Constant) or not isinstance(constant.value, str):
            return None
        text, slowly = constant.value, placed(node, equals, self._error)

        def compare(frame: Frame) -> Any:
            value = run(frame)
            return value == text or (type(value) is not str and slowly(value, text))

        return compare

    def _lazy(self, node: CallNode, target: SyntaxNode) -> Run:
        owner, other = self.run_of(target), self.run_of(node.arguments[0])
        unwraps = node.function == "orValue"

        def run(frame: Frame) -> Any:
            value = owner(frame)
            if not isinstance(value, Optional):
                raise self._error(f"no such overload: `{node.function}` of {type_name(value)}", node)
            if not value.present:
                return other(frame)
            return value.value if unwraps else value

        return run

    # -- logic

    def _bool(self, node: SyntaxNode) -> Run:
        """The part as a bool; another type, possible only where types were not known, is an error."""
        run = self.run_of(node)
        if self._checked.types[node] == BOOL:
            return run

        def checked(frame: Frame) -> bool:
            value = run(frame)
            if value is True or value is False:
                return value
            raise self._error(f"no such overload: expected bool, found {type_name(value)}", node)

        return checked

    def _conditional(self, node: Conditional) -> Run:
        condition = self._bool(node.condition)
        then, otherwise = self.run_of(node.then), self.run_of(node.otherwise)
        return lambda frame: then(frame) if condition(frame) else otherwise(frame)

    # -- literals

    @staticmethod
    def _list(items: Sequence[Run]) -> Run:
        return lambda frame: tuple([item(frame) for item in items])

    def _map(self, node: MapLiteral) -> Run:
        entries = [(self.run_of(key), self.run_of(value), key) for key, value in node.entries]

        def run(frame: Frame) -> dict[object, object]:
            built: dict[object, object] = {}
            for key_of, value_of, place in entries:
                key = key_of(frame)
                if type_name(key) not in ("string", "int", "bool"):
                    raise self._error(f"unsupported key type: {type_name(key)}", place)
                built[key] = value_of(frame)  # of two entries with one key the last one counts, as in an API server
            return built

        return run

    # -- macros

    def _comprehension(self, node: Comprehension) -> Run:
        body = self.run_of(node.body) if node.kind == "map" else self._bool(node.body)
        condition = self._bool(node.condition) if node.condition is not None else None
        return loop(node.kind, self._elements(node), body, condition)

    def _elements(self, node: Comprehension) -> Elements:
        """Fills the variables with one element after the other; yields the first variable's value."""
        target, slot = self.run_of(node.target), self._checked.variables[node]

        def known(frame: Frame) -> Any:
            value = target(frame)
            if not isinstance(value, tuple | Mapping):
                raise self._error(f"no such overload: `{node.kind}` of {type_name(value)}", node)
            return value

        def single(frame: Frame) -> Iterator[object]:
            for item in known(frame):
                frame[slot] = item
                yield item

        def double(frame: Frame) -> Iterator[object]:
            value = known(frame)
            for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
                frame[slot], frame[slot + 1] = key, item
                yield key

        return double if node.second else single

    def _bind(self, node: Bind) -> Run:
        """The value is found when it is first asked for: an error in one that is not needed does not count."""
        value, slot = self.run_of(node.value), self._checked.variables[node]
        outer, self._bound[slot] = self._bound.get(slot), value
        body = self.run_of(node.body)
        del self._bound[slot]
        if outer is not None:
            self._bound[slot] = outer

        def run(frame: Frame) -> Any:
            frame[slot] = _NOT_YET
            return body(frame)

        return run

    def _optional_map(self, node: OptionalMap) -> Run:
        target, body, slot = self.run_of(node.target), self.run_of(node.body), self._checked.variables[node]

        def run(frame: Frame) -> Any:
            value = target(frame)
            if not isinstance(value, Optional):
                raise self._error(f"no such overload: optMap of {type_name(value)}", node)
            if not value.present:
                return ABSENT
            frame[slot] = value.value
            return Optional(body(frame))

        return run


class _WatchedCompiler(_Compiler):
    """Keeps every value in the last slot of the frame."""

    def run_of(self, node: SyntaxNode) -> Run:
        run = super().run_of(node)

        def watched(frame: Frame) -> Any:
            frame[-1].pop(node, None)
            value = frame[-1][node] = run(frame)
            return value

        return watched


_OF_LITERALS = frozenset({"quantity", "semver", "ip", "cidr"})
"""Functions that read a text: a literal is read once, not for every device."""


def _once(value_of: Callable[[], Any]) -> Run:
    """A value that is the same each time, or fails each time."""
    results: list[Any] = []

    def run(_: Frame) -> Any:
        if not results:
            results.append(value_of())
        return results[0]

    return run


def _attribute_of(operand: Run, attribute: str) -> Run:
    return lambda frame: getattr(operand(frame), attribute)


_NOT_YET = object()
"""In the slot of a variable of `cel.bind` that was not needed yet."""
