"""`postbus serve` where a file says by how many ms the machine's wall clock is off."""

import sys
import time
from collections.abc import Callable
from pathlib import Path


def off_by(clock_ns: Callable[[], int], file: Path) -> Callable[[], int]:
    return lambda: clock_ns() + int(file.read_text()) * 1_000_000


if __name__ == "__main__":
    # Before anything of the broker is imported: its clock takes the function as it is then.
    time.time_ns = off_by(time.time_ns, Path(sys.argv.pop(1)))
    from postbus.__main__ import main

    sys.exit(main())
