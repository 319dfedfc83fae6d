"""The promises of sessions that are checked at quiet moments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postbus.broker.message import STATE
from postbus.broker.subqueue_numbers import MAIN
from tests.simulation import promises
from tests.simulation.queues.queues import Checker

if TYPE_CHECKING:
    from tests.simulation.sessions.part import Sessions


class SessionChecker(Checker):
    def __init__(self, sessions: Sessions) -> None:
        super().__init__(sessions.queues)
        self.sessions = sessions


class StateIsKept(SessionChecker):
    """A session has the last state that was confirmed, or one that was asked for since."""

    promise = promises.STATE

    def all_at_rest(self) -> None:
        entries = self.sessions.model.durable.entries.values()
        for session_id, states in self.sessions.states_asked.items():
            confirmed = [index for index, (_, done) in enumerate(states) if done]
            allowed = {name for name, _ in states[confirmed[-1] if confirmed else 0 :]}
            if not confirmed:
                allowed.add(None)
            found = [
                entry.name
                for entry in entries
                if entry.lane == STATE and entry.session_id == session_id
            ]
            if len(found) > 1 or (found[0] if found else None) not in allowed:
                raise self.broken(None, f"{session_id!r} has {found}, must be one of {allowed}")


class WaitersForSessionsAreServed(SessionChecker):
    promise = promises.SERVED

    def all_at_rest(self) -> None:
        world, model = self.queues.world, self.sessions.model
        if not world.policy_of(model.id).receives:
            return
        for receiver in [each for each in self.sessions.receivers if each.attached]:
            if receiver.session is not None and receiver.capacity():
                for entry in model.ready(MAIN, receiver.session.id, world.now):
                    raise self.broken(entry.name, f"receiver {receiver.holder} does not get it")
            if receiver.session is None:
                for entry in model.ready(MAIN, None, world.now):
                    if model.is_free(entry.session_id or "", world.now):
                        text = f"{entry.session_id!r} is free, and {receiver.holder} waits"
                        raise self.broken(entry.name, text)
