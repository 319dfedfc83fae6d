"""The examples in docs/rules.md are filters and actions that are taken."""

from __future__ import annotations

import re

import pytest

from postbus.model.rule import RuleDescription, SqlAction, SqlFilter, TrueFilter
from postbus.model.values import TypedValue, ValueType
from postbus.rules.rule import compile_rule
from postbus.rules.system_properties import SYSTEM_PROPERTIES
from tests.tidy.tree import ROOT
from tests.unit.rules.samples import new_id

PAGE = (ROOT / "docs" / "rules.md").read_text()
EXAMPLES = [
    line
    for block in re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.parametrize("sql", EXAMPLES)
def test_an_example_is_taken(sql: str) -> None:
    parameters = {"@limit": TypedValue(ValueType.DURATION, "PT1H")}
    if sql.startswith(("SET", "REMOVE")):
        description = RuleDescription("r", TrueFilter(), SqlAction(sql, parameters))
    else:
        description = RuleDescription("r", SqlFilter(sql, parameters))
    compile_rule(description, new_id)


def test_every_system_property_is_on_the_page() -> None:
    assert len(EXAMPLES) > 10
    for one in SYSTEM_PROPERTIES.values():
        assert PAGE.count(f"`{one.name}`") >= (2 if one.settable else 1), one.name
