"""Allocator cases for upstream's code and ours: random ones, those that are hard to decide, and many nodes.

Each case is JSON as `benchmarks/allocation_upstream.py` describes it, without upstream's answer.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from allocation import dynamic_mig, gpu_device

from dra_driver.names import GPU_DRIVER

type Obj = dict[str, Any]

_NODE = "node"
_FEATURES = {
    "AdminAccess": True,
    "ConsumableCapacity": True,
    "DeviceBindingAndStatus": True,
    "DeviceTaints": True,
    "ListTypeAttributes": False,
    "PartitionableDevices": True,
    "PrioritizedList": True,
}
"""What 1.36 has by default."""
_OWN = f"device.attributes['{GPU_DRIVER}']"


def cases(random_cases: int, seed: int) -> Iterator[Obj]:
    yield from _nodes()
    yield from _hard()
    for index in range(random_cases):
        yield _random(random.Random(f"{seed}-{index}"), f"random/{seed}-{index}")


def _case(name: str, claims: list[Obj], slices: list[Obj], **others: Any) -> Obj:
    return {
        "name": name,
        "features": _FEATURES,
        "claims": [_claim(index, **claim) for index, claim in enumerate(claims)],
        "classes": [
            _class("any", "true"),
            *(_class(f"{type_}s", f"{_OWN}.type == '{type_}'") for type_ in ("gpu", "mig")),
        ],
        "slices": [_slice(index, len(slices), slice_) for index, slice_ in enumerate(slices)],
        "node": {"metadata": {"name": _NODE}},
        "whole": [],
        "consumed": {},
        **others,
    }


def _claim(index: int, requests: list[Obj], constraints: list[Obj] | None = None) -> Obj:
    devices = {"requests": requests, "constraints": constraints or []}
    name = f"claim-{index}"
    return {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"devices": devices}}


def _class(name: str, expression: str) -> Obj:
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}


def _slice(index: int, count: int, spec: Obj) -> Obj:
    pool = {"name": _NODE, "generation": 1, "resourceSliceCount": count}
    return {
        "metadata": {"name": f"slice-{index}"},
        "spec": {"driver": GPU_DRIVER, "nodeName": _NODE, "pool": pool, **spec},
    }


def _request(name: str, class_: str = "any", *expressions: str, **fields: Any) -> Obj:
    return {"name": name, "exactly": _wanted(class_, *expressions, **fields)}


def _wanted(class_: str, *expressions: str, **fields: Any) -> Obj:
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    mode = {} if "allocationMode" in fields else {"allocationMode": "ExactCount", "count": 1}
    return {"deviceClassName": class_, "selectors": selectors, **mode, **fields}


# -- many nodes, and cases that are known to be hard


def _nodes() -> Iterator[Obj]:
    claims = [{"requests": [_request("r", "gpus")]}]
    for name, nodes, busy in (("first", 5_000, 0), ("middle", 5_000, 2_500), ("last", 5_000, 4_999)):
        yield _case(f"nodes/{name} free of {nodes}", claims, [_gpus(8)], copies=nodes, busy=busy)
    partition = [{"requests": [_request("r", "migs", f"{_OWN}.profile == '3g.40gb'")]}]
    yield _case("nodes/a partition on the first of 500", partition, dynamic_mig(), copies=500, busy=0)


def _gpus(count: int, group: int = 10_000) -> Obj:
    return {"devices": [gpu_device(index, nvlink=f"d{index // group}") for index in range(count)]}


def _hard() -> Iterator[Obj]:
    same, distinct = ({f"{kind}Attribute": f"{GPU_DRIVER}/nvlinkDomain"} for kind in ("match", "distinct"))

    def of(name: str, slices: list[Obj], *requests: Obj, constraint: Obj | None = None, **others: Any) -> Obj:
        claim = {"requests": list(requests), "constraints": [constraint] if constraint else None}
        return _case(f"hard/{name}", [claim], slices, **others)

    def migs(**profiles: int) -> list[Obj]:
        sizes = {"g1": "1g.10gb", "g2": "2g.20gb", "g3": "3g.40gb", "g4": "4g.40gb", "g7": "7g.80gb"}
        return [_request(key, "migs", f"{_OWN}.profile == '{sizes[key]}'", count=n) for key, n in profiles.items()]

    def single(count: int) -> list[Obj]:
        return [_request(f"r{index}", "gpus") for index in range(count)]

    yield of("1 of 8", [_gpus(8)], _request("r", "gpus"))
    yield of("8 of 128, one domain", [_gpus(128, 16)], _request("r", "gpus", count=8), constraint=same)
    groups = [gpu_device(index, nvlink=f"d{index // 7 if index < 119 else 17}") for index in range(128)]
    yield of("8 of 128, only the last domain", [{"devices": groups}], _request("r", "gpus", count=8), constraint=same)
    three = (f"{_OWN}.architecture == 'Hopper'", f"{_OWN}.productName.startsWith('NVIDIA')", "device.driver != 'x'")
    yield of("32 of 128, three selectors", [_gpus(128)], _request("r", "gpus", *three, count=32))
    yield of("14 partitions of 208", dynamic_mig(), *migs(g1=14))
    yield of("five sizes of partitions", dynamic_mig(), *migs(g7=1, g4=1, g3=1, g2=1, g1=1))
    alternatives = [_wanted("gpus", count=count) | {"name": f"a{count}"} for count in (9, 8, 7, 1)]
    yield of(
        "8 requests of 4 alternatives",
        [_gpus(8)],
        *({"name": f"r{i}", "firstAvailable": alternatives} for i in range(8)),
    )
    yield of("all of 32", [_gpus(32)], _request("r", "gpus", allocationMode="All"))
    busy = [[GPU_DRIVER, _NODE, device["name"]] for device in _gpus(32)["devices"]]
    admin = _request("r", "gpus", allocationMode="All", adminAccess=True)
    yield of("admin access to 32 in use", [_gpus(32)], admin, whole=busy)
    shareable = {"devices": [device | {"allowMultipleAllocations": True} for device in _gpus(8)["devices"]]}
    shareable = {"devices": [device | {"capacity": {"memory": {"value": "80Gi"}}} for device in shareable["devices"]]}
    share = {"capacity": {"requests": {"memory": "20Gi"}}}
    yield of("16 shares of 8", [shareable], *(_request(f"r{i}", "gpus", **share) for i in range(16)))
    yield of("none: 17 of 64, domains of 16", [_gpus(64, 16)], _request("r", "gpus", count=17), constraint=same)
    yield of("none: 9 requests, 8 devices", [_gpus(8)], *single(9))
    yield of("none: 12 requests, 11 devices", [_gpus(11)], *single(12))
    yield of("none: 17 large partitions of 8 GPUs", dynamic_mig(), *migs(g3=17))
    yield of("none: 17 partitions, two sizes", dynamic_mig(), *migs(g4=8, g3=8, g1=1))
    yield of("none: 6 requests, 5 values", [_gpus(40, 8)], *single(6), constraint=distinct)
    yield of("none: 8 requests, 7 values", [_gpus(56, 8)], *single(8), constraint=distinct)


# -- random cases


def _random(random_: random.Random, name: str) -> Obj:
    size = random_.choice([3, 4, 6, 8, 12, 24, 64])
    sets = random_.choice([0, 0, 1, 2, 8])
    devices = [_device(random_, f"d{index:02}", sets) for index in range(random_.randint(1, size))]
    cut = random_.randint(0, len(devices))
    slices = [{"devices": part} for part in (devices[:cut], devices[cut:]) if part]
    if sets:
        left = [
            {counter: {"value": str(random_.randint(1, 8))} for counter in ("memory", "engines")} for _ in range(sets)
        ]
        slices.append(
            {"sharedCounters": [{"name": f"set-{i}", "counters": counters} for i, counters in enumerate(left)]}
        )
    used = [device["name"] for device in devices if "allowMultipleAllocations" not in device and random_.random() < 0.2]
    shared = {
        f"{GPU_DRIVER}/{_NODE}/{device['name']}": {"memory": random_.choice(["5Gi", "20Gi", "40Gi"])}
        for device in devices
        if "allowMultipleAllocations" in device and random_.random() < 0.3
    }
    wanted = [_random_claim(random_, size) for _ in range(random_.choice([1, 1, 1, 2, 3]))]
    whole = [[GPU_DRIVER, _NODE, device] for device in used]
    return _case(name, wanted, slices, whole=whole, consumed=shared)


def _device(random_: random.Random, name: str, sets: int) -> Obj:
    attributes: Obj = {
        "type": {"string": random_.choice(["gpu", "gpu", "mig"])},
        "size": {"int": random_.randint(1, 3)},
    }
    if random_.random() < 0.9:
        attributes["link"] = random_.choice([*({"string": text} for text in "vwxyz"), {"int": 1}, {"version": "1.0.0"}])
    device: Obj = {"name": name, "attributes": attributes, "capacity": {}}
    if random_.random() < 0.8:
        device["capacity"]["memory"] = {"value": random_.choice(["40Gi", "80Gi"])}
    if random_.random() < 0.2:
        device["allowMultipleAllocations"] = True
        policies: list[Obj] = [
            {},
            {"default": "10Gi"},
            {"default": "10Gi", "validRange": {"min": "10Gi", "step": "5Gi"}},
        ]
        if "memory" in device["capacity"] and (policy := random_.choice(policies)):
            device["capacity"]["memory"]["requestPolicy"] = policy
    if sets and random_.random() < 0.8:
        counters = {
            counter: {"value": str(random_.randint(1, 3))}
            for counter in random_.choice([["memory"], ["memory", "engines"]])
        }
        device["consumesCounters"] = [{"counterSet": f"set-{random_.randrange(sets)}", "counters": counters}]
    if random_.random() < 0.1:
        device["taints"] = [
            {"key": "bad", "value": "yes", "effect": random_.choice(["NoSchedule", "NoExecute", "None"])}
        ]
    return device


_SELECTORS = [
    f"{_OWN}.size >= 2",
    f"{_OWN}.size != 2",
    f"has({_OWN}.link) && {_OWN}.link == 'x'",
    f"{_OWN}.type == 'gpu' || {_OWN}.size == 1",
    f"device.capacity['{GPU_DRIVER}'].?memory.orValue(quantity('0')).isGreaterThan(quantity('50Gi'))",
]


def _random_claim(random_: random.Random, size: int) -> Obj:
    names = [f"r{index}" for index in range(random_.choice([1, 1, 2, 3]))]
    requests = []
    for name in names:
        if random_.random() < 0.2:
            ways = [
                _random_wanted(random_, size, True) | {"name": f"a{index}"} for index in range(random_.randint(2, 3))
            ]
            requests.append({"name": name, "firstAvailable": ways})
        else:
            requests.append({"name": name, "exactly": _random_wanted(random_, size, False)})
    constraints = []
    for _ in range(random_.choice([0, 0, 0, 1, 2])):
        covered = random_.choice([[], random_.sample(names, random_.randint(1, len(names)))])
        kind = random_.choice(["matchAttribute", "matchAttribute", "distinctAttribute"])
        constraints.append({"requests": covered, kind: f"{GPU_DRIVER}/{random_.choice(['link', 'link', 'size'])}"})
    return {"requests": requests, "constraints": constraints}


def _random_wanted(random_: random.Random, size: int, alternative: bool) -> Obj:
    fields: Obj = {"allocationMode": "ExactCount", "count": random_.choice([1, 1, 2, 3, min(15, max(1, size // 4))])}
    if random_.random() < 0.08:
        fields = {"allocationMode": "All"}
    if not alternative and random_.random() < 0.05:
        fields["adminAccess"] = True
    if random_.random() < 0.2:
        fields["tolerations"] = [{"operator": "Exists"}]
    if random_.random() < 0.15:
        fields["capacity"] = {"requests": {"memory": random_.choice(["5Gi", "12Gi", "40Gi"])}}
    expressions = random_.sample(_SELECTORS, random_.choice([0, 0, 1, 1, 2]))
    return _wanted(random_.choice(["any", "gpus", "gpus", "migs"]), *expressions, **fields)
