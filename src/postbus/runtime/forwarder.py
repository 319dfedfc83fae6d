"""Forwarding: moves messages from the outboxes of entities to their destinations.

An outbox is emptied batch by batch: a batch is read, accepted by the destination, then removed. If
the process dies in between, the batch is sent again. The destination knows which messages it
already has (`postbus.broker.forwarding`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from functools import partial
from typing import Any

import structlog

from postbus.broker.forwarding import ForwardBatch, ForwardResult, outbox_id, outbox_of
from postbus.broker.send_via import is_posted
from postbus.broker.subqueue_numbers import owner_of
from postbus.errors import EntityNotFound, InternalError, QuotaExceeded, ServiceBusError
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.operations import ClearOutbox, Collect, Ship
from postbus.runtime.requests import Call, Operation
from postbus.runtime.runtime import Runtime

TRY_AGAIN_S = 1.0
SEE_AGAIN_S = 60.0
"""Pause after a destination that cannot be read: that lasts until an operator has mended it."""
BATCHES_MAX = 64
"""Batches under way at once. A topic may have two thousand subscriptions that forward, and each
batch holds up to a megabyte of bodies."""

Outbox = tuple[LoadedFragment, int]
"""A fragment, and a subqueue of it that has messages to forward."""

log = structlog.get_logger("forwarder")


class Forwarder:
    """All forwarding of one process."""

    def __init__(
        self,
        fragment_of: Callable[[int], LoadedFragment | None],
        runtime_of: Callable[[LoadedFragment], Runtime],
    ) -> None:
        self._fragment_of = fragment_of
        """The fragment with an id; None when its entity is gone."""
        self._runtime_of = runtime_of
        self._under_way: set[Outbox] = set()
        self._waiting: dict[Outbox, None] = {}
        """Outboxes with more to send, in the order of their turns."""
        self._resting: set[Outbox] = set()
        """Outboxes that are tried again after a pause."""
        self._full: dict[Outbox, set[int]] = {}
        """Destinations of an outbox that had no room, and are asked again after a pause. The other
        destinations of the outbox are served meanwhile."""
        self._stopped = False

    def stop(self) -> None:
        """Send nothing more. Batches under way still arrive; the next start sends the rest."""
        self._stopped = True

    def serve(self, fragment: LoadedFragment) -> None:
        """Empty the outboxes of this fragment from now on."""
        fragment.on_outbox = partial(self._has_work, fragment)

    def forget_marks(self, fragment: LoadedFragment) -> None:
        """Let a destination forget its marks of outboxes that can send nothing any more."""
        engine = fragment.engine
        if engine is None or not engine.ledger.marks:
            return
        # A batch of a deleted entity may still be under way, and be repeated.
        busy = {
            outbox_id(source.id, subqueue)
            for outboxes in (self._under_way, self._waiting, self._resting)
            for source, subqueue in outboxes
        }
        engine.ledger.outdated.update(
            origin
            for origin in engine.ledger.marks
            if origin not in busy and not self._may_send(origin)
        )
        if engine.ledger.outdated:
            fragment.checkpoint_wanted = True
            self._runtime_of(fragment).wake(fragment)

    def _may_send(self, origin: int) -> bool:
        """Whether the entity of an outbox exists. Ids of fragments and owners are never reused."""
        fragment_id, subqueue = outbox_of(origin)
        fragment, owner = self._fragment_of(fragment_id), owner_of(subqueue)
        if fragment is None:
            return False
        if owner == 0 or owner in fragment.subscriptions:
            return True
        return fragment.engine is not None and owner in fragment.engine.queues

    def _has_work(self, fragment: LoadedFragment, subqueue: int) -> None:
        """Empty an outbox, unless it is under way or rests."""
        outbox = fragment, subqueue
        if outbox not in self._under_way and outbox not in self._resting:
            self._waiting[outbox] = None
            self._go_on()

    def _go_on(self) -> None:
        waiting, under_way = self._waiting, self._under_way
        while waiting and len(under_way) < BATCHES_MAX and not self._stopped:
            outbox = next(iter(waiting))
            del waiting[outbox]
            under_way.add(outbox)
            self._collect(*outbox)

    def _done(self, outbox: Outbox, has_more: bool) -> None:
        """A batch is done. The next batch of the same outbox waits for its turn."""
        self._under_way.discard(outbox)
        if has_more:
            self._waiting[outbox] = None
        self._go_on()

    def _collect(self, fragment: LoadedFragment, subqueue: int) -> None:
        passed_over = frozenset(self._full.get((fragment, subqueue), ()))

        done = partial(self._collected, fragment, subqueue, passed_over)
        self._ask(fragment, Collect(subqueue, passed_over), done, (fragment, subqueue))

    def _collected(
        self,
        fragment: LoadedFragment,
        subqueue: int,
        passed_over: Set[int],
        batch: ForwardBatch | None,
    ) -> None:
        if batch is None:
            # The pause of a destination that was passed over may have ended meanwhile.
            is_due = not passed_over <= self._full.get((fragment, subqueue), set())
            self._done((fragment, subqueue), has_more=is_due)
            return
        if not batch.messages:
            self._done((fragment, subqueue), has_more=True)
            return
        destination = self._fragment_of(batch.destination)
        if destination is None or destination.gone is not None:
            result = ForwardResult(0, EntityNotFound("the entity that it was forwarded to"))
            self._accepted(fragment, subqueue, batch, result)
            return
        done = partial(self._accepted, fragment, subqueue, batch)
        size = sum(len(raw) for _, raw in batch.messages)

        def failed(error: ServiceBusError) -> None:
            log.warning("forwarding interrupted", entity=destination.name, error=str(error))
            done(ForwardResult(0, error))

        # Messages of one outbox go to several fragments: one that does not answer must not hold up
        # the others.
        ship = Ship(outbox_id(fragment.id, subqueue), batch.messages)
        self._ask(destination, ship, done, (fragment, subqueue), size, failed)

    def _accepted(
        self,
        fragment: LoadedFragment,
        subqueue: int,
        batch: ForwardBatch,
        result: ForwardResult,
    ) -> None:
        """Remove the messages that the destination has accepted. A refused message stays, or is
        dead-lettered."""
        numbers = [message.number for message, _ in batch.messages[: result.arrived]]
        destination, refusal = batch.destination, result.refusal
        refused = full_at = None
        go_on = partial(self._done, (fragment, subqueue), has_more=True)
        if refusal is not None and _waits(refusal, is_posted(subqueue)):
            # Messages to other destinations pass it.
            full_at = batch.messages[result.arrived][0].number
            self._ask_again((fragment, subqueue), destination, isinstance(refusal, InternalError))
        elif refusal is not None:
            refused = batch.messages[result.arrived][0].number
            log.warning("message not forwarded", entity=fragment.name, error=str(refusal))

        clear = ClearOutbox(subqueue, destination, numbers, refusal, refused, full_at)
        self._ask(fragment, clear, lambda _: go_on(), (fragment, subqueue))

    def _ask(
        self,
        fragment: LoadedFragment,
        operation: Operation[Any],
        done: Callable[..., None],
        outbox: Outbox,
        size: int = 0,
        failed: Callable[[ServiceBusError], None] | None = None,
    ) -> None:
        def interrupted(error: ServiceBusError) -> None:
            log.warning("forwarding interrupted", entity=fragment.name, error=str(error))
            if not isinstance(error, InternalError):
                self._later(outbox)
            elif fragment is outbox[0]:
                # It reports its outboxes again when an operator has mended it and it is loaded.
                self._done(outbox, has_more=False)
            else:
                self._later(outbox, lasting=True)

        runtime = self._runtime_of(fragment)
        request = Call(
            fragment, operation, done, failed or interrupted, size, exclusive=False, grows=size > 0
        )
        runtime.attend(request)

    def _ask_again(self, outbox: Outbox, destination: int, lasting: bool) -> None:
        """Pass over a destination for a while, because it is full or does not answer. The others
        are served meanwhile."""
        self._full.setdefault(outbox, set()).add(destination)
        delay_s = SEE_AGAIN_S if lasting else TRY_AGAIN_S
        loop = asyncio.get_running_loop()
        loop.call_later(delay_s, self._may_have_room, outbox, destination)

    def _may_have_room(self, outbox: Outbox, destination: int) -> None:
        full = self._full[outbox]
        full.discard(destination)
        if not full:
            del self._full[outbox]
        if outbox[0].gone is None:
            self._has_work(*outbox)

    def _later(self, outbox: Outbox, lasting: bool = False) -> None:
        """Try again after a pause, because a store or an engine did not answer. Nothing is lost."""
        if outbox[0].gone is None:
            self._resting.add(outbox)
            delay_s = SEE_AGAIN_S if lasting else TRY_AGAIN_S
            asyncio.get_running_loop().call_later(delay_s, self._rested, outbox)
        self._done(outbox, has_more=False)

    def _rested(self, outbox: Outbox) -> None:
        self._resting.discard(outbox)
        self._has_work(*outbox)


def _waits(refusal: ServiceBusError, posted: bool) -> bool:
    """Whether the message waits until the destination answers, or was mended. A message that was
    sent through the entity also waits until there is room (semantics B §7)."""
    if isinstance(refusal, QuotaExceeded):
        return posted
    return refusal.transient or isinstance(refusal, InternalError)
