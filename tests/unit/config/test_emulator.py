"""The emulator's Config.json: everything it can say, and errors that name the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from postbus.config.content import Queue, Subscription, Topic
from postbus.config.emulator import LOCK_DURATION_MS
from postbus.config.mistakes import ConfigError
from postbus.model.description import QueueDescription, SubscriptionDescription, TopicDescription
from postbus.model.rule import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from postbus.model.values import TypedValue, ValueType
from tests.unit.config.files import QUEUE_PROPERTIES, emulator, load, with_rule, with_subscription


def rule_of(folder: Path, **properties: Any) -> RuleDescription:
    [topic] = load(folder, with_rule(**properties)).content.topics
    [rule] = topic.subscriptions[0].rules or ()
    return rule


def test_queues_as_the_emulator_describes_them(tmp_path: Path) -> None:
    text = emulator({"Name": "queue.1", "Properties": QUEUE_PROPERTIES}, {"Name": "queue.2"})
    config = load(tmp_path, text)
    assert config.name == "sbemulatorns"
    assert config.settings == {}
    assert config.content.queues == (
        Queue(
            "queue.1",
            QueueDescription(
                dead_lettering_on_expiration=True,
                default_ttl_ms=3_600_000,
                duplicate_window_ms=20_000,
                lock_duration_ms=60_000,
                max_delivery_count=3,
                forward_dead_letters_to="queue.2",
            ),
        ),
        Queue("queue.2", QueueDescription(lock_duration_ms=60_000)),
    )


def test_topics_and_subscriptions_as_the_emulator_describes_them(tmp_path: Path) -> None:
    topic = {
        "Name": "topic.1",
        "Properties": {
            "DefaultMessageTimeToLive": "PT1H",
            "DuplicateDetectionHistoryTimeWindow": "PT20S",
            "RequiresDuplicateDetection": False,
        },
        "Subscriptions": [
            {
                "Name": "subscription.1",
                "Properties": {
                    "DeadLetteringOnMessageExpiration": True,
                    "DefaultMessageTimeToLive": "PT30M",
                    "LockDuration": "PT2M",
                    "MaxDeliveryCount": 4,
                    "ForwardDeadLetteredMessagesTo": "",
                    "ForwardTo": "queue.1",
                    "RequiresSession": False,
                },
            },
            {"Name": "subscription.2", "Rules": []},
        ],
    }
    config = load(tmp_path, emulator({"Name": "queue.1"}, Topics=[topic]))
    assert config.content.topics == (
        Topic(
            "topic.1",
            TopicDescription(default_ttl_ms=3_600_000, duplicate_window_ms=20_000),
            (
                Subscription(
                    "subscription.1",
                    SubscriptionDescription(
                        dead_lettering_on_expiration=True,
                        default_ttl_ms=1_800_000,
                        lock_duration_ms=120_000,
                        max_delivery_count=4,
                        forward_to="queue.1",
                    ),
                ),
                # An empty list is as none, as it is to the emulator: everything comes in.
                Subscription("subscription.2", SubscriptionDescription(lock_duration_ms=60_000)),
            ),
        ),
    )


def test_a_correlation_filter_has_system_properties_and_others(tmp_path: Path) -> None:
    system = {
        "ContentType": "application/text",
        "CorrelationId": "id1",
        "Label": "subject1",
        "MessageId": "msgid1",
        "ReplyTo": "someQueue",
        "ReplyToSessionId": "sessionId",
        "SessionId": "session1",
        "To": "xyz",
    }
    properties = {"text": "value1", "small": 7, "large": 1 << 40, "half": 0.5, "yes": True}
    rule = rule_of(
        tmp_path,
        FilterType="Correlation",
        CorrelationFilter={**system, "Properties": properties},
    )
    assert rule.filter == CorrelationFilter(
        content_type="application/text",
        correlation_id="id1",
        label="subject1",
        message_id="msgid1",
        reply_to="someQueue",
        reply_to_session_id="sessionId",
        session_id="session1",
        to="xyz",
        properties={
            "text": TypedValue(ValueType.STRING, "value1"),
            "small": TypedValue(ValueType.INT, "7"),
            "large": TypedValue(ValueType.LONG, "1099511627776"),
            "half": TypedValue(ValueType.DOUBLE, "0.5"),
            "yes": TypedValue(ValueType.BOOLEAN, "true"),
        },
    )


def test_an_sql_filter_may_have_an_action(tmp_path: Path) -> None:
    expression = "sys.MessageId = '123456' AND userProp1 = 'value1'"
    rule = rule_of(
        tmp_path,
        FilterType="Sql",
        SqlFilter={"SqlExpression": expression},
        Action={"SqlExpression": "SET sys.To = 'Entity'"},
    )
    assert rule == RuleDescription("r", SqlFilter(expression), SqlAction("SET sys.To = 'Entity'"))


@pytest.mark.parametrize(("text", "chosen"), [("1=1", TrueFilter()), ("1=0", FalseFilter())])
def test_everything_and_nothing_have_an_sql_text(tmp_path: Path, text: str, chosen: object) -> None:
    assert rule_of(tmp_path, FilterType="Sql", SqlFilter={"SqlExpression": text}).filter == chosen


def test_locks_last_a_minute_under_the_emulators_file(tmp_path: Path) -> None:
    # R-SETTLE-06
    defaults = QueueDescription(lock_duration_ms=10_000, max_message_size_kb=512)
    config = load(tmp_path, emulator({"Name": "q"}), defaults=defaults)
    [queue] = config.content.queues
    assert queue.description.lock_duration_ms == LOCK_DURATION_MS == 60_000
    assert queue.description.max_message_size_kb == 512
    assert config.default_lock_duration_ms == 60_000


def test_time_spans_of_dotnet_are_read_too(tmp_path: Path) -> None:
    config = load(tmp_path, emulator({"Name": "q", "Properties": {"LockDuration": "00:00:45"}}))
    assert config.content.queues[0].description.lock_duration_ms == 45_000


def logging(value: object) -> str:
    document = json.loads(emulator())
    document["UserConfig"]["Logging"] = value
    return json.dumps(document)


EVERYTHING = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=1"}}
QUEUE_0 = "UserConfig.Namespaces[0].Queues[0]"
TOPIC_0 = "UserConfig.Namespaces[0].Topics[0]"
RULE_0 = f"{TOPIC_0}.Subscriptions[0].Rules[0].Properties"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "line 1, column 2"),
        ("{\n 'UserConfig': {}}", "line 2, column 2"),
        ("[]", "must be a table"),
        ("{}", "UserConfig: is missing"),
        ('{"userConfig": {}}', "userConfig: there is no such key; did you mean 'UserConfig'?"),
        ('{"UserConfig": {}}', "UserConfig.Namespaces: is missing"),
        ('{"UserConfig": {"Namespaces": []}}', "must hold one namespace, not 0"),
        ('{"UserConfig": {"Namespaces": [{}]}}', "UserConfig.Namespaces[0].Name: is missing"),
        ('{"UserConfig": {}, "UserConfig": {}}', "the key 'UserConfig' is there twice"),
        ("[" * 100_000, "nested too deeply"),
        ("[" + "9" * 5_000 + "]", "not valid JSON"),
        ('{"UserConfig": NaN}', "not valid JSON: NaN"),
        (logging({"Type": "Syslog"}), "UserConfig.Logging.Type: must be one of File; Console;"),
        (logging({}), "UserConfig.Logging.Type: is missing"),
        (logging({"Level": "x"}), "UserConfig.Logging.Level: there is no such key"),
        (emulator(Name="\ud800"), "Namespaces[0].Name: has a character that XML cannot hold"),
        (emulator({"Nme": "q"}), f"{QUEUE_0}.Nme: there is no such key; did you mean 'Name'?"),
        (emulator({}), f"{QUEUE_0}.Name: is missing"),
        (emulator({"Name": 7}), f"{QUEUE_0}.Name: must be text, not 7"),
        (emulator({"Name": "a b"}), f"{QUEUE_0}.Name: 'URI_PATH' contains disallowed characters"),
        (emulator({"Name": "q"}, {"Name": "Q"}), "Queues[1]: the entity 'Q' is there already"),
        (
            emulator({"Name": "q"}, Topics=[{"Name": "q"}]),
            f"{TOPIC_0}: the entity 'q' is there already, at {QUEUE_0}",
        ),
        (emulator("q"), f"{QUEUE_0}: must be a table, not 'q'"),
        (
            emulator({"Name": "q", "Properties": {"LockDuratoin": "PT1M"}}),
            f"{QUEUE_0}.Properties.LockDuratoin: there is no such key; did you mean 'LockDurati",
        ),
        (
            emulator({"Name": "q", "Properties": {"LockDuration": "1 minute"}}),
            f"{QUEUE_0}.Properties.LockDuration: '1 minute' is not a time span",
        ),
        (
            emulator({"Name": "q", "Properties": {"MaxDeliveryCount": "3"}}),
            f"{QUEUE_0}.Properties.MaxDeliveryCount: must be a whole number, not '3'",
        ),
        (
            emulator({"Name": "q", "Properties": {"RequiresSession": True, "ForwardTo": "r"}}),
            f"{QUEUE_0}.Properties: The property 'ForwardTo' cannot be set",
        ),
        (
            emulator({"Name": "q", "Properties": {"ForwardTo": "other/$management"}}),
            f"{QUEUE_0}.Properties: The property 'ForwardTo' must name a queue or a topic",
        ),
        (
            emulator({"Name": "q", "Properties": {"LockDuration": "PT6M"}}),
            "maximum of '5' minutes. Parameter name: LockDuration Actual value was 00:06:00.",
        ),
        (
            emulator(Topics=[{"Name": "t", "Properties": {"RequiresDuplicateDetection": 1}}]),
            f"{TOPIC_0}.Properties.RequiresDuplicateDetection: must be true or false, not 1",
        ),
        (
            emulator(Topics=[{"Name": "t", "Properties": {"LockDuration": "PT1M"}}]),
            f"{TOPIC_0}.Properties.LockDuration: there is no such key",
        ),
        (emulator(Topics=[{"Name": "t", "Subscriptions": {}}]), f"{TOPIC_0}.Subscriptions: must"),
        (with_subscription(Name="a/b"), f"{TOPIC_0}.Subscriptions[0].Name: 'URI_PATH' contains"),
        (
            with_subscription(Properties={"RequiresSession": True, "ForwardTo": "r"}),
            f"{TOPIC_0}.Subscriptions[0].Properties: The property 'ForwardTo' cannot be set",
        ),
        (
            emulator(Topics=[{"Name": "t", "Subscriptions": [{"Name": "a"}, {"Name": "A"}]}]),
            f"{TOPIC_0}.Subscriptions[1]: the subscription 'A' is there already",
        ),
        (with_subscription(Rules=[{"Name": "r"}]), f"{RULE_0}: is missing"),
        (with_rule(), f"{RULE_0}.FilterType: is missing"),
        (
            with_rule(FilterType="SqlFilter"),
            f"{RULE_0}.FilterType: must be Correlation or Sql, not",
        ),
        (with_rule(FilterType="Sql"), f"{RULE_0}.SqlFilter: is missing"),
        (
            with_rule(FilterType="Sql", SqlFilter={}),
            f"{RULE_0}.SqlFilter.SqlExpression: is missing",
        ),
        (
            with_rule(FilterType="Sql", SqlExpression="1=1"),
            f"{RULE_0}.SqlExpression: there is no such key",
        ),
        (
            with_rule(FilterType="Sql", SqlFilter={"SqlExpression": "a ="}),
            f"{RULE_0}: ",
        ),
        (
            with_rule(FilterType="Sql", CorrelationFilter={"Label": "x"}),
            f"{RULE_0}.CorrelationFilter: the FilterType of this rule is Sql",
        ),
        (
            with_rule(FilterType="Correlation", CorrelationFilter={}),
            f"{RULE_0}: A correlation filt",
        ),
        (
            with_rule(FilterType="Correlation", CorrelationFilter={"Subject": "x"}),
            f"{RULE_0}.CorrelationFilter.Subject: there is no such key",
        ),
        (
            with_rule(FilterType="Correlation", CorrelationFilter={"Properties": {"a": [1]}}),
            f"{RULE_0}.CorrelationFilter.Properties.a: must be text, a number, true or false, not",
        ),
        (
            with_rule(
                FilterType="Sql", SqlFilter={"SqlExpression": "1=1"}, Action={"SqlExpression": "x"}
            ),
            f"{RULE_0}: ",
        ),
        (
            with_subscription(Rules=[{"Name": name, "Properties": EVERYTHING} for name in "rR"]),
            "Rules[1]: the rule 'R' is there already",
        ),
    ],
)
def test_what_is_wrong_in_an_emulators_file_is_named_with_its_place(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text)
    assert problem in str(refused.value)
    assert str(refused.value).startswith(f"{tmp_path}/Config.json: ")
