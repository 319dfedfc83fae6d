"""What a turn does with an engine after its requests are decided: time, deliveries, chores."""

from collections.abc import Callable
from functools import partial

from postbus.broker.fragment import Fragment
from postbus.broker.message import OWNER_BITS
from postbus.model.instant import Instant
from postbus.runtime.fragment import GIVEN_PER_TURN, Host, Output, Request
from postbus.runtime.session_serving import serve_sessions


def serve(host: Host, now: Instant, outputs: list[Output]) -> list[Request]:
    """Let time act on the queues of a fragment, and hand out what is ready.

    Returns the work that has come up. Where there is more to hand out at once, the host has been
    called again.
    """
    engine = host.engine
    assert engine is not None
    engine.tick(now)
    if engine.fragment.lost_sessions:
        _tell_of_lost_sessions(host, engine.fragment, outputs)
    if engine.topic is not None:
        engine.topic.begin_turn()  # the next one
    # Only where something became ready, or somebody came to wait.
    stirred, called = engine.fragment.stirred, host.called
    looked_at = [*called, *(each for each in stirred if each not in called)]
    called.clear()
    stirred.clear()
    room = GIVEN_PER_TURN
    for_more: list[int] = []
    for subqueue in looked_at:
        line = host.lines.get(subqueue)
        if line is None or not line.waiting:
            continue
        queue = engine.queues.get(subqueue >> OWNER_BITS)
        if queue is None or not queue.policy.receives or queue.forwards(subqueue):
            continue
        if room <= 0:
            called[subqueue] = None  # the first in the next turn
            continue
        given: list[Callable[[], None]] = []
        if line.dispatch(queue, now, room, given):
            for_more.append(subqueue)
        room -= line.given
        outputs += [(host, output) for output in given]
    called.update(dict.fromkeys(for_more))
    found: list[Request] = []
    if host.session_lines:
        found = serve_sessions(host, engine, looked_at, now, outputs)
    # What went out of one line, expired, may have gone into another.
    called.update(stirred)
    stirred.clear()
    departing = engine.fragment.departing
    if departing and host.on_outbox is not None:
        outputs += [(host, partial(host.on_outbox, n)) for n in departing]
        departing.clear()
    return [*found, *host.due_chores(engine, looked_at, now)]


def _tell_of_lost_sessions(host: Host, fragment: Fragment, outputs: list[Output]) -> None:
    if host.on_session_lost is not None:
        outputs += [(host, partial(host.on_session_lost, *lost)) for lost in fragment.lost_sessions]
    fragment.lost_sessions.clear()
