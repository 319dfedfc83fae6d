"""`postbus feed`: what change feeds keep, how far their readers are, and their events as they
come."""

import json
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from postbus.settings import CONNECTION_STRING

if TYPE_CHECKING:
    from postbus.client.feed_client import FeedClient

AGAIN_S: Final = 1.0
"""Between two attempts to reach a broker that is gone for a moment."""

app = typer.Typer(
    help="Look at the change feeds: what is kept, who reads it, what happens.",
    no_args_is_help=True,
)

_ConnectionString = Annotated[
    str,
    typer.Option(
        "--connection-string",
        envvar=CONNECTION_STRING,
        help="As `postbus serve` prints it; a key that listens will do for entities named here",
        show_default=False,
    ),
]


@app.command()
def status(
    connection_string: _ConnectionString,
    entities: Annotated[
        list[str] | None, typer.Argument(help="Queues and topics [all: needs a key that manages]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs")] = False,
) -> None:
    """Show what each feed keeps, and how far its readers are behind."""
    from postbus.client.feed_client import FeedClient, FeedFailed

    try:
        client = FeedClient(connection_string)
        found = [client.describe(name) for name in entities or client.entities()]
    except FeedFailed as error:
        _fail(error)
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        _show(found)


@app.command()
def tail(
    connection_string: _ConnectionString,
    entity: Annotated[str, typer.Argument(help="A queue or a topic")],
    start: Annotated[
        str,
        typer.Option("--from", help="`first`, `next` (what comes from now on), or an offset"),
    ] = "next",
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Go on when all there is has been shown")
    ] = True,
) -> None:
    """Print the events of a feed as JSON lines, as they come. Takes nothing from anyone."""
    from postbus.client.feed_client import WAIT_S, FeedClient, FeedFailed

    try:
        client = FeedClient(connection_string)
        page = client.describe(entity)
        offsets = {each["fragment"]: _begin(each, start) for each in page["fragments"]}
        ends = {each["fragment"]: each["next"] for each in page["fragments"]}
        # Fragments are asked in turn, so where there are several, each may wait only briefly.
        wait_s = max(1, WAIT_S // len(offsets)) if follow else 0
        is_done = False
        while not is_done:
            for fragment, offset in offsets.items():
                offsets[fragment] = _print(client, entity, fragment, offset, wait_s)
            is_done = not follow and all(offsets[each] >= ends[each] for each in ends)
    except FeedFailed as error:
        _fail(error)
    except BrokenPipeError:
        sys.exit(0)  # the reader of our output has closed it
    except KeyboardInterrupt:
        sys.exit(130)


def _print(client: "FeedClient", entity: str, fragment: int, offset: int, wait_s: int) -> int:
    """Print the events from an offset on; returns the next offset."""
    from postbus.client.feed_client import FeedUnreachable

    lost = False
    while True:
        try:
            for line in client.lines(entity, fragment, offset, wait_s):
                if isinstance(line, int):
                    return line
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
                offset = json.loads(line)["offset"] + 1
        except FeedUnreachable as error:
            if not wait_s:
                raise
            if not lost:
                print(f"postbus: {error}; trying again", file=sys.stderr)
            lost = True
            time.sleep(AGAIN_S)


def _begin(fragment: dict[str, Any], start: str) -> int:
    if start in ("first", "next"):
        return int(fragment[start])
    if start.isascii() and start.isdigit():
        return int(start)
    raise typer.BadParameter(f"'{start}' is none of first, next and a number", param_hint="--from")


def _show(found: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    feeds = Table(
        *("entity", "kind", "fragment", "first", "next", "kept since", "MB", "retention"),
        box=None,
        pad_edge=False,
    )
    readers = Table(
        *("reader", "entity", "next", "lag", "behind", "last heard of", "query"),
        box=None,
        pad_edge=False,
    )
    for page in found:
        kept = page["retention"]
        for each in page["fragments"]:
            feeds.add_row(
                *(page["entity"], page["kind"], str(each["fragment"])),
                *(str(each["first"]), str(each["next"]), _time(each["firstTime"])),
                f"{each['bytes'] / (1 << 20):.1f}",
                f"{kept['hours']} h, {kept['mb']} MB",
            )
        for one in page["readers"]:
            readers.add_row(
                *(one["name"], page["entity"], ", ".join(map(str, one["offsets"].values()))),
                *(str(one["lag"]), f"{one['lagTime'] / 1_000:.0f} s", _time(one["updated"])),
                one["query"] or "",
            )
    console = Console(highlight=False, markup=False)
    console.print(feeds)
    if readers.row_count:
        console.print()
        console.print(readers)


def _time(instant: int | None) -> str:
    if instant is None:
        return ""
    return datetime.fromtimestamp(instant / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _fail(error: Exception) -> NoReturn:
    print(f"postbus: {error}", file=sys.stderr)
    sys.exit(1)
