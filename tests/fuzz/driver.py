"""Runs a target on its corpus and on ever more inputs made from it, from one seed.

No coverage is measured: in Python 3.11 that costs more than it finds. What an input leads to is
told by where it was refused; one that was refused where none was before joins the corpus in memory.
"""

from __future__ import annotations

import hashlib
import random
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.mutation import Mutator, mutate_bytes

CORPUS = Path(__file__).parent / "corpus"
SECONDS_MAX = 5.0
"""An input that takes longer is a finding: every input is bounded, so must be the work on it."""

SHOWN_MAX = 200
"""Bytes of a finding that are printed; its file has all of them."""


class Target(NamedTuple):
    name: str
    run: Callable[[bytes], None]
    refusals: tuple[type[Exception], ...] = ()
    """What it may raise; anything else is a finding."""
    words: Sequence[bytes] = ()
    """Worth putting in somewhere."""
    mutators: Sequence[Mutator] = ()
    """Changes that know what the bytes mean."""


class Finding(Exception):
    def __init__(self, target: Target, data: bytes, text: str, kept: Path | None = None) -> None:
        place = f"\nkept as {kept}" if kept else ""
        shown = data[:SHOWN_MAX].hex() + ("…" if len(data) > SHOWN_MAX else "")
        super().__init__(f"target {target.name}, {len(data)} bytes: {shown}\n{text}{place}")
        self.data = data


def corpus_of(target: Target) -> list[Path]:
    return sorted(path for path in (CORPUS / target.name).glob("*") if path.is_file())


def execute(target: Target, data: bytes) -> str:
    """Run one input. Returns where it led to; raises Finding."""
    started = time.monotonic()
    try:
        target.run(data)
        where = "taken"
    except target.refusals as refusal:
        where = _place_of(refusal)
    except Exception as error:
        text = "".join(traceback.format_exception(error, limit=-6))
        raise Finding(target, data, text) from error
    seconds = time.monotonic() - started
    if seconds > SECONDS_MAX:
        raise Finding(target, data, f"took {seconds:.1f} s")
    return where


def _place_of(refusal: BaseException) -> str:
    """The lines that raised it and whatever it was made from."""
    places = []
    error: BaseException | None = refusal
    while error is not None and len(places) < 4:
        last = traceback.extract_tb(error.__traceback__)[-1]
        places.append(f"{type(error).__name__} at {last.filename}:{last.lineno}")
        error = error.__cause__ or error.__context__
    return " from ".join(places)


class Fuzzer:
    def __init__(self, target: Target, seed: int) -> None:
        self.target = target
        self.chance = random.Random(f"{target.name} {seed}")
        self.pool = [path.read_bytes() for path in corpus_of(target)]
        self.places: dict[str, bytes] = {}
        """Where inputs were refused, each with the first that was."""
        self.executions = 0
        self._kept = len(self.pool)

    def replay(self) -> None:
        """The corpus as it is."""
        for data in self.pool[: self._kept]:
            self.places.setdefault(execute(self.target, data), data)
            self.executions += 1

    def step(self) -> None:
        data = self._next()
        self.executions += 1
        try:
            where = execute(self.target, data)
        except Finding as finding:
            kept = keep(self.target, data)
            text = str(finding).partition("\n")[2]
            raise Finding(self.target, data, text, kept) from finding.__cause__
        if where not in self.places:
            self.places[where] = data
            self.pool.append(data)

    def _next(self) -> bytes:
        target, chance = self.target, self.chance
        data = chance.choice(self.pool) if self.pool else b""
        if target.mutators and chance.random() < 0.6:
            for _ in range(chance.choice((1, 1, 2, 4))):
                data = chance.choice(target.mutators)(data, chance)
            if chance.random() < 0.7:
                return data
        return mutate_bytes(data, chance, self.pool, target.words)


def keep(target: Target, data: bytes) -> Path:
    """Put a finding into the corpus, where every later run meets it first."""
    folder = CORPUS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"finding-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return path
