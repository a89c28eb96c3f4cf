"""The server's side of one HTTP/2 connection, as far as gRPC needs it: bytes in, requests and bytes out. No sockets.

A body is collected until the client ends its stream, because no method of the kubelet sends more than one message. Not
there, because no gRPC client uses it: server push (clients cannot push), priorities (ignored, as RFC 9113 advises), and
upgrades from HTTP/1. Headers are not checked for what HTTP forbids in them. Names and limits: RFC 9113; HPACK (RFC
7541) is the package `hpack`.

Why not gRPC's own server: an empty call costs it three to four times as much processor time, and its library 8 MiB on
every node (`docs/compared.md`). The package `h2` as a server costs as much time as gRPC's.
"""

import struct
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = struct.Struct(">HBBBI")
"""Of a frame: length (2 and 1 bytes), type, flags, stream."""
_WORD = struct.Struct(">I")
_SETTING = struct.Struct(">HI")
_WINDOW = 65_535
_LARGEST_WINDOW = (1 << 31) - 1
_LARGEST_FRAME = 16_384
"""Of those that are received; SETTINGS leaves it at the default, which is also the least that a client must accept."""
_LARGEST_HEADERS = 1 << 16
_TABLE_SIZE = 0x20
"""HPACK, RFC 7541, section 6.3: begins a change of the dynamic table's size."""
_NO_TABLE = bytes([_TABLE_SIZE])
"""This encoder keeps no dynamic table. Sent once, at the start of the first block."""
_INDEXED = bytes(range(0x81, 0xFF))
"""HPACK: a whole field that is in the tables, if its number fits in the byte."""

_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20


class _Frame(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


_SIZES: dict[int, int] = {_Frame.PRIORITY: 5, _Frame.RST_STREAM: 4, _Frame.PING: 8, _Frame.WINDOW_UPDATE: 4}
"""Of payloads whose length is fixed."""
_OF_CONNECTION = (_Frame.SETTINGS, _Frame.PING, _Frame.GOAWAY)
"""Frames without a stream."""


class ErrorCode(IntEnum):
    """Why a stream or a connection ends. Source: RFC 9113, section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class _Setting(IntEnum):
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5


_VALUES: dict[int, tuple[Container[int], ErrorCode]] = {
    _Setting.ENABLE_PUSH: (range(2), ErrorCode.PROTOCOL_ERROR),
    _Setting.INITIAL_WINDOW_SIZE: (range(_LARGEST_WINDOW + 1), ErrorCode.FLOW_CONTROL_ERROR),
    _Setting.MAX_FRAME_SIZE: (range(_LARGEST_FRAME, 1 << 24), ErrorCode.PROTOCOL_ERROR),
}
"""What settings may be, and the error of other values."""


class ConnectionFailed(Exception):
    """The client broke the protocol: send what is `outgoing`, which says so, and close the connection."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Request:
    """A complete request. Of a header that comes several times, the last counts."""

    stream: int
    headers: Mapping[bytes, bytes]
    body: bytes


@dataclass(frozen=True, slots=True)
class Canceled:
    """The client no longer wants an answer on this stream."""

    stream: int


@dataclass(slots=True)
class _Stream:
    window: int
    """How many bytes of data the client still accepts; negative after it made its windows smaller."""
    headers: Mapping[bytes, bytes]
    body: bytearray = field(default_factory=bytearray)
    is_complete: bool = False
    """Whether the client ended its side."""
    is_answered: bool = False
    """Whether the headers of the answer were sent."""
    waiting: bytearray = field(default_factory=bytearray)
    """Data that the windows do not admit yet."""
    trailers: bytes | None = None
    """What ends the stream after `waiting`."""


def header_block(*fields: tuple[str, str]) -> bytes:
    """An encoded header block that is valid at every time on every connection, because it uses no dynamic table."""
    return Encoder().encode([NeverIndexedHeaderTuple(name, value) for name, value in fields], huffman=False)


class Http2Connection:
    """Give it what was received, and send what is `outgoing` after each call."""

    def __init__(self, *, most_streams: int, largest_body: int) -> None:
        """A stream over `most_streams`, or with a body over `largest_body` bytes, is refused by itself."""
        self._most_streams = most_streams
        self._largest_body = largest_body
        self._received = bytearray()
        self._greeted = False
        self._decoder = Decoder(max_header_list_size=_LARGEST_HEADERS)
        self._prefix = _NO_TABLE
        self._streams: dict[int, _Stream] = {}
        self._last = 0
        """The highest stream that the client opened."""
        self._is_leaving = False
        self._block: tuple[int, int, bytearray] | None = None
        """Stream, flags and bytes of headers that are not complete."""
        self._window = _WINDOW
        """What the client accepts on the connection, in bytes of data."""
        self._stream_window = _WINDOW
        self._frame_size = _LARGEST_FRAME
        self._consumed = 0
        """Bytes of data received, for which the client has no new window yet."""
        self._outgoing: list[bytes] = []
        self._write(_Frame.SETTINGS, 0, 0, _SETTING.pack(_Setting.MAX_CONCURRENT_STREAMS, most_streams))

    def outgoing(self) -> bytes:
        """What must be sent now, only once; empty if nothing."""
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        return data

    def receive(self, data: bytes | memoryview) -> list[Request | Canceled]:
        """What became complete with this. Raises ConnectionFailed."""
        self._received += data
        try:
            return [event for frame in self._frames() if (event := self._event(*frame)) is not None]
        except ConnectionFailed as failed:
            self._write(_Frame.GOAWAY, 0, 0, _WORD.pack(self._last) + _WORD.pack(failed.code))
            raise

    def is_blocked(self, stream: int) -> bool:
        """Whether data of this stream waits until the client accepts more."""
        return stream in self._streams and bool(self._streams[stream].waiting)

    def send_headers(self, stream: int, block: bytes) -> None:
        """Starts the answer, if it has not begun. Like all that follows it does nothing after the stream ended."""
        if (state := self._streams.get(stream)) is not None and not state.is_answered:
            state.is_answered = True
            self._write(_Frame.HEADERS, _END_HEADERS, stream, self._first(block))

    def send_data(self, stream: int, data: bytes) -> None:
        """Sends it as far as the client's windows admit, and the rest later."""
        if (state := self._streams.get(stream)) is not None:
            state.waiting += data
            self._flush(stream, state)

    def send_trailers(self, stream: int, block: bytes) -> None:
        """Ends the stream after its data."""
        if (state := self._streams.get(stream)) is not None:
            state.trailers = block
            self._flush(stream, state)

    def leave(self) -> None:
        """Accepts no more streams. The client may send those that it opened in the meantime elsewhere."""
        self._is_leaving = True
        self._write(_Frame.GOAWAY, 0, 0, _WORD.pack(self._last) + _WORD.pack(ErrorCode.NO_ERROR))

    def _write(self, kind: _Frame, flags: int, stream: int, payload: bytes) -> None:
        size = len(payload)
        self._outgoing.append(_HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload)

    def _reset(self, stream: int, code: ErrorCode) -> None:
        del self._streams[stream]
        self._write(_Frame.RST_STREAM, 0, stream, _WORD.pack(code))

    def _first(self, block: bytes) -> bytes:
        prefix, self._prefix = self._prefix, b""
        return prefix + block

    def _flush(self, stream: int, state: _Stream) -> None:
        waiting = state.waiting
        while waiting and (size := min(len(waiting), state.window, self._window, self._frame_size)) > 0:
            self._write(_Frame.DATA, 0, stream, bytes(waiting[:size]))
            del waiting[:size]
            state.window -= size
            self._window -= size
        if not waiting and state.trailers is not None:
            self._write(_Frame.HEADERS, _END_HEADERS | _END_STREAM, stream, self._first(state.trailers))
            del self._streams[stream]

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Type, flags, stream and payload of each complete frame; what is left stays in `_received`."""
        received, at = self._received, 0
        if not self._greeted:
            if not _PREFACE.startswith(received[: len(_PREFACE)]):
                raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "the client does not speak HTTP/2")
            if len(received) < len(_PREFACE):
                return
            self._greeted, at = True, len(_PREFACE)
        while len(received) - at >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(received, at)
            size = high << 8 | low
            if size > _LARGEST_FRAME:
                raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, f"a frame has {size} bytes")
            if len(received) - at - _HEAD.size < size:
                break
            start = at + _HEAD.size
            at = start + size
            yield kind, flags, stream & _LARGEST_WINDOW, bytes(received[start:at])
        del received[:at]

    def _event(self, kind: int, flags: int, stream: int, payload: bytes) -> Request | Canceled | None:
        if self._block is not None and (kind != _Frame.CONTINUATION or stream != self._block[0]):
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "a frame came between parts of a header block")
        if len(payload) != _SIZES.get(kind, len(payload)):
            raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, f"a frame of type {kind} has {len(payload)} bytes")
        if stream and kind in _OF_CONNECTION:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"a frame of type {kind} has a stream")
        match kind:
            case _Frame.DATA:
                return self._data(flags, stream, payload)
            case _Frame.HEADERS:
                return self._headers(flags, stream, payload)
            case _Frame.CONTINUATION:
                return self._continued(flags, payload)
            case _Frame.RST_STREAM:
                self._known(stream)
                return Canceled(stream) if self._streams.pop(stream, None) is not None else None
            case _Frame.SETTINGS if not flags & _ACK:
                self._settings(payload)
            case _Frame.PING if not flags & _ACK:
                self._write(_Frame.PING, _ACK, 0, payload)
            case _Frame.WINDOW_UPDATE:
                self._more_window(stream, payload)
            case _Frame.PUSH_PROMISE:
                raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "a client cannot push")
        return None  # Also frames of types that this does not know. Source: RFC 9113, section 4.1.

    def _known(self, stream: int) -> None:
        if not 0 < stream <= self._last and not self._is_leaving:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"stream {stream} was never opened")

    def _headers(self, flags: int, stream: int, payload: bytes) -> Request | None:
        block = _unpadded(flags, payload)
        if flags & _PRIORITY:
            block = block[5:]
        if stream in self._streams and not flags & _END_STREAM:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "trailers do not end their stream")
        self._block = (stream, flags, bytearray())
        return self._continued(flags, block)

    def _continued(self, flags: int, payload: bytes) -> Request | None:
        if self._block is None:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        stream, first_flags, block = self._block
        block += payload
        if len(block) > _LARGEST_HEADERS:
            raise ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, "the headers are too long")
        if not flags & _END_HEADERS:
            return None
        self._block = None
        try:
            # Of refused streams, too: each block changes the table of the connection.
            headers = self._decoded(bytes(block))
        except HPACKError as error:
            raise ConnectionFailed(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        state = self._opened(stream, headers)
        return self._ended(stream, state) if state is not None and first_flags & _END_STREAM else None

    def _decoded(self, block: bytes) -> dict[bytes, bytes]:
        """Raises HPACKError. A call of gRPC begins with fields that are in the tables whole, one byte each. They are
        looked up here, because the package makes about fifteen calls for each."""
        headers, fields = {}, self._decoder.header_table
        rest = block.lstrip(_INDEXED)
        for byte in block[: len(block) - len(rest)]:
            name, value = fields.get_by_index(byte & 0x7F)
            headers[name] = value
        if headers and rest and rest[0] & 0xE0 == _TABLE_SIZE:
            raise HPACKError("the size of the table changes after a field")
        return {**headers, **dict(self._decoder.decode(rest, raw=True))} if rest else headers

    def _opened(self, stream: int, headers: Mapping[bytes, bytes]) -> _Stream | None:
        """The stream of these headers, which may be its trailers; None if it is over or not accepted."""
        if stream % 2 == 0:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"a client cannot open stream {stream}")
        if stream <= self._last or self._is_leaving:
            return self._streams.get(stream)
        self._last = stream
        state = self._streams[stream] = _Stream(self._stream_window, headers)
        if len(self._streams) > self._most_streams:
            self._reset(stream, ErrorCode.REFUSED_STREAM)
            return None
        return state

    def _data(self, flags: int, stream: int, payload: bytes) -> Request | None:
        self._known(stream)
        self._consumed += len(payload)
        if self._consumed > _WINDOW // 2:
            self._write(_Frame.WINDOW_UPDATE, 0, 0, _WORD.pack(self._consumed))
            self._consumed = 0
        if (state := self._streams.get(stream)) is None:
            return None
        state.body += _unpadded(flags, payload)
        if len(state.body) > self._largest_body:
            self._reset(stream, ErrorCode.ENHANCE_YOUR_CALM)
            return None
        if flags & _END_STREAM:
            return self._ended(stream, state)
        if payload:
            self._write(_Frame.WINDOW_UPDATE, 0, stream, _WORD.pack(len(payload)))
        return None

    def _ended(self, stream: int, state: _Stream) -> Request:
        if state.is_complete:
            raise ConnectionFailed(ErrorCode.STREAM_CLOSED, f"stream {stream} has more frames after its end")
        state.is_complete = True
        return Request(stream, state.headers, bytes(state.body))

    def _settings(self, payload: bytes) -> None:
        if len(payload) % _SETTING.size:
            raise ConnectionFailed(
                ErrorCode.FRAME_SIZE_ERROR,
                f"SETTINGS has {len(payload)} bytes, which is no multiple of {_SETTING.size}",
            )
        for setting, value in _SETTING.iter_unpack(payload):
            allowed, code = _VALUES.get(setting, ((value,), ErrorCode.NO_ERROR))
            if value not in allowed:
                raise ConnectionFailed(code, f"setting {setting} is {value}")
            if setting == _Setting.INITIAL_WINDOW_SIZE:
                for state in self._streams.values():
                    state.window += value - self._stream_window
                self._stream_window = value
            elif setting == _Setting.MAX_FRAME_SIZE:
                self._frame_size = value
        self._write(_Frame.SETTINGS, _ACK, 0, b"")
        self._flush_all()

    def _more_window(self, stream: int, payload: bytes) -> None:
        more = _WORD.unpack(payload)[0] & _LARGEST_WINDOW
        if stream == 0:
            self._window = _grown(self._window, more)
        else:
            self._known(stream)
            if (state := self._streams.get(stream)) is not None:
                state.window = _grown(state.window, more)
        self._flush_all()

    def _flush_all(self) -> None:
        for stream, state in list(self._streams.items()):
            if state.waiting:
                self._flush(stream, state)


def _grown(window: int, more: int) -> int:
    """Of a stream, too, an error ends the connection, as RFC 9113 permits."""
    if not more:
        raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "a WINDOW_UPDATE adds 0 bytes")
    if window + more > _LARGEST_WINDOW:
        raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, f"a window would grow to {window + more} bytes")
    return window + more


def _unpadded(flags: int, payload: bytes) -> bytes:
    """Of a DATA or HEADERS frame."""
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "the padding is longer than the frame")
    return payload[1 : len(payload) - payload[0]]
