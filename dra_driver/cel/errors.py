"""What can be wrong with an expression, and where: every error knows the character it points at.

CelSyntaxError, CelTypeError, CelNotJudged and CelCostError are found before any device is looked at; CelRuntimeError is
about one evaluation.
"""

from collections.abc import Iterable
from difflib import get_close_matches

from dra_driver.errors import Help, InvalidInput, Move


class CelError(InvalidInput):
    """`start` and `end` are offsets into `expression`, end exclusive; `line` and `column` count from 1."""

    help = Help(
        Move.USER,
        "A selector's expression is wrong.",
        "The message names the character; `dractl check` shows it with file and line.",
    )

    def __init__(self, message: str, expression: str, start: int, end: int | None = None) -> None:
        self.expression = expression
        self.start = min(start, len(expression))
        self.end = max(self.start + 1, end if end is not None else 0)
        super().__init__(message)

    @property
    def line(self) -> int:
        return self.expression.count("\n", 0, self.start) + 1

    @property
    def column(self) -> int:
        return self.start - (self.expression.rfind("\n", 0, self.start) + 1) + 1

    @property
    def excerpt(self) -> str:
        """The line of the expression and below it marks under the offending part."""
        first = self.expression.rfind("\n", 0, self.start) + 1
        text = self.expression[first:].split("\n", 1)[0]
        width = max(1, min(self.end, first + len(text)) - self.start)
        return f"{text}\n{' ' * (self.start - first)}{'^' * width}"

    def __str__(self) -> str:
        where = f"line {self.line}, column {self.column}" if "\n" in self.expression else f"column {self.column}"
        return f"{where}: {self.message}"


class CelSyntaxError(CelError):
    """The text is not an expression."""

    help = Help(
        Move.USER,
        "The text is not an expression of CEL: a bracket, a quote or an operator is missing or superfluous.",
        "Correct the expression at the character that the message names.",
    )


class CelNotJudged(CelError):
    """The expression may be right, and has a part of CEL that is not known here. Only an API server can judge it."""

    help = Help(
        Move.USER,
        "The expression has a part of CEL that this program does not know, so it is not judged.",
        "Ask an API server: `kubectl apply --dry-run=server`. Or write it without that part.",
    )

    def __init__(self, why: str, expression: str, start: int, end: int) -> None:
        super().__init__(f"not judged: {why}", expression, start, end)


class CelTypeError(CelError):
    """The expression can never be evaluated: an unknown name, a function for other types, a result that is no bool."""

    help = Help(
        Move.USER,
        "The expression can never be evaluated: an unknown name, a function for other types, a result that is "
        "neither true nor false.",
        "Correct it; if a name is misspelled, the message has the right one.",
    )


class CelCostError(CelError):
    """The expression may take more steps than the API server allows."""

    help = Help(
        Move.USER,
        "The expression may cost more than the API server allows for one selector.",
        "Make several selectors of it, or use fewer loops inside loops.",
    )

    def __init__(self, why: str, expression: str, start: int, end: int) -> None:
        super().__init__(f"too complex: {why}", expression, start, end)


class CelRuntimeError(CelError):
    """The evaluation failed for these values. The scheduler gives up on the whole pod then, not just on the device.

    `name` is what was looked for and `known` what there is, where that is what failed.
    """

    help = Help(
        Move.USER,
        "The selector fails on a device, mostly because the device lacks an attribute. The scheduler gives up "
        "on the pod then, on every node.",
        "Ask with `has()` first: `has(device.attributes['gpu.nvidia.com'].nvlinkDomain) && …`. Which "
        "attributes are always there says [attributes.md](attributes.md).",
    )

    def __init__(
        self,
        message: str,
        expression: str,
        start: int,
        end: int,
        *,
        name: str | None = None,
        known: Iterable[object] = (),
    ) -> None:
        super().__init__(message, expression, start, end)
        self.name = name
        self._known = known

    @property
    def suggestion(self) -> str | None:
        """A name that there is and that is close to the one looked for; found only on demand."""
        names = [item for item in self._known if isinstance(item, str)]
        return closest(self.name, names) if self.name is not None else None

    def __str__(self) -> str:
        return super().__str__() + (f"; did you mean `{self.suggestion}`?" if self.suggestion else "")


class CelUnreadableDevice(CelRuntimeError):
    """The device has an attribute that the server cannot read, so no selector can be evaluated for it."""

    help = Help(
        Move.ADMINISTRATOR,
        "A device has an attribute that is a list or has no value, and this version of Kubernetes cannot read it. Every"
        " selector fails on the device, and the scheduler gives up on the pod, on every node.",
        "Have the driver of the device publish the attribute as one value, or enable the feature gate"
        " DRAListTypeAttributes in the scheduler.",
    )


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`; None when none is."""
    close = get_close_matches(name, list(known), n=1)
    return close[0] if close else None
