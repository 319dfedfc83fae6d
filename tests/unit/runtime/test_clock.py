"""Time goes forward, whatever the machine's clock does."""

from __future__ import annotations

from postbus.runtime.clock import SystemClock

MS = 1_000_000
T0 = 1_700_000_000_000


class Machine:
    """A machine whose clocks a test sets."""

    def __init__(self) -> None:
        self.wall = T0 * MS
        self.monotonic = 5_000 * MS

    def pass_ms(self, elapsed_ms: int) -> None:
        self.wall += elapsed_ms * MS
        self.monotonic += elapsed_ms * MS

    def step_ms(self, by_ms: int) -> None:
        """Somebody sets the wall clock."""
        self.wall += by_ms * MS

    def clock(self, not_before: int = 0) -> SystemClock:
        return SystemClock(
            not_before, wall_ns=lambda: self.wall, monotonic_ns=lambda: self.monotonic
        )


def test_it_follows_the_wall_clock() -> None:
    machine = Machine()
    clock = machine.clock()
    assert clock.now() == T0
    machine.pass_ms(250)
    assert clock.now() == T0 + 250


def test_it_follows_a_step_forward_at_once() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.step_ms(3_600_000)
    assert clock.now() == T0 + 3_600_000


def test_after_a_step_back_it_neither_goes_back_nor_stands_still() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.pass_ms(1_000)
    before = clock.now()
    machine.step_ms(-10_000)
    assert clock.now() == before
    machine.pass_ms(1_000)
    assert clock.now() == before + 500


def test_after_a_step_back_it_meets_the_wall_clock_again() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.step_ms(-10_000)
    previous = clock.now()
    for _ in range(300):
        machine.pass_ms(100)
        assert clock.now() >= previous
        previous = clock.now()
    assert clock.now() == T0 - 10_000 + 30_000


def test_many_calls_within_a_millisecond_do_not_lose_time() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.step_ms(-60_000)
    for _ in range(10_000):
        machine.wall += 1_000
        machine.monotonic += 1_000
        clock.now()
    assert clock.now() == T0 + 5


def test_it_does_not_start_before_what_an_earlier_run_has_written() -> None:
    machine = Machine()
    assert machine.clock(not_before=T0 + 7_000).now() == T0 + 7_000
    assert machine.clock(not_before=T0 - 7_000).now() == T0


def test_the_wall_clock_is_told_as_it_is() -> None:
    machine = Machine()
    clock = machine.clock(not_before=T0 + 7_000)
    assert clock.wall() == T0
    machine.step_ms(3_600_000)
    assert clock.now() == clock.wall() == T0 + 3_600_000
    machine.step_ms(-3_600_000)
    assert clock.wall() == T0 and clock.now() == T0 + 3_600_000


def test_the_real_clock_runs() -> None:
    clock = SystemClock()
    assert T0 < clock.now() <= clock.now()
