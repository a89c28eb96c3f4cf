"""The allocator answers like an exhaustive search that was written from the rules, on small random clusters.

The oracle knows nothing of backtracking: it lists all combinations of devices, in the order that the rules define, and
takes the first that is valid as a whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from hypothesis import event, given, settings
from hypothesis import strategies as st
from support.allocation import DRIVER, NODE, alternative, claim, exactly, first_of, gpu, published, snapshot

from dra_driver.allocation.search import Allocated, allocate


@dataclass(frozen=True)
class Thing:
    """A device: its attributes, whether somebody has it, whether it is tainted."""

    name: str
    kind: str
    link: str | None
    used: bool
    tainted: bool


@dataclass(frozen=True)
class Want:
    """A request or an alternative. `count` None wants all."""

    count: int | None
    kind: str | None
    admin: bool = False
    tolerant: bool = False

    def fits(self, thing: Thing) -> bool:
        return self.kind is None or self.kind == thing.kind

    @property
    def fields(self) -> dict[str, object]:
        fields: dict[str, object] = {"count": self.count} if self.count else {"allocationMode": "All"}
        if self.admin:
            fields["adminAccess"] = True
        if self.tolerant:
            fields["tolerations"] = [{"operator": "Exists"}]
        return fields

    @property
    def expressions(self) -> list[str]:
        return [f"device.attributes['{DRIVER}'].kind == '{self.kind}'"] if self.kind else []


@dataclass(frozen=True)
class Order:
    """A claim: requests (each a list of alternatives) and constraints (kind, requests; none for all)."""

    requests: tuple[tuple[Want, ...], ...]
    constraints: tuple[tuple[str, tuple[int, ...]], ...] = field(default=())


def things() -> st.SearchStrategy[list[Thing]]:
    shape = st.tuples(
        st.sampled_from("ab"), st.sampled_from(["x", "x", "y", None]), st.sampled_from([False, False, True]),
        st.sampled_from([False, False, False, True]),
    )  # fmt: skip
    shapes = st.lists(shape, min_size=1, max_size=5)
    return shapes.map(lambda found: [Thing(f"g{index}", *one) for index, one in enumerate(found)])


WANTS = st.builds(
    Want,
    count=st.sampled_from([1, 1, 2, 3, None]),
    kind=st.sampled_from([None, None, "a", "b"]),
    tolerant=st.booleans(),
)
EXACT = st.one_of(WANTS, st.builds(Want, count=st.sampled_from([1, None]), kind=st.none(), admin=st.just(True)))
REQUESTS = st.one_of(EXACT.map(lambda want: (want,)), st.tuples(WANTS, WANTS))


@st.composite
def orders(draw: st.DrawFn) -> Order:
    requests = draw(st.lists(REQUESTS, min_size=1, max_size=3))
    if any(want.count is None for request in requests for want in request):
        # A device of "all" that violates a constraint ends the attempt, and what the search met first is not a law.
        return Order(tuple(requests))
    names = st.lists(st.integers(0, len(requests) - 1), max_size=2, unique=True).map(tuple)
    constraints = draw(st.lists(st.tuples(st.sampled_from(["match", "distinct"]), names), max_size=2))
    return Order(tuple(requests), tuple(constraints))


type Choice = tuple[int, tuple[Thing, ...]]
"""Of one request: the alternative, and its devices."""


def choices(request: Sequence[Want], known: Sequence[Thing]) -> Iterator[Choice]:
    for index, want in enumerate(request):
        fitting = [thing for thing in known if want.fits(thing)]
        if want.count is None:
            if fitting:
                yield index, tuple(fitting)
        else:
            for group in combinations(fitting, want.count):
                yield index, group


def solve(wanted: Sequence[Order], known: Sequence[Thing]) -> list[list[Choice]] | None:
    """The first valid solution in the order of the rules; None when there is none."""
    requests = [request for order in wanted for request in order.requests]
    for solution in product(*(list(choices(request, known)) for request in requests)):
        split: list[list[Choice]] = []
        rest = list(solution)
        for order in wanted:
            split.append(rest[: len(order.requests)])
            rest = rest[len(order.requests) :]
        if valid(wanted, split):
            return split
    return None


def valid(wanted: Sequence[Order], solution: Sequence[Sequence[Choice]]) -> bool:
    taken: dict[str, set[int]] = {}
    for number, (order, chosen) in enumerate(zip(wanted, solution, strict=True)):
        for request, (index, devices) in zip(order.requests, chosen, strict=True):
            want = request[index]
            for thing in devices:
                holders = taken.setdefault(thing.name, set())
                busy = number in holders if want.admin else bool(holders) or thing.used
                if busy or (thing.tainted and not want.tolerant):
                    return False
                holders.add(number)
        if not all(holds(kind, covered, chosen) for kind, covered in order.constraints):
            return False
    return True


def holds(kind: str, covered: Sequence[int], chosen: Sequence[Choice]) -> bool:
    last: dict[int, str] = {}
    matched: set[str] = set()
    for number, (_, devices) in enumerate(chosen):
        if covered and number not in covered:
            continue
        for thing in devices:
            if thing.link is None:
                return False
            if kind == "distinct":
                # One value is remembered per request: the known quirk of kube-scheduler.
                if thing.link in last.values():
                    return False
                last[number] = thing.link
            matched.add(thing.link)
    return kind == "distinct" or len(matched) <= 1


def as_claim(order: Order, number: int) -> object:
    requests = []
    for index, request in enumerate(order.requests):
        name = f"r{index}"
        if len(request) == 1:
            requests.append(exactly(name, *request[0].expressions, **request[0].fields))
        else:
            alternatives = [
                alternative(f"a{place}", *want.expressions, **want.fields) for place, want in enumerate(request)
            ]
            requests.append(first_of(name, *alternatives))
    attribute = f"{DRIVER}/link"
    constraints = [
        {"requests": [f"r{index}" for index in covered], f"{kind}Attribute": attribute}
        for kind, covered in order.constraints
    ]
    return claim(*requests, name=f"claim-{number}", constraints=constraints)


def as_device(thing: Thing) -> dict[str, object]:
    attributes = {"kind": thing.kind} | ({"link": thing.link} if thing.link else {})
    taints = [{"key": "bad", "effect": "NoSchedule"}] if thing.tainted else []
    return gpu(thing.name, taints=taints, **attributes)


@settings(max_examples=300, deadline=None)
@given(things(), st.lists(orders(), min_size=1, max_size=2))
def test_the_first_solution_in_the_order_of_the_rules_is_the_answer_and_none_only_when_there_is_none(
    known: list[Thing], wanted: list[Order]
) -> None:
    expected = solve(wanted, known)
    event("solvable" if expected is not None else "not solvable")
    claims = [as_claim(order, number) for number, order in enumerate(wanted)]
    within = snapshot(published(*map(as_device, known)), in_use=[thing.name for thing in known if thing.used])
    result = allocate(claims, NODE, within)
    if expected is None:
        assert not isinstance(result, Allocated)
        assert result.reason
        return
    assert isinstance(result, Allocated), result
    for allocation, order, solution in zip(result.allocations, wanted, expected, strict=True):
        want = [
            (f"r{number}/a{index}" if len(order.requests[number]) > 1 else f"r{number}", thing.name)
            for number, (index, devices) in enumerate(solution)
            for thing in devices
        ]
        assert [(one.request, one.device) for one in allocation.devices.results] == want
