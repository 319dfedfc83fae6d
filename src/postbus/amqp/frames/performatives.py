"""Every composite a frame or a delivery state can hold, and how a frame body is decoded."""

from collections.abc import Callable

from postbus.amqp.faults import DecodeError
from postbus.amqp.frames.composites import Composite, decode_composite, from_described
from postbus.amqp.frames.outcomes import (
    Accepted,
    Error,
    Modified,
    Outcome,
    Received,
    Rejected,
    Released,
)
from postbus.amqp.frames.readers import (
    ACCEPTED,
    RELEASED,
    decode_disposition,
    decode_flow,
    decode_transfer,
)
from postbus.amqp.frames.security import (
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
)
from postbus.amqp.frames.terminus import Source, Target
from postbus.amqp.frames.transactions import (
    Coordinator,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    TransactionalState,
)
from postbus.amqp.frames.transport import (
    RCV_FIRST,
    RCV_SECOND,
    ROLE_RECEIVER,
    ROLE_SENDER,
    SND_MIXED,
    SND_SETTLED,
    SND_UNSETTLED,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Transfer,
)
from postbus.amqp.frames.writers import (
    encode_disposition_frame,
    encode_flow_frame,
    encode_transfer_frame,
)

__all__ = [
    "ACCEPTED",
    "RCV_FIRST",
    "RCV_SECOND",
    "RELEASED",
    "ROLE_RECEIVER",
    "ROLE_SENDER",
    "SND_MIXED",
    "SND_SETTLED",
    "SND_UNSETTLED",
    "Accepted",
    "Attach",
    "Begin",
    "Close",
    "Composite",
    "Coordinator",
    "Declare",
    "Declared",
    "DeliveryState",
    "Detach",
    "Discharge",
    "Disposition",
    "End",
    "Error",
    "Flow",
    "Modified",
    "Open",
    "Outcome",
    "Received",
    "Rejected",
    "Released",
    "SaslChallenge",
    "SaslInit",
    "SaslMechanisms",
    "SaslOutcome",
    "SaslResponse",
    "Source",
    "Target",
    "TransactionalState",
    "Transfer",
    "decode_performative",
    "encode_disposition_frame",
    "encode_flow_frame",
    "encode_transfer_frame",
    "from_described",
]

_FRAME_CODES = frozenset(range(0x10, 0x19)) | frozenset(range(0x40, 0x45))


def decode_performative(body: bytes) -> tuple[Composite, int]:
    """Decode the performative a frame body starts with; also return where the payload begins."""
    reader = _READERS.get(body[:3])
    if reader is not None:
        fast = reader(body)
        if fast is not None:
            return fast
    return decode_plainly(body)


def decode_plainly(body: bytes) -> tuple[Composite, int]:
    """Decode a performative through its field table, whatever encoding was chosen for it."""
    performative, end = decode_composite(body)
    if performative.CODE not in _FRAME_CODES:
        raise DecodeError(f"{performative.NAME} is no performative")
    return performative, end


_READERS: dict[bytes, Callable[[bytes], tuple[Composite, int] | None]] = {
    b"\x00\x53\x13": decode_flow,
    b"\x00\x53\x14": decode_transfer,
    b"\x00\x53\x15": decode_disposition,
}
