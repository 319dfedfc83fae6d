"""Transfer, disposition and flow read by hand, for they come once per message.

Each reader knows the encodings the known clients use and answers None to any other: then the
plain way through the field tables decodes it, or words the refusal. A property test holds the two
ways together.
"""

import struct
from itertools import product

from postbus.amqp.frames.outcomes import Accepted, Released
from postbus.amqp.frames.transport import Disposition, Flow, Transfer

# They have no fields, so every delivery may share one.
ACCEPTED = Accepted()
RELEASED = Released()

_U32 = struct.Struct(">I").unpack_from
_U32_U32 = struct.Struct(">II").unpack_from

# The ways a flag is written, null among them; the Python SDK uses the two-byte form.
_NOT_TRUE = (b"\x40", b"\x42", b"\x56\x00")
_FLAGS: dict[bytes, bool | None] = {
    b"\x40": None,
    b"\x41": True,
    b"\x42": False,
    b"\x56\x01": True,
    b"\x56\x00": False,
}


def _extent(body: bytes) -> tuple[int, int, int]:
    """Field count, first field and end of the list at byte 3; a count of 0 if it is none."""
    form = body[3]
    if form == 0xC0:
        count, offset, end = body[5], 6, 5 + body[4]
    elif form == 0xD0:
        size, count = _U32_U32(body, 4)
        offset, end = 12, 8 + size
    else:
        return 0, 0, 0
    return (count, offset, end) if end <= len(body) else (0, 0, 0)


# What a transfer says with its flags, as bits.
SETTLED, NOT_SETTLED, MORE, BATCHABLE = 1, 2, 4, 8
_SETTLED_BITS: dict[bool | None, int] = {None: 0, True: SETTLED, False: NOT_SETTLED}


def _transfer_tails() -> dict[bytes, tuple[int, int]]:
    tails: dict[bytes, tuple[int, int]] = {}
    null = (b"\x40",)
    for fields in product(_FLAGS, _FLAGS, null, null, _NOT_TRUE, _NOT_TRUE, _FLAGS):
        for length in range(len(fields) + 1):
            settled, more, batchable = (
                _FLAGS[fields[index]] if index < length else None for index in (0, 1, 6)
            )
            bits = _SETTLED_BITS[settled] | (MORE if more else 0) | (BATCHABLE if batchable else 0)
            tails[b"".join(fields[:length])] = (4 + length, bits)
    return tails


# What can follow a transfer's message-format when nothing unusual is said (rcv-settle-mode and
# state null, not resumed, not aborted), cut short anywhere: the number of fields that makes, and
# the bits.
_TRANSFER_TAILS = _transfer_tails()

_UNUSUAL: tuple[int, int, bytes | None, int, int, int] = (0, -1, None, -1, 0, 0)


def read_transfer(body: bytes) -> tuple[int, int, bytes | None, int, int, int]:  # noqa: PLR0915
    """Of a transfer that starts `00 53 14`: handle, delivery-id, tag, message-format, bits, and
    where its payload starts, which is 0 if its encoding is no usual one.

    A delivery-id or message-format that is null is -1. No object is made: one comes with every
    message.
    """
    try:
        count, offset, end = _extent(body)
        code = body[offset]
        if code == 0x52:
            handle = body[offset + 1]
            offset += 2
        elif code == 0x43:
            handle = 0
            offset += 1
        elif code == 0x70:
            handle = _U32(body, offset + 1)[0]
            offset += 5
        else:
            return _UNUSUAL

        code = body[offset]
        if code == 0x52:
            delivery_id = body[offset + 1]
            offset += 2
        elif code == 0x70:
            delivery_id = _U32(body, offset + 1)[0]
            offset += 5
        elif code == 0x43:
            delivery_id = 0
            offset += 1
        elif code == 0x40:
            delivery_id = -1
            offset += 1
        else:
            return _UNUSUAL

        tag: bytes | None
        code = body[offset]
        if code == 0xA0:
            start = offset + 2
            offset = start + body[offset + 1]
            tag = body[start:offset]
        elif code == 0x40:
            tag = None
            offset += 1
        else:
            return _UNUSUAL

        code = body[offset]
        if code == 0x43:
            message_format = 0
            offset += 1
        elif code == 0x70:
            message_format = _U32(body, offset + 1)[0]
            offset += 5
        elif code == 0x40:
            message_format = -1
            offset += 1
        elif code == 0x52:
            message_format = body[offset + 1]
            offset += 2
        else:
            return _UNUSUAL

        if offset > end:
            return _UNUSUAL
        fields, bits = _TRANSFER_TAILS[body[offset:end]]
    except (IndexError, KeyError, struct.error):
        return _UNUSUAL
    if fields != count:
        return _UNUSUAL
    return handle, delivery_id, tag, message_format, bits, end


def decode_transfer(body: bytes) -> tuple[Transfer, int] | None:
    """Decode a transfer that starts `00 53 14`, if its encoding is a usual one."""
    handle, delivery_id, tag, message_format, bits, end = read_transfer(body)
    if end == 0:
        return None
    transfer = Transfer(
        handle,
        None if delivery_id < 0 else delivery_id,
        tag,
        None if message_format < 0 else message_format,
        True if bits & SETTLED else False if bits & NOT_SETTLED else None,
        bits & MORE != 0,
        None,
        None,
        False,
        False,
        bits & BATCHABLE != 0,
    )
    return transfer, end


def _disposition_tails() -> dict[bytes, tuple[int, bool, Accepted | Released | None, bool]]:
    states: dict[bytes, Accepted | Released | None] = {b"\x40": None}
    for code, state in ((b"\x24", ACCEPTED), (b"\x26", RELEASED)):
        for empty_list in (b"\x45", b"\xc0\x01\x00", b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00"):
            states[b"\x00\x53" + code + empty_list] = state
    tails: dict[bytes, tuple[int, bool, Accepted | Released | None, bool]] = {}
    for fields in product(_FLAGS, states, _FLAGS):
        settled, outcome, batchable = _FLAGS[fields[0]], states[fields[1]], _FLAGS[fields[2]]
        tails[fields[0]] = (4, settled is True, None, False)
        tails[fields[0] + fields[1]] = (5, settled is True, outcome, False)
        tails[b"".join(fields)] = (6, settled is True, outcome, batchable is True)
    return tails


# What can follow a disposition's `last` when its state has no fields: the number of fields that
# makes, then settled, state and batchable.
_DISPOSITION_TAILS = _disposition_tails()


def decode_disposition(body: bytes) -> tuple[Disposition, int] | None:
    """Decode a disposition that starts `00 53 15`, if its encoding is a usual one."""
    try:
        count, offset, end = _extent(body)
        code = body[offset]
        if 0x41 <= code <= 0x42:
            role = code == 0x41
            offset += 1
        elif code == 0x56 and body[offset + 1] <= 1:
            role = body[offset + 1] == 1
            offset += 2
        else:
            return None

        code = body[offset]
        if code == 0x52:
            first = body[offset + 1]
            offset += 2
        elif code == 0x70:
            first = _U32(body, offset + 1)[0]
            offset += 5
        elif code == 0x43:
            first = 0
            offset += 1
        else:
            return None

        last: int | None
        code = body[offset]
        if code == 0x52:
            last = body[offset + 1]
            offset += 2
        elif code == 0x70:
            last = _U32(body, offset + 1)[0]
            offset += 5
        elif code == 0x40:
            last = None
            offset += 1
        elif code == 0x43:
            last = 0
            offset += 1
        else:
            return None

        if offset > end:
            return None
        fields, settled, state, batchable = _DISPOSITION_TAILS[body[offset:end]]
    except (IndexError, KeyError, struct.error):
        return None
    if fields != count:
        return None
    return Disposition(role, first, last, settled, state, batchable), end


# The fields of a flow up to `available` are uints.
_FLOW_NUMBERS = 8
# What can follow them: drain and echo, and properties only as null.
_FLOW_TAILS: dict[bytes, tuple[int, bool, bool]] = {b"": (0, False, False)}
for _drain, _drains in _FLAGS.items():
    _FLOW_TAILS[_drain] = (1, _drains is True, False)
    for _echo, _echoes in _FLAGS.items():
        _FLOW_TAILS[_drain + _echo] = (2, _drains is True, _echoes is True)
        _FLOW_TAILS[_drain + _echo + b"\x40"] = (3, _drains is True, _echoes is True)


def decode_flow(body: bytes) -> tuple[Flow, int] | None:
    """Decode a flow that starts `00 53 13`, if its encoding is a usual one."""
    numbers: list[int | None] = []
    try:
        count, offset, end = _extent(body)
        for _ in range(min(count, _FLOW_NUMBERS)):
            code = body[offset]
            if code == 0x70:
                numbers.append(_U32(body, offset + 1)[0])
                offset += 5
            elif code == 0x52:
                numbers.append(body[offset + 1])
                offset += 2
            elif code == 0x43:
                numbers.append(0)
                offset += 1
            elif code == 0x40:
                numbers.append(None)
                offset += 1
            else:
                return None
        if offset > end:
            return None
        fields, drain, echo = _FLOW_TAILS[body[offset:end]]
    except (IndexError, KeyError, struct.error):
        return None
    if count != len(numbers) + fields or len(numbers) < 4:
        return None
    numbers += _NULLS[len(numbers) :]
    next_incoming, incoming, next_outgoing, outgoing, handle, delivered, credit, available = numbers
    if incoming is None or next_outgoing is None or outgoing is None:
        return None
    flow = Flow(
        next_incoming,
        incoming,
        next_outgoing,
        outgoing,
        handle,
        delivered,
        credit,
        available,
        drain,
        echo,
    )
    return flow, end


_NULLS: list[int | None] = [None] * _FLOW_NUMBERS
