"""What a turn does with an engine after its requests are decided: time, deliveries, chores."""

from collections.abc import Callable
from functools import partial

from postbus.broker.message import OWNER_BITS
from postbus.broker.shared_state import SharedState
from postbus.model.instant import Instant
from postbus.runtime.fragment import GIVEN_PER_TURN, LoadedFragment, Output, Request
from postbus.runtime.session_serving import serve_sessions


def serve(fragment: LoadedFragment, now: Instant, outputs: list[Output]) -> list[Request]:
    """Let time act on the queues of a fragment, and hand out what is ready.

    Returns the work that has come up. Where there is more to hand out at once, the fragment is
    called again.
    """
    engine = fragment.engine
    assert engine is not None
    engine.tick(now)
    if engine.shared.lost_sessions:
        _tell_of_lost_sessions(fragment, engine.shared, outputs)
    if engine.topic is not None:
        engine.topic.begin_turn()  # the next one
    # Only where something became ready, or somebody came to wait.
    stirred, called = engine.shared.stirred, fragment.called
    looked_at = [*called, *(each for each in stirred if each not in called)]
    called.clear()
    stirred.clear()
    room = GIVEN_PER_TURN
    for_more: list[int] = []
    for subqueue in looked_at:
        line = fragment.lines.get(subqueue)
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
        outputs += [(fragment, output) for output in given]
    called.update(dict.fromkeys(for_more))
    found: list[Request] = []
    if fragment.session_lines:
        found = serve_sessions(fragment, engine, looked_at, now, outputs)
    # What went out of one line, expired, may have gone into another.
    called.update(stirred)
    stirred.clear()
    departing = engine.shared.departing
    if departing and fragment.on_outbox is not None:
        outputs += [(fragment, partial(fragment.on_outbox, n)) for n in departing]
        departing.clear()
    return [*found, *fragment.due_chores(engine, looked_at, now)]


def _tell_of_lost_sessions(
    fragment: LoadedFragment, shared: SharedState, outputs: list[Output]
) -> None:
    if fragment.on_session_lost is not None:
        outputs += [
            (fragment, partial(fragment.on_session_lost, *lost)) for lost in shared.lost_sessions
        ]
    shared.lost_sessions.clear()
