"""What surrounds the controller when ComputeDomains are measured: scheduler, DaemonSet controller, kubelets, daemons.

All answer at once, and count what is written.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from _many_nodes import answer, inventory_object, question

from dra_driver.api.inventory import (
    FabricFacts,
    GpuFacts,
    ImexFacts,
    NodeInventorySpec,
    summary_of,
)
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    DAEMON_SETS,
    NODE_INVENTORIES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from dra_driver.domains.names import DOMAIN_LABEL
from dra_driver.errors import AlreadyExists, NotFound
from dra_driver.kube.client import Kube
from dra_driver.kube.endpoint import Endpoint
from dra_driver.kube.watch import Mirror, MirrorChange
from dra_driver.names import COMPUTE_DOMAIN_DRIVER

OURS, TEAM = "gpu-dra-driver", "team"
RACK = "11111111-2222-4333-8444-{rack:012d}"
TRAYS = 18
"""Of a rack, which is one clique."""
AT_ONCE = 32


class CountingKube(Kube):
    """Counts writes by what is written: `computedomains/status`."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.writes: Counter[str] = Counter()

    async def _request(self, method: str, resource: Resource, **options: Any) -> JsonObject:
        if method != "GET":
            subresource = options.get("subresource")
            self.writes[f"{resource.plural}/{subresource}" if subresource else resource.plural] += 1
        return await super()._request(method, resource, **options)


def name_of(node: int) -> str:
    return f"tray-{node:04d}"


def inventory(node: int, name: str, uid: str) -> JsonObject:
    facts = {"state": "Completed", "clusterUUID": RACK.format(rack=node // TRAYS), "cliqueID": 0}
    gpu = GpuFacts(
        uuid=f"GPU-{node:08x}-1111-4222-8333-444455556666",
        name=f"gpu-{node:08x}",
        minor=0,
        pci_bus_id="0008:01:00.0",
        product_name="NVIDIA GB200",
        brand="Nvidia",
        architecture="Blackwell",
        cuda_compute_capability="10.0",
        memory_bytes=189471 * 2**20,
        addressing_mode="ATS",
        fabric=FabricFacts.model_validate(facts),
    )
    spec = NodeInventorySpec(
        node_name=name,
        boot_id="1",
        gpus=[gpu],
        imex=ImexFacts(channels=2048, program=True),
        summary=summary_of(None, [gpu], []),
    )
    return inventory_object(uid, spec, COMPUTE_DOMAIN_DRIVER)


class Surroundings:
    """Nodes, users, scheduler, DaemonSet controller, kubelets and daemons; each acts on what a watch shows."""

    def __init__(self, kube: CountingKube) -> None:
        self.kube = kube
        self._changed = asyncio.Event()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._acts: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._addresses = 0
        self._claims = 0
        self.last_ready = 0.0
        """When the daemon became ready that did so last, on the monotonic clock."""
        self.domains = Mirror(kube, COMPUTE_DOMAINS, keep=dict, on_change=self._saw_domain)
        self.templates = Mirror(kube, RESOURCE_CLAIM_TEMPLATES, keep=dict, on_change=self._wake)
        self.slices = Mirror(kube, RESOURCE_SLICES, keep=_domain_of_slice, on_change=self._wake)
        self._sets = Mirror(kube, DAEMON_SETS, keep=domain_label, on_change=self._saw_set)
        self._nodes = Mirror(kube, NODES, keep=domain_label, on_change=self._saw_node)
        self._pods = Mirror(kube, PODS, keep=dict, namespace=OURS, on_change=self._saw_pod)
        self._questions = Mirror(
            kube,
            NODE_INVENTORIES,
            keep=lambda obj: question(obj, COMPUTE_DOMAIN_DRIVER),
            on_change=self._saw_question,
        )

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        mirrors: tuple[Mirror[Any], ...] = (
            *(self.domains, self.templates, self.slices, self._sets, self._nodes, self._pods, self._questions),
        )
        tasks = [asyncio.create_task(mirror.run()) for mirror in mirrors]
        try:
            for mirror in mirrors:
                await mirror.synced.wait()
            yield
        finally:
            for task in (*tasks, *self._acts.values()):
                task.cancel()
            await asyncio.gather(*tasks, *self._acts.values(), return_exceptions=True)

    async def until(self, true: Callable[[], bool], what: str, timeout_s: float = 600.0) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not true():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            statuses = [obj.get("status", {}).get("conditions") for obj in self.domains.objects.values()]
            raise RuntimeError(f"never {what}: {statuses[:1]}") from None

    # -- users, and the scheduler

    async def node(self, index: int, name: str | None = None) -> None:
        name = name or name_of(index)
        async with self._at_once:
            node = await self.kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
            await self.kube.create(NODE_INVENTORIES, inventory(index, name, node["metadata"]["uid"]))

    async def end_node(self, name: str) -> None:
        await self.kube.delete(NODE_INVENTORIES, name)
        await self.kube.delete(NODES, name)

    async def domain(self, name: str) -> None:
        spec = {"channel": {"resourceClaimTemplate": {"name": f"{name}-channel"}}}
        metadata = {"name": name, "namespace": TEAM}
        obj = {"apiVersion": COMPUTE_DOMAINS.api_version, "kind": COMPUTE_DOMAINS.kind}
        async with self._at_once:
            await self.kube.create(COMPUTE_DOMAINS, {**obj, "metadata": metadata, "spec": spec})

    async def use(self, domain: str, node: str) -> str:
        """A pod of the domain is given the node; answers the name of its claim."""
        template = self.templates.objects[TEAM, f"{domain}-channel"]
        self._claims += 1
        name, spec = f"claim-{self._claims}", template["spec"]["spec"]
        claim = {
            "apiVersion": RESOURCE_CLAIMS.api_version,
            "kind": RESOURCE_CLAIMS.kind,
            "metadata": {"name": name, "namespace": TEAM},
            "spec": spec,
        }
        result = {"request": "channel", "driver": COMPUTE_DOMAIN_DRIVER, "pool": node, "device": "channel-0"}
        config = [{"source": "FromClaim", **device_config} for device_config in spec["devices"]["config"]]
        async with self._at_once:
            stored = await self.kube.create(RESOURCE_CLAIMS, claim)
            stored["status"] = {"allocation": {"devices": {"results": [result], "config": config}}}
            await self.kube.replace(RESOURCE_CLAIMS, stored, subresource="status")
        return name

    async def release(self, claim: str) -> None:
        async with self._at_once:
            await self.kube.delete(RESOURCE_CLAIMS, claim, namespace=TEAM)

    def ready(self, domain: str) -> int | None:
        """Nodes of a domain that is ready; None when it is not."""
        status = self.domains.objects.get((TEAM, domain), {}).get("status") or {}
        return len(status.get("nodes") or ()) if status.get("status") == "Ready" else None

    def addresses(self, domain: str) -> dict[str, str]:
        status = self.domains.objects[TEAM, domain].get("status") or {}
        return {entry["name"]: entry["ipAddress"] for entry in status.get("nodes") or ()}

    def offered_as(self, domain: str) -> int:
        """Nodes whose devices say that they are in the domain."""
        uid = self.domains.objects[TEAM, domain]["metadata"]["uid"]
        return sum(label == uid for label in self.slices.objects.values())

    async def lose_pod(self, node: str) -> None:
        """The daemon of a node dies with its pod; the DaemonSet makes another."""
        await self.kube.delete(PODS, f"daemon-{node}", namespace=OURS, grace_period_s=0)

    # -- DaemonSets, kubelets and daemons, one task for each node that something happened to

    def _wake(self, change: MirrorChange[Any]) -> None:
        self._changed.set()

    def _saw_set(self, change: MirrorChange[str | None]) -> None:
        self._changed.set()
        labels = {value for value in (change.before, change.after) if value is not None}
        for (_, node), label in self._nodes.objects.items():
            if label in labels:
                self._look_at(node)

    def _saw_node(self, change: MirrorChange[str | None]) -> None:
        self._changed.set()
        self._look_at(change.key[1])

    def _saw_pod(self, change: MirrorChange[JsonObject]) -> None:
        self._changed.set()
        self._look_at(change.key[1].removeprefix("daemon-"))

    def _saw_domain(self, change: MirrorChange[JsonObject]) -> None:
        self._changed.set()
        before, after = (_nodes_of(obj) for obj in (change.before, change.after))
        for node, address in after.items():
            if before.get(node) != address:
                self._look_at(node)

    def _saw_question(self, change: MirrorChange[str | None]) -> None:
        if change.after is not None:
            self._look_at(f"?{change.key[1]}")

    def _look_at(self, node: str) -> None:
        if node in self._acts:
            self._again.add(node)
            return
        task = self._acts[node] = asyncio.create_task(self._act(node))
        task.add_done_callback(lambda _: self._looked_at(node))

    def _looked_at(self, node: str) -> None:
        self._acts.pop(node, None)
        if node in self._again:
            self._again.discard(node)
            self._look_at(node)

    async def _act(self, node: str) -> None:
        async with self._at_once:
            try:
                await (answer(self.kube, node[1:], COMPUTE_DOMAIN_DRIVER) if node.startswith("?") else self._tend(node))
            except (AlreadyExists, NotFound):
                return  # the watch is behind, and tells soon

    async def _tend(self, node: str) -> None:
        uid = self._nodes.objects.get(("", node))
        wanted = uid is not None and uid in self._sets.objects.values()
        pod = self._pods.objects.get((OURS, f"daemon-{node}"))
        if pod is None:
            if wanted:
                await self._start(node, str(uid))
        elif not wanted or pod["metadata"]["labels"][DOMAIN_LABEL] != uid:
            await self.kube.delete(PODS, f"daemon-{node}", namespace=OURS, grace_period_s=0)
        elif not (pod.get("status") or {}).get("podIP"):
            self._addresses += 1
            address = f"10.1.{self._addresses // 250}.{self._addresses % 250}"
            await self._patch(node, {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]})
        elif not pod["status"].get("conditions") and self._address_in_status(str(uid), node) == pod["status"]["podIP"]:
            await self._patch(node, {"conditions": [{"type": "Ready", "status": "True"}]})
            self.last_ready = time.monotonic()

    async def _start(self, node: str, uid: str) -> None:
        metadata = {"name": f"daemon-{node}", "namespace": OURS, "labels": {DOMAIN_LABEL: uid}}
        spec = {"nodeName": node, "containers": [{"name": "imex-daemon", "image": "driver"}]}
        await self.kube.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    async def _patch(self, node: str, status: JsonObject) -> None:
        await self.kube.merge_patch(PODS, f"daemon-{node}", {"status": status}, namespace=OURS, subresource="status")

    def _address_in_status(self, uid: str, node: str) -> str | None:
        """The address under which the peers find the node's daemon."""
        for domain in self.domains.objects.values():
            if domain["metadata"]["uid"] == uid:
                return _nodes_of(domain).get(node)
        return None


def domain_label(obj: JsonObject) -> str | None:
    return (obj["metadata"].get("labels") or {}).get(DOMAIN_LABEL)


def _domain_of_slice(obj: JsonObject) -> str | None:
    return next(
        (
            device["attributes"]["domain"]["string"]
            for device in obj["spec"].get("devices", ())
            if "domain" in device["attributes"]
        ),
        None,
    )


def _nodes_of(domain: JsonObject | None) -> dict[str, str]:
    status = (domain or {}).get("status") or {}
    return {entry["name"]: entry["ipAddress"] for entry in status.get("nodes") or ()}
