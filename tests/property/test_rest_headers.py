"""Properties of messages over HTTP: what a reply says, a request can say again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postbus.errors import InvalidArgument
from postbus.http.broker_properties import (
    apply_broker_properties,
    read_json,
    read_object,
    read_user_properties,
    write_broker_properties,
)
from postbus.http.property_headers import (
    USER_PROPERTIES,
    header_text,
    read_headers,
    read_text,
    read_value,
    write_headers,
    write_value,
)
from postbus.model.plain_message import (
    MessageState,
    Moment,
    PlainMessage,
    PropertyValue,
    ReceivedMessage,
)

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)  # type: ignore[arg-type]
moments = st.integers(-62_135_596_800, 253_402_300_799).map(lambda s: Moment(s * 1_000))
values: st.SearchStrategy[PropertyValue] = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts.filter(lambda text: not isinstance(read_text(text), Moment))
    | moments
)
names = texts | st.sampled_from(
    ["Priority", "priority", "Host", "Set-Cookie", "Age", "UserProperties", "a b", "", "x\r\ny"]
)


@given(values)
def test_a_value_is_read_as_it_was_written(value: PropertyValue) -> None:
    text = write_value(value)
    assert text.isascii() and text.isprintable()
    found = read_value(text)
    assert found == value
    assert type(found) is type(value)


@given(st.binary(max_size=60))
def test_every_value_of_a_header_means_something(raw: bytes) -> None:
    value = read_value(header_text(raw))
    assert read_value(write_value(value)) == value
    if isinstance(value, str):
        value.encode()


@given(st.dictionaries(names, values, max_size=8))
def test_properties_of_any_name_come_back(properties: dict[str, PropertyValue]) -> None:
    headers = write_headers(properties)
    found = read_headers(headers)
    others = [value for name, value in headers if name == USER_PROPERTIES.encode()]
    assert len(others) <= 1
    for text in others:
        found |= read_user_properties(read_json(text, ""), "")
    assert found == properties
    written = [name.decode("ascii").title() for name, _ in headers]
    assert len(written) == len(set(written))


@given(
    st.builds(
        PlainMessage,
        message_id=st.none() | texts.filter(bool),
        correlation_id=st.none() | texts,
        label=st.none() | texts,
        to=st.none() | texts,
        reply_to=st.none() | texts,
        session_id=st.none() | st.just("s"),
        reply_to_session_id=st.none() | texts,
        partition_key=st.none() | st.just("s"),
        via_partition_key=st.none() | texts,
        force_persistence=st.booleans(),
        time_to_live_ms=st.none() | st.integers(1, 900_000_000_000_000),
        scheduled_at=st.none() | st.integers(1, 253_402_300_799).map(lambda s: s * 1_000),
    ),
    st.integers(0, 1 << 62),
    st.sampled_from(MessageState),
    st.none() | st.uuids(),
)
def test_broker_properties_come_back(
    message: PlainMessage, number: int, state: MessageState, token: object
) -> None:
    received = ReceivedMessage(message, number, number, 0, 0, state, token=token)  # type: ignore[arg-type]
    text = write_broker_properties(received, from_topic=False)
    assert text.isascii() and text.isprintable()
    again = PlainMessage()
    apply_broker_properties(again, read_object(read_json(text, ""), ""), "")
    assert again == message


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)
keys = st.sampled_from(
    [
        *("MessageId", "TimeToLive", "TimeToLiveTimeSpan", "SessionId", "PartitionKey", "Label"),
        *("ForcePersistence", "ScheduledEnqueueTimeUtc", "To", "Unknown"),
    ]
)


@given(st.dictionaries(keys, json_values))
def test_any_broker_properties_are_taken_or_refused_by_name(values: dict[str, object]) -> None:
    said = ""
    try:
        apply_broker_properties(PlainMessage(), values, "BrokerProperties")
    except InvalidArgument as refusal:
        said = str(refusal)
    assert said == "" or said.startswith("BrokerProperties is invalid: '")
    said.encode()
