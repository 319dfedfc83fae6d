"""The crash test's checker finds each kind of fault: one that never failed proves nothing."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.e2e.ledger import Ledger, Place


def ledger_with(name: str, *, acknowledged: bool = True) -> Ledger:
    ledger = Ledger()
    ledger.sending((name,))
    if acknowledged:
        ledger.sent((name,))
    return ledger


def at(*found: tuple[str, Place]) -> Counter[tuple[str, Place]]:
    return Counter(found)


def test_a_message_that_is_there_is_no_fault() -> None:
    assert ledger_with("m").check(at(("m", Place.ACTIVE))) == []


def test_a_lost_message_is_found() -> None:
    assert ledger_with("m").check(at()) == ["m: lost; it should be active"]


def test_a_doubled_message_is_found() -> None:
    faults = ledger_with("m").check(at(("m", Place.ACTIVE), ("m", Place.DEAD)))
    assert faults == ["m: there 2 times (active or dead-lettered)"]


@pytest.mark.parametrize("there", [0, 1])
def test_a_send_in_doubt_may_be_there_or_not(there: int) -> None:
    ledger = ledger_with("m", acknowledged=False)
    assert ledger.check(Counter({("m", Place.ACTIVE): there})) == []


def test_half_a_batch_is_found() -> None:
    ledger = Ledger()
    ledger.sending(("m1", "m2"))
    assert ledger.check(at(("m2", Place.ACTIVE))) == ["batch of m1: 1 of 2 were stored"]


def test_a_completed_message_that_is_delivered_again_is_found() -> None:
    ledger = ledger_with("m")
    ledger.deliver("m", 1, "a")
    ledger.settling("m", Place.GONE)
    ledger.settled("m", Place.GONE)
    ledger.deliver("m", 2, "b")
    assert ledger.check(at()) == ["m: delivered, but it is gone"]


def test_a_completed_message_that_is_still_there_is_found() -> None:
    ledger = ledger_with("m")
    ledger.settling("m", Place.GONE)
    ledger.settled("m", Place.GONE)
    assert ledger.check(at(("m", Place.ACTIVE))) == ["m: active; it should be gone"]


def test_a_completion_in_doubt_may_have_happened_or_not() -> None:
    ledger = ledger_with("m")
    ledger.deliver("m", 1, "a")
    ledger.settling("m", Place.GONE)
    ledger.settlement_unanswered("m", Place.GONE)
    assert ledger.check(at()) == []
    assert ledger.check(at(("m", Place.ACTIVE))) == []


def test_a_lock_given_twice_is_found() -> None:
    ledger = ledger_with("m")
    ledger.deliver("m", 1, "a")
    ledger.deliver("m", 1, "b")
    assert ledger.check(at(("m", Place.ACTIVE))) == ["m: delivered to b while a holds it"]


def test_an_abandoned_message_may_move_on_before_the_answer_comes() -> None:
    ledger = ledger_with("m")
    ledger.deliver("m", 1, "a")
    ledger.settling("m", Place.ACTIVE)
    ledger.deliver("m", 1, "b")
    ledger.settling("m", Place.GONE)
    ledger.settled("m", Place.GONE)
    ledger.settled("m", Place.ACTIVE)
    assert ledger.check(at()) == []
    assert ledger.check(at(("m", Place.ACTIVE))) == ["m: active; it should be gone"]


def test_a_message_nobody_sent_is_found() -> None:
    assert Ledger().check(at(("m", Place.ACTIVE))) == ["m: there, but nobody sent it"]


def test_a_confirmed_move_that_was_undone_is_found() -> None:
    ledger = ledger_with("m")
    ledger.settling("m", Place.DEFERRED)
    ledger.settled("m", Place.DEFERRED)
    assert ledger.check(at(("m", Place.ACTIVE))) == ["m: active; it should be deferred"]
