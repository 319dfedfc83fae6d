"""What commands print of messages, which come from anybody."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime
from io import StringIO
from types import SimpleNamespace
from typing import Any, cast

from pyspark.sql import Row
from rich.console import Console

from pyspark_postbus.pipelines.console import show_outcome, show_plan, show_triage, terminal
from pyspark_postbus.pipelines.deadletters import Outcome

NASTY = "[/red] [bold]x \x1b]0;owned\x07\x1b[2J\u202e ['a']"
SHOWN = "[/red] [bold]x �]0;owned��[2J� ['a']"


def printed() -> tuple[Console, StringIO]:
    out = StringIO()
    return terminal(file=out, width=400), out


def test_what_a_letter_says_is_shown_as_it_is_and_does_nothing_to_the_terminal() -> None:
    sample = Row(sequenceNumber=5, messageId=NASTY, body=f"{NASTY}\nmore")
    at = datetime.fromtimestamp(1_767_225_600, UTC).astimezone().replace(tzinfo=None)
    kind = Row(
        entity="orders", subscription=None, reason=NASTY, error=NASTY, letters=3, bytes=10,
        first=at, last=at, samples=[sample],
    )  # fmt: skip
    console, out = printed()
    show_triage(console, cast("Any", SimpleNamespace(kinds=Kinds(kind))), samples=True)
    text = out.getvalue()
    assert text.count(SHOWN) == 4
    assert "\x1b" not in text
    # Rows come from Spark in the zone of this machine.
    assert "2026-01-01 00:00" in text


class Kinds:
    def __init__(self, *rows: Row) -> None:
        self._rows = list(rows)

    def collect(self) -> list[Row]:
        return self._rows


def test_edits_and_what_went_wrong_are_shown_as_they_are() -> None:
    outcome = Outcome(1, 0, examples=[f"5: failed: {NASTY}"])
    outcome.outcomes["failed"] = 1
    edits = json.dumps({"body": b64encode(NASTY.encode()).decode(), "subject": NASTY})
    preview = [Row(sequenceNumber=5, edits=edits)]
    console, out = printed()
    repair = SimpleNamespace(outcome=outcome, preview=lambda: preview)
    show_plan(console, cast("Any", repair), "sent again")
    assert not show_outcome(console, outcome)
    text = out.getvalue()
    assert text.count(SHOWN) == 2
    assert "[/red] [bold]x" in text.partition("edits")[2]
    assert "\x1b" not in text
