"""The lengths of files: measured, and compared with the list of long ones.

    python -m tests.tidy.sizes          lowers the numbers, and drops files that are short now
    python -m tests.tidy.sizes --grow   also raises numbers, and adds files that became long

`long_files.txt` has a row for each source over LINES_MAX: its length, its path, and why its idea
cannot be cut. A new row has no reason; the test fails until somebody writes one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, NamedTuple

from tests.tidy.tree import ROOT, shown

LINES_MAX: Final = 350
"""A longer source is a row of the list."""
WALL: Final = 500
"""A longer test is cut. A longer source is also named in OVER_THE_WALL."""
OVER_THE_WALL: Final = frozenset(
    {
        "src/postbus/broker/queue.py",
    }
)

LIST: Final = Path(__file__).with_name("long_files.txt")


class Row(NamedTuple):
    lines: int
    path: str
    reason: str


def length(path: Path) -> int:
    return len(path.read_text().splitlines())


def files(*folders: str) -> list[Path]:
    """The Python files below these folders."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if "node_modules" not in path.parts)


def measured() -> dict[str, int]:
    """The sources over LINES_MAX."""
    lengths = {shown(path): length(path) for path in files("src", "bench")}
    return {path: lines for path, lines in lengths.items() if lines > LINES_MAX}


def rows() -> list[Row]:
    """The list as it is written."""
    found = []
    for line in LIST.read_text().splitlines():
        lines, path, *reason = line.split(maxsplit=2)
        found.append(Row(int(lines), path, " ".join(reason)))
    return found


def rewritten(before: list[Row], now: dict[str, int], *, grow: bool) -> list[Row]:
    """The list with the numbers of today. Without `grow` no number rises and no row is added."""
    kept = {row.path: row for row in before}
    found = []
    for path, lines in now.items():
        row = kept.get(path)
        if row is not None:
            found.append(row._replace(lines=lines if grow else min(lines, row.lines)))
        elif grow:
            found.append(Row(lines, path, ""))
    return sorted(found, key=lambda row: (-row.lines, row.path))


def write(found: list[Row]) -> None:
    width = max(len(row.path) for row in found)
    LIST.write_text("".join(f"{n} {path:{width}}  {why}".rstrip() + "\n" for n, path, why in found))


if __name__ == "__main__":
    write(rewritten(rows(), measured(), grow="--grow" in sys.argv[1:]))
