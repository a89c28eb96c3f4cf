"""HTTP/1.1 client of one server, for `dra_driver.kube.client`: kept connections, TLS, HTTP proxies, gzip, and answers
that are read while they arrive. httptools (llhttp, the parser of Node.js) reads the answers.

It exists because aiohttp takes 11 MiB more memory in each process, and twice the processor time for a request. It does
not follow redirects, because an API server sends none.
"""

import asyncio
import socket
import ssl
import zlib
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote, unquote, urlencode, urlsplit

import httptools

_CONNECT_TIMEOUT_S = 10.0
_CONNECTIONS = 64
_IDLE_S = 80.0
"""How long a connection is reused after its last answer. An API server closes it after 90 seconds."""
_MOST_WAITING_BYTES = 1 << 20
"""Of an answer that is read slower than it arrives."""
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""Detects a lost peer within a minute, even during a silent watch."""
_ADDRESSES: dict[str, Any] = {"happy_eyeballs_delay": 0.25, "all_errors": True}
"""If a name has several: the next one is tried after this time, too (RFC 8305), and the error of each is raised."""
_GZIP = 16 + zlib.MAX_WBITS
PROXY_LOGIN = (
    "the proxy requires authentication; set its URL to http://USER:PASSWORD@HOST:PORT, in proxy-url of the kubeconfig"
    " or in HTTPS_PROXY"
)
_REPEATABLE = ("GET", "PUT", "DELETE")
"""May be sent again if a kept connection turns out to be closed. Source: RFC 9110, section 9.2.2."""
_IN_PATH = "/%:@!$&'()*+,;=~"


class HttpError(Exception):
    """No complete answer; the text is the reason."""


class ConnectError(Exception):
    """No connection to `address`, which is `HOST:PORT`, because of `cause`."""

    def __init__(self, address: str, cause: Exception) -> None:
        super().__init__(address, cause)
        self.address = address
        self.cause = cause


class ResumingContext(ssl.SSLContext):
    """Resumes the TLS session of an earlier connection to the same server. That takes half the time of a full
    handshake, and the server does not sign again."""

    def __init__(self, protocol: int) -> None:
        self._sessions: dict[str | bytes | None, ssl.SSLSession] = {}
        """By the name of the server."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        session = session or self._sessions.get(server_hostname)
        return super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)

    def keep(self, connection: ssl.SSLObject) -> None:
        """Keeps its session. Called after the server has sent data, because a TLS 1.3 session arrives with that."""
        if connection.session is not None:
            self._sessions[connection.server_hostname] = connection.session


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    """From the server's root. Characters that a URL cannot have are quoted."""
    query: Mapping[str, str] | None
    headers: Mapping[str, str]
    body: bytes


class HttpAnswer:
    """The answer to a request, which `async with` sends; see `HttpClient.request`. Its body follows.

    A class, because a generator would cost more than all that it does.
    """

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""

    def __init__(
        self,
        client: "HttpClient",
        request: HttpRequest,
        context: ssl.SSLContext | None,
        within_s: float,
        silent_s: float | None,
    ) -> None:
        self._client = client
        self._request = request
        self._context = context
        self._deadline = asyncio.get_running_loop().time() + (within_s if silent_s is None else silent_s)
        self._silent_s = silent_s
        self._connection: _Connection

    async def __aenter__(self) -> Self:
        self._connection = await self._client.answering(self._request, self._context, self._deadline)
        self.status, self.headers = self._connection.status, self._connection.headers
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.release(self._connection)

    async def read(self) -> bytes:
        """The whole body. Raises HttpError, OSError and TimeoutError."""
        parts = [self._connection.taken()]
        while not self._connection.is_complete:
            await self._progress()
            parts.append(self._connection.taken())
        return b"".join(parts)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives. Raises as `read` does."""
        while True:
            if chunk := self._connection.taken():
                yield chunk
            elif self._connection.is_complete:
                return
            else:
                await self._progress()

    async def _progress(self) -> None:
        loop, silent_s = asyncio.get_running_loop(), self._silent_s
        await self._connection.progress(self._deadline if silent_s is None else loop.time() + silent_s)


class HttpClient:
    """Used from one event loop. `server_name` is the name in the server's certificate, if it is not the URL's host.
    `headers` are sent with each request that does not have its own; a name can be repeated."""

    def __init__(
        self, server: str, *, proxy: str | None, server_name: str | None, headers: Iterable[tuple[str, str]]
    ) -> None:
        self._server = _Origin.of(server)
        self._proxy = _Origin.of(proxy) if proxy else None
        self._name = server_name or self._server.host
        self._prefix = urlsplit(server).path.rstrip("/")
        self._headers = [("Host", self._server.authority), ("Accept-Encoding", "gzip"), *headers]
        self._headers += self._server.login("Authorization")
        if self._proxy is not None and not self._server.tls:
            self._prefix = f"http://{self._server.authority}{self._prefix}"
            self._headers += self._proxy.login("Proxy-Authorization")
        self._idle: list[_Connection] = []
        """The last used one is the last."""
        self._places = asyncio.Semaphore(_CONNECTIONS)

    def request(
        self, request: HttpRequest, context: ssl.SSLContext | None, *, within_s: float, silent_s: float | None = None
    ) -> HttpAnswer:
        """For `async with`: the answer, of any status, which must be complete `within_s`. With `silent_s`, only the
        time without any part of it is limited. A connection with another `context` is not reused. Raises HttpError,
        ConnectError, OSError and TimeoutError, also while the answer is read."""
        return HttpAnswer(self, request, context, within_s, silent_s)

    async def close(self) -> None:
        for connection in self._idle:
            connection.abort()
        # Their sockets are closed in the next turn of the event loop.
        await asyncio.sleep(0)

    async def answering(self, request: HttpRequest, context: ssl.SSLContext | None, deadline: float) -> "_Connection":
        """A connection that has received status and headers of the answer, until `release`."""
        if self._places.locked():
            async with asyncio.timeout_at(deadline):
                await self._places.acquire()
        else:
            await self._places.acquire()
        try:
            return await self._asked(request, context, deadline)
        except BaseException:
            self._places.release()
            raise

    def release(self, connection: "_Connection") -> None:
        """The answer was read, or is no longer wanted."""
        if connection.is_reusable:
            connection.keep_session()
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.abort()
        self._places.release()

    async def _asked(self, request: HttpRequest, context: ssl.SSLContext | None, deadline: float) -> "_Connection":
        message = self._message(request)
        if (connection := self._reused(context)) is not None:
            try:
                return await connection.ask(message, deadline)
            except (HttpError, ConnectionError):
                if request.method not in _REPEATABLE:
                    raise
        connection = await self._connected(context, deadline)
        return await connection.ask(message, deadline)

    def _message(self, request: HttpRequest) -> bytes:
        target = self._prefix + quote(request.path, safe=_IN_PATH)
        if request.query:
            target = f"{target}?{urlencode(request.query)}"
        headers = [header for header in self._headers if header[0] not in request.headers]
        headers += request.headers.items()
        if request.method != "GET":
            headers.append(("Content-Length", str(len(request.body))))
        return _head(f"{request.method} {target}", headers) + request.body

    def _reused(self, context: ssl.SSLContext | None) -> "_Connection | None":
        expired = asyncio.get_running_loop().time() - _IDLE_S
        while self._idle and self._idle[0].idle_since < expired:
            self._idle.pop(0).abort()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.context is context:
                return connection
            connection.abort()
        return None

    async def _connected(self, context: ssl.SSLContext | None, deadline: float) -> "_Connection":
        deadline = min(deadline, asyncio.get_running_loop().time() + _CONNECT_TIMEOUT_S)
        async with asyncio.timeout_at(deadline):
            if self._proxy is None:
                return await self._server.connected(context, self._name)
            connection = await self._proxy.connected(context, self._proxy.host)
            if self._server.tls:
                await self._open_tunnel(connection, deadline)
            return connection

    async def _open_tunnel(self, connection: "_Connection", deadline: float) -> None:
        assert self._proxy is not None
        to = self._server.address
        head = _head(f"CONNECT {to}", [("Host", to), *self._proxy.login("Proxy-Authorization")])
        await connection.ask(head, deadline)
        if connection.status != 200:
            connection.abort()
            advice = f"; {PROXY_LOGIN}" if connection.status == 407 else ""
            raise HttpError(
                f"the proxy {self._proxy.address} refuses the tunnel: HTTP status {connection.status}{advice}"
            )
        try:
            await connection.start_tls(self._name)
        except OSError as error:
            raise ConnectError(to, error) from error


def _head(request: str, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [f"{request} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode()


@dataclass(frozen=True, slots=True)
class _Origin:
    """A server or a proxy, from its URL."""

    host: str
    port: int
    tls: bool
    authority: str
    """Host and, if the URL has it, port."""
    user: str
    """`USER:PASSWORD`, or empty."""

    @classmethod
    def of(cls, url: str) -> Self:
        parts = urlsplit(url)
        host, tls = (parts.hostname or "").rstrip("."), parts.scheme == "https"
        user, _, authority = parts.netloc.rpartition("@")
        return cls(host, parts.port or (443 if tls else 80), tls, authority, unquote(user))

    def login(self, header: str) -> list[tuple[str, str]]:
        return [(header, f"Basic {b64encode(self.user.encode()).decode()}")] if self.user else []

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def connected(self, context: ssl.SSLContext | None, name: str) -> "_Connection":
        """`name` is required in the certificate. Raises ConnectError."""
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(context),
                self.host,
                self.port,
                ssl=(context or True) if self.tls else None,
                server_hostname=name if self.tls else None,
                **_ADDRESSES,
            )
        except ExceptionGroup as errors:
            raise ConnectError(self.address, errors.exceptions[0]) from errors
        except OSError as error:
            raise ConnectError(self.address, error) from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection; one request at a time. httptools calls the methods `on_...`."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.context = context
        self.idle_since = 0.0
        self.status = 0
        """Zero until all headers have arrived."""
        self.headers: dict[str, str] = {}
        self.is_complete = True
        """Nothing more of the answer will arrive."""
        self._keeps_alive = False
        self._parser: httptools.HttpResponseParser
        self._transport: asyncio.Transport
        self._end: Exception | None = None
        """Why the connection ended."""
        self._waiter: asyncio.Future[None] | None = None
        self._body: list[bytes] = []
        self._unpacked: Callable[[bytes], bytes] = bytes

    @property
    def is_open(self) -> bool:
        return self._end is None and not self._transport.is_closing()

    @property
    def is_reusable(self) -> bool:
        return self.is_complete and self._keeps_alive and self.is_open

    async def ask(self, message: bytes, deadline: float) -> Self:
        """Sends a request; returns when status and headers of the answer have arrived. Aborts the connection if they do
        not arrive. Raises HttpError, OSError and TimeoutError."""
        self.status, self.headers, self.is_complete, self._body = 0, {}, False, []
        self._transport.write(message)
        try:
            while not self.status:
                await self.progress(deadline)
        except BaseException:
            self.abort()
            raise
        return self

    async def progress(self, deadline: float) -> None:
        """Returns after the next data. Raises HttpError, OSError and TimeoutError."""
        if self._end is not None:
            raise self._end
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        timer = loop.call_at(deadline, _expire, waiter)
        try:
            await waiter
        finally:
            timer.cancel()

    def taken(self) -> bytes:
        """What has arrived of the body and was not taken before."""
        arrived, self._body = self._body, []
        self._transport.resume_reading()
        return b"".join(arrived)

    async def start_tls(self, name: str) -> None:
        """Raises OSError."""
        transport = await asyncio.get_running_loop().start_tls(
            self._transport, self, self.context or ssl.create_default_context(), server_hostname=name
        )
        assert transport is not None
        self.connection_made(transport)

    def keep_session(self) -> None:
        """Keeps the TLS session for later connections. Called after each answer; only the first call does something."""
        tls: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        if self.idle_since == 0.0 and tls is not None and isinstance(self.context, ResumingContext):
            self.context.keep(tls)

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._parser, self.is_complete = httptools.HttpResponseParser(self), True
        connected = transport.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            if hasattr(socket, option):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def data_received(self, data: bytes) -> None:
        if self.is_complete:
            # Nothing was requested.
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end = HttpError(f"the answer is not HTTP: {error}")
            self.abort()
        if sum(map(len, self._body)) > _MOST_WAITING_BYTES:
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        has_length = "content-length" in self.headers or "transfer-encoding" in self.headers
        if self.status and error is None and not has_length:
            self.is_complete = True
        self._end = self._end or error or HttpError("the connection ended before the answer did")
        self._wake()

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise HttpError("a second answer to one request")
        self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            is_gzip = self.headers.get("content-encoding") == "gzip"
            self._unpacked = zlib.decompressobj(_GZIP).decompress if is_gzip else bytes
            self._keeps_alive = self._parser.should_keep_alive()
            self.status = status

    def on_body(self, part: bytes) -> None:
        self._body.append(self._unpacked(part))

    def on_message_complete(self) -> None:
        self.is_complete = self.status != 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
