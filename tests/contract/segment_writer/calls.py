"""The calls of the operating system that this process makes, seen and steered.

The process was started with `calls.c` preloaded, so that a native thread is watched in the same way
as a Python thread. The names are those of `calls.c`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final, NamedTuple

WRITE: Final = 0
SYNC: Final = 1


class Call(NamedTuple):
    """A call that was made. A sync has a position of 0."""

    kind: int
    file: int
    position: int
    bytes: int
    """As the call returned it; -1 if it failed."""
    pieces: int


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("kind", "file", "pieces")),
        *((name, ctypes.c_long) for name in ("position", "bytes")),
    )


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.calls_at.restype = _Call
    library.calls_plan.argtypes = (ctypes.c_int, ctypes.c_long)
    return library


def plan(kind: int, *whats: int) -> None:
    """The next calls of the kind write so many bytes, or fail with an errno that is negative."""
    for what in whats:
        _library().calls_plan(kind, what)


def hold(kind: int) -> None:
    """From now on calls of the kind wait before they do anything."""
    _library().calls_hold(kind, 1)


def let_pass(kind: int) -> None:
    _library().calls_hold(kind, 0)


def await_held(kind: int) -> None:
    """Until a call of the kind waits."""
    _library().calls_await_held(kind)


def await_with_the_interpreters_lock(count: int) -> None:
    """Until so many calls were made. No thread of Python can run meanwhile."""
    ctypes.PyDLL(None).calls_await(count)


def made() -> list[Call]:
    """All calls so far."""
    found = map(_library().calls_at, range(_library().calls_made()))
    return [Call(one.kind, one.file, one.position, one.bytes, one.pieces) for one in found]
