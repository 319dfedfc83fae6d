"""The rows of `make bench`: what each broker is given to do in each round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.work import BACKLOG, Case

ROWS = (
    Case("w500", "window 500 x 1 connection", 60_000, 500),
    Case("c4", "window 125 x 4 connections", 60_000, 125, connections=4),
    Case("w1x20", "window 1 x 20 connections", 20_000, 1, connections=20),
    Case("w1x1", "one sender, one receiver, window 1", 3_000, 1),
    Case("backlog", "backlog", 100_000, 500, modes=BACKLOG),
    Case("q100", "100 queues, window 5", 40_000, 5, links=100),
    Case("q1000", "1,000 queues, window 1", 20_000, 1, connections=10, links=100),
    Case("64k", "64 KB, window 50", 4_000, 50, size=65_536),
    Case("c500", "window 1 x 500 connections", 20_000, 1, connections=500),
)
WARM_UP = Case("warm-up", "warm-up", 0, 500)


class NoSuchRow(ValueError):
    """A row was asked for by a name that no row has."""


def chosen(names: str, scale: float, rows: Sequence[Case] = ROWS) -> list[Case]:
    """The rows with these names, parted by commas, or all; counts are multiplied by `scale`.

    A row is known by the names of its lines too: `drain` is a line of the backlog.
    """
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    known = {row.name: {row.name, *(name for name, _ in row.lines.values())} for row in rows}
    if unknown := wanted.difference(*known.values()):
        raise NoSuchRow(f"no row is called {', '.join(sorted(unknown))}: {', '.join(known)}")
    return [scaled(row, scale) for row in rows if not wanted or wanted & known[row.name]]


def scaled(row: Case, scale: float) -> Case:
    """Each link has at least two messages to move."""
    least = 2 * row.connections * row.links
    return replace(row, count=max(int(row.count * scale), least))
