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
from contextlib import asynccontextmanager, nullcontext

from aiohttp import web

from controller.webhook.certificates import ServingCertificate
from controller.webhook.configuration import PATH
from dra_driver.api.meta import JsonObject
from dra_driver.errors import NodeNotReady
from dra_driver.runtime.connections import Connections, listening_socket

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
            with self._listening() as listening:
                async with connections.accepting(listening, runner.server):
                    try:
                        yield int(listening.getsockname()[1])
                    finally:
                        self._draining = True
                        await asyncio.sleep(self._drain_s)
        finally:
            await runner.cleanup()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _listening(self) -> socket.socket:
        try:
            return listening_socket(self._host.strip("[]"), self._port)
        except OSError as error:
            raise NodeNotReady(f"cannot serve the webhook: {error}", about=f"port {self._port}") from error

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
