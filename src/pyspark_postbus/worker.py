"""Preparation of a Spark process before its first read: it stays for the tasks that follow.

After each task Spark looks for garbage in a worker, in everything that its modules consist of. That
takes 40 ms, in which ten thousand events are decoded. And the C library hands memory in pieces as
large as a chunk of the feed back to the system at once. The next chunk then needs cleared pages.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from functools import cache
from typing import Final

from pyspark import TaskContext

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties that Spark gives to the tasks of a micro-batch."""

# <malloc.h> of glibc.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_FROM_BYTES: Final = 32 << 20
"""The most that glibc takes. Smaller pieces are taken from memory that was freed before."""
_KEPT_BYTES: Final = 64 << 20
"""More than this is handed back: a task holds three chunks of 8 MiB or so, and their rows."""


def settle() -> None:
    """Does nothing outside of a task, where the process belongs to somebody else."""
    if TaskContext.get() is not None:
        _settle_once()


@cache
def _settle_once() -> None:
    gc.collect()
    gc.freeze()
    if sys.platform == "linux":
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)
        if set_option is not None:  # other C libraries have none
            set_option(_M_MMAP_THRESHOLD, _KEPT_FROM_BYTES)
            set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)
