"""The HTTP client against servers that send exactly these bytes. `test_client.py` and `test_endpoint.py` have it with
whole API servers, TLS and proxies."""

import asyncio
import gzip
import socket
import ssl
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube import http_client
from dra_driver.kube.http_client import ConnectError, HttpClient, HttpError, HttpRequest

type Reader = asyncio.StreamReader
type Writer = asyncio.StreamWriter

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LONG_S = 10.0
GET = HttpRequest("GET", "/a", None, {}, b"")


class Server:
    """Counts connections, and keeps the head of each request."""

    def __init__(self, serve: Callable[["Server", Reader, Writer], Awaitable[None]]) -> None:
        self._serve = serve
        self.connections = 0
        self.requests: list[str] = []
        self.ended = asyncio.Event()
        """A client has closed its connection."""

    async def request(self, reader: Reader) -> None:
        """Raises IncompleteReadError when the client has closed the connection."""
        self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())

    async def accept(self, reader: Reader, writer: Writer) -> None:
        self.connections += 1
        try:
            await self._serve(self, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended.set()
        finally:
            writer.close()


@asynccontextmanager
async def client_of(
    serve: Callable[[Server, Reader, Writer], Awaitable[None]], path: str = "", user: str = "", behind: str = ""
) -> AsyncIterator[tuple[HttpClient, Server]]:
    """`behind` is the URL of another server, for which this one is the proxy."""
    server = Server(serve)
    listening = await asyncio.start_server(server.accept, "127.0.0.1", 0)
    url = f"http://{user}127.0.0.1:{listening.sockets[0].getsockname()[1]}{path}"
    headers = [("Accept", "application/json")]
    client = HttpClient(behind or url, proxy=url if behind else None, server_name=None, headers=headers)
    try:
        yield client, server
    finally:
        await client.close()
        listening.close()


def sending(*parts: bytes, then_closes: bool = False) -> Callable[[Server, Reader, Writer], Awaitable[None]]:
    """Answers each request with these bytes, one part after the other."""

    async def serve(server: Server, reader: Reader, writer: Writer) -> None:
        while True:
            await server.request(reader)
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            if then_closes:
                return

    return serve


async def read(client: HttpClient, method: str = "GET", *, within_s: float = LONG_S) -> tuple[int, bytes]:
    async with client.request(HttpRequest(method, "/a", None, {}, b""), None, within_s=within_s) as answer:
        return answer.status, await answer.read()


def cut(data: bytes, at: Iterable[int]) -> list[bytes]:
    places = sorted({place % (len(data) + 1) for place in at})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@given(
    body=st.binary(max_size=300),
    framing=st.sampled_from(["length", "chunks", "end"]),
    zipped=st.booleans(),
    early=st.booleans(),
    chunk=st.integers(1, 50),
    at=st.lists(st.integers(0, 500), max_size=4),
)
def test_an_answer_is_the_same_however_it_is_framed_and_cut(
    body: bytes, framing: str, zipped: bool, early: bool, chunk: int, at: Sequence[int]
) -> None:
    sent = gzip.compress(body) if zipped else body
    lines = ["HTTP/1.1 201 Created", "X-Name: value"]
    lines += {"length": [f"Content-Length: {len(sent)}"], "chunks": ["Transfer-Encoding: chunked"], "end": []}[framing]
    lines += ["content-encoding: gzip"] if zipped else []
    if framing == "chunks":
        pieces = [sent[start : start + chunk] for start in range(0, len(sent), chunk)]
        sent = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    first = b"HTTP/1.1 103 Early Hints\r\nX-Name: other\r\n\r\n" if early else b""
    data = first + "\r\n".join([*lines, "", ""]).encode() + sent

    async def twice() -> None:
        async with client_of(sending(*cut(data, at), then_closes=framing == "end")) as (client, server):
            for _ in range(2):
                async with client.request(GET, None, within_s=LONG_S) as answer:
                    assert (answer.status, answer.headers["x-name"]) == (201, "value")
                    assert await answer.read() == body
            assert server.connections == (2 if framing == "end" else 1)

    asyncio.run(twice())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"220 mail.example.com ESMTP\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nlong\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\ntext", "not HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", "not HTTP"),
        (b"", "ended before"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "ended before"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok", "ended before"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok", "ended before"),
    ],
)
async def test_what_is_no_answer_is_an_error_and_its_connection_is_not_used_again(data: bytes, reason: str) -> None:
    async with client_of(sending(data, then_closes=True)) as (client, server):
        for number in (1, 2):
            with pytest.raises(HttpError, match=reason):
                await read(client)
            assert server.connections == number


@pytest.mark.parametrize("more", [OK, b"\r\nmore", b"HTTP/1.1 408 Request Timeout\r\n\r\n"])
@pytest.mark.parametrize("together", [True, False])
async def test_what_comes_after_an_answer_is_not_taken_for_the_next_one(more: bytes, together: bool) -> None:
    async with client_of(sending(*([OK + more] if together else [OK, more]))) as (client, server):
        for number in (1, 2):
            assert await read(client) == (200, b"ok")
            await asyncio.wait_for(server.ended.wait(), LONG_S)
            server.ended.clear()
            assert server.connections == number


async def test_what_arrives_on_an_idle_connection_ends_it() -> None:
    idle = asyncio.Event()

    async def serve(server: Server, reader: Reader, writer: Writer) -> None:
        await server.request(reader)
        writer.write(OK)
        await idle.wait()
        writer.write(OK)
        await server.request(reader)

    async with client_of(serve) as (client, server):
        assert await read(client) == (200, b"ok")
        idle.set()
        await asyncio.wait_for(server.ended.wait(), LONG_S)


async def test_a_connection_is_kept_for_its_tls_context_alone_and_a_lost_peer_is_detected() -> None:
    async with client_of(sending(OK)) as (client, server):
        await read(client)
        connected = client._idle[0]._transport.get_extra_info("socket")
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if sys.platform == "linux":
            assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        async with client.request(GET, ssl.create_default_context(), within_s=LONG_S) as answer:
            assert await answer.read() == b"ok"
        await asyncio.wait_for(server.ended.wait(), LONG_S)
        assert server.connections == 2


async def one_answer(server: Server, reader: Reader, writer: Writer) -> None:
    """Closes the connection when the second request arrives, as a server does whose idle time has just ended."""
    await server.request(reader)
    writer.write(OK)
    await server.request(reader)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_request_that_may_be_repeated_is_if_its_kept_connection_ends(method: str) -> None:
    async with client_of(one_answer) as (client, server):
        assert await read(client) == await read(client, method) == (200, b"ok")
        assert [head.split()[0] for head in server.requests] == ["GET", method, method]


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_a_request_that_changes_something_each_time_is_sent_once(method: str) -> None:
    async with client_of(one_answer) as (client, server):
        await read(client)
        with pytest.raises((HttpError, ConnectionError)):
            await read(client, method)
        assert [head.split()[0] for head in server.requests] == ["GET", method]


async def test_a_connection_that_the_server_has_closed_or_that_was_idle_for_long_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with client_of(sending(OK, then_closes=True)) as (client, server):
        assert await read(client) == (200, b"ok")
        await asyncio.sleep(0.01)
        assert await read(client, "POST") == (200, b"ok")
        assert server.connections == 2
    monkeypatch.setattr(http_client, "_IDLE_S", 0.0)
    async with client_of(sending(OK)) as (client, server):
        assert await read(client) == (200, b"ok")
        await asyncio.sleep(0.01)
        assert await read(client) == (200, b"ok")
        assert server.connections == 2
        await asyncio.wait_for(server.ended.wait(), LONG_S)


async def test_a_client_that_is_closed_keeps_no_connection() -> None:
    async with client_of(sending(OK)) as (client, server):
        await read(client)
        await client.close()
        await asyncio.wait_for(server.ended.wait(), LONG_S)


async def test_an_answer_that_is_not_read_to_its_end_ends_its_connection() -> None:
    async with client_of(sending(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok")) as (client, server):
        async with client.request(GET, None, within_s=LONG_S) as answer:
            assert await anext(answer.chunks()) == b"ok"
        await asyncio.wait_for(server.ended.wait(), LONG_S)


async def test_so_many_connections_and_no_more() -> None:
    all_there, let_go = asyncio.Event(), asyncio.Event()

    async def serve(server: Server, reader: Reader, writer: Writer) -> None:
        while True:
            await server.request(reader)
            if len(server.requests) == http_client._CONNECTIONS:
                all_there.set()
            await let_go.wait()
            writer.write(OK)

    async with client_of(serve) as (client, server):
        reads = [asyncio.create_task(read(client)) for _ in range(http_client._CONNECTIONS + 5)]
        await all_there.wait()
        with pytest.raises(TimeoutError):
            await read(client, within_s=0.05)
        assert server.connections == http_client._CONNECTIONS
        let_go.set()
        assert await asyncio.gather(*reads) == [(200, b"ok")] * len(reads)
        assert server.connections == http_client._CONNECTIONS


async def test_a_silent_server_is_waited_for_as_long_as_asked() -> None:
    for begun in (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", b"HTTP/1.1 200"):
        async with client_of(sending(begun)) as (client, server):
            with pytest.raises(TimeoutError):
                await read(client, within_s=0.05)
            await asyncio.wait_for(server.ended.wait(), LONG_S)

    async def drip(server: Server, reader: Reader, writer: Writer) -> None:
        await server.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(10):
            writer.write(b"2\r\nok\r\n")
            await asyncio.sleep(0.05)
        await server.request(reader)

    async with client_of(drip) as (client, _):
        with pytest.raises(TimeoutError):
            await read(client, within_s=0.1)
    async with (
        client_of(drip) as (client, _),
        client.request(GET, None, within_s=0.1, silent_s=0.4) as answer,
    ):
        arrived = b""
        with pytest.raises(TimeoutError):
            async for chunk in answer.chunks():
                arrived += chunk
        assert arrived == b"ok" * 10


async def test_an_answer_that_is_read_slowly_does_not_fill_the_memory() -> None:
    parts, part = 400, b"x" * (1 << 17)
    written = 0

    async def serve(server: Server, reader: Reader, writer: Writer) -> None:
        nonlocal written
        await server.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (parts * len(part)))
        for _ in range(parts):
            writer.write(part)
            await writer.drain()
            written += len(part)

    async with client_of(serve) as (client, _), client.request(GET, None, within_s=LONG_S) as answer:
        before = -1
        while before != written:
            before = written
            await asyncio.sleep(0.2)
        assert written < parts * len(part) / 2, "what the sockets hold, and a little more"
        assert len(await answer.read()) == parts * len(part)


async def test_a_request_has_its_own_headers_a_quoted_path_and_the_length_of_its_body() -> None:
    async with client_of(sending(OK), path="/k8s/clusters/c-1/") as (client, server):
        request = HttpRequest("PUT", "/api/a b\r\nX: 1", {"a": "b=c d&"}, {"Accept": "text/plain", "X": "ü"}, b"body")
        async with client.request(request, None, within_s=LONG_S) as answer:
            await answer.read()
        first, *lines = server.requests[0].rstrip().split("\r\n")
        assert first == "PUT /k8s/clusters/c-1/api/a%20b%0D%0AX:%201?a=b%3Dc+d%26 HTTP/1.1"
        host = next(line for line in lines if line.startswith("Host: 127.0.0.1:"))
        assert sorted(lines) == sorted(
            [host, "Accept-Encoding: gzip", "Accept: text/plain", "X: ü", "Content-Length: 4"]
        )


async def test_the_user_of_the_url_is_sent_unless_the_request_has_credentials() -> None:
    async with client_of(sending(OK), user="me:p%40ss@") as (client, server):
        await read(client)
        async with client.request(
            HttpRequest("GET", "/a", None, {"Authorization": "Bearer token"}, b""), None, within_s=LONG_S
        ) as answer:
            await answer.read()
    basic, bearer = [[line for line in head.split("\r\n") if "Authorization" in line] for head in server.requests]
    assert basic == [f"Authorization: Basic {b64encode(b'me:p@ss').decode()}"]
    assert bearer == ["Authorization: Bearer token"]


async def test_a_proxy_gets_the_whole_url_and_its_own_credentials() -> None:
    async with client_of(sending(OK), user="me:secret@", behind="http://api.invalid:8080/k8s") as (client, server):
        assert await read(client) == (200, b"ok")
    first, *headers = server.requests[0].rstrip().split("\r\n")
    assert first == "GET http://api.invalid:8080/k8s/a HTTP/1.1"
    basic = b64encode(b"me:secret").decode()
    assert {"Host: api.invalid:8080", f"Proxy-Authorization: Basic {basic}"} < set(headers)


@pytest.mark.parametrize(
    ("url", "address"),
    [("http://api", "api:80"), ("https://api./", "api:443"), ("https://[::1]:6443/x", "[::1]:6443")],
)
def test_the_port_of_a_scheme_need_not_be_in_the_url(url: str, address: str) -> None:
    assert http_client._Origin.of(url).address == address


async def test_connecting_ends_with_the_time_for_the_answer() -> None:
    """The server accepts the connection and never answers the TLS handshake."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        client = HttpClient(url, proxy=None, server_name=None, headers=[])
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await read(client, within_s=0.1)
        assert asyncio.get_running_loop().time() - began < http_client._CONNECT_TIMEOUT_S / 2


async def test_no_server_is_named_with_its_address() -> None:
    client = HttpClient("http://localhost:1", proxy=None, server_name=None, headers=[])
    with pytest.raises(ConnectError) as caught:
        await read(client)
    assert caught.value.address == "localhost:1"
    assert isinstance(caught.value.cause, ConnectionRefusedError)
