"""R-DLQ-08 at its size: a million dead letters; the repair is killed, and the broker too.

POSTBUS_DEAD_LETTERS is how many they are; the numbers of a run are printed (`-s` shows them).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.resubmit import OTHER, SOURCE, Cemetery
from postbus.amqp.events import MessageReceived
from postbus.amqp.frames.performatives import SND_SETTLED
from postbus.amqp.sections import read_application_properties, read_properties, scan
from postbus.amqp.sections.readers import read_data
from pyspark_postbus.pipelines.deadletters import CHUNK_MESSAGES
from tests.support.administration import Administration
from tests.support.raw_client import RawClient
from tests.support.server import COMMAND
from tests.support.spark import environment
from tests.support.terminal import OnTerminal
from tests.support.waiting import until_blocking

COUNT = int(os.environ.get("POSTBUS_DEAD_LETTERS", "1000000"))
BODY_BYTES = 1_024
WITHIN_S = 1_800.0
DOWN_S = 3.0
CREDIT = 2_000
QUIET_S = 2.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Cemetery]:
    """With gigabytes of data, which the folders that pytest keeps shall not have."""
    folder = tmp_path / "broker"
    try:
        with Cemetery(folder) as broker:
            yield broker
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def connection(broker: Cemetery) -> str:
    return (
        f"Endpoint=sb://localhost:{broker.port};SharedAccessKeyName={broker.user};"
        f"SharedAccessKey={broker.password};UseDevelopmentEmulator=true"
    )


@pytest.fixture
def repairs(connection: str, tmp_path: Path) -> Iterator[Any]:
    """Starts the command; no run of it outlives the test."""
    started: list[OnTerminal] = []
    command = [
        *(str(COMMAND), "pipeline", "deadletters", "repair", SOURCE, "--to", OTHER, "--yes"),
        *("--set", "properties.tries=cast(properties['tries'] AS int) + 1"),
        *("--set", "properties.repaired=concat('it was ', messageId)"),
    ]
    variables = {
        **os.environ, **environment(),
        "POSTBUS_CONNECTION_STRING": connection,
        # Not on a disk in memory: Spark keeps the plan of a million letters there.
        "SPARK_LOCAL_DIRS": str(tmp_path / "spark"),
    }  # fmt: skip

    def start() -> OnTerminal:
        started.append(OnTerminal(command, variables))
        return started[-1]

    yield start
    for run in started:
        run.kill()
    shutil.rmtree(tmp_path / "spark", ignore_errors=True)


class Counts:
    """What the broker says of its queues."""

    def __init__(self, connection: str) -> None:
        self._administration = Administration(connection)

    def now(self) -> tuple[int, int, int]:
        """Dead letters, those on their way, those that have arrived."""
        source = self._administration.counts(SOURCE)
        other = self._administration.counts(OTHER)
        on_their_way = source.transfer_message_count or 0
        return (
            source.dead_letter_message_count or 0, on_their_way, other.active_message_count or 0,
        )  # fmt: skip

    def settled(self) -> tuple[int, int]:
        """Dead letters and those that have arrived, when none is on its way."""

        def ask() -> tuple[int, int] | None:
            dead, on_their_way, arrived = self.now()
            return (dead, arrived) if not on_their_way else None

        return until_blocking("all have arrived", ask, WITHIN_S)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_million_letters_are_repaired_once_each_though_the_command_and_the_broker_are_killed(
    broker: Cemetery, connection: str, repairs: Any
) -> None:
    began = time.monotonic()
    broker.fill(COUNT, BODY_BYTES)
    counts = Counts(connection)
    assert counts.now() == (COUNT, 0, 0)
    tell(f"{COUNT:,} dead letters of {BODY_BYTES:,} bytes in {time.monotonic() - began:.0f} s")

    # when the command is killed half-way, with its JVM and its workers
    first = repairs()
    until_done(first, COUNT // 2)
    killed = first.kill()
    assert killed >= 2, "at least the driver and its JVM"
    tell(f"killed {killed} processes {account(first)}")

    # then each letter is in one of the two queues
    dead, arrived = counts.settled()
    assert dead + arrived == COUNT
    assert 0 < dead < COUNT
    tell(f"the broker has {dead:,} dead letters, and {arrived:,} in the target")

    # when it is run again, and this time the broker is killed half-way
    second = repairs()
    until_done(second, dead // 2)
    seen = second.done
    # Within a request: the command asks for all of it again, and some of it has been done.
    until_blocking("a request is under way", lambda: (dead - counts.now()[0]) % CHUNK_MESSAGES)
    broker.kill()
    time.sleep(DOWN_S)
    assert second.running, second.tail()
    restarted = time.monotonic()
    broker.start()
    tell(f"the broker was killed at {seen:,}, back in {time.monotonic() - restarted:.1f} s")

    # then the command goes on by itself, to the end
    assert second.wait(WITHIN_S) == 0, second.tail()
    tell(f"ended {account(second)}: {second.tail().splitlines()[-1]}")
    assert second.bars[-1][1:] == (dead, dead)
    assert counts.settled() == (0, COUNT)

    # and a third run finds nothing
    third = repairs()
    assert third.wait(WITHIN_S) == 0, third.tail()
    assert "Nothing was to be done" in third.text
    tell(f"a third run {account(third)}: nothing was to be done")

    # and each original is in the target, once, with what was changed in it
    began = time.monotonic()
    times = receive_all(broker)
    tell(f"{sum(times):,} received in {time.monotonic() - began:.0f} s")
    assert counts.now() == (0, 0, 0)
    assert (min(times), max(times), len(times)) == (1, 1, COUNT)


def tell(text: str) -> None:
    print(text, flush=True)


def account(run: OnTerminal) -> str:
    _, done, total = run.bars[-1] if run.bars else (0, 0, 0)
    return f"at {done:,} of {total:,} after {run.seconds:.0f} s, {run.rate:,.0f} a second"


def until_done(run: OnTerminal, least: int) -> None:
    """Wait until the command shows that it has come so far."""

    def ask() -> bool:
        assert run.running, run.tail()
        return run.done >= least

    until_blocking(f"{least:,} letters were moved", ask, WITHIN_S)


def receive_all(broker: Cemetery) -> bytearray:
    """Take all that is in the target, and look at each message; says how often each came."""
    times = bytearray(COUNT)
    with RawClient(broker) as client:
        link = client.receiver(OTHER, SND_SETTLED)
        came = 0
        while came < COUNT:
            link.grant(CREDIT)
            client.write()
            came += take(client, times)
        # One too many would come behind the last one that is expected.
        link.grant(CREDIT)
        client.write()
        client.socket.settimeout(QUIET_S)
        with contextlib.suppress(TimeoutError):
            while True:
                take(client, times)
    return times


def take(client: RawClient, times: bytearray) -> int:
    """One read from the socket, and the messages that came with it; says how many."""
    events = [event for event in client.read() if isinstance(event, MessageReceived)]
    for event in events:
        payload = event.delivery.payload
        sections = scan(payload)
        name = read_properties(payload, sections).message_id
        assert isinstance(name, str)
        times[int(name.removeprefix("dead ")) - 1] += 1
        changed = {"kind": "order", "tries": 4, "repaired": f"it was {name}"}
        assert read_application_properties(payload, sections) == changed
        assert len(read_data(payload, sections)) == BODY_BYTES
    return len(events)
