"""A server starts on a folder that a broker of an older format has left, killed in its work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kept_folders import NAMES, assert_filled, unpack
from tests.support.server import Server

ANY_CLOCK = ("--clock-behind-max-ms", "4000000000000")


@pytest.mark.parametrize("name", NAMES)
def test_all_that_an_older_format_held_is_there(tmp_path: Path, name: str) -> None:
    server = Server(unpack(name, tmp_path / "data"), *ANY_CLOCK)
    try:
        assert_filled(server.start().connection_string)
        assert server.log.read_text().count("data format upgraded") == 2
        server.kill()
        server.start()
        assert server.log.read_text().count("data format upgraded") == 2
    finally:
        server.discard()
