"""The official Python SDK, sync and async, under one asynchronous interface.

A test is written once and runs against both: the async client is used as it is, each call of the
sync one goes to a thread. Retries are off unless a test asks for them, so that what the server
answers is what the test sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

DEAD_LETTERS = ServiceBusSubQueue.DEAD_LETTER
FLAVOURS = ("sync", "async")


class Topic(str):
    """The name of a topic; a plain string is that of a queue."""

    __slots__ = ()


class Subscription(NamedTuple):
    """What can be received from and peeked at as a queue can."""

    topic: Topic
    name: str


class Threaded:
    """An object of the sync SDK whose methods are awaited; each call runs in a thread."""

    def __init__(self, inner: Any, threads: ThreadPoolExecutor) -> None:
        self._inner = inner
        self._threads = threads

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._awaited(found) if callable(found) else found

    def _awaited(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*arguments: Any, **keywords: Any) -> Any:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, lambda: call(*arguments, **keywords))

        return run

    async def __aenter__(self) -> Threaded:
        await self._awaited(self._inner.__enter__)()
        return self

    async def __aexit__(self, *reason: Any) -> None:
        await self._awaited(self._inner.__exit__)(*reason)

    async def __aiter__(self) -> AsyncIterator[ServiceBusReceivedMessage]:
        end = object()
        while (message := await self._awaited(next)(self._inner, end)) is not end:
            yield message


class Bus:
    """One SDK client; its senders and receivers are closed with it unless closed before."""

    def __init__(self, flavour: str, connection_string: str, **options: Any) -> None:
        self.flavour = flavour
        self._threads = ThreadPoolExecutor(16) if flavour == "sync" else None
        self._opened: list[Any] = []
        options.setdefault("retry_total", 0)
        kind = ServiceBusClient if flavour == "sync" else AsyncServiceBusClient
        self._client: Any = kind.from_connection_string(connection_string, **options)

    def _of_flavour(self, inner: Any) -> Any:
        return inner if self._threads is None else Threaded(inner, self._threads)

    def sender(self, to: str, **options: Any) -> Any:
        if isinstance(to, Topic):
            return self._of_flavour(self._client.get_topic_sender(to, **options))
        return self._of_flavour(self._client.get_queue_sender(to, **options))

    def receiver(self, source: str | Subscription, **options: Any) -> Any:
        options.setdefault("max_wait_time", 10)
        if isinstance(source, Subscription):
            return self._of_flavour(self._client.get_subscription_receiver(*source, **options))
        return self._of_flavour(self._client.get_queue_receiver(source, **options))

    def session(self, receiver: Any) -> Any:
        """The message session of a receiver, to be asked as the receiver is."""
        return self._of_flavour(receiver.session)

    async def sessions(self, source: str | Subscription, **options: Any) -> list[str]:
        """The ids of the sessions that are there."""
        of = "subscription" if isinstance(source, Subscription) else "queue"
        names = source if isinstance(source, Subscription) else (source,)
        found = getattr(self._client, f"list_{of}_sessions")(*names, **options)
        if self._threads is None:
            return [each async for each in found]
        return await asyncio.get_running_loop().run_in_executor(self._threads, list, found)

    async def open_sender(self, to: str, **options: Any) -> Any:
        return await self._kept(self.sender(to, **options))

    async def open_receiver(self, source: str | Subscription, **options: Any) -> Any:
        return await self._kept(self.receiver(source, **options))

    async def _kept(self, handler: Any) -> Any:
        await handler.__aenter__()
        self._opened.append(handler)
        return handler

    async def send(self, to: str, *messages: Any) -> None:
        """Send each message by itself, in order, over one link."""
        async with self.sender(to) as sender:
            for message in messages:
                await sender.send_messages(message)

    async def receive(
        self, source: str | Subscription, count: int = 1, **options: Any
    ) -> list[Any]:
        """Receive this many by receive-and-delete, or fewer when no more come."""
        async with self.receiver(source, receive_mode="receiveanddelete", **options) as receiver:
            return await gather_messages(receiver, count)

    async def peek(self, source: str | Subscription, count: int = 100, **options: Any) -> list[Any]:
        async with self.receiver(source, **options) as receiver:
            return list(await receiver.peek_messages(max_message_count=count))

    async def close(self) -> None:
        # The SDK takes half a second for each, so all at once.
        await asyncio.gather(*(handler.close() for handler in self._opened))
        self._opened.clear()
        await self._of_flavour(self._client).close()
        if self._threads is not None:
            self._threads.shutdown(wait=False)


async def gather_messages(receiver: Any, count: int, wait_s: float = 10.0) -> list[Any]:
    """Call receive until `count` messages are here or one call brings none.

    The SDK returns what has come once there is a gap, so one call may bring fewer than are there.
    """
    messages: list[Any] = []
    while len(messages) < count:
        more = await receiver.receive_messages(
            max_message_count=count - len(messages), max_wait_time=wait_s
        )
        if not more:
            break
        messages += more
    return messages


async def receive_one(receiver: Any, wait_s: float = 10.0) -> Any:
    """The next message, which must come."""
    messages = await receiver.receive_messages(max_message_count=1, max_wait_time=wait_s)
    assert len(messages) == 1, f"{len(messages)} messages came within {wait_s} s"
    return messages[0]


async def receive_none(receiver: Any, wait_s: float = 1.0) -> None:
    """Nothing must come within the wait."""
    messages = await receiver.receive_messages(max_message_count=1, max_wait_time=wait_s)
    assert messages == [], f"came unasked: {[str(message) for message in messages]}"


def text(message: Any) -> str:
    """The body of a message sent as one piece of text."""
    return b"".join(message.body).decode()


def texts(messages: list[Any]) -> list[str]:
    return [text(message) for message in messages]


def whole_text(error: BaseException | None) -> str:
    """What the server said: the SDK's authentication errors keep it only in their causes."""
    said = ""
    while error is not None:
        said += f"{error!r}\n{getattr(error, 'inner_exception', '')!r}\n"
        error = error.__cause__ or error.__context__
    return said


class Reply(NamedTuple):
    """What $management answered: no exception, so that a test can look at the numbers."""

    status: int
    condition: str | None
    description: str | None
    value: Any


async def manage(handler: Any, operation: str, body: dict[str, Any]) -> Reply:
    """Ask for a management operation that the SDK has no method for, over the SDK's own link."""

    def answer(status_code: int, message: Any, description: Any, amqp_transport: Any) -> Reply:
        condition = (message.application_properties or {}).get(b"errorCondition")
        return Reply(
            status_code,
            condition.decode() if condition else None,
            description.decode() if isinstance(description, bytes) else description,
            message.value,
        )

    name = f"com.microsoft:{operation}".encode()
    reply: Reply = await handler._mgmt_request_response_with_retry(name, body, answer)
    return reply
