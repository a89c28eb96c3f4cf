"""The pages over HTTP. It only reads: nothing that a request brings changes the cluster.

A page and its changes have the same address: a request that accepts `text/event-stream` gets what changes after the
state that it names. Without a valid secret there is nothing but a form that asks for it.
"""

import asyncio
import errno
import json
import os
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from ssl import SSLContext

from aiohttp import web

from dra_driver.cli.ui.drawing import NodeRows
from dra_driver.cli.ui.pages import PageAddress, document, page_of, refusal_document
from dra_driver.cli.ui.parts import HtmlPage, changes
from dra_driver.cli.ui.viewers import HttpRefusal, Viewers
from dra_driver.cli.ui.watched import WatchedCluster
from dra_driver.errors import InvalidInput
from dra_driver.runtime.connections import Connections, listening_socket

_FOLDER = Path(__file__).parent
_KINDS = {"ui.css": "text/css", "ui.js": "text/javascript"}
_MOST_STREAMS = 64
_TOGETHER_S = 0.5
"""Changes of a page within this time are sent together."""
_TICK_S = 5.0
"""Details of a node are read so often while its page is open; they have no watch."""
_HEARTBEAT_S = 15.0
"""A proxy closes connections on which nothing is sent."""
_REVIEW_S = 60.0
_WRITE_S = 20.0
"""A browser that takes nothing for so long is gone."""
_MOST_BODY = 16 * 1024
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Names in the Host header of a server that only this machine reaches. A page of another name that leads to this
address (DNS rebinding) gets nothing."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
        " form-action 'self'; base-uri 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept, Cookie, Authorization",
}


def style() -> str:
    return (_FOLDER / "ui.css").read_text()


@dataclass(frozen=True, slots=True)
class Listening:
    """`hosts` None: any name. `tls` None: plain HTTP, for connections that do not leave the machine."""

    host: str
    port: int
    hosts: Collection[str] | None = LOOPBACK
    tls: SSLContext | None = None


def _listening_on(where: Listening) -> socket.socket:
    try:
        return listening_socket(where.host, where.port)
    except OSError as error:
        # Python's own text repeats the address.
        reason = os.strerror(error.errno or 0) if error.errno in errno.errorcode else error.strerror
        message = f"the port cannot be used: {reason}; choose another with --port"
        raise InvalidInput(message, about=f"{where.host}:{where.port}") from error


class UiServer:
    def __init__(self, watched: WatchedCluster, viewers: Viewers, listening: Listening) -> None:
        self._watched = watched
        self._viewers = viewers
        self._listening = listening
        self._rows = NodeRows()
        self._streams = 0
        self._files = {name: (_FOLDER / name).read_bytes() for name in _KINDS}
        self._version = sha256(b"".join(self._files.values())).hexdigest()[:12]
        self._cookie = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Yields the port. Raises InvalidInput if it is in use."""
        where = self._listening
        connections = Connections(where.tls)
        app = web.Application(client_max_size=_MOST_BODY, middlewares=[connections.watching()])
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await runner.setup()
        assert runner.server is not None
        try:
            with _listening_on(where) as listening:
                async with connections.accepting(listening, runner.server):
                    port = int(listening.getsockname()[1])
                    # Browsers keep cookies by host, not by port, so two servers on one machine need different names.
                    self._cookie = f"dractl-ui-{port}"
                    yield port
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        answer = self._unsuitable(request) or self._file(request.path) or await self._guarded(request)
        if not answer.prepared:
            answer.headers.update({name: value for name, value in _HEADERS.items() if name not in answer.headers})
            answer.headers.setdefault("Cache-Control", "no-store")
        return answer

    def _unsuitable(self, request: web.Request) -> web.StreamResponse | None:
        if request.method not in ("GET", "HEAD") and (request.method, request.path) != ("POST", "/enter"):
            return _text(405, "Only GET: these pages only show.")
        host = (request.host or "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if self._listening.hosts is not None and name not in self._listening.hosts:
            return _text(421, "This server answers as localhost and 127.0.0.1 only.")
        return None

    def _file(self, path: str) -> web.StreamResponse | None:
        """What has no secrets: style, script, and the answer to probes."""
        match path.strip("/").split("/"):
            case ["healthz"]:
                return _text(200, "ok")
            case ["static", _, name] if name in self._files:
                keep = {"Cache-Control": "public, max-age=31536000, immutable"}
                return web.Response(body=self._files[name], content_type=_KINDS[name], charset="utf-8", headers=keep)
        return None

    # -- who may look

    async def _guarded(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/enter":
            return await self._enter(request)
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        secret = token if kind.lower() == "bearer" else request.cookies.get(self._cookie)
        refusal = await self._viewers.refusal(secret)
        if refusal is not None:
            return self._refused(refusal, request.path)
        address = PageAddress.of(request.path, request.query)
        if address is None:
            return self._refused(HttpRefusal(404, "There is no such page. The first page is /."), request.path)
        async with self._watched.viewed():
            if "text/event-stream" in request.headers.get("Accept", ""):
                return await self._stream(request, address, secret)
            page = await self._page(address)
            response = _html(document(page, address, self._version), page.status)
            response.enable_compression()
            return response

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        """Keeps the secret as a cookie for this browser and this server, until the browser is closed."""
        try:
            given = request.query.get("key") if request.method == "GET" else (await request.post()).get("secret")
        except (ValueError, LookupError):  # no text, or an unknown encoding
            return self._refused(HttpRefusal(401, "This is no text."), request.path)
        secret = given.strip() if isinstance(given, str) else None
        refusal = await self._viewers.refusal(secret)
        if refusal is not None or secret is None:
            return self._refused(refusal or HttpRefusal(401, "Something is missing."), request.path)
        response = web.Response(status=303, headers={"Location": "./"})
        secure = self._listening.tls is not None
        response.set_cookie(self._cookie, secret, httponly=True, samesite="Strict", secure=secure, path="/")
        return response

    def _refused(self, refusal: HttpRefusal, path: str) -> web.StreamResponse:
        root = "../" * (path.count("/") - 1)
        ask = self._viewers.ask if refusal.status in (401, 403) else None
        response = _html(
            refusal_document(refusal.text, ask, f"{root}static/{self._version}/ui.css", f"{root}enter"), refusal.status
        )
        if refusal.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    # -- what is shown

    async def _page(self, address: PageAddress) -> HtmlPage:
        return page_of(address, await self._watched.seen(address), self._rows)

    async def _stream(self, request: web.Request, address: PageAddress, secret: str | None) -> web.StreamResponse:
        if self._streams >= _MOST_STREAMS:
            return _text(503, f"{_MOST_STREAMS} pages are followed already; reload to see the current state.")
        headers = {
            **_HEADERS,
            "Cache-Control": "no-store",
            "Content-Type": "text/event-stream",
            "X-Accel-Buffering": "no",
        }
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        self._streams += 1
        try:
            await self._send_changes(request, response, address, secret)
        except (ConnectionError, TimeoutError):
            pass  # the browser has left
        finally:
            self._streams -= 1
        return response

    async def _send_changes(
        self, request: web.Request, response: web.StreamResponse, address: PageAddress, secret: str | None
    ) -> None:
        """Until the viewer leaves, or may no longer look."""
        clock = asyncio.get_running_loop().time
        since = request.headers.get("Last-Event-ID") or request.query.get("since")
        before: HtmlPage | None = None
        sent_at = reviewed_at = clock()
        while True:
            version = self._watched.version
            page = await self._page(address)
            change = None if before is None and page.state == since else changes(before, page)
            before = page
            if change is not None or clock() - sent_at > _HEARTBEAT_S:
                text = f"id: {page.state}\ndata: {json.dumps(change)}\n\n" if change is not None else ":\n\n"
                async with asyncio.timeout(_WRITE_S):
                    await response.write(text.encode())
                sent_at = clock()
            await asyncio.sleep(_TOGETHER_S)
            await self._watched.after(version, _TICK_S)
            if clock() - reviewed_at > _REVIEW_S:
                if await self._viewers.refusal(secret) is not None:
                    return
                reviewed_at = clock()


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")


def _html(text: str, status: int) -> web.Response:
    return web.Response(status=status, text=text, content_type="text/html")
