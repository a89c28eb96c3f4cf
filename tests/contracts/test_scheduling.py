"""The simulated scheduler and claim controller do what the real ones do.

The first part is one suite for both. The second compares decisions: random small clusters, claims and pods are given
to a real kube-scheduler, and the devices that it chose must be those that our allocator chooses. `SCHEDULING_CASES`
sets how many (default 40), `SCHEDULING_SEED` which ones.
"""

import os
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, permutations, product

import pytest
import pytest_asyncio
from support import real_api_server, real_scheduler
from support.naive_allocation import Reference, Stop
from support.real_api_server import RealApiServer
from support.scheduling import Desk, desk, device
from support.versions import gates_on, real_minor, simulated_minor

from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.search import Allocated, allocate
from dra_driver.allocation.snapshot import Catalog, PublishedSlice, Snapshot, Usage
from dra_driver.api.meta import (
    DEVICE_CLASSES,
    NAMESPACES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
)
from dra_driver.api.resource import Allocation, DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.errors import DriverError
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.kubernetes import SEEN
from dra_driver.simulation.apiserver.server import SimulatedApiServer

DRIVER = "gpu.nvidia.com"
FINALIZER = "resource.kubernetes.io/delete-protection"
CASES = int(os.environ.get("SCHEDULING_CASES", "40"))


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer]:
    """A real API server, scheduler and claim controller."""
    server = real_scheduler.start(tmp_path_factory.mktemp("scheduling"))
    yield server
    server.stop()


SERVERS = ["simulated", *(["real"] if real_api_server.ASSETS in os.environ else [])]


@pytest_asyncio.fixture(params=SERVERS)
async def cluster(request: pytest.FixtureRequest, unique: str) -> AsyncIterator[Desk]:
    """A cluster with one node of its own, two devices on it, a class for them and a namespace; all called `unique`."""
    if request.param == "real":
        async with (
            real_scheduler.client(request.getfixturevalue("control_plane")) as kube,
            desk(None, kube) as new_desk,
        ):
            await _furnish(new_desk, unique)
            yield new_desk
            await new_desk.clear()
        return
    minor = simulated_minor()
    server = SimulatedApiServer(version=SEEN[minor], feature_gates=gates_on(minor, {}))
    await server.start()
    async with Kube(Endpoint(server=server.url)) as kube, desk(server, kube) as new_desk:
        new_desk.start_claim_controller()
        new_desk.start_scheduler()
        await _furnish(new_desk, unique)
        yield new_desk
    await server.stop()


async def _furnish(new_desk: Desk, unique: str) -> None:
    await new_desk.kube.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": unique}})
    new_desk.namespace = unique
    new_desk.class_name = unique
    await new_desk.device_class(unique, f"device.attributes['{DRIVER}'].owner == '{unique}'")
    await new_desk.node(unique, *(device(f"gpu-{index}", owner=unique) for index in range(2)))


# -- one suite for both


async def test_a_pod_gets_a_generated_claim_then_devices_then_its_node(cluster: Desk, unique: str) -> None:
    await cluster.template("one")
    pod = await cluster.pod("train", templates=("one",))
    assert await cluster.scheduled("train") == unique
    (claim,) = await cluster.claims()
    assert claim["metadata"]["generateName"] == "train-one-"
    assert claim["metadata"]["annotations"] == {"resource.kubernetes.io/pod-claim-name": "one"}
    _, minor = await cluster.kube.server_version()
    assert claim["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "train",
            "uid": pod["metadata"]["uid"],
            "controller": True,
            **({"blockOwnerDeletion": True} if minor < 35 else {}),
        }
    ]
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    assert claim["status"]["allocation"].pop("allocationTimestamp") >= pod["metadata"]["creationTimestamp"]
    assert claim["status"] == {
        "allocation": {
            "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": unique, "device": "gpu-0"}]},
            "nodeSelector": {
                "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [unique]}]}]
            },
        },
        "reservedFor": [{"resource": "pods", "name": "train", "uid": pod["metadata"]["uid"]}],
    }
    pod = await cluster.get_pod("train")
    assert pod["status"]["resourceClaimStatuses"] == [{"name": "one", "resourceClaimName": claim["metadata"]["name"]}]
    await cluster.delete_pod("train")
    await cluster.gone(claim["metadata"]["name"])


async def test_a_pod_that_does_not_fit_is_told_so_and_scheduled_when_it_does(cluster: Desk) -> None:
    await cluster.claim("both", {"name": "gpu", "exactly": {"deviceClassName": cluster.class_name, "count": 2}})
    await cluster.claim("one")
    await cluster.pod("first", claims=("one",))
    await cluster.scheduled("first")
    await cluster.pod("second", claims=("both",))
    message = await cluster.reported("second")
    number = message.partition(" ")[0].removeprefix("0/")
    assert message == (
        f"0/{number} nodes are available: {number} cannot allocate all claims. still not schedulable, preemption:"
        f" 0/{number} nodes are available: {number} Preemption is not helpful for scheduling."
    )

    async def is_reported() -> bool:
        return "FailedScheduling" in [reason for reason, _ in await cluster.events("second")]

    await cluster.until(is_reported)
    await cluster.delete_pod("first")
    await cluster.scheduled("second")
    assert sorted(await cluster.devices_of("second")) == ["gpu-0", "gpu-1"]


async def test_pods_share_a_claim_and_the_last_one_releases_it(cluster: Desk) -> None:
    await cluster.claim("shared")
    for name in ("a", "b"):
        await cluster.pod(name, claims=("shared",))
        await cluster.scheduled(name)
    await cluster.finish_pod("a")

    async def only_b() -> bool:
        return [consumer["name"] for consumer in (await cluster.get_claim("shared"))["status"]["reservedFor"]] == ["b"]

    await cluster.until(only_b)
    await cluster.finish_pod("b")
    await cluster.released("shared")


async def test_a_pod_that_is_done_loses_its_generated_claim(cluster: Desk) -> None:
    await cluster.template("one")
    await cluster.pod("job", templates=("one",))
    await cluster.scheduled("job")
    (claim,) = await cluster.claims()
    await cluster.finish_pod("job")
    await cluster.gone(claim["metadata"]["name"])


async def test_extended_resources_become_a_claim(cluster: Desk, unique: str) -> None:
    resource = f"example.com/{unique}"
    await cluster.kube.merge_patch(DEVICE_CLASSES, unique, {"spec": {"extendedResourceName": resource}})

    def container(name: str) -> JsonObject:
        amounts = {"cpu": "1m", resource: "1"}
        return {"name": name, "image": "image", "resources": {"limits": amounts, "requests": amounts}}

    await cluster.allocatable(unique, cpu="4", pods="10")
    await cluster.pod("old", containers=[container("a"), container("b")], initContainers=[container("setup")])
    if (await cluster.kube.server_version())[1] < 35:
        # There the init container gets a device of its own, and the node has two.
        assert (await cluster.reported("old")).startswith("0/1 nodes are available: 1 ")
        return
    await cluster.scheduled("old")

    async def claim_status() -> JsonObject | None:
        status: JsonObject | None = (await cluster.get_pod("old"))["status"].get("extendedResourceClaimStatus")
        return status

    status = await cluster.until(claim_status)
    (claim,) = await cluster.claims()
    assert claim["metadata"]["generateName"] == "old-extended-resources-"
    assert claim["metadata"]["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
    exact = {"deviceClassName": unique, "allocationMode": "ExactCount", "count": 1}
    assert claim["spec"]["devices"]["requests"] == [
        {"name": "container-1-request-1", "exactly": exact},
        {"name": "container-2-request-1", "exactly": exact},
    ]
    assert status["resourceClaimName"] == claim["metadata"]["name"]
    assert sorted((mapping["containerName"], mapping["requestName"]) for mapping in status["requestMappings"]) == [
        ("a", "container-1-request-1"),
        ("b", "container-2-request-1"),
        ("setup", "container-1-request-1"),
    ]


# -- the same decisions


type Decision = dict[str, list[str]]
"""Claim to its allocation in lines; REFUSED for a pod that was not scheduled."""

REFUSED: Decision = {"refused": []}


@dataclass
class Case:
    """One node with its slices, and pods that are given to the scheduler one after the other."""

    name: str
    slices: list[JsonObject]
    pods: list[list[JsonObject]]
    """For each pod its claims."""
    decided: list[Decision] = field(default_factory=list)
    """What the real scheduler decided, for each pod."""
    allocated: list[list[JsonObject]] = field(default_factory=list)
    """The allocations that it wrote for each pod, in the order of the claims."""

    @property
    def text(self) -> str:
        return f"{self.slices}\n{self.pods}"


def _case(random_: random.Random, name: str) -> Case:
    pools = random_.choice([1, 1, 2])
    slices: list[JsonObject] = []
    for pool in range(pools):
        count, sets = random_.choice([1, 1, 2]), _counter_sets(random_)
        slice_count = count + bool(sets)
        for index in range(count):
            devices = [_device(random_, f"g{pool}{index}{place}", sets) for place in range(random_.randint(1, 4))]
            slice_name = f"{name}-{pool}-{random_.randrange(10)}{index}"
            slices.append(_slice(name, f"{name}-p{pool}", slice_name, slice_count, devices))
        if sets:
            slices.append(_slice(name, f"{name}-p{pool}", f"{name}-{pool}-counters", slice_count, []))
            slices[-1]["spec"]["sharedCounters"] = sets
            del slices[-1]["spec"]["devices"]
    pods = [
        [_claim(random_, name, f"{name}-c{pod}{claim}") for claim in range(random_.choice([1, 1, 2]))]
        for pod in range(random_.choice([1, 2, 3, 4]))
    ]
    return Case(name, slices, pods)


def _counter_sets(random_: random.Random) -> list[JsonObject]:
    if random_.random() < 0.4:
        return []
    return [
        {
            "name": f"set-{index}",
            "counters": {name: {"value": str(random_.randint(1, 4))} for name in ("memory", "engines")},
        }
        for index in range(random_.choice([1, 2]))
    ]


def _device(random_: random.Random, name: str, sets: list[JsonObject]) -> JsonObject:
    attributes: JsonObject = {"kind": {"string": random_.choice("aab")}, "size": {"int": random_.randint(1, 3)}}
    if random_.random() < 0.8:
        attributes["link"] = random_.choice([{"string": "x"}, {"string": "y"}, {"int": 1}, {"version": "1.0.0"}])
    if random_.random() < 0.3:
        attributes["example.com/link"] = {"string": random_.choice("xy")}
    new_device: JsonObject = {"name": name, "attributes": attributes}
    if random_.random() < 0.7:
        new_device["capacity"] = {"memory": {"value": random_.choice(["40Gi", "80Gi", "81559Mi"])}}
    if random_.random() < 0.3:
        _make_shareable(random_, new_device)
    if sets and random_.random() < 0.7:
        new_device["consumesCounters"] = [
            {"counterSet": counter_set["name"], "counters": _draws(random_)}
            for counter_set in random_.sample(sets, random_.choice([1, 1, len(sets)]))
        ]
    if random_.random() < 0.15:
        effect = random_.choice(["NoSchedule", "NoExecute", "None"])
        new_device["taints"] = [{"key": "bad", "value": "yes", "effect": effect}]
    return new_device


def _draws(random_: random.Random) -> JsonObject:
    names = random_.choice([("memory",), ("memory", "engines")])
    return {name: {"value": random_.choice(["1", "1", "2", "500m"])} for name in names}


def _make_shareable(random_: random.Random, device: JsonObject) -> None:
    device["allowMultipleAllocations"] = True
    policies: list[JsonObject | None] = [
        None,
        {"default": "10Gi"},
        {"default": "10Gi", "validRange": {"min": "2Gi", "step": "4Gi"}},
        {"default": "8Gi", "validRange": {"min": "8Gi", "max": "32Gi", "step": "8Gi"}},
        {"default": "20Gi", "validValues": ["5Gi", "20Gi", "40Gi"]},
    ]
    policy = random_.choice(policies)
    if "capacity" in device and policy is not None:
        device["capacity"]["memory"]["requestPolicy"] = policy
    if random_.random() < 0.3:
        device.setdefault("capacity", {})["slots"] = {"value": "3", "requestPolicy": {"default": "1"}}


def _slice(node: str, pool: str, name: str, count: int, devices: list[JsonObject]) -> JsonObject:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": pool, "generation": 1, "resourceSliceCount": count},
            "devices": devices,
        },
    }


_SELECTORS = [
    f"device.attributes['{DRIVER}'].kind == 'a'",
    f"device.attributes['{DRIVER}'].size >= 2",
    f"has(device.attributes['{DRIVER}'].link) && device.attributes['{DRIVER}'].link == 'x'",
    f"device.attributes['{DRIVER}'].?link.orValue('none') != 'y'",
    f"has(device.capacity['{DRIVER}'].memory) && device.capacity['{DRIVER}'].memory.compareTo(quantity('80Gi')) <= 0",
    f"device.attributes['{DRIVER}'].link == 'x' || device.attributes['{DRIVER}'].kind == 'b'",
    f"cel.bind(a, device.attributes['{DRIVER}'], a.size > 1 && a.kind.startsWith('a'))",
    "device.allowMultipleAllocations",
]


def _wanted(random_: random.Random, *, exact: bool) -> JsonObject:
    wanted: JsonObject = {"deviceClassName": "everything"}
    if random_.random() < 0.5:
        wanted["selectors"] = [
            {"cel": {"expression": expression}} for expression in random_.sample(_SELECTORS, random_.choice([1, 1, 2]))
        ]
    if random_.random() < 0.15:
        wanted["allocationMode"] = "All"
    else:
        wanted["count"] = random_.choice([1, 1, 1, 2, 3])
    if random_.random() < 0.3:
        wanted["tolerations"] = [random_.choice([{"operator": "Exists"}, {"key": "bad", "value": "yes"}])]
    if random_.random() < 0.2:
        wanted["capacity"] = {"requests": {"memory": random_.choice(["1Gi", "9Gi", "20Gi", "64Gi", "1500m"])}}
    if exact and random_.random() < 0.1:
        wanted["adminAccess"] = True
    return wanted


def _claim(random_: random.Random, node: str, name: str) -> JsonObject:
    requests: list[JsonObject] = []
    for index in range(random_.choice([1, 1, 2, 3])):
        if random_.random() < 0.25:
            alternatives = [{"name": f"a{place}", **_wanted(random_, exact=False)} for place in range(2)]
            requests.append({"name": f"r{index}", "firstAvailable": alternatives})
        else:
            requests.append({"name": f"r{index}", "exactly": _wanted(random_, exact=True)})
    constraints: list[JsonObject] = []
    for _ in range(random_.choice([0, 0, 1, 1, 2])):
        names = [request["name"] for request in requests if random_.random() < 0.5]
        kind = random_.choice(["matchAttribute", "matchAttribute", "distinctAttribute"])
        attribute = random_.choice([f"{DRIVER}/link", f"{DRIVER}/size", "example.com/link"])
        constraints.append({"requests": names, kind: attribute})
    named = [request["name"] for request in requests if random_.random() < 0.6]
    opaque = {"driver": DRIVER, "parameters": {"note": name}}
    config = [{"requests": named, "opaque": opaque}] if random_.random() < 0.3 else []
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": requests, "constraints": constraints, "config": config}},
    }


@pytest.mark.skipif(
    real_api_server.ASSETS not in os.environ,
    reason=f"{real_api_server.ASSETS} is not set: no real kube-scheduler to compare with",
)
async def test_the_real_kube_scheduler_chooses_the_same_devices(control_plane: RealApiServer, unique: str) -> None:
    minor = real_minor(real_api_server.assets_folder())
    random_ = random.Random(os.environ.get("SCHEDULING_SEED", f"scheduling {CASES}"))
    cases = [_case(random_, f"{unique}-{number}") for number in range(CASES)]
    if minor < 35:
        list(map(_as_of_34, cases))
    async with real_scheduler.client(control_plane) as kube, desk(None, kube) as round_desk:
        round_desk.namespace = unique
        labels = {"resource.kubernetes.io/admin-access": "true"}
        await kube.create(
            NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": unique, "labels": labels}}
        )
        await round_desk.device_class("everything", f"device.driver == '{DRIVER}'", config=[_CLASS_CONFIG])
        for case in cases:
            await round_desk.node(case.name)
            for slice_ in case.slices:
                await kube.create(RESOURCE_SLICES, slice_)
        for round_ in range(4):
            await _schedule_round(round_desk, [case for case in cases if len(case.pods) > round_], round_)
        await round_desk.clear()
    decisions = [decision for case in cases for decision in case.decided]
    assert sum(decision != REFUSED for decision in decisions) >= CASES / 3
    other = [
        (case, pod)
        for case in cases
        for pod, real in enumerate(case.decided)
        if all(_ours(case, pod, order, minor) != real for order in _orders(case, minor))
    ]
    wrong = [
        (case, pod)
        for case, pod in other
        if not any(_is_leak(case, pod, order, minor) for order in _orders(case, minor))
    ]
    print(
        f"{len(cases)} cases, {len(decisions)} pods: {len(other)} differ, {len(other) - len(wrong)} by leaked counters"
    )
    assert not wrong, "\n\n".join(
        f"{case.text}\npod {pod}\nreal {case.decided}\nours"
        f" {[_ours(case, pod, order, minor) for order in _orders(case, minor)]}"
        for case, pod in wrong[:3]
    )
    assert len(other) <= len(decisions) / 20


_CLASS_CONFIG = {"opaque": {"driver": DRIVER, "parameters": {"note": "class"}}}


_ROUND_S = 120.0
"""A search that finds nothing takes the real scheduler up to ten seconds, and it does one after the other."""


async def _schedule_round(round_desk: Desk, cases: list[Case], round_: int) -> None:
    for case in cases:
        for claim in case.pods[round_]:
            await round_desk.kube.create(RESOURCE_CLAIMS, claim, namespace=round_desk.namespace)
        names = tuple(claim["metadata"]["name"] for claim in case.pods[round_])
        selector = {"kubernetes.io/hostname": case.name}
        await round_desk.pod(f"{case.name}-{round_}", claims=names, nodeSelector=selector)
    for case in cases:
        case.allocated.append([])
        case.decided.append(await round_desk.until(partial(_decision, round_desk, case, round_), within_s=_ROUND_S))


async def _decision(round_desk: Desk, case: Case, round_: int) -> Decision | None:
    """What became of a pod; None while that is open."""
    pod = await round_desk.get_pod(f"{case.name}-{round_}")
    if not pod["spec"].get("nodeName"):
        conditions = pod.get("status", {}).get("conditions") or ()
        refused = any(
            condition["type"] == "PodScheduled" and condition["status"] == "False" for condition in conditions
        )
        return REFUSED if refused else None
    decided: Decision = {}
    for claim in case.pods[round_]:
        stored = await round_desk.get_claim(claim["metadata"]["name"])
        case.allocated[round_].append(stored["status"]["allocation"])
        decided[claim["metadata"]["name"]] = _shown(stored["status"]["allocation"])
    return decided


def _shown(allocation: JsonObject) -> list[str]:
    """An allocation in lines that compare: devices in order, then configs."""
    devices = allocation["devices"]
    lines = [
        f"{result['request']}={result['pool']}/{result['device']}{' admin' if result.get('adminAccess') else ''}"
        f"{' tolerant' if result.get('tolerations') else ''}{' share' if result.get('shareID') else ''}"
        f"{sorted((result.get('consumedCapacity') or {}).items())}"
        for result in devices["results"]
    ]
    return lines + [
        f"{config['source']} {config.get('requests', [])} {config['opaque']['parameters']}"
        for config in devices.get("config") or ()
    ]


_EVERYTHING: JsonObject = {
    "metadata": {"name": "everything"},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}], "config": [_CLASS_CONFIG]},
}


type Order = Mapping[str, str]
"""To the names of pools and slices, names that sort as a scheduler looks at them."""


def _orders(case: Case, minor: int) -> list[Order]:
    """From 1.36 on by name. Before, pools and their slices come in an order that is another one each time."""
    names: dict[str, list[str]] = defaultdict(list)
    for slice_ in case.slices:
        names[slice_["spec"]["pool"]["name"]].append(slice_["metadata"]["name"])
    if minor >= 36:
        return [{name: name for pool, own in names.items() for name in (pool, *own)}]
    return [
        {name: f"{place:02}.{name}" for place, name in enumerate([*pools, *chain(*slices)])}
        for pools in permutations(names)
        for slices in product(*map(permutations, names.values()))
    ]


def _renamed(obj: JsonObject, order: Order) -> JsonObject:
    """A slice or an allocation with those names."""
    renamed = deepcopy(obj)
    if "metadata" in renamed:
        renamed["metadata"]["name"] = order[renamed["metadata"]["name"]]
        renamed["spec"]["pool"]["name"] = order[renamed["spec"]["pool"]["name"]]
    for result in renamed.get("devices", {}).get("results") or ():
        result["pool"] = order[result["pool"]]
    return renamed


def _ours(case: Case, pod: int, order: Order, minor: int) -> Decision:
    """What our allocator decides for a pod after the real decisions for those before it."""
    behavior = Behavior.of(minor, partitionable=True, consumable=minor > 34, taints=True)
    slices = [PublishedSlice(ResourceSlice.of(_renamed(slice_, order))) for slice_ in case.slices]
    before = [Allocation.of(_renamed(allocation, order)) for each in case.allocated[:pod] for allocation in each]
    within = Snapshot(Catalog(slices, behavior), {"everything": DeviceClass.of(_EVERYTHING)}, Usage.of(before))
    claims = case.pods[pod]
    try:
        result = allocate([ResourceClaim.of(claim) for claim in claims], NodeView(case.name), within)
    except DriverError:
        return REFUSED
    if not isinstance(result, Allocated):
        return REFUSED
    back = {new: name for name, new in order.items()}
    return {
        claim["metadata"]["name"]: _shown(_renamed(allocation.to_wire(), back))
        for claim, allocation in zip(claims, result.allocations, strict=True)
    }


def _is_leak(case: Case, pod: int, order: Order, minor: int) -> bool:
    """Whether the rules lead to the real decision with the defect of kube-scheduler that `naive_allocation` knows."""
    before = [_renamed(allocation, order) for each in case.allocated[:pod] for allocation in each]
    slices = [_renamed(slice_, order) for slice_ in case.slices]
    plain = Reference(case.pods[pod], slices, {"everything": _EVERYTHING}, before, leaks=True, minor=minor)
    try:
        solved = plain.solve()
    except Stop:
        solved = False
    if not solved or case.decided[pod] == REFUSED:
        return not solved and case.decided[pod] == REFUSED
    real = [
        [(result["request"], order[result["pool"]], result["device"]) for result in allocation["devices"]["results"]]
        for allocation in case.allocated[pod]
    ]
    return real == [
        [(name, published.pool, published.device["name"]) for name, published, _ in each] for each in plain.results
    ]


def _as_of_34(case: Case) -> None:
    """Without what 1.34 does not have, or has in another form: shares, and counters apart from devices."""
    counted = {
        slice_["spec"]["pool"]["name"]: slice_["spec"]["sharedCounters"]
        for slice_ in case.slices
        if _has_counters(slice_)
    }
    case.slices = [slice_ for slice_ in case.slices if not _has_counters(slice_)]
    for spec in (slice_["spec"] for slice_ in case.slices):
        if sets := counted.get(spec["pool"]["name"]):
            spec["pool"]["resourceSliceCount"] -= 1
            spec["sharedCounters"] = sets
        for device_ in spec["devices"]:
            device_.pop("allowMultipleAllocations", None)
            for capacity in device_.get("capacity", {}).values():
                capacity.pop("requestPolicy", None)
            device_["taints"] = [taint for taint in device_.get("taints", ()) if taint["effect"] != "None"]
    for devices in (claim["spec"]["devices"] for pod in case.pods for claim in pod):
        devices["constraints"] = [constraint for constraint in devices["constraints"] if "matchAttribute" in constraint]
        for request in devices["requests"]:
            for wanted in request.get("firstAvailable") or (request["exactly"],):
                wanted.pop("capacity", None)
                selectors = wanted.get("selectors", ())
                wanted["selectors"] = [
                    selector for selector in selectors if "allowMultiple" not in selector["cel"]["expression"]
                ]


def _has_counters(slice_: JsonObject) -> bool:
    return "devices" not in slice_["spec"]
