"""What every connection of the process shares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from postbus.amqp.codec.types import Symbol
from postbus.amqp.limits import Limits
from postbus.auth.authority import Authority
from postbus.auth.keyring import AccessKey
from postbus.errors import ServiceBusError
from postbus.gateway.refusals import Refusals
from postbus.model.authorization import Rules
from postbus.model.times import Instant
from postbus.namespace.namespace import Namespace
from postbus.observe.logs import TrackingIds
from postbus.observe.turns import TurnMeter
from postbus.runtime.sliced_work import SlicedWork
from postbus.settings import Settings

FRAMES_AT_ONCE: Final = 512
"""Frames of one peer that are read in a turn of the loop: some 20 ms if each has a message."""


class OpenConnection(Protocol):
    """A connection, as far as those go who can end it."""

    def review_claims(self) -> None:
        """Keys were changed: let go of what was proven by a key that is gone."""

    def stop_reading(self) -> None:
        """Answer what has come, and take nothing more."""

    def close(self, error: ServiceBusError) -> None:
        """End the connection from our side."""

    def abort(self) -> None: ...


class ConnectionContext:
    """The namespace as its gateways see it."""

    def __init__(
        self,
        namespace: Namespace,
        authority: Authority,
        tracking: TrackingIds,
        clock: Callable[[], Instant],
        wall: Callable[[], Instant],
        settings: Settings,
        container_id: str,
    ) -> None:
        self.namespace = namespace
        self.authority = authority
        self.refusals = Refusals(tracking)
        self.clock = clock
        self.wall = wall
        """What tokens are judged by (`postbus.runtime.clock`)."""
        self.settings = settings
        self.container_id = container_id
        self.limits = connection_limits(settings)
        self.gateways: set[OpenConnection] = set()
        self.on_claims_lost: Callable[[], None] = _nobody
        """Called where something that a key has proven may have ended, after the connections."""
        self.turns = TurnMeter()
        self.sliced_work = SlicedWork(self.turns)
        self.transaction_bytes = 0
        """What all transactions that are not over keep in memory."""
        self._tracking = tracking
        self._tasks: set[asyncio.Task[None]] = set()

    def rules_changed(self, entity: str, rules: Rules | None) -> None:
        """Of an entity these are the rules now; None: it is gone. What was proven by a key that is
        gone too, or has lost a right, ends."""
        if rules is None:
            lost = self.authority.forget(entity)
        else:
            lost = self.authority.learn(entity, map(AccessKey.of, rules))
        if lost:
            for gateway in list(self.gateways):
                gateway.review_claims()
            self.on_claims_lost()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Hold on to a task until it is done: the loop itself does not."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def link_properties(self) -> dict[Any, Any]:
        # .NET quotes it in its errors (wire §3.2).
        return {Symbol("com.microsoft:tracking-id"): self._tracking.track().id}

    @property
    def idle(self) -> bool:
        """Whether everything that has come is read, decided and answered."""
        return self.sliced_work.idle and all(each.idle for each in self.namespace.runtimes)

    @property
    def congested(self) -> bool:
        return any(runtime.congested for runtime in self.namespace.runtimes)

    def when_relieved(self, resume: Callable[[], None]) -> None:
        for runtime in self.namespace.runtimes:
            if runtime.congested:
                runtime.when_relieved(resume)
                return


def _nobody() -> None:
    """No one else has claims."""


def connection_limits(settings: Settings) -> Limits:
    return Limits(
        max_frame_size=settings.frame_size_max_bytes,
        channel_max=settings.sessions_per_connection_max - 1,
        idle_timeout_ms=settings.idle_timeout_ms,
        message_size_max=settings.message_size_max_kb * 1024,
        unsettled_incoming_max=max(settings.incoming_unsettled_max, 10_000),
        unsettled_outgoing_max=settings.outgoing_unsettled_max,
        links_max=settings.links_per_connection_max,
        open_timeout_ms=settings.authentication_timeout_ms,
        # One connection may have what all may have: it is given up first when that is too much.
        assembling_bytes_max=settings.unfinished_max_bytes,
        unfinished_timeout_ms=settings.unfinished_delivery_timeout_ms,
        frames_at_once=FRAMES_AT_ONCE,
    )
