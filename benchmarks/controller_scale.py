"""The controller with many nodes: time to publish all, memory, writes when one GPU changes, writes at rest.

    [KUBEBUILDER_ASSETS=FOLDER] python benchmarks/controller_scale.py [--nodes 1000] [--rest-s 60] [-o json]

The API server is a real one, from the folder's programs, or the simulated one; the controller is the real program.
This process plays the nodes: it writes their inventories, with eight H100s each, and answers like a node plugin when
the controller asks whether a plugin lives. Two ways to begin are measured: nodes that join while the controller runs (a
cluster that grows, or a controller that was there first), and a controller that starts into a cluster where plugins
have been running for long, where it has to ask each of them first.
"""

import argparse
import asyncio
import json
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import yaml
from _api_server import api_server, its_name

from docs.from_code.crds import DEFINITIONS
from dra_driver.api.inventory import (
    DriverFacts,
    FabricFacts,
    GpuFacts,
    MigFacts,
    NodeInventorySpec,
    NvlinkFacts,
    Registration,
    confirmation_annotation,
    summary_of,
)
from dra_driver.api.meta import (
    CRDS,
    GPU_POLICIES,
    LEASES,
    NODE_INVENTORIES,
    NODES,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from dra_driver.errors import NotFound
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.kube.watch import Mirror, MirrorChange
from dra_driver.names import GPU_DRIVER, gpu_device_names

GPUS = 8
AT_ONCE = 32


@dataclass(frozen=True)
class Figures:
    api_server: str
    nodes: int
    gpus: int
    publish_while_nodes_join_s: float
    """From the first inventory that is written to the last slice that is seen; includes writing the inventories."""
    inventories_written_s: float
    controller_cpu_s: float
    """What the controller itself computed for that; the rest of the time is the API server's and the nodes'."""
    publish_after_start_s: float
    """From the start of the process to the last slice, every plugin being asked whether it lives."""
    rss_idle_mib: float
    """The controller before there is any node."""
    rss_mib: float
    rss_peak_mib: float
    writes_for_one_gpu: int
    one_gpu_visible_ms: float
    policy_for_one_node_ms: float
    """From a GpuPolicy for one node to its slice."""
    policy_for_all_nodes_s: float
    """From a GpuPolicy for all nodes to the last slice; each node needs two writes."""
    policy_for_all_nodes_cpu_s: float
    """What the controller computed for that."""
    bare_writes_s: float
    """The same two writes for each node, of the same size, by a client that decides nothing."""
    restart_slice_writes: int
    """Slice writes of a controller that starts where everything is published already."""
    slice_writes_at_rest_per_hour: float
    lease_writes_at_rest_per_minute: float
    cpu_at_rest_percent: float


def facts(node: int, power_limit_watts: int = 700) -> list[GpuFacts]:
    uuids = [f"GPU-{node:04x}{number:04x}-1111-4222-8333-{node:06x}{number:06x}" for number in range(GPUS)]
    names = gpu_device_names(uuids)
    return [
        GpuFacts(
            uuid=uuid,
            name=names[uuid],
            minor=number,
            pci_bus_id=f"0000:{0x10 + number:02x}:00.0",
            product_name="NVIDIA H100 80GB HBM3",
            brand="Nvidia",
            architecture="Hopper",
            cuda_compute_capability="9.0",
            memory_bytes=81559 * 2**20,
            addressing_mode="HMM",
            numa_node=number // 4,
            pcie_root=f"pci0000:{0x0F + number:02x}",
            fabric=FabricFacts(state="Completed"),
            nvlink=NvlinkFacts(links=18, version="4.0", switched=True, peers=sorted(set(uuids) - {uuid})),
            mig=MigFacts(enabled=False, pending=False),
            ecc_enabled=True,
            multiprocessors=132,
            power_limit_watts=power_limit_watts if number == 0 else 700,
            pcie_generation=5,
            pcie_width=16,
            serial=f"16543{node:04d}{number:04d}",
            vbios_version="96.00.89.00.01",
        )
        for number, uuid in enumerate(uuids)
    ]


def name_of(node: int) -> str:
    return f"node-{node:04d}"


def inventory(node: int, uid: str, registered: str) -> JsonObject:
    driver = DriverFacts(version="580.126.09", cuda_version="13.0", root="/")
    gpus = facts(node)
    spec = NodeInventorySpec(
        node_name=name_of(node),
        boot_id="5c1d2a8e-0000-4000-8000-000000000000",
        driver=driver,
        gpus=gpus,
        registrations=[Registration(driver=GPU_DRIVER, time=registered)],
        summary=summary_of(driver, gpus, []),
    )
    owner = {"apiVersion": "v1", "kind": "Node", "name": name_of(node), "uid": uid}
    return {
        "apiVersion": NODE_INVENTORIES.api_version,
        "kind": NODE_INVENTORIES.kind,
        "metadata": {"name": name_of(node), "ownerReferences": [owner]},
        "spec": spec.to_wire(),
    }


def wire_time(ago_s: float = 0.0) -> str:
    when = datetime.now(UTC) - timedelta(seconds=ago_s)
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")


class Nodes:
    """All nodes at once: their inventories, the answers of their plugins, and what they see of their slices."""

    def __init__(self, kube: Kube, count: int) -> None:
        self.kube = kube
        self.count = count
        self.slices = Mirror(kube, RESOURCE_SLICES, keep=_version, on_change=self._saw_slice)
        self._inventories = Mirror(kube, NODE_INVENTORIES, keep=_question, on_change=self._saw_question)
        self._changed = asyncio.Event()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._uids: dict[int, str] = {}
        self._answers: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(mirror.run()) for mirror in (self.slices, self._inventories)]
        try:
            yield
        finally:
            for task in (*tasks, *self._answers):
                task.cancel()
            await asyncio.gather(*tasks, *self._answers, return_exceptions=True)

    async def join(self) -> None:
        async with asyncio.TaskGroup() as group:
            for node in range(self.count):
                group.create_task(self._join(node))

    async def report(self, registered_ago_s: float = 0.0) -> float:
        """Writes all inventories; answers how long that took."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for node in range(self.count):
                group.create_task(self._report(node, registered_ago_s))
        return time.monotonic() - started

    async def change_one_gpu(self, node: int, watts: int) -> None:
        gpus = [gpu.to_wire() for gpu in facts(node, watts)]
        await self.kube.merge_patch(NODE_INVENTORIES, name_of(node), {"spec": {"gpus": gpus}})

    async def until_slices(self, true: Callable[[], bool], timeout_s: float = 300.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    async def _join(self, node: int) -> None:
        async with self._at_once:
            obj = await self.kube.create(
                NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name_of(node)}}
            )
            self._uids[node] = obj["metadata"]["uid"]

    async def _report(self, node: int, registered_ago_s: float) -> None:
        async with self._at_once:
            await self.kube.create(NODE_INVENTORIES, inventory(node, self._uids[node], wire_time(registered_ago_s)))

    async def _answer(self, name: str) -> None:
        async with self._at_once:
            registration = {"driver": GPU_DRIVER, "time": wire_time()}
            await self.kube.merge_patch(NODE_INVENTORIES, name, {"spec": {"registrations": [registration]}})

    def _saw_slice(self, change: MirrorChange[str]) -> None:
        self._changed.set()

    def _saw_question(self, change: MirrorChange[bool]) -> None:
        if change.after:
            task = asyncio.create_task(self._answer(change.key[1]))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)


def _version(obj: JsonObject) -> str:
    version: str = obj["metadata"]["resourceVersion"]
    return version


def _question(obj: JsonObject) -> bool:
    asked = (obj["metadata"].get("annotations") or {}).get(confirmation_annotation(GPU_DRIVER))
    return any(entry["time"] == asked for entry in obj["spec"].get("registrations") or ())


class Controller:
    """The real program."""

    def __init__(self, process: asyncio.subprocess.Process, endpoint: str) -> None:
        self.process = process
        self._metrics = f"http://{endpoint}/metrics"

    @classmethod
    @asynccontextmanager
    async def running(cls, kubeconfig: Path, log: Path) -> AsyncIterator["Controller"]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "controller.main", "--kubeconfig", str(kubeconfig)),
                *("--http-endpoint", endpoint, "--log-level", "warning"),
                stderr=file,
            )
        async with asyncio.TaskGroup() as group:
            guard = group.create_task(_must_live(process, log))
            try:
                yield cls(process, endpoint)
            finally:
                guard.cancel()
                if process.returncode is None:
                    process.send_signal(signal.SIGTERM)
                    await process.wait()

    def memory_mib(self, field: str = "VmRSS") -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return round(int(line.split()[1]) / 1024, 1)
        raise ValueError(field)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    async def writes(self) -> int:
        """Slice writes so far."""
        async with aiohttp.ClientSession() as session, session.get(self._metrics) as response:
            lines = (await response.text()).splitlines()
        return int(sum(float(line.split()[1]) for line in lines if line.startswith("gpu_dra_slice_writes_total")))

    async def until_ready(self) -> None:
        """Leading, and the cluster read."""
        async with asyncio.timeout(60), aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(self._metrics) as response:
                        if "gpu_dra_publishing 1.0" in await response.text():
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.05)


async def _must_live(process: asyncio.subprocess.Process, log: Path) -> None:
    status = await process.wait()
    raise RuntimeError(f"the controller ended with status {status}:\n{log.read_text()[-2000:]}")


@asynccontextmanager
async def cluster(count: int) -> AsyncIterator[tuple[Nodes, Path, Path]]:
    """Nodes in a cluster without a controller; its kubeconfig and a file for the controller's log."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        async with api_server(folder) as kubeconfig, Kube(endpoint_from(kubeconfig)) as kube:
            for definition in DEFINITIONS:
                await kube.create(CRDS, yaml.safe_load(definition.file.read_text()))
            for resource in (NODE_INVENTORIES, GPU_POLICIES):
                await _until_served(kube, resource)
            nodes = Nodes(kube, count)
            await nodes.join()
            async with nodes.watching():
                yield nodes, kubeconfig, folder / "controller.log"


async def _until_served(kube: Kube, resource: Resource) -> None:
    async with asyncio.timeout(30):
        while True:
            with suppress(NotFound):
                await kube.list(resource)
                return
            await asyncio.sleep(0.1)


async def measure(count: int, rest_s: float) -> Figures:
    async with cluster(count) as (nodes, kubeconfig, log):
        await nodes.report(registered_ago_s=3600.0)
        started = time.monotonic()
        async with Controller.running(kubeconfig, log):
            await nodes.until_slices(lambda: len(nodes.slices.objects) == count)
            after_start_s = time.monotonic() - started

    async with cluster(count) as (nodes, kubeconfig, log):
        async with Controller.running(kubeconfig, log) as controller:
            await controller.until_ready()
            rss_idle = controller.memory_mib()
            started, cpu = time.monotonic(), controller.cpu_s()
            reported_s = await nodes.report()
            await nodes.until_slices(lambda: len(nodes.slices.objects) == count)
            join_s = time.monotonic() - started
            await asyncio.sleep(3)
            cpu = controller.cpu_s() - cpu
            before = await controller.writes()
            visible_ms = await _change(nodes, count // 2)
            await asyncio.sleep(1)
            one_gpu = await controller.writes() - before
            one_node_s = await _policy(nodes, "one", name_of(count // 3))
            policy_cpu = controller.cpu_s()
            all_nodes_s = await _policy(nodes, "all")
            policy_cpu = controller.cpu_s() - policy_cpu
            await asyncio.sleep(5)
            rest = await _rest(nodes, controller, rest_s)
            rss, peak = controller.memory_mib(), controller.memory_mib("VmHWM")
        async with Controller.running(kubeconfig, log) as controller:
            await controller.until_ready()
            await asyncio.sleep(5)
            restart = await controller.writes()
        bare_s = await _bare_writes(nodes)
    return Figures(
        api_server=its_name(),
        nodes=count,
        gpus=count * GPUS,
        publish_while_nodes_join_s=round(join_s, 2),
        inventories_written_s=round(reported_s, 2),
        controller_cpu_s=round(cpu, 2),
        publish_after_start_s=round(after_start_s, 2),
        rss_idle_mib=rss_idle,
        rss_mib=rss,
        rss_peak_mib=peak,
        writes_for_one_gpu=one_gpu,
        one_gpu_visible_ms=round(visible_ms, 1),
        policy_for_one_node_ms=round(1000 * one_node_s, 1),
        policy_for_all_nodes_s=round(all_nodes_s, 2),
        policy_for_all_nodes_cpu_s=round(policy_cpu, 2),
        bare_writes_s=round(bare_s, 2),
        restart_slice_writes=restart,
        slice_writes_at_rest_per_hour=rest[0],
        lease_writes_at_rest_per_minute=rest[1],
        cpu_at_rest_percent=rest[2],
    )


async def _change(nodes: Nodes, node: int) -> float:
    """Milliseconds from the write of the inventory to the slice being seen."""
    versions = dict(nodes.slices.objects)
    started = time.monotonic()
    await nodes.change_one_gpu(node, 350)
    await nodes.until_slices(lambda: nodes.slices.objects != versions)
    return (time.monotonic() - started) * 1000


async def _policy(nodes: Nodes, name: str, node: str | None = None) -> float:
    """Seconds from a policy that adds an attribute, for one node or for all, to the last of their slices."""
    versions = dict(nodes.slices.objects)
    where = {} if node is None else {"nodes": {"names": [node]}}
    spec = {**where, "attributes": {name: {"bool": True}}}
    started = time.monotonic()
    kind = {"apiVersion": GPU_POLICIES.api_version, "kind": GPU_POLICIES.kind}
    await nodes.kube.create(GPU_POLICIES, {**kind, "metadata": {"name": name}, "spec": spec})
    expected = nodes.count if node is None else 1
    await nodes.until_slices(
        lambda: sum(versions.get(key) != version for key, version in nodes.slices.objects.items()) == expected
    )
    return time.monotonic() - started


async def _bare_writes(nodes: Nodes) -> float:
    """Seconds for an inventory's status and a slice of each node, changed as a policy for all nodes changes them."""
    policies = {
        obj["metadata"]["name"]: obj["status"]["policy"] async for obj in _objects(nodes.kube, NODE_INVENTORIES)
    }
    slices = [obj async for obj in _objects(nodes.kube, RESOURCE_SLICES)]
    at_once = asyncio.Semaphore(16)

    async def write(item: JsonObject) -> None:
        node, name = item["spec"]["nodeName"], item["metadata"]["name"]
        status = {"policy": {**policies[node], "channels": 7}}
        devices = [
            {**device, "attributes": {**device["attributes"], "bare": {"bool": True}}}
            for device in item["spec"]["devices"]
        ]
        async with at_once:
            await nodes.kube.merge_patch(NODE_INVENTORIES, node, {"status": status}, subresource="status")
            await nodes.kube.merge_patch(RESOURCE_SLICES, name, {"spec": {"devices": devices}})

    started = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for item in slices:
            group.create_task(write(item))
    return time.monotonic() - started


async def _objects(kube: Kube, resource: Resource) -> AsyncIterator[JsonObject]:
    async for page in kube.pages(resource):
        for obj in page.items:
            yield obj


async def _rest(nodes: Nodes, controller: Controller, rest_s: float) -> tuple[float, float, float]:
    """Slice writes an hour, lease writes a minute, percent of a CPU, while nothing happens."""
    writes, cpu, renewals = await controller.writes(), controller.cpu_s(), 0

    def renewed(_: MirrorChange[str]) -> None:
        nonlocal renewals
        renewals += 1

    leases = Mirror(nodes.kube, LEASES, keep=_version, on_change=renewed)
    task = asyncio.create_task(leases.run())
    await leases.synced.wait()
    renewals = 0
    await asyncio.sleep(rest_s)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    slice_writes = (await controller.writes() - writes) * 3600 / rest_s
    return slice_writes, round(renewals * 60 / rest_s, 1), round((controller.cpu_s() - cpu) / rest_s * 100, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000, help="how many nodes (default: %(default)s)")
    parser.add_argument("--rest-s", type=float, default=60.0, help="how long to watch it rest (default: %(default)s)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    figures = asdict(asyncio.run(measure(options.nodes, options.rest_s)))
    if options.output == "json":
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):36} {value}")


if __name__ == "__main__":
    main()
