"""The allocator answers like an exhaustive search that was written from the rules, on small random clusters.

The oracle knows nothing of backtracking: it lists all combinations of devices, in the order that the rules define, and
takes the first that is valid as a whole.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from unittest.mock import patch

from hypothesis import event, given, settings
from hypothesis import strategies as st
from support.allocation import DRIVER, NODE, alternative, claim, exactly, first_of, gpu, held, published, snapshot
from support.rows import examples

from dra_driver.allocation.search import Allocated, allocate

type Counter = tuple[str, str]
"""Set and name."""

LEFT: dict[str, int] = {"m0": 1, "m1": 1, "c": 2}
"""The counters of every set."""


@dataclass(frozen=True)
class Thing:
    """A device: its attributes, whether somebody has it, whether it is tainted.

    `draws` are counters of the set `of`. `size` is its capacity, None for none; a shareable one gives it away in steps
    of `step`, and `shared` of it is given away.
    """

    name: str
    kind: str
    link: str | None
    used: bool = False
    tainted: bool = False
    of: str = ""
    draws: tuple[tuple[str, int], ...] = ()
    size: int | None = None
    shareable: bool = False
    step: int = 0
    shared: int = 0

    def takes(self, asked: int | None) -> int | None:
        """What a share consumes; None when it cannot be had."""
        if self.size is None:
            return 0 if asked is None else None
        if not self.shareable or not self.step:
            return self.size if asked is None else asked
        amount = self.step if asked is None else -(-asked // self.step) * self.step
        return amount if amount <= self.size else None


@dataclass(frozen=True)
class Want:
    """A request or an alternative. `count` None wants all; `size` is what is asked for of the capacity."""

    count: int | None
    kind: str | None
    admin: bool = False
    tolerant: bool = False
    size: int | None = None

    def fits(self, thing: Thing) -> bool:
        taken = thing.takes(self.size)
        if taken is None or (thing.size is not None and thing.shared + taken > thing.size):
            return False
        return self.kind is None or self.kind == thing.kind

    @property
    def fields(self) -> dict[str, object]:
        fields: dict[str, object] = {"count": self.count} if self.count else {"allocationMode": "All"}
        if self.admin:
            fields["adminAccess"] = True
        if self.tolerant:
            fields["tolerations"] = [{"operator": "Exists"}]
        if self.size is not None:
            fields["capacity"] = {"requests": {"memory": str(self.size)}}
        return fields

    @property
    def expressions(self) -> list[str]:
        return [f"device.attributes['{DRIVER}'].kind == '{self.kind}'"] if self.kind else []


@dataclass(frozen=True)
class Order:
    """A claim: requests (each a list of alternatives) and constraints (kind, requests; none for all)."""

    requests: tuple[tuple[Want, ...], ...]
    constraints: tuple[tuple[str, tuple[int, ...]], ...] = field(default=())


@st.composite
def plain(draw: st.DrawFn, name: str) -> list[Thing]:
    return [
        Thing(
            name,
            draw(st.sampled_from("ab")),
            draw(st.sampled_from(["x", "x", "y", None])),
            used=draw(st.sampled_from([False, False, True])),
            tainted=draw(st.sampled_from([False, False, False, True])),
            size=draw(st.sampled_from([None, 4])),
        )
    ]


_PARTS = {"all": (("c", 2), ("m0", 1), ("m1", 1)), "low": (("c", 1), ("m0", 1)), "high": (("c", 1), ("m1", 1))}


@st.composite
def partitioned(draw: st.DrawFn, name: str) -> list[Thing]:
    """A GPU of one whole and two halves."""
    parts = draw(st.lists(st.sampled_from(sorted(_PARTS)), min_size=1, max_size=3, unique=True))
    used = draw(st.sampled_from([None, None, None, *parts]))
    kind, link = draw(st.sampled_from("ab")), draw(st.sampled_from(["x", "y", None]))
    return [Thing(f"{name}-{part}", kind, link, part == used, of=name, draws=_PARTS[part]) for part in parts]


@st.composite
def shared(draw: st.DrawFn, name: str) -> list[Thing]:
    step = draw(st.sampled_from([0, 2]))
    given_away = draw(st.sampled_from([0, 0, 2, 4]))
    thing = Thing(name, "b", draw(st.sampled_from(["x", None])), size=4, shareable=True, step=step, shared=given_away)
    return [replace(thing, of=name, draws=_PARTS["low"]) if draw(st.booleans()) else thing]


@st.composite
def things(draw: st.DrawFn) -> list[Thing]:
    drawn: list[Thing] = []
    for index in range(draw(st.integers(1, 4))):
        drawn += draw(draw(st.sampled_from([plain, plain, partitioned, shared]))(f"g{index}"))
    return drawn[:6]


WANTS = st.builds(
    Want,
    count=st.sampled_from([1, 1, 2, 3, None]),
    kind=st.sampled_from([None, None, "a", "b"]),
    tolerant=st.booleans(),
    size=st.sampled_from([None, None, None, 1, 3]),
)
EXACT = st.one_of(WANTS, st.builds(Want, count=st.sampled_from([1, None]), kind=st.none(), admin=st.just(True)))
REQUESTS = st.one_of(EXACT.map(lambda want: (want,)), st.tuples(WANTS, WANTS))


@st.composite
def orders(draw: st.DrawFn) -> Order:
    requests = draw(st.lists(REQUESTS, min_size=1, max_size=2))
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
        if valid(wanted, known, split):
            return split
    return None


def valid(wanted: Sequence[Order], known: Sequence[Thing], solution: Sequence[Sequence[Choice]]) -> bool:
    picks = [
        (number, request[index], thing)
        for number, (order, chosen) in enumerate(zip(wanted, solution, strict=True))
        for request, (index, devices) in zip(order.requests, chosen, strict=True)
        for thing in devices
    ]
    return (
        all(not thing.tainted or want.tolerant for _, want, thing in picks)
        and nobody_has(picks)
        and counters_suffice(known, picks)
        and capacities_suffice(picks)
        and all(
            holds(kind, covered, chosen)
            for order, chosen in zip(wanted, solution, strict=True)
            for kind, covered in order.constraints
        )
    )


type Picks = Sequence[tuple[int, Want, Thing]]
"""Number of the claim, what was wanted, what is taken; in the order of taking."""


def nobody_has(picks: Picks) -> bool:
    taken: dict[str, set[int]] = defaultdict(set)
    for number, want, thing in picks:
        holders = taken[thing.name]
        if number in holders if want.admin else bool(holders) or thing.used:
            return False
        if not thing.shareable:
            holders.add(number)
    return True


def counters_suffice(known: Sequence[Thing], picks: Picks) -> bool:
    """Also for claims that hold something; a shareable device draws once, with its first share."""
    left: dict[Counter, int] = {(thing.of, name): LEFT[name] for thing in known for name in LEFT if thing.of}
    drawing = [thing for thing in known if thing.used or thing.shared]
    shares: set[str] = {thing.name for thing in known if thing.shared}
    for _, _, thing in picks:
        if thing.name not in shares:
            drawing.append(thing)
        if thing.shareable:
            shares.add(thing.name)
    for thing in drawing:
        for name, amount in thing.draws:
            left[thing.of, name] -= amount
    return all(amount >= 0 for amount in left.values())


def capacities_suffice(picks: Picks) -> bool:
    given: dict[Thing, int] = defaultdict(int)
    for _, want, thing in picks:
        given[thing] += (thing.takes(want.size) or 0) if thing.shareable else 0
    return all(thing.size is None or thing.shared + amount <= thing.size for thing, amount in given.items())


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
    device = gpu(thing.name, taints=taints, **attributes)
    if thing.size is not None:
        device["capacity"] = {"memory": {"value": str(thing.size)}}
    if thing.shareable:
        device["allowMultipleAllocations"] = True
        if thing.step:
            step = str(thing.step)
            policy = {"default": step, "validRange": {"min": step, "step": step}}
            device["capacity"]["memory"]["requestPolicy"] = policy
    if thing.draws:
        draws = {name: {"value": str(amount)} for name, amount in thing.draws}
        device["consumesCounters"] = [{"counterSet": thing.of, "counters": draws}]
    return device


def as_counters(known: Sequence[Thing]) -> list[dict[str, object]]:
    names = dict.fromkeys(thing.of for thing in known if thing.of)
    counters = {name: {"value": str(amount)} for name, amount in LEFT.items()}
    return [{"name": name, "counters": counters} for name in names]


@settings(max_examples=examples(300), deadline=None)
@given(things(), st.lists(orders(), min_size=1, max_size=2), st.sampled_from([0, 2, 24]))
def test_the_first_solution_in_the_order_of_the_rules_is_the_answer_and_none_only_when_there_is_none(
    known: list[Thing], wanted: list[Order], shortcuts_after: int
) -> None:
    """Clusters as small as these are mostly decided before shortcuts begin, so they begin earlier too."""
    expected = solve(wanted, known)
    event("solvable" if expected is not None else "not solvable")
    claims = [as_claim(order, number) for number, order in enumerate(wanted)]
    sets = as_counters(known)
    slices = [published(*map(as_device, known), count=2 if sets else 1)]
    if sets:
        slices.append(published(name="slice-1", count=2, sharedCounters=sets))
    taken = [held(thing.name) for thing in known if thing.used]
    taken += [held(thing.name, memory=str(thing.shared)) for thing in known if thing.shared]
    with patch("dra_driver.allocation.search._STEPS_BEFORE_SHORTCUTS", shortcuts_after):
        result = allocate(claims, NODE, snapshot(*slices, held=taken))
    if expected is None:
        assert not isinstance(result, Allocated)
        assert result.reason
        return
    assert isinstance(result, Allocated), result
    for allocation, order, solution in zip(result.allocations, wanted, expected, strict=True):
        want = [
            (f"r{number}/a{index}" if len(order.requests[number]) > 1 else f"r{number}", thing.name, consumed)
            for number, (index, devices) in enumerate(solution)
            for thing in devices
            for consumed in [thing.takes(order.requests[number][index].size) if thing.shareable else None]
        ]
        assert [
            (
                device.request,
                device.device,
                int(device.consumed_capacity["memory"]) if device.consumed_capacity else None,
            )
            for device in allocation.devices.results
        ] == want
