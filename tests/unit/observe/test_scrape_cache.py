"""Whoever asks for `/metrics` or `/health` at will is given what the last one was given."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from postbus.namespace.health import PROBE_EVERY_MS, Health
from postbus.observe.scrape_cache import FORMS_MAX, Scraping

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
T0 = 1_700_000_000_000


class Source:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.at_once = 0
        self.at_once_max = 0

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        self.asked.append(accept)
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return b"%d" % len(self.asked), "text"


async def test_who_asks_at_the_same_time_or_just_after_gets_the_same_text() -> None:
    source = Source()
    scraping = Scraping(source.scrape, kept_s=60)
    pages = await asyncio.gather(*(scraping.page("text/plain") for _ in range(20)))
    assert {text for text, _ in pages} == {b"1"}
    assert await scraping.page() == (b"1", "text")
    assert await scraping.page(OPENMETRICS) == (b"2", "text")
    assert await scraping.page(OPENMETRICS) == (b"2", "text")
    assert len(source.asked) == 2


async def test_a_text_is_not_kept_for_long() -> None:
    source = Source()
    scraping = Scraping(source.scrape, kept_s=0.001)
    await scraping.page()
    async with asyncio.timeout(10):
        while await scraping.page() == (b"1", "text"):
            await asyncio.sleep(0.001)


async def test_odd_forms_are_written_one_at_a_time_and_few_are_kept() -> None:
    source = Source()
    scraping = Scraping(source.scrape, kept_s=60)
    odd = [f"application/openmetrics-text; version=1.0.{n}" for n in range(3 * FORMS_MAX)]
    await asyncio.gather(*(scraping.page(accept) for accept in odd))
    assert source.at_once_max == 1
    del source.asked[:]
    for accept in odd:
        await scraping.page(accept)
    assert source.asked == odd[FORMS_MAX:]


async def test_health_walks_over_the_entities_once_a_second() -> None:
    now, walks = T0, 0

    def received() -> list[Any]:
        nonlocal walks
        walks += 1
        return [SimpleNamespace(path="orders", findings=lambda at: [f"slow {walks}"])]

    namespace: Any = SimpleNamespace(received=received, upkeeps=[])
    health = Health(namespace, lambda: now)
    for _ in range(5):
        assert (await health.check())[1]["warnings"] == ["orders: slow 1"]
    now += PROBE_EVERY_MS
    assert (await health.check())[1]["warnings"] == ["orders: slow 2"]
    assert walks == 2
