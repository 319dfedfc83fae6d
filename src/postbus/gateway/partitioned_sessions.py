"""A receiver that wants the next session of a partitioned entity, whichever fragment has one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from postbus.amqp.sending import SenderLink
from postbus.errors import ServiceBusError
from postbus.gateway.session_link import ClientSessionReceiver, SessionFilter
from postbus.runtime.fragment_receivers import AGAIN_S
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.session_waiters import SessionWaiters

if TYPE_CHECKING:
    from postbus.gateway.client_connection import ClientConnection
    from postbus.namespace.entity import ReceivableEntity


class NextSessionReceiver(ClientSessionReceiver):
    """Waits in all fragments. The first one that has a free session keeps it: within the same
    call it leaves the others, so that no second session is given to it."""

    def __init__(
        self,
        gateway: ClientConnection,
        link: SenderLink,
        entity: ReceivableEntity,
        fragment: LoadedFragment,
        subqueue: int,
        wanted: SessionFilter,
    ) -> None:
        super().__init__(gateway, link, entity, fragment, subqueue, wanted)
        self._bound = False
        """A fragment has a session for it."""
        self._losses: dict[LoadedFragment, Callable[[ServiceBusError], None]] = {}
        """What is called when a fragment that it waits in loses its engine."""

    # -- waiting -----------------------------------------------------------------------------

    def _wait_for_next(self) -> None:
        fragments = self.entity.fragments
        self._bound = False
        self.fragment.on_lost.pop(self._lost, None)
        start = self.holder % len(fragments)
        for fragment in (*fragments[start:], *fragments[:start]):
            self._losses[fragment] = lost = partial(self._lost_while_waiting, fragment)
            fragment.on_lost[lost] = None
            fragment.receivers_of(self.subqueue).join(self)
            self._count_in(fragment)
            fragment.used = True
            fragment.waiters_of(self.subqueue).wait(self)
            self.gateway.runtime(fragment).wake(fragment)

    def _is_waiting(self) -> bool:
        return not self._bound and not self.gone

    def _is_looking(self) -> bool:
        return any(
            fragment.waiters_of(self.subqueue).looking(fragment.chores)
            for fragment in self.entity.fragments
        )

    def holds_in(self, waiters: SessionWaiters) -> None:
        for fragment in self.entity.fragments:
            if fragment.waiters_of(self.subqueue) is waiters:
                self.fragment = fragment
        self._leave_others()
        self._bound = True
        self.waiters = waiters
        self._receivers = self.fragment.receivers_of(self.subqueue)
        self._runtime = self.gateway.runtime(self.fragment)
        self.fragment.on_lost[self._lost] = None

    def _leave_others(self) -> None:
        """Wait no more, and stay a receiver of one fragment only."""
        for fragment, lost in self._losses.items():
            fragment.on_lost.pop(lost, None)
            fragment.waiters_of(self.subqueue).waiting.pop(self, None)
            if fragment is not self.fragment:
                fragment.receivers_of(self.subqueue).leave(self)
                self._count_in(fragment)
        self._losses.clear()

    def _count_in(self, fragment: LoadedFragment) -> None:
        if fragment.engine is not None:
            members = fragment.receivers_of(self.subqueue).members
            fragment.engine.set_receivers(self.subqueue, len(members))

    def _lost_while_waiting(self, fragment: LoadedFragment, error: ServiceBusError) -> None:
        """It goes on waiting in the others, and here when the engine is loaded again."""
        lost = self._losses.get(fragment)
        if lost is None or fragment.gone is not None:
            return
        fragment.on_lost[lost] = None
        wake = partial(self.gateway.runtime(fragment).wake, fragment)
        asyncio.get_running_loop().call_later(AGAIN_S, wake)

    # -- what became of the session ----------------------------------------------------------

    def refused(self, error: ServiceBusError) -> None:
        """The session that a fragment had for it is not to be had: wait for another one, unless
        the time is over."""
        if self._bound and self.session is None and self._timer is not None and not self.gone:
            self.waiters.leave(self)
            self.promised = None
            self._wait_for_next()
            return
        super().refused(error)

    def close(self) -> None:
        self._leave_others()
        super().close()
