"""What every program of the bench does around its measurement: a folder, output, an orderly end."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from bench.brokers import ROOT, BrokerFailed
from bench.processes import machine
from bench.work import RunFailed

BUILD = ROOT / "build"
Side = TypeVar("Side")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def add_places(parser: argparse.ArgumentParser, output: str) -> None:
    """Where the data of the brokers is, and where the numbers go."""
    parser.add_argument("--folder", type=Path, default=BUILD, help="where data is kept")
    parser.add_argument("--output", type=Path, default=BUILD / output)


def conduct(measure: Callable[[argparse.Namespace, Path], int], given: argparse.Namespace) -> int:
    """Measure in a folder that is gone afterwards; SIGTERM ends it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)
    given.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=given.folder))
    try:
        return measure(given, folder)
    except (BrokerFailed, RunFailed) as error:
        say(f"bench: {error}")
        return 1
    except KeyboardInterrupt:
        say("bench: interrupted")
        return 130
    finally:
        shutil.rmtree(folder)


def begun(folder: Path, **asked: object) -> dict[str, Any]:
    """When and on what a measurement is made, which is said too, and what was asked for."""
    on = machine(folder)
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    say(f"{date}, {', '.join(f'{name}: {told}' for name, told in on.items())}")
    return {"date": date, "machine": on, **asked}


def alternating(sides: Sequence[Side], rounds: int) -> Iterator[tuple[int, Side]]:
    """The number of the round and each side in it; who goes first changes by the round."""
    for index in range(1, rounds + 1):
        for side in sides if index % 2 else sides[::-1]:
            yield index, side


def write_json(path: Path, told: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=1) + "\n")
    say(f"All numbers: {path}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
