"""One thread for each store: whatever is called there happens in order, off the event loop.

fdatasync takes milliseconds and now and then a hundred of them; the loop must not wait for it.
Order is what makes pages right: a page read before a commit arrives before that
commit's answer.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class StoreThread:
    """Runs calls one after the other; answers arrive on the loop in the same order."""

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
        """Run `call` there; then `done` or `failed` here."""
        self._calls.put((call, done, failed))

    async def run(self, call: Callable[[], T]) -> T:
        """Run `call` there and wait for it."""
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
        """Finish what was submitted, then end the thread."""
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
