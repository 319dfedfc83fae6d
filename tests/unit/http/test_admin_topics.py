"""Topics, subscriptions and rules through the SDK's own administration client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus.management import (
    ApiVersion,
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from postbus.model.description import QueueCounts
from postbus.model.rule import FalseFilter, SqlFilter
from postbus.model.values import TypedValue, ValueType
from tests.support.administration import administration_client
from tests.unit.http.conftest import connection_string
from tests.unit.http.memory import MemoryNamespace

LONG = 2**31 + 2


@pytest.fixture
def topic(admin: ServiceBusAdministrationClient) -> str:
    return admin.create_topic("eu/news").name


@pytest.fixture
def subscription(admin: ServiceBusAdministrationClient, topic: str) -> str:
    return admin.create_subscription(topic, "all").name


def test_a_topic_from_creation_to_deletion(
    admin: ServiceBusAdministrationClient, namespace: MemoryNamespace
) -> None:
    made = admin.create_topic("txt/.-_123", default_message_time_to_live="PT11M")
    assert (made.name, made.status, made.availability_status) == (
        "txt/.-_123",
        "Active",
        "Available",
    )
    for minutes in (10, 12):
        admin.update_topic(
            admin.get_topic("txt/.-_123"),
            auto_delete_on_idle=timedelta(minutes=minutes),
            duplicate_detection_history_time_window="PT12M3S",
            max_size_in_megabytes=3_072,
            enable_express=True,
            support_ordering=False,
            user_metadata="mine",
        )
        changed = admin.get_topic("txt/.-_123")
        assert changed.auto_delete_on_idle == timedelta(minutes=minutes)
        assert changed.default_message_time_to_live == timedelta(minutes=11)
        window = changed.duplicate_detection_history_time_window
        assert window == timedelta(minutes=12, seconds=3)
        assert (changed.max_size_in_megabytes, changed.user_metadata) == (3_072, "mine")
        assert (changed.enable_express, changed.support_ordering) == (True, False)
        assert changed.requires_duplicate_detection is False
    assert [each.name for each in admin.list_topics()] == ["txt/.-_123"]
    admin.delete_topic("txt/.-_123")
    with pytest.raises(ResourceNotFoundError):
        admin.get_topic("txt/.-_123")
    with pytest.raises(ResourceNotFoundError):
        admin.delete_topic("txt/.-_123")
    assert namespace.topics() == []


def test_what_a_topic_counts(
    admin: ServiceBusAdministrationClient, namespace: MemoryNamespace, topic: str
) -> None:
    namespace.all_counts[topic] = QueueCounts(scheduled=3, size_bytes=600)
    admin.create_subscription(topic, "all")
    admin.create_rule(topic, "all", "sql", filter=SqlRuleFilter("1=1"))
    admin.create_rule(topic, "all", "correlation", filter=CorrelationRuleFilter(label="a"))
    for counts in (
        admin.get_topic_runtime_properties(topic),
        *admin.list_topics_runtime_properties(),
    ):
        assert (counts.subscription_count, counts.scheduled_message_count) == (1, 3)
        assert counts.size_in_bytes == 600
        # the rule that every subscription has counts as SQL (semantics A §1.5)
        assert (counts.sql_filter_count, counts.correlation_filter_count) == (2, 1)
        assert counts.accessed_at_utc is not None


def test_older_versions_know_less_of_a_topic(port: int, topic: str) -> None:
    for version, size in ((ApiVersion.V2021_05, 256), (ApiVersion.V2017_04, None)):
        with administration_client(
            connection_string(port), api_version=version, retry_total=0
        ) as client:
            assert client.get_topic(topic).max_message_size_in_kilobytes == size
            assert client.get_topic_runtime_properties(topic).sql_filter_count is None
            assert [each.name for each in client.list_topics()] == [topic]
            with pytest.raises(HttpResponseError):
                client.create_topic("large", max_message_size_in_kilobytes=1_023)


def test_a_subscription_from_creation_to_deletion(
    admin: ServiceBusAdministrationClient, namespace: MemoryNamespace, topic: str
) -> None:
    made = admin.create_subscription(
        topic,
        "all",
        lock_duration=timedelta(seconds=13),
        dead_lettering_on_message_expiration=True,
        dead_lettering_on_filter_evaluation_exceptions=False,
        default_message_time_to_live="PT11M",
        max_delivery_count=14,
        auto_delete_on_idle="PT10M",
        user_metadata="mine",
    )
    assert (made.name, made.lock_duration) == ("all", timedelta(seconds=13))
    read = admin.get_subscription(topic, "all")
    assert (read.status, read.availability_status) == ("Active", "Available")
    assert read.dead_lettering_on_message_expiration is True
    assert read.dead_lettering_on_filter_evaluation_exceptions is False
    assert read.default_message_time_to_live == timedelta(minutes=11)
    assert read.auto_delete_on_idle == timedelta(minutes=10)
    assert (read.max_delivery_count, read.user_metadata) == (14, "mine")
    assert (read.requires_session, read.forward_to) == (False, None)

    admin.update_subscription(topic, read, lock_duration="PT3M3S", status="ReceiveDisabled")
    changed = admin.get_subscription(topic, "all")
    assert changed.lock_duration == timedelta(minutes=3, seconds=3)
    assert (changed.status, changed.max_delivery_count) == ("ReceiveDisabled", 14)

    admin.create_subscription(topic, "another")
    assert [each.name for each in admin.list_subscriptions(topic)] == ["all", "another"]
    namespace.all_counts[f"{topic}/all"] = QueueCounts(1, 2, 0, 4, 5)
    for counts in (
        admin.get_subscription_runtime_properties(topic, "all"),
        next(iter(admin.list_subscriptions_runtime_properties(topic))),
    ):
        assert (counts.active_message_count, counts.dead_letter_message_count) == (1, 2)
        assert counts.transfer_message_count == 4
        assert counts.transfer_dead_letter_message_count == 5
        assert counts.total_message_count == 12
        assert counts.created_at_utc is not None and counts.accessed_at_utc is not None
    admin.delete_subscription(topic, "all")
    with pytest.raises(ResourceNotFoundError):
        admin.get_subscription(topic, "all")


def test_forwarding(
    admin: ServiceBusAdministrationClient, port: int, topic: str, subscription: str
) -> None:
    admin.create_queue("Orders")
    made = admin.create_subscription(
        topic, "on", forward_to="orders", forward_dead_lettered_messages_to=f"sb://any/{topic}"
    )
    assert made.forward_to == f"sb://localhost:{port}/orders"
    read = admin.get_subscription(topic, "on")
    assert read.forward_dead_lettered_messages_to == f"sb://any/{topic}"
    admin.update_subscription(topic, read, forward_to=None)
    assert admin.get_subscription(topic, "on").forward_to is None

    # as the SDK's own live tests do, which also read the time back
    queue = admin.get_queue("Orders")
    admin.update_queue(
        queue, forward_to="Orders", auto_delete_on_idle="PT10M", max_delivery_count=11
    )
    changed = admin.get_queue("Orders")
    assert changed.forward_to == f"sb://localhost:{port}/Orders"
    assert changed.auto_delete_on_idle == timedelta(minutes=10)
    with pytest.raises(HttpResponseError, match="SubCode=40400") as refused:
        admin.create_queue("q", forward_to="absent")
    assert refused.value.status_code == 400


def test_rules_of_every_kind(
    admin: ServiceBusAdministrationClient,
    namespace: MemoryNamespace,
    topic: str,
    subscription: str,
) -> None:
    at = datetime(2020, 7, 5, 11, 12, 13)  # noqa: DTZ001 - as the SDK's own tests send it
    properties = {
        "text": "str1",
        "int": -2,
        "long": LONG,
        "flag": False,
        "double": 2.5,
        "at": at,
        "in Z": at.replace(tzinfo=UTC),
        "span": timedelta(days=1, hours=2, minutes=3),
        "ö <&>": "\"'<&>",
    }
    admin.create_rule(
        topic,
        subscription,
        "correlation",
        filter=CorrelationRuleFilter(correlation_id="c", label="l", properties=properties),  # type: ignore[arg-type]
        action=SqlRuleAction("SET at = @at", parameters={"@at": at}),
    )
    rule = admin.get_rule(topic, subscription, "Correlation")
    assert type(rule.filter) is CorrelationRuleFilter
    assert (rule.filter.correlation_id, rule.filter.label, rule.filter.to) == ("c", "l", None)
    assert rule.filter.properties == properties
    assert (rule.action.sql_expression, rule.action.parameters) == ("SET at = @at", {"@at": at})
    assert rule.created_at_utc is not None

    sql = SqlRuleFilter("a = @a AND b < @b", parameters={"@a": "x", "@b": 1})
    admin.create_rule(topic, subscription, "sql", filter=sql)
    rule = admin.get_rule(topic, subscription, "sql")
    assert type(rule.filter) is SqlRuleFilter and rule.action is None
    assert rule.filter.sql_expression == "a = @a AND b < @b"
    assert rule.filter.parameters == {"@a": "x", "@b": 1}
    held = namespace.subscription(topic, subscription).rule("sql")
    assert held is not None and held.filter == SqlFilter(
        "a = @a AND b < @b",
        {"@a": TypedValue(ValueType.STRING, "x"), "@b": TypedValue(ValueType.INT, "1")},
    )

    admin.create_rule(topic, subscription, "none", filter=FalseRuleFilter())
    assert type(admin.get_rule(topic, subscription, "none").filter) is FalseRuleFilter
    admin.create_rule(topic, subscription, "every")
    assert type(admin.get_rule(topic, subscription, "every").filter) is TrueRuleFilter

    names = [rule.name for rule in admin.list_rules(topic, subscription)]
    assert names == ["$Default", "correlation", "every", "none", "sql"]
    listed = next(r for r in admin.list_rules(topic, subscription) if r.name == "correlation")
    assert listed.filter.properties == properties


def test_a_rule_is_updated_and_deleted(
    admin: ServiceBusAdministrationClient,
    namespace: MemoryNamespace,
    topic: str,
    subscription: str,
) -> None:
    default = admin.get_rule(topic, subscription, "$Default")
    assert type(default.filter) is TrueRuleFilter
    default.filter = FalseRuleFilter()
    default.action = SqlRuleAction("SET a = 1")
    admin.update_rule(topic, subscription, default)
    changed = admin.get_rule(topic, subscription, "$Default")
    assert type(changed.filter) is FalseRuleFilter
    assert changed.action.sql_expression == "SET a = 1"
    assert changed.created_at_utc == default.created_at_utc
    admin.update_rule(topic, subscription, changed, action=None)
    [held] = namespace.subscription(topic, subscription).rules()
    assert (held.filter, held.action) == (FalseFilter(), None)
    admin.delete_rule(topic, subscription, "$Default")
    assert list(admin.list_rules(topic, subscription)) == []
    with pytest.raises(ResourceNotFoundError):
        admin.get_rule(topic, subscription, "$Default")


def test_refusals_are_the_sdks_own_exceptions(
    admin: ServiceBusAdministrationClient, topic: str, subscription: str
) -> None:
    with pytest.raises(ResourceExistsError):
        admin.create_topic(topic)
    with pytest.raises(ResourceExistsError):
        admin.create_queue(topic)
    with pytest.raises(ResourceExistsError):
        admin.create_subscription(topic, "ALL")
    with pytest.raises(ResourceExistsError):
        admin.create_rule(topic, subscription, "$default")
    for missing in (
        lambda: admin.get_subscription("absent", "all"),
        lambda: admin.delete_subscription("absent", "all"),
        lambda: admin.delete_rule(topic, "absent", "x"),
        lambda: admin.create_subscription("absent", "all"),
        lambda: admin.create_rule("absent", "all", "x"),
        lambda: list(admin.list_subscriptions("absent")),
        lambda: list(admin.list_rules(topic, "absent")),
    ):
        with pytest.raises(ResourceNotFoundError):
            missing()
    made = admin.create_subscription(topic, "sessions", requires_session=True)
    assert made.requires_session
    with pytest.raises(HttpResponseError, match="at least one property"):
        admin.create_rule(topic, subscription, "x", filter=CorrelationRuleFilter())
    rule = admin.get_rule(topic, subscription, "$Default")
    for name in ("absent", ""):
        rule.name = name
        with pytest.raises(HttpResponseError):
            admin.update_rule(topic, subscription, rule)
    read = admin.get_subscription(topic, subscription)
    with pytest.raises(HttpResponseError, match="maximum of '5' minutes"):
        admin.update_subscription(topic, read, lock_duration=timedelta(days=25))
    for name in ("absent", ""):
        read.name = name
        with pytest.raises(HttpResponseError):
            admin.update_subscription(topic, read)
