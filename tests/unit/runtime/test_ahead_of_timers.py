"""A clock that is put forward is noticed; timers would be late."""

from postbus.runtime.upkeep import CLOCK_SET_MS, AheadOfTimers


class Times:
    clock = 1_000
    loop = 5.0


def test_a_clock_that_was_put_forward_is_noticed_once() -> None:
    times = Times()
    ahead = AheadOfTimers(lambda: times.clock, lambda: times.loop)
    times.clock += 1_000 + CLOCK_SET_MS + 1
    times.loop += 1.0
    assert ahead.has_changed()
    times.clock += 1_000
    times.loop += 1.0
    assert not ahead.has_changed()


def test_a_clock_that_was_put_back_makes_no_timer_late() -> None:
    times = Times()
    ahead = AheadOfTimers(lambda: times.clock, lambda: times.loop)
    times.clock += 500
    times.loop += 1.0
    assert not ahead.has_changed()
