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
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

import structlog

from dra_driver.errors import DriverError, InvalidInput, NodeNotReady
from dra_driver.kube import kubelet_api
from dra_driver.kube.kubelet_api import DRA_V1
from dra_driver.kube.kubelet_api.generated import dra_v1_pb2, registration_pb2
from dra_driver.names import ClaimRef
from dra_driver.runtime.tasks import end_tasks, to_next, until
from kubelet_plugin.rpc import messages
from kubelet_plugin.rpc.grpc_server import CallFailed, GrpcServer, GrpcStatus, Metadata, Methods, Streaming, Unary

_log = structlog.get_logger(__name__)

_LONGEST_PATH = 106
"""sun_path holds 108 bytes with the terminating zero (unix(7)), and a socket begins with a dot before its name."""
_LOOK_AT_SOCKETS_S = 5.0
HEALTH_TIMEOUT_S = 30
"""How long the kubelet may rely on a health message."""
_HEALTH_REPEAT_S = 10.0
_DRAIN_S = 50.0
"""Longer than the kubelet's deadline of 45 s for one call."""


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


def remove_dead(own: Sockets, driver: str) -> tuple[Path, ...]:
    """Removes and returns sockets of killed plugin processes. Raises OSError. Their pods had other UIDs, so no process
    creates these names again, and the kubelet would call them forever. A starting process listens before its socket has
    its name.
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
        path.unlink(missing_ok=True)
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
        self._server = GrpcServer(self.methods())
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Binds and serves. Raises NodeNotReady if the socket cannot be created."""
        self._stopping.clear()
        await self._server.listen(self._socket)

    async def stop(self) -> None:
        """Refuses new calls, finishes running ones, and removes the socket."""
        self._stopping.set()
        await self._server.stop(_DRAIN_S)

    def methods(self) -> Methods:
        """Those of DRA, and of health in its versions; `start` serves them."""
        return {
            f"/{DRA_V1}/NodePrepareResources": Unary(dra_v1_pb2.NodePrepareResourcesRequest, self._prepare),
            f"/{DRA_V1}/NodeUnprepareResources": Unary(dra_v1_pb2.NodeUnprepareResourcesRequest, self._unprepare),
        } | {
            f"/{version.service}/NodeWatchResources": Streaming(
                version.messages.NodeWatchResourcesRequest, partial(self._watch, version)
            )
            for version in messages.HEALTH_VERSIONS
        }

    async def _prepare(self, request: Any, metadata: Metadata) -> Any:
        self._adopt(metadata)
        claims = messages.claims_of(request)
        return messages.prepare_response(claims, await _answered(self._claims.prepare, claims))

    async def _unprepare(self, request: Any, metadata: Metadata) -> Any:
        self._adopt(metadata)
        claims = messages.claims_of(request)
        return messages.unprepare_response(claims, await _answered(self._claims.unprepare, claims))

    def _adopt(self, metadata: Metadata) -> None:
        if self._part_of is not None:
            parent = metadata.get(b"traceparent")
            self._part_of(None if parent is None else parent.decode(errors="replace"))

    async def _watch(self, version: messages.HealthVersion, request: Any, metadata: Metadata) -> AsyncGenerator[Any]:
        while not self._stopping.is_set():
            # Started first, so that no change in between is missed.
            changed = self._health.health_changed()
            yield messages.health_response(version, self._health.device_health(), HEALTH_TIMEOUT_S)
            await _first(changed, self._stopping.wait(), timeout_s=to_next(_HEALTH_REPEAT_S))


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
        await end_tasks(*tasks)


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
        self._server = GrpcServer(self.methods())
        self._is_serving = False

    async def start(self) -> None:
        """Binds and serves; the kubelet finds the socket by watching the folder. Raises NodeNotReady."""
        await self._server.listen(self._sockets.registration)
        self._is_serving = True
        self._bury()

    def _bury(self) -> None:
        try:
            for path in remove_dead(self._sockets, self._driver):
                _log.info("removed the socket of a killed plugin", path=str(path))
        except OSError as error:
            _log.warning("cannot search for abandoned sockets", driver=self._driver, error=str(error))

    async def stop(self) -> None:
        """Removes the socket, which deregisters the driver, and stops."""
        self._is_serving = False
        await self._server.stop(1.0)

    async def watch(self, look_every_s: float = _LOOK_AT_SOCKETS_S) -> NoReturn:
        """Raises NodeNotReady if the kubelet refused the driver, or if the sockets were removed while serving. Neither
        resolves by itself: a restarted process creates its sockets again.
        """
        while True:
            if await until(self._refusal, to_next(look_every_s)):
                raise NodeNotReady(f"kubelet refused the registration: {self._reason}", about=f"driver {self._driver}")
            # Already stopped: this process removed it, and running calls may still take some time.
            paths = (self._sockets.dra, self._sockets.registration) if self._is_serving else ()
            for path in filter(is_lost, paths):
                raise NodeNotReady("was removed by something else", about=f"socket {path}")

    def problem(self) -> str | None:
        """Why the kubelet does not call the driver, if known; None after the registration."""
        if self._is_registered:
            return None
        return self._reason or "the kubelet has not registered the driver yet"

    def methods(self) -> Methods:
        """Those of registration; `start` serves them."""
        service = kubelet_api.REGISTRATION
        return {
            f"/{service}/GetInfo": Unary(registration_pb2.InfoRequest, self._info),
            f"/{service}/NotifyRegistrationStatus": Unary(registration_pb2.RegistrationStatus, self._notified),
        }

    async def _info(self, request: Any, metadata: Metadata) -> Any:
        return registration_pb2.PluginInfo(
            type=kubelet_api.PLUGIN_TYPE,
            name=self._driver,
            endpoint=str(self._sockets.dra),
            supported_versions=kubelet_api.SUPPORTED_VERSIONS,
        )

    async def _notified(self, request: Any, metadata: Metadata) -> Any:
        if not request.plugin_registered:
            self._refused(request.error)
            raise CallFailed(GrpcStatus.INTERNAL, f"registration failed: {request.error}")
        _log.info("registered with kubelet", driver=self._driver)
        self._registered()
        self._is_registered, self._reason = True, ""
        return registration_pb2.RegistrationStatusResponse()

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
