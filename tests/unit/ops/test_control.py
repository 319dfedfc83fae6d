"""The server that holds a folder can be asked from beside it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from postbus.ops.control import SOCKET, Control, ControlError, ask


class Desk:
    """Requests that came in, and what they do."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.begun = asyncio.Event()
        self.given_up = asyncio.Event()

    async def note(self, argument: str) -> None:
        self.done.append(argument)

    async def repeat(self, argument: str) -> object:
        return {"said": [argument] * 20_000}

    async def fail(self, argument: str) -> None:
        raise ValueError(f"cannot do {argument}")

    async def take_long(self, argument: str) -> None:
        self.begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            self.given_up.set()


@asynccontextmanager
async def open_desk(folder: Path) -> AsyncIterator[Desk]:
    desk = Desk()
    asked = {"note": desk.note, "fail": desk.fail, "repeat": desk.repeat}
    control = Control(folder, {**asked, "take_long": desk.take_long})
    await control.open()
    try:
        yield desk
    finally:
        await control.close()


def test_what_is_asked_is_done_before_the_answer(run: Any, tmp_path: Path) -> None:
    async def story() -> None:
        async with open_desk(tmp_path) as desk:
            await asyncio.to_thread(ask, tmp_path, "note", "this")
            assert desk.done == ["this"]

    run(story())


def test_an_answer_may_be_much_longer_than_a_question(run: Any, tmp_path: Path) -> None:
    async def story() -> None:
        async with open_desk(tmp_path):
            answer = await asyncio.to_thread(ask, tmp_path, "repeat", "this and that")
            assert answer == {"said": ["this and that"] * 20_000}

    run(story())


def test_a_failure_is_told_in_its_own_words(run: Any, tmp_path: Path) -> None:
    async def story() -> None:
        async with open_desk(tmp_path):
            with pytest.raises(ControlError, match="cannot do that"):
                await asyncio.to_thread(ask, tmp_path, "fail", "that")
            with pytest.raises(ControlError, match="not one that this server understands"):
                await asyncio.to_thread(ask, tmp_path, "unheard-of", "x")

    run(story())


def test_the_socket_is_its_owners_alone_and_goes_with_the_server(run: Any, tmp_path: Path) -> None:
    async def story() -> None:
        async with open_desk(tmp_path):
            assert (tmp_path / SOCKET).stat().st_mode & 0o777 == 0o600
        assert not (tmp_path / SOCKET).exists()

    run(story())


def test_a_dead_servers_socket_is_no_obstacle(run: Any, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / SOCKET))
    with pytest.raises(ControlError, match="does not answer"):
        ask(tmp_path, "note", "this")

    async def story() -> None:
        async with open_desk(tmp_path) as desk:
            await asyncio.to_thread(ask, tmp_path, "note", "this")
            assert desk.done == ["this"]

    run(story())


def test_a_folder_of_any_depth_will_do(run: Any, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)

    async def story() -> None:
        async with open_desk(deep) as desk:
            await asyncio.to_thread(ask, deep, "note", "this")
            assert desk.done == ["this"]

    run(story())


@pytest.mark.parametrize("request_line", [b"\n", b"{}\n", b"[1]\n", b"nonsense\n", b"9" * 70_000])
def test_nonsense_is_answered_and_harms_nobody(
    run: Any, tmp_path: Path, request_line: bytes
) -> None:
    async def story() -> None:
        async with open_desk(tmp_path) as desk:
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET))
            writer.write(request_line)
            assert b"not one that this server understands" in await reader.readline()
            writer.close()
            await asyncio.to_thread(ask, tmp_path, "note", "this")
            assert desk.done == ["this"]

    run(story())


def test_work_is_given_up_when_its_asker_leaves_or_the_server_stops(
    run: Any, tmp_path: Path
) -> None:
    async def leave(desk: Desk) -> None:
        _, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET))
        writer.write(b'{"ask": "take_long", "with": "x"}\n')
        await desk.begun.wait()
        writer.close()

    async def story() -> None:
        async with open_desk(tmp_path) as desk:
            await leave(desk)
            await asyncio.wait_for(desk.given_up.wait(), 5)
        async with open_desk(tmp_path) as desk:
            waiting = asyncio.create_task(asyncio.to_thread(ask, tmp_path, "take_long", "x"))
            await desk.begun.wait()
        assert desk.given_up.is_set()
        with pytest.raises(ControlError, match="given up"):
            await waiting

    run(story())
