"""The output of the pipeline commands: progress while they work, and refusals."""

import base64
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Row, SparkSession
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from postbus.client.connection_string import BadConnectionString
from pyspark_postbus.client import PostbusError
from pyspark_postbus.java import NoJava
from pyspark_postbus.options import BadOption
from pyspark_postbus.pipelines.archive import ArchiveError, Step
from pyspark_postbus.pipelines.deadletters import Outcome, Repair
from pyspark_postbus.pipelines.edits import BadEdit
from pyspark_postbus.pipelines.lake import NotAnArchive, NotArchived
from pyspark_postbus.pipelines.prices import BadPrices
from pyspark_postbus.pipelines.progress_lines import lines
from pyspark_postbus.pipelines.replay import ReplayError
from pyspark_postbus.pipelines.report import NothingToReport
from pyspark_postbus.pipelines.scales import bytes_text
from pyspark_postbus.pipelines.triage import Triage
from pyspark_postbus.spark import session
from pyspark_postbus.wire import AmqpRefused

REFUSALS: Final = (
    *(ArchiveError, BadConnectionString, BadEdit, BadOption, BadPrices, DeltaError, NoJava),
    *(
        NotAnArchive,
        NotArchived,
        NothingToReport,
        PostbusError,
        PySparkException,
        ReplayError,
        AmqpRefused,
    ),
    OSError,
)
"""Errors told in one line. Any other error is a fault of ours, and shows its traceback."""

_LINE_MAX: Final = 400


def terminal(**settings: Any) -> Console:
    """A console that takes nothing it prints for markup: names and texts are others'."""
    return Console(highlight=False, markup=False, soft_wrap=True, **settings)


def shortened(error: BaseException) -> str:
    """The first line of its text: Spark adds plans and the stacks of its tasks."""
    text = str(error).strip()
    # An exception of a task comes as its whole traceback, with the error in its last line.
    lines = [line for line in text.splitlines() if line.strip()]
    if "Traceback (most recent call last)" in text:
        lines = [line for line in lines if line[:1].strip() and ": " in line][-1:] or lines
    return (lines[0] if lines else type(error).__name__)[:_LINE_MAX]


def started(console: Console, name: str, master: str | None, conf: Sequence[str]) -> SparkSession:
    """A session of Spark, with something to look at until it is there."""
    settings = pairs(conf)
    # Spark logs an expression that it does not understand with its plan and all stacks, as JSON. It
    # also raises the error, which we print in a line.
    for each in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(each).disabled = True
    with console.status("Starting Spark, which takes 8 to 15 seconds"):
        return session(f"postbus {name}", master, settings)


def pairs(texts: Sequence[str]) -> dict[str, str]:
    """`key=value`, as on a command line."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadOption(f"'{text}' is not of the form key=value")
        found[key] = value
    return found


@contextmanager
def bars(console: Console) -> Iterator[Progress]:
    """Bars that move, or lines in a log."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        if console.is_terminal:
            yield progress
        else:
            with lines(console, progress):
                yield progress


class ArchiveView:
    """A bar for each entity: how many of the events that there are have been archived."""

    def __init__(self, progress: Progress, entities: Sequence[str]) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._done: dict[str, int] = {}
        self._began = time.monotonic()
        for entity in entities:
            self._add(entity)

    def _add(self, entity: str) -> TaskID:
        self._done[entity] = 0
        self._tasks[entity] = self._progress.add_task(entity, total=None, note="")
        return self._tasks[entity]

    def tell(self, step: Step) -> None:
        task = self._tasks.get(step.entity)
        if task is None:
            task = self._add(step.entity)
        done = self._done[step.entity] = self._done[step.entity] + step.added.events
        rate = done / max(time.monotonic() - self._began, 0.001)
        self._progress.update(
            task, completed=done, total=done + step.behind,
            note=f"{rate:,.0f}/s, version {step.added.version}",
        )  # fmt: skip

    @property
    def total(self) -> int:
        return sum(self._done.values())


class RepairView:
    """A single bar: the letters that have been dealt with."""

    def __init__(self, progress: Progress, what: str, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=total, note="")

    def tell(self, outcome: Outcome) -> None:
        self._progress.update(self._task, completed=outcome.done, note=counts(outcome))


def counts(outcome: Outcome) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(outcome.outcomes.items()))


def show_triage(console: Console, triage: Triage, samples: bool) -> list[Row]:
    """The kinds of dead letters as a table; returns them."""
    kinds = triage.kinds.collect()
    if not kinds:
        console.print("There are no dead letters.")
        return kinds
    table = Table("entity", "reason", "error", "letters", "size", "first (UTC)", "last", box=None)
    for row in kinds:
        table.add_row(
            row.entity if row.subscription is None else f"{row.entity}/{row.subscription}",
            _plain(row.reason),
            _plain(row.error),
            f"{row.letters:,}",
            bytes_text(row.bytes or 0),
            _minute(row["first"]),
            _minute(row["last"]),
        )
        for sample in (row.samples or []) if samples else []:
            body = sample.body if sample.body is None else sample.body.replace("\n", " ")
            text = _plain(f"  {sample.sequenceNumber} {sample.messageId}: {body}")
            table.add_row("", "", text, "", "", "", "")
    console.print(table)
    return kinds


def _minute(at: datetime | None) -> str:
    # Rows have times of this machine's zone, and do not say so.
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"


def _plain(text: str) -> str:
    """A text from others, without characters that a terminal would obey."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def show_plan(console: Console, repair: Repair, what: str) -> None:
    """Show the plan: how many letters, and the first of them."""
    outcome = repair.outcome
    console.print(f"{outcome.selected:,} dead letters would be {what}.")
    if outcome.left_alone:
        console.print(f"{outcome.left_alone:,} would be left alone: the function said so.")
    if failed := outcome.outcomes["failed"]:
        console.print(f"{failed:,} cannot be changed as asked:", style="red")
        for line in outcome.examples:
            console.print(f"  {_plain(line)}")
    table = Table("number", "edits", box=None)
    for row in repair.preview():
        if row.edits is not None:
            table.add_row(str(row.sequenceNumber), _readable(row.edits))
    console.print(table)


def _readable(edits: str) -> str:
    """Edits with the body as text, if it is a text, and not too long."""
    shown = json.loads(edits)
    if isinstance(shown.get("body"), str):
        shown["body"] = base64.b64decode(shown["body"]).decode(errors="replace")
    text = _plain(json.dumps(shown, ensure_ascii=False))
    return text if len(text) <= 200 else f"{text[:199]}…"


def show_outcome(console: Console, outcome: Outcome) -> bool:
    """Show the outcome of the letters; says whether all is well."""
    console.print(counts(outcome) or "Nothing was to be done.")
    for line in outcome.examples:
        console.print(f"  {_plain(line)}")
    return not any(outcome.outcomes[name] for name in ("refused", "failed", "locked"))
