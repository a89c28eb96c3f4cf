"""What one evaluation costs, counted while it runs, so that it can be ended at the limit.

The rules are those of the estimate (`dra_driver.cel.cost`) with the sizes that values really have. The scheduler counts
a little differently in places (a text that is read to its first difference, a loop that is left early); nearly every
selector costs less than a hundred of the million units, so the count matters only for what is far over the limit.
Source: runtime cost tracker of cel-go and k8s.io/apiserver.
"""

import math
from collections.abc import Mapping

from dra_driver.cel.call_costs import CHARACTER, LIST_COST, MAP_COST, MESSAGE_COST, Operand, Operands, own_cost
from dra_driver.cel.checked import Checked
from dra_driver.cel.cost import STARTS, STEPS
from dra_driver.cel.errors import CelRuntimeError
from dra_driver.cel.overloads import OverLimit
from dra_driver.cel.sizes import fixed
from dra_driver.cel.tree import (
    Bind,
    Call,
    Comprehension,
    Constant,
    Index,
    ListLiteral,
    MapLiteral,
    MessageLiteral,
    Name,
    Node,
    OptionalMap,
    Select,
    children,
)
from dra_driver.cel.values import Address, Optional, Prefix


class Meter:
    """Counts one evaluation. `seen` raises OverLimit when it has cost more than `limit`.

    `rounds` are those of the expression's root, found once for any number of evaluations.
    """

    def __init__(self, checked: Checked, limit: int, rounds: Mapping[Node, int]) -> None:
        self.spent = 0
        self._checked = checked
        self._limit = limit
        self._values: dict[Node, object] = {}
        self._rounds = rounds

    def seen(self, node: Node, value: object) -> None:
        if not isinstance(value, CelRuntimeError):
            self._values[node] = value
            self.spent += self._cost(node, value)
        self.spent += self._rounds.get(node, 0)
        if self.spent > self._limit:
            raise OverLimit

    def _cost(self, node: Node, value: object) -> int:
        match node:
            case Name() | Select() | Index():
                return 1
            case ListLiteral() | Bind():
                return LIST_COST
            case MapLiteral():
                return MAP_COST
            case MessageLiteral():
                return MESSAGE_COST
            case OptionalMap():
                return 3 + LIST_COST
            case Comprehension(kind="sortBy"):
                return 2 * LIST_COST + 3 + math.ceil(_length(value) ** 2 * (2 + CHARACTER))
            case Comprehension():
                return STARTS[node.kind]
            case Call():
                return self._call(node, value)
        return 0

    def _call(self, node: Call, value: object) -> int:
        target = None if node.target is None else self._value(node.target)
        match node.function:
            case "startsWith" | "endsWith":
                return math.ceil(_length(target) * CHARACTER)
            case "join":
                return math.ceil(_length(value) * 2 * CHARACTER)
            case "slice" | "range" | "flatten":
                return _length(value) + 1 + LIST_COST
            case "isSorted" | "sum" | "min" | "max" | "indexOf" | "lastIndexOf":
                return _traversal(target)
        return self._by_rule(node)

    def _by_rule(self, node: Call) -> int:
        """What the estimate says for operands of these sizes."""
        overloads = self._checked.overloads.get(node, ())
        is_method = node.target is not None and (not overloads or overloads[0].is_method)
        operands = ((node.target,) if is_method and node.target else ()) + node.arguments
        described = [self._operand(one) for one in operands]
        parameters = [overload.parameters for overload in overloads]
        call = Operands(described[0] if is_method else None, described[is_method:], parameters)
        return own_cost(node, call, is_method=is_method)[0]

    def _operand(self, node: Node) -> Operand:
        return Operand(node, self._checked.types[node], fixed(_length(self._value(node))), (), None)

    def _value(self, node: Node) -> object:
        return node.value if isinstance(node, Constant) else self._values.get(node)


def rounds_of(root: Node) -> dict[Node, int]:
    """Of each body of a loop: what a round costs besides the body."""
    found: dict[Node, int] = {}
    level = [root]
    while level:
        node = level.pop()
        level.extend(children(node))
        if isinstance(node, Comprehension):
            found[node.body] = STEPS.get(node.kind, STEPS["map"])(0)
    return found


def _traversal(value: object) -> int:
    match value:
        case str() | bytes():
            return int(len(value) * CHARACTER)
        case tuple():
            return sum(map(_traversal, value))
    return 1


def _length(value: object) -> int:
    match value:
        case str() | bytes() | tuple() | Mapping():
            return len(value)
        case Address(address=address):
            return address.max_prefixlen // 8
        case Prefix(bits=bits):
            return math.ceil(bits / 8)
        case Optional(present=True, value=inner):
            return _length(inner)
    return 1
