"""The controller with many nodes: what it writes, how long that takes, and what it costs, in clusters of several sizes.

    [KUBEBUILDER_ASSETS=FOLDER] python benchmarks/controller_scale.py [--nodes 100,1000,5000,10000] [--mig]
        [--rest-s 60] [--json FILE]

The API server is a real one, from the folder's programs, or the simulated one; the controller is the real program.
This process plays the nodes (`_many_nodes.py`): it writes their inventories, and answers like a node plugin when the
controller asks whether a plugin lives. With `--mig` every GPU is also offered in all its partitions: 208 devices in
five slices for each node.

Two first publications are measured: of a controller that starts into a cluster where plugins have been running for
long, so that it asks each of them first, and of nodes that join while the controller runs. Beside the second and
beside a policy for all nodes stand the same writes by a bare client, which decides nothing. Nodes are lost when they
are deleted. A controller has started when its readiness probe succeeds and it has checked every pool. For a change of
the leader two controllers run, the leader is killed, and a GPU changes at that moment.
"""

import argparse
import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import yaml
from _api_server import version
from _many_nodes import BareClient, Nodes, SeenSlice, cluster, name_of, spec_of
from _measured import PYTHON, Record, memory_mib, processor_s

from dra_driver.api.meta import GPU_POLICIES, LEASES, RESOURCE_SLICES, JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.checking.knowledge import objects_of_inventory
from dra_driver.kube.watch import Mirror, MirrorChange
from dra_driver.names import GPU_DRIVER

LOST = 500
"""Nodes that are deleted at once; at most half of all."""
SETTLE_S = 3.0
DYNAMIC: JsonObject = {"mode": "Dynamic"}

UNITS = {
    "first publish, nodes join": "s",
    "the same writes by a bare client": "s",
    "first publish, controller starts": "s",
    "processor time, first publish": "s",
    "one GPU changes: writes": "",
    "one GPU changes: slice visible": "ms",
    "policy for one node": "ms",
    "policy for all nodes": "s",
    "processor time, policy for all nodes": "s",
    "one GPU changes meanwhile: slice visible": "ms",
    "its writes by a bare client": "s",
    "slice writes at rest, in an hour": "",
    "Lease writes at rest, in a minute": "",
    "processor at rest": "% of a core",
    "memory before any node": "MiB",
    "memory": "MiB",
    "maximum memory": "MiB",
    "memory of a replica that waits": "MiB",
    "nodes lost at once": "",
    "nodes lost: their last slice is gone": "s",
    "nodes lost: writes": "",
    "processor time, nodes lost": "s",
    "restart: until all is checked": "s",
    "restart: slice writes": "",
    "restart: other writes, dry runs included": "",
    "restart: received": "MiB",
    "leader change: a change is published": "s",
    "leader change: slices written again": "",
}

type Figures = dict[str, float]


class Controller:
    """The real program."""

    def __init__(self, process: asyncio.subprocess.Process, endpoint: str) -> None:
        self.process = process
        self._url = f"http://{endpoint}"
        self._killed = False

    @classmethod
    @asynccontextmanager
    async def running(cls, kubeconfig: Path, log: Path) -> AsyncIterator["Controller"]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *(PYTHON, "-m", "controller.main", "--kubeconfig", str(kubeconfig)),
                *("--http-endpoint", endpoint, "--log-level", "warning"),
                stderr=file,
            )
        controller = cls(process, endpoint)
        async with asyncio.TaskGroup() as group:
            guard = group.create_task(controller._must_live(log))
            try:
                yield controller
            finally:
                guard.cancel()
                if process.returncode is None:
                    process.send_signal(signal.SIGTERM)
                    await process.wait()

    async def _must_live(self, log: Path) -> None:
        status = await self.process.wait()
        if not self._killed:
            raise RuntimeError(f"the controller ended with status {status}:\n{log.read_text()[-2000:]}")

    async def kill(self) -> None:
        self._killed = True
        self.process.kill()
        await self.process.wait()

    @property
    def memory_mib(self) -> float:
        return memory_mib(self.process.pid)

    @property
    def processor_s(self) -> float:
        return processor_s(self.process.pid)

    async def _get(self, path: str) -> tuple[int, str]:
        """Status 0 while nobody listens."""
        try:
            async with aiohttp.ClientSession() as session, session.get(f"{self._url}{path}") as response:
                return response.status, await response.text()
        except aiohttp.ClientError:
            return 0, ""

    async def metrics(self) -> dict[str, float]:
        """By name and labels, as Prometheus reads them."""
        _, text = await self._get("/metrics")
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    async def writes(self, *, slices: bool = False) -> int:
        """So far: all but the Lease's, with dry runs; or those of slices."""
        name = "gpu_dra_slice_writes_total" if slices else "gpu_dra_api_requests_total"
        return int(
            sum(
                value
                for key, value in (await self.metrics()).items()
                if key.startswith(name) and not any(word in key for word in _NO_WRITE)
            )
        )

    async def until_checked(self, pools: int, timeout_s: float = 1800.0) -> None:
        """Ready, and every pool was found or made as wanted: nothing is pending. 0 pools: it leads."""
        async with asyncio.timeout(timeout_s):
            while True:
                await self.until_ready()
                if _checked(await self.metrics(), pools):
                    return
                # A scrape costs the controller a tenth of a millisecond for each pool. Asked for every tenth of a
                # second, it would need more of it than the pools do, and more the more there are.
                await asyncio.sleep(max(0.1, pools / 2500))

    async def until_ready(self) -> None:
        while True:
            if (await self._get("/readyz"))[0] == 200:
                return
            await asyncio.sleep(0.1)


_NO_WRITE = ('resource="leases"', *(f'verb="{verb}"' for verb in ("get", "list", "watch")))


def _checked(metrics: Mapping[str, float], pools: int) -> bool:
    of_driver = f'{{driver="{GPU_DRIVER}"}}'
    stamps = sum(
        name.startswith(f'gpu_dra_pool_published_timestamp_seconds{{driver="{GPU_DRIVER}"') for name in metrics
    )
    return (
        metrics.get("gpu_dra_publishing") == 1
        and metrics.get(f"gpu_dra_pools{of_driver}") == stamps == pools
        and metrics.get(f"gpu_dra_pools_pending{of_driver}") == 0
    )


class Wire:
    """Passes connections on to the API server and counts what comes back."""

    def __init__(self, kubeconfig: Path) -> None:
        self._config = yaml.safe_load(kubeconfig.read_text())
        self._cluster = self._config["clusters"][0]["cluster"]
        self._scheme, _, address = self._cluster["server"].partition("://")
        self._host, _, self._port = address.partition(":")
        self.received_bytes = 0

    @asynccontextmanager
    async def tapped(self, kubeconfig: Path) -> AsyncIterator["Wire"]:
        """`kubeconfig` is written, and leads through here."""
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self._cluster["server"] = f"{self._scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        kubeconfig.write_text(yaml.safe_dump(self._config))
        try:
            yield self
        finally:
            server.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, int(self._port))
        await asyncio.gather(
            self._copy(reader, back, lambda size: None), self._copy(there, writer, self._count), return_exceptions=True
        )

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, count: Callable[[int], None]
    ) -> None:
        try:
            while data := await source.read(1 << 18):
                count(len(data))
                target.write(data)
                await target.drain()
        finally:
            target.close()

    def _count(self, size: int) -> None:
        self.received_bytes += size


class Bench:
    """A cluster of nodes, and what is published of them with a rule for MIG."""

    def __init__(self, nodes: Nodes, mig: JsonObject | None) -> None:
        self.nodes = nodes
        self._mig = mig
        rules = {"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", "mig": [] if mig is None else [mig]}
        policy = PublishingPolicy.of(rules)
        objects = objects_of_inventory(spec_of(0), name_of(0), policy, {})
        self._for_each_node = sum(obj["kind"] == RESOURCE_SLICES.kind for obj in objects)

    async def set_policy(self) -> None:
        if self._mig is not None:
            await self.nodes.kube.create(GPU_POLICIES, _gpu_policy("mig", {"mig": self._mig}))

    async def published(self) -> None:
        wanted = self.nodes.count * self._for_each_node
        await self.nodes.until_slices(lambda: len(self.nodes.slices) == wanted)

    async def change_s(self, watts: int) -> float:
        """Seconds from the write of an inventory to the first slice that shows it."""
        versions, node = self._versions(), name_of(0)
        started = time.monotonic()
        await self.nodes.change_one_gpu(0, watts)
        await self.nodes.until_slices(
            lambda: any(versions.get(name) != seen.version for name, seen in self._of(node)), pause_s=0.0
        )
        return time.monotonic() - started

    async def policy_s(self, name: str, node: str | None = None) -> float:
        """Seconds from a policy that adds an attribute, for one node or for all, to the last of their slices."""
        where = {} if node is None else {"nodes": {"names": [node]}}
        spec = {**where, "attributes": {name: {"bool": True}}}
        started = time.monotonic()
        await self.nodes.kube.create(GPU_POLICIES, _gpu_policy(name, spec))
        await self.shows(name, node)
        return time.monotonic() - started

    async def shows(self, name: str, node: str | None) -> None:
        """Until the devices of a node, or of all, have the attribute."""
        await self.nodes.until_slices(
            lambda: all(seen.attributes is None or name in seen.attributes for _, seen in self._of(node)),
            pause_s=0.1 if node is None else 0.0,
        )

    async def lose_s(self, count: int) -> float:
        """Seconds until the last slice of deleted nodes is gone."""
        started = time.monotonic()
        await self.nodes.leave(count)
        await self.published()
        return time.monotonic() - started

    def _of(self, node: str | None) -> list[tuple[str, SeenSlice]]:
        return [(name, seen) for name, seen in self.nodes.slices.items() if node is None or seen.node == node]

    def _versions(self) -> dict[str, str]:
        return {name: seen.version for name, seen in self.nodes.slices.items()}

    async def leader_change(self, kubeconfig: Path, log: Path, leader: Controller) -> "Figures":
        """What happens when the leader is killed while another replica waits."""
        async with Controller.running(kubeconfig, log) as other:
            await other.until_ready()
            await asyncio.sleep(SETTLE_S)
            memory = other.memory_mib
            before = self._versions()
            await leader.kill()
            changed_s = await self.change_s(300)
            await other.until_checked(self.nodes.count)
            again = sum(
                before.get(name) != seen.version for name, seen in self.nodes.slices.items() if seen.node != name_of(0)
            )
        return {
            "memory of a replica that waits": memory,
            "leader change: a change is published": changed_s,
            "leader change: slices written again": again,
        }


def _gpu_policy(name: str, spec: JsonObject) -> JsonObject:
    kind = {"apiVersion": GPU_POLICIES.api_version, "kind": GPU_POLICIES.kind}
    return {**kind, "metadata": {"name": name}, "spec": spec}


async def controller_starts(count: int, mig: JsonObject | None) -> Figures:
    """Into a cluster whose plugins have been running for an hour."""
    async with cluster(count) as (nodes, kubeconfig, log):
        bench = Bench(nodes, mig)
        await bench.set_policy()
        await nodes.report(registered_ago_s=3600.0)
        started = time.monotonic()
        async with Controller.running(kubeconfig, log):
            await bench.published()
            after_start_s = time.monotonic() - started
        bare = await BareClient.like_controller(nodes)
        return {
            "first publish, controller starts": after_start_s,
            "the same writes by a bare client": await bare.first_publish_s(),
        }


async def life(count: int, mig: JsonObject | None, rest_s: float) -> Figures:
    """Nodes join a controller, and all that happens afterwards."""
    async with cluster(count) as (nodes, kubeconfig, log):
        bench = Bench(nodes, mig)
        await bench.set_policy()
        async with Controller.running(kubeconfig, log) as controller:
            figures = await _joined(bench, controller)
            figures |= await _changed(bench, controller)
            figures |= await _rested(nodes, controller, rest_s)
            figures |= await _lost(bench, controller)
            figures["memory"] = controller.memory_mib
            figures["maximum memory"] = memory_mib(controller.process.pid, "VmHWM")
        figures |= await _restarted(bench, kubeconfig, log)
        bare = await BareClient.like_controller(nodes)
        return {**figures, "its writes by a bare client": await bare.policy_s()}


async def _joined(bench: Bench, controller: Controller) -> Figures:
    await controller.until_checked(0)
    memory, processor, started = controller.memory_mib, controller.processor_s, time.monotonic()
    await bench.nodes.report()
    await bench.published()
    joined_s = time.monotonic() - started
    await controller.until_checked(bench.nodes.count)
    return {
        "first publish, nodes join": joined_s,
        "processor time, first publish": controller.processor_s - processor,
        "memory before any node": memory,
    }


async def _changed(bench: Bench, controller: Controller) -> Figures:
    await asyncio.sleep(SETTLE_S)
    before = await controller.writes()
    visible_s = await bench.change_s(350)
    await asyncio.sleep(SETTLE_S)
    writes = await controller.writes() - before
    one_s = await bench.policy_s("one", name_of(bench.nodes.count // 3))
    await asyncio.sleep(SETTLE_S)
    processor = controller.processor_s
    changing = asyncio.create_task(bench.policy_s("all"))
    await bench.shows("all", name_of(0))
    meanwhile_s = await bench.change_s(400)
    all_s = await changing
    await asyncio.sleep(SETTLE_S)
    return {
        "one GPU changes: writes": writes,
        "one GPU changes: slice visible": visible_s * 1e3,
        "policy for one node": one_s * 1e3,
        "policy for all nodes": all_s,
        "one GPU changes meanwhile: slice visible": meanwhile_s * 1e3,
        "processor time, policy for all nodes": controller.processor_s - processor,
    }


async def _rested(nodes: Nodes, controller: Controller, rest_s: float) -> Figures:
    """While nothing happens."""
    renewals = 0

    def renewed(_: MirrorChange[JsonObject]) -> None:
        nonlocal renewals
        renewals += 1

    leases = Mirror(nodes.kube, LEASES, on_change=renewed)
    task = asyncio.create_task(leases.run())
    await leases.synced.wait()
    writes, processor, renewals = await controller.writes(slices=True), controller.processor_s, 0
    await asyncio.sleep(rest_s)
    processor = controller.processor_s - processor
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return {
        "slice writes at rest, in an hour": (await controller.writes(slices=True) - writes) * 3600 / rest_s,
        "Lease writes at rest, in a minute": renewals * 60 / rest_s,
        "processor at rest": 100 * processor / rest_s,
    }


async def _lost(bench: Bench, controller: Controller) -> Figures:
    count = min(LOST, bench.nodes.count // 2)
    writes, processor = await controller.writes(), controller.processor_s
    gone_s = await bench.lose_s(count)
    await controller.until_checked(bench.nodes.count)
    return {
        "nodes lost at once": count,
        "nodes lost: their last slice is gone": gone_s,
        "nodes lost: writes": await controller.writes() - writes,
        "processor time, nodes lost": controller.processor_s - processor,
    }


async def _restarted(bench: Bench, kubeconfig: Path, log: Path) -> Figures:
    """A controller that starts where everything is published already, and one that takes over from it."""
    other = kubeconfig.with_name("through-wire")
    async with Wire(kubeconfig).tapped(other) as wire:
        started = time.monotonic()
        async with Controller.running(other, log) as controller:
            await controller.until_checked(bench.nodes.count)
            checked_s, received = time.monotonic() - started, wire.received_bytes
            await asyncio.sleep(SETTLE_S)
            writes, of_slices = await controller.writes(), await controller.writes(slices=True)
            change = await bench.leader_change(kubeconfig, log, controller)
    return {
        "restart: until all is checked": checked_s,
        "restart: slice writes": of_slices,
        "restart: other writes, dry runs included": writes - of_slices,
        "restart: received": received / 2**20,
        **change,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="100,1000,5000,10000", help="sizes of clusters (default: %(default)s)")
    parser.add_argument("--mig", action="store_true", help="also offer all partitions of the GPUs")
    parser.add_argument("--rest-s", type=float, default=60.0, help="how long to watch it rest (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file, after each size")
    options = parser.parse_args()
    mig = DYNAMIC if options.mig else None
    record = Record(UNITS, options.json, kubernetes=version())
    for count in map(int, options.nodes.split(",")):
        record.add(f"{count:,} nodes", asyncio.run(controller_starts(count, mig)))
        record.add(f"{count:,} nodes", asyncio.run(life(count, mig, options.rest_s)))


if __name__ == "__main__":
    main()
