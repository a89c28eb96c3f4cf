"""All small changes of a source text that its tests should notice: one condition, bound, constant or statement each.

Left out is what only moves a moment: how long a pause takes, and whether a deadline counts the instant itself.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_SILENT = ("_log.", "structlog.")
"""Calls that only write the log: what it says is no promise."""
_PAUSES = ("time.sleep(", "await asyncio.sleep(")
_CLOCKS = ("monotonic()", "loop.time()", "get_running_loop().time()")


@dataclass(frozen=True, slots=True)
class Mutant:
    """In function `where`, the lines `old` became `new`; `text` is the whole file then."""

    where: str
    begins: int
    """The first line of the function, decorators included."""
    lines: range
    """Numbers of the lines that are changed."""
    old: str
    new: str
    text: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What the list of harmless mutants names: it survives a move, and any change elsewhere in the file."""
        return self.where, " ".join(self.old.split()), " ".join(self.new.split())


type _Function = ast.FunctionDef | ast.AsyncFunctionDef


def mutants_of(text: str) -> Iterator[Mutant]:
    """In functions and methods, in the order of the text. Two changes with the same meaning are one."""
    for where, function in _functions(ast.parse(text), ""):
        begins = min(node.lineno for node in (function, *function.decorator_list))
        seen: set[tuple[int, int, str]] = set()
        for node in (inner for statement in function.body for inner in _walk(statement)):
            for old, new in _changes(node):
                written = f"({ast.unparse(new)})" if isinstance(new, ast.expr) else ast.unparse(new)
                if (old.lineno, old.col_offset, written) in seen:
                    continue
                seen.add((old.lineno, old.col_offset, written))
                start = _offset(text, old.lineno, old.col_offset)
                if text.startswith("0o", start):
                    continue  # the mode of a file
                end = _offset(text, old.end_lineno, old.end_col_offset)
                lines = range(old.lineno, (old.end_lineno or 0) + 1)
                first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
                changed = text[first:start] + written + text[end:last]
                yield Mutant(where, begins, lines, text[first:last], changed, text[:first] + changed + text[last:])


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """What is inside, itself included, without pauses and logs."""
    if not (isinstance(node, ast.Expr) and ast.unparse(node).startswith((*_PAUSES, *_SILENT))):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _walk(child)


def _functions(node: ast.AST, where: str) -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{where}{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{where}{child.name}.")


def _changes(node: ast.AST) -> Iterator[tuple[ast.stmt | ast.expr, ast.stmt | ast.expr]]:
    match node:
        case ast.If() | ast.While() | ast.IfExp():
            if not (isinstance(node.test, ast.Constant) or _is_for_types(node.test)):
                yield node.test, _negated(node.test)
        case ast.comprehension():
            yield from ((test, _negated(test)) for test in node.ifs)
        case ast.BoolOp():
            other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
            yield node, ast.BoolOp(other, node.values)
            yield from ((value, _negated(value)) for value in node.values[:-1] if not _is_value(value))
            if isinstance(node.op, ast.And):
                yield node.values[-1], _negated(node.values[-1])
        case ast.UnaryOp(op=ast.Not()):
            yield node, node.operand
        case ast.Compare(ops=[operator]) if type(operator) in _SWAPPED and not _is_of_clock(node):
            yield node, ast.Compare(node.left, [_SWAPPED[type(operator)]()], node.comparators)
        case ast.Compare(ops=[_, _, *_]):
            for place, operator in enumerate(node.ops):
                if type(operator) in _SWAPPED:
                    ops = [*node.ops[:place], _SWAPPED[type(operator)](), *node.ops[place + 1 :]]
                    yield node, ast.Compare(node.left, ops, node.comparators)
        case ast.Constant(value=bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int(value)) | ast.Constant(value=float(value)):
            yield node, ast.Constant(value + 1)
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield node, ast.Pass()
        case ast.Raise() | ast.Continue() | ast.Break() | ast.AugAssign() | ast.Delete():
            yield node, ast.Pass()
        case ast.Return(value=None):
            yield node, ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript() | ast.Tuple(elts=[ast.Attribute(), *_])]):
            yield node, ast.Pass()
        case ast.ExceptHandler(body=[first, *_]) if not isinstance(first, ast.Raise):
            yield first, ast.Raise()
        case ast.Call(func=ast.Name(id="sorted" | "reversed"), args=[first, *_]):
            yield node, ast.Call(ast.Name("list"), [first], [])


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    if (
        isinstance(test, ast.Compare)
        and len(test.ops) == 1
        and isinstance(test.ops[0], ast.Eq | ast.Is | ast.In | ast.NotEq | ast.IsNot | ast.NotIn)
    ):
        return ast.Compare(test.left, [_SWAPPED[type(test.ops[0])]()], test.comparators)
    return ast.UnaryOp(ast.Not(), test)


def _is_value(part: ast.expr) -> bool:
    """`found or default` is no condition."""
    return isinstance(part, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.BinOp | ast.JoinedStr)


def _is_for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _is_of_clock(test: ast.Compare) -> bool:
    return any(clock in ast.unparse(test) for clock in _CLOCKS)


def _offset(text: str, line: int | None, column: int | None) -> int:
    lines = text.splitlines(keepends=True)
    assert line is not None and column is not None
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())
