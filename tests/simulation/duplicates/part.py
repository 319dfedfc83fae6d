"""A queue that detects duplicates, and what it must know of the ids that it has seen."""

from __future__ import annotations

from postbus.broker.duplicate_history import History
from postbus.broker.duplicates import digests_of, lookup, repeated
from postbus.broker.index_pages import Pages
from postbus.broker.ledger import Ledger
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.record_kinds import RecordKind
from postbus.runtime.loading import load_page
from tests.simulation.duplicates.window import Window
from tests.simulation.history import Violation
from tests.simulation.parts import Part
from tests.simulation.promises import DROPPED, DUPLICATE, FULL, REPLAY
from tests.simulation.queues.clients import random_policy
from tests.simulation.queues.model import Event, QueueModel
from tests.simulation.queues.queues import COMES_IN, Checker, Queues
from tests.simulation.replay import Rows, index_and_tail

UNIQUE = 22
WINDOWS_MS = [400, 3_000, 30_000]


class Duplicates(Part):
    """Brings the queue, and lets other queues detect duplicates, too."""

    def __init__(self, queues: Queues) -> None:
        super().__init__(queues.world, queues.scheduler)
        self._queues = queues
        queues.checkers.append(DuplicatesAreDropped(queues))
        self._watch(queues.add(UNIQUE, "unique", self._policy))
        for model in queues.models.values():
            if model.policy.requires_session and self.chance.random() < 0.3:
                entity = self.world.entities[model.id]
                window_ms = self.chance.choice(WINDOWS_MS)
                entity.policy = entity.policy._replace(duplicate_window_ms=window_ms)
                model.policy = entity.policy
                self._watch(model)
        self.steps = {self.forget_ids: self.chance.choice([0, 1])}

    def _policy(self) -> Policy:
        window_ms = self.chance.choice(WINDOWS_MS)
        return random_policy(self._queues)._replace(duplicate_window_ms=window_ms)

    def _watch(self, model: QueueModel) -> None:
        assert model.policy.duplicate_window_ms is not None
        model.window = Window(model.policy.duplicate_window_ms)

    def forget_ids(self) -> None:
        """As `runtime.upkeep` does: segments past the window are dropped, a slice at a time."""
        models = [model for model in self._queues.models.values() if model.window is not None]
        model = self.chance.choice(models)
        fragment = self.world.fragments[model.id]
        history = None if fragment.engine is None else fragment.engine.ledger.history
        if history is not None and model.window is not None:
            model.window.forget(self.world.now)
            below, limit = history.expire(self.world.now), self.chance.choice([1, 2, 100])
            store = self.world.store_of(fragment)
            store.thread.submit(
                lambda: store.recorded.index.drop_seen(fragment.id, below, limit),
                lambda _: None,
                lambda _: None,
            )


class DuplicatesAreDropped(Checker):
    """No duplicate comes in within the window, and nothing else is dropped."""

    promise = DROPPED

    def written(self, model: QueueModel, event: Event, at: int) -> None:
        name, message_id = event.after.name, event.after.message_id
        if event.kind is RecordKind.DUPLICATE:
            if model.window is None:
                raise self.broken(None, f"{message_id} where nobody looks for duplicates")
            model.window.dropped(message_id, at)
        elif event.kind in COMES_IN and model.window is not None:
            model.window.came(message_id, name, at)

    def at_rest(self, model: QueueModel, rows: Rows) -> None:
        """The ids that were seen are known, and no others: to the engine and after a restart."""
        if model.window is None:
            return
        world = self.queues.world
        self._check_knows(FULL, model, model.window, index_and_tail(world, model.id))
        engine = world.fragments[model.id].engine
        if engine is not None:
            self._check_knows(REPLAY, model, model.window, engine.ledger)

    def _check_knows(self, promise: str, model: QueueModel, window: Window, ledger: Ledger) -> None:
        world, history = self.queues.world, ledger.history
        assert isinstance(history, History)
        sent = self.queues.messages.by_name.values()
        ids = sorted({each.message_id for each in sent} - {""})
        digests = digests_of([Message(b"", each) for each in ids])
        pages = Pages()
        need = lookup(history, digests, world.now, pages)
        store = world.store_of(world.fragments[model.id]).recorded.store
        for page in need.pages if need is not None else ():
            pages.add(page, load_page(store, model.id, page))
        answers = repeated(history, digests, world.now, pages)
        for message_id, digest, known in zip(ids, digests, answers, strict=True):
            first = window.first.get(message_id)
            text = f"{message_id} of {model.id}: {promise}, first seen at {first}"
            if known and not window.may_know(message_id, world.now):
                raise self.broken(None, text)
            at = history.recent.get(digest, pages.seen.get(digest))
            if known and at != first:
                raise self.broken(None, f"{text}, and not at {at}")
            if not known and window.must_know(message_id, world.now):
                raise Violation(DUPLICATE, None, text)
