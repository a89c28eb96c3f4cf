"""Selectors: compiled as the API server would compile them, and the attributes that they read known or not."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from dra_driver.cel.device import compile_selector
from dra_driver.cel.errors import CelError, CelNotJudged
from dra_driver.cel.functions import Server
from dra_driver.cel.parser import parse
from dra_driver.cel.tree import Bind, CallNode, Constant, Index, Name, Select, SyntaxNode, children
from dra_driver.checking import codes
from dra_driver.checking.codes import Severity
from dra_driver.checking.findings import CheckReport
from dra_driver.names import DEVICE_ATTRIBUTES, GPU_DRIVER, STANDARD_DOMAIN
from dra_driver.phrases import has_typo, is_misspelled, listed, meant

_CAPACITIES = (
    "memory", "multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines", "cores", "shares",
    "addressableMemory", *(f"memorySlice{number}" for number in range(8)),
)  # fmt: skip
_STANDARD = ("pciBusID", "pcieRoot", "numaNode", "cpuSocketID")


@dataclass(frozen=True)
class KnownNames:
    """Ids of attributes and of capacities, by domain."""

    attributes: Mapping[str, Collection[str]]
    capacity: Mapping[str, Collection[str]]

    @classmethod
    def of_driver(cls, extra: Collection[str] = (), driver: str = GPU_DRIVER) -> "KnownNames":
        """Of our driver, by the name that it has; `extra` are names of attributes that policies add."""
        names = [*DEVICE_ATTRIBUTES, *(f"{STANDARD_DOMAIN}/{id_}" for id_ in _STANDARD), *extra]
        return cls(_by_domain(names, driver), _by_domain(_CAPACITIES, driver))

    def problem(self, kind: str, domain: str, id_: str) -> "NameProblem | None":
        """What is strange about a name. Unknown domains belong to other drivers."""
        known = self.attributes if kind == "attributes" else self.capacity
        word = "attribute" if kind == "attributes" else "capacity"
        domains = {*self.attributes, *self.capacity}
        if domain not in domains:
            guess = meant(domain, domains)
            return NameProblem(f"no known device has {word} `{domain}/{id_}`{guess}", guess, domain) if guess else None
        if id_ in known.get(domain, ()):
            return None
        guess = meant(id_, known.get(domain, ()))
        other = self.capacity if kind == "attributes" else self.attributes
        if not guess and id_ in other.get(domain, ()):
            place = "capacity" if kind == "attributes" else "attributes"
            guess = f"; did you mean `device.{place}['{domain}'].{id_}`?"
        return NameProblem(f"no known device has {word} `{domain}/{id_}`{guess}", guess, id_)


@dataclass(frozen=True, slots=True)
class NameProblem:
    """`guess` is empty, or a question that names what was probably meant by `written`."""

    message: str
    guess: str
    written: str

    @property
    def fix(self) -> str | None:
        return fix_of(self.guess)

    @property
    def severity(self) -> Severity:
        """A misspelled name matches nothing, anywhere; another name may be one that an administrator adds."""
        right = self.guess.split("`")[1] if self.guess else ""
        elsewhere = right.startswith("device.")
        wrong = elsewhere or is_misspelled(self.written, right) or has_typo(self.written, right)
        return Severity.ERROR if wrong else Severity.WARNING


def _by_domain(names: Collection[str], driver: str) -> dict[str, set[str]]:
    by_domain: dict[str, set[str]] = {}
    for name in names:
        domain, _, id_ = name.rpartition("/")
        by_domain.setdefault(domain or driver, set()).add(id_)
    return by_domain


def check_selector(expression: str, path: str, report: CheckReport, server: Server, names: KnownNames) -> None:
    """`path` is that of the expression."""
    try:
        compile_selector(expression, server)
    except CelError as error:
        code = codes.NOT_JUDGED if isinstance(error, CelNotJudged) else codes.SELECTOR
        report.find(code, path, error.message, fix=suggested_in(error.message), offset=error.start)
        return
    for kind, domain, id_, start in _read(parse(expression), {}):
        problem = names.problem(kind, domain, id_)
        if problem is not None:
            report.find(
                codes.UNKNOWN_ATTRIBUTE, path, problem.message, fix=problem.fix, offset=start, severity=problem.severity
            )


def fix_of(guess: str) -> str | None:
    """`write `x`` from `; did you mean `x`?`."""
    parts = guess.split("`")
    return f"write `{parts[1]}`" if len(parts) > 2 else None


def unknown(message: str, name: str, known: Collection[str]) -> tuple[str, str | None]:
    """The message with what was probably meant, or else with all that is known; and the fix."""
    guess = meant(name, known)
    return f"{message}{guess}" if guess or not known else f"{message}; it has {listed(known)}", fix_of(guess)


def suggested_in(message: str) -> str | None:
    """The fix that a sentence with `did you mean` suggests."""
    _, separator, rest = message.rpartition("did you mean ")
    return fix_of(f"{separator}{rest}") if separator else None


def _read(node: SyntaxNode, bound: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, str, str, int]]:
    """What an expression reads: attributes or capacity, domain, id, and where the id begins. `bound` are variables of
    `cel.bind` that stand for a domain's map."""
    if isinstance(node, Bind):
        yield from _read(node.value, bound)
        owner = _domain(node.value, bound)
        inner = {name: value for name, value in bound.items() if name != node.variable}
        yield from _read(node.body, {**inner, node.variable: owner} if owner is not None else inner)
        return
    match node:
        case Select(operand=operand, field=id_) if (owner := _domain(operand, bound)) is not None:
            yield *owner, id_, node.field_start
        case Index(operand=operand, index=Constant(value=str(id_)) as index) if (
            owner := _domain(operand, bound)
        ) is not None:
            yield *owner, id_, index.start
        case CallNode(function="in", arguments=(Constant(value=str(id_)) as key, operand)) if (
            owner := _domain(operand, bound)
        ) is not None:
            yield *owner, id_, key.start
    for child in children(node):
        yield from _read(child, bound)


def _domain(node: SyntaxNode, bound: Mapping[str, tuple[str, str]]) -> tuple[str, str] | None:
    match node:
        case Name(name=name):
            return bound.get(name)
        case Index(
            operand=Select(operand=Name(name="device"), field=("attributes" | "capacity") as kind),
            index=Constant(value=str(domain)),
        ):
            return kind, domain
    return None
