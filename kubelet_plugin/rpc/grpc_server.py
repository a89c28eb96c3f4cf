"""A gRPC server on one unix socket, in the event loop: methods with one request, and with one answer or a stream.

The protocol: gRPC over HTTP/2, https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md. Messages are not
compressed. Deadlines are the client's: it resets a stream that takes too long, and its call is canceled here. So are
all calls of a connection that breaks.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import structlog
from google.protobuf.message import DecodeError, Message

from dra_driver.errors import NodeNotReady
from kubelet_plugin.rpc.http2 import Canceled, ConnectionFailed, Http2Connection, Request, header_block

_log = structlog.get_logger(__name__)

_MOST_CALLS = 128
"""At one time on a connection; the kubelet has one connection."""
_LARGEST_MESSAGE = 4 << 20
"""The default of gRPC's own servers, in bytes."""
_BUFFER = 1 << 14
_CLIENTS_CLOSE_S = 1.0
"""How long clients can take at the end to close their connections."""
_PREFIX = struct.Struct(">BI")
"""Of a message: whether it is compressed, and its length."""
_LONGEST_REASON = 4_000
"""In bytes; with each of them escaped it still fits into a frame."""
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""What is not escaped in `grpc-message`."""


class GrpcStatus(IntEnum):
    """How a call ends. Source: gRPC's status codes."""

    CANCELED = 1
    UNKNOWN = 2
    UNIMPLEMENTED = 12
    INTERNAL = 13


class CallFailed(Exception):
    """The answer to a call that has no message."""

    def __init__(self, status: GrpcStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


type Metadata = Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Unary:
    """A method with one answer. An exception ends the call with status UNKNOWN, CallFailed with its own."""

    request: type[Message]
    answer: Callable[[Any, Metadata], Awaitable[Message]]


@dataclass(frozen=True, slots=True)
class Streaming:
    """A method that answers with messages until it ends; the next is asked for when the client has taken the last."""

    request: type[Message]
    answers: Callable[[Any, Metadata], AsyncGenerator[Message]]


type Methods = Mapping[str, Unary | Streaming]
"""By path: `/<service>/<method>`."""

_HEADERS = header_block((":status", "200"), ("content-type", "application/grpc"))
_SUCCESS = header_block(("grpc-status", "0"))


class GrpcServer:
    """Serves `methods` from `listen` until `stop`."""

    def __init__(self, methods: Methods) -> None:
        self._methods = {path.encode(): method for path, method in methods.items()}
        self._connections: set[_Connection] = set()
        self._listener: tuple[asyncio.Server, Path] | None = None

    async def listen(self, path: Path) -> None:
        """Serves on a socket that only root can open, in place of that of an earlier process. Raises NodeNotReady if
        the folder or the socket cannot be created.
        """
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        # The kubelet calls a socket when it appears, and another plugin process removes one on which no process
        # listens: it gets its name when it listens. The kubelet ignores names that begin with a dot.
        hidden = path.with_name(f".{path.name}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            hidden.unlink(missing_ok=True)
            listening.bind(str(hidden))
            hidden.chmod(0o600)
            listening.listen()
            hidden.replace(path)
        except OSError as error:
            listening.close()
            raise NodeNotReady(f"cannot listen: {error}", about=f"socket {path}") from error
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(self._connection, sock=listening, start_serving=False)
        # Known to `stop` before anything can cancel this.
        self._listener = server, path
        await server.start_serving()

    async def stop(self, grace_s: float) -> None:
        """Removes the socket and refuses new calls; cancels the running ones that are not done after the grace period.
        Does nothing if it does not listen.
        """
        if self._listener is None:
            return
        (listener, path), self._listener = self._listener, None
        listener.close()
        path.unlink(missing_ok=True)
        for connection in self._connections:
            connection.leave()
        running = [call for connection in self._connections for call in connection.calls()]
        if running:
            await asyncio.wait(running, timeout=grace_s)
        # Clients close when they have read all. One that writes to a closed socket may drop the answer that it got.
        for connection in self._connections:
            connection.half_close()
        if left := [connection.closed for connection in self._connections]:
            await asyncio.wait(left, timeout=min(grace_s, _CLIENTS_CLOSE_S))
        for connection in list(self._connections):
            connection.close()

    def _connection(self) -> asyncio.BaseProtocol:
        return _Connection(self._methods, self._connections)


class _Connection(asyncio.BufferedProtocol):
    def __init__(self, methods: Mapping[bytes, Unary | Streaming], connections: set["_Connection"]) -> None:
        self._methods = methods
        self._connections = connections
        self._http2 = Http2Connection(most_streams=_MOST_CALLS, largest_body=_LARGEST_MESSAGE + _PREFIX.size)
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._buffer = memoryview(bytearray(_BUFFER))
        self._moved = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.closed = self._loop.create_future()
        self._has_ended = False

    def calls(self) -> list[asyncio.Task[None]]:
        """Those that run."""
        return list(self._calls.values())

    def leave(self) -> None:
        self._http2.leave()
        self._send()

    def half_close(self) -> None:
        """Ends what is sent, and still reads."""
        if self._is_open():
            self._transport.write_eof()
        self._has_ended = True

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self.closed.set_result(None)
        for call in self.calls():
            call.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for event in self._http2.receive(self._buffer[:nbytes]):
                self._happened(event)
        except ConnectionFailed as failed:
            _log.warning("disconnected a client of the plugin's socket, because it broke HTTP/2", error=str(failed))
            self._send()
            self._transport.close()
            return
        self._send()
        self._moved.set()
        self._moved.clear()

    def pause_writing(self) -> None:
        """A client that does not read is not read from, so that no memory fills with answers to its pings."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def _send(self) -> None:
        if (data := self._http2.outgoing()) and self._is_open():
            self._transport.write(data)

    def _is_open(self) -> bool:
        """Whether anything can be sent."""
        return not (self._has_ended or self._transport.is_closing())

    def _happened(self, event: Request | Canceled) -> None:
        if isinstance(event, Request):
            # Eager: what needs no waiting is answered without another turn of the event loop.
            call = asyncio.Task(self._call(event), loop=self._loop, eager_start=True)
            if not call.done():
                self._calls[event.stream] = call
        elif (running := self._calls.get(event.stream)) is not None:
            running.cancel()

    async def _call(self, request: Request) -> None:
        stream = request.stream
        try:
            await self._answer(stream, request)
            trailers = _SUCCESS
        except CallFailed as failed:
            trailers = _failure(failed.status, str(failed))
        except asyncio.CancelledError:
            # By the client, which hears nothing of this, or because the plugin ends.
            self._end(stream, _failure(GrpcStatus.CANCELED, "the plugin ended the call"))
            raise
        except Exception as error:  # noqa: BLE001 - the client must get an answer in every case
            _log.exception("a call failed unexpectedly", method=request.headers.get(b":path", b"").decode())
            trailers = _failure(GrpcStatus.UNKNOWN, f"{type(error).__name__}: {error}")
        finally:
            self._calls.pop(stream, None)
        self._end(stream, trailers)

    def _end(self, stream: int, trailers: bytes) -> None:
        self._http2.send_headers(stream, _HEADERS)
        self._http2.send_trailers(stream, trailers)
        self._send()

    async def _answer(self, stream: int, request: Request) -> None:
        path = request.headers.get(b":path", b"")
        method = self._methods.get(path)
        if method is None:
            raise CallFailed(GrpcStatus.UNIMPLEMENTED, f"unknown method {path.decode(errors='replace')}")
        message = _message(method.request, request.body)
        if isinstance(method, Unary):
            answer = await method.answer(message, request.headers)
            self._http2.send_headers(stream, _HEADERS)
            self._http2.send_data(stream, _framed(answer))
            return
        async with aclosing(method.answers(message, request.headers)) as answers:
            async for answer in answers:
                self._http2.send_headers(stream, _HEADERS)
                self._http2.send_data(stream, _framed(answer))
                self._send()
                while self._http2.is_blocked(stream):
                    await self._moved.wait()


def _message(kind: type[Message], body: bytes) -> Message:
    """The only message of a request. Raises CallFailed."""
    compressed, size = _PREFIX.unpack_from(body) if len(body) >= _PREFIX.size else (0, -1)
    if compressed:
        raise CallFailed(GrpcStatus.UNIMPLEMENTED, "compressed messages are not supported")
    if size != len(body) - _PREFIX.size:
        raise CallFailed(GrpcStatus.INTERNAL, "the request is not one complete message")
    try:
        return kind.FromString(body[_PREFIX.size :])
    except DecodeError as error:
        raise CallFailed(GrpcStatus.INTERNAL, f"the request is no {kind.DESCRIPTOR.name}: {error}") from error


def _framed(message: Message) -> bytes:
    encoded = message.SerializeToString()
    return _PREFIX.pack(0, len(encoded)) + encoded


def _failure(status: GrpcStatus, reason: str) -> bytes:
    text = quote(reason.encode()[:_LONGEST_REASON], safe=_PLAIN)
    return header_block(("grpc-status", str(int(status))), ("grpc-message", text))
