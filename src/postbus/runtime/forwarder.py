"""Takes messages from the outboxes of entities to the entities that they are forwarded to.

One outbox is emptied by one shipment after the other: read, taken in by the destination, removed.
What is under way when the process dies is sent again, and the destination knows what it has
(`postbus.broker.forwarding`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from functools import partial
from typing import Any

import structlog

from postbus.broker.forwarding import ForwardBatch, ForwardResult, outbox_id, outbox_of
from postbus.broker.send_via import is_posted
from postbus.broker.subqueue import owner_of
from postbus.errors import EntityNotFound, InternalError, QuotaExceeded, ServiceBusError
from postbus.runtime.fragment import LoadedFragment
from postbus.runtime.operations import ClearOutbox, Collect, Ship
from postbus.runtime.requests import Call, Operation
from postbus.runtime.runtime import Runtime

TRY_AGAIN_S = 1.0
SEE_AGAIN_S = 60.0
"""After a destination that cannot be read, which lasts until somebody has seen to it."""
SHIPMENTS_MAX = 64
"""Under way at once: a topic may have two thousand subscriptions that forward, and each shipment
holds up to a megabyte of bodies."""

Outbox = tuple[LoadedFragment, int]

log = structlog.get_logger("forwarder")


class Forwarder:
    """All forwarding of one process."""

    def __init__(
        self,
        fragment_of: Callable[[int], LoadedFragment | None],
        runtime_of: Callable[[LoadedFragment], Runtime],
    ) -> None:
        self._fragment_of = fragment_of
        """Finds a fragment by its id; None when its entity is gone."""
        self._runtime_of = runtime_of
        self._under_way: set[Outbox] = set()
        self._waiting: dict[Outbox, None] = {}
        """Those that have more to send, in the order of their turns."""
        self._resting: set[Outbox] = set()
        """Those that are tried again in a while."""
        self._full: dict[Outbox, set[int]] = {}
        """Destinations of an outbox that had no room, and are asked again in a while. Until then
        the others are sent what there is for them."""
        self._stopped = False

    def stop(self) -> None:
        """Let what is under way arrive, and send nothing more: the next start goes on with it."""
        self._stopped = True

    def serve(self, fragment: LoadedFragment) -> None:
        """See to the outboxes of this fragment from now on."""
        fragment.on_outbox = partial(self._waiting_subqueues, fragment)

    def forget_marks(self, fragment: LoadedFragment) -> None:
        """Have a destination forget the outboxes from which nothing can come any more."""
        engine = fragment.engine
        if engine is None or not engine.ledger.marks:
            return
        # A shipment may be under way still, and be repeated, though its entity is gone.
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
        """Is the entity of an outbox there? Neither fragments nor owners are used twice."""
        fragment_id, subqueue = outbox_of(origin)
        fragment, owner = self._fragment_of(fragment_id), owner_of(subqueue)
        if fragment is None:
            return False
        if owner == 0 or owner in fragment.subscriptions:
            return True
        return fragment.engine is not None and owner in fragment.engine.queues

    def _waiting_subqueues(self, fragment: LoadedFragment, subqueue: int) -> None:
        outbox = fragment, subqueue
        if outbox not in self._under_way and outbox not in self._resting:
            self._waiting[outbox] = None
            self._go_on()

    def _go_on(self) -> None:
        waiting, under_way = self._waiting, self._under_way
        while waiting and len(under_way) < SHIPMENTS_MAX and not self._stopped:
            outbox = next(iter(waiting))
            del waiting[outbox]
            under_way.add(outbox)
            self._collect(*outbox)

    def _done(self, outbox: Outbox, has_more: bool) -> None:
        """One shipment is over. Another of the same outbox has to wait for its turn."""
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
        shipment: ForwardBatch | None,
    ) -> None:
        if shipment is None:
            # One that was passed over may have been due to be asked again meanwhile.
            is_due = not passed_over <= self._full.get((fragment, subqueue), set())
            self._done((fragment, subqueue), has_more=is_due)
            return
        if not shipment.messages:
            self._done((fragment, subqueue), has_more=True)
            return
        destination = self._fragment_of(shipment.destination)
        if destination is None or destination.gone is not None:
            receipt = ForwardResult(0, EntityNotFound("the entity that it was forwarded to"))
            self._received(fragment, subqueue, shipment, receipt)
            return
        done = partial(self._received, fragment, subqueue, shipment)
        size = sum(len(raw) for _, raw in shipment.messages)

        def failed(error: ServiceBusError) -> None:
            log.warning("forwarding interrupted", entity=destination.name, error=str(error))
            done(ForwardResult(0, error))

        # What is for others in the same outbox must not wait for one that does not answer.
        self._ask(
            destination,
            Ship(outbox_id(fragment.id, subqueue), shipment.messages),
            done,
            (fragment, subqueue),
            size,
            failed if is_posted(subqueue) else None,
        )

    def _received(
        self,
        fragment: LoadedFragment,
        subqueue: int,
        shipment: ForwardBatch,
        receipt: ForwardResult,
    ) -> None:
        """The destination has taken some: they are gone here. One that it refused stays."""
        numbers = [message.number for message, _ in shipment.messages[: receipt.arrived]]
        destination, refusal = shipment.destination, receipt.refusal
        refused = full_at = None
        go_on = partial(self._done, (fragment, subqueue), has_more=True)
        if refusal is not None and is_posted(subqueue) and _may_end(refusal):
            # It waits until there is room (semantics B §7), and the others pass it.
            full_at = shipment.messages[receipt.arrived][0].number
            self._ask_again((fragment, subqueue), destination, isinstance(refusal, InternalError))
        elif refusal is not None and refusal.transient:
            go_on = partial(self._later, (fragment, subqueue))
        elif refusal is not None:
            refused = shipment.messages[receipt.arrived][0].number
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
                # It calls again when it has been seen to, and is loaded.
                self._done(outbox, has_more=False)
            else:
                self._later(outbox, lasting=True)

        runtime = self._runtime_of(fragment)
        request = Call(
            fragment, operation, done, failed or interrupted, size, exclusive=False, grows=size > 0
        )
        runtime.attend(request)

    def _ask_again(self, outbox: Outbox, destination: int, lasting: bool) -> None:
        """The destination is full, or does not answer: pass it over for a while, however much
        there is for others."""
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
            self._waiting_subqueues(*outbox)

    def _later(self, outbox: Outbox, lasting: bool = False) -> None:
        """A store or an engine did not answer: nothing is lost, so try again in a while."""
        if outbox[0].gone is None:
            self._resting.add(outbox)
            delay_s = SEE_AGAIN_S if lasting else TRY_AGAIN_S
            asyncio.get_running_loop().call_later(delay_s, self._rested, outbox)
        self._done(outbox, has_more=False)

    def _rested(self, outbox: Outbox) -> None:
        self._resting.discard(outbox)
        self._waiting_subqueues(*outbox)


def _may_end(refusal: ServiceBusError) -> bool:
    """May the same message be taken later, if its destination is seen to, or has room?"""
    return refusal.transient or isinstance(refusal, (QuotaExceeded, InternalError))
