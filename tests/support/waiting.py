"""Waiting for something that can be asked about, with a deadline: no test sleeps and hopes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

T = TypeVar("T")

_PAUSE_S = 0.05


async def until(what: str, ask: Callable[[], Awaitable[T]], within_s: float = 15.0) -> T:
    """Ask again and again until the answer is true, and return it."""
    deadline = time.monotonic() + within_s
    while True:
        answer = await ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what} (last answer: {answer!r})")
        await asyncio.sleep(_PAUSE_S)


def until_blocking(what: str, ask: Callable[[], T], within_s: float = 15.0) -> T:
    """The same, for tests that are not coroutines."""
    deadline = time.monotonic() + within_s
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what} (last answer: {answer!r})")
        time.sleep(_PAUSE_S)


async def until_past(instant: datetime | None, margin_s: float = 0.2) -> None:
    """Wait until the wall clock has passed an instant that the server named."""
    assert instant is not None, "the message names no such instant"
    left = instant - datetime.now(UTC) + timedelta(seconds=margin_s)
    if left > timedelta(0):
        await asyncio.sleep(left.total_seconds())
