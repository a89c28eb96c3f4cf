"""The registration socket: tells kubelet who we are and where to call, and hears whether it took us.

Opened after the DRA socket serves, closed before it stops, so that kubelet never calls into nothing.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import structlog

from dra_driver.kube import kubelet_api
from dra_driver.kube.kubelet_api.generated import registration_pb2
from kubelet_plugin.rpc.sockets import listen_address, remove_socket

_log = structlog.get_logger(__name__)


class RegistrationServer:
    """Answers kubelet's plugin watcher for one driver.

    `registered()` is called each time that kubelet says it registered us, `refused(reason)` when it says it did not.
    """

    def __init__(
        self,
        socket: Path,
        driver: str,
        dra_socket: Path,
        *,
        registered: Callable[[], None],
        refused: Callable[[str], None],
    ) -> None:
        self._socket = socket
        self._driver = driver
        self._dra_socket = dra_socket
        self._registered = registered
        self._refused = refused
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Bind and serve; kubelet finds the socket by watching the folder. Raises NodeNotReady."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._service(),))
        # The folder is kubelet's: it must see the socket only when it can be called.
        listen_address(server, self._socket)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Remove the socket, which deregisters us, and stop."""
        server, self._server = self._server, None
        if server is not None:
            remove_socket(self._socket)
            await server.stop(1.0)

    def _service(self) -> grpc.GenericRpcHandler:
        async def get_info(request: Any, context: grpc.aio.ServicerContext) -> Any:
            return registration_pb2.PluginInfo(
                type=kubelet_api.PLUGIN_TYPE,
                name=self._driver,
                endpoint=str(self._dra_socket),
                supported_versions=kubelet_api.SUPPORTED_VERSIONS,
            )

        async def notify(request: Any, context: grpc.aio.ServicerContext) -> Any:
            if request.plugin_registered:
                _log.info("registered with kubelet", driver=self._driver)
                self._registered()
            else:
                _log.error("kubelet refused the registration", driver=self._driver, reason=request.error)
                self._refused(request.error)
            return registration_pb2.RegistrationStatusResponse()

        methods: dict[str, tuple[Any, Any]] = {
            "GetInfo": (get_info, registration_pb2.InfoRequest),
            "NotifyRegistrationStatus": (notify, registration_pb2.RegistrationStatus),
        }
        return grpc.method_handlers_generic_handler(
            kubelet_api.REGISTRATION,
            {
                name: grpc.unary_unary_rpc_method_handler(
                    method,
                    request_deserializer=request.FromString,
                    response_serializer=lambda message: message.SerializeToString(),
                )
                for name, (method, request) in methods.items()
            },
        )
