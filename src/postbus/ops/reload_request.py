"""Asks the server that holds a data folder to read its file again, and shows the result."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from postbus.config.steps import Outcome, Verb
from postbus.ops.control import ControlError, ask

RELOAD: Final = "reload"
"""The name of the request to a running server."""

_STYLES: Final = {
    Verb.CREATE: "green",
    Verb.CHANGE: "yellow",
    Verb.DELETE: "red",
    Verb.LEAVE: "dim",
}


def ask_reload(folder: Path, *, dry_run: bool, prune: bool) -> Outcome:
    """Raises ControlError, also where a mistake kept everything unchanged."""
    try:
        options = json.dumps({"dry_run": dry_run, "prune": prune})
        return Outcome.from_json(ask(folder, RELOAD, options))
    except OSError as error:
        raise ControlError(f"{folder}: {error.strerror}") from error


def report(outcome: Outcome, *, dry_run: bool) -> Iterator[tuple[str, str]]:
    """Lines for people, each with the style it is shown in."""
    for number, told in enumerate(outcome.steps):
        undone = not dry_run and number >= outcome.done
        for line in told.lines():
            yield f"not done: {line}" if undone else line, _STYLES[told.verb]
    for told in outcome.left:
        for line in told.lines():
            yield line, _STYLES[told.verb]
    for note in outcome.notes:
        yield f"with the next start: {note}", "yellow"
    if not outcome.steps:
        yield "The entities are as the file has them.", ""
    elif dry_run:
        yield f"{len(outcome.steps)} steps, none of them taken.", ""
    else:
        yield f"{outcome.done} of {len(outcome.steps)} steps are done.", ""
