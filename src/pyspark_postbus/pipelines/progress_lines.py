"""Progress where there is no terminal: a line now and then, in place of a bar that moves.

A job of an hour runs under nohup, cron or a service, and its log should tell how far it is.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import Progress, Task

EVERY_S: Final = 10.0


@contextmanager
def lines(console: Console, progress: Progress, every_s: float = EVERY_S) -> Iterator[None]:
    """Print changes of progress until the block ends; the command itself prints the result."""
    ended = threading.Event()
    teller = threading.Thread(target=_tell, args=(console, progress, every_s, ended), daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def _tell(console: Console, progress: Progress, every_s: float, ended: threading.Event) -> None:
    told: dict[int, str] = {}
    while not ended.wait(every_s):
        for task in progress.tasks:
            line = line_of(task)
            if told.get(task.id) != line:
                told[task.id] = line
                console.print(line, markup=False)


def line_of(task: Task) -> str:
    """`sent again: 500,000 of 1,000,000 (500,000 moved)`"""
    whole = "" if task.total is None else f" of {task.total:,.0f}"
    note = task.fields.get("note")
    return f"{task.description}: {task.completed:,.0f}{whole}" + (f" ({note})" if note else "")
