"""Run many seeds by hand: `python -m tests.simulation --seeds 20000 --jobs 2`."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from multiprocessing import Pool

from tests.simulation.faults import FAULTS, find
from tests.simulation.history import Violation
from tests.simulation.run import run_seed
from tests.simulation.sessions.faults import SESSION_FAULTS, find_in_sessions
from tests.simulation.sessions.play import run_session_seed
from tests.simulation.topics.faults import TOPIC_FAULTS, find_in_topics
from tests.simulation.topics.play import run_topic_seed


def _failure(seed: int) -> str | None:
    return _told(seed, run_seed)


def _topic_failure(seed: int) -> str | None:
    return _told(seed, run_topic_seed)


def _session_failure(seed: int) -> str | None:
    return _told(seed, run_session_seed)


def _told(seed: int, run: Callable[[int], object]) -> str | None:
    try:
        run(seed)
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
    parser.add_argument("--faults", action="store_true", help="how soon planted faults are found")
    parser.add_argument("--topics", action="store_true", help="topics, rather than one queue")
    parser.add_argument(
        "--sessions", action="store_true", help="sessions, duplicates and transactions"
    )
    options = parser.parse_args()
    play, faults, search = _failure, FAULTS, find
    if options.topics:
        play, faults, search = _topic_failure, TOPIC_FAULTS, find_in_topics
    elif options.sessions:
        play, faults, search = _session_failure, SESSION_FAULTS, find_in_sessions
    if options.faults:
        for fault in faults:
            found = search(fault)
            print(f"{fault.name}: {f'{found[0]} seeds, {found[1]}' if found else 'not found'}")
        return 0
    failures = 0
    with Pool(options.jobs) as pool:
        seeds = range(options.first, options.first + options.seeds)
        for failure in pool.imap(play, seeds, chunksize=20):
            if failure is not None:
                failures += 1
                print(failure, flush=True)
    print(f"{options.seeds} seeds from {options.first}, {failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
