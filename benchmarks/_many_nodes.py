"""Many nodes of eight H100s, played by one process: what they report, and how their plugins answer the controller. With
them a bare client, which writes what the controller writes.

A node is a copy of the model `dgx-h100` with UUIDs and serial numbers of its own.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from _api_server import api_server

from docs.from_code.crds import DEFINITIONS
from dra_driver.api.inventory import GpuFacts, NodeInventorySpec, Registration, confirmation_annotation
from dra_driver.api.meta import (
    CRDS,
    NODE_INVENTORIES,
    NODES,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from dra_driver.checking.knowledge import inventory_of_model
from dra_driver.errors import NotFound, Unreachable
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.kube.watch import Mirror, MirrorChange
from dra_driver.names import GPU_DRIVER, gpu_device_names

MODEL = "dgx-h100"
GPUS = 8
AT_ONCE = 32
"""Requests of all nodes together."""
WORKERS = 16
"""Requests of the bare client at the same time, as many as the controller's."""


def name_of(node: int) -> str:
    return f"node-{node:05d}"


def spec_of(node: int, power_limit_watts: int = 700) -> NodeInventorySpec:
    """What the node reports; the power limit is that of its first GPU."""
    uuids = [f"GPU-{node:04x}{number:04x}-1111-4222-8333-{node:06x}{number:06x}" for number in range(GPUS)]
    names, model = gpu_device_names(uuids), inventory_of_model(MODEL)
    gpus = []
    for number, (uuid, gpu) in enumerate(zip(uuids, model.gpus, strict=True)):
        assert gpu.nvlink is not None
        own: dict[str, object] = {
            "uuid": uuid,
            "name": names[uuid],
            "serial": f"16543{node:04d}{number:04d}",
            "nvlink": gpu.nvlink.model_copy(update={"peers": sorted(set(uuids) - {uuid})}),
            "power_limit_watts": 700 if number else power_limit_watts,
        }
        gpus.append(gpu.model_copy(update=own))
    return model.model_copy(update={"node_name": name_of(node), "gpus": gpus})


def gpus_of(node: int) -> list[GpuFacts]:
    return spec_of(node).gpus


def inventory_object(uid: str, spec: NodeInventorySpec, driver: str, registered_ago_s: float = 0.0) -> JsonObject:
    """The NodeInventory of the Node with this UID, whose plugin registered `driver`."""
    registration = Registration(driver=driver, time=wire_time(registered_ago_s))
    owner = {"apiVersion": "v1", "kind": "Node", "name": spec.node_name, "uid": uid}
    return {
        "apiVersion": NODE_INVENTORIES.api_version,
        "kind": NODE_INVENTORIES.kind,
        "metadata": {"name": spec.node_name, "ownerReferences": [owner]},
        "spec": spec.model_copy(update={"registrations": [registration]}).to_wire(),
    }


def wire_time(ago_s: float = 0.0) -> str:
    when = datetime.now(UTC) - timedelta(seconds=ago_s)
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")


def question(inventory: JsonObject, driver: str) -> str | None:
    """The registration that the controller asks about, whether the plugin still lives; None without a question."""
    asked: str | None = (inventory["metadata"].get("annotations") or {}).get(confirmation_annotation(driver))
    return (
        asked
        if any(registration["time"] == asked for registration in inventory["spec"].get("registrations") or ())
        else None
    )


async def answer(kube: Kube, node: str, driver: str) -> None:
    """The plugin registers again."""
    registration = {"driver": driver, "time": wire_time()}
    await kube.merge_patch(NODE_INVENTORIES, node, {"spec": {"registrations": [registration]}})


@dataclass(frozen=True, slots=True)
class SeenSlice:
    node: str
    version: str
    attributes: frozenset[str] | None
    """Names of the first device's; None without devices."""


def _seen(obj: JsonObject) -> SeenSlice:
    devices = obj["spec"].get("devices")
    attributes = frozenset(devices[0]["attributes"]) if devices else None
    return SeenSlice(obj["spec"]["nodeName"], obj["metadata"]["resourceVersion"], attributes)


class Nodes:
    """All nodes at once: their inventories, the answers of their plugins, and what they see of their slices."""

    def __init__(self, kube: Kube, count: int) -> None:
        self.kube = kube
        self.count = count
        self._slices = Mirror(kube, RESOURCE_SLICES, keep=_seen, on_change=self._saw_slice)
        self._inventories = Mirror(
            kube, NODE_INVENTORIES, keep=lambda obj: question(obj, GPU_DRIVER), on_change=self._saw_question
        )
        self._changed = asyncio.Event()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._uids: dict[int, str] = {}
        self._answers: set[asyncio.Task[None]] = set()

    @property
    def slices(self) -> dict[str, SeenSlice]:
        """By name."""
        return {name: seen for (_, name), seen in self._slices.objects.items()}

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(mirror.run()) for mirror in (self._slices, self._inventories)]
        try:
            yield
        finally:
            for task in (*tasks, *self._answers):
                task.cancel()
            await asyncio.gather(*tasks, *self._answers, return_exceptions=True)

    async def join(self) -> None:
        await self.all(self._join(node) for node in range(self.count))

    async def report(self, registered_ago_s: float = 0.0) -> float:
        """Writes all inventories; answers how many seconds that took."""
        started = time.monotonic()
        await self.all(self.report_one(node, registered_ago_s) for node in range(self.count))
        return time.monotonic() - started

    async def report_one(self, node: int, registered_ago_s: float = 0.0) -> JsonObject:
        inventory = inventory_object(self._uids[node], spec_of(node), GPU_DRIVER, registered_ago_s)
        return await self.kube.create(NODE_INVENTORIES, inventory)

    async def change_one_gpu(self, node: int, watts: int) -> None:
        gpus = [gpu.to_wire() for gpu in spec_of(node, watts).gpus]
        await self.kube.merge_patch(NODE_INVENTORIES, name_of(node), {"spec": {"gpus": gpus}})

    async def leave(self, count: int) -> None:
        """The last nodes are deleted, and their inventories with them.

        A cluster leaves the inventories to its garbage collector, which by default sends 20 requests a second.
        """
        await self.all(self._leave(node) for node in range(self.count - count, self.count))
        self.count -= count

    async def until_slices(self, true: Callable[[], bool], pause_s: float = 0.1, timeout_s: float = 1800.0) -> None:
        """Looks when slices change, but not more often than the pause allows, because looking costs processor time."""
        async with asyncio.timeout(timeout_s):
            while not true():
                self._changed.clear()
                await asyncio.sleep(pause_s)
                await self._changed.wait()

    async def all(self, work: Iterable[Awaitable[object]]) -> None:
        """Some at a time."""

        async def in_turn(item: Awaitable[object]) -> None:
            async with self._at_once:
                await item

        async with asyncio.TaskGroup() as group:
            for item in work:
                group.create_task(in_turn(item))

    async def _join(self, node: int) -> None:
        obj = await self.kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name_of(node)}})
        self._uids[node] = obj["metadata"]["uid"]

    async def _leave(self, node: int) -> None:
        await self.kube.delete(NODE_INVENTORIES, name_of(node))
        await self.kube.delete(NODES, name_of(node))

    def _saw_slice(self, change: MirrorChange[SeenSlice]) -> None:
        self._changed.set()

    def _saw_question(self, change: MirrorChange[str | None]) -> None:
        if change.after is not None:
            task = asyncio.create_task(self.all([answer(self.kube, change.key[1], GPU_DRIVER)]))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)


class BareClient:
    """Writes what the controller wrote, of the same size, and decides nothing. Its pattern is the first node."""

    def __init__(self, nodes: Nodes, status: JsonObject, slices: list[JsonObject]) -> None:
        self._nodes = nodes
        self._status = status
        self._slices = slices

    @classmethod
    async def like_controller(cls, nodes: Nodes) -> "BareClient":
        inventory = await nodes.kube.get(NODE_INVENTORIES, name_of(0))
        names = sorted(name for name, seen in nodes.slices.items() if seen.node == name_of(0))
        slices = [await nodes.kube.get(RESOURCE_SLICES, name) for name in names]
        return cls(nodes, inventory["status"], slices)

    async def first_publish_s(self) -> float:
        """Seconds for inventories, their statuses and slices, after all of these were deleted."""
        nodes = self._nodes
        for resource in (RESOURCE_SLICES, NODE_INVENTORIES):
            await self._delete_all(resource)
        await nodes.until_slices(lambda: not nodes.slices)
        return await self._timed(self._publish)

    async def _delete_all(self, resource: Resource) -> None:
        """An API server takes longer for thousands of objects than a client waits for an answer."""
        while True:
            try:
                return await self._nodes.kube.delete_collection(resource)
            except Unreachable:
                continue

    async def _publish(self, node: int) -> None:
        kube, name = self._nodes.kube, name_of(node)
        owners = (await self._nodes.report_one(node))["metadata"]["ownerReferences"]
        await kube.merge_patch(NODE_INVENTORIES, name, {"status": self._status}, subresource="status")
        for number, item in enumerate(self._slices):
            spec = {**item["spec"], "nodeName": name, "pool": {**item["spec"]["pool"], "name": name}}
            metadata = {"name": f"{name}-{number}", "ownerReferences": owners}
            await kube.create(RESOURCE_SLICES, {**item, "metadata": metadata, "spec": spec})

    async def policy_s(self) -> float:
        """Seconds for each node's status and slices, changed as a policy for all nodes changes them."""
        slices: dict[str, list[tuple[str, bool]]] = {}
        for name, seen in self._nodes.slices.items():
            slices.setdefault(seen.node, []).append((name, seen.attributes is not None))
        devices = [item["spec"]["devices"] for item in self._slices if item["spec"].get("devices")]
        marked = [
            [{**device, "attributes": {**device["attributes"], "bare": {"bool": True}}} for device in item]
            for item in devices
        ]
        status = {"status": {"policy": {**self._status["policy"], "channels": 7}}}

        async def write(node: int) -> None:
            kube, name = self._nodes.kube, name_of(node)
            await kube.merge_patch(NODE_INVENTORIES, name, status, subresource="status")
            patches = iter(marked)
            for slice_, has_devices in slices[name]:
                changed = {"devices": next(patches)} if has_devices else {"pool": {"generation": 7}}
                await kube.merge_patch(RESOURCE_SLICES, slice_, {"spec": changed})

        return await self._timed(write)

    async def _timed(self, write: Callable[[int], Coroutine[Any, Any, None]]) -> float:
        at_once = asyncio.Semaphore(WORKERS)

        async def in_turn(node: int) -> None:
            async with at_once:
                await write(node)

        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for node in range(self._nodes.count):
                group.create_task(in_turn(node))
        return time.monotonic() - started


@asynccontextmanager
async def cluster(count: int) -> AsyncIterator[tuple[Nodes, Path, Path]]:
    """Nodes in a cluster without a controller; its kubeconfig and a file for the controller's log."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        async with api_server(folder) as kubeconfig, Kube(endpoint_from(kubeconfig)) as kube:
            await define(kube)
            nodes = Nodes(kube, count)
            await nodes.join()
            async with nodes.watching():
                yield nodes, kubeconfig, folder / "controller.log"


async def define(kube: Kube) -> None:
    """The driver's custom resources, when they are served."""
    for definition in DEFINITIONS:
        await kube.create(CRDS, yaml.safe_load(definition.file.read_text()))
    for definition in DEFINITIONS:
        await _until_served(kube, definition.resource)


async def _until_served(kube: Kube, resource: Resource) -> None:
    async with asyncio.timeout(30):
        while True:
            with suppress(NotFound):
                await kube.list(resource)
                return
            await asyncio.sleep(0.1)
