"""A simulated cluster: API server, scheduler, claim controller and kubelets in this process; the controller and one
node plugin a node as real processes beside it, over real HTTP and real unix sockets.

`SimulatedCluster` is what `dractl demo` and `dractl cluster` run, and what end-to-end tests use. Everything it makes
lies below one folder, so two clusters never meet. Nothing here knows how a GPU is simulated: a plugin gets the
profile its node has and builds the host from it.
"""

import asyncio
import random
import re
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Self

import yaml

from dra_driver import bundled
from dra_driver.api.gpupolicy import GpuPolicy
from dra_driver.api.meta import (
    CRDS,
    DEVICE_CLASSES,
    NAMESPACES,
    NODE_INVENTORIES,
    NODES,
    RESOURCE_SLICES,
    JsonObject,
)
from dra_driver.api.resource import ResourceSlice
from dra_driver.errors import InvalidInput, NodeNotReady, NotFound
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.names import GPU_DRIVER, model_label, names_record
from dra_driver.runtime.tasks import end_tasks
from dra_driver.simulation.apiserver.server import DEFAULT_VERSION, SimulatedApiServer
from dra_driver.simulation.controllers import SimulatedClaimController, SimulatedTaintEviction
from dra_driver.simulation.kubelet.containers import ContainerProgram, Containers
from dra_driver.simulation.kubelet.kubelet import SimulatedKubelet
from dra_driver.simulation.nics import NIC_DRIVER, nic_slice
from dra_driver.simulation.processes import Forks, Process, Restarts, own_environment
from dra_driver.simulation.scheduler import SimulatedScheduler
from dra_driver.simulation.workloads.controller import SimulatedWorkloadController
from dra_driver.simulation.workloads.frameworks import FRAMEWORKS, OLDER, OLDER_STORAGE, STORED
from dra_driver.simulation.writes import timestamp

_NODES = re.compile(r"([a-z0-9-]+?|[^,:]*[/.][^,:]*)(?::([1-9][0-9]{0,3}))?")
_POLL_S = 0.05
_IMPORTED = ("kubelet_plugin.main", "kubelet_plugin.simulation.nvml", "controller.main")
"""By the process that forks: everything that the programs would import."""

DRIVER_NAMESPACE = "gpu-dra-driver"
"""Where the pods of ComputeDomains' daemons are."""


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """One node to be: its name, the profile of its hardware, and its place among the nodes of that profile.

    `acts` happen to the hardware before anything looks at it: the words of `dractl simulate`, one tuple each. `gates`
    are feature gates of its node plugin, as in `--feature-gates`. `nics` publishes network devices beside its GPUs.
    """

    name: str
    profile: str
    index: int
    labels: tuple[tuple[str, str], ...] = ()
    acts: tuple[tuple[str, ...], ...] = ()
    gates: str = ""
    nics: bool = False


def parse_nodes(text: str) -> tuple[SimulatedNode, ...]:
    """From `dgx-h100:2,t4`: profile names or files of records, each with the number of nodes (default 1).

    Raises InvalidInput, also for two files whose nodes would have the same names.
    """
    counts: dict[str, int] = {}
    for part in text.split(","):
        match = _NODES.fullmatch(part.strip())
        if match is None:
            raise InvalidInput(
                f"{part.strip()!r} is not PROFILE or PROFILE:NUMBER, with 1 to 9999 nodes", about="--nodes"
            )
        model = str(Path(match[1]).resolve()) if names_record(match[1]) else match[1]
        counts[model] = counts.get(model, 0) + int(match[2] or 1)
    nodes = tuple(
        SimulatedNode(f"{model_label(model)}-{index + 1}", model, index)
        for model, count in counts.items()
        for index in range(count)
    )
    alike = sorted(name for name, times in Counter(node.name for node in nodes).items() if times > 1)
    if alike:
        raise InvalidInput(f"two files give nodes called {alike[0]}; rename one of them", about="--nodes")
    return nodes


class SimulatedCluster:
    """A running cluster below `folder`. Use `SimulatedCluster.running(...)`, which also stops it."""

    server_type: ClassVar[type[SimulatedApiServer]] = SimulatedApiServer

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[SimulatedNode],
        *,
        publisher: str = "controller",
        installed: Sequence[GpuPolicy] = (),
        version: str = DEFAULT_VERSION,
        gates: str = "",
    ) -> None:
        """`gates` are feature gates of the controller and all node plugins, as in `--feature-gates`."""
        self.folder = folder
        self.nodes = tuple(nodes)
        self.publisher = publisher
        self._gates = gates
        self._policy: tuple[str, ...] = ()
        if installed:
            file = folder / "policy.yaml"
            file.write_text(yaml.safe_dump_all([policy.to_object() for policy in installed], sort_keys=False))
            self._policy = ("--policy", str(file))
        self.kubeconfig = folder / "kubeconfig"
        self.version = version
        self.server = self.server_type(version=version)
        self.server.serve((*(framework.resource for framework in FRAMEWORKS), *STORED))
        self.server.serve(OLDER, OLDER_STORAGE)
        self.controller = self._controller_process()
        self.plugins = {node.name: self._plugin_process(node) for node in nodes}
        self.kubelets: dict[str, SimulatedKubelet] = {}
        self.server.answer_for(self.kubelets)
        self.containers = {node.name: self._containers(node) for node in nodes}
        """Those that really run, by node."""
        self.kube: Kube
        self.scheduler: SimulatedScheduler
        self._forks: Forks | None = None

    @classmethod
    @asynccontextmanager
    async def running(
        cls,
        folder: Path,
        nodes: Sequence[SimulatedNode],
        *,
        publisher: str = "controller",
        installed: Sequence[GpuPolicy] = (),
        version: str = DEFAULT_VERSION,
        gates: str = "",
        port: int = 0,
        progress: Callable[[str], None] = lambda _: None,
    ) -> AsyncIterator[Self]:
        """Start everything, wait until every node's devices are published, and stop everything at the end."""
        cluster = cls(folder, nodes, publisher=publisher, installed=installed, version=version, gates=gates)
        async with AsyncExitStack() as stack:
            progress("starting the API server")
            try:
                await cluster.server.start(port=port)
            except OSError as error:
                raise InvalidInput(f"port {port} cannot be used: {error.strerror}", about="API server") from error
            stack.push_async_callback(cluster.server.stop)
            cluster._forks = await stack.enter_async_context(Forks.running(_IMPORTED, own_environment()))
            cluster.server.kubeconfig(cluster.kubeconfig)
            cluster.kube = await stack.enter_async_context(Kube(endpoint_from(cluster.kubeconfig)))
            await cluster._install()
            new_address = stack.enter_context(pod_addresses())
            cluster.scheduler = SimulatedScheduler(cluster.kube)
            controllers = (SimulatedClaimController, SimulatedWorkloadController, SimulatedTaintEviction)
            running = (cluster.scheduler.run(), *(controller(cluster.kube).run() for controller in controllers))
            stack.push_async_callback(end_tasks, *map(asyncio.create_task, running))
            for node in cluster.nodes:
                stack.push_async_callback(cluster.containers[node.name].stop_all)
                kubelet = cluster._kubelet(node, new_address)
                cluster.kubelets[node.name] = kubelet
                await kubelet.start()
                stack.push_async_callback(kubelet.stop)
            for node in cluster.nodes:
                await cluster._apply_acts(node)
            progress(f"starting the controller and {len(cluster.nodes)} node plugin(s)")
            for process in cluster.processes():
                await process.start(cluster._forks)
                stack.push_async_callback(process.stop)
            progress("waiting for ResourceSlices")
            await cluster.wait_published()
            await cluster._publish_nics()
            yield cluster

    def processes(self) -> tuple[Process, ...]:
        """The controller, when there is one, and the plugins."""
        controller = (self.controller,) if self.publisher == "controller" else ()
        return (*controller, *self.plugins.values())

    def node_folder(self, name: str) -> Path:
        return self.folder / "nodes" / name

    def cdi_folder(self, name: str) -> Path:
        return self.node_folder(name) / "cdi"

    def hardware(self) -> dict[str, str]:
        """How every GPU of the cluster stands, by node and UUID; equal before claims came and after all are gone."""
        standing = _of_node("standing")
        return {
            f"GPU {uuid} of node {node.name}": how
            for node in self.nodes
            for uuid, how in standing(self.node_folder(node.name) / "host").items()
        }

    def daemons(self) -> tuple[Path, ...]:
        """Folders of MPS daemons on the nodes."""
        folders = [self.node_folder(node.name) / "kubelet" / "plugins" for node in self.nodes]
        return tuple(sorted(path for folder in folders for path in folder.glob("*/mps/*")))

    def restarts(self, report: Callable[[str], None]) -> Restarts:
        """For one that is kept running, in place of `check`."""
        clock = asyncio.get_running_loop().time
        return Restarts(self.processes(), lambda process: process.start(self._forks), report, clock)

    def check(self) -> None:
        """Raises NodeNotReady when one of the cluster's processes ended by itself."""
        for process in self.processes():
            process.check()

    async def wait(self, condition: Callable[[], Awaitable[bool] | bool], what: str, timeout_s: float) -> None:
        """Poll a condition until it is true. Raises NodeNotReady that names `what` after `timeout_s`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            self.check()
            result = condition()
            if await result if isinstance(result, Awaitable) else result:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise NodeNotReady(f"{what} after {timeout_s:.0f} s; logs are in {self.folder / 'logs'}")
            await asyncio.sleep(_POLL_S)

    async def wait_published(self) -> None:
        """Until every node has a slice of its GPUs."""

        async def published() -> bool:
            slices = (await self.kube.list(RESOURCE_SLICES)).items
            results = {item["spec"].get("nodeName") for item in slices if item["spec"]["driver"] == GPU_DRIVER}
            return results >= {node.name for node in self.nodes}

        await self.wait(published, "some nodes have published no devices", 60.0 * (1 + len(self.nodes) / 10))

    async def _publish_nics(self) -> None:
        slices = [ResourceSlice.of(item) for item in (await self.kube.list(RESOURCE_SLICES)).items]
        for node in self.nodes:
            if node.nics:
                await self.kube.create(RESOURCE_SLICES, nic_slice(node.name, slices))

    async def _install(self) -> None:
        """What an administrator applies before anything else: CRDs, DeviceClasses, and the nodes themselves."""
        for path in sorted(bundled.CRDS_FOLDER.glob("*.yaml")):
            await self.kube.create(CRDS, bundled.read_yaml(path.read_text()))
        for path in sorted(bundled.DEVICE_CLASSES_FOLDER.glob("*.yaml")):
            for document in bundled.read_documents(path.read_text()):
                await self.kube.create(DEVICE_CLASSES, document)
        await self.kube.create(NAMESPACES, {"metadata": {"name": DRIVER_NAMESPACE}})
        for node in self.nodes:
            await self.kube.create(NODES, _node_object(node, self.version))
        await self.wait(self._inventories_served, "NodeInventory is not served", 10.0)

    async def _apply_acts(self, node: SimulatedNode) -> None:
        """Change the node's hardware as its description says. Raises InvalidInput or NodeNotReady."""
        if node.acts:
            act = _of_node("act")
            host, profile = self.node_folder(node.name) / "host", f"{node.profile}:{node.index}"
            for name, *given in node.acts:
                await asyncio.to_thread(act, host, name, given, profile)

    async def _inventories_served(self) -> bool:
        try:
            await self.kube.list(NODE_INVENTORIES)
        except NotFound:
            return False
        return True

    def _kubelet(self, node: SimulatedNode, new_address: Callable[[], str]) -> SimulatedKubelet:
        return SimulatedKubelet(
            self.kube,
            node.name,
            self.node_folder(node.name) / "kubelet",
            cdi_folders=(self.cdi_folder(node.name),),
            containers=self.containers[node.name],
            new_address=new_address,
            silent=frozenset({NIC_DRIVER}),
        )

    def _containers(self, node: SimulatedNode) -> Containers:
        folder = self.node_folder(node.name)
        imex_daemon = ContainerProgram(
            (sys.executable, "-m", "kubelet_plugin.commands.imex_entry"),
            folders={"/imexd": "GPU_DRA_FOLDER"},
            files={"/etc/hosts": "GPU_DRA_HOSTS_FILE"},
            environment={"GPU_DRA_KUBECONFIG": str(self.kubeconfig), "GPU_DRA_HOST_ROOT": str(folder / "host")},
        )
        cuda_check = ContainerProgram(
            (str(folder / "host/sim/simulated-cuda-check"),),
            files={"/dev/termination-log": "GPU_DRA_TERMINATION_MESSAGE"},
        )
        return Containers(folder / "containers", {"gpu-dra-imex-daemon": imex_daemon, "gpu-dra-cuda-check": cuda_check})

    def _controller_process(self) -> Process:
        command = [
            *(sys.executable, "-m", "controller.main"),
            *("--kubeconfig", str(self.kubeconfig)),
            *("--no-leader-election", "--lease-namespace", DRIVER_NAMESPACE),
            *self._policy,
            *("--feature-gates", self._gates),
        ]
        return Process("controller", command, self.folder / "logs" / "controller.log")

    def _plugin_process(self, node: SimulatedNode) -> Process:
        folder = self.node_folder(node.name)
        command = [
            *(sys.executable, "-m", "kubelet_plugin.main"),
            *("--node-name", node.name, "--namespace", DRIVER_NAMESPACE),
            *("--kubeconfig", str(self.kubeconfig)),
            *("--kubelet-root", str(folder / "kubelet")),
            *("--cdi-root", str(folder / "cdi")),
            *("--host-root", str(folder / "host")),
            *("--simulate", f"{node.profile}:{node.index}"),
            *("--publisher", self.publisher),
            *self._policy,
            *("--feature-gates", ",".join(filter(None, (self._gates, node.gates)))),
        ]
        return Process(f"plugin of node {node.name}", command, self.folder / "logs" / f"plugin-{node.name}.log")


def inventory_of_model(model: str) -> JsonObject:
    """The NodeInventory's spec of a node of this profile or record. Raises InvalidInput."""
    inventory: JsonObject = _of_node("inventory")(model)
    return inventory


def _of_node(name: str) -> Any:
    """A function of the simulated node, which this package does not import: it comes with the node plugin."""
    (entry_point,) = entry_points(group="gpu_dra.simulation", name=name)
    return entry_point.load()


def _node_object(node: SimulatedNode, version: str) -> JsonObject:
    resources = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "simulated"}
    labels = {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true"}
    info = {
        **dict.fromkeys(("machineID", "systemUUID", "bootID"), node.name),
        **dict.fromkeys(("osImage", "kernelVersion"), "simulated"),
        "operatingSystem": "linux",
        "architecture": "amd64",
        "containerRuntimeVersion": "simulated://",
        "kubeletVersion": version,
        "kubeProxyVersion": "",
    }
    times = dict.fromkeys(("lastHeartbeatTime", "lastTransitionTime"), timestamp())
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": labels | dict(node.labels)},
        "status": {"capacity": resources, "conditions": [ready | times], "nodeInfo": info},
    }


# -- addresses of pods, at which their processes really listen and find each other

_GUARD_PORT = 50000
"""Taken at the last address of a part by the cluster that has it."""
_ATTEMPTS = 100


@contextmanager
def pod_addresses() -> Iterator[Callable[[], str]]:
    """Hands out addresses, each once. Leave it after the last process that listens has ended."""
    with socket.socket() as guard:
        numbers, part = count(1), None
        for _ in range(_ATTEMPTS):
            part = random.randint(16, 254)
            try:
                guard.bind((f"127.{part}.255.254", _GUARD_PORT))
                break
            except OSError:
                part = None

        def new() -> str:
            number = next(numbers)
            return "127.0.0.1" if part is None else f"127.{part}.{number // 250 % 255}.{number % 250 + 1}"

        yield new
