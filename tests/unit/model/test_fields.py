"""The one table of a queue's fields: reading them, and refusing by name what is not there yet."""

from __future__ import annotations

from typing import Any

import pytest

from postbus.errors import InvalidArgument, NotSupported
from postbus.model.description import EntityStatus, QueueDescription
from postbus.model.duration import MAX_TICKS, TICKS_PER_MINUTE, TICKS_PER_MS, parse_iso
from postbus.model.fields import (
    QUEUE_FIELDS,
    UNSUPPORTED,
    Value,
    describe_queue,
    read_text,
    read_value,
    refuse_changes,
)


def described(**values: Value) -> QueueDescription:
    return describe_queue(values, QueueDescription())


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
    ) == QueueDescription(
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
    )


def test_what_is_left_out_is_as_in_the_defaults() -> None:
    defaults = QueueDescription(lock_duration_ms=60_000, max_message_size_kb=1_024)
    assert describe_queue({}, defaults) == defaults


@pytest.mark.parametrize(
    ("element", "value"),
    [
        ("RequiresSession", True),
        ("RequiresDuplicateDetection", True),
        ("EnablePartitioning", True),
        ("ForwardTo", "sb://localhost/other"),
        ("ForwardDeadLetteredMessagesTo", "other"),
        ("AutoDeleteOnIdle", 10 * TICKS_PER_MINUTE),
        ("AutoDeleteOnIdle", 0),
        ("IsAnonymousAccessible", True),
    ],
)
def test_what_is_not_there_yet_is_refused_by_name(element: str, value: Value) -> None:
    with pytest.raises(NotSupported, match=f"'{element}' .*{UNSUPPORTED[element]} yet"):
        described(**{element: value})


def test_saying_no_to_what_is_not_there_is_fine() -> None:
    neutral: dict[str, Value] = {
        "RequiresSession": False,
        "RequiresDuplicateDetection": False,
        "EnablePartitioning": False,
        "ForwardTo": "",
        "ForwardDeadLetteredMessagesTo": "",
        "AutoDeleteOnIdle": parse_iso("P10675199DT2H48M5.477539S"),
        "IsAnonymousAccessible": False,
    }
    assert set(neutral) == set(UNSUPPORTED)
    assert described(**neutral) == QueueDescription()


def test_the_message_size_is_the_namespaces_own() -> None:
    with pytest.raises(NotSupported, match="MaxMessageSizeInKilobytes"):
        described(MaxMessageSizeInKilobytes=1_024)


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
    assert read_text(QUEUE_FIELDS[element], text) == value


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
        read_text(QUEUE_FIELDS[element], text)
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
    assert read_value(QUEUE_FIELDS[element], given) == value


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
        read_value(QUEUE_FIELDS[element], given)
    assert len(str(refused.value)) < 200


def test_what_is_fixed_at_creation_cannot_be_changed() -> None:
    # R-PART-09
    with pytest.raises(InvalidArgument, match="Partitioning cannot be changed for Queue"):
        refuse_changes({"EnablePartitioning": True})
    with pytest.raises(
        InvalidArgument,
        match="The value for the RequiresSession property of an existing Queue cannot be changed",
    ):
        refuse_changes({"RequiresSession": True})
    refuse_changes({"EnablePartitioning": False, "RequiresSession": False})


def test_keys_in_toml_are_the_names_of_pythons_sdk() -> None:
    from azure.servicebus.management import QueueProperties

    names = {field.key for field in QUEUE_FIELDS.values()}
    ours_alone = {"is_anonymous_accessible", "support_ordering"}
    blank: Any = _Blank()
    sdk = set(vars(QueueProperties._from_internal_entity("q", blank)))
    assert names - ours_alone <= sdk


class _Blank:
    """Answers None to everything the SDK reads from a description."""

    def __getattr__(self, name: str) -> None:
        return None
