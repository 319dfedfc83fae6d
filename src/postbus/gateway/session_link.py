"""A client's session receiver: a link that is answered when it has a session, and no sooner.

The attach waits; the other links of its AMQP session go on meanwhile (wire §10.35).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from postbus.amqp.codec.types import Described, Long, Symbol
from postbus.amqp.frames.terminus import Source
from postbus.amqp.sending import SenderLink
from postbus.broker.held_sessions import Session
from postbus.errors import (
    DetachForced,
    InvalidArgument,
    OperationTimeout,
    ServerBusy,
    ServiceBusError,
    SessionLockLost,
)
from postbus.gateway.client_links import ClientReceiver
from postbus.model.times import TICKS_PER_MS, Instant, format_timespan, ticks_of_instant
from postbus.runtime.session_waiters import SessionWaiters
from postbus.runtime.sessions import Accept, Leave

if TYPE_CHECKING:
    from postbus.gateway.client_connection import ClientConnection
    from postbus.namespace.entity import ReceivableEntity
    from postbus.runtime.loaded_fragment import LoadedFragment

WAIT_DEFAULT_MS: Final = 60_000
"""For a next session, where the client says nothing (semantics B §1)."""
LOOK_WITHIN_MS: Final = 10_000
"""How long it may take to find out that there is none: the engine may have to be loaded."""
LOOK_AGAIN_S: Final = 0.02
TOLD_AFTER_S: Final = 2.0
"""A receiver that has nothing to settle is not told of a lost session in the middle of a wait."""
_TIMEOUT: Final = "com.microsoft:timeout"
_LOCKED_UNTIL: Final = Symbol("com.microsoft:locked-until-utc")
_FILTER_NAME: Final = "com.microsoft:session-filter"
_FILTER_CODE: Final = 0x137000000C


class SessionFilter(NamedTuple):
    """Which session a receiver wants, and the words it asked in (wire §3.3)."""

    key: Any
    """Of the entry in the source's filter."""
    descriptor: Any
    """None where the value stands there bare."""
    session_id: str | None
    """None: the next one that is to be had. The empty text is an id like any other."""

    def naming(self, session_id: str) -> dict[Any, Any]:
        """The filter of the answer: Go insists on the descriptor, all others cannot read it."""
        if self.descriptor is None:
            return {self.key: session_id}
        return {self.key: Described(self.descriptor, session_id)}


def read_session_filter(source: Source) -> SessionFilter | None:
    """The session that is asked for; None where none is. Raises InvalidArgument."""
    for key, value in (source.filter or {}).items():
        if not is_session_filter(key, value):
            continue
        descriptor = value.descriptor if isinstance(value, Described) else None
        wanted = value.value if isinstance(value, Described) else value
        if wanted is not None and not isinstance(wanted, str):
            raise InvalidArgument(f"The value of the filter '{_FILTER_NAME}' must be text or null.")
        return SessionFilter(key, descriptor, wanted)
    return None


def is_session_filter(key: Any, value: Any) -> bool:
    """Does this entry of a filter ask for a session?"""
    descriptor = value.descriptor if isinstance(value, Described) else None
    return str(key) == _FILTER_NAME or str(descriptor) == _FILTER_NAME or descriptor == _FILTER_CODE


class ClientSessionReceiver(ClientReceiver):
    """A receiver link that holds a session, or waits for one."""

    _last_holder: ClassVar[int] = 0

    def __init__(
        self,
        gateway: ClientConnection,
        link: SenderLink,
        entity: ReceivableEntity,
        fragment: LoadedFragment,
        subqueue: int,
        wanted: SessionFilter,
    ) -> None:
        super().__init__(gateway, link, entity, fragment, subqueue)
        ClientSessionReceiver._last_holder += 1
        # Of its own for each link: one connection may have many (wire §10.34).
        self.holder = ClientSessionReceiver._last_holder
        self.waiters = fragment.waiters_of(subqueue)
        self.session: Session | None = None
        self.promised: Session | None = None
        """The session that is its own, also while its client has not been told yet."""
        self.gone = False
        self._is_lost = False
        self._wanted = wanted
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    # -- getting a session -------------------------------------------------------------------

    def open(self) -> None:
        wanted = self._wanted.session_id
        wait_ms = self._wait_ms()
        if wanted is None:
            waits_max = self.gateway.service.settings.session_waits_max
            if len(self.waiters.waiting) >= waits_max:
                raise ServerBusy(
                    f"{waits_max} receivers wait for a session of '{self.entity.path}' already."
                )
        super().open()
        self.entity.touch(self.gateway.now)
        if wanted is not None:
            self._runtime.submit(Accept(self.fragment, self, wanted))
            return
        look_by = self.gateway.service.clock() + max(wait_ms, LOOK_WITHIN_MS)
        self._timer = self._loop.call_later(wait_ms / 1_000, self._timed_out, wait_ms, look_by)
        self._wait_for_next()

    def _wait_for_next(self) -> None:
        self.fragment.used = True
        self.waiters.wait(self)
        self._runtime.wake(self.fragment)

    def _is_waiting(self) -> bool:
        return self in self.waiters.waiting

    def _is_looking(self) -> bool:
        """Is a search for a free session due or under way?"""
        return self.waiters.looking(self.fragment.chores)

    def holds_in(self, waiters: SessionWaiters) -> None:
        """It is about to get a session, in the one fragment that it waits in."""

    def _wait_ms(self) -> int:
        wanted = (self._link.properties or {}).get(_TIMEOUT)
        if wanted is None:
            wanted = WAIT_DEFAULT_MS
        if isinstance(wanted, bool) or not isinstance(wanted, int):
            raise InvalidArgument(f"The property '{_TIMEOUT}' of the link must be a whole number.")
        return min(max(int(wanted), 0), self.gateway.service.settings.session_wait_max_ms)

    def _timed_out(self, waited_ms: int, look_by: Instant) -> None:
        self._timer = None
        if not self._is_waiting():
            return  # one is on its way
        if self._is_looking() and self.gateway.service.clock() < look_by:
            # However short the wait, what there is when it begins is to be had.
            self._timer = self._loop.call_later(LOOK_AGAIN_S, self._timed_out, waited_ms, look_by)
            return
        self.entity.meter.session_timeouts += 1
        self.refused(OperationTimeout(format_timespan(waited_ms * TICKS_PER_MS)))

    def accepted(self, session: Session) -> None:
        """It has a session: let the client know which."""
        if self.gone:
            return  # and has given it up
        self._stop_waiting()
        self.session = session
        self.gateway.session_holders.add(self.holder)
        self.entity.meter.session_accepts += 1
        link, gateway = self._link, self.gateway
        source = link.source
        assert isinstance(source, Source)
        source.filter = {**(source.filter or {}), **self._wanted.naming(session.id)}
        properties: dict[Any, Any] = {
            **gateway.service.link_properties(),
            # .NET ticks, and not a timestamp (wire §3.3).
            _LOCKED_UNTIL: Long(ticks_of_instant(session.locked_until)),
        }
        gateway.heard(link.accept(source=source, properties=properties))

    def refused(self, error: ServiceBusError) -> None:
        if not self.gone:
            self.entity.meter.refused(error.condition)
            self.gateway.detach(self._link, error, self.entity.path)

    def lost(self) -> None:
        """The session is its own no more: the lock has run out, or the entity was updated."""
        self.gateway.session_holders.discard(self.holder)
        session, self.session = self.session, None
        if session is None or self.gone:
            return
        self._is_lost = True
        self.waiters.leave(self)
        self.promised = None
        if session.locked_until > self.gateway.service.clock():
            error = DetachForced(f"The entity '{self.entity.path}' was updated.")
            self.gateway.detach(self._link, error, self.entity.path)
        elif self.tokens:
            self._tell_of_loss()
        else:
            # One that waits as long as the lock lasts is to hear that nothing came: the SDK's own
            # tests do so, and Azure is no quicker. It hears at once when it wants more.
            self._timer = self._loop.call_later(TOLD_AFTER_S, self._tell_of_loss)

    def _tell_of_loss(self) -> None:
        if not self.gone:
            self.gateway.detach(self._link, SessionLockLost(), self.entity.path)

    def _lost(self, error: ServiceBusError) -> None:
        self.session = self.promised = None  # gone with the engine
        super()._lost(error)

    def close(self) -> None:
        self.gone = True
        self.gateway.session_holders.discard(self.holder)
        self._stop_waiting()
        self.session = None
        self.waiters.leave(self)
        super().close()
        if self.promised is not None:
            # At once, however the link ended: nobody has failed (semantics B §1). One who leaves
            # before he was told and comes again must find it free.
            self._runtime.submit(Leave(self.fragment, self.subqueue, self.promised))

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- messages ----------------------------------------------------------------------------

    def wake(self) -> None:
        if self.session is not None:
            self.waiters.wants(self)
            self._runtime.wake(self.fragment)
        elif self._is_lost:
            self._tell_of_loss()
