"""What actions do to a copy (semantics A §2)."""

from __future__ import annotations

from uuid import UUID

import pytest

from postbus.model.rule import RuleDescription, SqlAction, TrueFilter
from postbus.model.values import DateTime, TimeSpan, TypedValue, ValueType
from postbus.rules.actions import Changes
from postbus.rules.conversion import converted, text_of
from postbus.rules.rule import compile_rule
from postbus.rules.values import ActionFailed, EvaluationFailed, Opaque, Value
from tests.unit.rules.samples import NEW_ID, Sample, new_id, rule


def changes(sql: str, facts: Sample | None = None, **parameters: TypedValue) -> Changes:
    description = RuleDescription("the rule", TrueFilter(), SqlAction(sql, parameters))
    action = compile_rule(description, new_id).action
    assert action is not None
    facts = facts or Sample({"quantity": 10, "priority": "low", "kind": "order"})
    return action.apply(facts, 65_536)


def user(sql: str, facts: Sample | None = None, **parameters: TypedValue) -> dict[str, Value]:
    """What is set, by the name a new property would have; without the rule's name."""
    made = changes(sql, facts, **parameters)
    assert made.user["rulename"] == ("RuleName", "the rule")
    return {name: value for folded, (name, value) in made.user.items() if folded != "rulename"}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SET a = 1", {"a": 1}),
        ("SET a = 2.5", {"a": 2.5}),
        ("SET a = 'x'", {"a": "x"}),
        ("SET a = TRUE;", {"a": True}),
        ("SET a = newid()", {"a": NEW_ID}),
        ("SET a = quantity", {"a": 10}),
        ("SET quantity = quantity / 2", {"quantity": 5}),
        ("set a=1 SET b=2", {"a": 1, "b": 2}),
        ("Set a=1, SET b=2;", {"a": 1, "b": 2}),
        ("SET a=1; SET b=a + 1; SET c=b + 1", {"a": 1, "b": 2, "c": 3}),
        ("SET a=1; SET A=2", {"a": 2}),
        ("SET user.Label = 'x'", {"Label": "x"}),
        ("SET Label = 'x'", {"Label": "x"}),
        ("SET [with space] = 'x'", {"with space": "x"}),
        ("SET a = 1; REMOVE a", {}),
        ("SET a = -quantity % 3", {"a": -1}),
    ],
)
def test_set_makes_or_replaces_a_property(sql: str, expected: dict[str, Value]) -> None:
    assert user(sql) == expected


def test_statements_take_effect_one_after_the_other() -> None:
    made = changes("SET saved = kind; REMOVE kind; SET seen = kind")
    assert made.user["saved"] == ("saved", "order")
    assert made.removed == {"kind", "seen"}


def test_a_removed_property_starts_anew_when_it_is_set_again() -> None:
    made = changes("REMOVE quantity; SET Quantity = 'many'")
    assert made.removed == {"quantity"}
    assert made.user["quantity"] == ("Quantity", "many")


def test_setting_to_what_is_unknown_removes() -> None:
    made = changes("SET quantity = missing + 1; SET kind = NULL; SET new = missing")
    assert made.removed == {"quantity", "kind", "new"}
    assert list(made.user) == ["rulename"]


@pytest.mark.parametrize(
    ("there", "sql", "kept"),
    [
        (10, "SET a = '12'", 12),
        (10, "SET a = 12.0", 12),
        (10, "SET a = 2.5", 2.5),  # would lose something
        (10, "SET a = 'many'", "many"),
        (1.5, "SET a = 2", 2.0),
        (1.5, "SET a = '2.5'", 2.5),
        ("low", "SET a = 5", "5"),
        ("low", "SET a = 2.0", "2"),
        ("low", "SET a = 2.5", "2.5"),
        ("low", "SET a = TRUE", "True"),
        ("low", "SET a = newid()", str(NEW_ID)),
        (True, "SET a = 'false'", False),
        (True, "SET a = 1", 1),
        (UUID(int=1), f"SET a = '{UUID(int=2)}'", UUID(int=2)),
        (DateTime(1), "SET a = '0001-01-02T00:00:00Z'", DateTime(864_000_000_000)),
        (TimeSpan(1), "SET a = '00:00:01'", TimeSpan(10_000_000)),
        (TimeSpan(1), "SET a = 'PT1S'", TimeSpan(10_000_000)),
        (None, "SET a = 1", 1),
        (Opaque([1]), "SET a = 1", 1),
    ],
)
def test_a_property_keeps_its_type_where_the_value_can_have_it(
    there: Value, sql: str, kept: Value
) -> None:
    given = user(sql, Sample({"a": there}))["a"]
    assert given == kept
    assert type(given) is type(kept)


def test_a_statement_sees_the_converted_value() -> None:
    assert user("SET quantity = '12'; SET twice = quantity * 2")["twice"] == 24


def test_a_value_that_no_filter_understands_can_be_passed_on() -> None:
    opaque = Opaque([1])
    assert user("SET b = a", Sample({"a": opaque})) == {"b": opaque}


def test_parameters_give_values_that_no_literal_has() -> None:
    given = user("SET a = @when", when=TypedValue(ValueType.DATE_TIME, "0001-01-02T00:00:00Z"))
    assert given == {"a": DateTime(864_000_000_000)}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SET sys.Label = 'x'", {"Label": "x"}),
        ("SET sys.subject = 'x'", {"Label": "x"}),
        ("SET sys.CorrelationId = 'low'", {"CorrelationId": "low"}),
        ("SET sys.To = quantity", {"To": "10"}),
        ("SET sys.MessageId = newid()", {"MessageId": str(NEW_ID)}),
        ("SET sys.TimeToLive = '00:01:00'", {"TimeToLive": TimeSpan(600_000_000)}),
        ("SET sys.TimeToLive = 'PT1M'", {"TimeToLive": TimeSpan(600_000_000)}),
        (
            "SET sys.ScheduledEnqueueTimeUtc = '0001-01-02T00:00:00Z'",
            {"ScheduledEnqueueTimeUtc": DateTime(864_000_000_000)},
        ),
        ("SET sys.ReplyTo = missing", {"ReplyTo": None}),
        ("REMOVE sys.TimeToLive", {"TimeToLive": None}),
        (
            "SET sys.SessionId = 's'; SET sys.PartitionKey = 's'",
            {"SessionId": "s", "PartitionKey": "s"},
        ),
        ("SET sys.To = 'a'; SET sys.ReplyTo = sys.To + 'b'", {"To": "a", "ReplyTo": "ab"}),
    ],
)
def test_system_properties_are_set_as_their_own_type(sql: str, expected: dict[str, Value]) -> None:
    assert changes(sql).system == expected


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SET a = 1 / 0", "divide by zero"),
        ("SET sys.TimeToLive = 'soon'", "'TimeToLive' cannot be 'soon'"),
        ("SET sys.TimeToLive = 5", "'TimeToLive' cannot be '5'"),
        ("SET sys.TimeToLive = '00:00:00'", "'TimeToLive' cannot be '00:00:00'"),
        ("SET sys.ScheduledEnqueueTimeUtc = TRUE", "'ScheduledEnqueueTimeUtc' cannot be 'True'"),
        ("REMOVE sys.MessageId", "'MessageId' cannot be removed"),
        ("SET sys.MessageId = ''", "'MessageId' cannot be removed"),
        ("SET sys.MessageId = '" + "x" * 129 + "'", "129 characters; 128 are allowed"),
        ("SET sys.ContentType = 'é'", "characters other than ASCII"),
        ("SET sys.SessionId = 'a'; SET sys.PartitionKey = 'b'", "differs from its SessionId"),
    ],
)
def test_an_action_that_cannot_be_carried_out_fails(sql: str, text: str) -> None:
    with pytest.raises(ActionFailed, match=text) as failed:
        changes(sql)
    assert failed.value.reason == "RuleActionException"


def test_a_session_id_is_checked_against_the_partition_key_that_is_there() -> None:
    facts = Sample({}, PartitionKey="key")
    with pytest.raises(ActionFailed):
        changes("SET sys.SessionId = 'other'", facts)
    assert changes("SET sys.SessionId = 'key'", facts).system == {"SessionId": "key"}
    assert changes("SET sys.SessionId = NULL", facts).system == {"SessionId": None}
    assert changes("SET sys.SessionId = ''", facts).system == {"SessionId": ""}


def test_a_text_cannot_be_doubled_for_ever() -> None:
    with pytest.raises(ActionFailed, match="65536 are allowed"):
        changes("SET kind = kind + kind " * 32)


def test_the_copy_names_its_rule_whatever_the_action_said() -> None:
    made = changes("SET RuleName = 'mine'")
    assert made.user["rulename"] == ("RuleName", "the rule")


def test_the_message_is_left_alone() -> None:
    facts = Sample({"a": 1})
    changes("SET a = 2; REMOVE a; SET sys.To = 'x'", facts)
    assert facts.user == {"a": 1}


def test_a_filter_that_fails_has_another_reason_than_an_action() -> None:
    assert EvaluationFailed.reason == "FilterException"
    with pytest.raises(EvaluationFailed) as failed:
        rule("a / 0 = 1").selector.is_true(Sample({"a": 1}))
    assert failed.value.reason == "FilterException"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        (2.0, "2"),
        (1e15, "1000000000000000"),
        (1e16, "1E+16"),
        (1.5e-7, "1.5E-07"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (False, "False"),
        (b"x", None),
        (Opaque(1), None),
        (None, None),
    ],
)
def test_values_as_text(value: Value, text: str | None) -> None:
    assert text_of(value) == text


def test_what_cannot_be_converted() -> None:
    assert converted("x", bytes) is None
    assert converted(1e300, int) is None
    assert converted(1, DateTime) is None
    assert converted(b"1", int) is None
