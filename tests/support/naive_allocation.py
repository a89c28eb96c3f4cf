"""The structured allocator once more, as plainly as its rules are told: a reference for the one that is quick.

It works on API objects, on the pools of one node that are complete and valid, and shares nothing with
`dra_driver.allocation` but selectors and quantities. `leaks` adds defects of kube-scheduler up to 1.36.2: counters
that were drawn for a device stay drawn when the device is then refused for a taint or a constraint, or when it is a
shareable one that is taken back; and one without any capacity that was taken once counts as in use ever after.
`minor` is of the Kubernetes whose rules apply.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

from dra_driver.api.resource import Device
from dra_driver.cel.device import CelDevice, compile_selector
from dra_driver.cel.errors import CelError
from dra_driver.quantity import Quantity

type Obj = dict[str, Any]
type CounterKey = tuple[str, str, str]
"""Pool (in 1.34: slice), set, counter."""


class Stop(Exception):
    """The whole attempt ends with an error."""


class TooLong(Exception):
    """More steps than a test should take."""


@dataclass(frozen=True, eq=False)
class Published:
    driver: str
    pool: str
    device: Obj
    cel: CelDevice
    counted: str
    """Whose counters it draws on: its pool's; in 1.34 its slice's."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.driver, self.pool, self.device["name"]

    @property
    def shareable(self) -> bool:
        return bool(self.device.get("allowMultipleAllocations"))

    def draws(self) -> Iterator[tuple[CounterKey, Fraction]]:
        for consumption in self.device.get("consumesCounters") or ():
            for name, counter in consumption["counters"].items():
                yield (self.counted, consumption["counterSet"], name), _value(counter["value"])

    def attribute(self, name: str) -> object:
        attributes = self.device.get("attributes") or {}
        domain, _, id_ = name.rpartition("/")
        value = attributes.get(name) or (attributes.get(id_) if domain == self.driver else None)
        return None if value is None else tuple(value.items())


class Reference:
    """One attempt. `held` are allocations of other claims; `solve` once."""

    def __init__(
        self,
        claims: Sequence[Obj],
        slices: Sequence[Obj],
        classes: Mapping[str, Obj],
        held: Sequence[Obj] = (),
        *,
        leaks: bool = False,
        minor: int = 36,
        most_steps: int = 1_000_000,
    ) -> None:
        self._claims, self._classes, self._leaks, self._steps_left = claims, classes, leaks, most_steps
        self._minor = minor
        ordered = sorted(
            slices, key=lambda slice_: (slice_["spec"]["driver"], slice_["spec"]["pool"]["name"], _name(slice_))
        )
        self.devices = [
            Published(
                spec["driver"],
                spec["pool"]["name"],
                device,
                CelDevice(spec["driver"], Device.of(device)),
                self._counted(slice_),
            )
            for slice_, spec in ((slice_, slice_["spec"]) for slice_ in ordered)
            for device in spec.get("devices") or ()
        ]
        self._whole: set[object] = set()
        self._given: dict[object, dict[str, Fraction]] = {}
        self._hold(held)
        self._left: dict[CounterKey, Fraction] = {
            (self._counted(slice_), counters["name"], name): _value(counter["value"])
            for slice_ in slices
            for counters in slice_["spec"].get("sharedCounters") or ()
            for name, counter in counters["counters"].items()
        }
        for published in self.devices:
            if published.key in self._whole or (minor >= 36 and published.key in self._given):
                self._draw(published, -1)
        self._mine: dict[object, list[int]] = defaultdict(list)
        self._shares: dict[object, list[dict[str, Fraction]]] = defaultdict(list)
        self._never_forgotten: set[object] = set()
        """Shareable devices without capacity that were taken once; see `leaks`."""
        self._covered: dict[tuple[int, int], list[tuple[str, object]]] = defaultdict(list)
        self.results: list[list[tuple[str, Published, dict[str, Fraction]]]] = [[] for _ in claims]
        """Request, device and consumed capacity, for each claim."""

    def _counted(self, slice_: Obj) -> str:
        return _name(slice_) if self._minor < 35 else str(slice_["spec"]["pool"]["name"])

    def _hold(self, held: Sequence[Obj]) -> None:
        for result in (result for allocation in held for result in allocation["devices"]["results"]):
            key = (result["driver"], result["pool"], result["device"])
            if result.get("adminAccess"):
                continue
            if "shareID" not in result:
                self._whole.add(key)
                continue
            given = self._given.setdefault(key, {})
            for name, amount in (result.get("consumedCapacity") or {}).items():
                given[name] = given.get(name, Fraction(0)) + _value(amount)

    def solve(self) -> bool:
        """Whether there is a solution; it is in `results` then."""
        return self._go(0, 0, None, 0, 0)

    def _go(self, claim: int, request: int, alternative: int | None, taken: int, start: int) -> bool:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TooLong
        if claim == len(self._claims):
            return True
        requests = self._claims[claim]["spec"]["devices"]["requests"]
        if request == len(requests):
            return self._go(claim + 1, 0, None, 0, 0)
        asked = requests[request]
        if alternative is None and asked.get("firstAvailable"):
            return any(self._go(claim, request, index, 0, 0) for index in range(len(asked["firstAvailable"])))
        spec = asked["exactly"] if alternative is None else asked["firstAvailable"][alternative]
        name = asked["name"] if alternative is None else f"{asked['name']}/{spec['name']}"
        every = self._every(spec) if spec.get("allocationMode") == "All" else None
        if every == []:
            return False
        if taken == (len(every) if every is not None else spec.get("count") or 1):
            return self._go(claim, request + 1, None, 0, 0)
        for place in [every[taken]] if every is not None else range(start, len(self.devices)):
            undo = self._take(claim, name, spec, self.devices[place])
            if undo is None:
                continue
            onward, next_start = alternative, place + 1
            if self._minor < 36:
                onward, next_start = (0 if alternative and every is not None else alternative), 0
            if self._go(claim, request, onward, taken + 1, next_start):
                return True
            undo()
        return False

    def _every(self, spec: Obj) -> list[int]:
        return [
            place
            for place, published in enumerate(self.devices)
            if self._selected(spec, published) and self._consumed(spec, published, []) is not None
        ]

    def _take(self, claim: int, name: str, spec: Obj, published: Published) -> Callable[[], None] | None:
        """Choose the device; how to take it back, or None when it may not be chosen."""
        admin, mine = bool(spec.get("adminAccess")), self._mine[published.key]
        if (claim in mine) if admin else (published.key in self._whole or mine):
            return None
        if not self._selected(spec, published):
            return None
        consumed = self._consumed(spec, published, self._shares[published.key])
        if consumed is None:
            return None
        in_use = self._given.get(published.key) or self._shares[published.key] or published.key in self._never_forgotten
        draws = self._minor < 35 or not (published.shareable and in_use)
        if draws and not self._draw_if_enough(published):
            return None
        if not self._tolerated(spec, published) or not self._allowed(claim, name, spec, published):
            if draws and not self._leaks:
                self._draw(published, 1)
            return None
        if published.shareable:
            self._shares[published.key].append(consumed)
            if self._leaks and not consumed:
                self._never_forgotten.add(published.key)
        else:
            mine.append(claim)
        self.results[claim].append((name, published, consumed if published.shareable else {}))

        def undo() -> None:
            self.results[claim].pop()
            self._forget(claim, name)
            if published.shareable:
                self._shares[published.key].pop()
            else:
                mine.remove(claim)
            if draws and not (self._leaks and published.shareable):
                self._draw(published, 1)

        return undo

    def _selected(self, spec: Obj, published: Published) -> bool:
        selectors = [*self._classes[spec["deviceClassName"]]["spec"]["selectors"], *(spec.get("selectors") or ())]
        try:
            return all(compile_selector(each["cel"]["expression"]).matches(published.cel) for each in selectors)
        except CelError as error:
            raise Stop from error

    def _consumed(
        self, spec: Obj, published: Published, shares: list[dict[str, Fraction]]
    ) -> dict[str, Fraction] | None:
        asked = (spec.get("capacity") or {}).get("requests") or {}
        capacities = published.device.get("capacity") or {}
        if not asked.keys() <= capacities.keys():
            return None
        amounts: dict[str, Fraction] = {}
        for name, capacity in capacities.items():
            amount = _share(asked.get(name), capacity)
            taken = self._given.get(published.key, {}).get(name, 0) + sum(share[name] for share in shares)
            if amount is None or taken + amount > _value(capacity["value"]):
                return None
            amounts[name] = amount
        return amounts

    def _draw(self, published: Published, sign: int) -> None:
        for key, amount in published.draws():
            self._left[key] += sign * amount

    def _draw_if_enough(self, published: Published) -> bool:
        if not published.device.get("consumesCounters"):
            return True
        self._draw(published, -1)
        if any(amount < 0 for key, amount in self._left.items() if key[0] == published.counted):
            self._draw(published, 1)
            return False
        return True

    def _tolerated(self, spec: Obj, published: Published) -> bool:
        return all(
            taint["effect"] == "None" or any(_tolerates(each, taint) for each in spec.get("tolerations") or ())
            for taint in published.device.get("taints") or ()
        )

    def _allowed(self, claim: int, name: str, spec: Obj, published: Published) -> bool:
        """Adds the device to the constraints, if it violates none of them."""
        constraints = self._claims[claim]["spec"]["devices"].get("constraints") or ()
        covering = [(index, each) for index, each in enumerate(constraints) if _covers(each, name)]
        for done, (index, each) in enumerate(covering):
            value, known = published.attribute(each.get("matchAttribute") or each["distinctAttribute"]), self._covered
            others = [other for _, other in known[claim, index]]
            fits = value not in others if "distinctAttribute" in each else all(value == other for other in others)
            if value is None or not fits:
                for added, _ in covering[:done]:
                    known[claim, added].pop()
                if spec.get("allocationMode") == "All":
                    raise Stop
                return False
            request = name.split("/")[0]
            if "distinctAttribute" in each:
                # Known defect: one value per request is remembered.
                known[claim, index] = [other for other in known[claim, index] if other[0] != request]
            known[claim, index].append((request, value))
        return True

    def _forget(self, claim: int, name: str) -> None:
        constraints = self._claims[claim]["spec"]["devices"].get("constraints") or ()
        for index, each in enumerate(constraints):
            if not _covers(each, name):
                continue
            if "matchAttribute" in each:
                self._covered[claim, index].pop()
            else:
                request, known = name.split("/")[0], self._covered[claim, index]
                self._covered[claim, index] = [other for other in known if other[0] != request]


def _share(asked: str | None, capacity: Obj) -> Fraction | None:
    policy: Obj = capacity.get("requestPolicy") or {}
    if asked is None:
        return _value(policy["default"] if "default" in policy else capacity["value"])
    amount = _value(asked)
    if "validValues" in policy:
        return next((value for value in map(_value, policy["validValues"]) if value >= amount), None)
    if "validRange" in policy:
        valid = policy["validRange"]
        low = _value(valid["min"])
        if amount > low and "step" in valid:
            step = _value(valid["step"])
            amount = low + step * ceil((ceil(amount) - low) / step)
        amount = max(amount, low)
        if "max" in valid and amount > _value(valid["max"]):
            return None
    return amount


def _covers(constraint: Obj, name: str) -> bool:
    names = constraint.get("requests") or ()
    return not names or name in names or name.split("/")[0] in names


def _tolerates(toleration: Obj, taint: Obj) -> bool:
    same_key = not toleration.get("key") or toleration["key"] == taint["key"]
    same_effect = not toleration.get("effect") or toleration["effect"] == taint["effect"]
    same_value = toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
    return same_key and same_effect and same_value


def _value(text: str) -> Fraction:
    return Quantity.parse(text).value


def _name(slice_: Obj) -> str:
    return str(slice_["metadata"]["name"])
