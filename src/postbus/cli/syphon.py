"""`postbus syphon`: moves the messages of backlog queues back to the primary namespace."""

import asyncio
import logging
import signal
import sys
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from postbus.settings import PAIR

_Primary = Annotated[
    str,
    typer.Option(
        "--primary",
        envvar=PAIR[0],
        help="The connection string of the primary namespace, with a key that sends",
        show_default=False,
    ),
]
_Secondary = Annotated[
    str,
    typer.Option(
        "--secondary",
        envvar=PAIR[1],
        help="The connection string of the secondary namespace, with a key that listens",
        show_default=False,
    ),
]
_Name = Annotated[
    str | None,
    typer.Option(
        "--primary-name",
        help="The first part of the backlog queues' names [the first label of the primary's host]",
        show_default=False,
    ),
]
_Count = Annotated[
    int, typer.Option("--backlog-queue-count", min=1, help="How many backlog queues there are")
]


def syphon(
    primary: _Primary, secondary: _Secondary, primary_name: _Name = None, count: _Count = 10
) -> None:
    """Move messages from the backlog queues of a paired client to where they were sent."""
    from postbus.client.backlog_names import backlog_paths, is_name
    from postbus.client.connection_string import BadConnectionString, parse
    from postbus.syphon.syphon import Syphon, SyphonFault

    try:
        ends = parse(primary), parse(secondary)
        if primary_name is not None and not is_name(primary_name):
            raise ValueError(f"no part of a queue's name: '{primary_name[:80]}'")
        queues = backlog_paths(ends[0].host, primary_name, count)
    except (BadConnectionString, ValueError) as error:
        _fail(str(error).replace("primary_name", "--primary-name"), 2)
    if (ends[0].host, ends[0].port) == (ends[1].host, ends[1].port):
        _fail("the two namespaces are the same", 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    working = Syphon(*ends, queues)
    print(f"postbus syphon: {len(queues)} queues, {queues[0]} and on", flush=True)
    try:
        asyncio.run(_until_stopped(working.run()))
    except SyphonFault as fault:
        _fail(str(fault), 1)
    meter = working.meter
    print(
        f"postbus syphon: {meter.moved} moved, {meter.dead_lettered} dead letters, "
        f"{meter.left} left for later"
    )


async def _until_stopped(work: object) -> None:
    """Run until SIGTERM or Ctrl-C."""
    assert asyncio.iscoroutine(work)
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


def _fail(reason: str, status: int) -> NoReturn:
    print(f"postbus: {reason}", file=sys.stderr)
    sys.exit(status)
