"""How often a MIG device that would fit by size is refused because of where the others lie.

    python benchmarks/packing.py [--gpus 4] [--requests 5000] [--load 0.9] [--seed 1] [-o json]

Requests for MIG devices come at random times and stay for random times, of random profiles (a large one is asked for as
seldom as it is large). The scheduler takes the first device in the list that the counters allow, and never moves one.
Refused *by placement* is a request for which some GPU has enough memory slices and engines left, but not where the
profile can lie. Compared are the order in which this driver publishes devices, the order of their names, as NVIDIA's
own driver has it, the order of their places (whatever starts first), and, as what no fixed list can reach, a scheduler
that looks for the best place each time. Requests that name a profile, and requests for "at least so much" are counted
apart: for the second kind it matters, too, that small profiles are in front.
"""

import argparse
import heapq
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from dra_driver.api.inventory import DriverFacts, GpuFacts, MigFacts, MigProfileFacts, NodeInventorySpec, summary_of
from dra_driver.api.policy import MigRule, PublishingPolicy
from dra_driver.devices.counters import engines, gpu_counters
from dra_driver.devices.model import Offer
from dra_driver.devices.offers import offers
from kubelet_plugin.simulation.profiles import load_mig_table, mig_table_names


@dataclass(frozen=True)
class Refusals:
    """Of `requests`: `refused` in all, and `by_placement` of them although they would have fitted by size."""

    model: str
    asked: str
    order: str
    requests: int
    refused: int
    by_placement: int


@dataclass(frozen=True)
class Place:
    """A device of one GPU: memory slices as bits, and engines."""

    name: str
    profile: MigProfileFacts
    slices: int
    engines: tuple[int, ...]


@dataclass
class Gpu:
    """What is left of it."""

    slices: int
    engines: tuple[int, ...]

    def has(self, place: Place) -> bool:
        return place.slices & self.slices == place.slices and self.has_engines(place.engines)

    def has_engines(self, wanted: Sequence[int]) -> bool:
        return all(want <= left for want, left in zip(wanted, self.engines, strict=True))

    def take(self, place: Place, sign: int) -> None:
        self.slices ^= place.slices
        self.engines = tuple(left - sign * used for left, used in zip(self.engines, place.engines, strict=True))


type Choose = Callable[[Sequence[Gpu], Sequence[Place]], tuple[int, Place] | None]


def first_fit(gpus: Sequence[Gpu], wanted: Sequence[Place]) -> tuple[int, Place] | None:
    for number, gpu in enumerate(gpus):
        for place in wanted:
            if gpu.has(place):
                return number, place
    return None


def best_fit(places: Sequence[Place]) -> Choose:
    """Takes the place that leaves most possible, weighted by size; looks at all of them each time."""

    def possible(gpu: Gpu) -> int:
        return sum(place.slices.bit_count() ** 2 for place in places if gpu.has(place))

    def choose(gpus: Sequence[Gpu], wanted: Sequence[Place]) -> tuple[int, Place] | None:
        best: tuple[int, int, Place] | None = None
        for number, gpu in enumerate(gpus):
            for place in wanted:
                if gpu.has(place):
                    before = possible(gpu)
                    gpu.take(place, 1)
                    loss = before - possible(gpu)
                    gpu.take(place, -1)
                    if best is None or loss < best[0]:
                        best = loss, number, place
        return best[1:] if best is not None else None

    return choose


def places_of(model: str) -> tuple[list[Place], Gpu]:
    """In the order in which the driver publishes them, and the GPU with nothing on it."""
    profiles = [_profile_facts(row) for row in load_mig_table(model).profiles]
    mig = MigFacts(enabled=True, pending=True, switchable=True, profiles=profiles)
    facts = _gpu(mig)
    driver = DriverFacts(version="580.126.09", cuda_version="13.0", root="/")
    inventory = NodeInventorySpec(
        node_name="node", boot_id="boot", driver=driver, gpus=[facts], summary=summary_of(driver, [facts], [])
    )
    offered = offers(inventory, PublishingPolicy(mig=[MigRule(mode="Dynamic")]), {}).offers
    counters = gpu_counters(facts, offered)
    assert counters is not None
    totals = tuple(counters.totals.get(name, 0) for name in engines(profiles[0]))
    everything = sum(1 << number for number in range(load_mig_table(model).memory_slices))
    return [_place(offer) for offer in offered], Gpu(everything, totals)


def _place(offer: Offer) -> Place:
    assert offer.partition is not None and offer.profile is not None
    bits = ((1 << offer.partition.size) - 1) << offer.partition.start
    return Place(offer.name, offer.profile, bits, tuple(engines(offer.profile).values()))


def _profile_facts(row: object) -> MigProfileFacts:
    fields = {name: getattr(row, name) for name in MigProfileFacts.model_fields if name != "memory_bytes"}
    return MigProfileFacts(**{**fields, "starts": list(fields["starts"]), "memory_bytes": row.memory_mib << 20})


def _gpu(mig: MigFacts) -> GpuFacts:
    return GpuFacts(
        uuid="GPU-00000000-0000-4000-8000-000000000000",
        name="gpu-00000000",
        minor=0,
        pci_bus_id="0000:1b:00.0",
        product_name="GPU",
        brand="Nvidia",
        architecture="Hopper",
        cuda_compute_capability="9.0",
        mig=mig,
    )


def simulated(
    model: str, asked: str, order: str, choose: Choose, places: Sequence[Place], whole: Gpu, options: argparse.Namespace
) -> Refusals:
    """The same requests, at the same times, for every order."""
    chance = random.Random(f"{options.seed} {model} {asked}")
    gpus = [Gpu(whole.slices, whole.engines) for _ in range(options.gpus)]
    profiles = {place.profile.name: place.profile for place in places}
    # Media engines make no profile more wanted; those of one shape share its chance.
    weights = {name: 1 / profile.size for name, profile in profiles.items()}
    mean = sum(weights[name] * profiles[name].size for name in weights) / sum(weights.values())
    rate = options.load * options.gpus * whole.slices.bit_count() / mean
    leaving: list[tuple[float, int, int, Place]] = []
    refused = by_placement = 0
    now = 0.0
    for number in range(options.requests):
        now += chance.expovariate(rate)
        stays = chance.expovariate(1.0)
        profile = profiles[chance.choices(list(weights), list(weights.values()))[0]]
        while leaving and leaving[0][0] <= now:
            _, _, gpu, place = heapq.heappop(leaving)
            gpus[gpu].take(place, -1)
        wanted = [place for place in places if _answers(place.profile, profile, asked)]
        placement = choose(gpus, wanted)
        if placement is None:
            refused += 1
            sizes = {(place.profile.size, place.engines) for place in wanted}
            by_placement += any(
                gpu.slices.bit_count() >= size and gpu.has_engines(needed) for gpu in gpus for size, needed in sizes
            )
            continue
        gpus[placement[0]].take(placement[1], 1)
        heapq.heappush(leaving, (now + stays, number, *placement))
    return Refusals(model, asked, order, options.requests, refused, by_placement)


def _answers(offered: MigProfileFacts, wanted: MigProfileFacts, asked: str) -> bool:
    if asked == "profile":
        return offered.name == wanted.name
    return offered.slices >= wanted.slices and offered.memory_bytes >= wanted.memory_bytes


def compared(model: str, options: argparse.Namespace) -> list[Refusals]:
    published, whole = places_of(model)
    by_name = sorted(published, key=lambda place: place.name)
    by_start = sorted(published, key=lambda place: (place.slices & -place.slices, place.slices, place.name))
    orders: list[tuple[str, Choose, list[Place]]] = [
        ("published", first_fit, published),
        ("name", first_fit, by_name),
        ("start", first_fit, by_start),
        ("best place", best_fit(published), published),
    ]
    return [
        simulated(model, asked, order, choose, places, whole, options)
        for asked in ("profile", "at least")
        for order, choose, places in orders
    ]


def shown(results: Sequence[Refusals]) -> str:
    orders = list(dict.fromkeys(result.order for result in results))
    lines = [f"{'MODEL':14} {'ASKED':9}" + "".join(f"{order.upper():>22}" for order in orders)]
    for model, asked in dict.fromkeys((result.model, result.asked) for result in results):
        cells = [
            f"{result.by_placement / result.requests:8.2%} of {result.refused / result.requests:7.2%}"
            for result in results
            if (result.model, result.asked) == (model, asked)
        ]
        lines.append(f"{model:14} {asked:9}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join([*lines, "", "Share of all requests refused by placement, of all that were refused."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=mig_table_names(), choices=mig_table_names())
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--load", type=float, default=0.9, help="memory slices asked for, of those there are")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    results = [result for model in options.models for result in compared(model, options)]
    print(json.dumps([asdict(result) for result in results], indent=2) if options.output == "json" else shown(results))


if __name__ == "__main__":
    main()
