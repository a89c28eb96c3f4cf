"""How long kubelet waits for the node plugin: prepare and unprepare over the unix socket, on a node of eight H100s.

    python benchmarks/prepare.py [--rounds N] [--json FILE]

The simulated API server and the plugin are processes of their own; this one is kubelet. Claims, their allocations and
all files are real; journal and CDI files lie on the disk of the temporary folder. Times include the read of each claim
from the API server and every durable write. Printed with them: what one claim read and one durable write cost on this
machine, and an empty call: what cannot be saved.

Then the same plugin is started again with a policy, and claims that change hardware are measured: parts of GPUs that
are made on demand, claims with MPS, shares. The hardware is simulated: NVML's calls cost a small file each, and MPS and
nvidia-smi the start of a Python program, where real ones take from some milliseconds to seconds. What is the plugin's
own, journal and order, is in the lines `beside another`, where nothing has to be started.

Plugin and controller are started as in a pod, where there is no kubeconfig to read and the packages of the command line
are not installed; what they take of memory is what a node pays, and 1 MB for the simulated hardware.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

# The folder of a script is where Python looks first.
from _api_server import SIMULATED
from _kubelet import Kubelet, allocated_claim
from _measured import PYTHON, memory_mib, write_record

from dra_driver.api.meta import DEVICE_CLASSES, LEASES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.runtime.files import write_durably
from dra_driver.simulation.processes import Process
from dra_driver.terminal import print_table
from kubelet_plugin.simulation.host import open_simulated

NODE = "node-1"
GPUS = 8
WARM_UP = 20

POLICY = """
apiVersion: dra.gpu/v1alpha1
kind: PublishingPolicy
mig: [{mode: Dynamic}]
sharing:
- {gpus: {names: [%(mps)s]}, strategy: MPS, replicas: 4}
- {gpus: {names: [%(sliced)s]}, strategy: TimeSlicing, replicas: 4}
"""
SHARES = [f"00000000-0000-4000-8000-{number:012x}" for number in range(2)]
MPS = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}
TIME_SLICE = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}

IN_POD = """
import sys
from importlib import import_module
sys.modules["rich"] = None
from dra_driver.kube import client, endpoint
server, module = sys.argv[1:3]
del sys.argv[1:3]
endpoint.endpoint_from = client.endpoint_from = lambda kubeconfig: endpoint.Endpoint(server)
import_module(module).main()
"""
"""Runs an entry point against a server without TLS, otherwise as in a pod. Arguments: server, module, its arguments."""


def percentiles(samples: list[float]) -> tuple[float, float]:
    """p50 and p99 in milliseconds."""
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    return statistics.median(samples) * 1e3, cuts[98] * 1e3


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    start = time.perf_counter()
    await work()
    return time.perf_counter() - start


async def _true(value: bool) -> bool:
    return value


_SETTLED_S = 10.0


async def install(kube: Kube) -> None:
    """What the chart brings, as far as plugin and controller need it."""
    import yaml

    from dra_driver import bundled
    from dra_driver.api.meta import CRDS

    for path in sorted(bundled.CRDS_FOLDER.glob("*.yaml")):
        await kube.create(CRDS, yaml.safe_load(path.read_text()))
    device_class: JsonObject = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.nvidia.com"},
        "spec": {},
    }
    await kube.create(DEVICE_CLASSES, device_class)


class Bench:
    """A cluster of one node, seen from kubelet's side of the socket."""

    def __init__(
        self,
        folder: Path,
        *,
        profile: str = "dgx-h100",
        plugin_arguments: Sequence[str] = (),
        controller_arguments: Sequence[str] = ("--lease-namespace", "default"),
    ) -> None:
        self.folder = folder
        self.profile = profile
        self.plugin_arguments = tuple(plugin_arguments)
        self.controller_arguments = tuple(controller_arguments)
        self.kubeconfig = folder / "kubeconfig"
        self.server = Process(
            "API server",
            [sys.executable, str(SIMULATED), "--kubeconfig", str(self.kubeconfig)],
            folder / "apiserver.log",
        )
        self.controller: Process
        self.plugin: Process
        self.kube: Kube
        self.kubelet: Kubelet
        self.claims: list[JsonObject] = []
        self._names: list[str] = []

    def in_pod(self, name: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Process:
        """`environment`: what the programs that it starts have besides; settings of this shell do not reach them."""
        server = endpoint_from(self.kubeconfig).server
        given = [f"{variable}={value}" for variable, value in (environment or {}).items()]
        command = ["env", *given, PYTHON, "-c", IN_POD, server, module, *arguments]
        return Process(name, command, self.folder / f"{name}.log")

    def _plugin(self, *more: str) -> Process:
        return self.in_pod(
            "plugin",
            "kubelet_plugin.main",
            *("--node-name", NODE, "--simulate", self.profile, "--log-level", "warning"),
            *("--kubelet-root", str(self.folder / "kubelet"), "--cdi-root", str(self.folder / "cdi")),
            *("--host-root", str(self.folder / "host"), "--http-endpoint", "127.0.0.1:0"),
            *self.plugin_arguments,
            *more,
        )

    async def start_server(self, stack: AsyncExitStack) -> None:
        """The API server alone, and a node's hardware."""
        await self._process(stack, self.server)
        while not self.kubeconfig.exists():
            await asyncio.sleep(0.02)
            self.server.check()
        self.kube = await stack.enter_async_context(Kube(endpoint_from(self.kubeconfig)))
        await self.install()
        open_simulated(self.folder / "host", self.profile)

    async def start(self, stack: AsyncExitStack) -> float:
        """Start all; answers the seconds from plugin start to a slice that is visible."""
        await self.start_server(stack)
        self.controller = self.in_pod("controller", "controller.main", *self.controller_arguments)
        await self._process(stack, self.controller)
        await self._until(self._controller_leads)
        self.plugin = self._plugin()
        started = time.perf_counter()
        await self._process(stack, self.plugin)
        await self._registered(stack)
        devices: list[str] = []
        while not devices:
            slices = (await self.kube.list(RESOURCE_SLICES)).items
            devices = sorted(device["name"] for item in slices for device in item["spec"].get("devices") or ())
            await asyncio.sleep(0.01)
        visible_s = time.perf_counter() - started
        self._names = devices
        self.claims = [await self._claim(f"claim-{index}", device) for index, device in enumerate(devices)]
        return visible_s

    async def _registered(self, stack: AsyncExitStack) -> None:
        self.kubelet = stack.enter_context(Kubelet(self.folder / "kubelet"))
        await self._until(lambda: _true(self.kubelet.sees_driver))
        await asyncio.to_thread(self.kubelet.register)

    async def start_again_with_policy(self, stack: AsyncExitStack) -> None:
        """Plugin and controller, with parts on all GPUs, and shares of the last two."""
        # A GPU that a claim has keeps the sharing that it has.
        for claim in self.claims:
            await self.kube.delete(RESOURCE_CLAIMS, claim["metadata"]["name"], namespace="default")
        await self.plugin.stop()
        await self.controller.stop()
        file = self.folder / "policy.yaml"
        file.write_text(POLICY % {"mps": self.gpus[-1], "sliced": self.gpus[-2]})
        self.controller = self.in_pod(
            "controller", "controller.main", *self.controller_arguments, "--policy", str(file)
        )
        await self._process(stack, self.controller)
        self.plugin = self._plugin("--policy", str(file))
        await self._process(stack, self.plugin)
        await self._registered(stack)
        await self._until(self._has_parts)

    async def _has_parts(self) -> bool:
        slices = (await self.kube.list(RESOURCE_SLICES)).items
        return any("-mig-" in device["name"] for item in slices for device in item["spec"].get("devices") or ())

    async def _process(self, stack: AsyncExitStack, process: Process) -> None:
        await process.start()
        stack.push_async_callback(process.stop)

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        while not await condition():
            for process in (self.server, self.controller, getattr(self, "plugin", None)):
                if process is not None:
                    process.check()
            await asyncio.sleep(0.005)

    async def _controller_leads(self) -> bool:
        return bool((await self.kube.list(LEASES)).items)

    async def install(self) -> None:
        await install(self.kube)
        await self.kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})

    async def _claim(
        self, name: str, device: str, *, share: str | None = None, config: JsonObject | None = None
    ) -> JsonObject:
        return await allocated_claim(self.kube, name, NODE, device, share=share, config=config)

    def rounds(self, count: int, batch: int) -> dict[str, tuple[float, float]]:
        """Prepare and unprepare `batch` claims in one call, `count` times after a few to warm up."""
        samples: dict[str, list[float]] = {"prepare": [], "repeat": [], "unprepare": []}
        for index in range(count + WARM_UP):
            claims = [self.claims[(index + offset) % GPUS] for offset in range(batch)]
            times = {
                "prepare": self.kubelet.call("NodePrepareResources", claims),
                "repeat": self.kubelet.call("NodePrepareResources", claims),
                "unprepare": self.kubelet.call("NodeUnprepareResources", claims),
            }
            if index >= WARM_UP:
                for name, seconds in times.items():
                    samples[name].append(seconds)
        return {name: percentiles(values) for name, values in samples.items()}

    @property
    def gpus(self) -> list[str]:
        """Names of the GPUs, sorted."""
        return self._names

    async def holds(self, count: int) -> dict[str, dict[str, tuple[float, float]]]:
        """Claims that change hardware: the first on its device, and one beside another."""
        part, other = f"{self.gpus[0]}-mig-1g10gb-0", f"{self.gpus[0]}-mig-1g10gb-1"
        shared, sliced = self.gpus[-1], self.gpus[-2]
        one_part, other_part = await self._claim("part", part), await self._claim("other-part", other)
        shares = [await self._claim(f"share-{n}", shared, share=share) for n, share in enumerate(SHARES)]
        slices = [await self._claim(f"slice-{n}", sliced, share=share) for n, share in enumerate(SHARES)]
        mps = await self._claim("mps", self.gpus[1], config=MPS)
        interval = await self._claim("interval", self.gpus[2], config=TIME_SLICE)
        return {
            "part of a GPU, alone on it": self._repeated(count, one_part),
            "part of a GPU, beside another": self._repeated(count, one_part, beside=other_part),
            "MPS for one claim, daemon included": self._repeated(count, mps),
            "share by MPS, the first": self._repeated(count, shares[0]),
            "share by MPS, beside another": self._repeated(count, shares[0], beside=shares[1]),
            "share by time-slicing, beside another": self._repeated(count, slices[0], beside=slices[1]),
            "time slice for one claim": self._repeated(count, interval),
        }

    def _repeated(self, count: int, claim: JsonObject, *, beside: JsonObject | None = None) -> dict[str, Any]:
        if beside is not None:
            self.kubelet.call("NodePrepareResources", [beside])
        samples: dict[str, list[float]] = {"prepare": [], "unprepare": []}
        for _ in range(count):
            samples["prepare"].append(self.kubelet.call("NodePrepareResources", [claim]))
            samples["unprepare"].append(self.kubelet.call("NodeUnprepareResources", [claim]))
        if beside is not None:
            self.kubelet.call("NodeUnprepareResources", [beside])
        return {name: percentiles(values) for name, values in samples.items()}

    async def floor(self) -> dict[str, tuple[float, float]]:
        """What an empty call, one claim read and one durable write cost here."""
        path, content = self.folder / "floor", b"x" * 8192
        calls = [self.kubelet.call("NodeUnprepareResources", []) for _ in range(300)]
        reads = [await timed(lambda: self.kube.get(RESOURCE_CLAIMS, "claim-0", "default")) for _ in range(300)]
        writes = []
        for _ in range(300):
            start = time.perf_counter()
            write_durably(path, content)
            writes.append(time.perf_counter() - start)
        floors = {"empty call": calls, "claim read": reads, "durable file write": writes}
        return {name: percentiles(samples) for name, samples in floors.items()}

    async def writes_at_rest(self, seconds: float) -> int:
        """How many objects other than the leader's Lease were written while nothing happened, after the statuses of
        the last claims."""
        before: dict[str, str] = {}
        while (after := await self._versions()) != before:
            before = after
            await asyncio.sleep(_SETTLED_S)
        await asyncio.sleep(seconds)
        after = await self._versions()
        return sum(after.get(key) != version for key, version in before.items()) + len(after.keys() - before.keys())

    async def _versions(self) -> dict[str, str]:
        from dra_driver.api.meta import CONFIG_MAPS, EVENTS, NODE_INVENTORIES

        versions = {}
        for resource in (NODE_INVENTORIES, RESOURCE_SLICES, RESOURCE_CLAIMS, NODES, EVENTS, CONFIG_MAPS):
            for item in (await self.kube.list(resource)).items:
                versions[f"{resource.plural}/{item['metadata']['name']}"] = item["metadata"]["resourceVersion"]
        return versions


def _row(unit: str, median: float, late: float | None = None) -> JsonObject:
    return {"unit": unit, "median": round(median, 2)} | ({} if late is None else {"99th percentile": round(late, 2)})


async def measure(rounds: int, quiet_s: float) -> dict[str, JsonObject]:
    with tempfile.TemporaryDirectory(prefix="b") as folder:
        async with AsyncExitStack() as stack:
            bench = Bench(Path(folder))
            visible_s = await bench.start(stack)
            times = {
                "one claim in a call": bench.rounds(rounds, 1),
                "eight claims in one call": bench.rounds(rounds, GPUS),
                "the minimum": await bench.floor(),
            }
            assert bench.plugin.pid is not None
            assert bench.controller.pid is not None
            sizes = {
                "plugin, resident": _row("MiB", memory_mib(bench.plugin.pid)),
                "controller, resident": _row("MiB", memory_mib(bench.controller.pid)),
                "plugin start to slices visible": _row("s", visible_s),
                "API writes at rest, in an hour, without the Lease": _row(
                    "", await bench.writes_at_rest(quiet_s) * 3600 / quiet_s
                ),
            }
            await bench.start_again_with_policy(stack)
            times |= await bench.holds(max(rounds // 10, 10))
    calls = {
        f"{call}, {what}": _row("ms", *cuts)
        for what, times_by_call in times.items()
        for call, cuts in times_by_call.items()
    }
    return calls | sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--quiet", type=float, default=60.0, help="seconds to watch the cluster at rest")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.rounds, options.quiet))
    columns = ("median", "99th percentile", "unit")
    rows = [(name, *(str(row.get(column, "")) for column in columns)) for name, row in figures.items()]
    print_table(("FIGURE", *map(str.upper, columns)), rows)
    if options.json:
        write_record(options.json, figures, kubernetes="simulated", rounds=options.rounds)


if __name__ == "__main__":
    main()
