"""Runs one engine on a store, turn by turn: what the server's runtime does, without a loop.

Time is a number that the test moves. `crash()` throws the engine away and loads it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from postbus.broker import browse, chores, records
from postbus.broker import engine as broker
from postbus.broker.duplicate_history import History
from postbus.broker.index_pages import Need, Pages
from postbus.broker.ledger import Layout, Ledger
from postbus.broker.message import Message, NewProperties
from postbus.broker.policy import Policy
from postbus.broker.queue import Queue
from postbus.broker.shared_state import SharedState
from postbus.broker.subqueue_numbers import MAIN
from postbus.broker.window_budget import WindowBudget
from postbus.runtime.loading import load_page
from postbus.store import batch
from postbus.store.memory.store import MemoryStore
from postbus.store.ports.journal import Lease, Part
from postbus.store.ports.store import Store

T = TypeVar("T")
T0 = 1_700_000_000_000
FRAGMENT = 7


class Engine:
    """A queue, its store and a clock."""

    name = "orders"

    def __init__(
        self,
        policy: Policy | None = None,
        limits: WindowBudget | None = None,
        store: Store | None = None,
        checkpoint_every: int = 0,
        fragment: int = FRAGMENT,
    ) -> None:
        self.fragment = fragment
        self.policy = policy or Policy()
        self.limits = limits or WindowBudget()
        self.store: Store = store or MemoryStore()
        self.checkpoint_every = checkpoint_every
        self.now = T0
        self.queue: Queue
        self.lease: Lease
        self._load()

    # -- turns -------------------------------------------------------------------------------

    def turn(self, call: Callable[[], T]) -> T:
        """Let the engine decide, then commit."""
        topic = self.engine.topic
        if topic is not None:
            topic.begin_turn()
        try:
            return call()
        finally:
            self.commit()

    def commit(self, checkpoint: bool = False) -> None:
        ledger = self.queue.ledger
        due = checkpoint or (
            self.checkpoint_every > 0
            and ledger.head + len(ledger.pending) - ledger.checkpoint >= self.checkpoint_every
        )
        made = ledger.make_checkpoint() if due else None
        if not ledger.pending and made is None:
            return
        data, positions = b"", []
        if ledger.pending:
            data, positions = batch.pack(
                self.fragment, self.lease.epoch, ledger.head, self.now, ledger.pending
            )
        assert len(positions) == len(ledger.pending)
        part = Part(self.lease, ledger.head, len(ledger.pending), self.now, data, made)
        assert self.store.commit([part]) == {self.fragment}
        ledger.seal()
        ledger.committed(ledger.head)
        if made is not None:
            ledger.checkpointed(made)

    def crash(self) -> None:
        """What was not committed, and everything volatile, is gone."""
        self._load()

    def _load(self) -> None:
        lease = self.store.acquire(self.fragment, "test", 0)
        ledger = Ledger(
            Layout(batch.HEADER_SIZE, batch.RECORD_PREFIX_SIZE),
            0,
            lease.checkpoint,
            lease.state,
            self._history(),
        )
        while ledger.head < lease.head:
            for stored in self.store.read(self.fragment, ledger.head, 1 << 20):
                header = batch.unpack(stored.data)
                for position, record in batch.records(stored.data):
                    ledger.replay(records.decode(record), stored.base, position, header.at)
                ledger.head = stored.base + header.record_count
        self.lease = lease
        if hasattr(self, "engine"):
            self.engine.close()
        prefix = self.fragment.to_bytes(4, "big") + lease.epoch.to_bytes(4, "big")
        shared = SharedState(ledger, self.limits, prefix, secret=lease.epoch)
        self.engine = broker.Engine(self.name, self.policy, shared)
        self.queue = self.engine.own

    def _history(self) -> History | None:
        window_ms = self.policy.duplicate_window_ms
        return None if window_ms is None else History(window_ms)

    # -- pages -------------------------------------------------------------------------------

    def paged(self, call: Callable[[Pages], Any], pages: Pages | None = None) -> Any:
        """Call, load what it needs, call again."""
        pages = pages or Pages()
        for _ in range(100):
            result = self.turn(lambda: call(pages))
            if not isinstance(result, Need):
                return result
            self.load(result, pages)
        raise AssertionError("the engine never has enough")

    def load(self, need: Need, pages: Pages) -> None:
        if pages.checkpoint != self.queue.ledger.checkpoint:
            pages.forget_rows()
            pages.checkpoint = self.queue.ledger.checkpoint
        for page in need.pages:
            pages.add(page, load_page(self.store, self.fragment, page))

    # -- what clients do ---------------------------------------------------------------------

    def send(self, *bodies: bytes, **fields: Any) -> list[int]:
        messages = [Message(body, f"id-{body[:20].decode()}", **fields) for body in bodies]
        return self.send_messages(*messages)

    def send_messages(self, *messages: Message) -> list[int]:
        numbers: list[int] = self.paged(lambda pages: self.engine.send(messages, self.now, pages))
        return numbers

    def receive(self, subqueue: int = MAIN) -> Message | None:
        """Lock the next message, reading pages as long as it takes."""
        for _ in range(100):
            taken = self.turn(lambda: self.queue.take(subqueue, 1, self.now))
            if taken is not None:
                return taken[0]
            if not self._fetch(subqueue):
                return None
        raise AssertionError("the head of the queue never becomes ready")

    def receive_and_delete(self, subqueue: int = MAIN) -> bytes | None:
        for _ in range(100):
            taken = self.turn(lambda: self.queue.take_and_delete(subqueue, self.now))
            if taken is not None:
                return taken[1]
            if not self._fetch(subqueue):
                return None
        raise AssertionError("the head of the queue never becomes ready")

    def _fetch(self, subqueue: int) -> bool:
        """Bring the head of a subqueue into memory; False when there is nothing more."""
        window = self.queue.windows[subqueue]
        head = window.head()
        if head is not None and head.raw is None:
            self.paged(lambda pages: chores.fetch_bodies(self.queue, subqueue, pages))
            return True
        if head is None and not window.complete:
            self.paged(lambda pages: chores.refill(self.queue, subqueue, pages))
            return True
        return head is not None

    def complete(self, message: Message) -> None:
        token = message.token
        assert token is not None
        self.turn(lambda: self.queue.complete(token, self.now))

    def abandon(self, message: Message, properties: NewProperties | None = None) -> None:
        token = message.token
        assert token is not None
        self.turn(lambda: self.queue.abandon(token, self.now, properties))

    def defer(self, message: Message) -> None:
        token = message.token
        assert token is not None
        self.turn(lambda: self.queue.defer(token, self.now))

    def dead_letter(self, message: Message, reason: str | None = None) -> None:
        token = message.token
        assert token is not None
        self.turn(lambda: self.queue.dead_letter(token, self.now, reason, "because"))

    def peek(self, start: int = 0, count: int = 100, subqueue: int = MAIN) -> list[Message]:
        found = self.paged(
            lambda pages: browse.peek(self.queue, subqueue, start, count, 1 << 20, pages)
        )
        return [message for message, _ in found]

    def receive_deferred(self, *numbers: int, delete: bool = False) -> list[Message]:
        found = self.paged(
            lambda pages: browse.receive_deferred(
                self.queue, MAIN, numbers, delete, 1, self.now, pages
            )
        )
        return [message for message, _ in found]

    def cancel(self, *numbers: int) -> None:
        self.paged(lambda pages: browse.cancel_scheduled(self.queue, numbers, pages))

    def delete_batch(self, count: int, before: int | None = None) -> int:
        limit = self.now if before is None else before
        deleted: int = self.paged(
            lambda pages: browse.delete_batch(self.queue, MAIN, count, limit, pages)
        )
        return deleted

    def wait(self, ms: int, receivers: int = 1) -> None:
        """Let time pass, and do what has come up."""
        self.now += ms
        self.queue.receivers[MAIN] = receivers
        self.turn(lambda: self.queue.tick(self.now))
        now = self.now
        for _ in range(100):
            if self.queue.next_due <= now:
                self.paged(lambda pages: chores.activate(self.engine, now, now, pages))
            elif receivers and self.queue.next_expiry <= now:
                self.paged(lambda pages: chores.sweep(self.queue, now, now, pages))
            else:
                return
        raise AssertionError("chores without end")
