"""How many pods a second the real kube-scheduler gives GPUs, by what the nodes' slices have.

    KUBEBUILDER_ASSETS=FOLDER python benchmarks/churn.py [--nodes 50] [--pods 60] [--only NAME] [--json FILE]

FOLDER has etcd, kube-apiserver, kube-controller-manager and kube-scheduler. Nodes have eight H100s each. Their slices
are those that this driver publishes with several policies, and those of NVIDIA's driver, written after its sources
(v0.5.0-dev: cmd/gpu-kubelet-plugin/deviceinfo.go, partitions.go, mig.go). Some sets have less than this driver
publishes, so that the share of attributes and of counters can be seen.

All pods and their claims exist before the scheduler starts, so neither the pods' nor the claims' creation counts. The
rate is that from the first pod that is bound to the last; scheduler, API server and etcd share the machine. The
processor time is the scheduler's alone, per pod, from its start on without its first reading. What the slices of a
node take of the API server's memory is what its heap has more after a collection than before them.
"""

import argparse
import asyncio
import json
import re
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _api_server import version
from _many_nodes import AT_ONCE, name_of, spec_of
from _measured import Record, memory_mib, processor_s
from support import real_scheduler
from support.real_api_server import RealApiServer

from dra_driver.api.inventory import GpuFacts
from dra_driver.api.meta import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
)
from dra_driver.api.policy import PublishingPolicy
from dra_driver.checking.knowledge import objects_of_inventory
from dra_driver.devices.counters import engines
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Mirror, MirrorChange
from dra_driver.names import GPU_DRIVER

FAST = ("--kube-api-qps=2000", "--kube-api-burst=2000")
"""By default the scheduler sends 50 requests a second, which is some 15 pods."""
BOUND_S = 1800.0
HEAP_NOISE_KIB = 8 << 10
"""By which the API server's heap differs without a reason to be seen; less is no figure."""
OWN = f"device.attributes['{GPU_DRIVER}']"
CLAIMS = {
    "a whole GPU": f"{OWN}.type == 'gpu' && device.allowMultipleAllocations != true",
    "a 1g.10gb": f"{OWN}.type == 'mig' && {OWN}.profile == '1g.10gb'",
    "a share of a GPU": "device.allowMultipleAllocations == true",
}
TEMPLATES = ("whole", "part", "share")
"""Names of the classes and templates of these claims."""

UNITS = {
    "slices of a node": "",
    "devices of a node": "",
    "attributes of a device, mean": "",
    "counters of a device, mean": "",
    "size of a node's slices": "KiB",
    **{
        f"{claim}: {what}": unit
        for claim in CLAIMS
        for what, unit in (("pods a second", ""), ("scheduler's processor time for a pod", "ms"))
    },
    "scheduler's memory": "MiB",
    "API server's memory for a node's slices": "KiB",
}


# -- slices


def published(*mig: JsonObject, sharing: Sequence[JsonObject] = ()) -> list[JsonObject]:
    """What this driver publishes of one node with these rules for MIG and shares."""
    rules = {"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", "mig": list(mig), "sharing": list(sharing)}
    objects = objects_of_inventory(spec_of(0), name_of(0), PublishingPolicy.of(rules), {})
    return [item["spec"] for item in objects if item["kind"] == RESOURCE_SLICES.kind]


def without_counters(slices: Iterable[JsonObject]) -> list[JsonObject]:
    return [
        {**item, "devices": [{**device, "consumesCounters": []} for device in item["devices"]]}
        for item in slices
        if item.get("devices")
    ]


def with_attributes(slices: Iterable[JsonObject], *names: str) -> list[JsonObject]:
    """Only these attributes."""
    return [
        item if not item.get("devices") else {**item, "devices": [_only(device, names) for device in item["devices"]]}
        for item in slices
    ]


def with_rack(slices: Iterable[JsonObject]) -> list[JsonObject]:
    """With one attribute more, as a policy adds it."""
    rack = {"rack": {"string": "r1"}}
    return [
        item
        if not item.get("devices")
        else {**item, "devices": [{**device, "attributes": device["attributes"] | rack} for device in item["devices"]]}
        for item in slices
    ]


def _only(device: JsonObject, names: Iterable[str]) -> JsonObject:
    attributes = device["attributes"]
    return {**device, "attributes": {name: attributes[name] for name in names if name in attributes}}


def of_nvidia(*, mig: bool) -> list[JsonObject]:
    """With its gate DynamicMIG a slice for each GPU, and a slice with all counter sets; otherwise one slice."""
    gpus = spec_of(0).gpus
    if not mig:
        return [_slice({"devices": [_nvidia_gpu(gpu) for gpu in gpus]}, 1)]
    count = len(gpus) + 1
    sets = [{"name": f"gpu-{gpu.minor}-counter-set", "counters": _amounts(_whole(gpu))} for gpu in gpus]
    return [
        _slice({"sharedCounters": sets}, count),
        *(_slice({"devices": sorted(_nvidia_devices(gpu), key=lambda device: device["name"])}, count) for gpu in gpus),
    ]


def _slice(content: JsonObject, count: int) -> JsonObject:
    return {"driver": GPU_DRIVER, "pool": {"generation": 1, "resourceSliceCount": count}, **content}


def _nvidia_gpu(gpu: GpuFacts) -> JsonObject:
    attributes = {"type": {"string": "gpu"}, "uuid": {"string": gpu.uuid}, **_nvidia_common(gpu)}
    memory = {"memory": {"value": str(gpu.memory_bytes)}}
    return {"name": f"gpu-{gpu.minor}", "attributes": attributes, "capacity": memory}


def _nvidia_common(gpu: GpuFacts) -> JsonObject:
    return {
        "productName": {"string": gpu.product_name},
        "brand": {"string": gpu.brand},
        "architecture": {"string": gpu.architecture},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "580.126.9"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "addressingMode": {"string": "HMM"},
        "resource.kubernetes.io/pciBusID": {"string": gpu.pci_bus_id},
        "resource.kubernetes.io/pcieRoot": {"string": gpu.pcie_root},
        "resource.kubernetes.io/numaNode": {"int": gpu.numa_node},
    }


def _nvidia_devices(gpu: GpuFacts) -> Iterator[JsonObject]:
    yield _nvidia_gpu(gpu) | _draws(gpu, _whole(gpu))
    assert gpu.mig is not None
    for profile in gpu.mig.profiles:
        has = engines(profile)
        name = profile.name.replace(".", "").replace("+", "-")
        attributes = {"type": "mig", "parentUUID": gpu.uuid, "profile": profile.name}
        for start in profile.starts:
            memory_slices = {f"memory-slice-{index}": 1 for index in range(start, start + profile.size)}
            yield {
                "name": f"gpu-{gpu.minor}-mig-{name}-{profile.id}-{start}",
                "attributes": {key: {"string": value} for key, value in attributes.items()} | _nvidia_common(gpu),
                "capacity": {_camel(key): {"value": str(value)} for key, value in has.items()},
                **_draws(gpu, has | memory_slices),
            }


def _whole(gpu: GpuFacts) -> dict[str, int]:
    """The largest amounts of all profiles, and every memory slice."""
    assert gpu.mig is not None
    amounts = [engines(profile) for profile in gpu.mig.profiles]
    largest = {key: max(amount[key] for amount in amounts) for key in amounts[0]}
    return largest | {f"memory-slice-{index}": 1 for index in range(8)}


def _draws(gpu: GpuFacts, amounts: dict[str, int]) -> JsonObject:
    return {"consumesCounters": [{"counterSet": f"gpu-{gpu.minor}-counter-set", "counters": _amounts(amounts)}]}


def _amounts(amounts: dict[str, int]) -> JsonObject:
    return {key: {"value": str(value)} for key, value in amounts.items()}


def _camel(name: str) -> str:
    first, *others = name.split("-")
    return first + "".join(map(str.title, others))


DYNAMIC: JsonObject = {"mode": "Dynamic"}
SETS: dict[str, Callable[[], list[JsonObject]]] = {
    "default": published,
    "default, 3 attributes": lambda: with_attributes(published(), "type", "productName", "uuid"),
    "shares": lambda: published(sharing=[{"strategy": "TimeSlicing", "replicas": 4}]),
    "dynamic MIG": lambda: published(DYNAMIC),
    "dynamic MIG, 2 profiles": lambda: published({**DYNAMIC, "profiles": ["1g.10gb", "3g.40gb"]}),
    "dynamic MIG, 1 profile alone": lambda: published({**DYNAMIC, "profiles": ["1g.10gb"], "wholeGpu": False}),
    "dynamic MIG, 3 attributes": lambda: with_attributes(published(DYNAMIC), "type", "productName", "profile"),
    "dynamic MIG, 1 more attribute": lambda: with_rack(published(DYNAMIC)),
    "dynamic MIG, no counters": lambda: without_counters(published(DYNAMIC)),
    "NVIDIA": lambda: of_nvidia(mig=False),
    "NVIDIA, DynamicMIG": lambda: of_nvidia(mig=True),
}


def _claim(device: JsonObject) -> str | None:
    """Which claim can get it."""
    if device.get("allowMultipleAllocations"):
        return "a share of a GPU"
    attributes = device["attributes"]
    if attributes["type"]["string"] == "gpu":
        return "a whole GPU"
    return "a 1g.10gb" if attributes["profile"]["string"] == "1g.10gb" else None


def sizes(slices: list[JsonObject]) -> dict[str, float]:
    devices = [device for item in slices for device in item.get("devices") or ()]
    counters = sum(len(draw["counters"]) for device in devices for draw in device.get("consumesCounters") or ())
    return {
        "slices of a node": len(slices),
        "devices of a node": len(devices),
        "attributes of a device, mean": sum(len(device["attributes"]) for device in devices) / len(devices),
        "counters of a device, mean": counters / len(devices),
        "size of a node's slices": len(json.dumps(slices)) / 1024,
    }


# -- the cluster


@dataclass
class Cluster:
    server: RealApiServer
    kube: Kube

    async def join(self, nodes: int) -> None:
        await self._all(self._node(name_of(node)) for node in range(nodes))

    async def publish(self, nodes: int, slices: list[JsonObject]) -> None:
        await self._all(
            self._slice(name_of(node), number, len(slices), spec)
            for node in range(nodes)
            for number, spec in enumerate(slices)
        )

    async def offer(self) -> None:
        """Classes and templates."""
        for name, expression in zip(TEMPLATES, CLAIMS.values(), strict=True):
            selectors = [{"cel": {"expression": f"device.driver == '{GPU_DRIVER}' && {expression}"}}]
            await self._create(DEVICE_CLASSES, name, {"selectors": selectors})
            request = {"name": "gpu", "exactly": {"deviceClassName": name}}
            await self._create(RESOURCE_CLAIM_TEMPLATES, name, {"spec": {"devices": {"requests": [request]}}})

    async def _all(self, work: Iterable[Awaitable[object]]) -> None:
        at_once = asyncio.Semaphore(AT_ONCE)

        async def in_turn(item: Awaitable[object]) -> None:
            async with at_once:
                await item

        await asyncio.gather(*map(in_turn, work))

    async def _create(self, resource: Any, name: str, spec: JsonObject, **more: Any) -> None:
        metadata = {"name": name, **({"namespace": "default"} if resource.namespaced else {})}
        obj = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec, **more}
        await self.kube.create(resource, obj)

    async def _node(self, name: str) -> None:
        there = {"cpu": "192", "memory": "2Ti", "pods": "110"}
        await self._create(NODES, name, {}, status={"capacity": there, "allocatable": there})
        # The API server taints new nodes until a controller has seen them ready.
        await self.kube.merge_patch(NODES, name, {"spec": {"taints": None}})

    async def _slice(self, node: str, number: int, count: int, spec: JsonObject) -> None:
        pool = {"name": node, "generation": 1, "resourceSliceCount": count}
        await self._create(RESOURCE_SLICES, f"{node}-{number}", {**spec, "nodeName": node, "pool": pool})

    async def placed(self, template: str, count: int) -> tuple[float, float, float]:
        """Pods bound in a second, the scheduler's processor time for one in ms, and its memory in MiB."""
        bound: dict[str, float] = {}

        def saw(change: MirrorChange[str | None]) -> None:
            if change.after is not None:
                bound.setdefault(change.key[1], time.monotonic())

        pods = Mirror(self.kube, PODS, keep=lambda obj: obj["spec"].get("nodeName"), on_change=saw)
        claims = Mirror(self.kube, RESOURCE_CLAIMS, keep=lambda obj: obj["metadata"]["annotations"])
        tasks = [asyncio.create_task(mirror.run()) for mirror in (pods, claims)]
        try:
            await asyncio.gather(claims.synced.wait(), pods.synced.wait())
            before, already = len(claims.objects), len(bound)
            await self._all(self._pod(f"{template}-{number}", template) for number in range(count))
            async with asyncio.timeout(BOUND_S):
                await _until(lambda: len(claims.objects) == before + count)
            scheduler = real_scheduler.start_scheduler(self.server, *FAST)
            try:
                return await self._until_bound(scheduler, bound, already, count)
            finally:
                scheduler.kill()
                scheduler.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_bound(
        self, scheduler: "subprocess.Popen[bytes]", bound: dict[str, float], already: int, count: int
    ) -> tuple[float, float, float]:
        async with asyncio.timeout(BOUND_S):
            await _until(lambda: len(bound) > already)
            read_s = processor_s(scheduler.pid)
            await _until(lambda: len(bound) == already + count)
        used = processor_s(scheduler.pid) - read_s
        times = sorted(bound.values())[already:]
        return (count - 1) / (times[-1] - times[0]), 1e3 * used / count, memory_mib(scheduler.pid)

    async def _pod(self, name: str, template: str) -> None:
        container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
        claims = [{"name": "gpu", "resourceClaimTemplateName": template}]
        await self._create(PODS, name, {"containers": [container], "resourceClaims": claims})


def _heap_kib(server: RealApiServer) -> float:
    """What the API server's heap has after a collection, and after another one for what the first one's end freed."""

    def read(path: str) -> bytes:
        request = urllib.request.Request(server.url + path, headers={"Authorization": f"Bearer {server.token}"})
        with urllib.request.urlopen(request, context=server.ssl_context()) as answer:
            return bytes(answer.read())

    for _ in range(2):
        read("/debug/pprof/heap?gc=1")
    heap = re.search(rb"^go_memstats_heap_alloc_bytes (\S+)", read("/metrics"), re.MULTILINE)
    assert heap is not None
    return float(heap[1]) / 1024


async def _until(true: Callable[[], bool]) -> None:
    while True:
        if true():
            return
        await asyncio.sleep(0.05)


async def measure(nodes: int, pods: int, slices: list[JsonObject]) -> dict[str, float]:
    figures = sizes(slices)
    with tempfile.TemporaryDirectory() as folder:
        server = await asyncio.to_thread(real_scheduler.start, Path(folder), scheduler=False, flags=FAST)
        try:
            async with real_scheduler.client(server) as kube:
                cluster = Cluster(server, kube)
                await cluster.join(nodes)
                heap = await asyncio.to_thread(_heap_kib, server)
                await cluster.publish(nodes, slices)
                grown = await asyncio.to_thread(_heap_kib, server) - heap
                if grown > HEAP_NOISE_KIB:
                    figures["API server's memory for a node's slices"] = grown / nodes
                await cluster.offer()
                there = {_claim(device) for item in slices for device in item.get("devices") or ()}
                for template, claim in zip(TEMPLATES, CLAIMS, strict=True):
                    if claim in there:
                        rate, processor_ms, memory = await cluster.placed(template, pods)
                        figures[f"{claim}: pods a second"] = rate
                        figures[f"{claim}: scheduler's processor time for a pod"] = processor_ms
                        figures["scheduler's memory"] = memory
        finally:
            await asyncio.to_thread(server.stop)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--pods", type=int, default=60, help="of each kind of claim (default: %(default)s)")
    parser.add_argument("--only", action="append", choices=SETS, help="a set of slices; may be repeated (default: all)")
    parser.add_argument("--kubernetes", default=version(), help="its name in the record (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file, after each set")
    options = parser.parse_args()
    record = Record(UNITS, options.json, kubernetes=options.kubernetes, nodes=options.nodes, pods=options.pods)
    for name in options.only or SETS:
        record.add(name, asyncio.run(measure(options.nodes, options.pods, SETS[name]())))


if __name__ == "__main__":
    main()
