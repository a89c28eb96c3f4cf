"""HTTPS for reviews: one path, certificates that change while it runs, and an end that cuts nobody off.

Reviews are worked on in threads, for they take milliseconds that the rest of the process should not wait for. What is
no review gets 400; when a review fails, which is a defect, aiohttp logs it and answers 500, and the failure policy
decides.
"""

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from aiohttp import web

from controller.webhook.certificates import ServingCertificate
from controller.webhook.configuration import PATH
from dra_driver.api.meta import JsonObject
from dra_driver.errors import NodeNotReady

_LARGEST = 8 * 1024 * 1024
"""Bytes of a review: two objects of at most 1.5 MiB as they are stored, which can be twice as much as JSON."""
_READ_TIMEOUT_S = 10.0
_IDLE_S = 300.0
"""Longer than the API server keeps connections that it does not use (90 s): it must be the one that closes them, or it
may send a request on one that is just being closed."""
_THREADS = 4
"""More than one, so that a large object does not keep all others waiting."""

type Respond = Callable[[bytes], JsonObject]
"""The answer to a body, called in a thread. Raises ValueError with what to say for a body that cannot be answered."""


class ReviewServer:
    """Listens where it is told; nobody can connect before the first `use`."""

    def __init__(self, endpoint: str, respond: Respond, *, drain_s: float) -> None:
        """`drain_s` is how long requests are still answered after the end began: until the API server has heard that
        this replica is no endpoint of the Service any more."""
        self._host, _, port = endpoint.rpartition(":")
        self._port = int(port)
        self._respond = respond
        self._drain_s = drain_s
        self._draining = False
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="review")
        self._current: ssl.SSLContext | None = None

    def use(self, certificate: ServingCertificate) -> None:
        """Serve this one from the next connection on."""
        self._current = tls_context(certificate)

    async def in_thread[T](self, work: Callable[[], T]) -> T:
        """Something else that takes long, where reviews are worked on."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        """Answers the port. Raises NodeNotReady when it is taken."""
        app = web.Application(client_max_size=_LARGEST)
        app.router.add_post(PATH, self._review)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, keepalive_timeout=_IDLE_S)
        await runner.setup()
        try:
            site = web.TCPSite(
                runner, self._host.strip("[]") or None, self._port, ssl_context=self._listening_context()
            )
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise NodeNotReady(f"cannot serve the webhook: {error}", about=f"port {self._port}") from error
        try:
            yield int(runner.addresses[0][1])
        finally:
            self._draining = True
            await asyncio.sleep(self._drain_s)
            await runner.cleanup()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _listening_context(self) -> ssl.SSLContext:
        """Without a certificate; each connection gets the context that is current when it comes. Loading another
        certificate into the same context would keep the old one of another type beside it."""
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
            # The API server opens another connection, which leads to another replica.
            response.force_close()
        return response

    async def _answer(self, request: web.Request) -> tuple[int, JsonObject]:
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                body = await request.read()
            return 200, await self.in_thread(lambda: self._respond(body))
        except TimeoutError:
            return 408, {"message": "the body did not come in time"}
        except ValueError as error:
            return 400, {"message": str(error)}


def _bare_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def tls_context(certificate: ServingCertificate) -> ssl.SSLContext:
    """For a server. The key goes through memory that has no name, for `ssl` reads files only, and no disk should."""
    context = _bare_context()
    file = os.memfd_create("webhook", os.MFD_CLOEXEC)
    try:
        with os.fdopen(file, "wb", closefd=False) as stream:
            stream.write(f"{certificate.key}\n{certificate.chain}".encode())
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context
