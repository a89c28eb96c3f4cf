"""This driver's node plugin beside another driver's plugin for the same devices, by turns, in ratios.

    KUBEBUILDER_ASSETS=FOLDER GPU_DRA_TEST_MOCK_NVML=CLONE python benchmarks/against.py \\
        --peer-name NAME --peer 'BINARY --node-name {node} --kubeconfig {kubeconfig} ...' [--rounds 5] [--json FILE]

The API server is a real one (tests/support/real_api_server.py). NVML is NVIDIA's mock with eight H100s
(tests/support/mock_nvml.py); both plugins load the same library. The command of the peer is filled in: {node},
{kubeconfig}, {kubelet} and {cdi} (folders), {driver} (the root of the NVIDIA driver). Needs root, because a driver has
device nodes. State lies on the disk of the temporary folder, and CDI files in memory, as on a node.

In each round both plugins start, one after the other, each on a node of its own; which starts first changes with each
round. Each gets some claims, then they are watched at rest at the same time. Then they get one call each, and calls in
turns of `TURN`, and which goes first changes with each turn; no two calls have the same claim. A ratio belongs to one
round: ours by the peer's, so a ratio below 1 is better. Printed are medians of the rounds, and the lowest and highest
ratio.

Processor time is that of the plugin's process, with everything that it does after a call: this driver also writes
device status, device metadata and Events. It leaves publishing to its controller, a process that is not counted.

Not compared: dynamic MIG, because the mock has no MIG devices; MPS, because NVIDIA's plugin runs it as a Deployment,
whose pods need a kubelet.
"""

import argparse
import asyncio
import json
import os
import shlex
import stat
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

# The folder of a script is where Python looks first.
from _api_server import version
from _kubelet import Kubelet, allocated_claim
from _measured import PYTHON, memory_mib, write_record
from prepare import install

from dra_driver.api.meta import LEASES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.terminal import print_table
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.simulation.host import open_simulated

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.mishaps import load_driver, remove_driver_files
from support.mock_nvml import write_driver_root
from support.real_api_server import RealApiServer, assets_folder, start, write_kubeconfig

GPUS = 8
TURN = 25
ONES, EIGHTS = 200, 100
"""Calls of a round: 1,000 claims."""
WARM = 30
"""Claims before the rest, because Python speeds up code that has run several times."""
SETTLE_S = 3.0
STARTS_S = 60.0
MEMORY = "/dev/shm"
"""A file system in memory, as /var/run of a node."""
DRIVER_ROOT = "run/nvidia/driver"

IN_POD = """
import sys
from importlib import import_module
from pathlib import Path
sys.modules["rich"] = None
from dra_driver.kube import endpoint
endpoint._SERVICE_ACCOUNT = Path(sys.argv.pop(1))
import_module(sys.argv.pop(1)).main()
"""
"""Runs an entry point with a service account as in a pod. Arguments: its folder, module, the module's arguments."""

type Figures = dict[str, float]

UNITS = {
    "one prepare": "ms",
    "one unprepare": "ms",
    "prepare of eight in one call": "ms",
    "unprepare of eight in one call": "ms",
    "processor time, prepare and unprepare of one": "ms",
    "processor time, prepare and unprepare of eight": "ms",
    "resident memory after the start": "MiB",
    "proportional memory after the start": "MiB",
    "anonymous memory after the start": "MiB",
    "resident memory after 1,000 claims": "MiB",
    "proportional memory after 1,000 claims": "MiB",
    "anonymous memory after 1,000 claims": "MiB",
    "processor at rest": "% of a core",
    "wakeups at rest": "a second",
    "one prepare after the rest": "ms",
    "one unprepare after the rest": "ms",
    "start to slices visible": "s",
    "one prepare after the start": "ms",
    "one unprepare after the start": "ms",
}


@dataclass(frozen=True)
class Cluster:
    """The API server, and how programs reach it."""

    kube: Kube
    server: RealApiServer
    kubeconfig: Path

    @property
    def service_account(self) -> Path:
        """The folder that a pod would have."""
        folder = self.kubeconfig.parent / "account"
        if not folder.exists():
            folder.mkdir()
            (folder / "token").write_text(self.server.token)
            (folder / "ca.crt").write_bytes(self.server.ca_file.read_bytes())
            (folder / "namespace").write_text("default")
        return folder

    def in_pod(self, module: str, *arguments: str) -> list[str]:
        host, _, port = self.server.url.removeprefix("https://").partition(":")
        variables = (f"KUBERNETES_SERVICE_HOST={host}", f"KUBERNETES_SERVICE_PORT={port}")
        return ["env", *variables, PYTHON, "-c", IN_POD, str(self.service_account), module, *arguments]


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[int]:
    """The id of the process, which is ended after the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass
class Node:
    """A node with one of the drivers: `command` makes the plugin's from the node."""

    cluster: Cluster
    name: str
    folder: Path
    cdi: Path
    command: Callable[["Node"], Sequence[str]]
    stack: ExitStack
    figures: Figures = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    gpus: Sequence[str] = ()
    made: int = 0

    @property
    def host(self) -> Path:
        return self.folder / "host"

    async def start(self) -> None:
        for folder in ("plugins", "plugins_registry"):
            (self.folder / "kubelet" / folder).mkdir(parents=True)
        self.cdi.mkdir()
        write_host(self.host)
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}}
        await self.cluster.kube.create(NODES, node)
        started = time.perf_counter()
        self.pid = self.stack.enter_context(running(self.command(self), self.folder / "plugin.log"))
        self.clock = ~self.pid << 3 | 2
        """That of the processor time of all threads. Source: clock_getcpuclockid(3) of glibc."""
        self.kubelet = self.stack.enter_context(Kubelet(self.folder / "kubelet"))
        async with asyncio.timeout(STARTS_S):
            registered = asyncio.create_task(asyncio.to_thread(self.kubelet.register))
            while len(self.gpus) < GPUS:
                self.gpus = await self.published()
            self.figures["start to slices visible"] = time.perf_counter() - started
            await registered

    async def published(self) -> list[str]:
        slices = (await self.cluster.kube.list(RESOURCE_SLICES)).items
        devices = [
            device
            for item in slices
            if item["spec"]["pool"]["name"] == self.name
            for device in item["spec"].get("devices") or ()
        ]
        return sorted(d["name"] for d in devices if d["attributes"]["type"].get("string") == "gpu")

    def weigh(self, when: str) -> None:
        self.figures[f"resident memory {when}"] = memory_mib(self.pid)
        self.figures[f"anonymous memory {when}"] = memory_mib(self.pid, "RssAnon")
        rollup = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        (line,) = (line for line in rollup.splitlines() if line.startswith("Pss:"))
        self.figures[f"proportional memory {when}"] = int(line.split()[1]) / 1024

    def processor_s(self) -> float:
        return time.clock_gettime(self.clock)

    def wakeups(self) -> int:
        """How often its threads were given a processor after a wait."""
        return sum(
            int(line.split()[1])
            for status in Path(f"/proc/{self.pid}/task").glob("*/status")
            for line in status.read_text().splitlines()
            if line.startswith("voluntary_ctxt_switches")
        )

    async def claims(self, count: int) -> list[JsonObject]:
        limit = asyncio.Semaphore(8)

        async def claim(number: int) -> JsonObject:
            async with limit:
                name = f"{self.name}-claim-{number}"
                return await allocated_claim(self.cluster.kube, name, self.name, self.gpus[number % GPUS])

        numbers = range(self.made, self.made + count)
        self.made += count
        return await asyncio.gather(*map(claim, numbers))

    def turn(self, claims: Sequence[JsonObject], batch: int, names: tuple[str, str]) -> None:
        for index in range(0, len(claims), batch):
            for method, name in zip(("NodePrepareResources", "NodeUnprepareResources"), names, strict=True):
                seconds = self.kubelet.call(method, claims[index : index + batch])
                self.samples.setdefault(name, []).append(seconds * 1e3)


def write_host(root: Path) -> None:
    """A node of eight H100s whose driver comes in a container: the kernel's files are simulated, NVML is the mock."""
    simulated = open_simulated(root, "dgx-h100")
    library = write_driver_root(root / DRIVER_ROOT, "h100")
    load_driver(simulated, library.name.removeprefix("libnvidia-ml.so."), libraries=False)
    remove_driver_files(simulated)
    config = root / DRIVER_ROOT / "config/config.yaml"
    settings = json.loads(config.read_text())
    for device, gpu in zip(settings["devices"], simulated.state.gpus, strict=True):
        device |= {"uuid": gpu.uuid, "pci": {"bus_id": gpu.address}, "minor_number": gpu.minor}
    config.write_text(json.dumps(settings))
    for name in ("nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"):
        node, path = HostFiles(root).device_node(f"/dev/{name}"), root / DRIVER_ROOT / "dev" / name
        assert node is not None
        path.unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(node.major, node.minor))
    programs = root / DRIVER_ROOT / "usr/bin"
    programs.mkdir(parents=True)
    for name in ("nvidia-smi", "nvidia-cdi-hook"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)


def ours(arguments: Sequence[str]) -> Callable[[Node], Sequence[str]]:
    return lambda node: node.cluster.in_pod(
        "kubelet_plugin.main",
        *("--node-name", node.name, "--host-root", str(node.host), "--http-endpoint", "127.0.0.1:0"),
        *("--kubelet-root", str(node.folder / "kubelet"), "--cdi-root", str(node.cdi)),
        *("--cdi-hook", f"/{DRIVER_ROOT}/usr/bin/nvidia-cdi-hook"),
        *arguments,
    )


def peer(command: str) -> Callable[[Node], Sequence[str]]:
    def filled(node: Node) -> Sequence[str]:
        places = {
            "node": node.name,
            "kubeconfig": node.cluster.kubeconfig,
            "kubelet": node.folder / "kubelet",
            "cdi": node.cdi,
            "driver": node.host / DRIVER_ROOT,
        }
        return [word.format(**places) for word in shlex.split(command)]

    return filled


async def calls(nodes: Sequence[Node], count: int, batch: int, text: str) -> None:
    """`count` calls to prepare and to unprepare for each node, by turns, and the processor time of both together."""
    names = (
        ("one prepare", "one unprepare")
        if batch == 1
        else (
            f"prepare of {text} in one call",
            f"unprepare of {text} in one call",
        )
    )
    before = [node.processor_s() for node in nodes]
    for turn in range(count // TURN):
        for node in nodes if turn % 2 else reversed(nodes):
            claims = await node.claims(TURN * batch)
            await asyncio.to_thread(node.turn, claims, batch, names)
    await asyncio.sleep(SETTLE_S)
    for node, processor_s in zip(nodes, before, strict=True):
        spent_s = node.processor_s() - processor_s
        node.figures[f"processor time, prepare and unprepare of {text}"] = spent_s * 1e3 / count


async def one_call(nodes: Sequence[Node], when: str) -> None:
    for node in nodes:
        names = (f"one prepare{when}", f"one unprepare{when}")
        await asyncio.to_thread(node.turn, await node.claims(1), 1, names)


async def one_round(nodes: Sequence[Node], first: int, quiet_s: float) -> None:
    for node in (*nodes[first:], *nodes[:first]):
        await node.start()
    await asyncio.sleep(SETTLE_S)
    for node in nodes:
        node.weigh("after the start")
    await one_call(nodes, " after the start")
    for _ in range(WARM):
        await one_call(nodes, ", not counted")
    await asyncio.sleep(SETTLE_S)
    before = [(node.processor_s(), node.wakeups()) for node in nodes]
    await asyncio.sleep(quiet_s)
    for node, (processor_s, wakeups) in zip(nodes, before, strict=True):
        node.figures["processor at rest"] = 100 * (node.processor_s() - processor_s) / quiet_s
        node.figures["wakeups at rest"] = (node.wakeups() - wakeups) / quiet_s
    await one_call(nodes, " after the rest")
    await calls(nodes, ONES, 1, "one")
    await calls(nodes, EIGHTS, GPUS, "eight")
    for node in nodes:
        node.weigh("after 1,000 claims")
        medians = {name: statistics.median(values) for name, values in node.samples.items()}
        node.figures |= {name: value for name, value in medians.items() if name in UNITS}


async def clean(cluster: Cluster, nodes: Sequence[Node]) -> None:
    await cluster.kube.delete_collection(RESOURCE_CLAIMS, namespace="default")
    for node in nodes:
        await cluster.kube.delete(NODES, node.name)


async def leads(kube: Kube) -> None:
    """Waits for the controller."""
    while True:
        if (await kube.list(LEASES, namespace="default")).items:
            return
        await asyncio.sleep(0.1)


async def measure(command: str, arguments: str, rounds: int, quiet_s: float) -> list[tuple[Figures, Figures]]:
    """Ours and the peer's figures in each round."""
    measured = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="b")))
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="b", dir=MEMORY)))
        server = start(assets_folder(), folder / "api", own_defaults=True)
        stack.callback(server.stop)
        kubeconfig = folder / "kubeconfig"
        write_kubeconfig(server, kubeconfig)
        async with Kube(endpoint_from(kubeconfig)) as kube:
            cluster = Cluster(kube, server, kubeconfig)
            await install(kube)
            controller = cluster.in_pod("controller.main", "--lease-namespace", "default")
            stack.enter_context(running(controller, folder / "controller.log"))
            await leads(kube)
            for number in range(rounds):
                with ExitStack() as of_round:
                    commands = {f"ours-{number}": ours(shlex.split(arguments)), f"peer-{number}": peer(command)}
                    nodes = [
                        Node(cluster, name, folder / name, memory / name, make, of_round)
                        for name, make in commands.items()
                    ]
                    try:
                        await one_round(nodes, number % 2, quiet_s)
                    except BaseException:
                        for log in (node.folder / "plugin.log" for node in nodes):
                            print(log.read_text()[-3000:] if log.exists() else f"no {log}", file=sys.stderr)
                        raise
                measured.append((nodes[0].figures, nodes[1].figures))
                await clean(cluster, nodes)
                print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return measured


def compared(measured: Sequence[tuple[Figures, Figures]]) -> dict[str, JsonObject]:
    """For each figure the medians, and the ratio's median, lowest and highest; no ratio to a peer's 0."""
    figures = {}
    for name, unit in UNITS.items():
        pairs = [(mine[name], theirs[name]) for mine, theirs in measured]
        ratios = sorted(mine / theirs for mine, theirs in pairs if theirs)
        figures[name] = {
            "unit": unit,
            "ours": round(statistics.median(mine for mine, _ in pairs), 3),
            "peer": round(statistics.median(theirs for _, theirs in pairs), 3),
            "ratio": round(statistics.median(ratios), 2) if ratios else None,
            "lowest": round(ratios[0], 2) if ratios else None,
            "highest": round(ratios[-1], 2) if ratios else None,
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="command of the other driver's plugin")
    parser.add_argument("--peer-name", required=True, help="its name and version, for the record")
    parser.add_argument("--ours", default="", help="more arguments for this driver's plugin, such as --feature-gates …")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quiet", type=float, default=60.0, help="seconds to watch the plugins at rest")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    measured = asyncio.run(measure(options.peer, options.ours, options.rounds, options.quiet))
    figures = compared(measured)
    rows = [
        (
            f"{name}, {figure['unit']}",
            str(figure["ours"]),
            str(figure["peer"]),
            str(figure["ratio"]),
            f"{figure['lowest']} - {figure['highest']}",
        )
        for name, figure in figures.items()
    ]
    print_table(("FIGURE", "OURS", "PEER", "RATIO", "LOWEST - HIGHEST"), rows)
    if options.json:
        peer_name = options.peer_name
        write_record(options.json, figures, kubernetes=version(), peer=peer_name, rounds=options.rounds)


if __name__ == "__main__":
    main()
