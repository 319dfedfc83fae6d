"""A WebSocket between a connection and a gateway: bytes, pauses and ends pass through it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from websockets.frames import CloseCode, Frame, Opcode

from postbus.net import websocket as websockets
from postbus.net.websocket import WebSocket
from postbus.observe.meters import ConnectionMeter
from tests.unit.net.serving import place_for

FRAME_MAX_BYTES = 1_000


class Below:
    """Stands for the connection: keeps what is written."""

    def __init__(self, half_close: bool = True) -> None:
        self.written = b""
        self.calls: list[str] = []
        self.reading = True
        self.closing = False
        self.half_close = half_close
        self.limits: tuple[int | None, int | None] = (None, None)

    def set_protocol(self, protocol: object) -> None:
        self.protocol = protocol

    def write(self, data: bytes) -> None:
        assert not self.calls, "written after the end"
        self.written += data

    def can_write_eof(self) -> bool:
        return self.half_close

    def write_eof(self) -> None:
        self.calls.append("write_eof")

    def close(self) -> None:
        self.calls.append("close")
        self.closing = True

    def abort(self) -> None:
        self.calls.append("abort")
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None, low: int | None) -> None:
        self.limits = (high, low)

    def get_write_buffer_size(self) -> int:
        return 17

    def get_extra_info(self, name: str, default: object) -> object:
        return f"the {name}" if name == "peername" else default


class Above:
    """Stands for the gateway: keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.calls: list[str] = []
        self.transport: Any = None
        self.pauses = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard.append(data)
        if self.pauses:
            self.transport.pause_reading()

    def eof_received(self) -> None:
        self.calls.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")

    def weigh(self) -> None:
        pass

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")


class Line:
    def __init__(self, half_close: bool = True) -> None:
        self.below: Any = Below(half_close)
        self.above: Any = Above()
        self.refused: list[tuple[str, str]] = []
        self.place = place_for(self.below, ConnectionMeter())
        self.place.tenant = self.above
        self.place.log_in()
        self.socket = WebSocket(
            self.below,  # type: ignore[arg-type]
            self.above,  # type: ignore[arg-type]
            self.place,
            FRAME_MAX_BYTES,
            lambda *why: self.refused.append(why),
        )
        self.socket.begin(b"")

    def hear(self, *frames: Frame) -> None:
        self.socket.data_received(b"".join(frame.serialize(mask=True) for frame in frames))

    def said(self) -> list[Frame]:
        """The frames that were written."""
        return frames_in(self.below.written)


def frames_in(data: bytes) -> list[Frame]:
    found, rest = [], data

    def read_exact(count: int) -> Any:
        nonlocal rest
        taken, rest = rest[:count], rest[count:]
        assert len(taken) == count
        return taken
        yield

    while rest:
        parsing = Frame.parse(read_exact, mask=False)
        try:
            next(parsing)
        except StopIteration as done:
            found.append(done.value)
    return found


def binary(data: bytes, *, fin: bool = True, opcode: Opcode = Opcode.BINARY) -> Frame:
    return Frame(opcode, data, fin)


def close_code(frame: Frame) -> int:
    assert frame.opcode is Opcode.CLOSE
    return int.from_bytes(bytes(frame.data)[:2], "big")


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# Bytes


async def test_frames_become_a_stream_however_they_are_cut() -> None:
    stream = b"".join(
        frame.serialize(mask=True)
        for frame in (
            binary(b"AMQP\x03"),
            binary(b"\x01\x00\x00", fin=False),
            binary(b"between", fin=False, opcode=Opcode.CONT),
            Frame(Opcode.PING, b"there?"),
            binary(b"", opcode=Opcode.CONT),
            binary(b"x" * 300),
        )
    )
    whole = b"AMQP\x03\x01\x00\x00between" + b"x" * 300
    for split in range(len(stream) + 1):
        line = Line()
        line.socket.data_received(stream[:split])
        line.socket.data_received(stream[split:])
        assert b"".join(line.above.heard) == whole
        assert [(one.opcode, one.data) for one in line.said()] == [(Opcode.PONG, b"there?")]
    line = Line()
    for byte in stream:
        line.socket.data_received(bytes((byte,)))
    assert b"".join(line.above.heard) == whole


async def test_one_read_is_one_call_whatever_number_of_frames_is_in_it() -> None:
    line = Line()
    line.hear(*(binary(bytes((n,))) for n in range(200)))
    assert line.above.heard == [bytes(range(200))]


async def test_what_is_written_goes_in_binary_frames_of_bounded_size() -> None:
    line = Line()
    line.socket.write(b"small")
    line.socket.write(bytes(200_000))
    frames = line.said()
    assert all(one.opcode is Opcode.BINARY and one.fin for one in frames)
    assert [len(one.data) for one in frames] == [5, 65_536, 65_536, 65_536, 3_392]


async def test_a_peer_that_sends_very_many_frames_lets_others_have_their_turn() -> None:
    line = Line()
    line.hear(*(binary(b"x") for _ in range(5_000)))
    assert 500 < len(line.above.heard[0]) < 2_000
    assert not line.below.reading, "the rest of the read comes first"
    await turns(20)
    assert sum(len(data) for data in line.above.heard) == 5_000
    assert line.below.reading


async def test_whoever_pauses_gets_nothing_more_until_it_goes_on() -> None:
    line = Line()
    line.above.pauses = True
    line.hear(*(binary(b"x") for _ in range(5_000)))
    await turns(20)
    assert len(line.above.heard) == 1
    assert not line.below.reading
    while sum(len(data) for data in line.above.heard) < 5_000:
        before = len(line.above.heard)
        line.socket.resume_reading()
        await turns()
        assert len(line.above.heard) == before + 1
    line.socket.resume_reading()
    assert line.below.reading


async def test_pauses_limits_and_facts_are_those_of_the_connection_below() -> None:
    line = Line()
    line.socket.set_write_buffer_limits(12_345)
    assert line.below.limits == (12_345, None)
    assert line.socket.get_write_buffer_size() == 17
    assert line.socket.get_extra_info("peername") == "the peername"
    assert line.socket.get_extra_info("none", 3) == 3
    line.socket.pause_writing()
    line.socket.resume_writing()
    assert line.above.calls == ["pause", "resume"]
    line.socket.pause_reading()
    assert not line.below.reading and not line.socket.is_reading()
    line.socket.resume_reading()
    assert line.below.reading and line.socket.is_reading()
    assert not line.socket.can_write_eof()


# Ends


async def test_a_close_by_the_peer_is_answered_with_its_code_and_ends_it_for_the_gateway() -> None:
    line = Line()
    line.hear(binary(b"last"), Frame(Opcode.CLOSE, b"\x03\xe9bye"), binary(b"too late"))
    assert line.above.heard == [b"last"]
    assert line.above.calls == ["eof"]
    assert [close_code(one) for one in line.said()] == [CloseCode.GOING_AWAY]
    assert line.below.calls == ["write_eof"]
    assert line.socket.is_closing()
    line.socket.write(b"nobody reads this")
    line.socket.close()
    line.socket.connection_lost(None)
    assert line.above.calls == ["eof", "lost"]
    assert line.refused == []


async def test_a_close_by_the_gateway_waits_for_the_peers_and_drops_the_rest() -> None:
    line = Line()
    line.socket.pause_reading()
    line.socket.close()
    line.socket.close()
    assert line.below.reading, "the peer's close is still wanted"
    line.hear(binary(b"dropped"), Frame(Opcode.PING, b"dropped too"))
    assert line.below.calls == []
    line.hear(Frame(Opcode.CLOSE, b"\x03\xe8"))
    assert line.below.calls == ["write_eof"]
    line.socket.connection_lost(None)
    assert [close_code(one) for one in line.said()] == [CloseCode.NORMAL_CLOSURE]
    assert line.above.heard == []
    assert line.above.calls == ["lost"]


async def test_inside_tls_there_is_no_half_so_the_layer_is_closed() -> None:
    line = Line(half_close=False)
    line.hear(Frame(Opcode.CLOSE, b"\x03\xe8"))
    assert line.below.calls == ["close"]


async def test_a_peer_that_never_answers_the_close_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websockets, "CLOSE_ANSWER_S", 0.01)
    line = Line()
    line.socket.close()
    async with asyncio.timeout(5):
        while line.below.calls != ["abort"]:
            await asyncio.sleep(0.005)


async def test_a_connection_that_ends_without_a_word_ends_for_the_gateway_too() -> None:
    line = Line()
    line.hear(binary(b"half", fin=False))
    assert line.socket.eof_received() is False
    line.socket.connection_lost(ConnectionResetError())
    assert line.above.calls == ["eof", "lost"]


async def test_a_gateway_that_aborts_is_rid_of_it() -> None:
    line = Line()
    line.socket.abort()
    assert line.below.calls == ["abort"]
    assert line.socket.is_closing()


# What is refused


FAULTS = {
    "a text frame": (Frame(Opcode.TEXT, b"hello"), 1003),
    "the first fragment of a text": (Frame(Opcode.TEXT, b"hel", fin=False), 1003),
    "a frame too large": (binary(b"x" * 1_001), 1009),
    "a frame of a length beyond all bounds": (b"\x82\xff\x7f" + b"\xff" * 7, 1009),
    "a frame without a mask": (binary(b"unmasked").serialize(mask=False), 1002),
    "a fragment of nothing": (binary(b"x", opcode=Opcode.CONT), 1002),
    "a reserved bit, as for compression": (b"\xc2\x81\x00\x00\x00\x00x", 1002),
    "an opcode that nobody has defined": (b"\x83\x80\x00\x00\x00\x00", 1002),
    "a ping too long": (b"\x89\xfe\x00\x7e\x00\x00\x00\x00" + bytes(126), 1002),
    "a ping in fragments": (b"\x09\x80\x00\x00\x00\x00", 1002),
    "half a close code": (b"\x88\x81\x00\x00\x00\x00\x03", 1002),
    "a close code that is never sent": (b"\x88\x82\x00\x00\x00\x00\x03\xed", 1002),
}


@pytest.mark.parametrize("fault", list(FAULTS))
async def test_what_is_not_a_binary_frame_in_order_ends_the_connection_with_its_code(
    fault: str,
) -> None:
    sent: Any
    sent, code = FAULTS[fault]
    stream = sent if isinstance(sent, bytes) else sent.serialize(mask=True)
    reason = "websocket_text" if code == CloseCode.UNSUPPORTED_DATA else "websocket_frame"
    for split in {0, 1, len(stream) // 2, len(stream) - 1}:
        line = Line()
        line.hear(binary(b"before"))
        line.socket.data_received(stream[:split])
        line.socket.data_received(stream[split:])
        line.hear(binary(b"after"))
        assert line.above.heard == [b"before"]
        assert line.above.calls == ["eof"]
        assert [close_code(one) for one in line.said()] == [code]
        assert [why for why, _ in line.refused] == [reason]
        assert line.below.calls == ["write_eof"]


async def test_a_frame_too_long_is_refused_by_its_head_before_it_is_there() -> None:
    line = Line()
    line.socket.data_received(b"\x82\xfe\x03\xe9")
    assert [close_code(one) for one in line.said()] == [1009]


async def test_a_message_of_any_length_may_come_in_fragments() -> None:
    line = Line()
    line.hear(binary(b"x" * 1_000, fin=False))
    for _ in range(20):
        line.hear(binary(b"x" * 1_000, fin=False, opcode=Opcode.CONT))
    assert sum(len(data) for data in line.above.heard) == 21_000
    assert line.refused == []


async def test_pings_of_a_peer_that_reads_nothing_stop_when_the_gateway_has_closed() -> None:
    line = Line()
    line.socket.close()
    written = len(line.below.written)
    for _ in range(100):
        line.hear(*(Frame(Opcode.PING, b"x" * 125) for _ in range(20)))
        await turns(1)
    assert len(line.below.written) == written
