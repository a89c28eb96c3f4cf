"""HTTPS for reviews: one path, certificates that change while it runs, and a graceful stop.

Threads work on reviews, so that probes and metrics are answered meanwhile. A body that is not a review gets 400. If a
review fails, which is a defect, aiohttp logs it and answers 500, and the failure policy decides. Memory and time are
bounded for every client: `Connections` limits connections, at most `_LARGE_BODIES` large bodies are read or reviewed at
a time, and a request is dropped at its deadline, or when its client disconnects, if no thread has started on it. A
started thread cannot be stopped; the liveness probe checks `stuck` for this reason.
"""

import asyncio
import json
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from controller.webhook.certificates import ServingCertificate
from controller.webhook.configuration import PATH
from dra_driver.api.meta import JsonObject
from dra_driver.errors import NodeNotReady

type _Handlers = web.Server
type _Connection = web.RequestHandler

_LARGEST = 8 * 1024 * 1024
"""Maximum bytes of a review: two objects of at most 1.5 MiB in storage, which can be twice as long in JSON."""
_SMALL = 128 * 1024
"""Up to this size a body does not wait for others. Almost all are smaller than 10 KiB."""
_LARGE_BODIES = 2
"""Each can take 120 MiB while it is read and reviewed."""
_READ_TIMEOUT_S = 10.0
_STUCK_S = 60.0
"""Even a review of the largest objects takes less than a second."""
_IDLE_S = 300.0
"""Longer than the API server keeps connections that it does not use (90 s): it must be the one that closes them, or it
may send a request on one that is just being closed."""
_THREADS = 4
"""More than one, so that a large object does not keep all others waiting."""

type Respond = Callable[[bytes], JsonObject]
"""Returns the answer to a body; called in a thread. Raises ValueError with a message for an invalid body."""


class ReviewServer:
    """Serves one endpoint; clients can connect after the first `use`."""

    def __init__(self, endpoint: str, respond: Respond, *, drain_s: float, deadline_s: float = 30.0) -> None:
        """`drain_s`: how long requests are still answered while stopping, until the API server knows that this replica
        is no longer an endpoint of the Service. `deadline_s`: how long the API server waits."""
        self._host, _, port = endpoint.rpartition(":")
        self._port = int(port)
        self._respond = respond
        self._drain_s = drain_s
        self._deadline_s = deadline_s
        self._large = asyncio.Semaphore(_LARGE_BODIES)
        self._begun: dict[object, float] = {}
        """Start times of the reviews that threads work on, in seconds of a monotonic clock."""
        self._draining = False
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="review")
        self._current: ssl.SSLContext | None = None

    def use(self, certificate: ServingCertificate) -> None:
        """Serves this certificate from the next connection on."""
        self._current = tls_context(certificate)

    async def in_thread[T](self, work: Callable[[], T]) -> T:
        """Runs another long task in the threads for reviews."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def stuck(self) -> str | None:
        """A message that a review takes far too long, or None."""
        begun = min(list(self._begun.values()), default=None)
        if begun is None or time.monotonic() - begun < _STUCK_S:
            return None
        return f"a review has not ended for {time.monotonic() - begun:.0f} s"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        """Returns the port. Raises NodeNotReady if it is in use."""
        connections = Connections(self._listening_context())
        app = web.Application(client_max_size=_LARGEST, middlewares=[connections.watching()])
        app.router.add_post(PATH, self._review)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, keepalive_timeout=_IDLE_S)
        await runner.setup()
        assert runner.server is not None
        try:
            with _listening(self._host.strip("[]"), self._port) as listening:
                accepting = asyncio.create_task(connections.accept(listening, runner.server))
                try:
                    yield int(listening.getsockname()[1])
                finally:
                    self._draining = True
                    await asyncio.sleep(self._drain_s)
                    accepting.cancel()
                    await asyncio.wait([accepting])
        finally:
            await runner.cleanup()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _listening_context(self) -> ssl.SSLContext:
        """Without a certificate; each new connection gets the current context. Loading another certificate into the
        same context would keep an old certificate of another key type."""
        context = _bare_context()

        def choose(connection: ssl.SSLObject, name: str | None, of: ssl.SSLContext) -> int | None:
            if self._current is None:
                return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
            connection.context = self._current
            return None

        context.sni_callback = choose
        return context

    async def _review(self, request: web.Request) -> web.Response:
        status, answer = await self._answer(request)
        response = web.Response(status=status, body=json.dumps(answer).encode(), content_type="application/json")
        if self._draining:
            # The API server opens another connection, which reaches another replica.
            response.force_close()
        return response

    async def _answer(self, request: web.Request) -> tuple[int, JsonObject]:
        small = request.content_length is not None and request.content_length <= _SMALL
        try:
            async with asyncio.timeout(self._deadline_s), nullcontext() if small else self._large:
                async with asyncio.timeout(_READ_TIMEOUT_S):
                    body = await request.read()
                return 200, await self.in_thread(lambda: self._timed(body))
        except TimeoutError:
            return 408, {"message": "the request was not read and reviewed in time"}
        except ValueError as error:
            return 400, {"message": str(error)}

    def _timed(self, body: bytes) -> JsonObject:
        review = object()
        self._begun[review] = time.monotonic()
        try:
            return self._respond(body)
        finally:
            del self._begun[review]


def _listening(host: str, port: int) -> socket.socket:
    """Without a host: all addresses, including IPv6 if the node has it."""
    family = socket.AF_INET6 if ":" in host or (not host and socket.has_dualstack_ipv6()) else socket.AF_INET
    try:
        listening = socket.create_server(
            (host, port), family=family, backlog=128, dualstack_ipv6=family == socket.AF_INET6 and not host
        )
    except OSError as error:
        raise NodeNotReady(f"cannot serve the webhook: {error}", about=f"port {port}") from error
    listening.setblocking(False)
    return listening


def _bare_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def tls_context(certificate: ServingCertificate) -> ssl.SSLContext:
    """For a server. `ssl` reads only files, so the key passes through an anonymous memory file and never reaches a
    disk."""
    context = _bare_context()
    file = os.memfd_create("webhook", os.MFD_CLOEXEC)
    try:
        with os.fdopen(file, "wb", closefd=False) as stream:
            stream.write(f"{certificate.key}\n{certificate.chain}".encode())
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context


# -- connections. Every client that reaches the port can open connections, and each costs memory before it sends a byte.
# Therefore there is a limit for all, and a time limit for the first request. At the limit a new connection replaces the
# oldest idle one, because API servers send a request at once. asyncio and aiohttp have no such limits.

MOST_CONNECTIONS = 128
"""An API server opens one for each concurrent review. Each costs about 300 KiB (buffers for TLS)."""
FIRST_REQUEST_S = 10.0
"""For the TLS handshake, and again for the header of the first request."""
_PAUSE_S = 0.1


class Connections:
    """The connections of one server, `handlers`. `watching` is for its application."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._silent: dict[_Connection, asyncio.Task[None]] = {}
        """Connections that have sent no request yet, oldest first, with the tasks of their handshakes."""
        self._working: set[_Connection] = set()
        self._closing: set[_Connection] = set()
        self._idle = asyncio.Event()
        """Set after each answer."""

    def watching(self) -> Middleware:
        """A connection is not closed during a review."""

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

    async def accept(self, listening: socket.socket, handlers: _Handlers) -> None:
        """Accepts connections until cancelled."""
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
                lambda: connection, accepted, ssl=self._context, ssl_handshake_timeout=FIRST_REQUEST_S
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
