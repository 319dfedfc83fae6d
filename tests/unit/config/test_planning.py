"""What differs between a file and a namespace, and in which order that is mended."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from postbus.config.content import Content, Queue, Subscription, Topic
from postbus.config.mistakes import ConfigMistake
from postbus.config.planning import Limits, Plan, make_plan
from postbus.config.steps import Change, StepReport, Verb
from postbus.model.authorization import AuthorizationRule, Right
from postbus.model.description import (
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.rule import RuleDescription, SqlAction, SqlFilter
from tests.unit.config.files import emulator, load, load_toml

LIMITS = Limits(100, 10, 10, 10)
KEY = "A" * 43 + "="
OTHER_KEY = "B" * 43 + "="


def plan(
    wanted: Content, present: Content, *, prune: bool = False, limits: Limits = LIMITS
) -> Plan:
    return make_plan(wanted, present, limits, prune=prune)


def told(result: Plan) -> list[str]:
    return [line for step in (*result.steps, *result.left) for line in StepReport.of(step).lines()]


def queues(*names: str) -> Content:
    return Content(tuple(Queue(name, QueueDescription()) for name in names))


NEWS = Content(
    topics=(
        Topic(
            "news",
            TopicDescription(),
            (
                Subscription("all", SubscriptionDescription(), (RuleDescription(),)),
                Subscription(
                    "eu", SubscriptionDescription(), (RuleDescription("r", SqlFilter("a = 1")),)
                ),
            ),
        ),
    )
)


def test_nothing_differs_from_itself(tmp_path: Path) -> None:
    text = """
    [queues.orders]
    forward_to = "news"
    [topics.news]
    [topics.news.subscriptions.all]
    [topics.news.subscriptions.eu.rules]
    r = { filter = "a = 1", action = "SET b = 2" }
    """
    wanted = load_toml(tmp_path, text)
    [topic] = wanted.topics
    everything = replace(topic.subscriptions[0], rules=(RuleDescription(created_at=7),))
    there = replace(topic, subscriptions=(everything, topic.subscriptions[1]))
    assert plan(wanted, replace(wanted, topics=(there,))) == Plan((), ())


def test_what_is_missing_is_created_from_the_outside_in(tmp_path: Path) -> None:
    text = """
    [topics.news]
    [topics.news.subscriptions.eu]
    forward_to = "orders"
    [topics.news.subscriptions.eu.rules.a]
    filter = "a = 1"
    [queues.orders]
    """
    result = plan(load_toml(tmp_path, text), Content())
    assert told(result) == [
        "+ create queue orders",
        "+ create topic news",
        "+ create subscription news/Subscriptions/eu",
    ]
    assert [rule.name for rule in result.steps[-1].rules] == ["a"]


def test_a_new_subscription_of_which_no_rules_are_said_takes_everything(tmp_path: Path) -> None:
    result = plan(load_toml(tmp_path, "[topics.news.subscriptions.all]"), Content())
    assert result.steps[-1].rules == (RuleDescription(),)


def test_a_field_that_differs_is_shown_before_and_after(tmp_path: Path) -> None:
    wanted = load_toml(
        tmp_path,
        """
        [queues.orders]
        lock_duration = "PT1M"
        default_message_time_to_live = "PT1H"
        max_delivery_count = 3
        forward_to = "orders"
        """,
    )
    there = QueueDescription(
        status=EntityStatus.DISABLED, user_metadata="hers", max_delivery_count=3
    )
    result = plan(wanted, Content((Queue("Orders", there),)))
    assert told(result) == [
        "~ change queue Orders",
        '    lock_duration: "PT30S" → "PT1M"',
        '    default_message_time_to_live: "P10675199DT2H48M5.4775807S" → "PT1H"',
        '    status: "Disabled" → "Active"',
        '    forward_to: none → "Orders"',
        '    user_metadata: "hers" → none',
    ]
    [step] = result.steps
    expected = QueueDescription(
        lock_duration_ms=60_000, default_ttl_ms=3_600_000, max_delivery_count=3, forward_to="Orders"
    )
    assert step.description == expected


def test_a_format_does_not_undo_what_it_has_no_word_for(tmp_path: Path) -> None:
    wanted = load(tmp_path, emulator({"Name": "orders"})).content
    there = QueueDescription(
        lock_duration_ms=30_000, status=EntityStatus.DISABLED, max_size_mb=5_120, user_metadata="x"
    )
    [step] = plan(wanted, Content((Queue("orders", there),))).steps
    assert step.changes == (Change("lock_duration", '"PT30S"', '"PT1M"'),)
    assert step.description == replace(there, lock_duration_ms=60_000)


def test_a_setting_of_the_size_of_messages_changes_no_entity(tmp_path: Path) -> None:
    wanted = load_toml(tmp_path, "[queues.orders]", QueueDescription(max_message_size_kb=512))
    assert plan(wanted, queues("orders")) == Plan((), ())


def test_a_file_gives_an_entity_a_size_of_messages(tmp_path: Path) -> None:
    wanted = load_toml(tmp_path, "[queues.orders]\nmax_message_size_in_kilobytes = 2048")
    [step] = plan(wanted, queues("orders")).steps
    assert step.changes == (Change("max_message_size_in_kilobytes", "none", "2048"),)
    large = Content((Queue("orders", QueueDescription(max_message_size_kb=2_048)),))
    assert plan(wanted, large) == Plan((), ())
    # As with any other field, our own file decides by leaving it out too.
    [step] = plan(load_toml(tmp_path, "[queues.orders]"), large).steps
    assert step.description == QueueDescription()


@pytest.mark.parametrize("destination", ["target", "sb://host/Target", "https://other/TARGET"])
def test_the_spelling_of_a_destination_is_no_change(tmp_path: Path, destination: str) -> None:
    """It is given back as a client wrote it; a file says where messages go."""
    there = QueueDescription(forward_to="target", forward_to_sent="amqps://Any.Host/Target")
    present = Content((Queue("orders", there), Queue("target", QueueDescription())))
    wanted = load_toml(tmp_path, f"[queues.orders]\nforward_to = '{destination}'\n[queues.target]")
    assert plan(wanted, present) == Plan((), ())


def test_keys_that_the_file_does_not_mention_stay(tmp_path: Path) -> None:
    rule = AuthorizationRule("worker", (Right.LISTEN,), KEY, KEY, 1, 1)
    there = Content((Queue("orders", QueueDescription(authorization_rules=(rule,))),))
    assert plan(load_toml(tmp_path, "[queues.orders]"), there) == Plan((), ())
    head = "[[queues.orders.authorization_rules]]\nkey_name = 'worker'\n"
    same = load_toml(tmp_path, head + "rights = ['Listen']")
    assert plan(same, there) == Plan((), ())


def test_keys_are_not_shown(tmp_path: Path) -> None:
    rule = AuthorizationRule("worker", (Right.LISTEN,), KEY, KEY, 1, 1)
    there = Content((Queue("orders", QueueDescription(authorization_rules=(rule,))),))
    head = "[[queues.orders.authorization_rules]]\nkey_name = 'worker'\n"
    other = load_toml(tmp_path, f"{head}rights = ['Listen']\nprimary_key = '{OTHER_KEY}'")
    shown = '[{ key_name = "worker", rights = ["Listen"] }]'
    result = plan(other, there)
    assert told(result)[1:] == [f"    authorization_rules: {shown} → {shown} with other keys"]
    [step] = result.steps
    assert isinstance(step.description, QueueDescription)
    [settled] = step.description.authorization_rules
    assert settled.keys == (OTHER_KEY, KEY)


def test_rules_are_compared_one_by_one(tmp_path: Path) -> None:
    text = """
    [topics.news.subscriptions.all]
    [topics.news.subscriptions.eu.rules]
    R = { filter = "a = 2", action = "SET b = 1" }
    new = { filter = { label = "x" } }
    """
    result = plan(load_toml(tmp_path, text), NEWS)
    assert told(result) == [
        "~ change rule news/Subscriptions/eu/Rules/R",
        '    filter: "a = 1" → "a = 2"',
        '    action: none → "SET b = 1"',
        "+ create rule news/Subscriptions/eu/Rules/new",
    ]
    changed = RuleDescription("R", SqlFilter("a = 2"), SqlAction("SET b = 1"))
    assert result.steps[0].rules == (changed,)


def test_what_is_not_in_the_file_is_left_unless_it_is_to_be_pruned(tmp_path: Path) -> None:
    wanted = load_toml(tmp_path, "[topics.news.subscriptions.eu.rules]\n[queues.new]")
    there = replace(NEWS, queues=queues("old").queues)
    assert told(plan(wanted, there)) == [
        "+ create queue new",
        "= leave rule news/Subscriptions/eu/Rules/r (not in the file)",
        "= leave subscription news/Subscriptions/all (not in the file)",
        "= leave queue old (not in the file)",
    ]
    assert told(plan(wanted, there, prune=True)) == [
        "+ create queue new",
        "- delete rule news/Subscriptions/eu/Rules/r",
        "- delete subscription news/Subscriptions/all",
        "- delete queue old",
    ]


def test_rules_of_which_the_file_says_nothing_are_not_pruned(tmp_path: Path) -> None:
    wanted = load_toml(tmp_path, "[topics.news.subscriptions]\nall = {}\neu = {}")
    assert plan(wanted, NEWS, prune=True) == Plan((), ())


def test_destinations_come_before_those_that_forward_to_them(tmp_path: Path) -> None:
    names = [f"q{number:04d}" for number in range(2_000)]
    chain = "\n".join(f"[queues.{name}]\nforward_to = '{after}'" for name, after in pairwise(names))
    wanted = load_toml(tmp_path, chain + "\n[queues.q1999]")
    result = plan(wanted, Content(), limits=replace(LIMITS, entities_max=5_000))
    assert [step.entity for step in result.steps] == names[::-1]


def test_a_circle_has_no_first(tmp_path: Path) -> None:
    text = """
    [queues.a]
    forward_to = "b"
    [queues.b]
    forward_to = "c"
    forward_dead_lettered_messages_to = "b"
    [queues.c]
    forward_to = "a"
    [queues.d]
    forward_to = "a"
    """
    result = plan(load_toml(tmp_path, text), Content())
    assert [step.entity for step in result.steps] == ["c", "b", "a", "d"]


def test_a_destination_is_in_the_file_or_in_the_namespace(tmp_path: Path) -> None:
    wanted = load_toml(tmp_path, "[queues.a]\nforward_to = 'OLD'")
    [step] = plan(wanted, queues("old")).steps
    assert isinstance(step.description, QueueDescription)
    assert step.description.forward_to == "old"
    place = r'\[queues."a"\] forward_to: there is no queue or topic \'OLD\' to forward to'
    with pytest.raises(ConfigMistake, match=place):
        plan(wanted, Content())
    with pytest.raises(ConfigMistake, match=place):
        plan(wanted, queues("old"), prune=True)
    properties = {"ForwardDeadLetteredMessagesTo": "nowhere"}
    theirs = load(tmp_path, emulator({"Name": "a", "Properties": properties})).content
    with pytest.raises(
        ConfigMistake, match=r"Queues\[0\].Properties.ForwardDeadLetteredMessagesTo: there"
    ):
        plan(theirs, Content())


def test_a_name_is_of_one_kind(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigMistake, match=r'\[topics."A"\]: the namespace has a queue of this name'
    ):
        plan(load_toml(tmp_path, "[topics.A]"), queues("a"))
    with pytest.raises(
        ConfigMistake, match=r'\[queues."News"\]: the namespace has a topic of this name'
    ):
        plan(load_toml(tmp_path, "[queues.News]"), NEWS)


@pytest.mark.parametrize(
    ("text", "limits", "problem"),
    [
        ("[queues]\na={}\nb={}", replace(LIMITS, entities_max=2), "there would be 3 queues and"),
        (
            "[topics.news.subscriptions]\nx={}",
            replace(LIMITS, subscriptions_max=2),
            "3 subscriptions; a topic may have 2",
        ),
        (
            "[topics.news.subscriptions]\nx={}",
            replace(LIMITS, sql_filters_max=2),
            "3 SQL filters; a topic may have 2",
        ),
        (
            "[topics.news.subscriptions.x.rules]\na={filter={label='x'}}",
            replace(LIMITS, correlation_filters_max=0),
            "1 correlation filters; a topic may have 0",
        ),
    ],
)
def test_more_than_there_may_be_is_known_before_the_first_step(
    tmp_path: Path, text: str, limits: Limits, problem: str
) -> None:
    with pytest.raises(ConfigMistake, match=problem):
        plan(load_toml(tmp_path, text), NEWS, limits=limits)


def test_a_step_is_told_the_same_after_a_journey_as_json() -> None:
    step = StepReport(Verb.CHANGE, "queue", "orders", (Change("status", '"Active"', '"Disabled"'),))
    assert StepReport.from_json(step.to_json()) == step


def test_what_is_fixed_at_creation_is_not_changed_by_a_file(tmp_path: Path) -> None:
    # R-PART-09
    wanted = load_toml(tmp_path, "[queues.orders]\nrequires_session = true")
    with pytest.raises(
        ConfigMistake, match=r"queues.*RequiresSession property of an existing Queue"
    ):
        plan(wanted, queues("orders"))
    present = Content((Queue("orders", QueueDescription(requires_session=True)),))
    assert plan(wanted, present).steps == ()
