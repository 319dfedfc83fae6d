"""Messages taken apart for the archive, and put together again for a replay.

A table has the body in a column of its own, for people to look at. The rest of the message, as it
came, is the envelope. So nothing is stored twice, and the message can be restored byte for byte.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from postbus.amqp.sections import (
    encode_application_properties,
    encode_data,
    read_application_properties,
    scan,
)
from pyspark_postbus.sections import Messages
from pyspark_postbus.spans import Buffer

MARK: Final = "postbus-replayed-from"
"""The application property that says where a replayed message was: entity/partition/offset."""


def envelope_of(message: bytes, body: bytes) -> bytes:
    """The message without its body, if the body is a single data section at the end with at least
    one byte. Otherwise the whole message: a message need not have a body at all."""
    start = scan(message).body
    return message[:start] if body and message[start:] == encode_data(body) else message


def message_of(envelope: bytes, body: bytes) -> bytes:
    """The message that `envelope_of` has taken apart."""
    sections = scan(envelope)
    is_whole = sections.body < sections.end or not body
    return envelope if is_whole else envelope + encode_data(body)


def marked(message: bytes, origin: str) -> bytes:
    """The message with an additional application property. All others keep their types."""
    sections = scan(message)
    values = dict(read_application_properties(message, sections))
    values[MARK] = origin
    before = message[: sections.application_properties]
    return before + encode_application_properties(values) + message[sections.body :]


def with_envelopes(rows: pa.Table) -> pa.Table:
    """The column `envelope` in place of `message`."""
    if "message" not in rows.column_names:
        return rows
    messages = rows["message"].combine_chunks()
    place = rows.column_names.index("message")
    return rows.set_column(place, "envelope", _envelopes(messages))


def _envelopes(messages: pa.Array) -> pa.Array:
    """The result of `envelope_of` for a column of messages at once. A message whose head is written
    in an unusual way stays whole."""
    _, edges, data = messages.buffers()
    if data is None or not data.size:  # none at all, or none that has a byte
        return messages
    offsets = np.frombuffer(edges, np.int32)[messages.offset :][: len(messages) + 1]
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    buffer = Buffer(data)
    known = np.asarray(messages.is_valid())
    return buffer.column(starts, Messages(buffer, starts, ends).heads(), known, pa.binary())
