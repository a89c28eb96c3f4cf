"""How fast devices are chosen: allocations per second on clusters of eight-GPU nodes, and the hard cases.

    python benchmarks/allocation.py [--seconds N] [--nodes 1,100,5000] [--json FILE]

Nodes are tried like kube-scheduler tries them: from the one after the last that was used, until one has room; claims
are given back when nothing fits any more. Each number counts whole decisions: the node search, the devices, and the
bookkeeping of what is in use. Slices are typed objects already; devices of equal nodes share their descriptions.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.search import Allocated, allocate
from dra_driver.allocation.snapshot import Catalog, PublishedSlice, Snapshot, Usage
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.names import GPU_DRIVER
from dra_driver.terminal import print_table

GPUS = 8
PROFILES = {
    "1g.10gb": (1, 16, (0, 1, 2, 3, 4, 5, 6)),
    "1g.20gb": (2, 26, (0, 2, 4, 6)),
    "2g.20gb": (2, 32, (0, 2, 4)),
    "3g.40gb": (4, 60, (0, 4)),
    "4g.40gb": (4, 64, (0,)),
    "7g.80gb": (8, 132, (0,)),
}
"""Of an H100 of 80 GB: memory slices, multiprocessors and places."""

type Obj = dict[str, Any]


# -- clusters


def gpu_device(index: int, *, nvlink: str = "all") -> Obj:
    attributes = {
        "type": "gpu",
        "productName": "NVIDIA H100 80GB HBM3",
        "architecture": "Hopper",
        "uuid": f"GPU-{index:08x}-0000-0000-0000-000000000000",
        "nvlinkDomain": nvlink,
    }
    return {
        "name": f"gpu-{index:08x}",
        "attributes": {name: {"string": value} for name, value in attributes.items()},
        "capacity": {"memory": {"value": "80Gi"}},
    }


def full_gpus() -> list[Obj]:
    return [{"devices": [gpu_device(index) for index in range(GPUS)]}]


def dynamic_mig() -> list[Obj]:
    """Each GPU whole and in every profile and place: counters in a slice of their own, at most 64 devices in others."""
    devices = [device for index in range(GPUS) for device in _gpu_and_partitions(index)]
    sets = [{"name": f"gpu-{index:08x}-counters", "counters": _amounts(range(8), 132)} for index in range(GPUS)]
    chunks = [devices[start : start + 64] for start in range(0, len(devices), 64)]
    return [{"sharedCounters": sets}, *({"devices": chunk} for chunk in chunks)]


def _gpu_and_partitions(index: int) -> Iterator[Obj]:
    yield gpu_device(index) | _draw(index, range(8), 132)
    for profile, (size, multiprocessors, places) in PROFILES.items():
        for place in places:
            attributes = {"type": "mig", "profile": profile, "parentUUID": f"GPU-{index:08x}"}
            yield {
                "name": f"gpu-{index:08x}-mig-{profile.replace('.', '')}-{place}",
                "attributes": {name: {"string": value} for name, value in attributes.items()},
                "capacity": {"memory": {"value": f"{size * 10}Gi"}},
                **_draw(index, range(place, min(8, place + size)), multiprocessors),
            }


def _draw(index: int, slices: range, multiprocessors: int) -> Obj:
    return {
        "consumesCounters": [{"counterSet": f"gpu-{index:08x}-counters", "counters": _amounts(slices, multiprocessors)}]
    }


def _amounts(slices: range, multiprocessors: int) -> Obj:
    counters = {f"memory-slice-{number}": {"value": "1"} for number in slices}
    return counters | {"multiprocessors": {"value": str(multiprocessors)}}


def cluster(nodes: int, node_slices: Sequence[Obj]) -> tuple[list[NodeView], Catalog]:
    names = [f"node-{index:04}" for index in range(nodes)]
    first = [_published(names[0], index, len(node_slices), spec) for index, spec in enumerate(node_slices)]
    slices = [_moved(slice_, name) for name in names for slice_ in first]
    return [NodeView(name) for name in names], Catalog([PublishedSlice(slice_) for slice_ in slices])


def _published(node: str, index: int, count: int, spec: Obj) -> ResourceSlice:
    pool = {"name": node, "generation": 1, "resourceSliceCount": count}
    body = {"driver": GPU_DRIVER, "nodeName": node, "pool": pool, **spec}
    return ResourceSlice.of({"metadata": {"name": f"{node}-{index}"}, "spec": body})


def _moved(slice_: ResourceSlice, node: str) -> ResourceSlice:
    """The same slice for another node; its devices stay shared objects."""
    metadata = slice_.metadata.model_copy(update={"name": slice_.metadata.name.replace("node-0000", node)})
    pool = slice_.spec.pool.model_copy(update={"name": node})
    return slice_.model_copy(
        update={"metadata": metadata, "spec": slice_.spec.model_copy(update={"node_name": node, "pool": pool})}
    )


def _class(name: str, type_: str) -> DeviceClass:
    own = f"device.attributes['{GPU_DRIVER}']"
    expression = f"device.driver == '{GPU_DRIVER}' && {own}.type == '{type_}'"
    return DeviceClass.of({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}})


CLASSES = {name: _class(name, type_) for name, type_ in (("gpu.nvidia.com", "gpu"), ("mig.nvidia.com", "mig"))}


def claim(
    class_name: str = "gpu.nvidia.com", count: int = 1, profile: str | None = None, **devices: Any
) -> ResourceClaim:
    request: Obj = {"deviceClassName": class_name, "count": count}
    if profile is not None:
        request["selectors"] = [{"cel": {"expression": f"device.attributes['{GPU_DRIVER}'].profile == '{profile}'"}}]
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": request}], **devices}}
    return ResourceClaim.of({"metadata": {"name": "claim", "namespace": "default", "uid": "uid"}, "spec": spec})


# -- measurements


@dataclass(frozen=True, slots=True)
class Rate:
    what: str
    nodes: int
    per_s: float
    allocated: int


def rate(what: str, nodes: int, node_slices: Sequence[Obj], wanted: ResourceClaim, seconds: float) -> Rate:
    views, catalog = cluster(nodes, node_slices)
    usage, place, done = Usage(), 0, 0
    for node in views[:200]:
        catalog.pools(node)
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        snapshot = Snapshot(catalog, CLASSES, usage)
        for step in range(nodes):
            result = allocate([wanted], views[(place + step) % nodes], snapshot)
            if isinstance(result, Allocated):
                usage, place, done = usage.plus(*result.allocations), (place + step + 1) % nodes, done + 1
                break
        else:
            usage = Usage()
    return Rate(what, nodes, done / (time.perf_counter() - start), done)


@dataclass(frozen=True, slots=True)
class Hard:
    what: str
    answer: str
    ms: float


def hard(what: str, node_slices: Sequence[Obj], *claims: ResourceClaim, usage: Usage | None = None) -> Hard:
    """The best of three: the first one also evaluates selectors."""
    views, catalog = cluster(1, node_slices)
    snapshot = Snapshot(catalog, CLASSES, usage or Usage())

    def once() -> tuple[float, str]:
        start = time.perf_counter()
        result = allocate(claims, views[0], snapshot)
        answer = "allocated" if isinstance(result, Allocated) else result.reason
        return (time.perf_counter() - start) * 1e3, answer

    ms, answer = min(once() for _ in range(3))
    return Hard(what, answer, ms)


def groups_of_seven() -> list[Obj]:
    return [{"devices": [gpu_device(index, nvlink=f"domain-{index // 7}") for index in range(128)]}]


def hard_cases() -> Iterator[Hard]:
    same = {"constraints": [{"requests": ["gpu"], "matchAttribute": f"{GPU_DRIVER}/nvlinkDomain"}]}
    yield hard("8 of 128 with one nvlinkDomain, groups of 7", groups_of_seven(), claim(count=8, **same))
    yield hard("7 of 128 with one nvlinkDomain, groups of 7", groups_of_seven(), claim(count=7, **same))
    both = [claim(count=30), claim("mig.nvidia.com")]
    yield hard("30 of 128 GPUs and a partition that is nowhere", groups_of_seven(), *both)
    mig = "mig.nvidia.com"
    yield hard("28 x 1g.10gb of 208 devices", dynamic_mig(), claim(mig, 28, "1g.10gb"))
    yield hard(
        "8 x 7g.80gb and 7 x 1g.10gb, one too many", dynamic_mig(), claim(mig, 7, "1g.10gb"), claim(mig, 8, "7g.80gb")
    )
    yield hard("20 x 2g.20gb and 7g.80gb", dynamic_mig(), claim(mig, 20, "2g.20gb"), claim(mig, 1, "7g.80gb"))
    yield hard("19 x 2g.20gb and 2 x 7g.80gb", dynamic_mig(), claim(mig, 19, "2g.20gb"), claim(mig, 2, "7g.80gb"))
    yield hard("12 x 1g.20gb, 8 x 3g.40gb", dynamic_mig(), claim(mig, 12, "1g.20gb"), claim(mig, 8, "3g.40gb"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--nodes", default="1,100,5000")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    kinds: tuple[tuple[str, Callable[[], list[Obj]], ResourceClaim], ...] = (
        ("one full GPU", full_gpus, claim()),
        ("four full GPUs", full_gpus, claim(count=4)),
        ("1g.10gb of 208 devices", dynamic_mig, claim("mig.nvidia.com", profile="1g.10gb")),
        ("3g.40gb of 208 devices", dynamic_mig, claim("mig.nvidia.com", profile="3g.40gb")),
    )
    rates = [
        rate(what, int(nodes), slices(), wanted, arguments.seconds)
        for what, slices, wanted in kinds
        for nodes in arguments.nodes.split(",")
    ]
    print_table(
        ("claim for", "nodes", "allocations/s"), [(row.what, str(row.nodes), f"{row.per_s:,.0f}") for row in rates]
    )
    cases = list(hard_cases())
    print_table(("hard case", "answer", "ms"), [(row.what, row.answer, f"{row.ms:.1f}") for row in cases])
    if arguments.json is not None:
        results = {"rates": [vars_of(row) for row in rates], "hard": [vars_of(row) for row in cases]}
        arguments.json.write_text(json.dumps(results, indent=2))


def vars_of(row: Rate | Hard) -> Obj:
    return {name: getattr(row, name) for name in row.__slots__}


if __name__ == "__main__":
    main()
