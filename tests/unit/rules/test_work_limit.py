"""No message stops everybody: rules take so many steps for it, and then they fail."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

import pytest

from postbus.amqp.sections import (
    Properties,
    encode_application_properties,
    encode_data,
    encode_properties,
)
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER
from postbus.broker.topic import COPIES_AT_ONCE, Copy
from postbus.messages.envelope import read_message
from postbus.model.rule import (
    CorrelationFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from postbus.namespace.rule_matcher import TopicRuleMatcher
from postbus.rules.matching import RuleSet
from postbus.rules.values import EvaluationFailed
from postbus.rules.work_limit import STEPS_MAX, TooMuchWork
from tests.support.topics import Place
from tests.unit.rules.samples import Sample, rule

LONG = "a" * 31_000

COSTLY = {
    "a pattern that almost fits": f"a LIKE '%{'a' * 900}b{{n}}%'",
    "a pattern with many gaps": f"a LIKE '%{'a_' * 400}b{{n}}%'",
    "a pattern with many parts": f"a LIKE '{'%a' * 450}%b{{n}}%'",
    "a pattern of the message": "a LIKE b + '{n}'",
    "texts of the message compared": " OR ".join(["b < a"] * 100) + " OR a = '{n}'",
    "texts of the message put together": "a" + " + 'x'" * 90 + " = '{n}'",
    "texts of the message in a list": f"a IN ({', '.join(['b'] * 200)}, '{{n}}')",
    "names of properties put together": " OR ".join(["p(a) = 1"] * 80) + " OR a = '{n}'",
    "numbers put together": "c" + " + c" * 90 + " = {n}",
    "ids made": " OR ".join(["newid() <> newid()"] * 36) + " OR c = {n}",
    "many tests": " OR ".join(f"c < {n}" for n in range(90)) + " OR c = -{n}",
    "many tests in twos": "(" * 70 + "c < 0" + " OR c < {n})" * 70,
    "a long list": "c NOT IN (" + ", ".join(map(str, range(1_000, 1_150))) + ", {n}) AND c < 0",
}


@pytest.mark.parametrize("sql", COSTLY.values(), ids=COSTLY.keys())
def test_what_takes_long_is_paid_for_whatever_it_is(sql: str) -> None:
    """Two thousand of them are allowed on a topic."""
    made = rule(sql.replace("{n}", "7"))
    facts = Sample({"a": LONG, "b": "a" * 900, "c": 1_000})
    with suppress(EvaluationFailed):
        made.selector.is_true(facts)
    assert 2_000 * facts.work.spent > STEPS_MAX, "two thousand of them end in time"


@pytest.mark.parametrize(("searched", "wanted"), [(2_400, 900), (29_000, 99), (31_000, 99)])
def test_a_text_that_is_compared_at_each_place_is_paid_for_each_time(
    searched: int, wanted: int
) -> None:
    """Python's search is linear only for some lengths of the two."""
    facts = Sample({"a": "a" * searched})
    with suppress(EvaluationFailed):
        rule(f"a LIKE '%{'a' * (wanted - 2)}ba%'").selector.is_true(facts)
    compared = searched * wanted // 2
    assert facts.work.spent > compared // 2_000, "characters that are compared in a step"


def test_two_thousand_usual_filters_have_room() -> None:
    rules = RuleSet()
    usual = rule("size > 7 AND kind LIKE 'order%' AND color <> 'red' AND weight < 1000 AND x = y")
    for owner in range(1, 2_001):
        rules.set_rules(owner, [usual])
    facts = Sample({"size": 9_999, "kind": "order-a", "color": "blue", "weight": 1, "x": 1, "y": 1})
    assert len(rules.match(facts)) == 2_000
    assert all(match.failure is None for match in rules.match(Sample(dict(facts.user))))


@pytest.mark.parametrize("correlated", [False, True])
def test_rules_that_were_not_asked_in_time_fail_and_the_others_count(correlated: bool) -> None:
    rules = RuleSet()
    wanted: Filter = CorrelationFilter(correlation_id="x") if correlated else SqlFilter("c > 0")
    selecting, last = rule(wanted), 100
    rules.set_rules(1, [selecting])
    for owner in range(2, last + 1):
        rules.set_rules(owner, [selecting._replace(name=f"r{n}") for n in range(STEPS_MAX // 100)])
    rules.set_rules(last + 1, [rule(TrueFilter())])
    matches = {match.owner: match for match in rules.match(Sample({"c": 1}, CorrelationId="x"))}
    assert len(matches) == last + 1, "each is told of"
    assert matches[1].plain and matches[1].failure is None
    assert matches[last + 1].plain and matches[last + 1].failure is None
    failed = [match for match in matches.values() if match.failure is not None]
    assert failed and isinstance(matches[last].failure, TooMuchWork)
    assert matches[last].failure.reason == "FilterException"


# -- actions -------------------------------------------------------------------------------------


def sorter_of(*actions: str | None, together: bool = False) -> TopicRuleMatcher:
    matcher = TopicRuleMatcher(lambda: UUID(int=0))
    rules = matcher.compile(
        [
            RuleDescription(f"r{n}", TrueFilter(), None if action is None else SqlAction(action))
            for n, action in enumerate(actions)
        ]
    )
    if together:
        matcher.set_rules(1, rules)
    else:
        for n, made in enumerate(rules):
            matcher.set_rules(n + 1, [made])
    return matcher


def message_with(**properties: object) -> Message:
    made = read_message(
        encode_properties(Properties(message_id="m"))
        + encode_application_properties(properties)
        + encode_data(b"tea"),
        1 << 20,
    )
    made.number = made.enqueue_number = 1
    made.enqueued_at = 1_700_000_000_000
    return made


def bytes_of(copies: list[Copy]) -> int:
    return sum(len(copy.properties or b"") + len(copy.annotations or b"") for copy in copies)


DOUBLING = "SET p0 = a; " + "; ".join(f"SET p{n + 1} = p{n} + p{n}" for n in range(30))
MANY = "; ".join(f"SET p{n} = a" for n in range(31))


@pytest.mark.parametrize("action", [DOUBLING, MANY], ids=["doubling", "many"])
def test_an_action_stops_at_the_limit_of_headers_before_there_is_a_copy(action: str) -> None:
    message = message_with(a="a" * 30_000)
    assert message.raw is not None
    copies, whole = sorter_of(*[action] * 60).copies(message, message.raw)
    assert whole and len(copies) == 60
    assert all(copy.too_large or copy.failure for copy in copies)
    assert bytes_of(copies) == 0


def test_a_copy_that_would_be_too_large_is_a_dead_letter_as_the_message_came() -> None:
    """R-DLQ-05, also where failures of filters are not kept."""
    matcher = sorter_of(MANY, "SET b = 1")
    place = Place(matcher=matcher)  # type: ignore[arg-type]
    place.policies = {1: Policy(dead_letter_on_filter_errors=False), 2: Policy()}
    place.crash()
    place.send_messages(message_with(a="a" * 30_000))
    [dead] = place.rows(1, DEAD_LETTER)
    assert dead.reason == "HeaderSizeExceeded" and dead.properties is None
    assert place.names(2) == ["m"]
    assert place.queue.ledger.size_bytes < 200_000


def test_copies_that_take_long_are_made_in_several_turns_each_once() -> None:
    matcher = sorter_of(*["SET b = 1"] * 20)
    place = Place(matcher=matcher)  # type: ignore[arg-type]
    place.policies = {owner: Policy() for owner in range(1, 21)}
    place.crash()
    place.send_messages(message_with(**{f"p{n}": n for n in range(3_000)}))
    slices = 0
    while place.spread_slice():
        slices += 1
        assert slices < 100
    assert slices > 3
    assert [place.names(owner) for owner in range(1, 21)] == [["m"]] * 20


def test_one_subscription_gets_no_more_copies_than_a_turn_can_make() -> None:
    """They are all made at once, so what is too much of them fails."""
    matcher = sorter_of(*["SET b = 1"] * 1_500, together=True)
    message = message_with(a="a" * 30_000)
    assert message.raw is not None
    copies, whole = matcher.copies(message, message.raw)
    assert whole and len(copies) < 500
    assert copies[-1].failure is not None and copies[-1].failure[0] == "RuleActionException"
    assert bytes_of(copies) < 8 << 20


def test_a_message_that_took_long_leaves_no_room_in_its_turn() -> None:
    matcher = TopicRuleMatcher(lambda: UUID(int=0))
    costly = [RuleDescription("r", SqlFilter(f"a LIKE '%b{n}%'")) for n in range(300)]
    for n, made in enumerate(matcher.compile(costly)):
        matcher.set_rules(n + 1, [made])
    place = Place(matcher=matcher)  # type: ignore[arg-type]
    place.policies = {owner: Policy() for owner in range(1, 301)}
    place.crash()
    topic = place.engine.topic
    assert topic is not None
    topic.begin_turn()
    for n in range(5):
        place.engine.send([message_with(a=LONG, n=n)], place.now)
    assert topic.room < 0 < COPIES_AT_ONCE
    assert topic.behind, "the others are kept for the next turn"
    assert place.engine.shared.take_toil() > 5_000
    assert place.engine.shared.take_toil() == 0
    place.commit()
