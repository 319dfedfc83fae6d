"""Fixtures for tests of the server's parts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture(params=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Any:
    """Run a coroutine on one of the loops that the server can be on."""

    def runner(story: Any) -> Any:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as on:
            return on.run(story)

    return runner
