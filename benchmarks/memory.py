"""What the driver's processes take of memory: at rest, with many claims, and after thousands that came and went.

    python benchmarks/memory.py [--profiles dgx-h100,gb200] [--claims 200] [--cycles 2000] [--rounds 3] [--json FILE]

Plugin, controller, the controller with its admission webhook, and the supervisor of an IMEX daemon, each a process of
its own against the simulated API server in another, started as in a pod (see `prepare.py`). Claims are shares of all
GPUs of the node in turn. Each of the cycles has a claim that never was before: what a process remembered of one for
ever would be seen. RESIDENT is VmRSS, which counts the code of libraries that other processes share; PEAK is VmHWM,
from the start on: what a limit has to bear. Figures are medians of the rounds, in MiB; `growth` is in KiB.

Against the real hardware the plugin has NVML's library besides, and the container what runs beside these processes in
it: MPS control daemons, nvidia-smi and nvidia-imex. The simulated ones are not counted.
"""

import argparse
import asyncio
import os
import socket
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

# The folder of a script is where Python looks first.
from _measured import memory_mib, write_record
from prepare import NODE, TIME_SLICE, Bench

from controller.webhook.configuration import CONFIGURATIONS
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    NAMESPACES,
    RESOURCE_CLAIMS,
    SECRETS,
    JsonObject,
)
from dra_driver.kube.client import Kube
from dra_driver.names import CONFIG_API_VERSION, GPU_DRIVER
from dra_driver.simulation.processes import Process
from dra_driver.terminal import print_table
from kubelet_plugin.imex import probe
from kubelet_plugin.imex.probe import ProbeFolder

OURS = "gpu-dra-driver"
BATCH = 8
"""Claims in a call: as many as a pod may well have."""
SAMPLES = 10
"""Of the resident memory, over the cycles."""
SETTLE_S = 3.0
PEERS = 18

POLICY = """
apiVersion: dra.gpu/v1alpha1
kind: PublishingPolicy
sharing: [{strategy: TimeSlicing, replicas: 64}]
"""

type Figures = dict[str, float]


def pid_of(process: Process) -> int:
    assert process.pid is not None, process.name
    return process.pid


def both(name: str, process: Process) -> Figures:
    pid = pid_of(process)
    return {f"{name}, resident": memory_mib(pid), f"{name}, peak": memory_mib(pid, "VmHWM")}


def slope(samples: Sequence[tuple[int, float]]) -> float:
    """How much a line through the samples rises for each step."""
    return statistics.linear_regression([at for at, _ in samples], [value for _, value in samples]).slope


class WithWebhook(Bench):
    """With the objects that the chart makes for the webhook."""

    async def install(self) -> None:
        await super().install()
        await self.kube.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OURS}})
        for resource in (SECRETS, CONFIGURATIONS):
            metadata = {"name": "gpu-dra-webhook", **({"namespace": OURS} if resource.namespaced else {})}
            obj = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
            await self.kube.create(resource, obj)


class Claims:
    """Shares of the node's GPUs, in turn; no two of all that are ever made are the same."""

    def __init__(self, bench: Bench, gpus: Sequence[str], namespace: str = "default") -> None:
        self._bench, self._gpus, self._namespace = bench, gpus, namespace
        self._made = 0

    async def make(self) -> JsonObject:
        self._made += 1
        number, kube = self._made, self._bench.kube
        parameters = {"apiVersion": CONFIG_API_VERSION, "kind": "GpuConfig", "sharing": TIME_SLICE}
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        config = [{"opaque": {"driver": GPU_DRIVER, "parameters": parameters}}]
        spec = {"devices": {"requests": [request], "config": config}}
        claim = await kube.create(
            RESOURCE_CLAIMS,
            {
                "apiVersion": RESOURCE_CLAIMS.api_version,
                "kind": RESOURCE_CLAIMS.kind,
                "metadata": {"name": f"share-of-memory-{number}", "namespace": self._namespace},
                "spec": spec,
            },
        )
        uid = f"00000000-0000-4000-8000-{number:012x}"
        device = self._gpus[number % len(self._gpus)]
        result = {"request": "gpu", "driver": GPU_DRIVER, "pool": NODE, "device": device, "shareID": uid}
        user = {"resource": "pods", "name": f"pod-{number}", "uid": uid}
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
        await kube.merge_patch(
            RESOURCE_CLAIMS,
            claim["metadata"]["name"],
            {"status": status},
            namespace=self._namespace,
            subresource="status",
        )
        return claim

    async def end(self, claim: JsonObject) -> None:
        metadata = claim["metadata"]
        await self._bench.kube.delete(RESOURCE_CLAIMS, metadata["name"], namespace=metadata["namespace"])

    async def call(self, method: str, claims: Sequence[JsonObject]) -> None:
        for start in range(0, len(claims), BATCH):
            await asyncio.to_thread(
                self._bench.kubelet.call, f"Node{method}Resources", list(claims[start : start + BATCH])
            )


async def node(profile: str, claims: int, cycles: int) -> Figures:
    """Plugin and controller of a cluster of one node."""
    with tempfile.TemporaryDirectory(prefix="b") as place:
        policy = Path(place) / "policy.yaml"
        policy.write_text(POLICY)
        arguments = ("--policy", str(policy))
        async with AsyncExitStack() as stack:
            bench = Bench(
                Path(place),
                profile=profile,
                plugin_arguments=arguments,
                controller_arguments=("--lease-namespace", "default", *arguments),
            )
            await bench.start(stack)
            return await _with_claims(bench, profile, claims, cycles)


async def _with_claims(bench: Bench, profile: str, count: int, cycles: int) -> Figures:
    processes = {f"{profile}: plugin": bench.plugin, f"{profile}: controller": bench.controller}

    async def all_of(when: str) -> Figures:
        await asyncio.sleep(SETTLE_S)
        return {key: mib for name, process in processes.items() for key, mib in both(f"{name} {when}", process).items()}

    figures = await all_of("at rest")
    some = Claims(bench, [name for name in bench.gpus if name.startswith("gpu-") and "-mig-" not in name])
    held = [await some.make() for _ in range(count)]
    await some.call("Prepare", held)
    figures |= await all_of(f"with {count} claims")
    await some.call("Unprepare", held)
    for claim in held:
        await some.end(claim)
    figures |= await all_of("without them again")
    for name in processes:
        grown = figures[f"{name} with {count} claims, resident"] - figures[f"{name} at rest, resident"]
        figures[f"{name}, growth per claim"] = grown * 1024 / count
    samples = await _cycles(some, cycles, {name: pid_of(process) for name, process in processes.items()})
    figures |= await all_of(f"after {cycles} cycles")
    for name, seen in samples.items():
        figures[f"{name}, growth per 1000 cycles"] = slope(seen) * 1024 * 1000
    return figures


async def _cycles(claims: Claims, cycles: int, pids: Mapping[str, int]) -> dict[str, list[tuple[int, float]]]:
    """The resident memory now and then. The first tenth only warms up: allocators and caches fill."""
    samples: dict[str, list[tuple[int, float]]] = defaultdict(list)
    step = max(cycles // SAMPLES, 1)
    for number in range(1, cycles + 1):
        claim = await claims.make()
        await claims.call("Prepare", [claim])
        await claims.call("Unprepare", [claim])
        await claims.end(claim)
        if number % step == 0:
            for name, pid in pids.items():
                samples[name].append((number, memory_mib(pid)))
    return samples


async def webhook(claims: int) -> Figures:
    """The controller of a cluster whose API server asks it about every claim with a config of ours."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="b") as place:
        async with AsyncExitStack() as stack:
            bench = WithWebhook(
                Path(place),
                controller_arguments=(
                    *("--lease-namespace", OURS, "--http-endpoint", "127.0.0.1:0"),
                    *("--webhook-endpoint", address, "--webhook-url", f"https://{address}"),
                ),
            )
            await bench.start(stack)
            await _until_armed(bench.kube)
            name = "controller with webhook"
            await asyncio.sleep(SETTLE_S)
            figures = both(f"{name}, at rest", bench.controller)
            some = Claims(bench, bench.gpus)
            for _ in range(claims):
                await some.make()
            return figures | both(f"{name}, after {claims} reviews", bench.controller)


async def _until_armed(kube: Kube) -> None:
    for _ in range(600):
        if (await kube.get(CONFIGURATIONS, "gpu-dra-webhook")).get("webhooks"):
            return
        await asyncio.sleep(0.1)
    raise RuntimeError("the webhook's configuration was never filled in")


async def supervisor(changes: int) -> Figures:
    """The supervisor of an IMEX daemon in a domain of a whole rack, whose members change their addresses."""
    with tempfile.TemporaryDirectory(prefix="b") as place:
        folder = Path(place)
        async with AsyncExitStack() as stack:
            bench = Bench(folder, profile="gb200")
            # No controller: it would put the domain's status right.
            await bench.start_server(stack)
            domain = await bench.kube.create(
                COMPUTE_DOMAINS,
                {
                    "apiVersion": COMPUTE_DOMAINS.api_version,
                    "kind": COMPUTE_DOMAINS.kind,
                    "metadata": {"name": "train", "namespace": "default"},
                    "spec": {"channel": {"resourceClaimTemplate": {"name": "train"}}},
                },
            )
            process = _supervisor(bench, folder, domain["metadata"]["uid"])
            await process.start()
            stack.push_async_callback(process.stop)
            await asyncio.sleep(SETTLE_S)
            figures = both("IMEX supervisor, domain without nodes", process)
            await _members(bench.kube, 0)
            await _until_ready(ProbeFolder(folder / "imexd"), process)
            figures |= both(f"IMEX supervisor, {PEERS} nodes", process)
            for change in range(1, changes + 1):
                await _members(bench.kube, change)
            await asyncio.sleep(SETTLE_S)
            return figures | both(f"IMEX supervisor, after {changes} changes", process)


async def _until_ready(place: ProbeFolder, process: Process) -> None:
    problem = None
    for _ in range(100):
        problem = await asyncio.to_thread(probe.ready, place)
        if problem is None:
            return
        process.check()
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the supervisor is not ready: {problem}\n{process.log.read_text()[-2000:]}")


def _supervisor(bench: Bench, folder: Path, uid: str) -> Process:
    """With the node's programs where the driver's are, and its hosts file in a folder of ours."""
    (folder / "imexd").mkdir()
    (folder / "hosts").write_text("127.0.0.1\tlocalhost\n")
    # The probe, which is asked here, runs nvidia-imex-ctl.
    os.environ["PATH"] = f"{folder / 'host/usr/bin'}:{os.environ['PATH']}"
    environment = {
        # What the stand-in of nvidia-imex is told by its container.
        "SIMULATED_DEVICES": "/dev/nvidia-caps/nvidia-cap0",
        "GPU_DRA_HOSTS_FILE": str(folder / "hosts"),
    }
    return bench.in_pod(
        "supervisor",
        "kubelet_plugin.commands.imex_daemon",
        *("--domain", "default/train", "--domain-uid", uid, "--node-name", NODE, "--pod-ip", _address(0)),
        *("--folder", str(folder / "imexd"), "--hosts-file", str(folder / "hosts")),
        *("--host-root", str(folder / "host"), "--log-level", "warning"),
        environment=environment,
    )


def _address(index: int, change: int = 0) -> str:
    return f"127.{os.getpid() % 200 + 20}.{change % 250}.{index + 1}"


async def _members(kube: Kube, change: int) -> None:
    """This node stays where it is; the others have other addresses each time."""
    nodes = [
        {
            "name": f"tray-{index}" if index else NODE,
            "ipAddress": _address(index, change if index else 0),
            "cliqueID": "rack.1",
            "index": index,
            "status": "NotReady",
        }
        for index in range(PEERS)
    ]
    status = {"status": {"status": "NotReady", "nodes": nodes}}
    await kube.merge_patch(COMPUTE_DOMAINS, "train", status, namespace="default", subresource="status")


async def measure(profiles: Sequence[str], claims: int, cycles: int, rounds: int) -> Figures:
    samples: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        parts = [await node(profile, claims, cycles) for profile in profiles]
        for figures in (*parts, await webhook(claims), await supervisor(claims)):
            for name, value in figures.items():
                samples[name].append(value)
    return {name: statistics.median(values) for name, values in samples.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", default="dgx-h100,gb200", help="of nodes, with commas between them")
    parser.add_argument("--claims", type=int, default=200, help="prepared at once (default: %(default)s)")
    parser.add_argument("--cycles", type=int, default=2000, help="claims one after the other (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.profiles.split(","), options.claims, options.cycles, options.rounds))
    print_table(("FIGURE", "MEDIAN"), [(name, f"{value:.1f}") for name, value in figures.items()])
    if options.json:
        rows = {
            name: {"unit": "KiB" if "growth" in name else "MiB", "median": round(value, 1)}
            for name, value in figures.items()
        }
        write_record(options.json, rows, kubernetes="simulated", rounds=options.rounds)


if __name__ == "__main__":
    main()
