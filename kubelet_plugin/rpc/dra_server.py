"""The DRA socket: `DRAPlugin` v1, and the health stream v1 and v1alpha1.

This module decides nothing: it passes claims to the `ClaimHandler` and returns its answer for each. An unexpected
exception becomes the answer for the affected claims, and never ends the process.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio
import structlog

from dra_driver.errors import DriverError
from dra_driver.kube.kubelet_api import DRA_V1
from dra_driver.kube.kubelet_api.generated import dra_v1_pb2
from dra_driver.names import ClaimRef
from kubelet_plugin.rpc import messages
from kubelet_plugin.rpc.sockets import listen, remove_socket

_log = structlog.get_logger(__name__)

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
