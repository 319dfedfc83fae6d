"""Imports that take less time, so that `postbus serve` is ready within a second.

Nearly all of that second goes into imports. Imported modules stay, so garbage collection meanwhile
finds nothing, over and over.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imported_quickly() -> Iterator[None]:
    """Import in this context with the garbage collector off."""
    # structlog loads rich, where it is installed, for tracebacks that our log never has.
    hidden = "structlog" not in sys.modules and "rich" not in sys.modules
    if hidden:
        sys.modules["rich"] = None  # type: ignore[assignment]
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if hidden:
            del sys.modules["rich"]
