"""Kubelet's plugin watcher: sockets in the registration directory become drivers that can be called.

Per socket: dial, GetInfo, check that it serves v1, connect to the DRA endpoint, NotifyRegistrationStatus; any failure
starts all of it again later. A socket that disappears is a plugin that deregistered. Several instances of one driver
may be registered; calls go to the newest that is connected. Source: plugin manager and DRA plugin store of 1.36.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import structlog

from dra_driver.errors import NodeNotReady, Unreachable
from dra_driver.kube import kubelet_api
from dra_driver.kube.kubelet_api.generated import dra_v1_pb2, registration_pb2
from dra_driver.runtime.tasks import end_tasks

_VERSION = "v1.DRAPlugin"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Times:
    """Kubelet's clock settings in seconds. The defaults are those of Kubernetes 1.36; tests shorten them."""

    registry_poll_s: float = 0.2
    """How often the registration directory is looked at (kubelet: a file watch and a loop each second)."""
    dial_s: float = 10.0
    info_s: float = 1.0
    notify_s: float = 5.0
    registration_retry_s: float = 0.5
    """First wait after a failed registration; doubled each time."""
    call_s: float = 45.0
    """Deadline of a prepare or unprepare call."""
    pod_retry_s: float = 10.0
    """Wait before a pod start that failed is tried again (kubelet: about 90)."""
    health_retry_s: float = 5.0
    """Wait before a health stream that ended is opened again."""
    reconcile_s: float = 60.0
    """How often claims of pods that are gone are looked for."""
    wipe_after_s: float = 30.0
    """How long a driver may be without a connection before its slices are deleted."""


@dataclass(slots=True, eq=False)
class Plugin:
    """One registered instance of a driver."""

    driver: str
    endpoint: str
    versions: tuple[str, ...]
    channel: grpc.aio.Channel
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """Every DRA call made to this instance: method and claim UIDs."""

    @property
    def connected(self) -> bool:
        """As gRPC sees it now: a busy event loop must not delay what kubelet sees at once."""
        return self.channel.get_state() is grpc.ChannelConnectivity.READY

    async def call(self, method: str, claims: list[dict[str, str]], deadline_s: float) -> Any:
        """One DRA call. Raises Unreachable with the gRPC status when the call as a whole failed."""
        self.calls.append((method, tuple(claim["uid"] for claim in claims)))
        response = getattr(dra_v1_pb2, f"{method}Response")
        request = getattr(dra_v1_pb2, f"{method}Request")(claims=[dra_v1_pb2.Claim(**claim) for claim in claims])
        try:
            return await _unary(self.channel, f"/{kubelet_api.DRA_V1}/{method}", request, response, deadline_s)
        except grpc.aio.AioRpcError as error:
            raise Unreachable(f"{error.code().name}: {error.details()}", about=f"DRA driver {self.driver}") from error
        except (asyncio.CancelledError, grpc.aio.UsageError):
            # So ends a call whose connection is closed, because the plugin's registration socket went.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise Unreachable(
                "CANCELLED: the plugin is no longer registered", about=f"DRA driver {self.driver}"
            ) from None


class PluginRegistry:
    """The drivers of this node. `changed` is called when the set of connected drivers may have changed.

    `beside` runs for each plugin as long as it is registered.
    """

    def __init__(
        self,
        folder: Path,
        times: Times,
        changed: Callable[[], None],
        beside: Callable[[Plugin], Coroutine[None, None, None]] | None = None,
    ) -> None:
        self._folder = folder
        self._times = times
        self._changed = changed
        self._beside = beside
        self._plugins: dict[Path, Plugin] = {}
        """By registration socket, in order of registration."""
        self._workers: dict[Path, tuple[tuple[int, int], asyncio.Task[None]]] = {}
        self.failures: list[str] = []
        """Why registrations failed, oldest first; tests look at it."""

    def newest(self, driver: str) -> Plugin:
        """The instance to call. Raises NodeNotReady when the driver is not registered."""
        instances = [plugin for plugin in self._plugins.values() if plugin.driver == driver]
        if not instances:
            raise NodeNotReady(f"DRA driver {driver} is not registered")
        connected = [plugin for plugin in instances if plugin.connected]
        return (connected or instances)[-1]

    def plugins(self) -> Iterator[Plugin]:
        """All registered instances, oldest first."""
        yield from self._plugins.values()

    def connected_drivers(self) -> set[str]:
        return {plugin.driver for plugin in self._plugins.values() if plugin.connected}

    def drivers(self) -> set[str]:
        return {plugin.driver for plugin in self._plugins.values()}

    async def run(self) -> None:
        """Follow the directory until cancelled; then every connection is closed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            while True:
                await self._look()
                await asyncio.sleep(self._times.registry_poll_s)
        finally:
            for path in list(self._workers):
                await self._forget(path)

    async def _look(self) -> None:
        present = {path: identity for path in self._folder.iterdir() if (identity := _socket_identity(path))}
        for path, (identity, _) in list(self._workers.items()):
            if present.get(path) != identity:
                await self._forget(path)
        for path, identity in sorted(present.items()):
            if path not in self._workers:
                self._workers[path] = (identity, asyncio.create_task(self._keep(path)))

    async def _forget(self, path: Path) -> None:
        _, worker = self._workers.pop(path)
        await end_tasks(worker)
        plugin = self._plugins.pop(path, None)
        if plugin is not None:
            await plugin.channel.close()
        self._changed()

    async def _keep(self, path: Path) -> None:
        """Register, trying again after failures, and then follow the connection and what runs beside it."""
        wait_s = self._times.registration_retry_s
        while True:
            try:
                plugin = await self._register(path)
                break
            except (grpc.aio.AioRpcError, NodeNotReady, TimeoutError) as error:
                reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
                self.failures.append(f"{path.name}: {reason or type(error).__name__}")
                _log.debug("registration failed", socket=path.name, error=reason)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, 60.0)
        async with asyncio.TaskGroup() as tasks:
            if self._beside is not None:
                tasks.create_task(self._beside(plugin))
            tasks.create_task(self._follow(plugin))

    async def _follow(self, plugin: Plugin) -> None:
        while True:
            state = plugin.channel.get_state(try_to_connect=True)
            self._changed()
            await plugin.channel.wait_for_state_change(state)

    async def _register(self, path: Path) -> Plugin:
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            await asyncio.wait_for(channel.channel_ready(), self._times.dial_s)
            prefix = f"/{kubelet_api.REGISTRATION}"
            info = await _unary(
                channel,
                f"{prefix}/GetInfo",
                registration_pb2.InfoRequest(),
                registration_pb2.PluginInfo,
                self._times.info_s,
            )

            async def notify(error: str = "") -> None:
                status = registration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
                answer = registration_pb2.RegistrationStatusResponse
                await _unary(channel, f"{prefix}/NotifyRegistrationStatus", status, answer, self._times.notify_s)

            try:
                plugin = self._plugin(path, info)
            except NodeNotReady as error:
                await notify(str(error))
                raise
            self._plugins[path] = plugin
            try:
                await notify()
            except BaseException:
                self._plugins.pop(path, None)
                await plugin.channel.close()
                raise
            return plugin

    def _plugin(self, path: Path, info: Any) -> Plugin:
        """Validate what GetInfo answered. Raises NodeNotReady, the text of which goes back to the plugin."""
        if info.type != kubelet_api.PLUGIN_TYPE:
            raise NodeNotReady(f"plugin type {info.type!r} is not handled")
        endpoint = info.endpoint or str(path)
        if _VERSION not in info.supported_versions:
            raise NodeNotReady(f"none of the versions {list(info.supported_versions)} is supported")
        if any(plugin.driver == info.name and plugin.endpoint == endpoint for plugin in self._plugins.values()):
            raise NodeNotReady(f"endpoint {endpoint} is registered already for driver {info.name}")
        channel = grpc.aio.insecure_channel(f"unix:{endpoint}", options=(("grpc.use_local_subchannel_pool", 1),))
        channel.get_state(try_to_connect=True)  # before the plugin learns that it is registered, as kubelet does
        return Plugin(info.name, endpoint, tuple(info.supported_versions), channel)


def _socket_identity(path: Path) -> tuple[int, int] | None:
    """The identity of a socket, new for a new socket of the same name; None for other files."""
    if path.name.startswith("."):
        return None
    with contextlib.suppress(FileNotFoundError):
        if path.is_socket():
            stat = path.stat()
            return stat.st_ino, stat.st_ctime_ns
    return None


async def _unary(channel: grpc.aio.Channel, method: str, request: Any, response: Any, timeout_s: float) -> Any:
    call = channel.unary_unary(
        method,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=response.FromString,
    )
    return await call(request, timeout=timeout_s)
