"""A cluster in which a publisher runs, and what it does to slices."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from support.background import background
from support.inventories import gpu, inventory_object, inventory_spec
from support.observed_api import ObservedApiServer

from dra_driver.api.gpu_settings import NodePolicy
from dra_driver.api.inventory import GpuFacts, NodeInventorySpec, NodeInventoryStatus, confirmation_annotation
from dra_driver.api.meta import NODE_INVENTORIES, NODES, RESOURCE_SLICES, JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Device
from dra_driver.errors import ClusterError, InvalidInput
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.kube.events import News
from dra_driver.kube.watch import Backoff, Mirror, Watches
from dra_driver.names import GPU_DRIVER
from dra_driver.publish.live import Changed, Decision, PolicySource
from dra_driver.publish.narrator import Narrator
from dra_driver.publish.pools import Pace, PoolPublisher, Publication, PublishingListeners
from dra_driver.runtime.tracing import OFF, Tracer

PATIENCE_S = 10.0


class Recorded(Narrator):
    """What was told."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[str, str]] = []
        self.messages: list[str] = []

    def wrote(self, pool: str, verb: str, devices: int) -> None:
        self.writes.append((pool, verb))

    def refused(self, pool: str, error: ClusterError, retry_s: float) -> None:
        self.messages.append(f"{pool}: refused: {error}")

    def not_understood(self, pool: str, error: InvalidInput) -> None:
        self.messages.append(f"{pool}: not understood: {error}")

    def understood(self, pool: str, notes: Sequence[str]) -> None:
        self.messages += [f"{pool}: {note}" for note in notes]

    def lost_fields(self, pool: str, fields: Sequence[str]) -> None:
        self.messages.append(f"{pool}: lost {', '.join(fields)}")

    def server_unknown(self, error: ClusterError, retry_s: float) -> None:
        self.messages.append(f"unknown: {error}")

    def asking(self, pool: str) -> None:
        self.messages.append(f"{pool}: asked")


class Pauses(Backoff):
    def __init__(self, pauses: list[float]) -> None:
        super().__init__(first_s=0.01, longest_s=0.1)
        self._pauses = pauses

    def next_s(self, at_least_s: float = 0.0) -> float:
        self._pauses.append(super().next_s(at_least_s))
        return self._pauses[-1]


class Scene:
    """A cluster, its nodes' inventories, and what happens to slices."""

    def __init__(self, server: ObservedApiServer, kube: Kube) -> None:
        self.server = server
        self.kube = kube
        self.narrator = Recorded()
        self.events: list[News] = []
        self.described: list[tuple[str, list[str]]] = []
        """The names of devices that were wanted in a pool, each time."""
        self.pauses: list[float] = []
        """Between attempts, in seconds."""
        self.publisher: PoolPublisher

    async def node(self, name: str, *gpus: GpuFacts, registered: str | None = "now", **labels: str) -> None:
        """A node that reports these GPUs."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        uid = (await self.kube.create(NODES, node))["metadata"]["uid"]
        spec = inventory_spec(name, gpus, registered=now() if registered == "now" else registered)
        await self.kube.create(NODE_INVENTORIES, inventory_object(spec, uid))

    async def reports(self, name: str, *gpus: GpuFacts) -> None:
        spec = inventory_spec(name, gpus).to_wire()
        await self.kube.merge_patch(NODE_INVENTORIES, name, {"spec": {"gpus": spec["gpus"]}})

    async def registers(self, name: str, time: str | None = None) -> None:
        entry = {"driver": GPU_DRIVER, "time": time or now()}
        await self.kube.merge_patch(NODE_INVENTORIES, name, {"spec": {"registrations": [entry]}})

    async def status(self, name: str) -> NodeInventoryStatus:
        return NodeInventoryStatus.of((await self.kube.get(NODE_INVENTORIES, name)).get("status") or {})

    async def says(self, name: str, reason: str) -> None:
        """The condition PolicyFollowed of the node's inventory has this reason."""

        async def true() -> bool:
            return [condition.reason for condition in (await self.status(name)).conditions] == [reason]

        await self.until(true)
        await self.rests()

    async def question(self, name: str) -> str | None:
        metadata = (await self.kube.get(NODE_INVENTORIES, name))["metadata"]
        annotations: dict[str, str] = metadata.get("annotations") or {}
        return annotations.get(confirmation_annotation(GPU_DRIVER))

    async def slices(self) -> list[JsonObject]:
        return (await self.kube.list(RESOURCE_SLICES, field_selector=f"spec.driver={GPU_DRIVER}")).items

    async def published(self) -> dict[str, list[str]]:
        return {
            item["spec"]["pool"]["name"]: [device["name"] for device in item["spec"].get("devices") or ()]
            for item in await self.slices()
        }

    async def wipe(self, name: str) -> None:
        """What kubelet does."""
        await self.kube.delete_collection(RESOURCE_SLICES, field_selector=f"spec.nodeName={name}")

    async def until(self, true: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if await true():
                    return
                await asyncio.sleep(0.01)

    async def publishes(self, **wanted: Sequence[str]) -> None:
        """Exactly these devices by node, `_` for `-`; and then nothing more is written."""
        expected = {name.replace("_", "-"): list(devices) for name, devices in wanted.items()}

        async def true() -> bool:
            return await self.published() == expected

        try:
            await self.until(true)
        except TimeoutError:
            assert await self.published() == expected
        await self.rests()
        assert await self.published() == expected

    async def rests(self) -> None:
        await self.until(lambda: at_rest(self.publisher))
        # What the watch still brings must not lead to anything either.
        await asyncio.sleep(0.05)
        await self.until(lambda: at_rest(self.publisher))

    def writes(self) -> list[str]:
        """Verbs of the writes since the last call."""
        verbs = [verb for _, verb in self.narrator.writes]
        self.narrator.writes.clear()
        return verbs


async def at_rest(publisher: PoolPublisher) -> bool:
    return publisher.ready and publisher.figures().pending == 0


def now(plus_s: float = 0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=plus_s)).isoformat(timespec="microseconds").replace("+00:00", "Z")


LONG_AGO = now(-3600)
A, B = gpu(0), gpu(1)


class FixedPolicy:
    """The same rules for all nodes."""

    def __init__(self, policy: PublishingPolicy) -> None:
        self._policy = policy
        self.labels_matter = policy.asks_for_labels
        self.mirrors: tuple[Mirror[Any], ...] = ()

    async def decide(
        self, facts: NodeInventorySpec, now: NodePolicy | None, labels: Mapping[str, str]
    ) -> Decision | None:
        return Decision(self._policy)


def fixed(policy: PublishingPolicy = PublishingPolicy.EVERYTHING) -> Callable[[Watches, Changed], PolicySource]:
    return lambda kube, changed: FixedPolicy(policy)


@asynccontextmanager
async def publishing(
    scene: Scene,
    *,
    client: type[Kube] = Kube,
    policy: PublishingPolicy = PublishingPolicy.EVERYTHING,
    policies: Callable[[Watches, Changed], PolicySource] | None = None,
    node_name: str | None = None,
    ask_after_s: float = 0.0,
    probe_every_s: float = 3600.0,
    list_attributes: bool = False,
    tracer: Tracer = OFF,
) -> AsyncIterator[None]:
    def described(pool: str, devices: Sequence[Device]) -> None:
        scene.described.append((pool, [device.name for device in devices]))

    async with client(Endpoint(server=scene.server.url), traced=tracer.request) as kube:
        scene.publisher = PoolPublisher(
            Watches(kube),
            Publication(
                driver=GPU_DRIVER,
                policies=policies or fixed(policy),
                node_name=node_name,
                list_attributes=list_attributes,
            ),
            PublishingListeners(narrator=scene.narrator, tracer=tracer, tell=scene.events.append, described=described),
            Pace(
                ask_after_s=ask_after_s,
                probe_every_s=probe_every_s,
                retry=lambda: Pauses(scene.pauses),
            ),
        )
        async with background(scene.publisher.run()):
            yield


@asynccontextmanager
async def settled(scene: Scene, *gpus: GpuFacts, **options: Any) -> AsyncIterator[None]:
    """As `publishing`: `node-a` reports these GPUs, and its pool is as it should be."""
    await scene.node("node-a", *gpus)
    async with publishing(scene, **options):
        await scene.publishes(node_a=[facts.name for facts in gpus])
        yield
