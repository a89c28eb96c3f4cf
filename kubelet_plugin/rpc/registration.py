"""The registration socket: gives the kubelet the driver's name and DRA socket, and receives the result of the
registration. Opened after the DRA socket serves and closed before it stops, so that the kubelet never calls a missing
socket.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn, Protocol

import grpc
import grpc.aio
import structlog

from dra_driver.errors import NodeNotReady
from dra_driver.kube import kubelet_api
from dra_driver.kube.kubelet_api.generated import registration_pb2
from dra_driver.runtime.tasks import until
from kubelet_plugin.rpc.dra_server import DraServer, unary
from kubelet_plugin.rpc.sockets import Sockets, is_lost, listen, remove_dead, remove_socket

_log = structlog.get_logger(__name__)

_LOOK_AT_SOCKETS_S = 5.0


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
            sockets = (self._sockets.dra, self._sockets.registration) if self._server is not None else ()
            for socket in filter(is_lost, sockets):
                raise NodeNotReady("was removed by something else", about=f"socket {socket}")

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
