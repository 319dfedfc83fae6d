"""A fault that is planted on purpose: a checker that never failed proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from tests.simulation.history import Violation
from tests.simulation.run import run_seed
from tests.simulation.world import World

SEEDS_MAX = 200


@contextmanager
def nothing() -> Iterator[None]:
    yield


@dataclass(frozen=True)
class Fault:
    """What is wrong, and which promises are seen to be broken by it."""

    name: str
    promises: set[str]
    plant: Callable[[], AbstractContextManager[Any]] = nothing
    world: type[World] = World


def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], Any]:
    """A method (or function) replaced by one that is made from it."""
    return lambda: mock.patch.object(owner, name, make(getattr(owner, name)))


def does_nothing(_: Any) -> Any:
    return lambda *_, **__: None


def says_no(_: Any) -> Any:
    return lambda *_, **__: False


def find(fault: Fault, parts: Sequence[str]) -> tuple[int, Violation] | None:
    """How many seeds it takes to notice, and what is said then."""
    with fault.plant():
        for seed in range(SEEDS_MAX):
            try:
                run_seed(seed, parts, fault.world)
            except Violation as found:
                return seed + 1, found
    return None
