"""`BrokerProperties`: the broker's facts about a message over HTTP, in requests and replies.

JSON in a header of the same name, or in an item of a batch. Keys that cannot be set are ignored, as
Azure documents it. So a client can send on a message that it received (semantics A §7).
"""

import json
import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Final

from postbus.errors import InvalidArgument
from postbus.http.property_headers import read_text, write_object
from postbus.model.plain_message import PlainMessage, PropertyValue, ReceivedMessage
from postbus.model.times import (
    MAX_TICKS,
    TICKS_PER_MS,
    TICKS_PER_SECOND,
    BadDate,
    BadDuration,
    Instant,
    format_httpdate,
    is_httpdate,
    is_infinite,
    parse_httpdate,
    parse_timespan,
)

_TEXTS: Final = {
    "CorrelationId": "correlation_id",
    "Label": "label",
    "MessageId": "message_id",
    "PartitionKey": "partition_key",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
    "ViaPartitionKey": "via_partition_key",
}
_FOR_EVER: Final = "922337203685.47754"
"""The largest TimeSpan in seconds, as Azure writes it."""
_SECONDS_MAX: Final = MAX_TICKS // TICKS_PER_SECOND
_SHOWN_LENGTH_MAX: Final = 64
_SPACE: Final = re.compile(r"[ \t\n\r]*")


# -- from requests ---------------------------------------------------------------------------


def read_json(text: str | bytes, where: str) -> Any:
    """Read strict JSON: no NaN, no name twice, no text outside UTF-8."""
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise _no_json(error, where) from None


def read_array(data: bytes, where: str) -> Iterator[Any]:
    """The items of an array in strict JSON, read one at a time. Other requests could not wait for a
    whole large array."""
    decoder = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_object)
    try:
        text = data.decode(json.detect_encoding(data))
        place = _behind_space(text, 0)
        if not text.startswith("[", place):
            if place == len(text):
                raise json.JSONDecodeError("Expecting value", text, place)
            raise InvalidArgument(f"{where} is not a JSON array.")
        place = _behind_space(text, place + 1)
        separator = "[" if not text.startswith("]", place) else "]"
        while separator != "]":
            item, place = decoder.raw_decode(text, place)
            yield item
            place = _behind_space(text, place)
            separator = text[place : place + 1]
            if separator not in (",", "]"):
                raise json.JSONDecodeError("Expecting ',' delimiter", text, place)
            if separator == ",":
                place = _behind_space(text, place + 1)
        place = _behind_space(text, place + 1)
        if place < len(text):
            raise json.JSONDecodeError("Extra data", text, place)
    except (ValueError, RecursionError) as error:
        raise _no_json(error, where) from None


def _behind_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return place if found is None else found.end()


def _no_json(error: Exception, where: str) -> InvalidArgument:
    # Python limits the depth and the digits of a number; both errors end here.
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return InvalidArgument(f"{where} is not valid JSON: {reason}.")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"'{name[:_SHOWN_LENGTH_MAX]}' is there twice")
        found[name] = value
    return found


def read_object(value: object, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidArgument(f"{where} is not a JSON object.")
    return value


def apply_broker_properties(message: PlainMessage, values: dict[str, Any], where: str) -> None:
    """Set these values on the message. Raises InvalidArgument that names the key."""
    for key, field in _TEXTS.items():
        setattr(message, field, _text(values, key, where))
    # Azure's default is the empty text, which it replaces by a new id.
    message.message_id = message.message_id or None
    session_id, partition_key = message.session_id, message.partition_key
    if session_id and partition_key and session_id != partition_key:
        raise InvalidArgument(
            f"{where} is invalid: 'SessionId' and 'PartitionKey' are both set and not equal."
        )
    force = values.get("ForcePersistence")
    if force is not None and not isinstance(force, bool):
        raise _wrong(where, "ForcePersistence", "true or false", force)
    message.force_persistence = bool(force)
    message.time_to_live_ms = _time_to_live(values, where)
    message.scheduled_at = _scheduled(values, where)


def read_user_properties(values: dict[str, Any], where: str) -> dict[str, PropertyValue]:
    """Application properties from a JSON object, by the same rules as from headers."""
    found: dict[str, PropertyValue] = {}
    for name, value in values.items():
        if isinstance(value, (dict, list)):
            raise _wrong(where, name, "a string, a number, true, false or null", value)
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise _wrong(where, name, "a number of 64 bits", value)
        if isinstance(value, float) and not isfinite(value):
            raise _wrong(where, name, "a number of 64 bits", value)
        _check_text(name, where, name)
        found[name] = (
            read_text(_check_text(value, where, name)) if isinstance(value, str) else value
        )
    return found


def _text(values: Mapping[str, Any], key: str, where: str) -> str | None:
    value = values.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise _wrong(where, key, "a string", value)
    return _check_text(value, where, key)


def _check_text(text: str, where: str, key: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{where} is invalid: '{_shown(key)}' has half of a surrogate pair."
        ) from None
    return text


def _time_to_live(values: Mapping[str, Any], where: str) -> int | None:
    seconds = values.get("TimeToLive")
    if seconds is None:
        return _time_span(values, where)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds <= 0:
        raise _wrong(where, "TimeToLive", "a number of seconds above 0", seconds)
    if seconds >= _SECONDS_MAX or is_infinite(round(seconds * TICKS_PER_SECOND)):
        return None
    # Not by way of ticks: for thousands of years a floating-point number cannot hold them.
    return max(1, round(seconds * 1_000))


def _time_span(values: Mapping[str, Any], where: str) -> int | None:
    """A duration as a .NET TimeSpan; Azure's own example of a batch has it."""
    text = _text(values, "TimeToLiveTimeSpan", where)
    if text is None:
        return None
    try:
        ticks = parse_timespan(text)
    except BadDuration as error:
        raise InvalidArgument(f"{where} is invalid: 'TimeToLiveTimeSpan': {error}.") from None
    if ticks <= 0:
        raise _wrong(where, "TimeToLiveTimeSpan", "above 0", text)
    return _milliseconds(ticks)


def _milliseconds(ticks: int) -> int | None:
    return None if is_infinite(ticks) else max(1, ticks // TICKS_PER_MS)


def _scheduled(values: Mapping[str, Any], where: str) -> Instant | None:
    text = _text(values, "ScheduledEnqueueTimeUtc", where)
    if text is None:
        return None
    try:
        instant = parse_httpdate(text.strip())
    except BadDate as error:
        raise InvalidArgument(f"{where} is invalid: 'ScheduledEnqueueTimeUtc': {error}.") from None
    # Before 1970 there is nothing to wait for; in .NET year 1 means "not set".
    return instant if instant > 0 else None


def _wrong(where: str, key: str, wanted: str, value: object) -> InvalidArgument:
    if isinstance(value, (dict, list)):
        given = "an object" if isinstance(value, dict) else "an array"
    else:
        given = _shown(json.dumps(value))
    return InvalidArgument(f"{where} is invalid: '{_shown(key)}' must be {wanted}, not {given}.")


def _shown(text: str) -> str:
    # Escaped, so that the refusal can be written whatever the client sent.
    whole = text.encode("ascii", "backslashreplace").decode()
    return whole if len(whole) <= _SHOWN_LENGTH_MAX else whole[: _SHOWN_LENGTH_MAX - 3] + "..."


# -- for replies -----------------------------------------------------------------------------


def write_broker_properties(received: ReceivedMessage, from_topic: bool) -> str:
    """The header of a reply: JSON in ASCII, keys in alphabetical order, without unset values."""
    message = received.message
    values = {key: getattr(message, field) for key, field in _TEXTS.items()}
    values["DeadLetterSource"] = received.dead_letter_source
    written = {key: json.dumps(value) for key, value in values.items() if value is not None}
    if message.force_persistence:
        written["ForcePersistence"] = "true"
    written["DeliveryCount"] = str(received.failures + 1)
    # 0 where the sender enqueued it, who could not know the number (semantics A §7).
    elsewhere = from_topic or received.enqueue_number != received.number
    written["EnqueuedSequenceNumber"] = str(received.enqueue_number if elsewhere else 0)
    written["EnqueuedTimeUtc"] = _date(received.enqueued_at)
    written["SequenceNumber"] = str(received.number)
    written["State"] = json.dumps(received.state.name.capitalize())
    written["TimeToLive"] = _seconds(message.time_to_live_ms)
    if message.scheduled_at is not None and is_httpdate(message.scheduled_at):
        written["ScheduledEnqueueTimeUtc"] = _date(message.scheduled_at)
    if received.token is not None:
        written["LockToken"] = json.dumps(str(received.token))
        written["LockedUntilUtc"] = _date(received.locked_until)
    return write_object(dict(sorted(written.items())))


def _date(instant: Instant) -> str:
    return json.dumps(format_httpdate(instant))


def _seconds(time_to_live_ms: int | None) -> str:
    if time_to_live_ms is None:
        return _FOR_EVER
    whole, rest = divmod(time_to_live_ms, 1_000)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)
