"""A thread for each store: it runs calls in order, outside the event loop.

fdatasync takes milliseconds, and now and then a hundred of them; the loop must not wait for it.
The order keeps pages consistent: a page that was read before a commit arrives before that commit's
answer.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class StoreThread:
    """Runs calls one after the other. Their results come to the loop in the same order."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: SimpleQueue[
            tuple[Callable[[], Any], Callable[[Any], None], Callable[[BaseException], None]] | None
        ] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self,
        call: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Run `call` on the thread, then `done` or `failed` on the loop."""
        self._calls.put((call, done, failed))

    async def run(self, call: Callable[[], T]) -> T:
        """Run `call` on the thread, and wait for its result."""
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: T) -> None:
            if not future.done():
                future.set_result(result)

        def failed(error: BaseException) -> None:
            if not future.done():
                future.set_exception(error)

        self.submit(call, done, failed)
        return await future

    async def stop(self) -> None:
        """Finish all submitted calls, then end the thread."""
        self._calls.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            call, done, failed = item
            try:
                result = call()
            except BaseException as error:
                self._loop.call_soon_threadsafe(failed, error)
            else:
                self._loop.call_soon_threadsafe(done, result)
