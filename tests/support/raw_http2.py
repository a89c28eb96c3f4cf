"""A unary gRPC call with any `:authority`: gRPC clients do not let one choose what Go's sends."""

import asyncio
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, StreamEnded, StreamReset


class Refused(Exception):
    """The server reset the stream, closed the connection, or answered no message."""


async def call(socket: Path, method: str, message: bytes, *, authority: str) -> bytes:
    """The answer's message. Raises Refused."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", authority)]
    fields += [("content-type", "application/grpc"), ("te", "trailers")]
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    client.send_headers(1, fields)
    client.send_data(1, b"\0" + len(message).to_bytes(4) + message, end_stream=True)
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        received = b""
        while True:
            writer.write(client.data_to_send())
            if not (data := await reader.read(65_536)):
                raise Refused("the connection was closed")
            for event in client.receive_data(data):
                if isinstance(event, StreamReset | ConnectionTerminated):
                    raise Refused(str(event))
                if isinstance(event, DataReceived):
                    received += event.data
                if isinstance(event, StreamEnded):
                    if not received:
                        raise Refused("no message")
                    return received[5:]
    finally:
        writer.close()
