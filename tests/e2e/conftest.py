"""Servers of a test's own: started, killed and started again as it likes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bus import Bus
from tests.support.server import Server, SmallServer


@pytest.fixture
def make_server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Server]]:
    """Makes servers, not yet started; none outlives the test."""
    made: list[Server] = []
    kind = SmallServer if request.node.get_closest_marker("small_limits") else Server

    def make(*arguments: str, data: str = "data") -> Server:
        made.append(kind(tmp_path / data, *arguments))
        return made[-1]

    yield make
    for server in made:
        server.discard()


@pytest.fixture
def server(make_server: Callable[..., Server]) -> Server:
    return make_server().start()


@pytest.fixture
async def open_bus() -> AsyncIterator[Callable[..., Bus]]:
    opened: list[Bus] = []

    def make(server: Server, flavour: str = "async", **options: Any) -> Bus:
        opened.append(Bus(flavour, server.connection_string, **options))
        return opened[-1]

    yield make
    for bus in opened:
        await bus.close()
