"""What every part of a selector is worth for a device. `dra_driver.explain.failing` says why it is not true.

A trace evaluates as the scheduler does, so what it skips is not evaluated here either: behind the first false part of
a `&&` chain nothing is known.
"""

from collections.abc import Iterator, Mapping
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
from dra_driver.cel.tree import Constant, Node, children
from dra_driver.cel.types import type_name


@dataclass(frozen=True, slots=True)
class Part:
    """What a sub-expression was worth. `rounds` is how often it was evaluated: 0 when it did not come to that, more
    than 1 in a loop, of which `value` and `error` are those of the last round."""

    value: object = None
    error: CelRuntimeError | None = None
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    expression: str
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
    nodes: tuple[Node, ...]


@lru_cache(maxsize=512)
def _traced(expression: str, server: Server) -> _Traced:
    checked = checked_selector(expression, server)
    return _Traced(checked, WatchedProgram(checked), rounds_of(checked.root), tuple(_below(checked.root)))


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
    by_node = {node: _part(node, recorder.outcomes.get(node)) for node in traced.nodes}
    return Trace(expression, recorder.spent, root, by_node)


def _need_bool(expression: str, root: Node, recorder: _Recorder) -> None:
    value, rounds = recorder.outcomes.get(root, (root.value if isinstance(root, Constant) else None, 1))
    if not isinstance(value, bool | CelRuntimeError):
        message = f"the result must be bool, not {type_name(value)}"
        recorder.outcomes[root] = (CelRuntimeError(message, expression, root.start, root.end), rounds)


def _part(node: Node, outcome: tuple[object, int] | None) -> Part:
    if isinstance(node, Constant):
        return Part(node.value, rounds=1)
    if outcome is None:
        return Part()
    value, rounds = outcome
    return Part(error=value, rounds=rounds) if isinstance(value, CelRuntimeError) else Part(value, rounds=rounds)
