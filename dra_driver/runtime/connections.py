"""The connections of an HTTP server, limited.

Every client that reaches a port can open connections, and each costs memory before it sends a byte. Therefore there is
a limit for all, and a time limit for the first request. At the limit a new connection replaces the oldest idle one,
because useful clients send a request at once. asyncio and aiohttp have no such limits.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

type _Handlers = web.Server
type _Connection = web.RequestHandler

MOST_CONNECTIONS = 128
"""To a webhook, an API server opens one for each concurrent review. Each costs about 300 KiB (buffers for TLS)."""
FIRST_REQUEST_S = 10.0
"""For the TLS handshake, and again for the header of the first request."""
_PAUSE_S = 0.1


def listening_socket(host: str, port: int) -> socket.socket:
    """Without a host: all addresses, including IPv6 if the machine has it. Raises OSError."""
    family = socket.AF_INET6 if ":" in host or (not host and socket.has_dualstack_ipv6()) else socket.AF_INET
    listening = socket.create_server(
        (host, port), family=family, backlog=128, dualstack_ipv6=family == socket.AF_INET6 and not host
    )
    listening.setblocking(False)
    return listening


class Connections:
    """The connections of one server, `handlers`. `watching` is for its application. Without a context: plain HTTP."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        self._silent: dict[_Connection, asyncio.Task[None]] = {}
        """Connections that have sent no request yet, oldest first, with the tasks of their handshakes."""
        self._working: set[_Connection] = set()
        self._closing: set[_Connection] = set()
        self._idle = asyncio.Event()
        """Set after each answer."""

    def watching(self) -> Middleware:
        """A connection is not closed while it is answered."""

        @web.middleware
        async def watched(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = request.protocol
            self._silent.pop(connection, None)
            self._working.add(connection)
            try:
                return await handler(request)
            finally:
                self._working.discard(connection)
                self._idle.set()

        return watched

    @asynccontextmanager
    async def accepting(self, listening: socket.socket, handlers: _Handlers) -> AsyncIterator[None]:
        """Accepts connections meanwhile."""
        task = asyncio.create_task(self._accept(listening, handlers))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _accept(self, listening: socket.socket, handlers: _Handlers) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(listening)
                except OSError:
                    # The client has already disconnected, or the process has no file descriptors left for a moment.
                    await asyncio.sleep(_PAUSE_S)
                    continue
                await self._make_room(handlers)
                connection = handlers()
                self._silent[connection] = asyncio.create_task(self._open(accepted, connection))
        finally:
            for connection in tuple(self._silent):
                self._close(connection)

    async def _make_room(self, handlers: _Handlers) -> None:
        while True:
            connected = handlers.connections
            self._closing.intersection_update(connected)
            self._silent = {
                connection: opening
                for connection, opening in self._silent.items()
                if connection in connected or not opening.done()
            }
            if len({*connected, *self._silent} - self._closing) < MOST_CONNECTIONS:
                return
            busy = self._working | self._closing
            oldest = next((waiting for waiting in (*self._silent, *connected) if waiting not in busy), None)
            if oldest is not None:
                self._close(oldest)
            else:
                self._idle.clear()
                await self._idle.wait()

    async def _open(self, accepted: socket.socket, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        # A connection that ends during the handshake has no request.
        with suppress(OSError, TimeoutError):
            await loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=FIRST_REQUEST_S if self._context is not None else None,
            )
            loop.call_later(FIRST_REQUEST_S, self._close_silent, connection)

    def _close_silent(self, connection: _Connection) -> None:
        if connection in self._silent:
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        """At once, because a graceful end of TLS would wait for the client."""
        opening = self._silent.pop(connection, None)
        if opening is not None:
            opening.cancel()
        if connection.transport is not None:
            assert isinstance(connection.transport, asyncio.Transport)
            connection.transport.abort()
            self._closing.add(connection)
