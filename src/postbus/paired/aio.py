"""Paired namespaces for asyncio: a client of two namespaces with the SDK's interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from postbus.client.backlog_names import backlog_paths
from postbus.client.connection_string import parse
from postbus.paired.bounded_sender import close_in_time
from postbus.paired.options import SendAvailability
from postbus.paired.pairing import Pairing, PathChange, PathStatus, SyphonMaker
from postbus.paired.provision import AzureQueueMaker, HttpQueueMaker, QueueMaker
from postbus.paired.sender import PairedSender
from postbus.syphon.syphon import Syphon, SyphonMeter

OnChange = Callable[[PathChange], None]

_paired: WeakSet[ServiceBusClient] = WeakSet()


class PairedServiceBusClient:
    """A client of the primary namespace whose sends survive an outage of it (R-PAIR-01).

    Everything but senders is that of an ordinary client of the primary namespace.
    """

    def __init__(
        self,
        primary: ServiceBusClient,
        secondary: ServiceBusClient,
        *,
        administration: ServiceBusAdministrationClient | QueueMaker,
        options: SendAvailability | None = None,
        on_change: OnChange | None = None,
        make_syphon: SyphonMaker | None = None,
    ) -> None:
        """Pair two clients, which are closed with this one. `administration` is of the
        secondary namespace, and makes the backlog queues; `make_syphon` is asked for the syphon
        between them."""
        for client in (primary, secondary):
            if not isinstance(client, ServiceBusClient):
                raise TypeError(f"no client of one namespace: {type(client).__name__}")
            if client in _paired:
                raise ValueError("the client is paired already")
        names = [client.fully_qualified_namespace for client in (primary, secondary)]
        if names[0].lower() == names[1].lower():
            raise ValueError(f"the namespace '{names[0]}' cannot be paired with itself")
        options = options or SendAvailability()
        host = names[0].rpartition("]")[0] if "[" in names[0] else names[0].partition(":")[0]
        if isinstance(administration, ServiceBusAdministrationClient):
            administration = AzureQueueMaker(administration)
        paths = backlog_paths(host, options.primary_name, options.backlog_queue_count)
        if options.enable_syphon and make_syphon is None:
            raise ValueError("enable_syphon needs the keys of connection strings")
        self._pairing = Pairing(
            paths,
            administration,
            options,
            on_change,
            make_syphon if options.enable_syphon else None,
        )
        self._primary = primary
        self._secondary = secondary
        self._senders: WeakSet[PairedSender] = WeakSet()
        _paired.update((primary, secondary))

    @classmethod
    def from_connection_string(
        cls,
        primary: str,
        *,
        secondary: str,
        options: SendAvailability | None = None,
        on_change: OnChange | None = None,
        **sdk_options: Any,
    ) -> Self:
        """Pair two namespaces; `sdk_options` are those of the SDK's client, for both of them."""
        ends = parse(primary), parse(secondary)
        if ends[0].netloc.lower() == ends[1].netloc.lower():
            raise ValueError(f"the namespace '{ends[0].netloc}' cannot be paired with itself")
        clients = [
            ServiceBusClient.from_connection_string(text, **sdk_options)
            for text in (primary, secondary)
        ]
        return cls(
            clients[0],
            clients[1],
            administration=HttpQueueMaker(secondary),
            options=options,
            on_change=on_change,
            make_syphon=lambda queues: Syphon(*ends, queues),
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._primary, name)

    async def __aenter__(self) -> Self:
        await self.pair()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def pair(self) -> int:
        """Make the backlog queues that do not exist, and return how many can be used.

        Entering the client does it, or else the first message that is diverted. Raises
        BacklogUnavailableError where there is none.
        """
        self._pairing.start()
        return await self._pairing.pair()

    @property
    def backlog_queues(self) -> tuple[str, ...]:
        """The backlog queues that can be used; empty before the pairing."""
        return self._pairing.backlog_paths

    def status(self) -> list[PathStatus]:
        """The entities that senders were made for."""
        return self._pairing.status()

    @property
    def syphon(self) -> SyphonMeter | None:
        """What the syphon of this client has done; None without one, and before the pairing."""
        return self._pairing.syphon_meter

    def mark_healthy(self, path: str) -> None:
        """End the failover of an entity by hand: sends go to the primary again."""
        self._pairing.mark_healthy(path)

    def get_queue_sender(self, queue_name: str, **kwargs: Any) -> PairedSender:
        """A sender to a queue, with the options of the SDK's own."""
        return self._sender(partial(self._primary.get_queue_sender, queue_name), kwargs)

    def get_topic_sender(self, topic_name: str, **kwargs: Any) -> PairedSender:
        """A sender to a topic, with the options of the SDK's own."""
        return self._sender(partial(self._primary.get_topic_sender, topic_name), kwargs)

    def _sender(
        self, make: Callable[..., ServiceBusSender], options: dict[str, Any]
    ) -> PairedSender:
        first = make(**options)
        options.setdefault("client_identifier", first.client_identifier)
        made = PairedSender(
            self._pairing,
            first,
            partial(make, **options),
            lambda path: self._secondary.get_queue_sender(path, **options),
        )
        self._senders.add(made)
        return made

    async def close(self) -> None:
        """End the pings, and close senders, primary and secondary."""
        await self._pairing.close()
        await asyncio.gather(*(sender.close() for sender in list(self._senders)))
        await asyncio.gather(*map(close_in_time, (self._primary, self._secondary)))
