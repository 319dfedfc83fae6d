"""Paired namespaces without asyncio: a facade on the asynchronous client.

The sync SDK ignores its time-outs while it connects: a silent peer held it for minutes. A frozen
primary is what pairing is for, so all sends go by the async SDK, in a thread with its own loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from azure.servicebus import ServiceBusClient, ServiceBusMessageBatch
from azure.servicebus.exceptions import OperationTimeoutError

from postbus.paired import aio
from postbus.paired.envelope import PairedMessageBatch, listed
from postbus.paired.loop_thread import LoopThread
from postbus.paired.options import SendAvailability
from postbus.paired.pairing import PathStatus
from postbus.paired.sender import PairedSender as AsyncPairedSender
from postbus.syphon.syphon import SyphonMeter

T = TypeVar("T")

GRACE_S: Final = 15.0
"""How much longer than its time-out a call may take: everything below ends before."""


class PairedSender:
    """A sender to one entity, with the interface of the SDK's own. Threads may share it."""

    def __init__(self, inner: AsyncPairedSender, loop: LoopThread, usual_s: float) -> None:
        self._inner = inner
        self._loop = loop
        self._usual_s = usual_s
        self.entity_name = inner.entity_name
        self.fully_qualified_namespace = inner.fully_qualified_namespace
        self.client_identifier = inner.client_identifier

    def __str__(self) -> str:
        return str(self._inner)

    def __enter__(self) -> Self:
        """Opens nothing: the primary may be down."""
        self._run(self._inner.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]], timeout: float | None = None) -> T:
        try:
            return self._loop.run(call, (timeout or self._usual_s) + GRACE_S)
        except TimeoutError:
            raise OperationTimeoutError() from None

    def send_messages(self, message: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        """Send a message, several, or a batch. Returns when the primary or a backlog has them."""
        if not isinstance(message, ServiceBusMessageBatch):
            # A generator is the caller's, and runs in its thread.
            messages, are_several = listed(message)
            message = messages if are_several else messages[0]
        inner = self._inner
        self._run(lambda: inner.send_messages(message, timeout=timeout, **kwargs), timeout)

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> PairedMessageBatch:
        """A batch for this sender. Where the primary does not answer, its size is a safe guess."""
        return self._run(lambda: self._inner.create_message_batch(max_size_in_bytes))

    def schedule_messages(
        self,
        messages: Any,
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Schedule messages at the primary, and fail as it fails: nobody else has the numbers."""
        prepared, are_several = listed(messages)
        given = prepared if are_several else prepared[0]
        inner = self._inner
        return self._run(
            lambda: inner.schedule_messages(given, schedule_time_utc, timeout=timeout, **kwargs),
            timeout,
        )

    def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """Cancel messages that the primary has scheduled."""
        inner = self._inner
        self._run(
            lambda: inner.cancel_scheduled_messages(sequence_numbers, timeout=timeout, **kwargs),
            timeout,
        )

    def close(self) -> None:
        self._run(self._inner.close)


class PairedServiceBusClient:
    """A client of the primary namespace whose sends survive an outage of it (R-PAIR-01).

    Everything but senders is that of an ordinary client of the primary namespace.
    """

    def __init__(
        self, inner: aio.PairedServiceBusClient, plain: ServiceBusClient, usual_s: float
    ) -> None:
        """Use `from_connection_string`."""
        self._inner = inner
        self._plain = plain
        self._usual_s = usual_s
        self._loop = LoopThread()
        self._closed = False

    @classmethod
    def from_connection_string(
        cls,
        primary: str,
        *,
        secondary: str,
        options: SendAvailability | None = None,
        on_change: aio.OnChange | None = None,
        **sdk_options: Any,
    ) -> Self:
        """Pair two namespaces; `sdk_options` are those of the SDK's client, for both of them.
        `on_change` is called in the thread of the client, and must not wait."""
        options = options or SendAvailability()
        inner = aio.PairedServiceBusClient.from_connection_string(
            primary, secondary=secondary, options=options, on_change=on_change, **sdk_options
        )
        plain = ServiceBusClient.from_connection_string(primary, **sdk_options)
        return cls(inner, plain, options.send_timeout)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._plain, name)

    def __enter__(self) -> Self:
        self.pair()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def pair(self) -> int:
        """Make the backlog queues that do not exist, and return how many can be used.

        Entering the client does it, or else the first message that is diverted. Raises
        BacklogUnavailableError where there is none.
        """
        return self._loop.run(self._inner.pair)

    @property
    def backlog_queues(self) -> tuple[str, ...]:
        """The backlog queues that can be used; empty before the pairing."""
        return self._inner.backlog_queues

    def status(self) -> list[PathStatus]:
        """The entities that senders were made for."""

        async def ask() -> list[PathStatus]:
            return self._inner.status()

        return self._loop.run(ask)

    @property
    def syphon(self) -> SyphonMeter | None:
        """What the syphon of this client has done; None without one, and before the pairing."""
        return self._inner.syphon

    def mark_healthy(self, path: str) -> None:
        """End the failover of an entity by hand: sends go to the primary again."""

        async def mark() -> None:
            self._inner.mark_healthy(path)

        self._loop.run(mark)

    def get_queue_sender(self, queue_name: str, **kwargs: Any) -> PairedSender:
        """A sender to a queue, with the options of the SDK's own."""
        inner = self._inner.get_queue_sender(queue_name, **kwargs)
        return PairedSender(inner, self._loop, self._usual_s)

    def get_topic_sender(self, topic_name: str, **kwargs: Any) -> PairedSender:
        """A sender to a topic, with the options of the SDK's own."""
        inner = self._inner.get_topic_sender(topic_name, **kwargs)
        return PairedSender(inner, self._loop, self._usual_s)

    def close(self) -> None:
        """End the pings and their thread, and close senders, primary and secondary."""
        if not self._closed:
            self._closed = True
            self._loop.run(self._inner.close)
            self._loop.stop()
            self._plain.close()
