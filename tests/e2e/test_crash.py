"""kill -9, again and again, under load: nothing acknowledged is lost, nothing removed comes back.

This proves that recovery is right. That an acknowledgement waits for the disk a kill cannot show,
for the page cache survives it; `tests/contract` checks that every commit ends with a sync.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest
from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage

from tests.e2e.storm import ANSWER_WITHIN_S, KILLS, TROUBLE, Storm, seed_of_storm
from tests.support.administration import Administration
from tests.support.bus import Bus, text
from tests.support.server import Server


class Churn:
    """One queue that is created, updated and deleted all the time; None stands for no queue.

    Both the catalog and the messages must follow: a queue made anew never shows a message of an
    earlier one of its name.
    """

    def __init__(self, storm: Storm, name: str) -> None:
        self.storm = storm
        self.name = name
        self.possible: set[int | None] = {None}
        self.deleted_through = 0
        self.round = 0

    async def run(self) -> None:
        while not self.storm.over:
            await self.storm.up.wait()
            administration = Administration(self.storm.server.connection_string)
            with contextlib.suppress(*TROUBLE):
                while not self.storm.over:
                    await self.change(administration)
            administration.close()

    async def change(self, administration: Administration) -> None:
        self.round += 1
        client, value = administration.client, self.round % 1000 + 1
        kind = self.storm.random.choice(("create", "update", "delete"))
        if kind == "create":
            self.possible |= {value}
            try:
                await asyncio.to_thread(client.create_queue, self.name, max_delivery_count=value)
            except ResourceExistsError:
                self.possible -= {None, value}
                return
            self.possible = {value}
            bus = self.storm.open_bus(self.storm.server)
            with contextlib.suppress(*TROUBLE):
                await asyncio.wait_for(
                    bus.send(self.name, ServiceBusMessage(f"{self.round}")), ANSWER_WITHIN_S
                )
            await bus.close()
        elif kind == "update":
            try:
                found = await asyncio.to_thread(client.get_queue, self.name)
                self.possible |= {value}
                await asyncio.to_thread(client.update_queue, found, max_delivery_count=value)
            except ResourceNotFoundError:
                self.possible = {None}
                return
            self.possible = {value}
        else:
            self.possible |= {None}
            try:
                await asyncio.to_thread(client.delete_queue, self.name)
            except ResourceNotFoundError:
                self.possible = {None}
                return
            self.possible = {None}
            self.deleted_through = self.round

    async def check(self) -> None:
        administration = Administration(self.storm.server.connection_string)
        faults = self.storm.ledger.faults
        try:
            found: int | None = administration.client.get_queue(self.name).max_delivery_count
        except ResourceNotFoundError:
            found = None
        finally:
            administration.close()
        if found not in self.possible:
            faults.append(f"{self.name}: {found}, not in {self.possible}")
        if found is not None:
            messages = await self.storm.open_bus(self.storm.server).peek(self.name)
            stale = [text(m) for m in messages if int(text(m)) <= self.deleted_through]
            if stale:
                faults.append(f"{self.name}: shows messages of a deleted one: {stale}")


@pytest.mark.parametrize("kills", KILLS)
async def test_nothing_acknowledged_is_lost_and_nothing_removed_returns(
    server: Server, open_bus: Callable[..., Bus], kills: int
) -> None:
    """R-SETTLE-01, R-SETTLE-09, R-SETTLE-10; design §9."""
    administration = Administration(server.connection_string)
    queues = [administration.make_queue(max_delivery_count=1000) for _ in range(3)]
    administration.close()
    storm = Storm(server, open_bus, seed_of_storm(), queues, queues)
    await storm.rage(kills, *(Churn(storm, f"churn-{n}") for n in range(2)))
    storm.check(await storm.inventory(), kills)
