"""Fixtures for tests of the server's parts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvloop

from postbus.tls.local_ca import make_certificate

LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture(params=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Any:
    """Run a coroutine on one of the loops that the server can be on."""

    def runner(story: Any) -> Any:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as on:
            return on.run(story)

    return runner


@pytest.fixture(scope="session")
def tls_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local CA and a certificate, as `postbus cert` makes them."""
    folder = tmp_path_factory.mktemp("tls")
    make_certificate(folder, [])
    return folder
