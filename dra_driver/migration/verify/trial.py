"""Whether the devices that the result gets are those that the old request meant, found out by our own allocator. Pure.

Each workload is tried alone, on nodes on which nothing is in use. Then its containers are looked at one by one: how
many devices, of which kind and profile, alone or shared, with how much memory, on what product; what was asked for
comes from the old manifest, what was got from the allocation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from dra_driver.allocation.placement import Placement, highest_score, place_on
from dra_driver.allocation.snapshot import Snapshot
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import AllocatedDevice, Device, DeviceClass
from dra_driver.checking.knowledge import Site
from dra_driver.errors import DriverError
from dra_driver.migration.model import Migration, Target, Workload
from dra_driver.migration.verify.compare import Piece, problems, shown
from dra_driver.migration.verify.ground import Ground, Publication
from dra_driver.migration.verify.pods_to_be import NotLookedAt, PodsToBe, PodToBe


class Verdict(StrEnum):
    SAME = "same"
    """The devices are what was meant."""
    DIFFERS = "differs"
    """They are not."""
    NOWHERE = "nowhere"
    """None of the nodes has them."""
    UNKNOWN = "unknown"
    """Not looked at."""


@dataclass(frozen=True, slots=True)
class Got:
    """What one container gets."""

    container: str
    devices: tuple[str, ...]
    """For people: `gpu-5a7b8d0e (NVIDIA L40S), memory 3000Mi`."""


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    workload: Workload
    verdict: Verdict
    why: tuple[str, ...] = ()
    """Sentences: what differs, why it fits nowhere, why it was not looked at, or what of it was not."""
    node: str = ""
    got: tuple[Got, ...] = ()
    needs: JsonObject | None = None
    """Rules that a PublishingPolicy must have for it."""


@dataclass(frozen=True, slots=True, eq=False)
class Verification:
    title: str
    certain: bool
    checked: tuple[Checked, ...]


# -- looking


type Progress = Callable[[int, int], bool]
"""Is told how many are done, of how many; False ends the work, and what is left is reported as not looked at."""

_NO_TIME = "there was no time left to try it"


def untold(_done: int, _of: int) -> bool:
    return True


def verify(
    migration: Migration, ground: Ground, classes: Mapping[str, DeviceClass], progress: Progress = untold
) -> Verification:
    """Each workload that asks for devices of the driver now. `classes` are those that come with the driver."""
    trial = _Trial(migration, ground, classes)
    asking = [one for one in migration.workloads if one.choice.target is not Target.LEAVE]
    checked: list[Checked] = []
    for workload in asking:
        if not progress(len(checked), len(asking)):
            break
        checked.append(trial.checked(workload))
    late = (Checked(one, Verdict.UNKNOWN, (_NO_TIME,)) for one in asking[len(checked) :])
    return Verification(ground.title, ground.certain, (*checked, *late))


type _Found = tuple[tuple[Site, Placement] | None, tuple[str, ...]]
"""The node that a scheduler prefers, if there is one, and why others are none."""


class _Trial:
    def __init__(self, migration: Migration, ground: Ground, classes: Mapping[str, DeviceClass]) -> None:
        self._ground = ground
        self._pods = PodsToBe(migration, ground, classes, real_nodes=ground.real_nodes)
        self._known: dict[tuple[str, int], _Found] = {}
        """Hundreds of workloads ask for a few things."""

    def checked(self, workload: Workload) -> Checked:
        found = self._checked(workload)
        untried = ", ".join(f"{one.name!r}" for one in workload.reading.held)
        if not untried or found.verdict is Verdict.UNKNOWN:
            return found
        return replace(found, why=(*found.why, f"not tried: claims of other devices ({untried})"))

    def _checked(self, workload: Workload) -> Checked:
        try:
            pod = self._pods.of(workload)
        except NotLookedAt as why:
            return Checked(workload, Verdict.UNKNOWN, (str(why),))
        reasons: dict[str, None] = {}
        differing: Checked | None = None
        for number, publication in enumerate(self._ground.publications):
            best, why_not = self._best_known(pod, number, publication)
            reasons |= dict.fromkeys(why_not)
            if best is None:
                continue
            found = self._judged(workload, pod, *best, publication)
            if found.verdict is Verdict.SAME:
                return found
            differing = differing or found
        if differing is not None:
            return differing
        return Checked(workload, Verdict.NOWHERE, tuple(reasons)[:2] or ("there are no nodes",))

    def _best_known(self, pod: PodToBe, number: int, publication: Publication) -> _Found:
        key = pod.wishes, number
        if key not in self._known:
            self._known[key] = self._best(pod, publication)
        return self._known[key]

    def _best(self, pod: PodToBe, publication: Publication) -> _Found:
        most = highest_score(list(pod.claims.values()))
        best: tuple[Site, Placement] | None = None
        reasons: dict[str, None] = {}
        for make in publication.sites:
            site = make()
            placed = self._placed(pod, site)
            if not isinstance(placed, Placement):
                reasons.setdefault(f"{site.title}: {placed}")
            elif best is None or placed.score > best[1].score:
                best = site, placed
            if best is not None and best[1].score == most:
                break
        return best, tuple(reasons)

    def _placed(self, pod: PodToBe, site: Site) -> Placement | str:
        snapshot = Snapshot(site.catalog, self._pods.all_classes)
        try:
            return place_on(pod.obj, list(pod.claims.values()), site.node, snapshot)
        except DriverError as error:
            return str(error)

    # -- what it got

    def _judged(
        self, workload: Workload, pod: PodToBe, site: Site, placed: Placement, publication: Publication
    ) -> Checked:
        devices = {
            (pool.name, one.id.device): one.device for pool in site.catalog.pools(site.node) for one in pool.candidates
        }
        pieces = _pieces(workload, pod, placed, devices)
        wrong = tuple(problems(workload, pieces))
        return Checked(
            workload,
            Verdict.DIFFERS if wrong else Verdict.SAME,
            wrong,
            site.title,
            tuple(Got(name, tuple(map(shown, found))) for name, found in pieces.items() if found),
            publication.needs,
        )


# -- from an allocation to containers


def _pieces(
    workload: Workload, pod: PodToBe, placed: Placement, devices: Mapping[tuple[str, str], Device]
) -> dict[str, tuple[Piece, ...]]:
    """By container."""
    if placed.extended is not None:
        results = placed.allocations[-1].devices.results
        requests: dict[str, list[str]] = {}
        for mapping in placed.extended.mappings:
            requests.setdefault(mapping.container, []).append(mapping.request)
        return {
            name: tuple(_piece(one, devices) for one in results if one.request in wanted)
            for name, wanted in requests.items()
        }
    by_claim = dict(zip(pod.claims, placed.allocations, strict=False))
    found: dict[str, tuple[Piece, ...]] = {}
    for container, uses in pod.uses.items():
        found[container] = tuple(
            _piece(one, devices)
            for use in uses
            if use.claim in by_claim
            for one in by_claim[use.claim].devices.results
            if use.request is None or one.request.split("/")[0] == use.request
        )
    return found


def _piece(result: AllocatedDevice, devices: Mapping[tuple[str, str], Device]) -> Piece:
    return Piece(result, devices[(result.pool, result.device)])
