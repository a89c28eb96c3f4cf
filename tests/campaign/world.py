"""What a sequence runs in: an API server, a controller and node plugins as processes of their own, and kubelet's side.

A world lives for many sequences. `Front` fails between the processes and the API server; the shim (`shim.c`) makes the
plugins' disks fail, kills them after the n-th change of a file, and moves their clock.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import cache
from mmap import mmap
from pathlib import Path

import yaml
from campaign import oracle
from campaign.front import Front
from campaign.plan import LAYOUTS, Device, Kind, Layout, policy_of
from support.domain_cluster import DRIVER_NAMESPACE, Daemons, DomainCluster, tended
from support.mishaps import reboot_renumbered
from support.places import SHORT
from support.plugin_process import NodeUnderTest, Plugin, PluginForks
from support.shipped import create_definitions

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    DAEMON_SETS,
    GPU_POLICIES,
    NAMESPACES,
    NODE_INVENTORIES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
)
from dra_driver.errors import NotFound
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER, WAITING_TAINT, gpu_device_names
from dra_driver.quantity import Quantity
from dra_driver.simulation.kubelet.registry import PluginRegistry, Times
from dra_driver.simulation.processes import Forks, Process
from kubelet_plugin.simulation.host import create_host

NODE = "node-1"
TEAM = "team"
_QUICK = Times(registry_poll_s=0.02, registration_retry_s=0.02)
_START_S = 120.0
_END_S = 40.0
"""A plugin gives itself 20 s to end; the rest is for machines that are busy."""
_POLICY = "campaign"
_MODES = "campaign-modes"
_GATES = "--feature-gates=MigBindingConditions=true,MigModeChange=true"
_STATIC = ("1g.10gb", "2g.20gb")
"""What an administrator makes by hand where the role of a GPU is `static`."""


def _status(process: Path) -> list[str]:
    """State, parent and more, of a process or thread. Raises OSError when it is gone. Source: proc_pid_stat(5)."""
    return (process / "stat").read_text().rpartition(") ")[2].split()


def _states(pid: str) -> Iterator[str]:
    """Of its threads."""
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            yield _status(thread)[0]


def end_programs(plugins: Sequence[int], host: Path) -> None:
    """What a plugin runs when it is killed, as nvidia-smi, outlives it, but no boot: stops `plugins`, and ends that.

    A program that a plugin has just made is known by its parent, because its command line is the plugin's or none.
    """
    parents = {str(pid) for pid in plugins}
    for pid in plugins:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    while any(state in "RS" for pid in parents for state in _states(pid)):
        time.sleep(0.001)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if _status(process)[1] in parents or f"{host}/".encode() in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


class Violation(Exception):
    """What the product must never do."""


@cache
def shim() -> Path | None:
    """The compiled shim; None without a C compiler: then disks and clocks work, and nothing dies while it writes."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = Path(tempfile.mkdtemp(prefix="shim")) / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


class Control:
    """The numbers that the shim in the plugins reads: see `shim.c`."""

    def __init__(self, file: Path) -> None:
        self._later_s = 0
        file.write_bytes(bytes(32))
        with file.open("r+b") as opened:
            self._memory = mmap(opened.fileno(), 32)

    def set(self, *, cdi: int = 0, state: int = 0, changes: int = 0, clock_s: int = 0) -> None:
        self._memory[:] = struct.pack("=4q", cdi, state, changes, self._later_s + clock_s)

    def later(self, seconds: int) -> None:
        """Nothing fails, and so much time has passed for the plugins."""
        self._later_s += seconds
        self.set()


class World:
    """Use `World.running`."""

    def __init__(self, folder: Path, layout: Layout, rng: random.Random) -> None:
        self.folder = folder
        self.layout = layout
        self.host = create_host(folder / "n" / "host", layout.profile)
        self.place = oracle.Place(folder / "n" / "cdi", folder / "n" / "state", folder / "n" / "host")
        self.control = Control(folder / "control")
        self.devices: tuple[Device, ...] = ()
        self.domains: list[ComputeDomain] = []
        self.kube: Kube
        self.front: Front
        self.node: NodeUnderTest
        self.controller: Process
        self.two_instances = False
        """The newest instance started beside another, in this sequence or an earlier one."""
        self.registry: PluginRegistry
        self.plugins: list[Plugin] = []
        """Instances that run, oldest first."""
        self.boots = 0
        self.restarts = 0
        self._uids = iter(range(1_000_000))
        self._uid = "u"
        self._rng = rng
        self._forks: PluginForks
        self._controllers: Forks | None = None
        self._killed: set[int] = set()
        self._daemons: Daemons | None = None
        self.uuids = [gpu.uuid for gpu in self.host.state.gpus]
        """In the order of the layout's roles."""
        self._make_static()
        self.start = oracle.standing(self.place)
        self.changing = [uuid for uuid, role in zip(self.uuids, layout.roles, strict=True) if role == "changing"]
        """UUIDs of the GPUs whose mode the driver switches by a reset."""
        names = gpu_device_names(self.uuids)
        self._names = [names[uuid] for uuid in self.changing]
        self.modes_on = False
        """What the policy says about these."""

    @classmethod
    @asynccontextmanager
    async def running(cls, name: str, rng: random.Random) -> AsyncIterator["World"]:
        """Everything is up, and the node's devices are published."""
        folder = Path(tempfile.mkdtemp(prefix="c", dir=SHORT))
        world = cls(folder, LAYOUTS[name], rng)
        try:
            async with AsyncExitStack() as stack:
                await world._set_up(stack)
                yield world
        finally:
            world.end_daemons()
            shutil.rmtree(folder, ignore_errors=True)

    # -- plugins

    @property
    def main(self) -> Plugin:
        """The newest instance, which kubelet calls."""
        return self.plugins[-1]

    async def start_plugin(self, *, new_pod: bool = False) -> None:
        """One more instance. One that does not come up is a violation, unless it was killed."""
        if new_pod:
            self._uid = f"u{next(self._uids)}"
        self.restarts += 1
        self.two_instances = bool(self.plugins)
        sockets = self.node.kubelet / "plugins"
        socket = sockets / GPU_DRIVER / f"dra-{self._uid}.sock"
        socket.unlink(missing_ok=True)
        arguments = self.node.arguments(f"--pod-uid={self._uid}")
        pid = self._forks.start(
            arguments=arguments, output=str(self.node.log), folders=[], kill_log=None, kill_after=None, refusals={}
        )
        self.plugins.append(Plugin(self._forks, self.node, pid, socket))

    async def serving(self) -> None:
        """Until the newest instance is there, started again if it was killed, and kubelet has registered it."""
        deadline = asyncio.get_running_loop().time() + _START_S
        while True:
            await self.collect()
            if not self.plugins:
                await self.start_plugin()
            endpoint = str(self.main.socket)
            drivers = {
                plugin.driver for plugin in self.registry.plugins() if plugin.connected and plugin.endpoint == endpoint
            }
            if GPU_DRIVER in drivers:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise Violation(f"the plugin does not come up in {_START_S:.0f} s: {self.registry.failures[-3:]}")
            await asyncio.sleep(0.01)

    async def collect(self) -> None:
        """Forget instances that have ended. One that ended by itself is a violation."""
        for plugin in list(self.plugins):
            if plugin.has_ended:
                status = await plugin.ended()
                self.plugins.remove(plugin)
                if status != -signal.SIGKILL and plugin.pid not in self._killed:
                    log = self.node.log.read_text(errors="replace").splitlines()
                    raise Violation(f"the plugin ended by itself with status {status}: {' '.join(log[-6:])[-1500:]}")
        if self._daemons is not None and self._daemons.failure is not None:
            raise RuntimeError("the campaign's own DaemonSet controller has ended") from self._daemons.failure
        if self.controller.ended is not None:
            log = (self.folder / "controller.log").read_text(errors="replace").splitlines()
            raise Violation(f"the controller ended by itself: {' '.join(log[-12:])[-1500:]}")

    async def kill_plugins(self) -> None:
        plugins, self.plugins = self.plugins, []
        await asyncio.gather(*(plugin.kill() for plugin in plugins))

    async def stop_plugin(self, plugin: Plugin) -> None:
        self.plugins = [running for running in self.plugins if running is not plugin]
        self._killed.add(plugin.pid)
        began = asyncio.get_running_loop().time()
        # One that has not served yet may not have a handler yet either, and has nothing to finish.
        early = set() if plugin.socket.exists() else {-signal.SIGTERM}
        status = await plugin.stop()
        if status not in {0, -signal.SIGKILL, *early} or asyncio.get_running_loop().time() - began > _END_S:
            raise Violation(f"after SIGTERM the plugin ended with status {status} and took too long or failed")

    async def reboot(self, *, renumber: bool) -> None:
        """Every process of the node is gone, and /run with the CDI files."""
        self.boots += 1
        end_programs([plugin.pid for plugin in self.plugins], self.place.host)
        await self.kill_plugins()
        self.end_daemons()
        if renumber:
            reboot_renumbered(self.host)
        else:
            self.host.reboot()
        for path in self.place.cdi.iterdir():
            path.unlink()
        self._make_static()

    def end_daemons(self) -> None:
        for pid in oracle.daemons(self.place):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def evidence(self) -> dict[str, str]:
        """What tells why a sequence failed: logs, and the cluster's objects as they are now, by file name."""
        kinds = (NODES, PODS, DAEMON_SETS, COMPUTE_DOMAINS, RESOURCE_CLAIMS, NODE_INVENTORIES, RESOURCE_SLICES)
        objects = {kind.plural: (await self.kube.list(kind)).items for kind in kinds}
        return {
            "log": self.node.log.read_text(errors="replace"),
            "controller.log": (self.folder / "controller.log").read_text(errors="replace"),
            "objects.json": json.dumps(objects, indent=1),
        }

    async def restart_controller(self) -> None:
        await self.controller.stop(kill=True)
        await self.controller.start(self._controllers)

    async def set_policy(self, spec: JsonObject | None, name: str = _POLICY) -> None:
        """One GpuPolicy beside those of the layout; None removes it."""
        with suppress(NotFound):
            await self.kube.delete(GPU_POLICIES, name)
        if spec is not None:
            kind = {"apiVersion": GPU_POLICIES.api_version, "kind": GPU_POLICIES.kind}
            await self.kube.create(GPU_POLICIES, {**kind, "metadata": {"name": name}, "spec": spec})

    async def set_modes(self, *, on: bool) -> None:
        """Whether the policy lets the driver switch the MIG mode of the `changing` GPUs on."""
        if on != self.modes_on:
            self.modes_on = on
            rule = {"gpus": {"uuids": self.changing}, "mig": {"mode": "Dynamic", "modeChange": "WhenIdle"}}
            await self.set_policy(rule if on else None, _MODES)

    def expected(self) -> Mapping[str, object]:
        """The hardware when no claim is there."""
        return oracle.in_mode(self.start, self.changing, on=self.modes_on)

    async def offered(self) -> set[str]:
        """Devices that the scheduler may choose now: those of GPUs that wait for another mode are tainted."""
        slices = (await self.kube.list(RESOURCE_SLICES)).items
        return {
            device["name"]
            for item in slices
            for device in item["spec"].get("devices") or ()
            if not any(taint["key"].endswith(f"/{WAITING_TAINT}") for taint in device.get("taints") or ())
        }

    async def named(self) -> Sequence[JsonObject]:
        """The claims that the controller names to the node because their pods wait for it."""
        inventory = await self.kube.get(NODE_INVENTORIES, NODE)
        named: Sequence[JsonObject] = (inventory.get("status") or {}).get("bindingClaims") or ()
        return named

    async def heal(self) -> None:
        """Nothing fails any more; what was broken stays broken."""
        await self.set_policy(None)
        self.control.set()
        await self.front.set("ok")
        with self.host.edit() as state:
            for gpu in state.gpus:
                gpu.mishaps, gpu.fault = {}, None
                gpu.clients = [client for client in gpu.clients if client.name != "campaign"]

    # -- set-up

    async def _set_up(self, stack: AsyncExitStack) -> None:
        url = await self._api_server(stack)
        self.kube = await stack.enter_async_context(Kube(endpoint_from(self.folder / "kubeconfig")))
        self.front = Front(url, self.folder, self._rng)
        kubeconfig = await self.front.start()
        stack.push_async_callback(self.front.stop)
        names = list(gpu_device_names([gpu.uuid for gpu in self.host.state.gpus]).values())
        policy = self.folder / "policy.yaml"
        policy.write_text(yaml.safe_dump(policy_of(self.layout, names)))
        await self._install()
        root = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}"}
        self._controllers = await stack.enter_async_context(Forks.running(["controller.main"], environment))
        command = [sys.executable, "-m", "controller.main", "--no-leader-election", _GATES]
        settings = {"kubeconfig": kubeconfig, "lease-namespace": DRIVER_NAMESPACE, "policy": policy}
        command += [f"--{name}={value}" for name, value in settings.items()]
        self.controller = Process("controller", command, self.folder / "controller.log")
        await self.controller.start(self._controllers)
        stack.push_async_callback(self.controller.stop, kill=True)
        self.node = NodeUnderTest(
            self.folder / "n",
            kubeconfig,
            self.host,
            NODE,
            (f"--policy={policy}", f"--namespace={DRIVER_NAMESPACE}", "--cleanup-interval=2", _GATES),
        )
        preload = {}
        if (library := shim()) is not None:
            preload = {"LD_PRELOAD": str(library), "CAMPAIGN_SHIM": str(self.folder / "control")}
            preload |= {"CAMPAIGN_CDI": str(self.node.cdi), "CAMPAIGN_STATE": str(self.node.state)}
        self._forks = stack.enter_context(PluginForks(preload, ["campaign.quick"]))
        self.registry = PluginRegistry(self.node.kubelet / "plugins_registry", _QUICK, lambda: None)
        follows = asyncio.create_task(self.registry.run())
        stack.push_async_callback(asyncio.wait, [follows])
        stack.callback(follows.cancel)
        stack.push_async_callback(self.kill_plugins)
        await self.serving()
        if self.layout.channels:
            await self._domains(stack)
        self.devices = await self._of_both_modes() if self.changing else await self._published()

    async def _api_server(self, stack: AsyncExitStack) -> str:
        command = (sys.executable, "-m", "benchmarks._simulated_api_server", "--kubeconfig", self.folder / "kubeconfig")
        pipe = asyncio.subprocess.PIPE
        server = await asyncio.create_subprocess_exec(*command, stdout=pipe, cwd=Path(__file__).parents[2])
        stack.push_async_callback(server.wait)
        stack.callback(server.kill)
        assert server.stdout is not None
        return (await server.stdout.readline()).decode().strip()

    async def _install(self) -> None:
        await create_definitions(self.kube)
        labels = {"resource.kubernetes.io/admin-access": "true"}
        await self.kube.create(NAMESPACES, {"metadata": {"name": DRIVER_NAMESPACE}})
        await self.kube.create(NAMESPACES, {"metadata": {"name": TEAM, "labels": labels}})
        await self.kube.create(NODES, {"metadata": {"name": NODE}})

    async def _domains(self, stack: AsyncExitStack) -> None:
        cluster = DomainCluster(self.kube)
        self.domains = [await cluster.domain("d", namespace=TEAM)]
        self._daemons = await stack.enter_async_context(tended(self.kube, Daemons(self.kube)))

    async def _of_both_modes(self) -> tuple[Device, ...]:
        """The devices of changing GPUs, whole and in parts, which exclude each other."""
        await self.set_modes(on=True)
        parts = [device for device in await self._published(divided=True) if self._whole(device.name) != device.name]
        await self.set_modes(on=False)
        uses: dict[str, dict[str, float]] = {}
        for part in parts:
            uses.setdefault(self._whole(part.name), {}).update(dict.fromkeys(part.uses, 1.0))
        others = [
            replace(device, uses={**device.uses, **uses[device.name]}, mode=False) if device.name in uses else device
            for device in await self._published()
        ]
        return tuple(
            sorted([*others, *(replace(device, mode=True) for device in parts)], key=lambda device: device.name)
        )

    def _whole(self, device: str) -> str:
        """Of a part of a changing GPU: the name of the GPU."""
        return next((name for name in self._names if device.startswith(f"{name}-mig-")), device)

    async def _published(self, *, divided: bool = False) -> tuple[Device, ...]:
        """What the slices offer, once everything that the layout has is in them. `divided`: the changing GPUs."""
        wanted = {"gpu.nvidia.com"} | ({COMPUTE_DOMAIN_DRIVER} if self.layout.channels else set())
        async with asyncio.timeout(_START_S):
            while True:
                slices = [resource_slice["spec"] for resource_slice in (await self.kube.list(RESOURCE_SLICES)).items]
                pools = Counter((spec["driver"], *spec["pool"].values()) for spec in slices)
                complete = all(
                    pools[spec["driver"], *spec["pool"].values()] == spec["pool"]["resourceSliceCount"]
                    for spec in slices
                )
                complete &= {spec["driver"] for spec in slices if spec.get("devices")} >= wanted
                names = {device["name"] for spec in slices for device in spec.get("devices") or ()}
                parted = {self._whole(name) for name in names if self._whole(name) != name}
                if complete and (parted == {*self._names} if divided else not parted and names >= {*self._names}):
                    totals = counters_of(slices)
                    devices = [
                        device_of(spec["driver"], device, totals)
                        for spec in slices
                        for device in spec.get("devices") or ()
                    ]
                    return tuple(
                        sorted((device for device in devices if device is not None), key=lambda device: device.name)
                    )
                await asyncio.sleep(0.05)

    def _make_static(self) -> None:
        """By the administrator's hand, at each boot."""
        for index, role in enumerate(self.layout.roles):
            if role == "static":
                where = self._index_of(index)
                self.host.set_mig(where, 1)
                for profile in _STATIC:
                    self.host.make_instance(where, profile)

    def _index_of(self, role: int) -> int:
        """Where the GPU of this role is in NVML's order now, which a boot may change."""
        return [gpu.uuid for gpu in self.host.state.gpus].index(self.uuids[role])


type Totals = Mapping[tuple[str, str], float]


def counters_of(slices: Iterable[JsonObject]) -> Totals:
    """How much there is of each counter, by its set and name."""
    sets = [counter_set for spec in slices for counter_set in spec.get("sharedCounters") or ()]
    return {
        (counter_set["name"], name): _amount(value)
        for counter_set in sets
        for name, value in counter_set["counters"].items()
    }


def device_of(driver: str, device: JsonObject, totals: Totals) -> Device | None:
    """What the plan needs of a published device; None for one that users' claims do not get."""
    name, binds = device["name"], bool(device.get("bindingConditions"))
    if driver == COMPUTE_DOMAIN_DRIVER:
        return Device(name, "channel", {name: 1.0}, binds=binds) if name.startswith("channel-") else None
    if device.get("allowMultipleAllocations"):
        shares = device.get("capacity") or {}
        consumed = {"memory": "1Gi", "cores": "10"} if "cores" in shares else {}
        return Device(name, "share", {name: 0.01}, consumed)
    kinds: Mapping[str, Kind] = {"gpu": "gpu", "mig": "mig", "vfio": "vfio"}
    uses = {
        f"{consumed['counterSet']}/{counter}": _amount(value) / totals[consumed["counterSet"], counter]
        for consumed in device.get("consumesCounters") or ()
        for counter, value in consumed["counters"].items()
        if totals[consumed["counterSet"], counter]
    }
    return Device(name, kinds[device["attributes"]["type"]["string"]], uses or {name: 1.0}, binds=binds)


def _amount(counter: JsonObject) -> float:
    return float(Quantity.parse(counter["value"]).value)
