"""Edits of dead letters: what can be said, and what the broker is asked for in the end."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from postbus.http.deadletters import read_resubmission
from pyspark_postbus.pipelines import deadletters
from pyspark_postbus.pipelines.deadletters import chunks
from pyspark_postbus.pipelines.edits import BadEdit, _planning, load_function, parse_edits
from pyspark_postbus.pipelines.inputs import Address, address_of

LETTER = {
    "sequenceNumber": 7,
    "subscription": None,
    "messageId": "order 7",
    "subject": "tea",
    "properties": [("tries", "3")],
    "body": b'{"cups": 2}',
}


texts = st.none() | st.text(st.characters(), max_size=9)


def planned(function: Any = None, **edits: Any) -> dict[str, Any]:
    """What is planned for LETTER when the expressions come to these values."""
    row = {**LETTER, **{f"edit {at}": value for at, value in enumerate(edits.values())}}
    names = [name.replace("__", ".") for name in edits]
    batch = pa.RecordBatch.from_pylist([row])
    [out] = list(_planning(names, function)(iter([batch])))
    [plan] = out.to_pylist()
    plan["edits"] = None if plan["edits"] is None else json.loads(plan["edits"])
    return dict(plan)


def test_expressions_become_edits_with_properties_in_one_place() -> None:
    plan = planned(subject="TEA", body="new", properties__fixed=True, properties__old=None)
    assert plan["edits"] == {
        "subject": "TEA",
        "body": base64.b64encode(b"new").decode(),
        "properties": {"fixed": True, "old": None},
    }


def test_a_letter_without_edits_is_sent_as_it_is() -> None:
    assert planned()["edits"] == {}


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(["messageId", "sessionId", "contentType", "subject"], texts),
            "timeToLive": st.none() | st.integers(-1, 1 << 62),
            "body": st.none() | st.binary(max_size=9) | texts,
            "properties": st.dictionaries(
                st.text(max_size=9), texts | st.integers() | st.floats() | st.booleans()
            ),
        },
    )
)
def test_what_is_planned_the_broker_takes(edits: dict[str, Any]) -> None:
    # Both sides have the rules: one edit that is refused would refuse a request of a thousand.
    plan = planned(lambda letter: edits)
    assert (plan["edits"] is None) == (plan["problem"] is not None)
    if plan["edits"] is not None:
        message = {"sequenceNumber": 7, "edits": plan["edits"]}
        to, asked = read_resubmission(json.dumps({"messages": [message]}).encode())
        assert (to, [number for number, _ in asked]) == (None, [7])


def test_times_and_spans_are_milliseconds() -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    plan = planned(timeToLive=5_000, scheduledEnqueueTime=when)
    assert plan["edits"] == {"timeToLive": 5_000, "scheduledEnqueueTime": 1_767_225_600_000}


def test_a_function_sees_the_letter_as_the_expressions_leave_it_and_has_the_last_word() -> None:
    seen = []

    def double(letter: dict[str, Any]) -> Mapping[str, Any]:
        seen.append(letter)
        cups = json.loads(letter["body"])["cups"]
        return {"body": json.dumps({"cups": cups * 2}), "properties": {"doubled": True}}

    plan = planned(double, subject="TEA", properties__by="us")
    assert seen[0]["subject"] == "TEA"
    assert seen[0]["properties"] == {"tries": "3", "by": "us"}
    assert plan["edits"]["properties"] == {"by": "us", "doubled": True}
    assert base64.b64decode(plan["edits"]["body"]) == b'{"cups": 4}'


def test_a_letter_is_left_alone_when_the_function_says_nothing() -> None:
    plan = planned(lambda letter: None, subject="TEA")
    assert (plan["edits"], plan["problem"]) == (None, None)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"sequenceNumber": 5}, "'sequenceNumber' cannot be changed"),
        ({"body": 5}, "a body is bytes or text, not int"),
        ({"properties": {"a": [1]}}, "a property is a text"),
        ({"scheduledEnqueueTime": "now"}, "a point in time is"),
        # The broker would refuse the whole request for one of these.
        ({"messageId": None}, "a messageId is a text, and not an empty one"),
        ({"messageId": ""}, "a messageId is a text, and not an empty one"),
        ({"contentType": "thé"}, "a contentType is in ASCII"),
        ({"subject": "\ud83d"}, "half of a surrogate pair"),
        ({"timeToLive": 0}, "timeToLive is 0, but must be from 1 to"),
        ({"scheduledEnqueueTime": -1}, "scheduledEnqueueTime is -1, but must be from 1 to"),
        ({"properties": {"a": float("nan")}}, "a property is a number of 64 bits"),
        ({"properties": {"a": 1 << 63}}, "a property is a number of 64 bits"),
        ({"properties": {"a": "\ud83d"}}, "half of a surrogate pair"),
        ({"properties": {5: "a"}}, "the name of a property is a text"),
        ({"body": b"x" * (3 << 20)}, "the edits have 4,194,315 bytes"),
    ],
)
def test_an_edit_that_cannot_be_is_a_problem_of_its_letter(
    said: dict[str, Any], problem: str
) -> None:
    plan = planned(lambda letter: said)
    assert plan["edits"] is None
    assert problem in plan["problem"]


def test_what_a_function_raises_is_a_problem_of_its_letter() -> None:
    def fail(letter: dict[str, Any]) -> None:
        raise KeyError("customer")

    assert planned(fail)["problem"] == "KeyError: 'customer'"


def test_edits_on_a_command_line_are_names_with_expressions() -> None:
    assert parse_edits(["subject=upper(subject)", "properties.a b = 1 = 1"]) == {
        "subject": "upper(subject)",
        "properties.a b": "1 = 1",
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("subject", "not of the form"),
        ("subject=", "not of the form"),
        ("offset=1", "'offset' cannot be changed"),
        ("properties.=1", "cannot be changed"),
        ("properties=map()", "cannot be changed"),
    ],
)
def test_an_edit_that_names_something_else_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadEdit, match=why):
        parse_edits([text])


def test_a_thing_can_be_set_once_only() -> None:
    with pytest.raises(BadEdit, match="twice"):
        parse_edits(["to=1", "to=2"])


def test_a_function_is_found_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mending.py").write_text("def mend(letter):\n    return {}\nother = 5\n")
    monkeypatch.chdir(tmp_path)
    assert load_function("mending:mend")({}) == {}
    for text, why in (
        ("mending", "not of the form"),
        ("mending:none", "cannot be loaded"),
        ("no_such_module_here:mend", "cannot be loaded"),
        ("mending:other", "is no function"),
    ):
        with pytest.raises(BadEdit, match=why):
            load_function(text)


def rows(*edits: str, subscription: str | None = None) -> list[Row]:
    return [
        Row(sequenceNumber=number, subscription=subscription, edits=text)
        for number, text in enumerate(edits)
    ]


def test_requests_hold_as_many_letters_as_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadletters, "CHUNK_MESSAGES", 3)
    monkeypatch.setattr(deadletters, "CHUNK_BYTES", 100)
    long = "x" * 60
    found = [
        (path, [len(row.edits) for row in part])
        for path, part in chunks(Address("q"), rows("{}", "{}", "{}", "{}", long, long))
    ]
    assert found == [("q", [2, 2, 2]), ("q", [2, 60]), ("q", [60])]


def test_letters_of_each_subscription_have_requests_of_their_own() -> None:
    both = rows("{}", subscription="a") + rows("{}", subscription="b")
    assert [path for path, _ in chunks(Address("t"), both)] == [
        "t/subscriptions/a",
        "t/subscriptions/b",
    ]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("orders", Address("orders")),
        ("a/b/orders", Address("a/b/orders")),
        ("news/Subscriptions/all", Address("news", "all")),
        ("a/news/subscriptions/x", Address("a/news", "x")),
    ],
)
def test_an_address_is_an_entity_or_a_subscription_of_one(text: str, address: Address) -> None:
    assert address_of(text) == address
