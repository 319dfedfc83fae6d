"""The handshake before the first AMQP frame: protocol headers and SASL (AMQP 2.2 and 5.3).

Both sides read from the connection's frame reader and put their output into `out`. If a peer
cannot be served, advance() raises. The connection then writes `out` and closes the transport,
because SASL has no close frame.
"""

from collections.abc import Sequence
from enum import Enum, auto

from postbus.amqp.codec.types import Symbol
from postbus.amqp.events import SaslReceived
from postbus.amqp.faults import FramingError, ProtocolError
from postbus.amqp.frames.framing import (
    AMQP_HEADER,
    FRAME_SASL,
    FRAME_SIZE_MIN,
    SASL_HEADER,
    FrameReader,
    encode_frame,
)
from postbus.amqp.frames.performatives import (
    Composite,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    decode_performative,
)

# AMQP 5.3.3.6.
_CODE_OK = 0
_CODE_AUTH = 1


class _Step(Enum):
    HEADER = auto()
    MECHANISMS = auto()
    INIT = auto()
    DECISION = auto()
    OUTCOME = auto()
    AMQP_HEADER = auto()
    DONE = auto()


def _unwelcome(text: str) -> ProtocolError:
    return ProtocolError(text, "amqp:unauthorized-access")


def _next_sasl(reader: FrameReader) -> Composite | None:
    # AMQP 5.3.1: a SASL frame is never larger than the smallest maximum.
    size_max, reader.max_frame_size = reader.max_frame_size, FRAME_SIZE_MIN
    try:
        frame = reader.next_frame()
    finally:
        reader.max_frame_size = size_max
    if frame is None:
        return None
    kind, _, body = frame
    if kind != FRAME_SASL:
        raise FramingError(f"a frame of kind {kind} came before SASL was done")
    performative, _ = decode_performative(body)
    return performative


class ServerHandshake:
    """The server's side: offers mechanisms, reads the peer's choice, lets the owner decide."""

    __slots__ = ("_mechanisms", "_reader", "_step", "_unoffered", "out", "skipped")

    def __init__(
        self, reader: FrameReader, mechanisms: Sequence[str], unoffered: Sequence[str]
    ) -> None:
        self._reader = reader
        self._mechanisms = mechanisms
        self._unoffered = unoffered
        self._step = _Step.HEADER
        self.skipped = False
        self.out: list[bytes] = []

    @property
    def done(self) -> bool:
        """Whether AMQP frames come next."""
        return self._step is _Step.DONE

    @property
    def frames_may_follow(self) -> bool:
        """Whether our own AMQP frames may be written after `out`."""
        return self._step is _Step.DONE

    @property
    def deciding(self) -> bool:
        """Whether the owner has to accept or reject the peer."""
        return self._step is _Step.DECISION

    def advance(self) -> SaslReceived | None:
        """Read everything that has come completely; return the peer's identity once it is known."""
        if self._step is _Step.HEADER:
            self._read_first_header()
            if self.skipped:
                return SaslReceived("ANONYMOUS", b"", None, skipped=True)
        if self._step is _Step.INIT:
            return self._read_init()
        if self._step is _Step.AMQP_HEADER:
            header = self._reader.next_header()
            if header is not None:
                self.out.append(AMQP_HEADER)
                if header != AMQP_HEADER:
                    raise FramingError(f"the protocol header {header!r} cannot come after SASL")
                self._step = _Step.DONE
        return None

    def _read_first_header(self) -> None:
        header = self._reader.next_header()
        if header is None:
            return
        if header == SASL_HEADER:
            # wire §1.2: the mechanisms follow at once.
            offer = SaslMechanisms([Symbol(name) for name in self._mechanisms])
            self.out += (SASL_HEADER, encode_frame(0, offer, kind=FRAME_SASL))
            self._step = _Step.INIT
        elif header == AMQP_HEADER:
            self.skipped = True
            self._step = _Step.DECISION
        else:
            # AMQP 2.2: answer with a supported header, then close the transport.
            self.out.append(SASL_HEADER)
            raise FramingError(f"the protocol header {header!r} is not spoken here")

    def _read_init(self) -> SaslReceived | None:
        init = _next_sasl(self._reader)
        if init is None:
            return None
        if not isinstance(init, SaslInit):
            raise FramingError(f"{init.NAME} came where sasl-init must")
        if init.mechanism not in self._mechanisms and init.mechanism not in self._unoffered:
            self.reject()
            raise _unwelcome(f"the SASL mechanism {init.mechanism!r:.80} is not offered")
        self._step = _Step.DECISION
        return SaslReceived(
            str(init.mechanism), init.initial_response or b"", init.hostname, skipped=False
        )

    def accept(self) -> None:
        """Let the peer in."""
        if self.skipped:
            self.out.append(AMQP_HEADER)
            self._step = _Step.DONE
        else:
            self.out.append(encode_frame(0, SaslOutcome(_CODE_OK), kind=FRAME_SASL))
            self._step = _Step.AMQP_HEADER

    def reject(self) -> None:
        """Refuse the peer. If it skipped SASL, the answer asks for SASL (AMQP 2.2)."""
        if self.skipped:
            self.out.append(SASL_HEADER)
        else:
            self.out.append(encode_frame(0, SaslOutcome(_CODE_AUTH), kind=FRAME_SASL))


class ClientHandshake:
    """The client's side: one mechanism with an initial response, no challenges."""

    __slots__ = ("_hostname", "_mechanism", "_reader", "_response", "_step", "out")

    def __init__(
        self,
        reader: FrameReader,
        mechanism: str | None,
        initial_response: bytes,
        hostname: str | None,
    ) -> None:
        self._reader = reader
        self._mechanism = mechanism
        self._response = initial_response
        self._hostname = hostname
        if mechanism is None:
            self.out = [AMQP_HEADER]
            self._step = _Step.AMQP_HEADER
        else:
            self.out = [SASL_HEADER]
            self._step = _Step.HEADER

    @property
    def done(self) -> bool:
        """Whether AMQP frames come next."""
        return self._step is _Step.DONE

    @property
    def frames_may_follow(self) -> bool:
        """Whether our own AMQP frames may be written after `out`, pipelined."""
        return self._step in (_Step.AMQP_HEADER, _Step.DONE)

    def advance(self) -> None:
        """Read everything that has come completely."""
        if self._step is _Step.HEADER and self._read_header(SASL_HEADER):
            self._step = _Step.MECHANISMS
        if self._step is _Step.MECHANISMS:
            self._read_mechanisms()
        if self._step is _Step.OUTCOME:
            self._read_outcome()
        if self._step is _Step.AMQP_HEADER and self._read_header(AMQP_HEADER):
            self._step = _Step.DONE

    def _read_header(self, wanted: bytes) -> bool:
        header = self._reader.next_header()
        if header is None:
            return False
        if header != wanted:
            raise FramingError(f"the server answered with the protocol header {header!r}")
        return True

    def _read_mechanisms(self) -> None:
        offer = _next_sasl(self._reader)
        if offer is None:
            return
        if not isinstance(offer, SaslMechanisms):
            raise FramingError(f"{offer.NAME} came where sasl-mechanisms must")
        if self._mechanism not in offer.sasl_server_mechanisms:
            raise _unwelcome(f"the server does not offer the SASL mechanism {self._mechanism}")
        init = SaslInit(Symbol(self._mechanism), self._response, self._hostname)
        self.out.append(encode_frame(0, init, kind=FRAME_SASL))
        self._step = _Step.OUTCOME

    def _read_outcome(self) -> None:
        outcome = _next_sasl(self._reader)
        if outcome is None:
            return
        if not isinstance(outcome, SaslOutcome):
            raise FramingError(f"{outcome.NAME} came where sasl-outcome must")
        if outcome.code != _CODE_OK:
            raise _unwelcome(f"the server turned the login away with code {outcome.code}")
        self.out.append(AMQP_HEADER)
        self._step = _Step.AMQP_HEADER
