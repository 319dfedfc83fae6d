"""Whatever happens, sessions are as simple as this model says: exclusive, in order, none lost.

Random histories on windows and lines so small that every page boundary is crossed, with crashes
and checkpoints in between.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postbus.broker import held_sessions, session_list, session_operations
from postbus.broker.held_sessions import Session
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER
from postbus.broker.window_budget import WindowBudget
from postbus.errors import MessageNotFound, SessionCannotBeLocked, SessionLockLost
from tests.support.sessions import SessionEngine

NAMES = ["", "a", "b", "c", "ä", "z" * 20]
LOCK_MS = 5_000
COUNT_MAX = 4


class Known:
    """One message, as the model has it."""

    def __init__(self, name: str, session_id: str, due: int) -> None:
        self.name = name
        self.session_id = session_id
        self.due = due
        self.number = 0
        self.count = 0
        self.deferred = False
        self.lock: tuple[Session, Message, bytes] | None = None


class Model:
    """Does random things, and knows what must come of them."""

    def __init__(self, engine: SessionEngine, chance: random.Random) -> None:
        self.engine = engine
        self.chance = chance
        self.messages: list[Known] = []
        self.scheduled: list[Known] = []
        self.held: dict[str, Session] = {}
        self.old_locks: list[bytes] = []
        self.states: dict[str, tuple[int, bytes]] = {}
        self.dead = 0
        self.sent = 0

    # -- what is ------------------------------------------------------------------------------

    def of(self, session_id: str) -> list[Known]:
        return [known for known in self.messages if known.session_id == session_id]

    def ready(self, session_id: str) -> list[Known]:
        return [k for k in self.of(session_id) if not k.deferred and k.lock is None]

    def locked(self) -> list[Known]:
        return [known for known in self.messages if known.lock is not None]

    # -- what is done -------------------------------------------------------------------------

    def step(self) -> None:
        actions = [self.send] * 4 + [self.take] * 6 + [self.settle] * 6 + [self.accept_next] * 3
        actions += [self.accept, self.leave, self.leave, self.wait, self.schedule, self.fetch]
        actions += [self.renew, self.set_state, self.look, self.crash, self.settle_lost]
        actions += [self.checkpoint, self.delete, self.take_and_delete]
        self.chance.choice(actions)()

    def _make(self, due: int) -> tuple[Known, int]:
        self.sent += 1
        known = Known(str(self.sent), self.chance.choice(NAMES), due)
        [number] = self.engine.put(known.session_id, known.name.encode(), scheduled_at=due)
        return known, number

    def send(self) -> None:
        for _ in range(self.chance.randint(1, 5)):
            known, known.number = self._make(0)
            self.messages.append(known)

    def schedule(self) -> None:
        known, _ = self._make(self.engine.now + self.chance.choice([100, 3_000]))
        self.scheduled.append(known)

    def accept(self) -> None:
        name = self.chance.choice(NAMES)
        if name in self.held:
            with pytest.raises(SessionCannotBeLocked):
                self.engine.accept(name)
        else:
            self.held[name] = self.engine.accept(name)

    def accept_next(self) -> None:
        offered = {name for name in NAMES if name not in self.held and self.ready(name)}
        found = self.engine.accept_next()
        if found is None:
            assert not offered
        else:
            assert found.id in offered
            self.held[found.id] = found

    def leave(self) -> None:
        if self.held:
            name = self.chance.choice(list(self.held))
            self.engine.leave(self.held[name])
            self._ended(name, failed=False)

    def _ended(self, name: str, failed: bool) -> None:
        ended = self.held.pop(name)
        for known in self.of(name):
            if known.lock is not None:
                assert known.lock[0] is ended
                self.old_locks.append(known.lock[2])
                known.lock = None
                if failed:
                    self._fail(known)

    def _fail(self, known: Known) -> None:
        known.count += 1
        if known.count >= COUNT_MAX:
            self.messages.remove(known)
            self.dead += 1

    def take(self) -> None:
        if not self.held:
            return
        name = self.chance.choice(list(self.held))
        ready = self.ready(name)
        message = self.engine.take(self.held[name])
        if message is None:
            assert not ready
            return
        assert message.message_id == f"id-{ready[0].name}"
        assert message.delivery_count == ready[0].count
        assert message.token is not None
        ready[0].lock = self.held[name], message, message.token

    def take_and_delete(self) -> None:
        if not self.held:
            return
        name = self.chance.choice(list(self.held))
        ready = self.ready(name)
        body = self.engine.take_and_delete(self.held[name])
        assert body == (ready[0].name.encode() if ready else None)
        if ready:
            self.messages.remove(ready[0])

    def settle(self) -> None:
        if not (locked := self.locked()):
            return
        known = self.chance.choice(locked)
        assert known.lock is not None
        _, message, token = known.lock
        known.lock = None
        action = self.chance.choice(["complete", "complete", "abandon", "defer", "dead_letter"])
        getattr(self.engine, action)(message)
        self.old_locks.append(token)
        if action in ("complete", "dead_letter"):
            self.messages.remove(known)
            self.dead += action == "dead_letter"
        else:
            known.deferred = known.deferred or action == "defer"
            self._fail(known)

    def settle_lost(self) -> None:
        if self.old_locks:
            with pytest.raises(SessionLockLost):
                self.engine.queue.complete(self.chance.choice(self.old_locks), self.engine.now)

    def fetch(self) -> None:
        deferred = [known for known in self.messages if known.deferred]
        if not deferred:
            return
        known = self.chance.choice(deferred)
        holder = self.held.get(known.session_id)
        if holder is None:
            with pytest.raises(SessionLockLost):
                self.engine.deferred(known.session_id, known.number)
        elif known.lock is not None:
            with pytest.raises(MessageNotFound):
                self.engine.deferred(known.session_id, known.number)
        else:
            [message] = self.engine.deferred(known.session_id, known.number)
            assert message.message_id == f"id-{known.name}" and message.token is not None
            known.lock = holder, message, message.token

    def renew(self) -> None:
        if self.held:
            self.engine.renew(self.chance.choice(list(self.held)))

    def wait(self) -> None:
        self.engine.wait(self.chance.choice([10, 1_000, LOCK_MS // 2]))
        for name, held in list(self.held.items()):
            if held.lost:
                assert held.locked_until <= self.engine.now
                self._ended(name, failed=True)
            else:
                assert held.locked_until > self.engine.now
        due = [known for known in self.scheduled if known.due <= self.engine.now]
        for known in sorted(due, key=lambda each: (each.due, int(each.name))):
            self.scheduled.remove(known)
            self.messages.append(known)
        if due:
            found = {m.message_id: m.number for m in self.engine.peek(count=250)}
            for known in due:
                known.number = found[f"id-{known.name}"]

    def set_state(self) -> None:
        if self.held:
            name = self.chance.choice(list(self.held))
            data = self.chance.choice([None, b"", self.chance.randbytes(20)])
            self.engine.set_state(name, data)
            self.states.pop(name, None)
            if data:
                self.states[name] = self.engine.now, data

    def delete(self) -> None:
        name = self.chance.choice(NAMES)
        count = self.chance.randint(1, 3)
        gone = self.ready(name)[:count]
        assert self.engine.delete_in(name, count) == len(gone)
        for known in gone:
            self.messages.remove(known)

    def checkpoint(self) -> None:
        self.engine.commit(checkpoint=True)

    def crash(self) -> None:
        self.engine.crash()
        for name in list(self.held):
            self._ended(name, failed=False)

    # -- what can be seen ---------------------------------------------------------------------

    def look(self) -> None:
        active = {known.session_id for known in self.messages if not known.deferred}
        assert self._pages(None) == sorted(active | set(self.states))
        since = self.engine.now - self.chance.randint(0, 5_000)
        changed = [name for name, (at, _) in self.states.items() if at > since]
        assert self._pages(since) == changed
        name = self.chance.choice(NAMES)
        waiting = [k.name for k in self.scheduled if k.session_id == name]
        assert sorted(self.engine.peeked(name)) == sorted([k.name for k in self.of(name)] + waiting)
        if name in self.held:
            assert self.engine.get_state(name) == self.states.get(name, (0, None))[1]
        ledger = self.engine.queue.ledger
        assert ledger.count(DEAD_LETTER) == self.dead
        bodies = sum(len(known.name) for known in self.messages + self.scheduled)
        states = sum(len(data) for _, data in self.states.values())
        assert ledger.size_bytes >= bodies + states

    def _pages(self, updated_after: int | None) -> list[str]:
        found: list[str] = []
        while page := self.engine.listed(updated_after, len(found), 2):
            found += page
        return found


@settings(max_examples=120)
@given(st.integers(0, 2**32), st.sampled_from([0, 1, 7, 40]))
def test_sessions_are_as_the_model_says(seed: int, checkpoint_every: int) -> None:
    chance = random.Random(seed)
    policy = Policy(lock_ms=LOCK_MS, max_delivery_count=COUNT_MAX)
    least = chance.choice([4, 8, 64]), chance.choice([3, 1_000])
    limits = WindowBudget(chance.choice([0, 8_000]), *least)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_operations, "READY_MAX", 2)
        patch.setattr(held_sessions, "READY_MAX", 2)
        patch.setattr(session_operations, "FIRST_ROWS", chance.choice([1, 3]))
        patch.setattr(session_list, "READ_AT_ONCE", chance.choice([1, 2, 5]))
        engine = SessionEngine(policy, limits, checkpoint_every=checkpoint_every)
        model = Model(engine, chance)
        for _ in range(120):
            model.step()
        model.crash()
        model.look()
        # Each that has messages is offered in the end, with all that it has.
        while (found := engine.accept_next()) is not None:
            assert engine.drain(found) == [known.name for known in model.ready(found.id)]
            model.messages = [k for k in model.messages if k.session_id != found.id or k.deferred]
        assert all(known.deferred for known in model.messages)
