"""Rules as enumerate-rules gives them, to the byte: decoders know no fields but Azure's."""

from __future__ import annotations

import pytest

from postbus.amqp.codec import decode, encode
from postbus.amqp.codec.types import Described
from postbus.errors import InvalidArgument
from postbus.gateway.management_fields import Fields
from postbus.gateway.management_rules import read_rule, write_rule
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

EMPTY_LIST = "45"
T0 = 1_700_000_000_000


def encoded(chosen: Filter, action: SqlAction | None = None) -> str:
    return encode(write_rule(RuleDescription("r", chosen, action, T0))).hex()


@pytest.mark.parametrize(
    ("chosen", "written"),
    [
        # Rust's decoder knows no field of these two, .NET's codec writes none.
        (TrueFilter(), f"0080{0x1370000007:016x}{EMPTY_LIST}"),
        (FalseFilter(), f"0080{0x1370000008:016x}{EMPTY_LIST}"),
        # The expression, and the level of compatibility as an int.
        (SqlFilter("a=1"), f"0080{0x1370000006:016x}c0 08 02 a103613d31 5414"),
        # Eight texts and a map whose keys are strings.
        (
            CorrelationFilter(label="l", properties={"k": TypedValue(ValueType.STRING, "v")}),
            f"0080{0x1370000009:016x}c0 14 09 40404040 a1016c 404040 c1 07 02 a1016b a10176",
        ),
        (
            CorrelationFilter(to="t"),
            f"0080{0x1370000009:016x}c0 0e 09 4040 a10174 4040404040 c10100",
        ),
    ],
)
def test_filters(chosen: Filter, written: str) -> None:
    assert written.replace(" ", "") in encoded(chosen)


def test_actions() -> None:
    assert f"0080{0x13700000005:016x}{EMPTY_LIST}" in encoded(TrueFilter())
    action = f"0080{0x13700000006:016x}c00e02a1095345542061203d2031 5414".replace(" ", "")
    assert action in encoded(TrueFilter(), SqlAction("SET a = 1"))


def test_a_rule_has_its_filter_its_action_its_name_and_when_it_was_made() -> None:
    rule, _ = decode(encode(write_rule(RuleDescription("r", TrueFilter(), None, T0))))
    assert isinstance(rule, Described)
    assert rule.descriptor == 0x13700000004
    chosen, action, name, made = rule.value
    assert (chosen.value, action.value, name, made) == ([], [], "r", T0)


def test_a_rule_that_says_nothing_takes_everything_and_one_that_says_too_much_is_refused() -> None:
    assert read_rule(Fields({"rule-name": "r"})).filter == TrueFilter()
    both = {"sql-filter": {"expression": "1=1"}, "correlation-filter": {"to": "x"}}
    with pytest.raises(InvalidArgument, match="two filters"):
        read_rule(Fields({"rule-name": "r", "rule-description": both}))
