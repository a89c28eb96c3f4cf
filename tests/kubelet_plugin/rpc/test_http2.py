"""The server's side of HTTP/2 with a client of another implementation, and against what no client may send."""

import struct
from collections.abc import Sequence

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, StreamEnded, TrailersReceived
from h2.settings import SettingCodes
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from kubelet_plugin.rpc.http2 import Canceled, ConnectionFailed, ErrorCode, Http2Connection, Request, header_block

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
ASKING = [(":method", "POST"), (":path", "/s/m"), (":scheme", "http"), (":authority", ""), ("te", "trailers")]
BLOCK = Encoder().encode(ASKING)
START = header_block((":status", "200"), ("content-type", "application/grpc"))
END = header_block(("grpc-status", "0"))
MOST, LARGEST = 3, 100_000


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def settings(code: int, value: int) -> bytes:
    return frame(SETTINGS, 0, 0, struct.pack(">HI", code, value))


def a_server() -> Http2Connection:
    return Http2Connection(most_streams=MOST, largest_body=LARGEST)


class Pair:
    """A client with windows of that size, and this server, which gets what is sent in pieces of these sizes."""

    def __init__(self, pieces: Sequence[int] = (), window: int = 65_535) -> None:
        self.server = a_server()
        self.client = H2Connection(H2Configuration(client_side=True))
        self.client.initiate_connection()
        self.client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.requests: list[Request | Canceled] = []
        self.events: list[Event] = []
        self.bodies: dict[int, bytes] = {}
        self._pieces = list(pieces)
        self.exchange()

    def exchange(self) -> None:
        """Until both have got all."""
        while (sent := self.client.data_to_send()) + (answered := self.server.outgoing()):
            while sent:
                size = self._pieces.pop() if self._pieces else len(sent)
                self.requests += self.server.receive(sent[:size])
                sent = sent[size:]
            for event in self.client.receive_data(answered):
                self.events.append(event)
                if isinstance(event, DataReceived):
                    self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
                    self.client.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)

    def ask(self, body: bytes = b"", stream: int = 1) -> None:
        self.client.send_headers(stream, ASKING)
        rest = body
        while rest:
            size = min(len(rest), self.client.local_flow_control_window(stream), self.client.max_outbound_frame_size)
            self.client.send_data(stream, rest[:size])
            rest = rest[size:]
            self.exchange()
        self.client.end_stream(stream)
        self.exchange()

    def answer(self, stream: int, body: bytes) -> None:
        self.server.send_headers(stream, START)
        self.server.send_data(stream, body)
        self.server.send_trailers(stream, END)
        self.exchange()


@given(
    st.lists(st.tuples(st.binary(max_size=200), st.integers(0, 90_000)), min_size=1, max_size=4),
    st.lists(st.integers(1, 40), max_size=200),
    st.integers(1, 70_000),
)
def test_requests_and_answers_of_any_size_arrive_whole_in_any_pieces_through_any_window(
    calls: list[tuple[bytes, int]], pieces: list[int], window: int
) -> None:
    pair = Pair(pieces, window)
    for number, (text, size) in enumerate(calls):
        stream = 2 * number + 1
        body = (text * (size // max(len(text), 1) + 1))[:size]
        pair.ask(body, stream)
        request = pair.requests[-1]
        assert isinstance(request, Request)
        assert (request.stream, request.body) == (stream, body)
        assert {name.decode(): value.decode() for name, value in request.headers.items()} == dict(ASKING)
        pair.answer(stream, body + b"!")
        assert pair.bodies[stream] == body + b"!"
        assert [type(event) for event in pair.events[-2:]] == [TrailersReceived, StreamEnded]


FIELDS = st.one_of(
    st.sampled_from([(":method", "GET"), (":status", "200"), ("te", "trailers"), ("grpc-timeout", "45S"), ("a", "")]),
    st.tuples(st.sampled_from(["grpc-timeout", "x-a", "x-b"]), st.text("abc", max_size=3)),
)


@given(st.lists(st.lists(FIELDS, max_size=9), min_size=1, max_size=80), st.sampled_from([4096, 100, 0]))
def test_headers_are_what_was_sent_however_they_are_in_the_tables(
    blocks: list[list[tuple[str, str]]], size: int
) -> None:
    """Enough blocks to fill the dynamic table, which then drops fields."""
    server, encoder = a_server(), Encoder()
    encoder.header_table_size = size
    server.receive(PREFACE)
    for number, fields in enumerate(blocks):
        sent = encoder.encode([*ASKING, *fields] if number % 2 else fields)
        (request,) = server.receive(frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, sent))
        assert isinstance(request, Request)
        expected = dict([*ASKING, *fields] if number % 2 else fields)
        assert {name.decode(): value.decode() for name, value in request.headers.items()} == expected
        server.send_headers(request.stream, START)
        server.send_trailers(request.stream, END)


def test_answers_wait_for_the_window_of_the_client_and_end_after_their_data() -> None:
    pair = Pair(window=10)
    pair.ask()
    pair.server.send_headers(1, START)
    pair.server.send_data(1, b"x" * 25)
    pair.server.send_trailers(1, END)
    assert pair.server.is_blocked(1)
    (data,) = [event for event in pair.client.receive_data(pair.server.outgoing()) if isinstance(event, DataReceived)]
    assert data.data == b"x" * 10
    pair.client.acknowledge_received_data(10, 1)
    pair.exchange()
    assert not pair.server.is_blocked(1)
    assert pair.bodies[1] == b"x" * 15
    assert isinstance(pair.events[-1], StreamEnded)


def test_a_client_that_gives_up_gets_no_more() -> None:
    pair = Pair()
    pair.ask()
    pair.client.reset_stream(1)
    pair.exchange()
    assert pair.requests[-1] == Canceled(1)
    pair.server.send_headers(1, START)
    pair.server.send_data(1, b"late")
    pair.server.send_trailers(1, END)
    assert pair.server.outgoing() == b""


def test_streams_and_bodies_over_the_limits_are_refused_by_themselves() -> None:
    server = a_server()
    server.receive(PREFACE + b"".join(frame(HEADERS, END_HEADERS, stream, BLOCK) for stream in (1, 3, 5, 7)))
    server.outgoing()
    parts = b"".join(frame(DATA, 0, 3, bytes(10_000)) for _ in range(LARGEST // 10_000 + 1))
    assert server.receive(parts + frame(DATA, END_STREAM, 3, b"late")) == []
    assert frame(RST_STREAM, 0, 3, struct.pack(">I", ErrorCode.ENHANCE_YOUR_CALM)) in server.outgoing()
    (request,) = server.receive(frame(HEADERS, END_HEADERS | END_STREAM, 9, BLOCK))
    assert request.stream == 9


def test_a_stream_too_many_is_refused() -> None:
    server = a_server()
    opened = server.receive(
        PREFACE + b"".join(frame(HEADERS, END_HEADERS | END_STREAM, n, BLOCK) for n in (1, 3, 5, 7))
    )
    assert [request.stream for request in opened] == [1, 3, 5]
    assert server.outgoing().endswith(frame(RST_STREAM, 0, 7, struct.pack(">I", ErrorCode.REFUSED_STREAM)))


def test_a_server_that_leaves_ends_what_it_began_and_begins_nothing() -> None:
    pair = Pair()
    pair.ask()
    pair.server.leave()
    late = frame(HEADERS, END_HEADERS, 3, BLOCK) + frame(DATA, END_STREAM, 3, b"late")
    assert pair.server.receive(late) == []
    assert frame(GOAWAY, 0, 0, struct.pack(">II", 1, ErrorCode.NO_ERROR)) in pair.server.outgoing()
    pair.server.send_headers(1, START)
    pair.server.send_trailers(1, END)
    assert pair.server.outgoing()


def test_pings_are_answered_padding_and_priorities_are_dropped_and_what_is_unknown_is_ignored() -> None:
    server = a_server()
    server.outgoing()
    priority = frame(PRIORITY, 0, 1, b"\0\0\0\0\1") + frame(0x77, 0xFF, 9, b"of another protocol")
    server.receive(
        PREFACE + settings(0x99, 7) + frame(PING, 0, 0, b"12345678") + frame(PING, ACK, 0, bytes(8)) + priority
    )
    assert server.outgoing() == frame(SETTINGS, ACK, 0) + frame(PING, ACK, 0, b"12345678")
    half = len(BLOCK) // 2
    headers = frame(HEADERS, PADDED | WITH_PRIORITY, 1, b"\2" + bytes(5) + BLOCK[:half] + b"\0\0")
    data = frame(DATA, PADDED | END_STREAM, 1, b"\3body\0\0\0")
    (request,) = server.receive(headers + frame(CONTINUATION, END_HEADERS, 1, BLOCK[half:]) + data)
    assert isinstance(request, Request) and request.body == b"body"


OPEN = frame(HEADERS, END_HEADERS, 1, BLOCK)
ASKED = frame(HEADERS, END_HEADERS | END_STREAM, 1, BLOCK)
WRONG = {
    "HTTP/1": (b"GET / HTTP/1.1\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
    "a frame that is too large": (PREFACE + b"\0\x40\x01" + bytes(6), ErrorCode.FRAME_SIZE_ERROR),
    "data before headers": (PREFACE + frame(DATA, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "data of the connection": (PREFACE + frame(DATA, 0, 0), ErrorCode.PROTOCOL_ERROR),
    "data after the end": (PREFACE + ASKED + frame(DATA, END_STREAM, 1), ErrorCode.STREAM_CLOSED),
    "a second request on a stream": (PREFACE + ASKED + ASKED, ErrorCode.STREAM_CLOSED),
    "trailers without end": (PREFACE + OPEN + OPEN, ErrorCode.PROTOCOL_ERROR),
    "a stream of the server": (PREFACE + frame(HEADERS, END_HEADERS, 2, BLOCK), ErrorCode.PROTOCOL_ERROR),
    "headers of the connection": (PREFACE + frame(HEADERS, END_HEADERS, 0, BLOCK), ErrorCode.PROTOCOL_ERROR),
    "padding beyond the frame": (PREFACE + frame(HEADERS, END_HEADERS | PADDED, 1, b"\5abc"), ErrorCode.PROTOCOL_ERROR),
    "something between headers": (PREFACE + frame(HEADERS, 0, 1, BLOCK) + OPEN, ErrorCode.PROTOCOL_ERROR),
    "a rest without beginning": (PREFACE + frame(CONTINUATION, END_HEADERS, 1), ErrorCode.PROTOCOL_ERROR),
    "headers without end": (
        PREFACE + frame(HEADERS, 0, 1) + 5 * frame(CONTINUATION, 0, 1, bytes(16_384)),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "headers that cannot be decoded": (PREFACE + frame(HEADERS, END_HEADERS, 1, b"\xff"), ErrorCode.COMPRESSION_ERROR),
    "a table that changes after a field": (
        PREFACE + frame(HEADERS, END_HEADERS, 1, b"\x82\x20"),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "a field that no table has": (PREFACE + frame(HEADERS, END_HEADERS, 1, b"\xfe"), ErrorCode.COMPRESSION_ERROR),
    "an unknown stream is reset": (PREFACE + frame(RST_STREAM, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "a short reset": (PREFACE + OPEN + frame(RST_STREAM, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    "a push": (PREFACE + frame(PUSH_PROMISE, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "a ping of a stream": (PREFACE + frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "a window that does not grow": (PREFACE + frame(WINDOW_UPDATE, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "a window that is too large": (
        PREFACE + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 31) - 1)),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "half a setting": (PREFACE + frame(SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
    "an impossible window": (PREFACE + settings(4, 1 << 31), ErrorCode.FLOW_CONTROL_ERROR),
    "an impossible frame size": (PREFACE + settings(5, 100), ErrorCode.PROTOCOL_ERROR),
    "an impossible switch": (PREFACE + settings(2, 2), ErrorCode.PROTOCOL_ERROR),
}


@pytest.mark.parametrize(("sent", "code"), WRONG.values(), ids=WRONG)
def test_what_no_client_may_send_ends_the_connection_and_says_why(sent: bytes, code: ErrorCode) -> None:
    server = a_server()
    with pytest.raises(ConnectionFailed, match=code.name):
        server.receive(sent)
    goaway = server.outgoing()[-17:]
    assert goaway[3] == GOAWAY
    assert struct.unpack(">I", goaway[13:]) == (code,)


@given(
    st.lists(
        st.builds(
            frame,
            st.integers(0, 10),
            st.integers(0, 255),
            st.integers(0, 9),
            st.binary(max_size=40)
            | st.just(BLOCK)
            | st.binary(min_size=4, max_size=4)
            | st.binary(min_size=8, max_size=8),
        ),
        max_size=30,
    )
)
def test_nothing_that_is_sent_ends_otherwise_than_with_a_refusal(frames: list[bytes]) -> None:
    server = a_server()
    try:
        for event in server.receive(PREFACE + b"".join(frames)):
            server.send_headers(event.stream, START)
            server.send_data(event.stream, b"x" * 100_000)
            server.send_trailers(event.stream, END)
    except ConnectionFailed:
        pass
    assert len(server.outgoing()) < 200_000
