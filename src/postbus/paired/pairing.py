"""What all senders of one paired client share: health, backlog queues, and the task that pings."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from azure.servicebus.aio import ServiceBusSender

from postbus.paired.bounded_sender import BoundedSender
from postbus.paired.envelope import make_ping
from postbus.paired.failures import FOR_GOOD, PairFaultedError, failure_of
from postbus.paired.health import Health, PathEvent, PathHealth, PathState, Transition
from postbus.paired.options import SendAvailability
from postbus.paired.provision import QueueMaker, provide
from postbus.paired.rotation import Rotation
from postbus.syphon.syphon import Syphon, SyphonMeter

log = logging.getLogger("postbus.paired")

SyphonMaker = Callable[[Sequence[str]], Syphon]

PING_TIMEOUT_MIN_S: Final = 5.0
PING_TIMEOUT_MAX_S: Final = 120.0


class PathChange(NamedTuple):
    """An event for the application: an entity of the primary has another state."""

    path: str
    former: PathState
    state: PathState
    at: datetime
    error: BaseException | None
    """The failure behind the new state."""


class PathStatus(NamedTuple):
    """An entity that was sent to, as it is now."""

    path: str
    state: PathState
    since: datetime
    error: BaseException | None
    diverted: int
    """Messages that went to a backlog queue."""
    diverted_at: datetime | None
    pings: int


class Pairing:
    """The state of one pair of namespaces. Everything here runs in one event loop."""

    def __init__(
        self,
        paths: Sequence[str],
        maker: QueueMaker,
        options: SendAvailability,
        on_change: Callable[[PathChange], None] | None,
        make_syphon: SyphonMaker | None = None,
    ) -> None:
        self.options = options
        self.closed = False
        self._make_syphon = make_syphon
        self._syphon: asyncio.Task[None] | None = None
        self.syphon_meter: SyphonMeter | None = None
        self._fault: BaseException | None = None
        self.hurries: dict[Callable[[], None], PathHealth] = {}
        """What to call on failover, for each send that waits for the primary."""
        self._paths = paths
        self._maker = maker
        self._on_change = on_change
        self.health = Health(
            options.failover_interval, options.ping_primary_interval, self._changed
        )
        self._rotation = self._rotation_of(())
        self._ping_makers: dict[PathHealth, Callable[[], ServiceBusSender]] = {}
        self._woken = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self._provider: asyncio.Task[list[str]] | None = None
        self._pings: set[asyncio.Task[None]] = set()

    def _rotation_of(self, paths: Sequence[str]) -> Rotation:
        return Rotation(paths, self.options.ping_primary_interval, random.randrange)

    def path(self, name: str, make_sender: Callable[[], ServiceBusSender]) -> PathHealth:
        """The health of an entity; pings to it go by senders of this kind."""
        path = self.health.path(name, time.monotonic())
        self._ping_makers.setdefault(path, make_sender)
        return path

    # -- backlog queues ------------------------------------------------------------------------

    @property
    def backlog_paths(self) -> tuple[str, ...]:
        """The backlog queues that can be used; empty before the pairing."""
        return self._rotation.paths

    async def pair(self) -> int:
        """Make the backlog queues that are missing; returns how many there are to use."""
        if not self._rotation.paths:
            if self._provider is None or self._provider.done():
                self._provider = asyncio.create_task(provide(self._maker, self._paths))
                self._provider.add_done_callback(self._provided)
            # One caller that gives up does not end the attempt for the others.
            await asyncio.shield(self._provider)
        return len(self._rotation.paths)

    def _provided(self, task: asyncio.Task[list[str]]) -> None:
        if task.cancelled():
            return
        if task.exception() is not None:
            log.error("the namespaces are not paired: %s", task.exception())
        else:
            self._rotation = self._rotation_of(task.result())
            if self._make_syphon is not None and not self.closed:
                syphon = self._make_syphon(task.result())
                self.syphon_meter = syphon.meter
                self._syphon = asyncio.create_task(syphon.run())
                self._syphon.add_done_callback(self._syphon_ended)

    def _syphon_ended(self, task: asyncio.Task[None]) -> None:
        """Without its syphon the pair is at fault, at once (R-PAIR-11)."""
        if not task.cancelled():
            self._fault = task.exception()
            log.error("the pair is at fault: %s", self._fault)

    def check_open(self) -> None:
        """Raise if nothing can be sent any more."""
        if self.closed:
            raise ValueError(
                "The handler has already been shutdown. Please use a new client instance."
            )
        if self._fault is not None:
            raise PairFaultedError(
                f"The syphon between the two namespaces has ended: {self._fault}", error=self._fault
            )

    async def choose(self, chosen: str | None) -> str | None:
        """The backlog queue for a sender; None where all of them are out of the rotation."""
        await self.pair()
        return self._rotation.choose(time.monotonic(), chosen)

    def take_out(self, path: str, error: BaseException) -> None:
        log.warning("backlog queue %s rests after a failure: %r", path, error)
        self._rotation.take_out(path, time.monotonic())

    # -- health --------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin with the work in the background, at the first use in an event loop."""
        if self._watcher is None and not self.closed:
            self._watcher = asyncio.create_task(self._watch())

    def state_of(self, path: PathHealth) -> PathState:
        return path.advance(time.monotonic())

    def note(self, path: PathHealth, event: PathEvent, error: BaseException | None = None) -> None:
        path.handle(event, time.monotonic(), error)
        path.advance(time.monotonic())  # an interval of 0 is over at once
        self._woken.set()

    def mark_healthy(self, name: str) -> None:
        path = self.health.paths.get(name.lower())
        if path is None:
            raise ValueError(f"no sender was made for '{name}'")
        self.note(path, PathEvent.MARKED_HEALTHY)

    def _changed(self, change: Transition) -> None:
        log.warning("%s is %s, was %s", change.path, change.state.value, change.former.value)
        if change.state is PathState.FAILED_OVER:
            for hurry, path in list(self.hurries.items()):
                if path.path == change.path:
                    hurry()
        if self._on_change is None:
            return
        told = PathChange(change.path, change.former, change.state, datetime.now(UTC), change.error)
        try:
            self._on_change(told)
        except Exception:
            log.exception("on_change has failed")

    def status(self) -> list[PathStatus]:
        return [
            PathStatus(
                path.path,
                path.advance(time.monotonic()),
                _wall(path.since),
                path.error,
                path.diverted,
                None if path.diverted_at is None else _wall(path.diverted_at),
                path.pings,
            )
            for path in self.health.paths.values()
        ]

    # -- pings ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            self._woken.clear()
            for path in self.health.due_pings(time.monotonic()):
                ping = asyncio.create_task(self._ping(path))
                self._pings.add(ping)
                ping.add_done_callback(self._pings.discard)
            try:
                wake_at = self.health.wake_at()
                async with asyncio.timeout(None if wake_at is None else wake_at - time.monotonic()):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _ping(self, path: PathHealth) -> None:
        sender = BoundedSender(self._ping_makers[path])
        interval = self.options.ping_primary_interval
        within = min(max(interval, PING_TIMEOUT_MIN_S), PING_TIMEOUT_MAX_S)
        try:
            await sender.send(make_ping(), time.monotonic() + within)
        except Exception as error:
            refused = failure_of(error) in FOR_GOOD
            event = PathEvent.PING_REFUSED if refused else PathEvent.PING_FAILED
            self.note(path, event, error)
        else:
            self.note(path, PathEvent.PINGED)
        finally:
            await sender.close()

    async def close(self) -> None:
        """End pings and everything else in the background."""
        self.closed = True
        started = (self._watcher, self._provider, self._syphon, *self._pings)
        tasks = [task for task in started if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _wall(at: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=time.monotonic() - at)
