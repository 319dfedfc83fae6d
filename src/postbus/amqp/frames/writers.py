"""Transfer, disposition and flow frames written by hand, for they are sent once per message.

Each has one fixed layout, with every uint in its four-byte form, so that a frame is one
struct.pack. What does not fit the layout goes the plain way through the field tables; a property
test holds the two ways together.
"""

import struct

from postbus.amqp.frames.framing import encode_frame
from postbus.amqp.frames.outcomes import Accepted, Rejected, Released
from postbus.amqp.frames.transactions import DeliveryState
from postbus.amqp.frames.transport import Disposition, Flow, Transfer

_NULL, _TRUE, _FALSE = b"\x40", b"\x41", b"\x42"
_FLAG: dict[bool | None, bytes] = {None: _NULL, True: _TRUE, False: _FALSE}

# Frame header, descriptor, list8 with size and count, handle, delivery-id, tag's size.
_TRANSFER = struct.Struct(">IBBH4sBBBIBIBB")
# From message-format to batchable: rcv-settle-mode and state null, the last three false.
_TRANSFER_END: dict[tuple[int, bool | None, bool], bytes] = {
    (format_, settled, more): (
        (b"\x43" if format_ == 0 else b"\x70" + format_.to_bytes(4, "big"))
        + _FLAG[settled]
        + _FLAG[more]
        + b"\x40\x40\x42\x42\x42"
    )
    # A plain message, and Service Bus's batch of messages (wire §4.6).
    for format_ in (0, 0x80013700)
    for settled in (None, True, False)
    for more in (True, False)
}


def encode_transfer_frame(
    channel: int,
    handle: int,
    delivery_id: int | None,
    tag: bytes | None,
    message_format: int | None,
    settled: bool | None,
    more: bool,
    parts: tuple[bytes, ...],
) -> bytes:
    """Return a transfer frame whose payload is the parts in a row."""
    if delivery_id is not None and tag is not None and message_format is not None:
        end = _TRANSFER_END.get((message_format, settled, more))
        if end is not None and len(tag) <= 0x80:
            fields = 12 + len(tag) + len(end)
            size = len(parts[0]) if len(parts) == 1 else sum([len(part) for part in parts])
            try:
                head = _TRANSFER.pack(
                    14 + fields + size,
                    2,
                    0,
                    channel,
                    b"\x00\x53\x14\xc0",
                    1 + fields,
                    11,
                    0x70,
                    handle,
                    0x70,
                    delivery_id,
                    0xA0,
                    len(tag),
                )
            except struct.error:
                raise ValueError("a transfer field is out of range") from None
            return b"".join([head, tag, end, *parts])
    transfer = Transfer(handle, delivery_id, tag, message_format, settled, more)
    return encode_frame(channel, transfer, b"".join(parts))


# Frame header, descriptor, list8 with size and count, role, first, last.
_DISPOSITION = struct.Struct(">IBBH4sBBBBIBI")
# From settled to batchable, for the states that need no fields.
_DISPOSITION_END: dict[tuple[bool, type], bytes] = {
    (settled, kind): _FLAG[settled] + state + _FALSE
    for settled in (True, False)
    for kind, state in (
        (type(None), _NULL),
        (Accepted, b"\x00\x53\x24\x45"),
        (Released, b"\x00\x53\x26\x45"),
    )
}


def encode_disposition_frame(
    channel: int,
    role: bool,
    first: int,
    last: int | None,
    settled: bool,
    state: DeliveryState | None,
) -> bytes:
    """Return a disposition frame for the deliveries first to last."""
    end = _DISPOSITION_END.get((settled, type(state)))
    if end is None:
        if type(state) is not Rejected or state.error is not None:
            return encode_frame(channel, Disposition(role, first, last, settled, state))
        end = _FLAG[settled] + b"\x00\x53\x25\x45" + _FALSE
    try:
        return (
            _DISPOSITION.pack(
                25 + len(end),
                2,
                0,
                channel,
                b"\x00\x53\x15\xc0",
                12 + len(end),
                6,
                0x41 if role else 0x42,
                0x70,
                first,
                0x70,
                first if last is None else last,
            )
            + end
        )
    except struct.error:
        raise ValueError("a disposition field is out of range") from None


# Frame header, descriptor, list8 with size and count, the four session fields, the three of the
# link, available, drain, echo, properties.
_FLOW = struct.Struct(">IBBH4sBBBIBIBIBIBIBIBI4s")
_FLOW_END: dict[tuple[bool, bool], bytes] = {
    (drain, echo): _NULL + _FLAG[drain] + _FLAG[echo] + _NULL
    for drain in (True, False)
    for echo in (True, False)
}


def encode_flow_frame(
    channel: int,
    next_incoming_id: int | None,
    incoming_window: int,
    next_outgoing_id: int,
    outgoing_window: int,
    handle: int | None = None,
    delivery_count: int | None = None,
    link_credit: int | None = None,
    available: int | None = None,
    drain: bool = False,
    echo: bool = False,
) -> bytes:
    """Return a flow frame, of the session alone when handle is None."""
    if (
        next_incoming_id is None
        or handle is None
        or delivery_count is None
        or link_credit is None
        or available is not None
    ):
        flow = Flow(
            next_incoming_id,
            incoming_window,
            next_outgoing_id,
            outgoing_window,
            handle,
            delivery_count,
            link_credit,
            available,
            drain,
            echo,
        )
        return encode_frame(channel, flow)
    try:
        return _FLOW.pack(
            53,
            2,
            0,
            channel,
            b"\x00\x53\x13\xc0",
            40,
            11,
            0x70,
            next_incoming_id,
            0x70,
            incoming_window,
            0x70,
            next_outgoing_id,
            0x70,
            outgoing_window,
            0x70,
            handle,
            0x70,
            delivery_count,
            0x70,
            link_credit,
            _FLOW_END[drain, echo],
        )
    except struct.error:
        raise ValueError("a flow field is out of range") from None
