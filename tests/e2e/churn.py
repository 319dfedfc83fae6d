"""One entity that is created, updated and deleted all the time, while its server dies.

Both the catalog and the messages must follow: an entity made anew never shows a message of an
earlier one of its name.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage

from tests.e2e.storm import ANSWER_WITHIN_S, TROUBLE, Storm
from tests.support.administration import Administration
from tests.support.bus import Subscription, Topic, text


class Churned(Protocol):
    """A kind of entity; `value` is what tells one version of it from another."""

    def create(self, client: Any, value: int) -> None: ...

    def read(self, client: Any) -> int: ...

    def update(self, client: Any, value: int) -> None: ...

    def delete(self, client: Any) -> None: ...

    @property
    def destination(self) -> str: ...

    @property
    def source(self) -> str | Subscription: ...


class ChurnedQueue:
    def __init__(self, name: str) -> None:
        self.destination = self.source = name

    def create(self, client: Any, value: int) -> None:
        client.create_queue(self.source, max_delivery_count=value)

    def read(self, client: Any) -> int:
        return int(client.get_queue(self.source).max_delivery_count)

    def update(self, client: Any, value: int) -> None:
        client.update_queue(client.get_queue(self.source), max_delivery_count=value)

    def delete(self, client: Any) -> None:
        client.delete_queue(self.source)


class ChurnedSubscription:
    """Of a topic that stays."""

    def __init__(self, topic: Topic) -> None:
        self.destination = topic
        self.source = Subscription(topic, "churn")

    def create(self, client: Any, value: int) -> None:
        client.create_subscription(*self.source, max_delivery_count=value)

    def read(self, client: Any) -> int:
        return int(client.get_subscription(*self.source).max_delivery_count)

    def update(self, client: Any, value: int) -> None:
        found = client.get_subscription(*self.source)
        client.update_subscription(self.source.topic, found, max_delivery_count=value)

    def delete(self, client: Any) -> None:
        client.delete_subscription(*self.source)


class Churn:
    """What may be true of the entity, by what was asked for and answered; None is for no entity."""

    def __init__(self, storm: Storm, entity: Churned) -> None:
        self.storm = storm
        self.entity = entity
        self.possible: set[int | None] = {None}
        self.deleted_through = 0
        self.round = 0

    async def run(self) -> None:
        while not self.storm.over:
            await self.storm.up.wait()
            administration = Administration(self.storm.server.connection_string)
            with contextlib.suppress(*TROUBLE):
                while not self.storm.over:
                    await self.change(administration.client)
            administration.close()

    async def change(self, client: Any) -> None:
        self.round += 1
        entity, value = self.entity, self.round % 1000 + 1
        kind = self.storm.random.choice(("create", "update", "delete"))
        if kind == "create":
            self.possible |= {value}
            try:
                await asyncio.to_thread(entity.create, client, value)
            except ResourceExistsError:
                self.possible -= {None, value}
                return
            self.possible = {value}
            await self.send(f"{self.round}")
            return
        wanted = value if kind == "update" else None
        self.possible |= {wanted}
        try:
            if wanted is None:
                await asyncio.to_thread(entity.delete, client)
            else:
                await asyncio.to_thread(entity.update, client, wanted)
        except ResourceNotFoundError:
            self.possible = {None}
            return
        self.possible = {wanted}
        if wanted is None:
            self.deleted_through = self.round

    async def send(self, body: str) -> None:
        bus = self.storm.open_bus(self.storm.server)
        with contextlib.suppress(*TROUBLE):
            sending = bus.send(self.entity.destination, ServiceBusMessage(body))
            await asyncio.wait_for(sending, ANSWER_WITHIN_S)
        await bus.close()

    async def check(self) -> None:
        """Add to the storm's faults what is not as it may be."""
        entity, faults = self.entity, self.storm.ledger.faults
        administration = Administration(self.storm.server.connection_string)
        try:
            found: int | None = entity.read(administration.client)
        except ResourceNotFoundError:
            found = None
        finally:
            administration.close()
        if found not in self.possible:
            faults.append(f"{entity.source}: {found}, not in {self.possible}")
        if found is not None:
            messages = await self.storm.open_bus(self.storm.server).peek(entity.source)
            stale = [text(m) for m in messages if int(text(m)) <= self.deleted_through]
            if stale:
                faults.append(f"{entity.source}: shows messages of a deleted one: {stale}")
