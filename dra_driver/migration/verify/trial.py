"""Whether the devices that the result gets are those of the old request, according to this project's allocator. Pure.

Each workload is tried alone, on nodes where nothing is in use. Then each container is compared: how many devices, of
which kind and profile, alone or shared, with how much memory. The request comes from the old manifest, the devices from
the allocation.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from dra_driver.allocation.placement import Placement, highest_score, place_on
from dra_driver.allocation.snapshot import Snapshot
from dra_driver.api.core import Pod
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import AllocatedDevice, Device, DeviceClass
from dra_driver.checking.knowledge import SampleNode
from dra_driver.errors import DriverError
from dra_driver.migration.model import (
    ContainerAt,
    Demand,
    MigratedWorkload,
    Migration,
    MigrationTarget,
    Role,
    Want,
    What,
)
from dra_driver.migration.verify.ground import Ground, GroundPublication
from dra_driver.migration.verify.pods_to_be import NotLookedAt, PodsToBe, PodToBe, name_of
from dra_driver.quantity import Quantity

_NOTHING = Quantity.parse("0")
_STEP_BYTES = 2**20
"""To which the driver rounds amounts of memory up."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A device, or share of one, that a container has."""

    result: AllocatedDevice
    device: Device

    @property
    def identity(self) -> tuple[str, str, str | None]:
        return self.result.pool, self.result.device, self.result.share_id

    @property
    def amounts(self) -> dict[str, Quantity]:
        """What is consumed of it, by name without domain."""
        consumed = self.result.consumed_capacity or {}
        return {key.rpartition("/")[2]: Quantity.parse(value) for key, value in consumed.items()}

    @property
    def whole(self) -> dict[str, Quantity]:
        """What the device has."""
        return {key.rpartition("/")[2]: Quantity.parse(item.value) for key, item in self.device.capacity.items()}


def shown(piece: Piece) -> str:
    product = piece.device.attributes.get("productName")
    consumed = sorted((piece.result.consumed_capacity or {}).items())
    amounts = ", ".join(f"{name} {amount}" for name, amount in consumed if amount != "0")
    about = ", ".join(text for text in (product.string if product is not None else None, amounts) if text)
    return f"{piece.result.device} ({about})" if about else piece.result.device


def problems(workload: MigratedWorkload, pieces: Mapping[str, tuple[Piece, ...]]) -> Iterator[str]:
    """A sentence for each difference. `pieces` are by the name of the container."""
    for index, container in enumerate(workload.pod.containers):
        name = name_of(container, index)
        demands = [demand for demand in workload.reading.demands if container in demand.containers]
        yield from _problems_of(name, demands, pieces.get(name, ()))
    yield from _numbers(workload, pieces)
    yield from _together(workload, pieces)
    yield from _of_one_gpu(workload, pieces)


def _problems_of(name: str, demands: Sequence[Demand], pieces: Sequence[Piece]) -> Iterator[str]:
    if any(item.all_gpus for item in demands):
        if not all(piece.result.admin_access for piece in pieces):
            yield f"{name} takes GPUs from other pods, although it only monitors them"
        return
    rest = list(pieces)
    for demand in sorted(demands, key=lambda item: (item.want.profile is None, item.want.share is None)):
        fitting = [piece for piece in rest if _differs(piece, demand.want) is None][: demand.want.count]
        if len(fitting) < demand.want.count:
            yield _lacking(name, demand.want, rest)
            continue
        rest = [piece for piece in rest if piece not in fitting]
    if rest:
        yield f"{name} gets {', '.join(map(shown, rest))}, which it did not ask for"


def _differs(piece: Piece, want: Want) -> str | None:
    """Why a device is not what was meant; None when it is."""
    kind = piece.device.attributes.get("type")
    if kind is None or kind.string != want.what.value:
        return "of another kind"
    profile = piece.device.attributes.get("profile")
    if want.profile is not None and (profile is None or profile.string != want.profile):
        return "of another profile"
    consumed = piece.result.consumed_capacity
    if want.share is None:
        return "shared with others" if piece.result.share_id is not None and not _all_of_it(piece) else None
    if want.what is What.MIG and consumed is None:
        return None
    if piece.result.share_id is None:
        return "not shared"
    amounts, whole, share = piece.amounts, piece.whole, want.share
    memory = share.memory.value if share.memory is not None else None
    for name, asked, less, step in (("memory", memory, "less", _STEP_BYTES), ("cores", share.cores, "fewer", 0)):
        got = amounts.get(name, _NOTHING)
        if asked is None:
            if share.number is None and name in amounts and _NOTHING < whole.get(name, _NOTHING) <= got:
                return f"with all {name} of it, so no other claim gets a share"
        elif got.value < asked:
            return f"with {less} {name}"
        elif got.value > asked + step:
            return f"with more {name} than that, which no other claim gets"
    if share.number is not None and "shares" in amounts and amounts["shares"].value < share.number:
        return "with fewer shares"
    return None


def _all_of_it(piece: Piece) -> bool:
    """A share as large as the device leaves nothing for others."""
    whole = piece.whole
    return any(amount >= whole[name] for name, amount in piece.amounts.items() if name in whole)


def _lacking(name: str, want: Want, pieces: Iterable[Piece]) -> str:
    what = {What.GPU: "GPU", What.MIG: "MIG device", What.VFIO: "GPU for a virtual machine"}[want.what]
    profile = f" of profile {want.profile}" if want.profile else ""
    share = "a share of " if want.share is not None else ""
    got = [f"{shown(piece)}, which is {_differs(piece, want) or 'one of them'}" for piece in pieces]
    return f"{name} asked for {share}{want.count} x {what}{profile} and gets {'; '.join(got) or 'nothing'}"


def _together(workload: MigratedWorkload, pieces: Mapping[str, tuple[Piece, ...]]) -> Iterator[str]:
    """Containers that run at the same time had devices of their own, unless the old manifest shared them."""
    names = {name_of(container, index): container for index, container in enumerate(workload.pod.containers)}
    lasting = [name for name, container_at in names.items() if container_at.role in (Role.APP, Role.SIDECAR)]
    sharers = [{id(container) for container in demand.containers} for demand in workload.reading.demands]
    for index, name in enumerate(lasting):
        for other in lasting[index + 1 :]:
            together = any({id(names[name]), id(names[other])} <= group for group in sharers)
            mine, theirs = ({piece.identity for piece in pieces.get(text, ())} for text in (name, other))
            if not together and (both := mine & theirs):
                devices = ", ".join(sorted(item[1] for item in both))
                yield f"{name} and {other} share {devices}, but had separate devices"


def _of_one_gpu(workload: MigratedWorkload, pieces: Mapping[str, tuple[Piece, ...]]) -> Iterator[str]:
    """Shares that were of one GPU, or of different ones, are so again."""
    together: dict[str, set[tuple[str, str]]] = {}
    for index, container in enumerate(workload.pod.containers):
        name = name_of(container, index)
        wants = [demand.want for demand in workload.reading.demands if container in demand.containers]
        devices = {piece.identity[:2] for piece in pieces.get(name, ())}
        if (apart := sum(item.distinct for item in wants)) > len(devices) > 0:
            yield f"{name} had shares of {apart} different GPUs, and gets them of {len(devices)}"
        if wants and all(item.together for item in wants):
            together[name] = devices
    if len(results := set().union(*together.values())) > 1:
        several = ", ".join(sorted(device for _, device in results))
        yield f"{', '.join(together)} had shares of one GPU, and get them of {several}"


def _numbers(workload: MigratedWorkload, pieces: Mapping[str, tuple[Piece, ...]]) -> Iterator[str]:
    """The number in the manifest must be the number that the container gets."""
    for index, container in enumerate(workload.pod.containers):
        demands = [demand for demand in workload.reading.demands if container in demand.containers]
        if not demands or any(demand.all_gpus or demand.want.share is not None for demand in demands):
            continue
        if any(demand.containers[0] is not container for demand in demands):
            continue
        name, asked = name_of(container, index), _asked(container)
        if asked is not None and asked != len(pieces.get(name, ())):
            yield f"{name} asked for {asked} and gets {len(pieces.get(name, ()))}"


def _asked(container: ContainerAt) -> int | None:
    """The number of GPUs and MIG devices by the names of NVIDIA's device plugin; None where it is no plain number."""
    limits = container.resources.get("limits") or container.resources.get("requests")
    amounts = [
        amount
        for name, amount in (limits.items() if isinstance(limits, dict) else ())
        if name == "nvidia.com/gpu" or str(name).startswith("nvidia.com/mig-")
    ]
    if not amounts or not all(str(amount).isdecimal() for amount in amounts):
        return None
    return sum(int(str(amount)) for amount in amounts)


class TrialVerdict(StrEnum):
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
class TrialResult:
    workload: MigratedWorkload
    verdict: TrialVerdict
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
    checked: tuple[TrialResult, ...]


# -- looking


_NO_TIME = "there was no time left to try it"


def verify(
    migration: Migration,
    ground: Ground,
    classes: Mapping[str, DeviceClass],
    is_late: Callable[[], bool] = lambda: False,
) -> Verification:
    """Each workload that asks for devices of the driver now. `classes` are those that come with the driver.

    Workloads that are left when it `is_late` are reported as not tried.
    """
    trial = _Trial(migration, ground, classes)
    asking = [item for item in migration.workloads if item.choice.target is not MigrationTarget.LEAVE]
    checked: list[TrialResult] = []
    for workload in asking:
        if is_late():
            break
        checked.append(trial.checked(workload))
    late = (TrialResult(item, TrialVerdict.UNKNOWN, (_NO_TIME,)) for item in asking[len(checked) :])
    return Verification(ground.title, ground.certain, (*checked, *late))


type _Found = tuple[tuple[SampleNode, Placement] | None, tuple[str, ...]]
"""The node that a scheduler prefers, if there is one, and why others are none."""


class _Trial:
    def __init__(self, migration: Migration, ground: Ground, classes: Mapping[str, DeviceClass]) -> None:
        self._ground = ground
        self._pods = PodsToBe(migration, ground, classes)
        self._known: dict[tuple[str, int], _Found] = {}
        """Hundreds of workloads ask for a few things."""

    def checked(self, workload: MigratedWorkload) -> TrialResult:
        result = self._checked(workload)
        untried = ", ".join(f"{held.name!r}" for held in workload.reading.held)
        if not untried or result.verdict is TrialVerdict.UNKNOWN:
            return result
        return replace(result, why=(*result.why, f"not tried: claims of other devices ({untried})"))

    def _checked(self, workload: MigratedWorkload) -> TrialResult:
        try:
            pod = self._pods.of(workload)
        except NotLookedAt as why:
            return TrialResult(workload, TrialVerdict.UNKNOWN, (str(why),))
        reasons: dict[str, None] = {}
        differing: TrialResult | None = None
        for number, publication in enumerate(self._ground.publications):
            best, why_not = self._best_known(pod, number, publication)
            reasons |= dict.fromkeys(why_not)
            if best is None:
                continue
            checked = self._judged(workload, pod, *best, publication)
            if checked.verdict is TrialVerdict.SAME:
                return checked
            differing = differing or checked
        if differing is not None:
            return differing
        return TrialResult(workload, TrialVerdict.NOWHERE, tuple(reasons)[:2] or ("there are no nodes",))

    def _best_known(self, pod: PodToBe, number: int, publication: GroundPublication) -> _Found:
        key = pod.wishes, number
        if key not in self._known:
            self._known[key] = self._best(pod, publication)
        return self._known[key]

    def _best(self, pod: PodToBe, publication: GroundPublication) -> _Found:
        most = highest_score(list(pod.claims.values()))
        best: tuple[SampleNode, Placement] | None = None
        reasons: dict[str, None] = {}
        for site in publication.sites:
            placed = self._placed(pod, site)
            if not isinstance(placed, Placement):
                reasons.setdefault(f"{site.title}: {placed}")
            elif best is None or placed.score > best[1].score:
                best = site, placed
            if best is not None and best[1].score == most:
                break
        return best, tuple(reasons)

    def _placed(self, pod: PodToBe, site: SampleNode) -> Placement | str:
        snapshot = Snapshot(site.catalog, self._pods.all_classes)
        try:
            return place_on(Pod.of(pod.obj), list(pod.claims.values()), site.node, snapshot)
        except DriverError as error:
            return str(error)

    # -- what it got

    def _judged(
        self,
        workload: MigratedWorkload,
        pod: PodToBe,
        site: SampleNode,
        placed: Placement,
        publication: GroundPublication,
    ) -> TrialResult:
        devices = {
            (pool.name, candidate.id.device): candidate.device
            for pool in site.catalog.pools(site.node)
            for candidate in pool.candidates
        }
        pieces = _pieces(workload, pod, placed, devices)
        wrong = tuple(problems(workload, pieces))
        return TrialResult(
            workload,
            TrialVerdict.DIFFERS if wrong else TrialVerdict.SAME,
            wrong,
            site.title,
            tuple(Got(name, tuple(map(shown, piece))) for name, piece in pieces.items() if piece),
            publication.needs,
        )


# -- from an allocation to containers


def _pieces(
    workload: MigratedWorkload, pod: PodToBe, placed: Placement, devices: Mapping[tuple[str, str], Device]
) -> dict[str, tuple[Piece, ...]]:
    """By container."""
    if placed.extended is not None:
        results = placed.allocations[-1].devices.results
        requests: dict[str, list[str]] = {}
        for mapping in placed.extended.mappings:
            requests.setdefault(mapping.container, []).append(mapping.request)
        return {
            name: tuple(_piece(result, devices) for result in results if result.request in wanted)
            for name, wanted in requests.items()
        }
    by_claim = dict(zip(pod.claims, placed.allocations, strict=False))
    return {
        container: tuple(
            _piece(result, devices)
            for claim, request in uses
            if claim in by_claim
            for result in by_claim[claim].devices.results
            if request is None or result.request.split("/")[0] == request
        )
        for container, uses in pod.uses.items()
    }


def _piece(result: AllocatedDevice, devices: Mapping[tuple[str, str], Device]) -> Piece:
    return Piece(result, devices[(result.pool, result.device)])
