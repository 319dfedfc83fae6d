"""Operations that a test spells out as functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from postbus.broker.engine import Engine
from postbus.broker.index_pages import Pages
from postbus.broker.transaction import Transaction


class Do:
    """Asks a function of a fragment."""

    def __init__(self, call: Callable[[Any, int, Pages], Any]) -> None:
        self._call = call

    def decide(self, engine: Engine, now: int, pages: Pages) -> Any:
        return self._call(engine, now, pages)


class EnlistBy:
    """Makes a function part of a transaction."""

    def __init__(self, call: Callable[[Transaction, Any, int, Pages], Any]) -> None:
        self._call = call

    def enlist(self, work: Transaction, engine: Engine, now: int, pages: Pages) -> Any:
        return self._call(work, engine, now, pages)
