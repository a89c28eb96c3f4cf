"""The gRPC server with gRPC's own client, over a real unix socket."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from socket import socket as Socket
from typing import Any

import grpc
import grpc.aio
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from support.plugin import eventually, short_folder

from dra_driver.kube.kubelet_api.generated import registration_pb2
from kubelet_plugin.rpc.grpc_server import CallFailed, GrpcServer, GrpcStatus, Metadata, Streaming, Unary

Info = registration_pb2.PluginInfo


class Echo:
    """Methods that answer with what they get; `calls` are those that run, `sent` the messages of the stream."""

    def __init__(self) -> None:
        self.calls = 0
        self.sent = 0
        self.metadata: Metadata = {}
        self.go_on = asyncio.Event()
        self.server = GrpcServer(
            {
                "/s/Echo": Unary(Info, self._echo),
                "/s/Wait": Unary(Info, self._wait),
                "/s/Flow": Streaming(Info, self._flow),
            }
        )

    async def _echo(self, request: Any, metadata: Metadata) -> Any:
        self.metadata = metadata
        if request.name == "a defect":
            raise ZeroDivisionError("100 % ü\nsecond line")
        if request.name == "an end":
            raise asyncio.CancelledError
        if request.name == "a refusal":
            raise CallFailed(GrpcStatus.INTERNAL, "not now")
        return request

    async def _wait(self, request: Any, metadata: Metadata) -> Any:
        self.calls += 1
        try:
            await self.go_on.wait()
        finally:
            self.calls -= 1
        return request

    async def _flow(self, request: Any, metadata: Metadata) -> AsyncGenerator[Any]:
        for _ in range(50):
            self.sent += 1
            yield request
        if request.endpoint:
            raise CallFailed(GrpcStatus.UNIMPLEMENTED, request.endpoint)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Echo, Path]]:
    with short_folder() as folder:
        echo = Echo()
        await echo.server.listen(folder / "s.sock")
        try:
            yield echo, folder / "s.sock"
        finally:
            await echo.server.stop(0)


def channel_to(socket: Path) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"unix:{socket}", [("grpc.use_local_subchannel_pool", 1)])


def method(channel: grpc.aio.Channel, name: str) -> Any:
    make = channel.unary_stream if name == "Flow" else channel.unary_unary
    return make(
        f"/s/{name}",
        request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
        response_deserializer=Info.FromString,
    )


@pytest.mark.parametrize("size", [0, 1, 70_000, 4_000_000])
async def test_messages_of_any_size_come_back(size: int) -> None:
    async with serving() as (echo, socket), channel_to(socket) as channel:
        request = Info(name="n" * size)
        metadata = (("traceparent", "00-a-b-01"), ("other-bin", b"\0\1"))
        answer = await method(channel, "Echo")(request, metadata=metadata, timeout=20)
        assert answer == request
        assert echo.metadata[b"traceparent"] == b"00-a-b-01"


async def test_many_calls_at_once_get_their_own_answers() -> None:
    async with serving() as (_, socket), channel_to(socket) as channel:
        calls = [method(channel, "Echo")(Info(name=f"{number}" * number), timeout=20) for number in range(100)]
        answers = await asyncio.gather(*calls)
    assert [answer.name for answer in answers] == [f"{number}" * number for number in range(100)]


@pytest.mark.parametrize(
    ("name", "request_", "status", "reason"),
    [
        ("Nothing", Info(), grpc.StatusCode.UNIMPLEMENTED, "unknown method /s/Nothing"),
        ("Echo", b"\xff\xff", grpc.StatusCode.INTERNAL, "the request is no PluginInfo"),
        ("Echo", Info(name="a defect"), grpc.StatusCode.UNKNOWN, "ZeroDivisionError: 100 % ü\nsecond line"),
        ("Echo", Info(name="a refusal"), grpc.StatusCode.INTERNAL, "not now"),
        ("Echo", Info(name="an end"), grpc.StatusCode.CANCELLED, ""),
        ("Echo", Info(name="n" * 4_200_000), grpc.StatusCode.RESOURCE_EXHAUSTED, ""),
    ],
    ids=["an unknown method", "no message", "a defect", "a refusal", "an end", "a request that is too large"],
)
async def test_what_cannot_be_answered_ends_with_a_status_and_the_connection_goes_on(
    name: str, request_: Any, status: grpc.StatusCode, reason: str
) -> None:
    async with serving() as (_, socket), channel_to(socket) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await method(channel, name)(request_, timeout=20)
        assert failed.value.code() is status
        assert reason in (failed.value.details() or "")
        assert (await method(channel, "Echo")(Info(name="again"), timeout=20)).name == "again"


async def test_compressed_requests_are_refused() -> None:
    async with serving() as (_, socket), channel_to(socket) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="compressed messages are not supported"):
            await method(channel, "Echo")(Info(name="n" * 1000), compression=grpc.Compression.Gzip, timeout=20)


async def test_a_call_that_the_client_gives_up_is_canceled() -> None:
    async with serving() as (echo, socket), channel_to(socket) as channel:
        late = method(channel, "Wait")(Info(), timeout=1)
        await eventually(lambda: echo.calls == 1)
        with pytest.raises(grpc.aio.AioRpcError, match="Deadline"):
            await late
        await eventually(lambda: echo.calls == 0)
        call = method(channel, "Wait")(Info(), timeout=20)
        await eventually(lambda: echo.calls == 1)
        call.cancel()
        await eventually(lambda: echo.calls == 0)


async def test_the_calls_of_a_connection_that_breaks_are_canceled() -> None:
    async with serving() as (echo, socket):
        async with channel_to(socket) as channel:
            call = method(channel, "Wait")(Info(), timeout=20)
            await eventually(lambda: echo.calls == 1)
        await eventually(lambda: echo.calls == 0)
        assert call.done()


async def test_a_stream_brings_all_messages_and_its_status() -> None:
    async with serving() as (_, socket), channel_to(socket) as channel:
        got = [message.name async for message in method(channel, "Flow")(Info(name="x"), timeout=20)]
        assert got == ["x"] * 50
        with pytest.raises(grpc.aio.AioRpcError, match="no more"):
            _ = [message async for message in method(channel, "Flow")(Info(endpoint="no more"), timeout=20)]


async def test_a_stream_makes_no_message_before_the_client_has_taken_the_last() -> None:
    async with serving() as (echo, socket):
        reader, writer = await asyncio.open_unix_connection(str(socket))
        client = H2Connection(H2Configuration(client_side=True))
        client.initiate_connection()
        client.send_headers(1, [(":method", "POST"), (":path", "/s/Flow"), (":scheme", "http"), (":authority", "")])
        encoded = Info(name="x" * 40_000).SerializeToString()
        client.send_data(1, b"\0" + len(encoded).to_bytes(4), end_stream=False)
        for start in range(0, len(encoded), 16_000):
            client.send_data(1, encoded[start : start + 16_000])
        client.end_stream(1)
        writer.write(client.data_to_send())
        await eventually(lambda: echo.sent == 2)
        await asyncio.sleep(0.1)
        assert echo.sent == 2  # The second message does not fit into the window.
        client.receive_data(await reader.read(60_000))
        client.acknowledge_received_data(40_000, 1)
        writer.write(client.data_to_send())
        await eventually(lambda: echo.sent == 3)
        writer.close()


async def test_a_stop_finishes_what_runs_and_cancels_what_takes_too_long() -> None:
    async with serving() as (echo, socket), channel_to(socket) as channel:
        call = method(channel, "Wait")(Info(name="x"), timeout=20)
        await eventually(lambda: echo.calls == 1)
        stopping = asyncio.ensure_future(echo.server.stop(20))
        await asyncio.sleep(0.1)
        assert not socket.exists() and not stopping.done()
        echo.go_on.set()
        assert (await call).name == "x"
        await stopping
    async with serving() as (echo, socket), channel_to(socket) as channel:
        call = method(channel, "Wait")(Info(), timeout=20)
        await eventually(lambda: echo.calls == 1)
        await echo.server.stop(0.1)
        with pytest.raises(grpc.aio.AioRpcError):
            await call
        await eventually(lambda: echo.calls == 0)


async def test_a_client_that_writes_at_the_end_still_gets_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    """A client that writes to a closed socket fails, and may drop what it has not read yet."""
    async with serving() as (echo, socket):
        reader, writer = await asyncio.open_unix_connection(str(socket))
        client = H2Connection(H2Configuration(client_side=True))
        client.initiate_connection()
        client.send_headers(1, [(":method", "POST"), (":path", "/s/Wait"), (":scheme", "http"), (":authority", "")])
        client.send_data(1, bytes(5), end_stream=True)
        writer.write(client.data_to_send())
        await eventually(lambda: echo.calls == 1)
        stopping = asyncio.ensure_future(echo.server.stop(5))
        echo.go_on.set()
        await asyncio.sleep(0.1)
        client.ping(bytes(8))
        writer.write(client.data_to_send())
        await writer.drain()
        assert b"grpc-status" in await reader.read()  # The package h2 takes nothing after GOAWAY.
        writer.close()
        await stopping
    assert not caplog.records


async def test_who_speaks_no_http2_is_disconnected_and_others_are_served() -> None:
    async with serving() as (_, socket), channel_to(socket) as channel:
        reader, writer = await asyncio.open_unix_connection(str(socket))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert b"\x00\x00\x08\x07" in await asyncio.wait_for(reader.read(), 10)
        writer.close()
        assert (await method(channel, "Echo")(Info(name="x"), timeout=20)).name == "x"


async def test_a_socket_has_its_name_only_when_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet calls a socket when it appears, and does not look at names that begin with a dot."""
    before: list[list[str]] = []
    listen = Socket.listen

    def watched(self: Socket, *backlog: int) -> None:
        before.append([path.name for path in Path(self.getsockname()).parent.iterdir()])
        listen(self, *backlog)

    monkeypatch.setattr(Socket, "listen", watched)
    with short_folder() as folder:
        server = Echo().server
        await server.listen(folder / "dra.sock")
        assert before[0] == [".dra.sock"]
        assert [path.name for path in folder.iterdir()] == ["dra.sock"]
        async with channel_to(folder / "dra.sock") as channel:
            assert (await method(channel, "Echo")(Info(name="x"), timeout=20)).name == "x"
        await server.stop(0)
        assert [*folder.iterdir()] == []
