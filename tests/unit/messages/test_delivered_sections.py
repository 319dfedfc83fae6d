"""Header, annotations and footer as they are delivered, in words that every client reads."""

from __future__ import annotations

from uuid import UUID

import pytest

from postbus.amqp.codec.types import Int, Symbol, ULong
from postbus.amqp.sections import (
    Header,
    Properties,
    encode_application_properties,
    encode_delivery_annotations,
    encode_footer,
    encode_header,
    encode_message_annotations,
    encode_properties,
    read_annotations,
    read_application_properties,
    read_delivery_annotations,
    read_footer,
    read_header,
    scan,
)
from postbus.errors import InvalidArgument
from postbus.messages.envelope import (
    read_message,
)
from tests.unit.messages.test_envelope import BODY, PROPERTY_MAX, delivered


@pytest.mark.parametrize("durable", [None, False, True])
@pytest.mark.parametrize("priority", [None, 0, 4, 9])
@pytest.mark.parametrize("first_acquirer", [None, False, True])
def test_what_a_sender_states_in_the_header_comes_back_as_stated(
    durable: bool | None, priority: int | None, first_acquirer: bool | None
) -> None:
    """A default that is spelled out is no less said."""
    raw = encode_header(durable, priority, None, first_acquirer, 3) + BODY
    out = delivered(read_message(raw, PROPERTY_MAX), raw)
    assert read_header(out, scan(out)) == Header(durable, priority, None, first_acquirer, 0)


def test_a_header_that_states_less_than_all_states_nothing_of_the_rest() -> None:
    raw = bytes.fromhex("005370c0020142") + BODY
    out = delivered(read_message(raw, PROPERTY_MAX), raw)
    assert read_header(out, scan(out)) == Header(durable=False)


TYPED = {"text": "x", "number": Int(1), "id": UUID(int=1), "list": [Symbol("s"), None]}


@pytest.mark.parametrize("kind", [str, Symbol])
@pytest.mark.parametrize("locked", [True, False])
def test_keys_of_annotations_and_footers_are_delivered_as_symbols(
    kind: type[str], locked: bool
) -> None:
    """Proton for Java reads nothing else (AMQP 3.2.10); values and the bare message stay."""
    given = {kind(key): value for key, value in TYPED.items()}
    bare = encode_properties(Properties(message_id="m")) + BODY
    raw = (
        encode_delivery_annotations(given)
        + encode_message_annotations(given)
        + bare
        + encode_footer(given)
    )
    message = read_message(raw, PROPERTY_MAX)
    assert message.raw is raw, "kept as received"
    message.token = bytes(16) if locked else None
    out = delivered(message, raw)
    sections = scan(out)
    assert out[sections.properties : sections.footer] == bare
    for part in (
        read_footer(out, sections),
        read_annotations(out, sections),
        # An unlocked delivery has none of the sender's.
        read_delivery_annotations(out, sections) if locked else TYPED_BY_SYMBOLS,
    ):
        kept = {key: value for key, value in part.items() if not key.startswith("x-opt-")}
        assert kept == TYPED_BY_SYMBOLS
        assert {type(key) for key in part} == {Symbol}
        assert [type(value) for value in kept.values()] == list(map(type, TYPED.values()))


TYPED_BY_SYMBOLS = {Symbol(key): value for key, value in TYPED.items()}


def test_a_key_that_no_symbol_can_hold_stays_a_string() -> None:
    given = {"é": 1, ULong(7): 2}
    raw = encode_delivery_annotations(given) + encode_message_annotations(given) + BODY
    raw += encode_footer(given)
    message = read_message(raw, PROPERTY_MAX)
    message.token = bytes(16)
    out = delivered(message, message.raw or raw)
    sections = scan(out)
    for part in (read_footer, read_annotations, read_delivery_annotations):
        found = part(out, sections)
        assert {key: found[key] for key in given} == given


@pytest.mark.parametrize("changed", ["nothing", "ttl", "reason", "properties"])
def test_a_footer_is_delivered_whatever_else_is_written_anew(changed: str) -> None:
    raw = BODY + encode_footer({"key": "value"})
    message = read_message(raw, PROPERTY_MAX)
    if changed == "ttl":
        message.ttl = 5
    elif changed == "reason":
        message.reason = "r"
    elif changed == "properties":
        message.properties = encode_application_properties({"a": 1})
    out = delivered(message, message.raw or raw)
    assert read_footer(out, scan(out)) == {Symbol("key"): "value"}


def test_names_of_properties_are_text() -> None:
    """Java reads nothing else, and no client of ours writes anything else (AMQP 3.2.5)."""
    raw = encode_application_properties({Symbol("colour"): Symbol("red"), "size": 1}) + BODY
    message = read_message(raw, PROPERTY_MAX)
    assert message.raw is not None
    properties = read_application_properties(message.raw, scan(message.raw))
    assert properties == {"colour": "red", "size": 1}
    assert {type(name) for name in properties} == {str}
    assert type(properties["colour"]) is Symbol
    for name in (1, b"colour", None, UUID(int=1)):
        with pytest.raises(InvalidArgument, match="no text"):
            read_message(encode_application_properties({name: 1}) + BODY, PROPERTY_MAX)
