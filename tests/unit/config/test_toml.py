"""Our own file: queues, topics, subscriptions, rules, keys, and errors that name the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from postbus.config.content import Content, Queue, Subscription, Topic
from postbus.config.mistakes import ConfigError
from postbus.model.authorization import AuthorizationRule, Right
from postbus.model.description import (
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.rule import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from postbus.model.values import TypedValue, ValueType
from postbus.ops.config_file import NamespaceConfig, load_config
from tests.unit.config.files import load, load_toml

QUEUES = """
[namespace]
name = "shop"

[settings]
port = 6000

[queues."orders"]
lock_duration = "PT2M"
max_size_in_megabytes = 2048
status = "SendDisabled"
user_metadata = "the shop's"

[queues."eu/returns"]
"""


def test_queues(tmp_path: Path) -> None:
    path = tmp_path / "postbus.toml"
    path.write_text(QUEUES)
    defaults = QueueDescription(lock_duration_ms=15_000)
    assert load_config(path, defaults) == NamespaceConfig(
        name="shop",
        content=Content(
            queues=(
                Queue(
                    "orders",
                    QueueDescription(
                        lock_duration_ms=120_000,
                        max_size_mb=2_048,
                        status=EntityStatus.SEND_DISABLED,
                        user_metadata="the shop's",
                    ),
                ),
                Queue("eu/returns", defaults),
            )
        ),
        settings={"port": 6000},
    )


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, "", "empty.toml") == NamespaceConfig()


def test_topics_and_subscriptions(tmp_path: Path) -> None:
    text = """
    [topics.news]
    default_message_time_to_live = "P1D"
    [topics.news.subscriptions.all]
    [topics.news.subscriptions.eu]
    lock_duration = "PT5S"
    dead_lettering_on_filter_evaluation_exceptions = false
    forward_to = "archive"
    [topics.news.subscriptions.eu.rules]
    """
    defaults = QueueDescription(lock_duration_ms=15_000, max_message_size_kb=512)
    assert load_toml(tmp_path, text, defaults).topics == (
        Topic(
            "news",
            TopicDescription(default_ttl_ms=86_400_000, max_message_size_kb=512),
            (
                Subscription("all", SubscriptionDescription(lock_duration_ms=15_000), None),
                Subscription(
                    "eu",
                    SubscriptionDescription(
                        lock_duration_ms=5_000,
                        dead_lettering_on_filter_errors=False,
                        forward_to="archive",
                    ),
                    # The table is there and empty: no rule, so no message.
                    (),
                ),
            ),
        ),
    )


def rules(folder: Path, text: str) -> dict[str, RuleDescription]:
    head = "[topics.t.subscriptions.s.rules]\n"
    [topic] = load_toml(folder, head + text).topics
    return {rule.name: rule for rule in topic.subscriptions[0].rules or ()}


def test_a_rule_has_a_filter_and_an_action(tmp_path: Path) -> None:
    found = rules(
        tmp_path,
        """
        every = {}
        yes = { filter = true }
        no = { filter = false }
        sql = { filter = "amount > 10", action = "SET large = TRUE" }
        [topics.t.subscriptions.s.rules.parameters]
        filter = { sql = "amount > @least", parameters = { "@least" = 10 } }
        action = { sql = "SET seen = @when", parameters = { "@when" = 1.5 } }
        [topics.t.subscriptions.s.rules."$Default"]
        filter = { label = "x", reply_to = "", properties = { region = "eu" } }
        """,
    )
    assert found == {
        "every": RuleDescription("every"),
        "yes": RuleDescription("yes", TrueFilter()),
        "no": RuleDescription("no", FalseFilter()),
        "sql": RuleDescription("sql", SqlFilter("amount > 10"), SqlAction("SET large = TRUE")),
        "parameters": RuleDescription(
            "parameters",
            SqlFilter("amount > @least", {"@least": TypedValue(ValueType.INT, "10")}),
            SqlAction("SET seen = @when", {"@when": TypedValue(ValueType.DOUBLE, "1.5")}),
        ),
        "$Default": RuleDescription(
            "$Default",
            CorrelationFilter(
                label="x", reply_to="", properties={"region": TypedValue(ValueType.STRING, "eu")}
            ),
        ),
    }


@pytest.mark.parametrize(
    ("written", "kind", "text"),
    [
        ("'x'", ValueType.STRING, "x"),
        ("true", ValueType.BOOLEAN, "true"),
        ("-2147483648", ValueType.INT, "-2147483648"),
        ("2147483648", ValueType.LONG, "2147483648"),
        ("1e3", ValueType.DOUBLE, "1000.0"),
        ("-inf", ValueType.DOUBLE, "-INF"),
        ("nan", ValueType.DOUBLE, "NaN"),
        ("{ type = 'long', text = '7' }", ValueType.LONG, "7"),
        ("{ type = 'duration', text = 'PT1M' }", ValueType.DURATION, "PT1M"),
        (
            "{ type = 'dateTime', text = '2020-01-31T08:00:00Z' }",
            ValueType.DATE_TIME,
            "2020-01-31T08:00:00Z",
        ),
    ],
)
def test_a_value_has_the_type_it_is_written_in_or_names_one(
    tmp_path: Path, written: str, kind: ValueType, text: str
) -> None:
    found = rules(tmp_path, f"r = {{ filter = {{ properties = {{ p = {written} }} }} }}")
    assert found["r"].filter == CorrelationFilter(properties={"p": TypedValue(kind, text)})


def test_the_namespace_may_have_keys_of_its_own(tmp_path: Path) -> None:
    key = "A" * 43 + "="
    text = f"""
    [[namespace.authorization_rules]]
    key_name = "sender"
    rights = ["Send"]
    primary_key = "{key}"
    """
    config = load(tmp_path, text, "postbus.toml")
    assert config.authorization_rules == (AuthorizationRule("sender", (Right.SEND,), key),)


def test_queues_and_topics_may_have_authorization_rules(tmp_path: Path) -> None:
    text = """
    [[queues.orders.authorization_rules]]
    key_name = "worker"
    rights = ["Listen"]
    [topics.news]
    authorization_rules = [{ key_name = "press", rights = ["Send"] }]
    """
    content = load_toml(tmp_path, text)
    [queue], [topic] = content.queues, content.topics
    assert queue.description.authorization_rules == (AuthorizationRule("worker", (Right.LISTEN,)),)
    assert topic.description.authorization_rules == (AuthorizationRule("press", (Right.SEND,)),)


RULE = '[topics."t".subscriptions."s".rules."r"]'


def rule(text: str) -> str:
    return f"[topics.t.subscriptions.s.rules.r]\n{text}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[queues", "not valid TOML"),
        ("[namespace]\nname = " + "9" * 5_000, "not valid TOML"),
        ("[queue.orders]", "queue: there is no such key; did you mean 'queues'?"),
        ("[namespace]\nnme = 'x'", "[namespace] nme: there is no such key"),
        ("[namespace]\nname = 1", "[namespace] name: must be text, not 1"),
        ("settings = 1", "[settings]: must be a table"),
        ("queues = ['orders']", "[queues]: must be a table of tables"),
        ("topics = 1", "[topics]: must be a table of tables"),
        ("[queues]\norders = 1", '[queues."orders"]: must be a table, not 1'),
        ("[queues.orders]\nlock = 1", '[queues."orders"] lock: there is no such key'),
        ("[queues.orders]\nlock_duration = 60", '[queues."orders"] lock_duration: must be a durat'),
        ("[queues.orders]\nrequires_session = true\nforward_to = 'x'", "'ForwardTo' cannot be set"),
        (
            "[queues.orders]\nenable_partitioning = true\nforward_to = 'x'",
            "partitioned entities yet",
        ),
        ("[queues.orders]\nmax_message_size_in_kilobytes = 1", "must be between 1024 and 102400"),
        ("[queues.'a b']", "disallowed characters"),
        ("[queues.A]\n[queues.a]", "[queues.\"a\"]: the entity 'a' is there already"),
        (
            "[queues.a]\n[topics.A]",
            '[topics."A"]: the entity \'A\' is there already, at [queues."a',
        ),
        (
            "[[queues.a.authorization_rules]]\nrights = []",
            '[queues."a"]: An authorization rule has',
        ),
        ("[topics.t]\nlock_duration = 'PT1M'", '[topics."t"] lock_duration: there is no such key'),
        ("[topics.t]\nsubscriptions = 1", '[topics."t"] subscriptions: must be a table'),
        (
            "[topics.t.subscriptions.'a/b']",
            '[topics."t".subscriptions."a/b"]: \'URI_PATH\' contains',
        ),
        (
            "[topics.t.subscriptions.s]\ndefault_rule_description = 1",
            '[topics."t".subscriptions."s"] default_rule_description: there is no such key',
        ),
        ("[topics.t.subscriptions.s]\nrules = []", '"s"] rules: must be a table, not []'),
        ("[topics.t.subscriptions.s.rules]\na = {}\nA = {}", "the rule 'A' is there already"),
        (rule("filtr = 1"), f"{RULE} filtr: there is no such key; did you mean 'filter'?"),
        (rule("filter = 1"), f"{RULE} filter: must be an SQL text, a table, true or false, not 1"),
        (rule("filter = 'a ='"), f"{RULE}: "),
        (rule("filter = ''"), f"{RULE}: The SQL expression of the filter is empty."),
        (rule("filter = { sql = 1 }"), f"{RULE} filter sql: must be text, not 1"),
        (rule("filter = { parameters = {} }"), f"{RULE} filter sql: is missing"),
        (
            rule("filter = { sql = '1=1', label = 'x' }"),
            f"{RULE} filter label: there is no such key",
        ),
        (
            rule("filter = { lable = 'x' }"),
            "filter lable: there is no such key; did you mean 'label'",
        ),
        (rule("filter = { label = 1 }"), f"{RULE} filter label: must be text, not 1"),
        (rule("filter = {}"), f"{RULE}: A correlation filter must have at least one property"),
        (
            rule("filter = { properties = { a = 2020-01-31 } }"),
            f"{RULE} filter properties 'a': must be text, a number, true or false, or a table",
        ),
        (
            rule("filter = { properties = { a = { type = 'int', text = 'x' } } }"),
            f"{RULE} filter properties 'a': The value 'x' is not of the type 'int'.",
        ),
        (rule("action = true"), f"{RULE} action: must be an SQL text or a table, not True"),
        (rule("action = 'DROP x'"), f"{RULE}: "),
    ],
)
def test_what_is_wrong_in_our_own_file_is_named_with_its_key(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text, "postbus.toml")
    assert problem in str(refused.value)
