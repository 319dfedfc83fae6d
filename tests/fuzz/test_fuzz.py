"""A short run of every target: its corpus, and some thousands of inputs made from it."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator

import pytest

from tests.fuzz import driver
from tests.fuzz.driver import Finding, Fuzzer, Target, corpus_of, execute
from tests.fuzz.targets import TARGETS

EXECUTIONS = {"stream": 1_500, "frames": 1_500, "management": 1_500, "config": 1_500}
EXECUTIONS_ELSE = 4_000

# One is given what only looks like a host, which compiled code does not take.
_MARKS = {"management": pytest.mark.interpreted_only}
targets = pytest.mark.parametrize(
    "target",
    [pytest.param(each, id=name, marks=_MARKS.get(name, ())) for name, each in TARGETS.items()],
)


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Some inputs are so deep that the stack is nearly full while they are read: not the moment
    to find what other tests have left behind."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@targets
def test_the_corpus_is_taken_or_refused_as_documented(target: Target) -> None:
    assert len(corpus_of(target)) >= 5
    Fuzzer(target, 0).replay()


@targets
def test_inputs_made_from_the_corpus_are_taken_or_refused_as_documented(target: Target) -> None:
    fuzzer = Fuzzer(target, 1)
    fuzzer.replay()
    for _ in range(EXECUTIONS.get(target.name, EXECUTIONS_ELSE)):
        fuzzer.step()


def test_a_finding_is_kept_and_printed(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(data: bytes) -> None:
        if len(data) > 3:
            raise KeyError(data)

    monkeypatch.setattr(driver, "CORPUS", tmp_path)
    target = Target("planted", run, (ValueError,))
    fuzzer = Fuzzer(target, 0)

    def search() -> None:
        for _ in range(10_000):
            fuzzer.step()

    with pytest.raises(Finding, match="KeyError") as found:
        search()
    [kept] = corpus_of(target)
    assert kept.read_bytes() == found.value.data
    assert str(kept) in str(found.value) and found.value.data.hex() in str(found.value)


def test_a_refusal_that_is_documented_is_no_finding() -> None:
    def run(data: bytes) -> None:
        raise ValueError(random.Random(0).random())

    assert "ValueError" in execute(Target("planted", run, (ValueError,)), b"")
