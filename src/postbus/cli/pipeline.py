"""`postbus pipeline …`: archive, dead letters, report and replay, on Spark.

Spark is an extra (`pip install 'postbus[spark]'`), so nothing of it is imported before a command
runs.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from postbus.settings import CONNECTION_STRING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from pyspark_postbus.pipelines.deadletters import Repair

app = typer.Typer(help="Archive, repair, report and replay, on Spark.", no_args_is_help=True)
deadletters = typer.Typer(help="Look at dead letters, repair or discard them.",
                          no_args_is_help=True)  # fmt: skip
app.add_typer(deadletters, name="deadletters")

_INTERRUPTED = 130
_TIMES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"]

Connection = Annotated[
    str,
    typer.Option("--connection-string", envvar=CONNECTION_STRING,
                 help="What `postbus serve` prints", show_envvar=True),
]  # fmt: skip
MaybeConnection = Annotated[
    str | None,
    typer.Option("--connection-string", envvar=CONNECTION_STRING,
                 help="What `postbus serve` prints", show_envvar=True),
]  # fmt: skip
Master = Annotated[
    str | None, typer.Option(help="Spark master or sc:// address [this machine, all cores]")
]
Conf = Annotated[list[str] | None, typer.Option("--conf", help="Spark setting key=value")]
Storage = Annotated[
    list[str] | None,
    typer.Option("--storage-option", help="key=value of delta-rs, for tables in object stores"),
]
Since = Annotated[datetime | None, typer.Option(formats=_TIMES, help="From this time on, UTC")]
Until = Annotated[datetime | None, typer.Option(formats=_TIMES, help="Up to this time, UTC")]
Where = Annotated[str | None, typer.Option(help="SQL condition over the columns")]
Entity = Annotated[str, typer.Argument(help="A queue, or topic/subscriptions/name")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this it is only shown")]


@app.command()
def archive(
    entities: Annotated[list[str], typer.Argument(help="Queues and topics")],
    table: Annotated[str, typer.Option(help="Folder or address of the Delta table")],
    connection: Connection,
    once: Annotated[bool, typer.Option("--once", help="Stop when all that is there is in")] = False,
    every: Annotated[float, typer.Option(help="Seconds between batches")] = 10.0,
    checkpoint: Annotated[str | None, typer.Option(help="Folder [within the table]")] = None,
    compact_every: Annotated[int, typer.Option(help="Batches between compactions")] = 60,
    fail_on_data_loss: Annotated[
        bool, typer.Option(help="Stop where events were trimmed before they were archived")
    ] = True,
    storage_option: Storage = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Keep the history of queues and topics in a Delta table, each event exactly once."""
    with _spark("archive", master, conf) as (spark, console):
        from pyspark_postbus.pipelines import console as shown
        from pyspark_postbus.pipelines.archive import archive as start

        # Ends like Ctrl-C: the running batch is finished, or repeated by the next run.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with shown.bars(console) as progress:
            view = shown.ArchiveView(progress, entities)
            is_whole = False
            try:
                running = start(
                    spark, connection, table, entities, once=once, every_s=every,
                    checkpoint=checkpoint, storage=_pairs(storage_option),
                    compact_every=compact_every, fail_on_data_loss=fail_on_data_loss,
                    told=view.tell,
                )  # fmt: skip
                running.run()
                is_whole = True
            except KeyboardInterrupt:
                pass
        console.print(f"{view.total:,} events were added to {table}")
        if once and not is_whole:
            _fail("interrupted: run it again for the rest", status=_INTERRUPTED)


@deadletters.command()
def triage(
    entities: Annotated[list[str], typer.Argument(help="Queues, topics, subscriptions")],
    connection: Connection,
    where: Where = None,
    samples: Annotated[int, typer.Option(help="Samples of each kind; 0 shows none")] = 3,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Sort dead letters into kinds: how many, since when, and what they look like."""
    with _spark("triage", master, conf) as (spark, console):
        from pyspark_postbus.pipelines import console as shown
        from pyspark_postbus.pipelines.inputs import read_dead_letters
        from pyspark_postbus.pipelines.triage import triage as sort

        with console.status("Reading the dead letters"):
            letters = read_dead_letters(spark, connection, *entities)
            sorted_out = sort(letters.where(where) if where else letters, max(samples, 1))
            shown.show_triage(console, sorted_out, samples > 0)


@deadletters.command()
def repair(
    entity: Entity,
    connection: Connection,
    where: Where = None,
    edit: Annotated[
        list[str] | None,
        typer.Option("--set", help="name=expression in SQL; name: a column or properties.<name>"),
    ] = None,
    function: Annotated[
        str | None,
        typer.Option(help="module:function, from a letter's columns to what is to be changed"),
    ] = None,
    to: Annotated[str | None, typer.Option(help="Entity to send to [where it came from]")] = None,
    yes: Yes = False,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Send dead letters back, changed or as they are. Without --yes it only shows what it would do.

    Each letter is moved in one step: killed at any moment, this is run again and goes on."""
    with _spark("repair", master, conf) as (spark, console):
        from pyspark_postbus.pipelines.deadletters import prepare
        from pyspark_postbus.pipelines.edits import load_function, parse_edits
        from pyspark_postbus.pipelines.inputs import read_dead_letters

        with console.status("Reading the dead letters"):
            planned = prepare(
                read_dead_letters(spark, connection, entity), entity, where,
                parse_edits(edit or []), load_function(function) if function else None,
            )  # fmt: skip
        _carry_out(console, planned, connection, to, yes, "sent again")


@deadletters.command()
def discard(
    entity: Entity,
    connection: Connection,
    where: Where = None,
    yes: Yes = False,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Remove dead letters for good. Without --yes it only shows how many."""
    with _spark("discard", master, conf) as (spark, console):
        from pyspark_postbus.pipelines.deadletters import prepare
        from pyspark_postbus.pipelines.inputs import read_dead_letters

        with console.status("Reading the dead letters"):
            planned = prepare(read_dead_letters(spark, connection, entity), entity, where)
        _carry_out(console, planned, connection, None, yes, "discarded")


def _carry_out(
    console: "Console", planned: "Repair", connection: str, to: str | None, yes: bool, what: str
) -> None:
    from pyspark_postbus.pipelines import console as shown
    from pyspark_postbus.pipelines.inputs import known_feed

    if to is not None:
        known_feed(connection, to)
    if not yes:
        shown.show_plan(console, planned, what)
        console.print("Nothing was changed; --yes does it.")
        return
    with shown.bars(console) as progress:
        view = shown.RepairView(progress, what, planned.outcome.selected)
        if what == "discarded":
            outcome = planned.discard(connection, view.tell)
        else:
            outcome = planned.resubmit(connection, to, view.tell)
    if not shown.show_outcome(console, outcome):
        sys.exit(1)


@app.command()
def report(
    entities: Annotated[list[str] | None, typer.Argument(help="Queues and topics")] = None,
    connection: MaybeConnection = None,
    table: Annotated[str | None, typer.Option(help="An archive, in place of the feed")] = None,
    out: Annotated[Path, typer.Option(help="Folder to write to")] = Path("postbus-report"),
    since: Since = None,
    until: Until = None,
    prices: Annotated[Path | None, typer.Option(help="Price table, TOML or JSON")] = None,
    storage_option: Storage = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Write a page on throughput, latency, backlog, dead letters and cost, with its tables."""
    if table is None and not (entities and connection):
        _fail("name entities and a connection string, or an archive with --table", status=2)
    with _spark("report", master, conf) as (spark, console):
        from pyspark_postbus.pipelines.prices import load_prices
        from pyspark_postbus.pipelines.report import report as write

        table_of_prices = load_prices(prices) if prices else None
        with console.status("Reading and counting the events"):
            written = write(
                spark, out, connection if table is None else None, entities or (), table=table,
                storage=_pairs(storage_option), since=_utc(since), until=_utc(until),
                prices=table_of_prices,
            )  # fmt: skip
        console.print(f"{written.events:,} events: {written.page}")


@app.command()
def replay(
    entity: Annotated[str, typer.Argument(help="The queue or topic whose messages they were")],
    to: Annotated[str, typer.Option(help="Queue or topic to send them to")],
    connection: Connection,
    table: Annotated[str | None, typer.Option(help="An archive, in place of the feed")] = None,
    since: Since = None,
    until: Until = None,
    offsets: Annotated[
        list[str] | None, typer.Option(help="partition:first-end, the end left out; repeatable")
    ] = None,
    where: Where = None,
    rate: Annotated[float | None, typer.Option(help="At most so many messages a second")] = None,
    yes: Yes = False,
    storage_option: Storage = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Send messages of a time or of a range of offsets again. Without --yes it only counts them."""
    with _spark("replay", master, conf) as (spark, console):
        from pyspark_postbus.pipelines import console as shown
        from pyspark_postbus.pipelines.replay import check_target, parse_offsets, prepare

        with console.status("Looking for the messages"):
            check_target(connection, to)
            planned = prepare(
                spark, entity, connection=connection, table=table, storage=_pairs(storage_option),
                since=_utc(since), until=_utc(until), offsets=parse_offsets(offsets or []),
                where=where,
            )  # fmt: skip
            count = planned.count()
        if not yes:
            console.print(f"{count:,} messages would be sent to {to}; --yes does it.")
            return
        with shown.bars(console) as progress:
            task = progress.add_task(f"to {to}", total=count, note="")
            sent = planned.send(
                connection, to, rate, lambda sent: progress.update(task, completed=sent)
            )
        console.print(f"{sent:,} messages were sent to {to}")


@contextmanager
def _spark(
    name: str, master: str | None, conf: list[str] | None
) -> "Iterator[tuple[SparkSession, Console]]":
    """A session for one command; a refusal becomes one line of text."""
    try:
        from pyspark_postbus.pipelines import console as shown
    except ImportError as error:
        _fail(f"{error}: pipelines need Spark, `pip install 'postbus[spark]'`", status=1)
    console = shown.terminal()
    try:
        spark = shown.started(console, name, master, conf or [])
        yield spark, console
    except shown.REFUSALS as error:
        _fail(shown.shortened(error), status=1)


def _pairs(texts: list[str] | None) -> dict[str, str] | None:
    from pyspark_postbus.pipelines.console import pairs

    return pairs(texts or []) or None


def _utc(at: datetime | None) -> datetime | None:
    return None if at is None else at.replace(tzinfo=UTC)


def _fail(text: str, status: int) -> NoReturn:
    print(f"postbus: {text}", file=sys.stderr)
    sys.exit(status)
