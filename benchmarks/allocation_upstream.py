"""How long decisions take beside kube-scheduler's own allocator, case by case.

    GPU_DRA_UPSTREAM_TIMES=FILE python benchmarks/allocation_upstream.py [--only TEXT] [--slowest N]

The file is a JSON list of cases as `tests/dra_driver/allocation/test_upstream_table.py` describes them. `copies` makes
nodes of the case's slices, of which the first `busy` have no free device. `go` is upstream's answer: `ns`, `nodeIndex`
(-1 for none), `error`, `timedOut`. `benchmarks/upstream/make.py` writes it.

Compared is one scheduling attempt: upstream's NewAllocator and Allocate of the nodes in order until one fits, and our
Catalog, Snapshot and allocate of the same nodes. Both start from typed slices and compiled selectors and evaluate
selectors on every device again; each number is the processor time of one attempt: the mean of a batch of attempts, in
the best of some batches, because other programs slow both down.
"""

import argparse
import gc
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.allocation.amounts import amount
from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.search import Allocated, Limit, Undecided, allocate
from dra_driver.allocation.snapshot import Catalog, PoolId, PoolUsage, PublishedSlice, Snapshot, Usage
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.terminal import print_table

_LONGEST_S = 3.0
_LONG_S, _ENOUGH_S, _BATCHES = 1.0, 0.01, 5
"""An attempt of a second is measured once. Others are repeated in batches of this length."""
_FIELDS = {
    "AdminAccess": "admin_access",
    "ConsumableCapacity": "consumable",
    "DeviceBindingAndStatus": "binding_conditions",
    "DeviceTaints": "taints",
    "ListTypeAttributes": "list_attributes",
    "PartitionableDevices": "partitionable",
    "PrioritizedList": "prioritized",
}

type Case = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Timed:
    name: str
    upstream_ms: float
    ms: float
    upstream_answer: str
    answer: str

    @property
    def ratio(self) -> float:
        return self.ms / self.upstream_ms


def timed(case: Case) -> Timed:
    behavior = Behavior.of(36, **{_FIELDS[name]: on for name, on in case["features"].items()})
    nodes, slices, usage = _cluster(case)
    claims = [ResourceClaim.of(claim) for claim in case["claims"]]
    classes = {class_.metadata.name: class_ for class_ in map(DeviceClass.of, case["classes"] or ())}

    def once() -> str:
        end = time.process_time() + _LONGEST_S
        limit = Limit(10**9, lambda: time.process_time() > end)
        return _decided(claims, nodes, Snapshot(Catalog(slices, behavior), classes, usage), limit)

    gc.collect()
    start = time.process_time()
    answer = once()
    used = time.process_time() - start
    if used < _LONG_S:
        used = min(_mean_s(once) for _ in range(_BATCHES))
    go = case["go"]
    theirs = f"node {go['nodeIndex']}" if go.get("results") else "error" if go.get("error") else "none"
    if go.get("timedOut"):
        theirs = "timeout"
    return Timed(case["name"], go["ns"] / 1e6, used * 1e3, theirs, answer)


def _mean_s(once: Callable[[], object]) -> float:
    start, runs = time.process_time(), 0
    while runs < 3 or time.process_time() - start < _ENOUGH_S:
        once()
        runs += 1
    return (time.process_time() - start) / runs


def _decided(claims: list[ResourceClaim], nodes: list[NodeView], snapshot: Snapshot, limit: Limit) -> str:
    for index, node in enumerate(nodes):
        try:
            result = allocate(claims, node, snapshot, limit=limit)
        except (InvalidInput, NodeNotReady):
            return "error"
        if isinstance(result, Undecided):
            return "timeout"
        if isinstance(result, Allocated) and result.allocations:
            return f"node {index}"
    return "none"


def _cluster(case: Case) -> tuple[list[NodeView], list[PublishedSlice], Usage]:
    whole: dict[PoolId, set[str]] = defaultdict(set)
    for driver, pool, device in case["whole"] or ():
        whole[driver, pool].add(device)
    shared: dict[PoolId, dict[str, dict[str, Any]]] = defaultdict(dict)
    for name, amounts in case["consumed"].items():
        driver, pool, device = name.split("/")
        shared[driver, pool][device] = {key: amount(value) for key, value in amounts.items()}
    nodes, slices = (
        [NodeView.read(case["node"])],
        [ResourceSlice.of(_with_counters(obj)) for obj in case["slices"] or ()],
    )
    if copies := case.get("copies"):
        names = [f"node-{index:05}" for index in range(copies)]
        nodes = [NodeView(name, nodes[0].labels) for name in names]
        for name in names[: case.get("busy", 0)]:
            for slice_ in slices:
                whole[slice_.spec.driver, name] |= {device.name for device in slice_.spec.devices or ()}
        slices = [_moved(original, name) for name in names for original in slices]
    usage = Usage({id_: PoolUsage(frozenset(whole[id_]), shared[id_]) for id_ in {*whole, *shared}})
    return nodes, [PublishedSlice(each) for each in slices], usage


def _with_counters(slice_: dict[str, Any]) -> dict[str, Any]:
    """Two cases have counter sets without counters, which no API server stores and our models refuse."""
    spec = slice_["spec"]
    consumed = [
        consumption for device in spec.get("devices") or () for consumption in device.get("consumesCounters") or ()
    ]
    for counters in (*consumed, *(spec.get("sharedCounters") or ())):
        counters.setdefault("counters", {"any": {"value": "1"}})
    return slice_


def _moved(slice_: ResourceSlice, node: str) -> ResourceSlice:
    pool = slice_.spec.pool.model_copy(update={"name": node})
    metadata = slice_.metadata.model_copy(update={"name": f"{node}-{slice_.metadata.name}"})
    spec = slice_.spec.model_copy(update={"node_name": node, "pool": pool})
    return slice_.model_copy(update={"metadata": metadata, "spec": spec})


def _rows(cases: list[Case], only: str) -> Iterator[Timed]:
    for case in cases:
        if only in case["name"]:
            try:
                yield timed(case)
            except InvalidInput as error:
                print(f"{case['name']} is left out: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--slowest", type=int, default=20, help="how many of the worst cases to show")
    arguments = parser.parse_args()
    if "GPU_DRA_UPSTREAM_TIMES" not in os.environ:
        print("GPU_DRA_UPSTREAM_TIMES names no file with upstream's times")
        return
    cases = json.loads(Path(os.environ["GPU_DRA_UPSTREAM_TIMES"]).read_text())
    gc.freeze()  # The cases are no part of what is measured.
    rows = list(_rows(cases, arguments.only))
    kinds: dict[str, list[Timed]] = defaultdict(list)
    for row in rows:
        kinds[row.name.partition("/")[0]].append(row)
    print_table(
        ("cases", "number", "upstream ms", "ms", "ratio", "over 10", "worst", "name"),
        [
            (
                kind,
                str(len(own)),
                f"{statistics.median(case.upstream_ms for case in own):.3f}",
                f"{statistics.median(case.ms for case in own):.3f}",
                f"{statistics.median(case.ratio for case in own):.2f}",
                str(sum(case.ratio > 10 for case in own)),
                f"{(worst := max(own, key=lambda case: case.ratio)).ratio:.1f}",
                worst.name,
            )
            for kind, own in kinds.items()
        ],
    )
    slowest = sorted(rows, key=lambda case: -case.ratio)[: arguments.slowest]
    different = [case for case in rows if case.answer != case.upstream_answer and case not in slowest]
    print_table(
        ("case", "upstream", "ms", "here", "ms", "ratio"),
        [
            (
                case.name,
                case.upstream_answer,
                f"{case.upstream_ms:.3f}",
                case.answer,
                f"{case.ms:.3f}",
                f"{case.ratio:.2f}",
            )
            for case in [*slowest, *different]
        ],
    )


if __name__ == "__main__":
    main()
