"""The two sockets that a kubelet calls: `DRAPlugin` v1 with the health stream v1 and v1alpha1, and registration.

Names of unix sockets are limited to 108 bytes by the kernel. Two plugins of one driver serve at the same time during a
rolling update, so both names contain the pod's UID, or a hash of it if a name would be too long.

`DraServer` decides nothing: it passes claims to the `ClaimHandler` and returns its answer for each. An unexpected
exception becomes the answer for the affected claims, and never ends the process.

`RegistrationServer` gives the kubelet the driver's name and DRA socket, and receives the result of the registration. It
is opened after the DRA socket serves and closed before it stops, so that the kubelet never calls a missing socket.
"""

import asyncio
import base64
import hashlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import grpc
import grpc.aio
import structlog

from dra_driver.errors import DriverError, InvalidInput, NodeNotReady
from dra_driver.kube import kubelet_api
from dra_driver.kube.kubelet_api import DRA_V1
from dra_driver.kube.kubelet_api.generated import dra_v1_pb2, registration_pb2
from dra_driver.names import ClaimRef
from dra_driver.runtime.tasks import until
from kubelet_plugin.rpc import messages

_log = structlog.get_logger(__name__)

_LONGEST_PATH = 107
"""sun_path holds 108 bytes with the terminating zero. Source: unix(7)."""
_LOOK_AT_SOCKETS_S = 5.0
HEALTH_TIMEOUT_S = 30
"""How long the kubelet may rely on a health message."""
_HEALTH_REPEAT_S = 10.0
_DRAIN_S = 50.0
"""Longer than the kubelet's deadline of 45 s for one call."""

_OPTIONS = (
    # The kubelet has one connection; more polling threads and buffers only cost memory.
    ("grpc.max_concurrent_streams", 128),
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True)
class Sockets:
    """The sockets of a plugin process: for the kubelet's DRA calls and for registration."""

    dra: Path
    registration: Path


def plugin_sockets(kubelet_root: Path, driver: str, pod_uid: str | None) -> Sockets:
    """The two sockets of a plugin process. Raises InvalidInput if even the shortest names are too long. Without a pod
    UID they have the classic names, so that only one process can serve.
    """
    data, registry = kubelet_root / "plugins" / driver, kubelet_root / "plugins_registry"
    if pod_uid is None:
        names = [("dra.sock", f"{driver}-reg.sock")]
    else:
        short = _digest(pod_uid, 8)
        shortest = _digest(f"{driver}\0{pod_uid}", 16)
        names = [
            (f"dra-{pod_uid}.sock", f"{driver}-{pod_uid}-reg.sock"),
            (f"dra-{short}.sock", f"{driver}-{short}-reg.sock"),
            (f"dra-{short}.sock", f"dra-{shortest}-reg.sock"),
        ]
    for dra, registration in names:
        sockets = Sockets(data / dra, registry / registration)
        if max(len(str(sockets.dra).encode()), len(str(sockets.registration).encode())) <= _LONGEST_PATH:
            return sockets
    raise InvalidInput(
        f"unix sockets below this folder would have paths over {_LONGEST_PATH} bytes; use a shorter one",
        about=f"kubelet root {kubelet_root}",
    )


def _digest(text: str, size: int) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).decode().rstrip("=")


async def listen(server: grpc.aio.Server, path: Path) -> None:
    """Serves on a socket that only root can open; removes the socket of an earlier process first. Raises NodeNotReady
    if the folder or the socket cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_socket(path)
        server.add_insecure_port(f"unix:{path}")
        path.chmod(0o600)
    except (OSError, RuntimeError) as error:
        raise NodeNotReady(f"cannot listen: {error}", about=f"socket {path}") from error
    # grpc cannot be interrupted here, and without a stop its destructor would stop it, after the event loop has ended.
    start = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(start)
    except asyncio.CancelledError:
        await start
        await server.stop(None)
        remove_socket(path)
        raise


def remove_dead(own: Sockets, driver: str) -> tuple[Path, ...]:
    """Removes and returns sockets of killed plugin processes. Raises OSError. Their pods had other UIDs, so no process
    creates these names again, and the kubelet would call them forever. A starting process listens as soon as its socket
    exists; if its socket is removed nevertheless, it notices.
    """
    candidates = (*own.dra.parent.glob("dra*.sock"), *own.registration.parent.glob(f"{driver}*-reg.sock"))
    dead = tuple(
        sorted(
            candidate
            for candidate in candidates
            if candidate not in (own.dra, own.registration) and _is_dead(candidate)
        )
    )
    for path in dead:
        remove_socket(path)
    return dead


def _is_dead(path: Path) -> bool:
    """Whether no process listens on the socket; other errors may be temporary and do not count."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def is_lost(path: Path) -> bool:
    """Whether the socket's name no longer leads to it."""
    return not path.is_socket()


def remove_socket(path: Path) -> None:
    """Removes a socket if it exists."""
    with suppress(FileNotFoundError):
        path.unlink()


class ClaimHandler(Protocol):
    """Prepares claims: `kubelet_plugin.claims.service.ClaimService`."""

    async def prepare(self, claims: Sequence[ClaimRef]) -> messages.Prepared: ...

    async def unprepare(self, claims: Sequence[ClaimRef]) -> messages.Unprepared: ...


class HealthSource(Protocol):
    """Knows the health of the published devices."""

    def device_health(self) -> Iterable[messages.DeviceHealth]:
        """All published devices of this node."""

    def health_changed(self) -> Awaitable[None]:
        """Returns when `device_health` may have changed since this call."""


class DraServer:
    """Serves the DRA services on one unix socket. Call `start`, later `stop`, which lets running calls finish."""

    def __init__(
        self,
        socket: Path,
        claims: ClaimHandler,
        health: HealthSource,
        *,
        part_of: Callable[[str | None], None] | None = None,
    ) -> None:
        """`part_of` is called with the `traceparent` (W3C) of each call, in the call's task; None if there is none."""
        self._socket = socket
        self._part_of = part_of
        self._claims = claims
        self._health = health
        self._server: grpc.aio.Server | None = None
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Binds and serves. Raises NodeNotReady if the socket cannot be created."""
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers(self.services())
        await listen(server, self._socket)
        self._server = server

    async def stop(self) -> None:
        """Refuses new calls, finishes running ones, and removes the socket."""
        server, self._server = self._server, None
        self._stopping.set()
        if server is not None:
            await server.stop(_DRAIN_S)
            remove_socket(self._socket)

    def services(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """The DRA service, and that of health in its versions; `start` serves them."""
        return (self._dra_service(), *map(self._health_service, messages.HEALTH_VERSIONS))

    def _dra_service(self) -> grpc.GenericRpcHandler:
        async def prepare(request: Any, context: grpc.aio.ServicerContext) -> Any:
            self._adopt(context)
            claims = messages.claims_of(request)
            return messages.prepare_response(claims, await _answered(self._claims.prepare, claims))

        async def unprepare(request: Any, context: grpc.aio.ServicerContext) -> Any:
            self._adopt(context)
            claims = messages.claims_of(request)
            return messages.unprepare_response(claims, await _answered(self._claims.unprepare, claims))

        return grpc.method_handlers_generic_handler(
            DRA_V1,
            {
                "NodePrepareResources": unary(prepare, dra_v1_pb2.NodePrepareResourcesRequest),
                "NodeUnprepareResources": unary(unprepare, dra_v1_pb2.NodeUnprepareResourcesRequest),
            },
        )

    def _adopt(self, context: grpc.aio.ServicerContext) -> None:
        if self._part_of is not None:
            self._part_of(next((value for key, value in context.invocation_metadata() if key == "traceparent"), None))

    def _health_service(self, version: messages.HealthVersion) -> grpc.GenericRpcHandler:
        async def watch(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            while not self._stopping.is_set():
                # Started first, so that no change in between is missed.
                changed = self._health.health_changed()
                yield messages.health_response(version, self._health.device_health(), HEALTH_TIMEOUT_S)
                await _first(changed, self._stopping.wait(), timeout_s=_HEALTH_REPEAT_S)

        handler = grpc.unary_stream_rpc_method_handler(
            watch,
            request_deserializer=version.messages.NodeWatchResourcesRequest.FromString,
            response_serializer=_serialize,
        )
        return grpc.method_handlers_generic_handler(version.service, {"NodeWatchResources": handler})


def unary(method: Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]], request: Any) -> grpc.RpcMethodHandler:
    """A method with one answer; `request` is the type of its message."""
    return grpc.unary_unary_rpc_method_handler(
        method, request_deserializer=request.FromString, response_serializer=_serialize
    )


def _serialize(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


async def _answered[T](
    call: Callable[[Sequence[ClaimRef]], Awaitable[Mapping[str, T]]], claims: Sequence[ClaimRef]
) -> Mapping[str, T | DriverError]:
    """The handler's answer; an unexpected exception is logged with its stack trace and becomes the answer for every
    claim."""
    try:
        return await call(claims)
    except Exception as error:  # noqa: BLE001 - the kubelet must get an answer in every case
        _log.exception("a call of the kubelet failed unexpectedly", claims=[str(claim) for claim in claims])
        reason = f"internal error: {type(error).__name__}: {error}; see the log of the node plugin"
        return {claim.uid: DriverError(reason, about=str(claim)) for claim in claims}


async def _first(*waits: Awaitable[object], timeout_s: float) -> None:
    """Waits until one of these is done, or the time is over."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class RegistrationServer:
    """Answers the kubelet's plugin watcher for one driver. `registered()` is called at each successful registration;
    its exception is returned to the kubelet, which then tries again.
    """

    def __init__(self, sockets: Sockets, driver: str, registered: Callable[[], None]) -> None:
        self._sockets = sockets
        self._driver = driver
        self._registered = registered
        self._is_registered = False
        self._refusal: asyncio.Event = asyncio.Event()
        self._reason = ""
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Binds and serves; the kubelet finds the socket by watching the folder. Raises NodeNotReady."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self.service(),))
        await listen(server, self._sockets.registration)
        self._server = server
        self._bury()

    def _bury(self) -> None:
        try:
            for path in remove_dead(self._sockets, self._driver):
                _log.info("removed the socket of a killed plugin", path=str(path))
        except OSError as error:
            _log.warning("cannot search for abandoned sockets", driver=self._driver, error=str(error))

    async def stop(self) -> None:
        """Removes the socket, which deregisters the driver, and stops."""
        server, self._server = self._server, None
        if server is not None:
            remove_socket(self._sockets.registration)
            await server.stop(1.0)

    async def watch(self, look_every_s: float = _LOOK_AT_SOCKETS_S) -> NoReturn:
        """Raises NodeNotReady if the kubelet refused the driver, or if the sockets were removed while serving. Neither
        resolves by itself: a restarted process creates its sockets again.
        """
        while True:
            if await until(self._refusal, look_every_s):
                raise NodeNotReady(f"kubelet refused the registration: {self._reason}", about=f"driver {self._driver}")
            # Already stopped: this process removed it, and running calls may still take some time.
            paths = (self._sockets.dra, self._sockets.registration) if self._server is not None else ()
            for path in filter(is_lost, paths):
                raise NodeNotReady("was removed by something else", about=f"socket {path}")

    def problem(self) -> str | None:
        """Why the kubelet does not call the driver, if known; None after the registration."""
        if self._is_registered:
            return None
        return self._reason or "the kubelet has not registered the driver yet"

    def service(self) -> grpc.GenericRpcHandler:
        """The registration service; `start` serves it."""

        async def get_info(request: Any, context: grpc.aio.ServicerContext) -> Any:
            return registration_pb2.PluginInfo(
                type=kubelet_api.PLUGIN_TYPE,
                name=self._driver,
                endpoint=str(self._sockets.dra),
                supported_versions=kubelet_api.SUPPORTED_VERSIONS,
            )

        async def notify(request: Any, context: grpc.aio.ServicerContext) -> Any:
            if not request.plugin_registered:
                self._refused(request.error)
                await context.abort(grpc.StatusCode.INTERNAL, f"registration failed: {request.error}")
            _log.info("registered with kubelet", driver=self._driver)
            self._registered()
            self._is_registered, self._reason = True, ""
            return registration_pb2.RegistrationStatusResponse()

        return grpc.method_handlers_generic_handler(
            kubelet_api.REGISTRATION,
            {
                "GetInfo": unary(get_info, registration_pb2.InfoRequest),
                "NotifyRegistrationStatus": unary(notify, registration_pb2.RegistrationStatus),
            },
        )

    def _refused(self, reason: str) -> None:
        _log.error("kubelet refused the registration", driver=self._driver, reason=reason)
        self._is_registered, self._reason = False, reason or "no reason given"
        self._refusal.set()


class Closable(Protocol):
    async def close(self) -> None:
        """Returns when running calls have finished."""


@asynccontextmanager
async def serving(dra: DraServer, registration: RegistrationServer, claims: Closable) -> AsyncIterator[None]:
    """Registers after the DRA socket serves, and deregisters before it stops; running calls finish."""
    try:
        await dra.start()
        await registration.start()
        yield
    finally:
        await registration.stop()
        await dra.stop()
        await claims.close()
