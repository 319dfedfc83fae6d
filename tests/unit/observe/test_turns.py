"""What keeps the event loop is measured, told and forgotten."""

from __future__ import annotations

import asyncio
import time

from structlog.testing import capture_logs

from postbus.observe.metrics import Metrics
from postbus.observe.turns import CLIENT, ENGINE, LONG_S, OTHER, TICK_S, Ticking, TurnMeter


def test_the_longest_of_this_minute_and_the_one_before_is_shown() -> None:
    meter = TurnMeter()
    for seconds in (0.01, 0.03, 0.02):
        meter.observe(ENGINE, seconds)
    assert meter.longest() == {ENGINE: 0.03, CLIENT: 0.0, OTHER: 0.0}
    meter.next_minute()
    meter.observe(ENGINE, 0.02)
    assert meter.longest()[ENGINE] == 0.03
    meter.next_minute()
    assert meter.longest()[ENGINE] == 0.02
    meter.next_minute()
    assert meter.longest()[ENGINE] == 0.0


def test_a_long_one_is_in_the_log_and_a_shorter_one_behind_it_is_not() -> None:
    meter = TurnMeter()
    with capture_logs() as logs:
        for seconds in (LONG_S / 2, LONG_S * 3, LONG_S * 2):
            meter.observe(CLIENT, seconds)
        meter.next_minute()
        meter.observe(CLIENT, LONG_S * 2)
    assert [(each["by"], each["seconds"]) for each in logs] == [(CLIENT, 0.15)]


async def test_whatever_keeps_the_loop_is_seen() -> None:
    meter = TurnMeter()
    ticking = Ticking(meter, asyncio.get_running_loop())
    time.sleep(TICK_S * 3)
    await asyncio.sleep(TICK_S * 2)
    ticking.stop()
    assert meter.longest()[OTHER] > TICK_S


async def test_metrics_show_it() -> None:
    metrics = Metrics("1")
    metrics.store("0").turns.observe(ENGINE, 0.25)
    text, _ = await metrics.scrape()
    assert b'postbus_longest_turn_seconds{by="engine"} 0.25' in text
    assert b'postbus_longest_turn_seconds{by="client"} 0.0' in text
