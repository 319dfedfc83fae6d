"""The health of paths: each state with each event, and random timelines (R-PAIR-04, R-PAIR-07)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.paired.health import (
    PINGED_STATES,
    TRANSITIONS,
    Health,
    PathEvent,
    PathHealth,
    PathState,
    Transition,
)
from postbus.paired.rotation import Rotation

HEALTHY, SUSPECT = PathState.HEALTHY, PathState.SUSPECT
FAILED_OVER, BROKEN = PathState.FAILED_OVER, PathState.BROKEN
FAILOVER_S, PING_S = 60.0, 10.0
LOST, GONE = OSError("lost"), LookupError("gone")

# Each row is a state, each column the state after the event.
EVENTS = ["SENT", "FAILED", "INTERVAL_ENDED", "PINGED", "PING_FAILED", "PING_REFUSED",
          "MARKED_HEALTHY"]  # fmt: skip
EXPECTED = {
    HEALTHY: [HEALTHY, SUSPECT, HEALTHY, HEALTHY, HEALTHY, HEALTHY, HEALTHY],
    SUSPECT: [HEALTHY, SUSPECT, FAILED_OVER, HEALTHY, SUSPECT, SUSPECT, HEALTHY],
    FAILED_OVER: [FAILED_OVER, FAILED_OVER, FAILED_OVER, HEALTHY, FAILED_OVER, BROKEN, HEALTHY],
    BROKEN: [BROKEN, BROKEN, BROKEN, HEALTHY, BROKEN, BROKEN, HEALTHY],
}


def path_in(state: PathState, told: list[Transition], failover_s: float = FAILOVER_S) -> PathHealth:
    path = PathHealth("orders", failover_s, PING_S, 0.0, told.append)
    if state is not HEALTHY:
        path.handle(PathEvent.FAILED, 0.0, LOST)
    if state in PINGED_STATES:
        path.advance(failover_s)
    if state is BROKEN:
        path.handle(PathEvent.PING_REFUSED, failover_s, GONE)
    assert path.state is state
    told.clear()
    return path


@pytest.mark.parametrize(("state", "event"), list(itertools.product(PathState, PathEvent)))
def test_every_state_with_every_event(state: PathState, event: PathEvent) -> None:
    told: list[Transition] = []
    path = path_in(state, told)
    path.handle(event, 100.0, OSError("new"))
    after = EXPECTED[state][EVENTS.index(event.name)]
    assert path.state is after
    assert [(each.former, each.state, each.at) for each in told] == (
        [] if after is state else [(state, after, 100.0)]
    )
    assert (path.due is None) == (after is HEALTHY)
    assert (path.error is None) == (after is HEALTHY)


def test_the_table_has_every_state_and_event() -> None:
    assert set(TRANSITIONS) == set(PathEvent)
    assert all(set(row) == set(PathState) for row in TRANSITIONS.values())
    assert set(EVENTS) == {event.name for event in PathEvent}


def test_r_pair_04_the_interval_begins_with_the_first_failure_and_only_once() -> None:
    """R-PAIR-04."""
    path = path_in(SUSPECT, [])
    for at in (10.0, 30.0, 59.0):
        path.handle(PathEvent.FAILED, at, OSError("again"))
        assert path.advance(at) is SUSPECT and path.due == FAILOVER_S
    assert path.error is LOST
    assert path.advance(59.9) is SUSPECT
    assert path.advance(60.0) is FAILED_OVER


def test_r_pair_04_a_success_cancels_the_interval() -> None:
    """R-PAIR-04."""
    path = path_in(SUSPECT, [])
    path.handle(PathEvent.SENT, 59.0)
    assert path.advance(1_000.0) is HEALTHY and path.due is None
    path.handle(PathEvent.FAILED, 1_000.0, LOST)
    assert path.due == 1_000.0 + FAILOVER_S


def test_r_pair_04_an_interval_of_zero_is_over_at_once() -> None:
    """R-PAIR-04."""
    path = path_in(SUSPECT, [], failover_s=0.0)
    assert path.advance(0.0) is FAILED_OVER


def test_r_pair_05_the_first_ping_is_due_an_interval_after_failover() -> None:
    """R-PAIR-05."""
    path = path_in(FAILED_OVER, [])
    assert path.due == FAILOVER_S + PING_S
    assert not path.claim_ping(FAILOVER_S + PING_S - 0.1)
    assert path.claim_ping(FAILOVER_S + PING_S)


def test_r_pair_07_the_next_ping_is_due_an_interval_after_the_answer() -> None:
    """R-PAIR-07."""
    path = path_in(FAILED_OVER, [])
    assert path.claim_ping(100.0) and not path.claim_ping(200.0), "one at a time"
    assert path.due is None
    path.handle(PathEvent.PING_FAILED, 220.0, LOST)
    assert path.due == 220.0 + PING_S and path.pings == 1


def test_r_pair_07_a_broken_path_keeps_the_last_refusal_and_goes_on_with_pings() -> None:
    """R-PAIR-07."""
    path = path_in(BROKEN, [])
    assert path.error is GONE
    later = LookupError("still gone")
    path.handle(PathEvent.PING_REFUSED, 200.0, later)
    assert path.error is later and path.due == 200.0 + PING_S


def test_names_are_compared_without_case() -> None:
    health = Health(FAILOVER_S, PING_S, lambda change: None)
    assert health.path("Orders", 0.0) is health.path("oRDERS", 5.0)


def test_the_watch_wakes_for_the_first_thing_that_is_due() -> None:
    health = Health(FAILOVER_S, PING_S, lambda change: None)
    one, two = health.path("one", 0.0), health.path("two", 0.0)
    assert health.wake_at() is None
    one.handle(PathEvent.FAILED, 5.0, LOST)
    two.handle(PathEvent.FAILED, 3.0, LOST)
    assert health.wake_at() == 63.0
    assert health.due_pings(63.0) == [] and two.state is FAILED_OVER
    assert health.wake_at() == 65.0
    assert health.due_pings(73.0) == [two] and one.state is FAILED_OVER
    assert health.wake_at() == 83.0
    assert health.due_pings(83.0) == [one] and health.wake_at() is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "answer", "mark", "wait"]),
        st.sampled_from(["good", "lost", "refused"]),
        st.floats(0.0, 40.0),
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from([0.0, 5.0, 60.0]))
def test_random_timelines_keep_the_promises(
    steps: list[tuple[str, str, float]], failover_s: float
) -> None:
    """Never the primary while failed over or broken; back at the first good ping; one ping at a
    time; failover only after an interval without success."""
    health = Health(failover_s, PING_S, lambda change: None)
    path, now = health.path("orders", 0.0), 0.0
    under_way = 0
    failing_since: float | None = None
    for step, outcome, pause in steps:
        now += pause
        claimed = health.due_pings(now)
        under_way += len(claimed)
        assert under_way <= 1
        if claimed:
            assert path.state in PINGED_STATES
        if step == "send" and path.advance(now) in (HEALTHY, SUSPECT):
            if outcome == "good":
                path.handle(PathEvent.SENT, now)
                failing_since = None
                assert path.state is HEALTHY
            elif outcome == "lost":
                path.handle(PathEvent.FAILED, now, LOST)
                failing_since = now if failing_since is None else failing_since
                assert path.advance(now) is (SUSPECT if failover_s else FAILED_OVER) or (
                    now - failing_since >= failover_s
                )
        elif step == "answer" and under_way:
            under_way -= 1
            was = path.state
            if outcome == "good":
                path.handle(PathEvent.PINGED, now)
                failing_since = None
                assert path.state is HEALTHY
            elif outcome == "lost":
                path.handle(PathEvent.PING_FAILED, now, LOST)
                assert path.state is was
            else:
                path.handle(PathEvent.PING_REFUSED, now, GONE)
                assert path.state is (BROKEN if was in PINGED_STATES else was)
        elif step == "mark":
            path.handle(PathEvent.MARKED_HEALTHY, now)
            failing_since = None
            assert path.state is HEALTHY
        if path.state in PINGED_STATES:
            assert failing_since is not None and now - failing_since >= failover_s
            assert (path.due is None) == (under_way == 1), "a ping is due, or under way"


def test_r_pair_06_a_backlog_queue_that_failed_rests_for_all_and_comes_back() -> None:
    """R-PAIR-06."""
    rotation = Rotation(["a", "b", "c"], 10.0, lambda n: n - 1)
    assert rotation.choose(0.0, None) == "c" and rotation.choose(0.0, "a") == "a"
    rotation.take_out("c", 0.0)
    assert rotation.choose(1.0, "c") == rotation.choose(1.0, None) == "b"
    rotation.take_out("a", 2.0)
    rotation.take_out("b", 3.0)
    assert rotation.choose(9.9, "b") is None
    assert rotation.choose(10.0, "b") == "c" and rotation.usable(12.0) == ["a", "c"]
