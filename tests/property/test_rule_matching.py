"""The index of a topic's rules says what asking every rule in turn would say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from postbus.model.rule import CorrelationFilter, FalseFilter, Filter, SqlFilter, TrueFilter
from postbus.model.values import DateTime, TypedValue, ValueType
from postbus.rules.matching import RuleSet
from postbus.rules.rule import Rule
from postbus.rules.values import EvaluationFailed
from tests.unit.rules.samples import Sample, rule

names = st.sampled_from(["a", "b", "C", "sys.To", "sys.Label", "sys.SequenceNumber"])
literals = st.sampled_from(["0", "1", "2", "1.0", "'x'", "'y'", "TRUE", "NULL", "p('b')"])

equalities = st.one_of(
    st.builds("{} = {}".format, names, literals),
    st.builds("{1} = {0}".format, names, literals),
    st.builds("{} IN ({}, {})".format, names, literals, literals),
)
# Some of these fail for some messages: where the divisor is zero, and there is one.
others = st.one_of(
    st.builds("{} <> {}".format, names, literals),
    st.builds("{} > {}".format, names, literals),
    st.builds("1 / {} = {}".format, names, literals),
    st.builds("{} IS NULL".format, names),
    st.builds("{} LIKE 'x%'".format, names),
    st.builds("{} NOT IN ({})".format, names, literals),
    st.sampled_from(["1 = 1", "1 = 0", "1 / 0 = 1", "NULL = 1"]),
)
conditions = st.recursive(
    st.one_of(equalities, equalities, others),
    lambda parts: st.one_of(
        st.builds("({} AND {})".format, parts, parts),
        st.builds("({} AND {} AND {})".format, parts, parts, parts),
        st.builds("({} OR {})".format, parts, parts),
        st.builds("NOT {}".format, parts),
    ),
    max_leaves=6,
)
texts = st.sampled_from(["x", "y"])
typed = st.sampled_from(
    [
        TypedValue(ValueType.STRING, "x"),
        TypedValue(ValueType.INT, "1"),
        TypedValue(ValueType.DOUBLE, "1"),
        TypedValue(ValueType.DOUBLE, "NaN"),
        TypedValue(ValueType.BOOLEAN, "true"),
        TypedValue(ValueType.DATE_TIME, "0001-01-01T00:00:00Z"),
    ]
)
correlations = st.builds(
    CorrelationFilter,
    to=st.none() | texts,
    label=st.none() | texts,
    properties=st.dictionaries(st.sampled_from(["A", "b", "c"]), typed, min_size=1),
)
filters: st.SearchStrategy[Filter] = st.one_of(
    conditions.map(SqlFilter), correlations, st.just(TrueFilter()), st.just(FalseFilter())
)
rules = st.builds(
    rule, filters, st.sampled_from([None, None, "SET z = 1"]), st.sampled_from(["r1", "r2", "r3"])
)
# What is done to the rules of a topic: an owner gets these, or leaves.
steps = st.lists(
    st.tuples(st.integers(1, 6), st.none() | st.lists(rules, max_size=3)), min_size=1, max_size=10
)
values = st.sampled_from(
    [None, 0, 1, 2, 1.0, "x", "y", True, False, DateTime(0), float("nan"), b"x"]
)
messages = st.builds(
    Sample,
    st.dictionaries(st.sampled_from(["a", "B", "c"]), values),
    To=st.none() | texts,
    Label=st.none() | texts,
    SequenceNumber=st.integers(0, 2),
)


def asked_in_turn(rules_of: dict[int, Sequence[Rule]], facts: Sample) -> list[Any]:
    found = []
    for owner, rules_of_owner in sorted(rules_of.items()):
        plain, actions, failure = False, [], None
        for one in rules_of_owner:
            try:
                selected = one.selector.is_true(facts)
            except EvaluationFailed as error:
                failure = failure or str(error)
                continue
            if selected and one.action is None:
                plain = True
            elif selected:
                actions.append((one.name, one.action))
        if plain or actions or failure:
            found.append((owner, plain, actions, failure))
    return found


@settings(max_examples=250, deadline=None)
@given(steps=steps, facts=st.lists(messages, min_size=1, max_size=4))
def test_the_index_says_what_asking_every_rule_would_say(
    steps: list[tuple[int, list[Rule] | None]], facts: list[Sample]
) -> None:
    made = RuleSet()
    kept: dict[int, Sequence[Rule]] = {}
    for owner, given_rules in steps:
        if given_rules is None:
            made.remove(owner)
            kept.pop(owner, None)
        else:
            made.set_rules(owner, given_rules)
            kept[owner] = given_rules
        for message in facts:
            assert [
                (
                    match.owner,
                    match.plain,
                    list(match.actions),
                    match.failure and str(match.failure),
                )
                for match in made.match(message)
            ] == asked_in_turn(kept, message)
    every = [one for rules_of_owner in kept.values() for one in rules_of_owner]
    assert made.correlation_count == sum(one.is_correlation for one in every)
    assert made.sql_count == len(every) - made.correlation_count
