"""One simulated kubelet: pods of its node run or say why not, and their devices arrive through CDI.

A worker per pod does what kubelet's does: prepare the claims, resolve the CDI devices from the spec files, "start" the
containers, and in the end release everything. What a container would have got is written to
`pods/<uid>/containers.json` below the root, since only containers of known programs really run
(`dra_driver.simulation.kubelet.containers`). `stop` and a new object with the same root are a kubelet restart.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import grpc.aio
import structlog

from dra_driver.api.meta import PODS, RESOURCE_SLICES, JsonObject
from dra_driver.cdi.edits import ADMIN_DEVICE_VARIABLE, DEVICE_VARIABLE, in_variables
from dra_driver.cdi.inject import SPEC_SUFFIXES, ContainerDescription, SpecFile, SpecFiles, decode, inject
from dra_driver.cdi.model import json_of
from dra_driver.errors import ClusterError, Conflict, DriverError, InvalidInput, NotFound, Rejected
from dra_driver.kube import kubelet_api
from dra_driver.kube.client import Kube
from dra_driver.kube.kubelet_api.generated import health_v1_pb2, health_v1alpha1_pb2
from dra_driver.kube.watch import Change, Reflector
from dra_driver.runtime.tasks import end_tasks, until
from dra_driver.simulation.kubelet import pods, shell
from dra_driver.simulation.kubelet.claim_manager import (
    ClaimManager,
    ClaimRecord,
    container_devices,
)
from dra_driver.simulation.kubelet.containers import Containers, ContainerStanding
from dra_driver.simulation.kubelet.registry import Plugin, PluginRegistry, Times
from dra_driver.simulation.pods import is_done
from dra_driver.simulation.writes import delete, patch_status, tell, timestamp

_log = structlog.get_logger(__name__)


def read_folders(folders: Sequence[Path]) -> SpecFiles:
    """All valid specs; a bad file is left out with its reason and does not hide the others."""
    files, unreadable = [], {}
    for priority, folder in enumerate(folders):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.suffix not in SPEC_SUFFIXES:
                continue
            try:
                files.append(SpecFile(path, priority, decode(path.read_bytes(), about=str(path))))
            except FileNotFoundError:
                continue
            except (InvalidInput, OSError) as error:
                unreadable[str(path)] = str(error)
    return SpecFiles(tuple(files), unreadable)


class SimulatedKubelet:
    """The kubelet of one node. `root` is its folder (`/var/lib/kubelet`), `cdi_folders` in rising priority."""

    def __init__(
        self,
        kube: Kube,
        node_name: str,
        root: Path,
        *,
        cdi_folders: Sequence[Path],
        times: Times | None = None,
        containers: Containers | None = None,
        new_address: Callable[[], str] | None = None,
        silent: frozenset[str] = frozenset(),
    ) -> None:
        """`containers` runs what it can, by default nothing. `new_address` gives a pod its address; None: they have
        none. `silent` are drivers without a plugin here, whose claims are ready as they are."""
        self.node_name = node_name
        self.root = root
        self._kube = kube
        self._cdi_folders = tuple(cdi_folders)
        self._times = times or Times()
        self._real = containers or Containers(root / "containers", {})
        self._new_address = new_address
        self.health = NodeDeviceHealth(self._health_changed, self._times.health_retry_s)
        self.registry = PluginRegistry(
            root / "plugins_registry", self._times, self._drivers_changed, self.health.follow
        )
        self.claims = ClaimManager(kube, self.registry, root / "dra_manager_state", self._times, silent)
        self._pods = Reflector(kube, PODS, field_selector=f"spec.nodeName={node_name}", on_change=self._pod_changed)
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._wake: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._wipes: dict[str, asyncio.Task[None]] = {}
        self._seen_drivers: set[str] = set()
        self._reported: dict[str, str] = {}

    async def start(self) -> None:
        """Start as kubelet does: this node's slices are deleted, plugins register, pods are synced."""
        self.claims.load()
        self._tasks = [
            asyncio.create_task(self._wipe(f"spec.nodeName={self.node_name}")),
            asyncio.create_task(self.registry.run()),
            asyncio.create_task(self._pods.run()),
            asyncio.create_task(self._reconcile()),
        ]

    async def stop(self) -> None:
        """End at once, as a killed kubelet; pods stay as they are."""
        await end_tasks(*self._tasks, *self._workers.values(), *self._wipes.values())
        self._tasks, self._workers, self._wipes = [], {}, {}

    def containers(self, pod_uid: str) -> list[JsonObject]:
        """The containers of a pod that was started, with what CDI gave them."""
        content: list[JsonObject] = json.loads(self._containers_file(pod_uid).read_text())
        return content

    # What people ask of containers.

    async def log(self, pod: JsonObject, container: str) -> str:
        """What the container printed; of a program that does not run here, what it would see."""
        if self._real.are_real(pod):
            return self._real.log(pod["metadata"]["uid"], container)
        logs_file = self._logs_file(pod["metadata"]["uid"])
        if logs_file.exists() and container in (logs := json.loads(logs_file.read_text())):
            return str(logs[container])
        view = await self._view(pod, container)
        try:
            return shell.run(view, view.command).text if view.command else shell.described(view)
        except shell.NotUnderstood:
            return shell.described(view)

    async def execute(self, pod: JsonObject, container: str, command: Sequence[str]) -> shell.Printed:
        """A command in a container that runs. Raises `shell.NotUnderstood`."""
        return shell.run(await self._view(pod, container), command)

    async def _view(self, pod: JsonObject, name: str) -> shell.ContainerView:
        container = next(item for item in pods.containers_of(pod) if item["name"] == name)
        got = next(item for item in self.containers(pod["metadata"]["uid"]) if item["name"] == name)
        paths = [
            item[key] for kind, key in (("deviceNodes", "path"), ("mounts", "containerPath")) for item in got[kind]
        ]
        answered = [device for _, _, device in container_devices(pod, container, self.claims.records())]
        slices = await self._kube.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={self.node_name}")
        return shell.ContainerView(
            hostname=pod["spec"].get("hostname") or pod["metadata"]["name"],
            image=container.get("image", ""),
            command=shell.command_of(container),
            env=tuple(got["env"]),
            files=tuple(sorted(paths)),
            gpus=gpus_seen(slices.items, {(device.pool, device.device) for device in answered}, got["env"]),
            now=timestamp(),
        )

    def _containers_file(self, pod_uid: str) -> Path:
        return self.root / "pods" / pod_uid / "containers.json"

    def _logs_file(self, pod_uid: str) -> Path:
        return self._containers_file(pod_uid).with_name("logs.json")

    # Slices: wiped at start and after a driver was away for a while.

    def _drivers_changed(self) -> None:
        connected = self.registry.connected_drivers()
        self._seen_drivers |= connected
        for driver in self._seen_drivers:
            wiping = self._wipes.get(driver)
            if driver in connected:
                if wiping is not None:
                    wiping.cancel()
                    del self._wipes[driver]
            elif wiping is None:
                self._wipes[driver] = asyncio.create_task(self._wipe_later(driver))

    async def _wipe_later(self, driver: str) -> None:
        await asyncio.sleep(self._times.wipe_after_s)
        self._seen_drivers.discard(driver)
        self._wipes.pop(driver, None)
        await self._wipe(f"spec.nodeName={self.node_name},spec.driver={driver}")

    async def _wipe(self, fields: str) -> None:
        while True:
            try:
                await self._kube.delete_collection(RESOURCE_SLICES, field_selector=fields)
                return
            except ClusterError as error:
                _log.warning("cannot delete ResourceSlices", node=self.node_name, error=str(error))
                await asyncio.sleep(1.0)

    # Pods.

    def _pod_changed(self, change: Change) -> None:
        for pod in (change.before, change.after):
            if pod is not None:
                uid = pod["metadata"]["uid"]
                self._wake.setdefault(uid, asyncio.Event()).set()
                if uid not in self._workers:
                    worker = asyncio.create_task(self._work(change.key, uid))
                    self._workers[uid] = worker
                    worker.add_done_callback(partial(self._workers.pop, uid))

    def _pod(self, key: tuple[str, str], uid: str) -> JsonObject | None:
        pod = self._pods.objects.get(key)
        return pod if pod is not None and pod["metadata"]["uid"] == uid else None

    async def _work(self, key: tuple[str, str], uid: str) -> None:
        """From the pod's first sight until nothing is left of it."""
        started = False
        ends_at: float | None = None
        while (pod := self._pod(key, uid)) is not None:
            self._wake[uid].clear()
            wait_s: float | None = None
            try:
                if is_done(pod):
                    await self._end(uid)
                if pod["metadata"].get("deletionTimestamp"):
                    await self._end(uid)
                    with suppress(NotFound, Conflict):
                        await delete(self._kube, PODS, pod, grace_period_s=0)
                    break
                if not is_done(pod):
                    if not started:
                        await self._start(pod)
                        started = True
                        lives_s = pods.lifetime_s(pod)
                        ends_at = None if lives_s is None else asyncio.get_running_loop().time() + lives_s
                    wait_s = None if ends_at is None else max(ends_at - asyncio.get_running_loop().time(), 0.0)
                    if pods.asks_to_complete(pod) or wait_s == 0.0:
                        await self._finish(pod)
                    elif pods.is_running(pod):
                        await self._show(pod, self._real.standings(uid))
            except DriverError as error:
                await self._report(pod, error)
                wait_s = self._times.pod_retry_s
            await until(self._wake[uid], wait_s)
        await self._release(uid)

    async def _finish(self, pod: JsonObject) -> None:
        """Its logs are written now, because its claims are about to be released."""
        logs = {item["name"]: await self.log(pod, item["name"]) for item in pod["spec"]["containers"]}
        self._logs_file(pod["metadata"]["uid"]).write_text(json.dumps(logs))
        await self._show(pod, pods.finished(pod))

    async def _start(self, pod: JsonObject) -> None:
        await self.claims.prepare(pod)
        status = pod.get("status") or {}
        if self._new_address is not None and not status.get("podIP"):
            address = self._new_address()
            pod = {**pod, "status": {**status, "podIP": address, "podIPs": [{"ip": address}]}}
        # Settling the specs is what the container runtime does; a device that does not resolve stops the start.
        specs = read_folders(self._cdi_folders)
        written, described = [], {}
        for container in pods.containers_of(pod):
            devices = container_devices(pod, container, self.claims.records())
            ids = list(dict.fromkeys(name for _, _, device in devices for name in device.cdi_ids))
            plain = ContainerDescription(env=tuple(pods.environment(pod, container)))
            described[container["name"]] = inject(plain, ids, specs)
            written.append({"name": container["name"], "cdiDevices": ids} | _described(described[container["name"]]))
        path = self._containers_file(pod["metadata"]["uid"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(written, indent=1))
        if self._real.are_real(pod):
            self._real.start(pod, described, self._wake[pod["metadata"]["uid"]].set)
        if not pods.is_running(pod):
            given = {name: pod["status"][name] for name in ("podIP", "podIPs") if name in (pod.get("status") or {})}
            await self._show(pod, self._real.standings(pod["metadata"]["uid"]), given)

    async def _end(self, uid: str) -> None:
        """The containers first: what they have is given back when it is no longer in use. Raises DriverError."""
        await self._real.stop(uid)
        await self.claims.unprepare(uid)

    async def _show(
        self, pod: JsonObject, standings: Mapping[str, ContainerStanding], given: JsonObject | None = None
    ) -> None:
        """Write how the containers stand, and `given` fields of the status, unless the pod shows it already."""
        records = self.claims.records()
        health = [
            allocated_resources_status(pod, container, records, self.health) for container in pod["spec"]["containers"]
        ]
        status = pods.status_of(pod, health, timestamp(), standings)
        if given or not pods.looks_like(pod, status):
            with suppress(NotFound, Rejected):
                await patch_status(self._kube, pod, (given or {}) | status)

    def _health_changed(self) -> None:
        for uid in self._workers:
            self._wake[uid].set()

    async def _release(self, uid: str) -> None:
        """The pod is gone from the API: its claims are released, now or by the reconcile loop."""
        with suppress(DriverError):
            await self._end(uid)
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        self._wake.pop(uid, None)
        self._reported.pop(uid, None)
        path = self._containers_file(uid)
        path.unlink(missing_ok=True)
        self._logs_file(uid).unlink(missing_ok=True)
        with suppress(OSError):  # others have files there
            path.parent.rmdir()

    async def _reconcile(self) -> None:
        """Claims of pods that kubelet no longer knows are released; also after a restart, from the record."""
        await self._pods.synced.wait()
        while True:
            known = {pod["metadata"]["uid"] for pod in self._pods.objects.values()} | self._workers.keys()
            orphans = {uid for record in self.claims.records() for uid in record.pods} - known
            for uid in sorted(orphans):
                await self._release(uid)
            await asyncio.sleep(self._times.reconcile_s)

    async def _report(self, pod: JsonObject, error: DriverError) -> None:
        """An event on the pod; one for each different reason."""
        metadata = pod["metadata"]
        deleting = metadata.get("deletionTimestamp") or is_done(pod)
        reason = "FailedUnprepareDynamicResources" if deleting else "FailedPrepareDynamicResources"
        message = f"Failed to {'un' if deleting else ''}prepare dynamic resources: {error}"
        _log.warning("pod cannot continue", node=self.node_name, pod=metadata["name"], reason=str(error))
        if self._reported.get(metadata["uid"]) == message:
            return
        self._reported[metadata["uid"]] = message
        await tell(self._kube, "kubelet", pod, "Warning", reason, message, host=self.node_name)


def gpus_seen(
    slices: Sequence[JsonObject], devices: Set[tuple[str, str]], env: Sequence[str]
) -> tuple[shell.SmiGpu, ...]:
    """Of published devices, by pool and name, those that are GPUs or parts of them. A MIG device that was created for a
    claim has no UUID in the slice, but in a variable of the container."""
    variables = dict(item.partition("=")[::2] for item in env)
    seen = []
    for item in slices:
        for device in item["spec"].get("devices") or ():
            attributes = device.get("attributes") or {}
            texts = {name: value.get("string", "") for name, value in attributes.items()}
            if (item["spec"]["pool"]["name"], device["name"]) in devices and texts.get("type") in ("gpu", "mig"):
                variable = in_variables(device["name"])
                known = [variables.get(prefix + variable) for prefix in (DEVICE_VARIABLE, ADMIN_DEVICE_VARIABLE)]
                texts.setdefault("uuid", next(filter(None, known), ""))
                names = ("productName", "uuid", "profile", "parentUUID")
                seen.append(shell.SmiGpu(*(texts.get(name, "") for name in names)))
    return tuple(seen)


def _described(container: ContainerDescription) -> JsonObject:
    """As CDI writes it, empty lists included."""
    return {
        "env": list(container.env),
        "deviceNodes": json_of(container.device_nodes),
        "mounts": json_of(container.mounts),
        "hooks": json_of(container.hooks),
        "additionalGids": list(container.additional_gids),
    }


# -- health of devices

_WORDS = {0: "Unknown", 1: "Healthy", 2: "Unhealthy"}
_TIMEOUT_S = 30
_LONGEST_MESSAGE = 1024


class NodeDeviceHealth:
    """What is known of all devices of this node. `changed` is called when it may have changed."""

    def __init__(self, changed: Callable[[], None], retry_s: float) -> None:
        self._changed = changed
        self._retry_s = retry_s
        self._known: dict[Plugin, dict[tuple[str, str], tuple[str, str, float]]] = {}
        """Of each device, by pool and name: Healthy, Unhealthy or Unknown, a message, and until when that holds."""

    async def follow(self, plugin: Plugin) -> None:
        """Listen to one instance of a driver until cancelled, or at once when it has no health to tell. v1 is used when
        it is offered; v1alpha1 is tried in any case, as kubelets of 1.34 to 1.36 do."""
        is_v1 = kubelet_api.HEALTH_V1 in plugin.versions
        service = kubelet_api.HEALTH_V1 if is_v1 else kubelet_api.HEALTH_V1ALPHA1
        messages: ModuleType = health_v1_pb2 if is_v1 else health_v1alpha1_pb2
        watch = plugin.channel.unary_stream(
            f"/{service}/NodeWatchResources",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=messages.NodeWatchResourcesResponse.FromString,
        )
        while True:
            try:
                async for message in watch(messages.NodeWatchResourcesRequest()):
                    self._learn(plugin, message)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return
            finally:
                if self._known.pop(plugin, None):
                    self._changed()
            await asyncio.sleep(self._retry_s)

    def of(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        """Health and message; from the newest instance of the driver that knows it."""
        now = asyncio.get_running_loop().time()
        for plugin, devices in reversed(self._known.items()):
            word, message, until = devices.get((pool, device), ("Unknown", "", 0.0))
            if plugin.driver == driver and until > now:
                return word, message
        return "Unknown", ""

    def _learn(self, plugin: Plugin, message: Any) -> None:
        loop = asyncio.get_running_loop()
        known = {}
        for item in message.devices:
            timeout_s = item.health_check_timeout_seconds or _TIMEOUT_S
            text = item.message
            if len(text) > _LONGEST_MESSAGE:
                text = f"{text[: _LONGEST_MESSAGE - 3]}..."
            word = _WORDS.get(item.health, "Unknown")
            known[item.device.pool_name, item.device.device_name] = (word, text, loop.time() + timeout_s)
            loop.call_later(timeout_s, self._changed)
        before, self._known[plugin] = self._known.get(plugin, {}), known
        if {device: health[:2] for device, health in before.items()} != {
            device: health[:2] for device, health in known.items()
        }:
            self._changed()


def allocated_resources_status(
    pod: JsonObject, container: JsonObject, records: Sequence[ClaimRecord], health: NodeDeviceHealth
) -> list[JsonObject]:
    """`allocatedResourcesStatus` of one container: each claim, or request of one, that it refers to.

    A real kubelet reports nothing about the claim that was made for extended resources, and an API server refuses it.
    """
    asked = {claim["name"] for claim in (container.get("resources") or {}).get("claims") or ()}
    statuses: dict[str, list[JsonObject]] = {}
    for name, driver, device in container_devices(pod, container, records):
        if name.partition("/")[0] in asked:
            word, message = health.of(driver, device.pool, device.device)
            id_ = device.cdi_ids[0] if device.cdi_ids else f"{driver}/{device.pool}/{device.device}"
            resource = {"resourceID": id_, "health": word} | ({"message": message} if message else {})
            statuses.setdefault(name, []).append(resource)
    return [{"name": f"claim:{name}", "resources": resources} for name, resources in statuses.items()]
