"""Several messages in one request: a JSON array of bodies and their properties (semantics A §7)."""

import binascii
from base64 import b64decode
from collections.abc import Iterator
from typing import Any, Final

from postbus.errors import InvalidArgument, MessageSizeExceeded
from postbus.http.broker_properties import (
    apply_broker_properties,
    read_array,
    read_object,
    read_user_properties,
)
from postbus.model.plain_message import PlainMessage

BATCH_TYPE: Final = "application/vnd.microsoft.servicebus.json"
BATCH_COUNT_MAX: Final = 4_500
"""As many as in a batch over AMQP (semantics B §2)."""

_KEYS: Final = {"Body", "BrokerProperties", "IsBodyBase64", "UserProperties"}


def is_batch(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == BATCH_TYPE


def read_batch(body: bytes) -> Iterator[PlainMessage]:
    """The messages of a batch, read one at a time. Raises InvalidArgument that names the item and
    the key."""
    count = 0
    for item in read_array(body, "The batch"):
        if count == BATCH_COUNT_MAX:
            raise MessageSizeExceeded(
                f"The batch has more than {BATCH_COUNT_MAX} messages, as many as are allowed."
            )
        yield _read_item(item, f"Message {count} of the batch")
        count += 1
    if not count:
        raise InvalidArgument("The batch holds no message.")


def _read_item(item: object, where: str) -> PlainMessage:
    if not isinstance(item, dict):
        raise InvalidArgument(f"{where} is not a JSON object.")
    unknown = sorted(set(item) - _KEYS)
    if unknown:
        name = unknown[0].encode("ascii", "backslashreplace").decode()
        raise InvalidArgument(f"{where} has the key '{name[:64]}', which no message has.")
    message = PlainMessage(body=_read_body(item, where))
    place = f"{where}: BrokerProperties"
    properties = read_object(item.get("BrokerProperties"), place)
    apply_broker_properties(message, properties, place)
    message.content_type = _content_type(properties, place)
    place = f"{where}: UserProperties"
    message.properties = read_user_properties(read_object(item.get("UserProperties"), place), place)
    return message


def _read_body(item: dict[str, Any], where: str) -> bytes:
    body, encoded = item.get("Body", ""), item.get("IsBodyBase64", False)
    if not isinstance(body, str):
        raise InvalidArgument(f"{where} is invalid: 'Body' must be a string.")
    if not isinstance(encoded, bool):
        raise InvalidArgument(f"{where} is invalid: 'IsBodyBase64' must be true or false.")
    try:
        data = body.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{where} is invalid: 'Body' has half of a surrogate pair.") from None
    if not encoded:
        return data
    try:
        return b64decode(data, validate=True)
    except binascii.Error:
        raise InvalidArgument(f"{where} is invalid: 'Body' is not base64.") from None


def _content_type(properties: dict[str, Any], where: str) -> str | None:
    """The content type of an item, which has no header of its own."""
    value = properties.get("ContentType")
    if value is not None and not (isinstance(value, str) and value.isascii()):
        raise InvalidArgument(f"{where} is invalid: 'ContentType' must be a string in ASCII.")
    return value
