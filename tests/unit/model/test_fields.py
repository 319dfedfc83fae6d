"""The tables of the fields of entities: reading them, and refusing by name what is not there."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus.management import (
    QueueProperties,
    SubscriptionProperties,
    TopicProperties,
)

from postbus.errors import InvalidArgument, NotSupported
from postbus.model.description import (
    Description,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.fields import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    UNSUPPORTED,
    Form,
    Value,
    describe,
    keep_fixed,
    read_text,
    read_value,
    refuse_changes,
)
from postbus.model.times import MAX_TICKS, TICKS_PER_MINUTE, TICKS_PER_MS, parse_iso


def described(**values: Value) -> QueueDescription:
    return describe(QUEUE, values, QueueDescription())


def test_every_value_reaches_its_place() -> None:
    assert described(
        LockDuration=TICKS_PER_MINUTE,
        MaxSizeInMegabytes=2_048,
        DefaultMessageTimeToLive=11 * TICKS_PER_MINUTE,
        DeadLetteringOnMessageExpiration=True,
        DuplicateDetectionHistoryTimeWindow=12 * TICKS_PER_MINUTE,
        MaxDeliveryCount=14,
        EnableBatchedOperations=False,
        Status=EntityStatus.SEND_DISABLED,
        UserMetadata="mine",
        SupportOrdering=False,
        EnableExpress=True,
        MaxMessageSizeInKilobytes=256,
        AutoDeleteOnIdle=5 * TICKS_PER_MINUTE,
        ForwardTo="sb://localhost:5300/eu/orders",
        ForwardDeadLetteredMessagesTo="errors",
    ).meaning == QueueDescription(
        lock_duration_ms=60_000,
        max_size_mb=2_048,
        default_ttl_ms=660_000,
        dead_lettering_on_expiration=True,
        duplicate_window_ms=720_000,
        max_delivery_count=14,
        enable_batched_operations=False,
        status=EntityStatus.SEND_DISABLED,
        user_metadata="mine",
        support_ordering=False,
        enable_express=True,
        auto_delete_ms=300_000,
        forward_to="eu/orders",
        forward_dead_letters_to="errors",
    )


def test_every_value_of_a_topic_reaches_its_place() -> None:
    values: dict[str, Value] = {
        "DefaultMessageTimeToLive": 11 * TICKS_PER_MINUTE,
        "MaxSizeInMegabytes": 3_072,
        "RequiresDuplicateDetection": True,
        "DuplicateDetectionHistoryTimeWindow": 12 * TICKS_PER_MINUTE,
        "EnableBatchedOperations": False,
        "Status": EntityStatus.DISABLED,
        "SupportOrdering": False,
        "AutoDeleteOnIdle": 10 * TICKS_PER_MINUTE,
        "UserMetadata": "mine",
        "MaxMessageSizeInKilobytes": 256,
    }
    assert describe(TOPIC, values, TopicDescription()) == TopicDescription(
        default_ttl_ms=660_000,
        max_size_mb=3_072,
        requires_duplicate_detection=True,
        duplicate_window_ms=720_000,
        enable_batched_operations=False,
        status=EntityStatus.DISABLED,
        support_ordering=False,
        auto_delete_ms=600_000,
        user_metadata="mine",
    )


def test_every_value_of_a_subscription_reaches_its_place() -> None:
    values: dict[str, Value] = {
        "LockDuration": TICKS_PER_MINUTE,
        "DefaultMessageTimeToLive": 11 * TICKS_PER_MINUTE,
        "DeadLetteringOnMessageExpiration": True,
        "DeadLetteringOnFilterEvaluationExceptions": False,
        "MaxDeliveryCount": 14,
        "EnableBatchedOperations": False,
        "Status": EntityStatus.RECEIVE_DISABLED,
        "ForwardTo": "/orders",
        "ForwardDeadLetteredMessagesTo": "amqps://any.host/errors",
        "UserMetadata": "mine",
        "AutoDeleteOnIdle": MAX_TICKS,
    }
    described = describe(SUBSCRIPTION, values, SubscriptionDescription())
    assert described.meaning == SubscriptionDescription(
        lock_duration_ms=60_000,
        default_ttl_ms=660_000,
        dead_lettering_on_expiration=True,
        dead_lettering_on_filter_errors=False,
        max_delivery_count=14,
        enable_batched_operations=False,
        status=EntityStatus.RECEIVE_DISABLED,
        forward_to="orders",
        forward_dead_letters_to="errors",
        user_metadata="mine",
    )


@pytest.mark.parametrize(
    "text",
    [
        "orders/$DeadLetterQueue",
        "sb://localhost/news/Subscriptions/all",
        "orders/$management",
        "with space",
        "sb://localhost/",
        "sb://localhost/a//b",
        "x" * 261,
        "x" * 5_000,
    ],
)
def test_messages_are_forwarded_only_to_a_queue_or_a_topic(text: str) -> None:
    with pytest.raises(InvalidArgument, match="'ForwardTo'"):
        described(ForwardTo=text)


def test_what_is_left_out_is_as_in_the_defaults() -> None:
    defaults = QueueDescription(lock_duration_ms=60_000, max_message_size_kb=1_024)
    assert describe(QUEUE, {}, defaults) == defaults


@pytest.mark.parametrize(
    ("element", "value"),
    [
        ("IsAnonymousAccessible", True),
    ],
)
def test_what_is_not_there_yet_is_refused_by_name(element: str, value: Value) -> None:
    with pytest.raises(NotSupported, match=f"'{element}' .*{UNSUPPORTED[element]} yet"):
        described(**{element: value})


@pytest.mark.parametrize(
    ("form", "blank"), [(QUEUE, QueueDescription()), (TOPIC, TopicDescription())]
)
def test_each_kind_refuses_what_is_not_there_yet(form: Form, blank: Description) -> None:
    for element, feature in UNSUPPORTED.items():
        if element in form.fields:
            with pytest.raises(NotSupported, match=feature):
                describe(form, {element: True}, blank)


def test_saying_no_to_what_is_not_there_is_fine() -> None:
    neutral: dict[str, Value] = {
        "IsAnonymousAccessible": False,
    }
    assert set(neutral) == set(UNSUPPORTED) & set(QUEUE.fields)
    assert described(**neutral) == QueueDescription()
    of_topics: dict[str, Value] = {
        "FilteringMessagesBeforePublishing": False,
        "EnableSubscriptionPartitioning": False,
    }
    assert describe(TOPIC, of_topics, TopicDescription()) == TopicDescription()


def test_no_forwarding_and_no_deletion_are_written_out_by_clients() -> None:
    rounded = parse_iso("P10675199DT2H48M5.477539S")
    assert described(ForwardTo="", ForwardDeadLetteredMessagesTo="") == QueueDescription()
    assert described(AutoDeleteOnIdle=rounded) == QueueDescription()


@pytest.mark.parametrize("size_kb", [256, 1_024, 2_000, 102_400])
def test_an_entity_may_take_messages_of_a_size_of_its_own(size_kb: int) -> None:
    assert described(MaxMessageSizeInKilobytes=size_kb).max_message_size_kb == size_kb
    topic = describe(TOPIC, {"MaxMessageSizeInKilobytes": size_kb}, TopicDescription())
    assert topic.max_message_size_kb == size_kb


@pytest.mark.parametrize("size_kb", [-1, 0, 255, 257, 1_023, 102_401])
def test_a_size_that_is_neither_azures_nor_the_settings_is_refused(size_kb: int) -> None:
    with pytest.raises(InvalidArgument, match="must be between 1024 and 102400"):
        described(MaxMessageSizeInKilobytes=size_kb)


def test_a_size_that_an_entity_has_may_be_written_back() -> None:
    values = {"MaxMessageSizeInKilobytes": 300}
    present = QueueDescription(max_message_size_kb=300)
    assert describe(QUEUE, values, QueueDescription(), present) == present


def test_a_time_to_live_finer_than_a_millisecond_is_given_back_to_the_digit() -> None:
    finer = described(DefaultMessageTimeToLive=1_000 * TICKS_PER_MS + 1)
    assert (finer.default_ttl_ms, finer.default_ttl_text) == (1_000, "PT1.0000001S")
    rounded = described(DefaultMessageTimeToLive=parse_iso("P10675199DT2H48M5.477539S"))
    assert rounded.default_ttl_ms is None
    assert rounded.default_ttl_text == "P10675199DT2H48M5.477539S"
    assert described(DefaultMessageTimeToLive=MAX_TICKS) == QueueDescription()


def test_a_value_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="5' minutes"):
        described(LockDuration=6 * TICKS_PER_MINUTE)


@pytest.mark.parametrize(
    ("element", "text", "value"),
    [
        ("RequiresSession", "true", True),
        ("RequiresSession", " False\n", False),
        ("RequiresSession", "1", True),
        ("MaxDeliveryCount", "14", 14),
        ("MaxDeliveryCount", "-1", -1),
        ("LockDuration", "PT1M", TICKS_PER_MINUTE),
        ("Status", "SendDisabled", EntityStatus.SEND_DISABLED),
        ("UserMetadata", " as it is ", " as it is "),
    ],
)
def test_a_value_in_xml(element: str, text: str, value: Value) -> None:
    assert read_text(QUEUE.fields[element], text) == value


@pytest.mark.parametrize(
    ("element", "text"),
    [
        ("RequiresSession", "yes"),
        ("RequiresSession", ""),
        ("MaxDeliveryCount", "ten"),
        ("MaxDeliveryCount", "1.0"),
        ("MaxDeliveryCount", "9" * 5_000),
        ("LockDuration", "00:01:00"),
        ("LockDuration", ""),
        ("Status", "active"),
        ("Status", "Creating"),
    ],
)
def test_a_wrong_value_in_xml_is_refused_by_its_name(element: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"'{element}'") as refused:
        read_text(QUEUE.fields[element], text)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("element", "given", "value"),
    [
        ("RequiresSession", True, True),
        ("MaxDeliveryCount", 3, 3),
        ("LockDuration", "00:01:00", TICKS_PER_MINUTE),
        ("LockDuration", "PT1M", TICKS_PER_MINUTE),
        ("Status", "Disabled", EntityStatus.DISABLED),
        ("ForwardTo", "", ""),
        ("AuthorizationRules", [], ()),
    ],
)
def test_a_value_in_a_config_file(element: str, given: object, value: Value) -> None:
    assert read_value(QUEUE.fields[element], given) == value


@pytest.mark.parametrize(
    ("element", "given"),
    [
        ("RequiresSession", "true"),
        ("RequiresSession", 1),
        ("MaxDeliveryCount", True),
        ("MaxDeliveryCount", 1.5),
        ("MaxDeliveryCount", "3"),
        ("LockDuration", 60),
        ("LockDuration", "a minute"),
        ("Status", None),
        ("UserMetadata", ["x"] * 1_000),
    ],
)
def test_a_wrong_value_in_a_config_file_is_refused(element: str, given: object) -> None:
    with pytest.raises(ValueError, match=r"must be|is not") as refused:
        read_value(QUEUE.fields[element], given)
    assert len(str(refused.value)) < 200


def test_what_is_fixed_at_creation_cannot_be_changed() -> None:
    # R-PART-09
    with pytest.raises(InvalidArgument, match="Partitioning cannot be changed for Topic"):
        refuse_changes(TOPIC, {"EnablePartitioning": True}, TopicDescription())
    present = QueueDescription(enable_partitioning=True)
    with pytest.raises(InvalidArgument, match="Partitioning cannot be changed for Queue"):
        refuse_changes(QUEUE, {"EnablePartitioning": False}, present)
    with pytest.raises(
        InvalidArgument,
        match="RequiresSession property of an existing Subscription cannot be changed",
    ):
        refuse_changes(SUBSCRIPTION, {"RequiresSession": True}, SubscriptionDescription())
    with pytest.raises(InvalidArgument, match="RequiresSession property of an existing Queue"):
        refuse_changes(QUEUE, {"RequiresSession": False}, QueueDescription(requires_session=True))
    neutral: dict[str, Value] = {"EnablePartitioning": False, "RequiresSession": False}
    refuse_changes(QUEUE, neutral, QueueDescription())


def test_what_is_fixed_at_creation_stays_where_an_update_leaves_it_out() -> None:
    present = QueueDescription(requires_session=True, lock_duration_ms=60_000)
    defaults = keep_fixed(QUEUE, QueueDescription(), present)
    assert defaults == QueueDescription(requires_session=True)
    refuse_changes(QUEUE, {"LockDuration": 300_000_000}, present)


@pytest.mark.parametrize("sent", [3_072, 16 * 3_072])
def test_r_part_10_the_size_of_a_partitioned_entity_is_sent_as_it_is_or_as_it_is_shown(
    sent: int,
) -> None:
    """R-PART-10."""
    present = QueueDescription(enable_partitioning=True)
    created = described(EnablePartitioning=True, MaxSizeInMegabytes=sent)
    updated = describe(QUEUE, {"MaxSizeInMegabytes": sent}, present, present)
    assert created.max_size_mb == updated.max_size_mb == 3_072
    with pytest.raises(InvalidArgument, match="specified value 49152 is invalid"):
        described(MaxSizeInMegabytes=16 * 3_072)


@pytest.mark.parametrize("element", ["ForwardTo", "ForwardDeadLetteredMessagesTo"])
def test_a_partitioned_queue_does_not_forward_yet(element: str) -> None:
    with pytest.raises(NotSupported, match="forwarding from or to partitioned entities yet"):
        describe(QUEUE, {"EnablePartitioning": True, element: "other"}, QueueDescription())


@pytest.mark.parametrize(
    ("form", "blank"), [(QUEUE, QueueDescription()), (SUBSCRIPTION, SubscriptionDescription())]
)
def test_what_requires_sessions_does_not_forward(form: Form, blank: Description) -> None:
    # semantics A §5.2
    values: dict[str, Value] = {"RequiresSession": True, "ForwardDeadLetteredMessagesTo": "other"}
    assert describe(form, values, blank).to_json()["requires_session"] is True
    with pytest.raises(InvalidArgument, match=r"'ForwardTo' .* 'RequiresSession'"):
        describe(form, {**values, "ForwardTo": "other"}, blank)


@pytest.mark.parametrize(
    ("form", "properties", "ours_alone"),
    [
        (QUEUE, QueueProperties, {"is_anonymous_accessible", "support_ordering"}),
        (
            TOPIC,
            TopicProperties,
            {
                "is_anonymous_accessible",
                "filtering_messages_before_publishing",
                "enable_subscription_partitioning",
            },
        ),
        (SUBSCRIPTION, SubscriptionProperties, {"default_rule_description"}),
    ],
)
def test_keys_in_toml_are_the_names_of_pythons_sdk(
    form: Form, properties: Any, ours_alone: set[str]
) -> None:
    names = {field.key for field in form.fields.values()}
    ours_alone = ours_alone | {"retention_in_hours", "retention_in_megabytes"}
    sdk = set(vars(properties._from_internal_entity("q", _Blank())))
    assert names - ours_alone <= sdk


class _Blank:
    """Answers None to everything the SDK reads from a description."""

    def __getattr__(self, name: str) -> None:
        return None
