"""Protocol headers and SASL, from both sides."""

import pytest

from postbus.amqp.codec.types import Symbol
from postbus.amqp.connection import MECHANISMS, Connection, ConnectionState
from postbus.amqp.events import Closed, Opened, SaslReceived, SessionBegun
from postbus.amqp.frames.framing import (
    AMQP_HEADER,
    FRAME_AMQP,
    FRAME_SASL,
    SASL_HEADER,
    TLS_HEADER,
    FrameReader,
    encode_frame,
)
from postbus.amqp.frames.performatives import (
    Begin,
    Composite,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    decode_performative,
)
from postbus.amqp.limits import Limits
from tests.unit.amqp.pair import T0, ConnectionPair


def server(limits: Limits | None = None) -> Connection:
    return Connection(limits or Limits(), container_id="server", server=True, now=T0)


def client(mechanisms: tuple[str, ...] = ("PLAIN",)) -> Connection:
    core = Connection(
        Limits(),
        container_id="client",
        server=False,
        now=T0,
        mechanisms=mechanisms,
        initial_response=b"\0key\0secret",
    )
    core.open()
    return core


def sasl(performative: Composite) -> bytes:
    return encode_frame(0, performative, kind=FRAME_SASL)


def init(mechanism: str = "ANONYMOUS", response: bytes | None = None) -> bytes:
    return sasl(SaslInit(Symbol(mechanism), response, "bus.example"))


def read_greeting(data: bytes) -> tuple[bytes, list[Composite]]:
    """Split a protocol header from the SASL frames behind it."""
    reader = FrameReader(512)
    reader.feed(data)
    header = reader.next_header()
    assert header is not None
    return header, [decode_performative(body)[0] for _, _, body in reader]


def test_a_server_offers_its_mechanisms_as_soon_as_it_sees_the_sasl_header() -> None:
    core = server()
    assert core.receive_data(SASL_HEADER, T0) == []
    header, (offer,) = read_greeting(core.data_to_send())
    assert header == SASL_HEADER
    assert isinstance(offer, SaslMechanisms)
    assert tuple(offer.sasl_server_mechanisms) == MECHANISMS
    assert set(MECHANISMS) == {"MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"}


def test_the_owner_hears_who_the_peer_says_it_is_and_lets_it_in() -> None:
    core = server()
    (event,) = core.receive_data(SASL_HEADER + init("PLAIN", b"\0key\0secret"), T0)
    assert event == SaslReceived("PLAIN", b"\0key\0secret", "bus.example", skipped=False)

    core.data_to_send()
    assert core.sasl_accept() == []
    assert core.data_to_send() == sasl(SaslOutcome(0))
    assert core.receive_data(AMQP_HEADER, T0) == []
    assert core.data_to_send() == AMQP_HEADER
    assert core.state is ConnectionState.OPENING


def test_what_a_peer_pipelines_behind_its_login_is_read_once_the_owner_has_decided() -> None:
    # given a peer that writes header, open and begin without waiting (wire §1.2)
    core = server()
    stream = SASL_HEADER + init() + AMQP_HEADER
    stream += encode_frame(0, Open("hasty")) + encode_frame(1, Begin(None, 0, 10, 10))
    (event,) = core.receive_data(stream, T0)
    assert isinstance(event, SaslReceived)

    # when it is let in
    opened, begun = core.sasl_accept()

    # then all of it has been read, and is answered in order
    assert isinstance(opened, Opened) and opened.open.container_id == "hasty"
    assert isinstance(begun, SessionBegun) and begun.session.channel == 1
    written = core.data_to_send()
    assert written.index(sasl(SaslOutcome(0))) < written.index(AMQP_HEADER)


def test_a_mechanism_may_be_taken_without_being_offered() -> None:
    core = Connection(
        Limits(),
        container_id="s",
        server=True,
        now=T0,
        mechanisms=["PLAIN"],
        unoffered=["EXTERNAL"],
    )
    (event,) = core.receive_data(SASL_HEADER + init("EXTERNAL"), T0)
    assert isinstance(event, SaslReceived) and event.mechanism == "EXTERNAL"
    assert b"EXTERNAL" not in core.data_to_send()


def test_a_login_the_owner_turns_away_ends_in_a_sasl_outcome() -> None:
    core = server()
    core.receive_data(SASL_HEADER + init("EXTERNAL"), T0)
    core.data_to_send()
    (event,) = core.sasl_reject()
    assert isinstance(event, Closed) and not event.clean
    assert event.error is not None and event.error.condition == "amqp:unauthorized-access"
    assert core.data_to_send() == sasl(SaslOutcome(1))
    assert core.closed
    assert core.next_deadline() is None


def test_a_mechanism_that_was_not_offered_is_turned_away() -> None:
    core = server()
    (event,) = core.receive_data(SASL_HEADER + init("XOAUTH2"), T0)
    assert isinstance(event, Closed) and event.error is not None
    assert "XOAUTH2" in str(event.error.description)
    assert core.data_to_send().endswith(sasl(SaslOutcome(1)))
    assert core.closed


def test_a_peer_may_leave_sasl_out_if_the_owner_lets_it() -> None:
    core = server()
    (event,) = core.receive_data(AMQP_HEADER, T0)
    assert event == SaslReceived("ANONYMOUS", b"", None, skipped=True)
    assert core.data_to_send() == b""
    core.sasl_accept()
    assert core.data_to_send() == AMQP_HEADER


def test_a_peer_that_left_sasl_out_may_be_told_that_it_is_wanted() -> None:
    core = server()
    core.receive_data(AMQP_HEADER, T0)
    core.sasl_reject()
    assert core.data_to_send() == SASL_HEADER
    assert core.closed


@pytest.mark.parametrize("header", [TLS_HEADER, b"GET / HT", b"AMQP\x00\x00\x09\x01"])
def test_a_protocol_that_is_not_spoken_is_answered_with_one_that_is(header: bytes) -> None:
    core = server()
    (event,) = core.receive_data(header, T0)
    assert isinstance(event, Closed) and event.error is not None
    assert event.error.condition == "amqp:connection:framing-error"
    assert core.data_to_send() == SASL_HEADER
    assert core.closed
    assert core.receive_data(b"more", T0) == []


@pytest.mark.parametrize(
    "frame",
    [
        encode_frame(0, Open("too early")),
        sasl(SaslOutcome(0)),
        b"\x00\x01\x00\x00\x02\x01\x00\x00",
        b"\x00\x00\x00\x0c\x02\x01\x00\x00junk",
    ],
    ids=["no SASL frame", "no init", "too large", "not decodable"],
)
def test_anything_but_a_login_ends_the_handshake(frame: bytes) -> None:
    core = server()
    (event,) = core.receive_data(SASL_HEADER + frame, T0)
    assert isinstance(event, Closed) and not event.clean
    assert core.closed


def test_after_sasl_only_the_amqp_header_may_come() -> None:
    core = server()
    core.receive_data(SASL_HEADER + init(), T0)
    core.sasl_accept()
    core.data_to_send()
    (event,) = core.receive_data(SASL_HEADER, T0)
    assert isinstance(event, Closed)
    assert core.data_to_send() == AMQP_HEADER


def test_no_more_than_a_frame_is_kept_while_the_owner_decides() -> None:
    core = server(Limits(max_frame_size=512))
    core.receive_data(SASL_HEADER + init(), T0)
    assert core.receive_data(b"x" * 512, T0) == []
    (event,) = core.receive_data(b"x", T0)
    assert isinstance(event, Closed)
    assert core.closed


def test_a_decision_without_a_question_does_nothing() -> None:
    core = server()
    assert core.sasl_accept() == []
    assert core.sasl_reject() == []
    assert not core.closed


def test_closing_in_the_middle_of_the_handshake_is_immediate() -> None:
    core = server()
    core.receive_data(SASL_HEADER, T0)
    core.close()
    assert core.closed
    assert core.receive_eof(T0) == []


def test_a_stream_that_ends_in_the_handshake_is_reported_as_a_break() -> None:
    core = server()
    core.receive_data(SASL_HEADER[:5], T0)
    assert core.receive_eof(T0) == [Closed(None, clean=False)]


def test_a_client_logs_in_and_pipelines_its_open_behind_the_header() -> None:
    core = client()
    assert core.data_to_send() == SASL_HEADER
    core.receive_data(SASL_HEADER + sasl(SaslMechanisms([Symbol("PLAIN")])), T0)
    assert core.data_to_send() == sasl(SaslInit(Symbol("PLAIN"), b"\0key\0secret"))
    core.receive_data(sasl(SaslOutcome(0)), T0)
    assert core.data_to_send().startswith(AMQP_HEADER + b"\x00\x00\x00")
    assert core.state is ConnectionState.HANDSHAKE
    core.receive_data(AMQP_HEADER, T0)
    assert core.state is ConnectionState.OPENING


@pytest.mark.parametrize(
    "answer",
    [
        AMQP_HEADER,
        SASL_HEADER + sasl(SaslMechanisms([Symbol("ANONYMOUS")])),
        SASL_HEADER + sasl(SaslOutcome(0)),
        SASL_HEADER + sasl(SaslMechanisms([Symbol("PLAIN")])) + sasl(SaslOutcome(1)),
        SASL_HEADER + sasl(SaslMechanisms([Symbol("PLAIN")])) * 2,
    ],
    ids=["no SASL", "not offered", "no offer", "turned away", "no outcome"],
)
def test_a_client_that_is_not_let_in_gives_up(answer: bytes) -> None:
    core = client()
    events = core.receive_data(answer, T0)
    assert isinstance(events[-1], Closed) and not events[-1].clean
    assert core.closed
    assert encode_frame(0, Open("client"), kind=FRAME_AMQP)[:12] not in core.data_to_send()


def test_a_client_and_a_server_agree_without_sasl() -> None:
    pair = ConnectionPair(mechanisms=())
    pair.open()
    assert pair.client.state is pair.server.state is ConnectionState.OPEN
    assert pair.at_server(SaslReceived) == [SaslReceived("ANONYMOUS", b"", None, skipped=True)]


def test_a_client_and_a_server_agree_by_plain() -> None:
    pair = ConnectionPair(mechanisms=("PLAIN",), initial_response=b"\0key\0secret")
    pair.open()
    (received,) = pair.at_server(SaslReceived)
    assert received.initial_response == b"\0key\0secret"
    (opened,) = pair.at_client(Opened)
    assert opened.open.container_id == "server"
