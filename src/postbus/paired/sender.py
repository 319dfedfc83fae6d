"""A sender with the interface of the SDK's own, which goes on through an outage of the primary."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from postbus.paired.bounded_sender import BoundedSender
from postbus.paired.envelope import RESERVE_BYTES, PairedMessageBatch, divert, listed
from postbus.paired.failures import (
    OF_THE_MESSAGE,
    BacklogUnavailableError,
    DivertedMessageSizeExceededError,
    PathBrokenError,
    counts,
    failure_of,
)
from postbus.paired.health import PathEvent, PathState
from postbus.paired.pairing import Pairing

BATCH_BYTES: Final = 256 * 1024
"""The size of a batch where neither namespace can be asked."""
ENVELOPE_BYTES: Final = 512
"""More than a batch has beside its messages. The SDK does not count the id, session and key of the
first message, which it writes there again."""
BACKLOG_TRY_MIN_S: Final = 1.0

Outgoing = AmqpAnnotatedMessage | list[AmqpAnnotatedMessage]


class PairedSender:
    """Sends to an entity of the primary, or to a backlog queue after failover (R-PAIR-05)."""

    def __init__(
        self,
        pairing: Pairing,
        first: ServiceBusSender,
        make_primary: Callable[[], ServiceBusSender],
        make_backlog: Callable[[str], ServiceBusSender],
    ) -> None:
        self.entity_name = first.entity_name
        self.fully_qualified_namespace = first.fully_qualified_namespace
        self.client_identifier = first.client_identifier
        self._pairing = pairing
        self._path = pairing.path(self.entity_name, make_primary)
        self._primary = BoundedSender(make_primary, first)
        self._make_backlog = make_backlog
        self._backlogs: dict[str, BoundedSender] = {}
        self._chosen: str | None = None
        self._failovers = 0
        self._turn = asyncio.Lock()  # the SDK's senders are not made for calls side by side
        self._closed = False

    def __str__(self) -> str:
        return f"Sender client id: {self.client_identifier}, entity: {self.entity_name}"

    async def __aenter__(self) -> Self:
        """Opens nothing: the primary may be down."""
        self._check_open()
        self._pairing.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(each.close() for each in (self._primary, *self._backlogs.values())))

    def _check_open(self) -> None:
        self._pairing.check_open()
        if self._closed:
            raise ValueError(
                "The handler has already been shutdown. Please use the client to create a new one."
            )

    def _deadline(self, timeout: float | None, options: dict[str, Any]) -> float:
        if options:
            warnings.warn(f"Unsupported keyword args: {options}", stacklevel=3)
        self._check_open()
        if timeout is not None and timeout <= 0:
            raise ValueError("The timeout must be greater than 0.")
        self._pairing.start()
        return time.monotonic() + (timeout or self._pairing.options.send_timeout)

    # -- sending -------------------------------------------------------------------------------

    async def send_messages(
        self, message: Any, *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """Send a message, several, or a batch. Returns when the primary or a backlog has them."""
        messages, are_several = listed(message)
        until = self._deadline(timeout, kwargs)
        if not messages:
            return
        async with self._turn:
            if await self._send_to_primary(messages if are_several else messages[0], until):
                return
            diverted = [divert(each, self.entity_name) for each in messages]
            await self._send_to_backlog(diverted if are_several else diverted[0], until)
        self._path.diverted += len(messages)
        self._path.diverted_at = time.monotonic()

    async def _send_to_primary(self, outgoing: Outgoing, until: float) -> bool:
        """False if the path has failed over, before the attempt or during it."""
        pairing, path = self._pairing, self._path
        state = pairing.state_of(path)
        if state is PathState.BROKEN:
            raise PathBrokenError(
                f"'{path.path}' refuses messages since {path.pings} pings: {path.error}",
                error=path.error,
            )
        if state is PathState.FAILED_OVER:
            return False

        if self._failovers != path.failovers:
            # A link of before the failover may not know yet that its peer is gone.
            self._failovers = path.failovers
            self._primary.discard()

        def hurry() -> None:
            """Failover has begun: keep half of the time for the backlog."""
            self._primary.hurry(_half(until))

        goes_on = state is PathState.SUSPECT or pairing.options.failover_interval == 0
        pairing.hurries[hurry] = path
        try:
            await self._primary.send(outgoing, _half(until) if goes_on else until)
        except Exception as error:
            if not counts(failure_of(error), pairing.options.count_server_busy):
                raise
            pairing.note(path, PathEvent.FAILED, error)
            if path.state is not PathState.FAILED_OVER:
                raise
            return False
        finally:
            del pairing.hurries[hurry]
        pairing.note(path, PathEvent.SENT)
        return True

    async def _send_to_backlog(self, outgoing: Outgoing, until: float) -> None:
        """Send to a backlog queue, and to another one where that fails (R-PAIR-06)."""
        failed: Exception | None = None
        parts: list[Outgoing] | None = None if isinstance(outgoing, list) else [outgoing]
        while True:
            chosen = await self._choose(until, failed)
            backlog = self._backlogs.get(chosen)
            if backlog is None:
                backlog = self._backlogs[chosen] = BoundedSender(
                    partial(self._make_backlog, chosen)
                )
            try:
                soon = max(_half(until), time.monotonic() + BACKLOG_TRY_MIN_S)
                if parts is None:
                    assert isinstance(outgoing, list)
                    parts = await _split(backlog, outgoing, min(soon, until))
                while parts:
                    await backlog.send(parts[0], min(soon, until))
                    del parts[0]
                return
            except Exception as error:
                failure = failure_of(error)
                if isinstance(error, MessageSizeExceededError):
                    raise _too_large(error) from error
                if failure in OF_THE_MESSAGE:
                    raise
                self._pairing.take_out(chosen, error)
                failed = error
                if time.monotonic() >= until:
                    raise

    async def _choose(self, until: float, failed: Exception | None) -> str:
        try:
            async with asyncio.timeout(until - time.monotonic()):
                chosen = await self._pairing.choose(self._chosen)
        except TimeoutError:
            raise BacklogUnavailableError(
                "The secondary namespace did not answer in time to make backlog queues."
            ) from failed
        if chosen is None:
            if failed is not None:
                raise failed
            raise BacklogUnavailableError("All backlog queues have failed a short time ago.")
        self._chosen = chosen
        return chosen

    # -- batches and schedules -----------------------------------------------------------------

    async def create_message_batch(
        self, max_size_in_bytes: int | None = None
    ) -> PairedMessageBatch:
        """A batch for this sender. Where the primary does not answer, its size is a safe guess."""
        until = self._deadline(None, {})
        limit = BATCH_BYTES - RESERVE_BYTES
        if self._pairing.state_of(self._path) in (PathState.HEALTHY, PathState.SUSPECT):
            try:
                async with self._turn:
                    batch = await self._primary.call(
                        "create_message_batch", max_size_in_bytes, until=_half(until)
                    )
                limit = batch.max_size_in_bytes
            except ServiceBusError as error:
                if not counts(failure_of(error), True):
                    raise
        limit -= ENVELOPE_BYTES
        return PairedMessageBatch(min(limit, max_size_in_bytes or limit))

    async def schedule_messages(
        self,
        messages: Any,
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Schedule messages at the primary, and fail as it fails: nobody else has the numbers."""
        until = self._deadline(timeout, kwargs)
        prepared, are_several = listed(messages)
        if not prepared:
            return []
        async with self._turn:
            numbers: list[int] = await self._primary.call(
                "schedule_messages",
                prepared if are_several else prepared[0],
                schedule_time_utc,
                until=until,
                timed=True,
            )
        return numbers

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """Cancel messages that the primary has scheduled."""
        until = self._deadline(timeout, kwargs)
        async with self._turn:
            await self._primary.call(
                "cancel_scheduled_messages", sequence_numbers, until=until, timed=True
            )


async def _split(
    backlog: BoundedSender, messages: list[AmqpAnnotatedMessage], until: float
) -> list[Outgoing]:
    """As few batches as hold them, in order; all fit, or none is sent (R-PAIR-09)."""
    limit = (await backlog.call("create_message_batch", until=until)).max_size_in_bytes
    parts: list[list[AmqpAnnotatedMessage]] = []
    room = full = ServiceBusMessageBatch(1)
    for message in messages:
        try:
            room.add_message(message)
            parts[-1].append(message)
        except MessageSizeExceededError:
            ServiceBusMessageBatch(limit).add_message(message)  # else it is too large by itself
            parts.append([message])
            room = ServiceBusMessageBatch(limit - ENVELOPE_BYTES)
            try:
                room.add_message(message)
            except MessageSizeExceededError:
                room = full
    return [part if len(part) > 1 else part[0] for part in parts]


def _too_large(error: MessageSizeExceededError) -> DivertedMessageSizeExceededError:
    return DivertedMessageSizeExceededError(
        message=(
            "The message does not fit into a backlog queue with the properties that keep its "
            f"destination, session, time to live and schedule (up to {RESERVE_BYTES} bytes more): "
            f"{error}"
        )
    )


def _half(until: float) -> float:
    now = time.monotonic()
    return now + (until - now) / 2
