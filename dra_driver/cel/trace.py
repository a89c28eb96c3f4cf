"""Why a selector is not true for a device: the value of every part of the expression, and the part that decided.

A trace evaluates as the scheduler does, so what it skips is not evaluated here either: behind the first false part of
a `&&` chain nothing is known.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dra_driver.cel.checked import Checked
from dra_driver.cel.cost import LIMIT
from dra_driver.cel.device import CelDevice, checked_selector
from dra_driver.cel.errors import CelRuntimeError
from dra_driver.cel.evaluate import WatchedProgram
from dra_driver.cel.metering import Meter, rounds_of
from dra_driver.cel.overloads import OverLimit
from dra_driver.cel.server import CURRENT, Server
from dra_driver.cel.tree import (
    Bind,
    Call,
    Comprehension,
    Conditional,
    Constant,
    Has,
    Index,
    Logical,
    Name,
    Node,
    Select,
    children,
)
from dra_driver.cel.types import type_name
from dra_driver.cel.values import Duration, Optional, Timestamp


@dataclass(frozen=True, slots=True)
class Part:
    """One sub-expression: `text` is expression[start:end].

    `rounds` is how often it was evaluated: 0 when it did not come to that, more than 1 in a loop, of which `value` and
    `error` are those of the last round.
    """

    start: int
    end: int
    text: str
    value: object = None
    error: CelRuntimeError | None = None
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that the device (or a variable) is: `name` is short, `text` what the expression calls it."""

    name: str
    text: str
    value: str | None
    """As a person writes it; None when the device does not have it."""
    verb: str = "is"

    def __str__(self) -> str:
        return f"{self.name} is missing" if self.value is None else f"{self.name} {self.verb} {self.value}"


@dataclass(frozen=True, slots=True)
class FailingPart:
    """A part that made the whole not true, and the facts in it."""

    part: Part
    facts: tuple[Fact, ...]

    @property
    def reason(self) -> str:
        """Without the expression: `memory is 80Gi`; an error's message; empty when there is nothing to say."""
        if self.part.error is not None:
            close = self.part.error.suggestion
            return self.part.error.message + (f"; did you mean `{close}`?" if close else "")
        return ", ".join(map(str, self.facts))

    @property
    def sentence(self) -> str:
        what = "fails" if self.part.error is not None else f"is {shown(self.part.value)}"
        is_fact = any(fact.text == self.part.text for fact in self.facts)
        return f"`{self.part.text}` {what}" + (f": {self.reason}" if self.reason and not is_fact else "")


@dataclass(frozen=True, slots=True)
class Trace:
    """`parts` are in the order of the text, larger ones first; the first one is the whole expression."""

    expression: str
    parts: tuple[Part, ...]
    cost: int
    """What this evaluation cost, in units of the limit."""
    root: Node
    by_node: Mapping[Node, Part]

    @property
    def value(self) -> object:
        return self.by_node[self.root].value

    @property
    def error(self) -> CelRuntimeError | None:
        """What ended the evaluation, and with it the scheduling attempt of the whole pod."""
        return self.by_node[self.root].error


class _Recorder(Meter):
    """Remembers the last value or error of every part."""

    def __init__(self, checked: Checked, rounds: Mapping[Node, int]) -> None:
        super().__init__(checked, LIMIT, rounds)
        self.outcomes: dict[Node, tuple[object, int]] = {}

    def seen(self, node: Node, value: object) -> None:
        _, before = self.outcomes.get(node, (None, 0))
        self.outcomes[node] = (value, before + 1)
        super().seen(node, value)


@dataclass(frozen=True, slots=True)
class _Traced:
    """An expression that is ready to be traced."""

    checked: Checked
    program: WatchedProgram
    rounds: Mapping[Node, int]
    order: tuple[Node, ...]


@lru_cache(maxsize=512)
def _traced(expression: str, server: Server) -> _Traced:
    checked = checked_selector(expression, server)
    order = sorted(_below(checked.root), key=lambda node: (node.start, -node.end))
    return _Traced(checked, WatchedProgram(checked), rounds_of(checked.root), tuple(order))


def _below(node: Node) -> Iterator[Node]:
    yield node
    for child in children(node):
        yield from _below(child)


def trace(expression: str, device: CelDevice, server: Server = CURRENT) -> Trace:
    """Evaluates the selector and tells of every part; an error of the evaluation is in the trace.

    Raises CelSyntaxError, CelTypeError.
    """
    traced = _traced(expression, server)
    recorder = _Recorder(traced.checked, traced.rounds)
    root = traced.checked.root
    try:
        traced.program.evaluate(device, recorder)
    except CelRuntimeError as error:
        recorder.outcomes.setdefault(root, (error, 1))
    except OverLimit:
        message = "operation cancelled: actual cost limit exceeded"
        recorder.outcomes[root] = (CelRuntimeError(message, expression, root.start, root.end), 1)
    _need_bool(expression, root, recorder)
    by_node = {node: _part(expression, node, recorder.outcomes.get(node)) for node in traced.order}
    return Trace(expression, tuple(by_node.values()), recorder.spent, root, by_node)


def _need_bool(expression: str, root: Node, recorder: _Recorder) -> None:
    value, rounds = recorder.outcomes.get(root, (root.value if isinstance(root, Constant) else None, 1))
    if not isinstance(value, bool | CelRuntimeError):
        message = f"the result must be bool, not {type_name(value)}"
        recorder.outcomes[root] = (CelRuntimeError(message, expression, root.start, root.end), rounds)


def _part(expression: str, node: Node, outcome: tuple[object, int] | None) -> Part:
    text = expression[node.start : node.end]
    if isinstance(node, Constant):
        return Part(node.start, node.end, text, node.value, rounds=1)
    if outcome is None:
        return Part(node.start, node.end, text)
    value, rounds = outcome
    if isinstance(value, CelRuntimeError):
        return Part(node.start, node.end, text, error=value, rounds=rounds)
    return Part(node.start, node.end, text, value, rounds=rounds)


# -- the part that decided


def failing_part(traced: Trace) -> tuple[FailingPart, ...]:
    """The smallest parts that made the selector false, or the one that failed; nothing when it is true.

    One part of a `&&` chain is enough to make it false, all parts of a `||` chain are needed.
    """
    if traced.value is True:
        return ()
    nodes = [_failed(traced, traced.root)] if traced.error is not None else _deciding(traced, traced.root)
    return tuple(FailingPart(traced.by_node[node], tuple(_facts(traced, node))) for node in nodes)


def _failed(traced: Trace, node: Node) -> Node:
    """The smallest part that has the error of `node`."""
    error = traced.by_node[node].error
    for child in children(node):
        if traced.by_node[child].error is error:
            return _failed(traced, child)
    return node


def _deciding(traced: Trace, node: Node) -> list[Node]:
    """The smallest parts because of which `node` is what it is."""
    value = traced.by_node[node].value
    match node:
        case Logical(parts=parts):
            return [one for part in parts if _is(traced, part, value) for one in _deciding(traced, part)]
        case Call(function="!_", arguments=[inner]):
            return _deciding(traced, inner)
        case Conditional():
            return _branch(traced, node)
        case Bind(body=body):
            return _deciding(traced, body)
        case Comprehension(kind="all", body=body) if value is False and _is(traced, body, False):
            return _deciding(traced, body)
    return [node]


def _branch(traced: Trace, node: Conditional) -> list[Node]:
    """Of `a ? b : c`: why the branch that was taken is what it is, or why it was taken when it is always that."""
    taken = node.then if _is(traced, node.condition, True) else node.otherwise
    return _deciding(traced, node.condition if isinstance(taken, Constant) else taken)


def _is(traced: Trace, node: Node, value: object) -> bool:
    part = traced.by_node[node]
    return part.rounds > 0 and part.error is None and part.value is value


# -- the facts in it


def _facts(traced: Trace, node: Node) -> Iterator[Fact]:
    """Each once, in the order of the text."""
    told: set[str] = set()
    for fact in _all_facts(traced, node, frozenset()):
        if fact.text not in told:
            told.add(fact.text)
            yield fact


def _all_facts(traced: Trace, node: Node, changing: frozenset[str]) -> Iterator[Fact]:
    """`changing` are the variables of loops inside of the part, whose last values say nothing."""
    match node:
        case Has(select=select):
            yield _missing_or_there(traced, node, select)
            return
        case Call(function="in", arguments=[key, entries]) if isinstance(traced.by_node[entries].value, Mapping):
            yield from _all_facts(traced, key, changing)
            yield _keys(traced, entries)
            return
        case Select() | Index() | Name() if (start := _start_of_path(node)) is not None:
            if start not in changing:
                yield from _value(traced, node)
            return
        case Comprehension(variable=variable, second=second):
            changing = changing | {variable, second or variable}
    for child in children(node):
        yield from _all_facts(traced, child, changing)


def _start_of_path(node: Node) -> str | None:
    """The variable that a path of fields and indices begins with."""
    while isinstance(node, Select | Index):
        node = node.operand
    return node.name if isinstance(node, Name) else None


def _value(traced: Trace, node: Node) -> Iterator[Fact]:
    part = traced.by_node[node]
    value = part.value
    if part.rounds == 0 or part.error is not None or isinstance(value, Mapping | CelDevice):
        return
    if isinstance(value, Optional):
        yield Fact(_short(traced, node), part.text, shown(value.value) if value.present else None)
    else:
        yield Fact(_short(traced, node), part.text, shown(value))


def _missing_or_there(traced: Trace, node: Has, select: Select) -> Fact:
    there = traced.by_node[node].value is True
    text = traced.expression[select.start : select.end]
    return Fact(select.field, text, "there" if there else None)


def _keys(traced: Trace, entries: Node) -> Fact:
    part = traced.by_node[entries]
    names = sorted(map(str, part.value)) if isinstance(part.value, Mapping) else []
    return Fact(_short(traced, entries), part.text, ", ".join(names) or "nothing", "has only" if names else "has")


def _short(traced: Trace, node: Node) -> str:
    """The last step of a path."""
    match node:
        case Select(field=field):
            return field
        case Index(index=index):
            value = traced.by_node[index].value
            return value if isinstance(value, str) else f"item {shown(value)}"
    return traced.by_node[node].text


def shown(value: object) -> str:
    """A value as a person would write it."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{value}"'
        case Optional():
            return shown(value.value) if value.present else "missing"
        case Duration() | Timestamp():
            return f"{value.nanoseconds / 10**9:g} s"
        case Sequence():
            return f"[{', '.join(map(shown, value))}]"
        case Mapping():
            return "{" + ", ".join(f"{shown(key)}: {shown(item)}" for key, item in value.items()) + "}"
    return str(value)
