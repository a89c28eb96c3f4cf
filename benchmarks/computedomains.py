"""ComputeDomains: time and API writes until a domain of N nodes is ready, after one pod's loss, after a node's end.

    python benchmarks/computedomains.py [--sizes 2,18,64,256] [--many 300x2] [-o json]

The API server is the simulated one in a process of its own. The controller's keeper of domains and the publisher of
their devices run here, as in the controller, and so do stand-ins for what surrounds them: a scheduler that allocates
claims, the DaemonSet controller, kubelets that give pods addresses, and daemons, which are ready once the domain's
status names their node and address. Stand-ins answer at once, so the time is what our part costs, and the server.

Writes are counted by who does them. Of the controller: objects, labels, statuses, slices (`domain` on the devices of a
node that is in one). Of all: claims and their allocation, pods, their addresses and readiness as well.
"""

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
import yaml
from prometheus_client import CollectorRegistry

from controller.computedomains.devices import PublishedDomainDevices
from controller.computedomains.keeper import DomainKeeper
from dra_driver.api.crd import DEFINITIONS
from dra_driver.api.inventory import (
    FabricFacts,
    GpuFacts,
    ImexFacts,
    NodeInventorySpec,
    Registration,
    confirmation_annotation,
    summary_of,
)
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    CRDS,
    DAEMON_SETS,
    NAMESPACES,
    NODE_INVENTORIES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from dra_driver.api.policy import PublishingPolicy
from dra_driver.domains.names import DOMAIN_LABEL
from dra_driver.domains.objects import DaemonSettings
from dra_driver.errors import AlreadyExists, NotFound
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.kube.endpoint import Endpoint
from dra_driver.kube.watch import Mirror, MirrorChange
from dra_driver.names import COMPUTE_DOMAIN_DRIVER
from dra_driver.publish.metrics import PublishingCounters
from dra_driver.runtime.tracing import OFF

OURS, TEAM = "gpu-dra-driver", "team"
RACK = "11111111-2222-4333-8444-{rack:012d}"
TRAYS = 18
"""Of a rack, which is one clique."""
AT_ONCE = 32


@dataclass(frozen=True)
class Figures:
    """Writes are `controller` and `all`; of `controller`, by what is written."""

    nodes: int
    domains: int
    ready_s: float
    """From the first claim that is allocated to the last domain that is ready; its objects are made before."""
    ready_writes: Mapping[str, int]
    pod_lost_s: float | None
    pod_lost_writes: Mapping[str, int]
    node_replaced_s: float | None
    node_replaced_writes: Mapping[str, int]
    left_behind: int
    """Objects and labels after all domains were deleted."""


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
        registrations=[Registration(driver=COMPUTE_DOMAIN_DRIVER, time=_now())],
        summary=summary_of(None, [gpu], []),
    )
    return {
        "apiVersion": NODE_INVENTORIES.api_version,
        "kind": NODE_INVENTORIES.kind,
        "metadata": {
            "name": name,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}],
        },
        "spec": spec.to_wire(),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


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
        self.domains = Mirror(kube, COMPUTE_DOMAINS, keep=dict, on_change=self._saw_domain)
        self.templates = Mirror(kube, RESOURCE_CLAIM_TEMPLATES, keep=dict, on_change=self._wake)
        self.slices = Mirror(kube, RESOURCE_SLICES, keep=_domain_of_slice, on_change=self._wake)
        self._sets = Mirror(kube, DAEMON_SETS, keep=_label, on_change=self._saw_set)
        self._nodes = Mirror(kube, NODES, keep=_label, on_change=self._saw_node)
        self._pods = Mirror(kube, PODS, keep=dict, namespace=OURS, on_change=self._saw_pod)
        self._questions = Mirror(kube, NODE_INVENTORIES, keep=_question, on_change=self._saw_question)

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
            statuses = [one.get("status", {}).get("conditions") for one in self.domains.objects.values()]
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
        config = [{"source": "FromClaim", **one} for one in spec["devices"]["config"]]
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
        return {one["name"]: one["ipAddress"] for one in status.get("nodes") or ()}

    def offered_as(self, domain: str) -> int:
        """Nodes whose devices say that they are in the domain."""
        uid = self.domains.objects[TEAM, domain]["metadata"]["uid"]
        return sum(one == uid for one in self.slices.objects.values())

    async def lose_pod(self, node: str) -> None:
        """The daemon of a node dies with its pod; the DaemonSet makes another."""
        await self.kube.delete(PODS, f"daemon-{node}", namespace=OURS, grace_period_s=0)

    # -- DaemonSets, kubelets and daemons, one task for each node that something happened to

    def _wake(self, change: MirrorChange[Any]) -> None:
        self._changed.set()

    def _saw_set(self, change: MirrorChange[str | None]) -> None:
        self._changed.set()
        labels = {one for one in (change.before, change.after) if one is not None}
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
        before, after = (_nodes_of(one) for one in (change.before, change.after))
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
                await (self._answer(node[1:]) if node.startswith("?") else self._tend(node))
            except (AlreadyExists, NotFound):
                return  # the watch is behind, and tells soon

    async def _answer(self, node: str) -> None:
        registration = {"driver": COMPUTE_DOMAIN_DRIVER, "time": _now()}
        await self.kube.merge_patch(NODE_INVENTORIES, node, {"spec": {"registrations": [registration]}})

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
        elif not pod["status"].get("conditions") and self._found(str(uid), node) == pod["status"]["podIP"]:
            await self._patch(node, {"conditions": [{"type": "Ready", "status": "True"}]})

    async def _start(self, node: str, uid: str) -> None:
        metadata = {"name": f"daemon-{node}", "namespace": OURS, "labels": {DOMAIN_LABEL: uid}}
        spec = {"nodeName": node, "containers": [{"name": "imex-daemon", "image": "driver"}]}
        await self.kube.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    async def _patch(self, node: str, status: JsonObject) -> None:
        await self.kube.merge_patch(PODS, f"daemon-{node}", {"status": status}, namespace=OURS, subresource="status")

    def _found(self, uid: str, node: str) -> str | None:
        """The address under which the peers find the node's daemon."""
        for domain in self.domains.objects.values():
            if domain["metadata"]["uid"] == uid:
                return _nodes_of(domain).get(node)
        return None


def _label(obj: JsonObject) -> str | None:
    return (obj["metadata"].get("labels") or {}).get(DOMAIN_LABEL)


def _domain_of_slice(obj: JsonObject) -> str | None:
    return next(
        (
            one["attributes"]["domain"]["string"]
            for one in obj["spec"].get("devices", ())
            if "domain" in one["attributes"]
        ),
        None,
    )


def _question(obj: JsonObject) -> str | None:
    """Of the publisher, whether the plugin lives."""
    asked = (obj["metadata"].get("annotations") or {}).get(confirmation_annotation(COMPUTE_DOMAIN_DRIVER))
    return asked if any(one["time"] == asked for one in obj["spec"].get("registrations") or ()) else None


def _nodes_of(domain: JsonObject | None) -> dict[str, str]:
    status = (domain or {}).get("status") or {}
    return {one["name"]: one["ipAddress"] for one in status.get("nodes") or ()}


@asynccontextmanager
async def api_server(folder: Path) -> AsyncIterator[Path]:
    """A fresh simulated API server in its own process; answers its kubeconfig."""
    kubeconfig = folder / "kubeconfig"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dra_driver.simulation.apiserver", "--kubeconfig", str(kubeconfig)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield kubeconfig
    finally:
        process.terminate()
        await process.wait()


class Bench:
    """A cluster with nodes, and the controller's part at work."""

    def __init__(self, around: Surroundings, controller: CountingKube) -> None:
        self.around = around
        self._controller = controller

    @classmethod
    @asynccontextmanager
    async def running(cls, nodes: int) -> AsyncIterator["Bench"]:
        async with cls._connected() as (outside, inside):
            for definition in DEFINITIONS:
                await outside.create(CRDS, yaml.safe_load(definition.file.read_text()))
            await _served(outside)
            for name in (TEAM, OURS):
                await outside.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            around = Surroundings(outside)
            await _all(around.node(index) for index in range(nodes))
            keeper = DomainKeeper(inside, DaemonSettings(namespace=OURS, image="driver", max_nodes=TRAYS))
            counters = PublishingCounters(CollectorRegistry())
            policy = PublishingPolicy.EVERYTHING
            devices = PublishedDomainDevices(inside, policy, workers=4, counters=counters, tracer=OFF)
            async with around.watching():
                tasks = [
                    asyncio.create_task(keeper.run()),
                    asyncio.create_task(devices.run()),
                ]
                try:
                    await around.until(lambda: len(around.slices.objects) == nodes, "published")
                    yield cls(around, inside)
                finally:
                    for task in tasks:
                        task.cancel()
                    for ended in await asyncio.gather(*tasks, return_exceptions=True):
                        if not isinstance(ended, asyncio.CancelledError):
                            raise RuntimeError("the controller's part ended") from ended

    @classmethod
    @asynccontextmanager
    async def _connected(cls) -> AsyncIterator[tuple[CountingKube, CountingKube]]:
        with tempfile.TemporaryDirectory() as place:
            async with api_server(Path(place)) as kubeconfig:
                endpoint = endpoint_from(kubeconfig)
                async with CountingKube(endpoint) as outside, CountingKube(endpoint) as inside:
                    yield outside, inside

    @asynccontextmanager
    async def measured(self, found: dict[str, int]) -> AsyncIterator[Callable[[], float]]:
        """The writes of the block, and of a second after it, for what is written late."""
        before, others, started = (
            Counter(self._controller.writes),
            sum(self.around.kube.writes.values()),
            time.monotonic(),
        )
        yield lambda: time.monotonic() - started
        await asyncio.sleep(2.0)
        own = Counter(self._controller.writes)
        own.subtract(before)
        found["controller"] = sum(own.values())
        found["all"] = found["controller"] + sum(self.around.kube.writes.values()) - others
        found.update({name: count for name, count in sorted(own.items()) if count})

    async def left(self) -> int:
        kube = self.around.kube
        found = 0
        for resource in (COMPUTE_DOMAINS, DAEMON_SETS, RESOURCE_CLAIM_TEMPLATES, PODS):
            found += len((await kube.list(resource)).items)
        return found + sum(_label(node) is not None for node in (await kube.list(NODES)).items)


async def _served(kube: Kube) -> None:
    while True:
        try:
            await kube.list(COMPUTE_DOMAINS)
            await kube.list(NODE_INVENTORIES)
        except NotFound:
            await asyncio.sleep(0.05)
        else:
            return


async def _all[T](work: Iterable[Any]) -> list[T]:
    return list(await asyncio.gather(*work))


async def measure(nodes: int, domains: int) -> Figures:
    """`domains` of `nodes` nodes each, at the same time; loss and replacement are measured on the first of them."""
    names = [f"domain-{number}" for number in range(domains)]
    ready_writes: dict[str, int] = {}
    async with Bench.running(nodes * domains) as bench:
        around = bench.around
        async with bench.measured(ready_writes) as clock:
            await _all(around.domain(name) for name in names)
            await around.until(
                lambda: all((TEAM, f"{name}-channel") in around.templates.objects for name in names), "made"
            )
            begun = clock()
            places = [
                (name, name_of(number * nodes + tray)) for number, name in enumerate(names) for tray in range(nodes)
            ]
            claims = dict(zip(places, await _all(around.use(*place) for place in places), strict=True))
            await around.until(lambda: all(around.ready(name) == nodes for name in names), "ready")
            ready_s = clock() - begun
            await around.until(lambda: all(around.offered_as(name) == nodes for name in names), "published")
        lost_s, lost = await _lose_a_pod(bench, names[0])
        replaced_s, replaced = await _replace_a_node(bench, names[0], nodes * domains, claims)
        await _all(around.kube.delete(COMPUTE_DOMAINS, name, namespace=TEAM) for name in names)
        await _all(around.release(claim) for claim in claims.values())
        await around.until(lambda: not around.domains.objects, "taken down")
        left = await bench.left()
    return Figures(
        nodes, domains, round(ready_s, 2), ready_writes, round(lost_s, 2), lost, round(replaced_s, 2), replaced, left
    )


async def _lose_a_pod(bench: Bench, domain: str) -> tuple[float, dict[str, int]]:
    around, node, writes = bench.around, name_of(0), dict[str, int]()
    async with bench.measured(writes) as clock:
        before = around.addresses(domain)[node]
        await around.lose_pod(node)

        def back() -> bool:
            now = around.addresses(domain).get(node)
            return around.ready(domain) is not None and now not in ("", before)

        await around.until(back, "back")
        taken_s = clock()
    return taken_s, writes


async def _replace_a_node(
    bench: Bench, domain: str, index: int, claims: dict[tuple[str, str], str]
) -> tuple[float, dict[str, int]]:
    """The node is gone with its pods, and a new tray of the same rack takes its place."""
    around, old, new, writes = bench.around, name_of(0), name_of(index), dict[str, int]()
    async with bench.measured(writes) as clock:
        await around.end_node(old)
        await around.release(claims.pop((domain, old)))
        await around.node(0, new)
        claims[domain, new] = await around.use(domain, new)

        def replaced() -> bool:
            nodes = around.addresses(domain)
            return around.ready(domain) is not None and new in nodes and old not in nodes

        await around.until(replaced, "whole again")
        taken_s = clock()
    return taken_s, writes


HEADINGS = ("nodes", "domains", "ready s", "writes", "of all", "a node", "pod lost", "writes", "replaced", "writes")


def row(figures: Figures) -> tuple[object, ...]:
    nodes = figures.nodes * figures.domains
    return (
        *(figures.nodes, figures.domains, figures.ready_s),
        *(figures.ready_writes["controller"], figures.ready_writes["all"]),
        round(figures.ready_writes["controller"] / nodes, 2),
        *(figures.pod_lost_s, figures.pod_lost_writes["controller"]),
        *(figures.node_replaced_s, figures.node_replaced_writes["controller"]),
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="2,18,64,256", help="nodes of one domain")
    parser.add_argument("--many", default="200x2", help="DOMAINSxNODES at the same time; empty: none")
    parser.add_argument("-o", choices=("table", "json"), default="table")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    runs = [(int(size), 1) for size in options.sizes.split(",") if size]
    if options.many:
        domains, _, nodes = options.many.partition("x")
        runs.append((int(nodes), int(domains)))
    found = []
    if options.o == "table":
        print("  ".join(f"{heading:>8}" for heading in HEADINGS))
    for nodes, domains in runs:
        figures = await measure(nodes, domains)
        found.append(figures)
        if options.o == "table":
            print("  ".join(f"{value!s:>8}" for value in row(figures)), flush=True)
    if options.o == "json":
        print(json.dumps([asdict(one) for one in found], indent=2))


if __name__ == "__main__":
    asyncio.run(main())
