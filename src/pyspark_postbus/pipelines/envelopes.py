"""Messages taken apart for the archive, and put together again for a replay.

A table has the body in a column of its own, for people to look at. The rest of the message, as it
came, is the envelope: so nothing is stored twice, and the message can be had again byte for byte.
"""

from typing import Final

import pyarrow as pa

from postbus.amqp.sections import (
    encode_application_properties,
    encode_data,
    read_application_properties,
    scan,
)

MARK: Final = "postbus-replayed-from"
"""The application property that says where a replayed message was: entity/partition/offset."""


def envelope_of(message: bytes, body: bytes) -> bytes:
    """All but the body; or all of it, where the body is not one section of data at the end."""
    section = encode_data(body)
    return message[: -len(section)] if message.endswith(section) else message


def message_of(envelope: bytes, body: bytes) -> bytes:
    """The message that `envelope_of` has taken apart."""
    sections = scan(envelope)
    return envelope if sections.body < sections.end else envelope + encode_data(body)


def marked(message: bytes, origin: str) -> bytes:
    """The message with one application property more. All others keep their types."""
    sections = scan(message)
    values = dict(read_application_properties(message, sections))
    values[MARK] = origin
    before = message[: sections.application_properties]
    return before + encode_application_properties(values) + message[sections.body :]


def with_envelopes(rows: pa.Table) -> pa.Table:
    """The column `envelope` in place of `message`."""
    if "message" not in rows.column_names:
        return rows
    pairs = zip(rows["message"].to_pylist(), rows["body"].to_pylist(), strict=True)
    envelopes = [None if message is None else envelope_of(message, body) for message, body in pairs]
    place = rows.column_names.index("message")
    return rows.set_column(place, "envelope", pa.array(envelopes, pa.binary()))
