"""Receiver links that browse: a source whose distribution mode is `copy` (AMQP 3.5.7).

Messages are shown in the order in which they would be received, and stay: nothing is locked,
removed or counted as a delivery. The queue browser of JMS is such a link.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from postbus.amqp.deliveries import OutgoingDelivery
from postbus.amqp.frames.outcomes import Accepted, Modified, Rejected, Released
from postbus.amqp.frames.performatives import SND_SETTLED, DeliveryState
from postbus.amqp.frames.transactions import TransactionalState
from postbus.amqp.sending import SenderLink
from postbus.errors import NotSupported, ServiceBusError
from postbus.gateway.client_links import ClientReceiver
from postbus.gateway.operations import Show, Shown
from postbus.runtime.requests import Call

if TYPE_CHECKING:
    from postbus.gateway.client_connection import ClientConnection
    from postbus.namespace.entities import TopicEntity
    from postbus.namespace.entity import ReceivableEntity
    from postbus.runtime.loaded_fragment import LoadedFragment

LOOK_COUNT_MAX: Final = 100
LOOK_BYTES_MAX: Final = 256 * 1024
"""What is shown at a time: little enough that the looks of many browsers fit into a turn."""
LOOK_AGAIN_S: Final = 0.5
"""How long a browser that has seen everything waits, from the next change on, to look again."""


class Browser(ClientReceiver):
    """A receiver link that is shown messages. It looks once at a time, and only with credit."""

    def __init__(
        self,
        gateway: ClientConnection,
        link: SenderLink,
        entity: ReceivableEntity | TopicEntity,
        fragment: LoadedFragment,
        subqueue: int,
    ) -> None:
        super().__init__(gateway, link, entity, fragment, subqueue)
        self._next = 0
        self._looking = False
        self._gone = False
        self._tag = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        pass  # it is no receiver: nobody waits for it, and no message expires for its sake

    def close(self) -> None:
        self._gone = True
        self._stop_waiting()

    def credited(self) -> None:
        self.entity.touch(self.gateway.now)
        self.wake()

    def wake(self) -> None:
        """Look for more, unless that is under way or there is no room for it."""
        link, gateway = self._link, self.gateway
        if self._looking or self._gone:
            return
        self._stop_waiting()
        wanted = link.sendable
        if wanted == 0:
            if link.drain and link.credit == 0:
                link.drained()
                gateway.touch()
            return
        if gateway.holds_back(self):
            return
        self._looking = True
        gateway.promised_bytes += LOOK_BYTES_MAX
        show = Show(self.subqueue, self._next, min(wanted, LOOK_COUNT_MAX), LOOK_BYTES_MAX)
        self._runtime.submit(Call(self.fragment, show, self._shown, self._failed, exclusive=False))

    def _shown(self, shown: Shown) -> None:
        self._looked()
        found, onward = shown
        link, meter = self._link, self._meter
        if meter is not None:
            meter.peeks += 1
        for number, payload in found:
            if link.sendable == 0:
                # Its client took back the credit, or left, while this was looked for.
                onward = number
                break
            self._send(payload)
            self._next = number + 1
            if meter is not None:
                meter.bytes_out += sum(map(len, payload))
        if onward is not None:
            self._next = onward
            self.wake()
        elif self._go_to_next_fragment():
            self.wake()
        elif link.drain:
            link.drained()
        else:
            self._wait()
        self.gateway.touch()

    def _go_to_next_fragment(self) -> bool:
        """All of the fragment was shown: is there another one with more to show?"""
        return False

    def _failed(self, error: ServiceBusError) -> None:
        self._looked()
        if not self._gone:
            self.gateway.detach(self._link, error, self.entity.path)

    def _looked(self) -> None:
        self._looking = False
        self.gateway.promised_bytes -= LOOK_BYTES_MAX

    def _send(self, payload: tuple[bytes, ...]) -> None:
        link = self._link
        if link.snd_settle_mode == SND_SETTLED:
            link.send(b"", payload, settled=True)
        else:
            self._tag += 1
            link.send(self._tag.to_bytes(8, "big"), payload)

    # -- at the end --------------------------------------------------------------------------

    def _wait(self) -> None:
        if not self._gone:
            self.fragment.on_records[self._stirred] = None

    def _stirred(self) -> None:
        self.fragment.on_records.pop(self._stirred, None)
        self._timer = self._loop.call_later(LOOK_AGAIN_S, self.wake)

    def _stop_waiting(self) -> None:
        self.fragment.on_records.pop(self._stirred, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- verdicts ----------------------------------------------------------------------------

    def disposed(
        self, deliveries: list[OutgoingDelivery], state: DeliveryState | None, settled: bool
    ) -> None:
        """Whatever the client thinks of a message that it was shown, nothing becomes of it."""
        verdict = state
        if isinstance(state, TransactionalState):
            error = NotSupported("A message that is browsed cannot be settled in a transaction.")
            verdict = self.gateway.refusals.rejected(error, self.entity.path)
        elif not settled and not isinstance(state, (Accepted, Rejected, Released, Modified)):
            return
        for delivery in deliveries:
            self._link.settle(delivery, verdict)
        self.gateway.touch()
        self.wake()


class PartitionedBrowser(Browser):
    """A browser of a partitioned entity: it is shown one fragment after the other."""

    def __init__(
        self,
        gateway: ClientConnection,
        link: SenderLink,
        entity: ReceivableEntity | TopicEntity,
        fragment: LoadedFragment,
        subqueue: int,
    ) -> None:
        super().__init__(gateway, link, entity, fragment, subqueue)
        self._nexts = [0] * len(entity.fragments)
        """Where it goes on in each fragment."""
        self._at_end = 0
        """Fragments in a row that had nothing more."""

    def _go_to_next_fragment(self) -> bool:
        index, fragments = self.fragment.index, self.entity.fragments
        self._at_end = 1 if self._next != self._nexts[index] else self._at_end + 1
        self._nexts[index] = self._next
        self.fragment = fragments[(index + 1) % len(fragments)]
        self._runtime = self.gateway.runtime(self.fragment)
        self._next = self._nexts[self.fragment.index]
        if self._at_end < len(fragments):
            return True
        self._at_end = 0
        return False

    def _wait(self) -> None:
        if not self._gone:
            for fragment in self.entity.fragments:
                fragment.on_records[self._stirred] = None

    def _stirred(self) -> None:
        self._stop_waiting()
        self._timer = self._loop.call_later(LOOK_AGAIN_S, self.wake)

    def _stop_waiting(self) -> None:
        for fragment in self.entity.fragments:
            fragment.on_records.pop(self._stirred, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
