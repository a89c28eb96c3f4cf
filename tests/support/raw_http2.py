"""A unary gRPC call as bytes on a socket, with any `:authority`: gRPC clients do not let one choose what Go's sends."""

import asyncio
import struct
from pathlib import Path

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _RESET = 0, 1, 4, 6, 7, 3
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4


class Refused(Exception):
    """The server reset the stream, closed the connection, or answered no message."""


async def call(socket: Path, method: str, message: bytes, *, authority: str) -> bytes:
    """The answer's message. Raises Refused."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", authority)]
    fields += [("content-type", "application/grpc"), ("te", "trailers")]
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        writer.write(
            _PREFACE
            + _frame(_SETTINGS, 0, 0, b"")
            + _frame(_HEADERS, _END_HEADERS, 1, b"".join(_literal(name, value) for name, value in fields))
            + _frame(_DATA, _END_STREAM, 1, b"\0" + struct.pack(">I", len(message)) + message)
        )
        return await _answer(reader, writer)
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    received = b""
    while True:
        try:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3]))
        except asyncio.IncompleteReadError as error:
            raise Refused("the connection was closed") from error
        kind, flags = head[3], head[4]
        if kind in (_RESET, _GOAWAY):
            raise Refused(f"frame of type {kind}: {payload!r}")
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            writer.write(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        if kind == _DATA:
            received += payload
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            if not received:
                raise Refused(f"no message: {payload!r}")
            return received[5:]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _literal(name: str, value: str) -> bytes:
    """A header field neither indexed nor compressed (RFC 7541, 6.2.2)."""
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    content = text.encode()
    if len(content) < 127:
        return bytes((len(content),)) + content
    rest = len(content) - 127
    length = b"\x7f"
    while rest >= 128:
        length += bytes((rest % 128 + 128,))
        rest //= 128
    return length + bytes((rest,)) + content
