"""An event loop in a thread of its own, for callers without one."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Started at its first use. Calls carry the context variables of the caller."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = 0

    def run(self, call: Callable[[], Coroutine[Any, Any, T]], within: float | None = None) -> T:
        """Run a coroutine to its end. Raises TimeoutError if it takes longer."""
        loop = self._started()
        if threading.current_thread() is self._thread:
            raise RuntimeError("an on_change function cannot wait for the client that calls it")
        future = asyncio.run_coroutine_threadsafe(call(), loop)
        try:
            return future.result(within)
        except BaseException:
            future.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._process = os.getpid()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="postbus-paired", daemon=True
                )
                self._thread.start()
            elif self._process != os.getpid():
                raise RuntimeError("the client was used before a fork: make one in this process")
            return self._loop

    def stop(self) -> None:
        """End the thread; nothing may be under way."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
