"""A message as rules read it, and the sections of a copy that an action changed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from postbus.amqp.codec.types import Int, Symbol, Timestamp
from postbus.amqp.sections import (
    Properties,
    encode_application_properties,
    encode_data,
    encode_header,
    encode_message_annotations,
    encode_properties,
    read_annotations,
    read_application_properties,
    read_properties,
    scan,
)
from postbus.broker.message import ACTIVE, NO_TTL, PUBLISHING, SCHEDULED, ForwardingInfo, Message
from postbus.messages.envelope import read_message
from postbus.model.rule import RuleDescription, SqlAction, TrueFilter
from postbus.model.times import MAX_TICKS
from postbus.model.values import DATE_TIME_MAX_TICKS, DateTime, TimeSpan
from postbus.namespace import message_view
from postbus.namespace.message_view import MessageFacts, Rewritten, write_changes
from postbus.rules.rule import compile_rule
from postbus.rules.system_properties import SYSTEM_PROPERTIES
from postbus.rules.values import Value

EPOCH = 621_355_968_000_000_000
LIMIT = 32_768


def message_of(
    properties: Properties | None = None,
    user: dict[Any, Any] | None = None,
    annotations: dict[Any, Any] | None = None,
    ttl: int | None = None,
) -> Message:
    payload = encode_header(ttl=ttl) if ttl is not None else b""
    if annotations:
        payload += encode_message_annotations(annotations)
    payload += encode_properties(properties or Properties(message_id="m-1"))
    if user:
        payload += encode_application_properties(user)
    message = read_message(payload + encode_data(b"body"), LIMIT)
    message.number, message.enqueue_number, message.enqueued_at = 17, 16, 1_000
    return message


def facts_of(message: Message) -> MessageFacts:
    assert message.raw is not None
    return MessageFacts(message, message.raw)


def rewritten(message: Message, action: str) -> Rewritten:
    compiled = compile_rule(
        RuleDescription("the rule", TrueFilter(), SqlAction(action)), lambda: UUID(int=7)
    ).action
    assert compiled is not None
    assert message.raw is not None
    message_view = facts_of(message)
    return write_changes(
        message, message.raw, compiled.apply(message_view, 65_536), message_view.given
    )


def user_of(made: Rewritten) -> dict[str, Any]:
    section = made.application_section
    assert section is not None
    return read_application_properties(section, scan(section))


FULL = message_of(
    Properties(
        message_id="m-1",
        to="Store5",
        subject="omnibus",
        reply_to="reply",
        correlation_id="abc",
        content_type="text/plain",
        group_id="session",
        reply_to_group_id="other",
    ),
    annotations={
        Symbol("x-opt-partition-key"): "session",
        Symbol("x-opt-via-partition-key"): "via",
        Symbol("x-opt-scheduled-enqueue-time"): Timestamp(5),
    },
    ttl=60_000,
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ContentType", "text/plain"),
        ("CorrelationId", "abc"),
        ("DeadLetterSource", None),
        ("DeliveryCount", 0),
        ("EnqueuedSequenceNumber", 16),
        ("EnqueuedTimeUtc", DateTime(EPOCH + 10_000_000)),
        ("ExpiresAtUtc", DateTime(EPOCH + 610_000_000)),
        ("ForcePersistence", False),
        ("Label", "omnibus"),
        ("LockToken", None),
        ("LockedUntilUtc", None),
        ("MessageId", "m-1"),
        ("PartitionKey", "session"),
        ("ReplyTo", "reply"),
        ("ReplyToSessionId", "other"),
        ("ScheduledEnqueueTimeUtc", DateTime(EPOCH + 50_000)),
        ("SequenceNumber", 17),
        ("SessionId", "session"),
        ("Size", FULL.length),
        ("State", 0),
        ("TimeToLive", TimeSpan(600_000_000)),
        ("To", "Store5"),
        ("ViaPartitionKey", "via"),
    ],
)
def test_system_properties(name: str, value: Value) -> None:
    given = facts_of(FULL).system(name)
    assert given == value
    assert type(given) is type(value)
    assert value is None or type(value) is SYSTEM_PROPERTIES[name].type


def test_there_is_a_test_for_each_system_property_and_none_is_missing() -> None:
    plain = facts_of(message_of())
    unset = {name for name in SYSTEM_PROPERTIES if plain.system(name) is None}
    assert unset == {
        *("ContentType", "CorrelationId", "DeadLetterSource", "Label", "LockToken"),
        *("LockedUntilUtc", "PartitionKey", "ReplyTo", "ReplyToSessionId"),
        *("ScheduledEnqueueTimeUtc", "SessionId", "To", "ViaPartitionKey"),
    }


def test_a_message_that_never_expires_does_so_at_the_end_of_time() -> None:
    plain = facts_of(message_of())
    assert plain.system("TimeToLive") == TimeSpan(MAX_TICKS)
    assert plain.system("ExpiresAtUtc") == DateTime(DATE_TIME_MAX_TICKS)


@pytest.mark.parametrize(("lane", "state"), [(ACTIVE, 0), (SCHEDULED, 2), (PUBLISHING, 0)])
def test_the_state_is_one_that_clients_know(lane: int, state: int) -> None:
    message = message_of()
    message.lane = lane
    assert facts_of(message).system("State") == state


def test_a_message_that_outlives_the_calendar_does_so_too() -> None:
    message = message_of()
    message.ttl = 922_337_203_685_476
    assert facts_of(message).system("ExpiresAtUtc") == DateTime(DATE_TIME_MAX_TICKS)


@pytest.mark.parametrize(("sent", "seen"), [(UUID(int=5), str(UUID(int=5))), (b"\xff", "ÿ")])
def test_ids_of_any_type_are_texts(sent: Any, seen: str) -> None:
    given = facts_of(message_of(Properties(message_id=sent, correlation_id=sent)))
    assert given.system("MessageId") == seen
    assert given.system("CorrelationId") == seen


def test_application_properties_are_found_in_any_case_and_the_first_counts() -> None:
    given = facts_of(message_of(user={"Color": "red", "color": "blue", "Size": Int(5)}))
    assert given.user == {"color": "red", "size": 5}


def test_nothing_is_decoded_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given = facts_of(message_of(user={"a": 1}))
    read: list[str] = []
    for name in ("read_properties", "read_annotations", "read_application_properties"):
        real = getattr(message_view, name)
        monkeypatch.setattr(
            message_view,
            name,
            lambda *given, name=name, real=real: read.append(name) or real(*given),
        )
    for name in ("MessageId", "SessionId", "SequenceNumber", "TimeToLive"):
        given.system(name)
    assert read == []
    assert given.system("To") is given.system("Label") is None
    assert given.user == given.user == {"a": 1}
    assert given.system("PartitionKey") is None
    assert read == ["read_properties", "read_application_properties", "read_annotations"]


def test_properties_that_a_receiver_changed_are_those_that_count() -> None:
    message = message_of(user={"a": 1})
    message.properties = encode_application_properties({"b": 2})
    assert facts_of(message).user == {"b": 2}
    assert user_of(rewritten(message, "SET c = 3")) == {"b": 2, "c": 3, "RuleName": "the rule"}


def test_an_action_changes_application_properties_and_leaves_the_rest_alone() -> None:
    message = message_of(user={"Priority": "low", "size": Int(5), "gone": 1, "list": [1]})
    made = rewritten(message, "SET priority = 'high'; SET Size = size * 2; REMOVE Gone; SET n = 1")
    properties = user_of(made)
    assert properties == {
        "Priority": "high",
        "size": 10,
        "list": [1],
        "n": 1,
        "RuleName": "the rule",
    }
    assert list(properties)[:3] == ["Priority", "size", "list"]
    assert type(properties["size"]) is Int
    assert type(properties["n"]) is int
    assert made.properties_section is None
    assert made.annotations_section is None
    assert (made.message_id, made.session_id, made.ttl_ms) == ("m-1", None, NO_TTL)


def test_names_that_differ_in_case_are_removed_together_and_set_once() -> None:
    message = message_of(user={"a": 1, "A": 2})
    assert user_of(rewritten(message, "REMOVE a")) == {"RuleName": "the rule"}
    assert user_of(rewritten(message, "SET A = 5")) == {"a": 5, "A": 2, "RuleName": "the rule"}
    assert user_of(rewritten(message, "REMOVE a; SET A = 5")) == {"A": 5, "RuleName": "the rule"}


def test_an_action_changes_system_properties() -> None:
    made = rewritten(
        FULL,
        "SET sys.Label = 'new'; SET sys.To = NULL; SET sys.MessageId = 'm-2';"
        "SET sys.SessionId = 's-2'; SET sys.PartitionKey = 's-2'; REMOVE sys.ViaPartitionKey;"
        "SET sys.TimeToLive = '00:00:01'; SET sys.ContentType = 'text/html'",
    )
    section = made.properties_section
    assert section is not None
    properties = read_properties(section, scan(section))
    assert properties == Properties(
        message_id="m-2",
        subject="new",
        reply_to="reply",
        correlation_id="abc",
        content_type="text/html",
        group_id="s-2",
        reply_to_group_id="other",
    )
    assert (made.message_id, made.session_id, made.ttl_ms) == ("m-2", "s-2", 1_000)
    annotations = made.annotations_section
    assert annotations is not None
    assert read_annotations(annotations, scan(annotations)) == {
        "x-opt-partition-key": "s-2",
        "x-opt-scheduled-enqueue-time": 5,
    }


@pytest.mark.parametrize(
    ("action", "ttl_ms"),
    [
        ("SET sys.TimeToLive = '00:00:02.5'", 2_500),
        ("SET sys.TimeToLive = '00:00:00.0000001'", 1),
        ("SET sys.TimeToLive = 'P10675199DT2H48M5.4775807S'", NO_TTL),
        ("REMOVE sys.TimeToLive", NO_TTL),
        ("SET a = 1", 60_000),
    ],
)
def test_the_time_to_live_of_a_copy(action: str, ttl_ms: int) -> None:
    assert rewritten(FULL, action).ttl_ms == ttl_ms


def test_a_session_can_be_taken_away() -> None:
    made = rewritten(FULL, "REMOVE sys.SessionId")
    assert made.session_id is None


@pytest.mark.parametrize(
    "action",
    [
        "SET a = 1",
        "SET sys.Label = 'a longer label'",
        "SET sys.PartitionKey = 'session'; REMOVE sys.ViaPartitionKey; SET sys.To = 'x'",
        "SET b = 'x'; REMOVE c",
    ],
)
def test_the_size_of_the_header_is_that_of_a_message_sent_like_this(action: str) -> None:
    for message in (FULL, message_of(user={"b": 1, "c": "text"})):
        raw = message.raw
        assert raw is not None
        sections = scan(raw)
        made = rewritten(message, action)
        parts = (
            raw[: sections.message_annotations],
            made.annotations_section or raw[sections.message_annotations : sections.properties],
            made.properties_section or raw[sections.properties : sections.application_properties],
            made.application_section or raw[sections.application_properties : sections.body],
            raw[sections.body :],
        )
        sent = read_message(b"".join(parts), LIMIT)
        assert made.header_size == sent.header_size


def test_an_action_begins_with_what_an_action_of_another_topic_has_left() -> None:
    message = message_of(
        Properties(message_id="m-1", subject="orig"), annotations={Symbol("x-opt-other"): 1}
    )
    first = rewritten(message, "SET sys.Label='first'; SET sys.PartitionKey='p'")
    trail = message.trail = ForwardingInfo(message.length)
    assert first.properties_section is not None and first.annotations_section is not None
    trail.envelope, trail.annotations = first.properties_section, first.annotations_section

    second = rewritten(message, "SET sys.CorrelationId='c'; SET sys.ViaPartitionKey='v'")

    section = second.properties_section
    assert section is not None
    properties = read_properties(section, scan(section))
    assert (properties.subject, properties.correlation_id) == ("first", "c")
    section = second.annotations_section
    assert section is not None
    assert read_annotations(section, scan(section)) == {
        "x-opt-other": 1,
        "x-opt-partition-key": "p",
        "x-opt-via-partition-key": "v",
    }
