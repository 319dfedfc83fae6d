"""Who gets a message of a topic: copies, order, failures, and what is not evaluated at all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import pytest

from postbus.model.rule import CorrelationFilter, FalseFilter
from postbus.rules.facts import Facts
from postbus.rules.matching import Match, RuleSet
from postbus.rules.rule import Rule
from postbus.rules.values import EvaluationFailed, Value
from tests.unit.rules.samples import Sample, rule


class Untouched:
    """A message that nobody may look at."""

    @property
    def user(self) -> Mapping[str, Value]:
        raise AssertionError("the application properties were read")

    def spend(self, steps: int) -> None:
        raise AssertionError("a rule was evaluated")

    def system(self, name: str) -> Value:
        raise AssertionError(f"{name} was read")


def rules_of(owners: dict[int, list[Rule]]) -> RuleSet:
    made = RuleSet()
    for owner, rules in owners.items():
        made.set_rules(owner, _named_apart(rules))
    return made


def _named_apart(rules: list[Rule]) -> list[Rule]:
    """Rules of one subscription have names of their own."""
    names = [one.name for one in rules]
    return [
        one if names.index(one.name) == n else one._replace(name=f"{one.name} {n}")
        for n, one in enumerate(rules)
    ]


def copies(made: RuleSet, facts: Facts) -> list[tuple[int, bool, list[str]]]:
    """Owner, whether it gets a plain copy, and the rules that make others."""
    return [
        (match.owner, match.plain, [name for name, _ in match.actions])
        for match in made.match(facts)
    ]


def asked(made: RuleSet, facts: Sample) -> int:
    """How many rules a message makes us evaluate."""
    return len(list(made._candidates(facts)))


def test_a_topic_without_subscriptions_matches_nothing() -> None:
    assert list(RuleSet().match(Untouched())) == []


def test_true_rules_are_answered_without_a_look_at_the_message() -> None:
    made = rules_of({3: [rule()], 1: [rule("1=1")], 2: [rule(FalseFilter())], 4: []})
    assert list(made.match(Untouched())) == [Match(1, True, (), None), Match(3, True, (), None)]
    assert made.unconditional is made.match(Untouched())


def test_actions_under_true_rules_need_no_look_either() -> None:
    made = rules_of({1: [rule(action="SET a = 1", name="first"), rule()]})
    assert copies(made, Untouched()) == [(1, True, ["first"])]


def test_one_condition_makes_messages_be_looked_at() -> None:
    made = rules_of({1: [rule()], 2: [rule("color = 'red'")]})
    assert made.unconditional is None
    assert copies(made, Sample({"color": "red"})) == [(1, True, []), (2, True, [])]
    assert copies(made, Sample({"color": "blue"})) == [(1, True, [])]
    made.remove(2)
    assert copies(made, Untouched()) == [(1, True, [])]


def test_two_rules_with_an_action_and_three_without_make_three_copies() -> None:
    # The example in Azure's documentation (semantics A §2).
    five = [
        rule("color = 'red'", "SET a = 1", "with 1"),
        rule("color = 'red'", name="without 1"),
        rule("color LIKE 'r%'", name="without 2"),
        rule(name="without 3"),
        rule(CorrelationFilter(label="x"), "SET a = 2", "with 2"),
    ]
    made = rules_of({1: five})
    assert copies(made, Sample({"color": "red"}, Label="x")) == [(1, True, ["with 1", "with 2"])]
    assert copies(made, Sample({"color": "red"})) == [(1, True, ["with 1"])]


def test_matches_come_by_owner_whatever_found_them() -> None:
    made = rules_of(
        {
            9: [rule()],
            4: [rule("size > 1")],
            7: [rule("color = 'red'")],
            2: [rule(CorrelationFilter(label="x"))],
            5: [rule("color = 'red'", "SET a = 1")],
        }
    )
    facts = Sample({"color": "red", "size": 2}, Label="x")
    assert [match.owner for match in made.match(facts)] == [2, 4, 5, 7, 9]


def test_a_failure_is_reported_beside_what_the_other_rules_say() -> None:
    made = rules_of(
        {
            1: [rule("1 / size = 1", name="bad"), rule("EXISTS(size)"), rule("size % 0 = 1")],
            2: [rule("1 / size = 1")],
            3: [rule("EXISTS(size)")],
        }
    )
    first, second, third = made.match(Sample({"size": 0}))
    assert (first.owner, first.plain, str(first.failure)) == (
        1,
        True,
        "Attempted to divide by zero.",
    )
    assert (second.plain, type(second.failure)) == (False, EvaluationFailed)
    assert third == Match(3, True, (), None)


def test_setting_rules_again_replaces_them() -> None:
    made = rules_of({1: [rule("color = 'red'")]})
    made.set_rules(1, [rule("color = 'blue'")])
    assert copies(made, Sample({"color": "red"})) == []
    assert copies(made, Sample({"color": "blue"})) == [(1, True, [])]
    made.set_rules(1, [])
    assert copies(made, Untouched()) == []


def test_filters_are_counted_for_their_limits() -> None:
    made = rules_of(
        {
            1: [rule(), rule("a = 1"), rule(CorrelationFilter(label="x"))],
            2: [rule(FalseFilter()), rule(CorrelationFilter(label="x"))],
        }
    )
    assert (made.sql_count, made.correlation_count) == (3, 2)
    made.set_rules(1, [rule()])
    assert (made.sql_count, made.correlation_count) == (2, 1)
    made.remove(2)
    made.remove(2)
    assert (made.sql_count, made.correlation_count) == (1, 0)


def test_what_is_removed_leaves_nothing_behind() -> None:
    made = rules_of(
        {1: [rule("a = 1 AND sys.To = 'x'"), rule("a IN (1, 2)"), rule("a > 1"), rule()]}
    )
    made.remove(1)
    assert (made._index, made._system_slots, made._asked, made._fixed, made._owned) == (
        {},
        {},
        {},
        {},
        {},
    )


@pytest.mark.parametrize(
    "sql",
    [
        "color = 'x{0}'",
        "'x{0}' = color",
        "color = 'x{0}' AND size > 3",
        "size > 3 AND color = 'x{0}'",
        "color IN ('x{0}', 'y{0}')",
        "color = 'x{0}' OR color = 'y{0}' AND size > 3",
        "color = 'x{0}' AND 1 / size = 0",
        "size = {0} AND color = 'x{0}'",
        "p('color') = 'x{0}'",
        "sys.Label = 'x{0}'",
        "NOT NOT color = 'x{0}' AND sys.Label = 'x{0}'",
    ],
)
def test_rules_that_ask_for_a_value_are_found_by_it(sql: str) -> None:
    made = rules_of({n: [rule(sql.format(n))] for n in range(100)})
    facts = Sample({"color": "x7", "size": 7}, Label="x7")
    assert copies(made, facts) == [(7, True, [])]
    assert asked(made, facts) == 1


@pytest.mark.parametrize(
    "sql",
    [
        "color <> 'x{0}'",
        "NOT color = 'x{0}'",
        "color = 'x{0}' OR size > 3",
        "1 / size = 0 AND color = 'x{0}'",  # fails whatever the color is
        "color LIKE 'x{0}'",
        "color = size",
    ],
)
def test_rules_that_could_be_true_or_fail_otherwise_are_asked_each(sql: str) -> None:
    made = rules_of({n: [rule(sql.format(n))] for n in range(10)})
    assert asked(made, Sample({"color": "other", "size": 0})) == 10


def test_what_equals_null_is_never_asked() -> None:
    made = rules_of({1: [rule("color = NULL")], 2: [rule("a IN (NULL)")]})
    assert asked(made, Sample({"color": "x", "a": None})) == 0


def test_of_several_equalities_the_one_that_tells_most_apart_is_the_key() -> None:
    made = rules_of(
        {
            n: [
                rule(
                    CorrelationFilter(label="same", to=f"store {n}")
                    if n % 2
                    else CorrelationFilter(to=f"store {n}", label="same")
                )
            ]
            for n in range(100)
        }
    )
    facts = Sample(Label="same", To="store 50")
    assert copies(made, facts) == [(50, True, [])]
    assert asked(made, facts) <= 2


def test_a_rule_with_several_keys_is_asked_once() -> None:
    made = rules_of({1: [rule("a = 1 OR b = 2 OR sys.To = 'x'", "SET c = 1", "r")]})
    facts = Sample({"a": 1, "b": 2}, To="x")
    assert asked(made, facts) == 1
    assert copies(made, facts) == [(1, False, ["r"])]


def test_the_index_tells_true_from_one() -> None:
    made = rules_of({1: [rule("a = TRUE")], 2: [rule("a = 1")], 3: [rule("a = 1.0")]})
    assert copies(made, Sample({"a": True})) == [(1, True, [])]
    assert copies(made, Sample({"a": 1})) == [(2, True, []), (3, True, [])]


@pytest.mark.interpreted_only
@pytest.mark.parametrize("sql", ["a = {0}", "a > {0}", "1=1"])
def test_a_rule_comes_and_goes_without_a_look_at_the_others(sql: str) -> None:
    made = RuleSet()
    lines: list[int] = []
    for number in range(1_000):
        one = rule(sql.format(number), name=f"rule {number}")
        lines.append(_lines_of(lambda one=one: made.put_rule(1, one)))
    for number in range(999, 1, -1):
        lines.append(_lines_of(lambda n=number: made.remove_rule(1, f"rule {n}")))
    assert made.sql_count == 2
    assert max(lines) <= 2 * min(lines[:2])


def _lines_of(call: Callable[[], None]) -> int:
    """Lines of code that a call takes."""
    lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines
