"""Who gets in when all places are taken, and who has to go."""

from __future__ import annotations

from typing import Any

import pytest

from postbus.net import places as seating
from postbus.observe.meters import ConnectionMeter
from tests.unit.net.serving import (
    AMQP_OPENING,
    GET,
    Client,
    Echo,
    Harness,
    place_for,
    serving,
    until,
)


class Guest(Echo):
    """Stands for AMQP: a peer that says the word has proven who it is."""

    def data_received(self, data: bytes) -> None:
        if b"I am" in data:
            self.place.log_in()
        super().data_received(data)


async def call(bus: Harness, said: bytes = b"") -> Client:
    client = await bus.connect()
    await client.send(AMQP_OPENING + said)
    await client.reader.readuntil(said or AMQP_OPENING)
    return client


def test_the_oldest_stranger_makes_room_for_whoever_comes(run: Any) -> None:
    async def story() -> None:
        async with serving(connections_max=3, amqp=Guest) as bus:
            first, second, third = [await call(bus) for _ in range(3)]
            fourth = await call(bus)
            assert await first.rest() == b""
            assert bus.meter.refused == {"place_needed": 1}
            await until(lambda: bus.meter.open_count == 3)
            for client in (second, third, fourth):
                await client.send(b"still here")
                await client.reader.readuntil(b"still here")
                await client.close()

    run(story())


def test_strangers_without_number_take_no_place_of_a_peer_that_is_known(run: Any) -> None:
    async def story() -> None:
        async with serving(connections_max=3, amqp=Guest) as bus:
            known = await call(bus, b"I am Ann")
            strangers = [await call(bus) for _ in range(20)]
            assert bus.meter.refused == {"place_needed": 18}
            await known.send(b"still here")
            await known.reader.readuntil(b"still here")
            # Nor can they keep the next one out.
            other = await call(bus, b"I am Bob")
            for client in (known, other, *strangers):
                await client.close()
            await until(lambda: bus.meter.open_count == 0)

    run(story())


def test_health_is_told_when_every_place_is_taken_by_peers_that_are_known(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        monkeypatch.setattr(seating, "HTTP_PLACES", 2)
        async with serving(connections_max=2, amqp=Guest) as bus:
            known = [await call(bus, b"I am Ann"), await call(bus, b"I am Bob")]
            assert await bus.ask(AMQP_OPENING) == b""
            assert bus.meter.refused == {"limit": 1}
            probe = await bus.connect()
            await probe.send(GET)
            assert (await probe.reply()).startswith(b"HTTP/1.1 200")
            # The one that asked before and did not leave makes room for the next one who asks.
            others = [await bus.connect() for _ in range(3)]
            for other in others[1:]:
                await other.send(GET)
                assert (await other.reply()).startswith(b"HTTP/1.1 200")
            for client in known:
                await client.send(b"still here")
                await client.reader.readuntil(b"still here")
            for client in (*known, probe, *others):
                await client.close()
            await until(lambda: bus.meter.open_count == 0)

    run(story())


def test_a_place_is_free_again_when_its_connection_is_gone(run: Any) -> None:
    async def story() -> None:
        async with serving(connections_max=2, amqp=Guest) as bus:
            for _ in range(5):
                clients = [await call(bus, b"I am Ann"), await call(bus, b"I am Bob")]
                for client in clients:
                    await client.close()
                await until(lambda: bus.meter.open_count == 0)
            assert bus.meter.refused == {}

    run(story())


def test_who_logs_in_and_who_leaves_holds_nothing_of_the_strangers_any_more() -> None:
    place = place_for(None, ConnectionMeter())
    strangers, unfinished, replies = place._places.budgets.meters
    place.hold(5_000, 700)
    assert strangers.used_bytes == 5_700
    place.tenant = None
    place.log_in()
    assert strangers.used_bytes == 0
    place.release()
    assert (strangers.used_bytes, unfinished.used_bytes, replies.used_bytes) == (0, 0, 0)
