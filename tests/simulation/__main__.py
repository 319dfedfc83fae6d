"""Run many seeds by hand: `python -m tests.simulation --seeds 20000 --jobs 2`."""

from __future__ import annotations

import argparse
import sys
import traceback
from functools import partial
from multiprocessing import Pool

from tests.simulation.disk import LogDisk
from tests.simulation.faults import find
from tests.simulation.history import Violation
from tests.simulation.planted import FAULTS
from tests.simulation.run import EVERYTHING, QUEUES, SESSIONS, TOPICS, run_seed


def _failure(parts: tuple[str, ...], on_log: bool, seed: int) -> str | None:
    try:
        if on_log:
            run_seed(seed, parts, on_disk=True, disk=LogDisk)
        else:
            run_seed(seed, parts)
    except Violation as found:
        return "\n".join([str(found), *found.__notes__])
    except Exception:
        return f"seed {seed}\n{traceback.format_exc()}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes to spread them over")
    parser.add_argument("--log", action="store_true", help="all of them on a commit log")
    parser.add_argument("--faults", action="store_true", help="how soon planted faults are found")
    parser.add_argument(
        "--parts", nargs="+", choices=EVERYTHING, default=QUEUES, help="what the world consists of"
    )
    for name, parts in {"topics": TOPICS, "sessions": SESSIONS, "everything": EVERYTHING}.items():
        parser.add_argument(
            f"--{name}", action="store_const", const=parts, dest="parts", help=" ".join(parts)
        )
    options = parser.parse_args()
    parts = tuple(options.parts)
    if options.faults:
        for fault in FAULTS.get(parts, [fault for faults in FAULTS.values() for fault in faults]):
            found = find(fault, parts)
            print(f"{fault.name}: {f'{found[0]} seeds, {found[1]}' if found else 'not found'}")
        return 0
    failures = 0
    with Pool(options.jobs) as pool:
        seeds = range(options.first, options.first + options.seeds)
        for failure in pool.imap(partial(_failure, parts, options.log), seeds, chunksize=20):
            if failure is not None:
                failures += 1
                print(failure, flush=True)
    print(f"{options.seeds} seeds from {options.first}, {failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
