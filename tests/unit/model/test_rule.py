"""A rule's description: what is refused, and its form in the catalog."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.errors import InvalidArgument
from postbus.model.rule import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from postbus.model.values import TypedValue, ValueType

FIVE = TypedValue(ValueType.INT, "5")


def test_what_a_rule_is_by_default() -> None:
    rule = RuleDescription()
    rule.validate()
    assert (rule.name, rule.filter, rule.action) == ("$Default", TrueFilter(), None)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (RuleDescription(""), 'The specified name ("") is not valid.'),
        (RuleDescription(" "), 'The specified name (" ") is not valid.'),
        (RuleDescription("a/b"), 'The specified name ("a/b") is not valid.'),
        (RuleDescription(".."), 'The specified name ("..") is not valid.'),
        (RuleDescription("bell\x07"), "is not valid."),
        (RuleDescription("x" * 51), "51 characters; 50 are allowed"),
        (RuleDescription("r", CorrelationFilter()), "at least one property"),
        (RuleDescription("r", CorrelationFilter(properties={"": FIVE})), "has no name"),
        (RuleDescription("r", CorrelationFilter(label="\x00")), "XML cannot hold"),
        (RuleDescription("r", CorrelationFilter(label="x" * 65_537)), "65536 are allowed"),
        (RuleDescription("r", SqlFilter("")), "The SQL expression of the filter is empty."),
        (RuleDescription("r", SqlFilter("x" * 1_025)), "1024 are allowed"),
        (RuleDescription("r", SqlFilter("a = '\x01'")), "XML cannot hold"),
        (RuleDescription("r", SqlFilter("a = 1", {"@\x00": FIVE})), "XML cannot hold"),
        (RuleDescription("r", action=SqlAction(" ")), "The SQL expression of the action is empty."),
        (RuleDescription("r", action=SqlAction("x" * 1_025)), "1024 are allowed"),
    ],
)
def test_what_no_rule_can_have_is_refused(rule: RuleDescription, text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        rule.validate()
    assert text in str(refused.value)


@pytest.mark.parametrize("name", ["$Default", "a rule", "x" * 50, "größe", "a.b-c_d"])
def test_names_that_rules_can_have(name: str) -> None:
    RuleDescription(name).validate()


_texts = st.text(max_size=20)
_typed = st.one_of(
    _texts.map(lambda text: TypedValue(ValueType.STRING, text)),
    st.integers(-(2**31), 2**31 - 1).map(lambda n: TypedValue(ValueType.INT, str(n))),
    st.integers(-(2**63), 2**63 - 1).map(lambda n: TypedValue(ValueType.LONG, str(n))),
    st.booleans().map(lambda b: TypedValue(ValueType.BOOLEAN, str(b).lower())),
    st.floats(allow_nan=False, allow_infinity=False).map(
        lambda f: TypedValue(ValueType.DOUBLE, repr(f))
    ),
    st.datetimes().map(lambda d: TypedValue(ValueType.DATE_TIME, d.isoformat() + "Z")),
    st.integers(0, 10**6).map(lambda s: TypedValue(ValueType.DURATION, f"PT{s}S")),
)
_maps = st.dictionaries(_texts, _typed, max_size=3)
_optional = st.none() | _texts
_filters: st.SearchStrategy[Filter] = st.one_of(
    st.just(TrueFilter()),
    st.just(FalseFilter()),
    st.builds(SqlFilter, _texts, _maps),
    st.builds(CorrelationFilter, *[_optional] * 8, _maps),
)


@given(
    st.builds(
        RuleDescription,
        _texts,
        _filters,
        st.none() | st.builds(SqlAction, _texts, _maps),
        st.integers(0, 2**53),
    )
)
def test_a_rule_comes_back_from_the_catalog_as_it_went_in(rule: RuleDescription) -> None:
    assert RuleDescription.from_json(json.loads(json.dumps(rule.to_json()))) == rule


@pytest.mark.parametrize(
    "stored",
    [
        {"name": "r"},
        {"name": "r", "filter": {"kind": "regex"}},
        {"name": "r", "filter": "true"},
        {"name": "r", "filter": {"kind": "true"}, "color": "red"},
        {"name": "r", "filter": {"kind": "true", "expression": "1=1"}},
        {"name": "r", "filter": {"kind": "sql"}},
        {"name": "r", "filter": {"kind": "sql", "expression": 5}},
        {"name": "r", "filter": {"kind": "sql", "expression": "a", "parameters": {"b": {}}}},
        {"name": "r", "filter": {"kind": "sql", "expression": "a", "parameters": "b"}},
        {"name": "r", "filter": {"kind": "true"}, "action": "SET"},
        {"name": 5, "filter": {"kind": "true"}},
        {"name": "r", "filter": {"kind": "true"}, "created_at": True},
        {
            "name": "r",
            "filter": {"kind": "correlation", "properties": {"a": {"type": "int", "text": "x"}}},
        },
    ],
)
def test_what_no_version_wrote_is_not_read(stored: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"rule|int"):
        RuleDescription.from_json(stored)
