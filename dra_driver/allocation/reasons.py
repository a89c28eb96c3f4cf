"""Why a search found nothing: the request that it could get to but not past, and what kept devices from it. Pure."""

from collections import Counter
from collections.abc import Mapping

from dra_driver.allocation.prospects import Prospects, Site
from dra_driver.allocation.requests import Alternatives, Wanted
from dra_driver.allocation.snapshot import Candidate
from dra_driver.allocation.trace import Cause, Refusal


class Reasons:
    """Collects while the search goes on; `sentence` is asked for afterwards, if at all."""

    def __init__(self, site: Site, prospects: Mapping[Wanted, Prospects]) -> None:
        self._site = site
        self._prospects = prospects
        self._furthest = (-1, -1)
        self._notes: dict[Wanted, dict[Candidate, Refusal]] = {}
        self._shown: Refusal | None = None

    def reached(self, claim: int, request: int, wanted: Wanted) -> dict[Candidate, Refusal] | None:
        """Where to note refusals for this request; None when the search got further than that."""
        if (claim, request) < self._furthest:
            return None
        if (claim, request) > self._furthest:
            self._furthest = (claim, request)
            self._notes.clear()
        return self._notes.setdefault(wanted, {})

    def note(self, claim: int, request: int, wanted: Wanted, candidate: Candidate, refusal: Refusal) -> None:
        notes = self.reached(claim, request, wanted)
        if notes is not None:
            # The first refusal is the one that does not depend on what else was tried.
            notes.setdefault(candidate, refusal)

    def hopeless(self, alternatives: Alternatives) -> None:
        """No device was tried: this request finds too few, whatever the others get."""
        self._notes = {wanted: {} for wanted in alternatives}

    def impossible(self, why: Refusal) -> None:
        """No solution exists, by a sentence of its own."""
        self._shown = why

    def sentence(self) -> str:
        problems = [f"pool {pool} {pool.problem}" for pool in self._site.pools if pool.problem is not None]
        usable = len(self._site.candidates)
        if usable == 0:
            return "; ".join(problems) or "no devices are published for it"
        if self._shown is not None:
            return "; ".join([self._shown.text, *problems])
        return "; ".join([*(self._refused(wanted, notes) for wanted, notes in self._notes.items()), *problems])

    def causes(self) -> frozenset[Cause]:
        """Why devices were refused that `sentence` counts."""
        if self._shown is not None:
            return frozenset([self._shown.cause])
        refusals = (self._all_refusals(self._prospects[wanted], notes) for wanted, notes in self._notes.items())
        return frozenset(one.cause for each in refusals for one in each)

    def _refused(self, wanted: Wanted, notes: Mapping[Candidate, Refusal]) -> str:
        prospects, usable = self._prospects[wanted], len(self._site.candidates)
        if prospects.every == ():
            return f"{wanted} needs all devices of class {wanted.device_class.metadata.name}, and none matches"
        number = "all devices" if wanted.wants_all else "1 device" if wanted.count == 1 else f"{wanted.count} devices"
        counted = Counter(one.text for one in self._all_refusals(prospects, notes))
        if not counted:
            return f"{wanted} needs {number}; the node has {usable}"
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counted.items(), key=_most_first))
        return f"{wanted} needs {number}; of {usable} on the node: {reasons}"

    def _all_refusals(self, prospects: Prospects, notes: Mapping[Candidate, Refusal]) -> list[Refusal]:
        """One per device: that of the request alone, else the one met in the search."""
        found: list[Refusal] = []
        for candidate in self._site.candidates:
            noted = notes.get(candidate)
            own = None if candidate in prospects.failing else prospects.refusal(candidate)
            found += [one for one in (own or noted,) if one is not None]
        return found


def _most_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]
