"""The second half of a turn, after requests are decided: deadlines, deliveries and chores."""

from functools import partial

from postbus.broker.shared_state import SharedState
from postbus.broker.subqueue_numbers import owner_of
from postbus.runtime.loaded_fragment import GIVEN_PER_TURN, LoadedFragment, Output
from postbus.runtime.requests import Request
from postbus.runtime.sessions import serve_sessions
from postbus.runtime.turn import Turn


def serve(fragment: LoadedFragment, turn: Turn) -> list[Request]:
    """Act on deadlines of a fragment, and hand out ready messages.

    Returns the chores that are due. Subqueues with more to hand out are in
    `fragment.waiting_subqueues` afterwards, for the next turn.
    """
    engine = fragment.engine
    assert engine is not None
    now, outputs = turn.now, turn.outputs
    engine.tick(now)
    if engine.shared.lost_sessions:
        _tell_of_lost_sessions(fragment, engine.shared, outputs)
    if engine.topic is not None:
        engine.topic.begin_turn()
    # Only subqueues where a message became ready or a receiver came to wait.
    ready_subqueues, waiting_subqueues = engine.shared.ready_subqueues, fragment.waiting_subqueues
    looked_at = [
        *waiting_subqueues,
        *(each for each in ready_subqueues if each not in waiting_subqueues),
    ]
    waiting_subqueues.clear()
    ready_subqueues.clear()
    room = GIVEN_PER_TURN
    for_more: list[int] = []
    for subqueue in looked_at:
        receivers = fragment.receiver_queues.get(subqueue)
        if receivers is None or not receivers.waiting:
            continue
        queue = engine.queues.get(owner_of(subqueue))
        if queue is None or not queue.policy.receives or queue.forwards(subqueue):
            continue
        if room <= 0:
            waiting_subqueues[subqueue] = None  # served first in the next turn
            continue
        if receivers.dispatch(queue, turn, fragment, room):
            for_more.append(subqueue)
        room -= receivers.given
    waiting_subqueues.update(dict.fromkeys(for_more))
    found: list[Request] = []
    if fragment.session_waiters:
        found = serve_sessions(fragment, engine, looked_at, turn)
    # An expired message of one subqueue may have become a dead letter in another.
    waiting_subqueues.update(ready_subqueues)
    ready_subqueues.clear()
    outboxes_with_work = engine.shared.outboxes_with_work
    if outboxes_with_work and fragment.on_outbox is not None:
        outputs += [(fragment, partial(fragment.on_outbox, n)) for n in outboxes_with_work]
        outboxes_with_work.clear()
    return [*found, *fragment.due_chores(engine, looked_at, now)]


def _tell_of_lost_sessions(
    fragment: LoadedFragment, shared: SharedState, outputs: list[Output]
) -> None:
    if fragment.on_session_lost is not None:
        outputs += [
            (fragment, partial(fragment.on_session_lost, *lost)) for lost in shared.lost_sessions
        ]
    shared.lost_sessions.clear()
