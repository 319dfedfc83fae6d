"""Fuzz by hand, for as long as you like: `make fuzz ARGS='--seconds 600 --target sections'`."""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.fuzz.driver import Finding, Fuzzer, Target
from tests.fuzz.targets import TARGETS

FINDINGS_MAX = 20


def fuzz(target: Target, seconds: float, seed: int) -> int:
    """Returns the number of findings; each is printed, and kept in the corpus."""
    fuzzer = Fuzzer(target, seed)
    findings = 0
    ends = time.monotonic() + seconds
    try:
        fuzzer.replay()
    except Finding as finding:
        print(f"in the corpus already: {finding}")
        findings += 1
    while time.monotonic() < ends and findings < FINDINGS_MAX:
        try:
            fuzzer.step()
        except Finding as finding:
            print(finding)
            findings += 1
    print(
        f"{target.name}: {fuzzer.executions} executions, {len(fuzzer.places)} outcomes,"
        f" {findings} findings, seed {seed}"
    )
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="in all, over all targets")
    parser.add_argument("--target", choices=TARGETS, action="append", help="default: each in turn")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = parser.parse_args()
    chosen = given.target or list(TARGETS)
    share = given.seconds / len(chosen)
    return 1 if sum(fuzz(TARGETS[name], share, given.seed) for name in chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
