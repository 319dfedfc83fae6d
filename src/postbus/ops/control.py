"""A way to ask the server that holds a data folder: a socket inside the folder.

Folder and socket belong to their owner alone. A process that can open the socket could read the
files as well, so no token is needed. One line of JSON asks, one line answers.
"""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from postbus.observe.logs import get_logger

_log = get_logger("control")

SOCKET: Final = "control.sock"
_LINE_BYTES_MAX: Final = 65_536
_ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
"""An answer may be a whole namespace as text."""
_REQUEST_TIMEOUT_S: Final = 10.0

Handler = Callable[[str], Awaitable[object]]
"""Carries out a request with its one argument, and returns a value for JSON. The text of an
exception is the answer too."""


class ControlError(Exception):
    """The server did not carry out the request; the text says why."""


class Control:
    """The server's end: answers requests by name until it is closed."""

    def __init__(self, folder: Path, handlers: Mapping[str, Handler]) -> None:
        self._folder = folder
        self._handlers = handlers
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen. The caller holds the folder's lock, so an existing socket is that of a dead
        process."""
        with _address(self._folder) as path, _bound(path) as sock:
            self._server = await asyncio.start_unix_server(
                self._answer, sock=sock, limit=_LINE_BYTES_MAX
            )

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            (self._folder / SOCKET).unlink(missing_ok=True)
        for task in list(self._answering):
            task.cancel()
        if self._answering:
            await asyncio.wait(self._answering)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            answer = await self._carry_out(reader)
            with suppress(ConnectionError):
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        finally:
            self._answering.discard(task)
            writer.close()

    async def _carry_out(self, reader: asyncio.StreamReader) -> dict[str, object]:
        try:
            line = await asyncio.wait_for(reader.readline(), _REQUEST_TIMEOUT_S)
            request = json.loads(line)
            name, argument = request["ask"], request["with"]
            handler = self._handlers[name]
        except (TimeoutError, ValueError, LookupError, TypeError):
            return {"error": "The request is not one that this server understands."}
        work = asyncio.ensure_future(handler(str(argument)))
        # A caller that has left does not want the answer any more.
        left = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
            answer = await work
        except asyncio.CancelledError:
            work.cancel()
            return {"error": "The request was given up."}
        except Exception as error:
            _log.warning("request failed", ask=name, error=str(error))
            return {"error": str(error)}
        finally:
            left.cancel()
        return {"error": None, "answer": answer}


def ask(folder: Path, name: str, argument: str) -> Any:
    """Ask the server that holds this folder, wait, and return its answer.

    Raises ControlError.
    """
    with _address(folder) as path, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(path)
            sock.sendall(json.dumps({"ask": name, "with": argument}).encode() + b"\n")
            with sock.makefile("rb") as stream:
                answer = json.loads(stream.readline(_ANSWER_BYTES_MAX))
        except (OSError, ValueError) as error:
            raise ControlError(f"The server that holds {folder} does not answer.") from error
    if answer["error"] is not None:
        raise ControlError(answer["error"])
    return answer["answer"]


@contextmanager
def _address(folder: Path) -> Iterator[str]:
    """The path of the socket, through a descriptor: its name may have only 108 bytes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


@contextmanager
def _bound(path: str) -> Iterator[socket.socket]:
    with suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        os.chmod(path, 0o600)
        yield sock
    except BaseException:
        sock.close()
        raise
