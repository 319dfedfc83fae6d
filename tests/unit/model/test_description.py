"""Descriptions of entities: defaults, limits with Azure's words, their form in the catalog."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.errors import InvalidArgument
from postbus.model.description import (
    Description,
    EntityStatus,
    QueueCounts,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.times import INFINITE


def test_what_a_queue_is_by_default() -> None:
    description = QueueDescription()
    description.validate()
    assert description.lock_duration_ms == 30_000  # R-SETTLE-06
    assert description.max_delivery_count == 10  # R-SETTLE-08
    assert description.max_size_mb == 1_024  # R-PART-10
    assert description.default_ttl_ms is None
    assert description.dead_lettering_on_expiration is False  # R-DLQ-06
    assert description.status is EntityStatus.ACTIVE


def test_what_a_topic_and_a_subscription_are_by_default() -> None:
    topic, subscription = TopicDescription(), SubscriptionDescription()
    topic.validate()
    subscription.validate()
    assert (topic.max_size_mb, topic.duplicate_window_ms) == (1_024, 600_000)
    assert topic.support_ordering is True
    assert subscription.lock_duration_ms == 30_000
    assert subscription.max_delivery_count == 10
    assert subscription.dead_lettering_on_expiration is False
    # semantics A §1.4
    assert subscription.dead_lettering_on_filter_errors is True
    assert (topic.auto_delete_ms, subscription.auto_delete_ms) == (None, None)


@pytest.mark.parametrize(
    ("description", "text"),
    [
        (
            QueueDescription(lock_duration_ms=25 * 86_400_000),
            "The supplied lock time exceeds the allowed maximum of '5' minutes.\r\n"
            "Parameter name: LockDuration\r\nActual value was 25.00:00:00.",
        ),
        (QueueDescription(lock_duration_ms=4_999), "minimum of '5' seconds"),
        (
            QueueDescription(duplicate_window_ms=19_999),
            "The value supplied must be between 00:00:20 and 7.00:00:00.\r\n"
            "Parameter name: DuplicateDetectionHistoryTimeWindow\r\n"
            "Actual value was 00:00:19.9990000.",
        ),
        (QueueDescription(duplicate_window_ms=7 * 86_400_000 + 1), "7.00:00:00"),
        (QueueDescription(default_ttl_ms=999), "DefaultMessageTimeToLive"),
        (QueueDescription(default_ttl_ms=-1), "DefaultMessageTimeToLive"),
        (QueueDescription(max_size_mb=1_000), "1024;2048;3072;4096;5120"),
        (QueueDescription(max_size_mb=6_144), "1024;2048;3072;4096;5120"),
        (QueueDescription(max_delivery_count=0), "MaxDeliveryCount"),
        (QueueDescription(max_delivery_count=2**31), "MaxDeliveryCount"),
        (QueueDescription(user_metadata="x" * 1_025), "UserMetadata"),
        (QueueDescription(user_metadata="bell \x07"), "UserMetadata"),
        (QueueDescription(max_message_size_kb=0), "MaxMessageSizeInKilobytes"),
        (
            QueueDescription(auto_delete_ms=60_000),
            "minimum of '5' minutes.\r\nParameter name: AutoDeleteOnIdle\r\n"
            "Actual value was 00:01:00.",
        ),
        (TopicDescription(auto_delete_ms=0), "AutoDeleteOnIdle"),
        (TopicDescription(default_ttl_ms=999), "DefaultMessageTimeToLive"),
        (TopicDescription(duplicate_window_ms=19_999), "00:00:20 and 7.00:00:00"),
        (TopicDescription(max_size_mb=1_000), "1024;2048;3072;4096;5120"),
        (TopicDescription(max_message_size_kb=0), "MaxMessageSizeInKilobytes"),
        (TopicDescription(user_metadata="x" * 1_025), "UserMetadata"),
        (SubscriptionDescription(lock_duration_ms=300_001), "maximum of '5' minutes"),
        (SubscriptionDescription(max_delivery_count=0), "MaxDeliveryCount"),
        (SubscriptionDescription(default_ttl_ms=0), "DefaultMessageTimeToLive"),
        (SubscriptionDescription(auto_delete_ms=299_999), "AutoDeleteOnIdle"),
        (SubscriptionDescription(user_metadata="bell \x07"), "UserMetadata"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(description: Description, text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        description.validate()
    assert text in str(refused.value)


@pytest.mark.parametrize(
    "description",
    [
        QueueDescription(lock_duration_ms=5_000),
        QueueDescription(lock_duration_ms=300_000),
        QueueDescription(default_ttl_ms=1_000),
        QueueDescription(duplicate_window_ms=20_000),
        QueueDescription(max_size_mb=5_120),
        QueueDescription(max_delivery_count=2**31 - 1),  # R-PAIR-02, R-DLQ-07
        QueueDescription(user_metadata="line\r\n" + "x" * 1_018),
        QueueDescription(auto_delete_ms=300_000),
        SubscriptionDescription(lock_duration_ms=5_000),
    ],
)
def test_a_value_at_the_edge_is_taken(description: Description) -> None:
    description.validate()


def test_the_default_time_to_live_as_text() -> None:
    assert QueueDescription().default_ttl_text == INFINITE
    assert QueueDescription(default_ttl_ms=660_000).default_ttl_text == "PT11M"
    rounded = QueueDescription(default_ttl_sent="P10675199DT2H48M5.477539S")
    assert rounded.default_ttl_text == "P10675199DT2H48M5.477539S"
    # a copy with another value does not keep the spelling of the old one
    assert replace(rounded, default_ttl_ms=60_000).default_ttl_text == "PT1M"


SHARED = {
    "default_ttl_ms": st.none() | st.integers(1_000, 10**12),
    "default_ttl_sent": st.sampled_from([None, "PT1.0000001S"]),
    "auto_delete_ms": st.none() | st.integers(300_000, 10**12),
    "status": st.sampled_from(EntityStatus),
    "user_metadata": st.none() | st.text(max_size=20),
    "enable_batched_operations": st.booleans(),
}
RECEIVED_FROM = {
    "lock_duration_ms": st.integers(5_000, 300_000),
    "dead_lettering_on_expiration": st.booleans(),
    "max_delivery_count": st.integers(1, 2**31 - 1),
    "forward_to": st.none() | st.just("orders"),
    "forward_dead_letters_to": st.none() | st.just("errors"),
}
DESCRIPTIONS = (
    st.builds(QueueDescription, **SHARED, **RECEIVED_FROM, enable_express=st.booleans())
    | st.builds(TopicDescription, **SHARED, support_ordering=st.booleans())
    | st.builds(
        SubscriptionDescription,
        **SHARED,
        **RECEIVED_FROM,
        dead_lettering_on_filter_errors=st.booleans(),
    )
)


@given(DESCRIPTIONS)
def test_a_description_survives_the_catalog(description: Description) -> None:
    kept = json.loads(json.dumps(description.to_json()))
    assert type(description).from_json(kept) == description


@pytest.mark.parametrize("cls", [QueueDescription, TopicDescription, SubscriptionDescription])
def test_a_field_that_the_catalog_does_not_have_yet_takes_its_default(
    cls: type[Description],
) -> None:
    assert cls.from_json({}) == cls()


@pytest.mark.parametrize(
    "values",
    [
        {"lock_duration": 1},
        {"lock_duration_ms": "30"},
        {"lock_duration_ms": True},
        {"enable_express": 1},
        {"status": "Broken"},
        {"default_ttl_sent": "soon"},
        {"forward_to": 7},
        {"auto_delete_ms": None},
    ],
)
def test_a_catalog_entry_that_nobody_wrote_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"description|EntityStatus"):
        QueueDescription.from_json(values)


def test_what_each_status_allows() -> None:
    allowed = {status: (status.sends, status.receives) for status in EntityStatus}
    assert allowed == {
        EntityStatus.ACTIVE: (True, True),
        EntityStatus.DISABLED: (False, False),
        EntityStatus.SEND_DISABLED: (False, True),
        EntityStatus.RECEIVE_DISABLED: (True, False),
    }


def test_the_total_counts_every_message_and_no_byte() -> None:
    assert QueueCounts(1, 2, 4, 8, 16, size_bytes=1_000).total == 31
