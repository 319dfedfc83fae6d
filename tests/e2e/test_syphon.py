"""`postbus syphon` with two real namespaces: all of a backlog comes back (R-PAIR-10)."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from postbus.client.connection_string import parse
from postbus.paired import PairFaultedError, PathState
from postbus.syphon.syphon import POLL_S, Syphon, SyphonFault
from tests.e2e.test_usage import usage
from tests.support.administration import Administration
from tests.support.bus import DEAD_LETTERS, FLAVOURS, Bus, texts
from tests.support.paired import PairedBus, drain, ids, sent, until
from tests.support.server import COMMAND, Server


@pytest.fixture
def primary(make_server: Callable[..., Server]) -> Server:
    return make_server("--queue", "orders", "--topic", "news/audit", data="primary").start()


@pytest.fixture
def secondary(make_server: Callable[..., Server]) -> Server:
    return make_server(data="secondary").start()


class Syphons:
    """Processes of `postbus syphon` for one paired client."""

    def __init__(self, pair: PairedBus, primary: Server, secondary: Server, log: Path) -> None:
        self.command = [
            *(str(COMMAND), "syphon", "--primary-name", pair.name, "--backlog-queue-count", "2"),
            *("--primary", primary.connection_string),
            *("--secondary", secondary.connection_string),
        ]
        self.log = log
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self.running.append(subprocess.Popen(self.command, stdout=log, stderr=log))
        return self.running[-1]

    def discard(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def syphons(primary: Server, secondary: Server, tmp_path: Path) -> Iterator[Callable[..., Syphons]]:
    made: list[Syphons] = []

    def make(pair: PairedBus) -> Syphons:
        made.append(Syphons(pair, primary, secondary, tmp_path / "syphon.log"))
        return made[-1]

    yield make
    for each in made:
        each.discard()


async def divert(pair: PairedBus, primary: Server, *sends: tuple[str, str, Any]) -> None:
    """Send these while the primary is down."""
    await pair.call("pair")
    primary.kill()
    for to, kind, message in sends:
        async with pair.sender(to, kind) as sender:
            await sender.send_messages(message)
    await pair.close()


def backlog_size(administration: Administration, pair: PairedBus) -> int:
    return sum(
        administration.counts(pair.backlog(index)).active_message_count for index in range(2)
    )


async def test_r_pair_10_messages_come_back_as_they_were_sent(
    primary: Server, secondary: Server, syphons: Callable[..., Syphons]
) -> None:
    """R-PAIR-10."""
    pair = PairedBus("async", primary.connection_string, secondary.connection_string,
                     failover_interval=0)  # fmt: skip
    setup = Administration(primary.connection_string)
    setup.client.create_queue("sessions", requires_session=True)
    setup.close()
    due = datetime.now(UTC) + timedelta(hours=2)
    await divert(
        pair,
        primary,
        (
            "orders",
            "queue",
            sent(1, time_to_live=timedelta(hours=1), application_properties={"a": 1}),
        ),
        ("orders", "queue", [sent(number) for number in (2, 3)]),
        ("orders", "queue", sent(4, scheduled_enqueue_time_utc=due)),
        ("sessions", "queue", sent(5, session_id="s", subject="tea")),
        ("news", "topic", sent(6)),
    )
    primary.start()
    process = syphons(pair).start()
    administration = Administration(secondary.connection_string)
    await until(lambda: backlog_size(administration, pair) == 0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    administration.close()
    bus = Bus("async", primary.connection_string)
    peeked = {each.message_id: each for each in await bus.peek("orders")}
    assert set(peeked) == {"id-1", "id-2", "id-3", "id-4"}
    assert peeked["id-1"].time_to_live == timedelta(hours=1)
    assert peeked["id-1"].application_properties == {b"a": 1}
    later = peeked["id-4"].scheduled_enqueue_time_utc
    assert abs(later - due) < timedelta(seconds=1)
    [in_session] = await drain(primary, "sessions", session_id="s")
    assert (in_session.session_id, in_session.subject) == ("s", "tea")
    assert in_session.application_properties is None
    async with bus._client.get_subscription_receiver("news", "audit", max_wait_time=5) as receiver:
        assert texts(await receiver.receive_messages()) == ["body 6"]
    await bus.close()


@pytest.mark.long
async def test_r_pair_10_nothing_is_lost_or_doubled_though_syphons_are_killed(
    primary: Server, secondary: Server, syphons: Callable[..., Syphons]
) -> None:
    """R-PAIR-10: With duplicate detection at the destination; two syphons at once."""
    setup = Administration(primary.connection_string)
    setup.client.create_queue("once", requires_duplicate_detection=True)
    setup.close()
    pair = PairedBus("async", primary.connection_string, secondary.connection_string,
                     failover_interval=0)  # fmt: skip
    count = 3_000
    batches = [[sent(n) for n in range(start, start + 100)] for start in range(0, count, 100)]
    await divert(pair, primary, *(("once", "queue", batch) for batch in batches))
    primary.start()
    working = syphons(pair)
    administration = Administration(secondary.connection_string)
    for _ in range(4):
        process = working.start()
        before = backlog_size(administration, pair)
        async with asyncio.timeout(60):
            while backlog_size(administration, pair) == before:
                await asyncio.sleep(0.02)
        process.kill()
        process.wait()
    working.start()
    working.start()
    there: list[str] = []
    async with asyncio.timeout(100):
        while len(there) < count:
            there += ids(await drain(primary, "once"))
    await until(lambda: backlog_size(administration, pair) == 0)
    administration.close()
    assert sorted(there) == sorted(f"id-{number}" for number in range(count))


async def test_r_pair_10_what_cannot_be_delivered_is_a_dead_letter_and_the_rest_goes_on(
    primary: Server, secondary: Server
) -> None:
    """R-PAIR-10."""
    setup = Administration(primary.connection_string)
    for name in ("short", "shut", "needs-session"):
        setup.client.create_queue(name, requires_session=name == "needs-session")
    pair = PairedBus("async", primary.connection_string, secondary.connection_string,
                     failover_interval=0, backlog_queue_count=2)  # fmt: skip
    await divert(
        pair,
        primary,
        ("short", "queue", sent(1)),
        ("needs-session", "queue", sent(2)),
        ("shut", "queue", sent(3)),
        ("orders", "queue", sent(4)),
    )
    bus = Bus("async", secondary.connection_string)
    await bus.send(pair.backlog(0), ServiceBusMessage("stray", message_id="stray"))
    primary.start()
    setup.client.delete_queue("short")
    setup.update("shut", status="SendDisabled")
    queues = [pair.backlog(index) for index in range(2)]
    ends = parse(primary.connection_string), parse(secondary.connection_string)
    syphon = Syphon(*ends, queues, gone_s=2.0)
    task = asyncio.create_task(syphon.run())
    await until(lambda: syphon.meter.dead_lettered == 3 and syphon.meter.moved == 1)
    setup.update("shut", status="Active")
    await until(lambda: syphon.meter.moved == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert ids(await drain(primary, "orders")) == ["id-4"]
    assert ids(await drain(primary, "shut")) == ["id-3"]
    dead = await drain(secondary, *queues, sub_queue=DEAD_LETTERS)
    reasons = {each.message_id: each.dead_letter_reason for each in dead}
    assert reasons == {
        "stray": "NotDiverted",
        "id-1": "DestinationRefused",
        "id-2": "DestinationRefused",
    }
    setup.close()
    await bus.close()


async def test_r_pair_10_a_syphon_waits_for_a_primary_that_is_down(
    primary: Server, secondary: Server
) -> None:
    """R-PAIR-10."""
    pair = PairedBus("async", primary.connection_string, secondary.connection_string,
                     failover_interval=0)  # fmt: skip
    await divert(pair, primary, ("orders", "queue", [sent(n) for n in range(20)]))
    ends = parse(primary.connection_string), parse(secondary.connection_string)
    syphon = Syphon(*ends, [pair.backlog(0), pair.backlog(1)], poll_s=3.0)
    task = asyncio.create_task(syphon.run())
    await asyncio.sleep(4)
    assert not task.done()
    primary.start()
    await until(lambda: syphon.meter.moved == 20, within_s=100)
    assert ids(await drain(primary, "orders")) == [f"id-{n}" for n in range(20)]
    assert syphon.meter.polls >= 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_r_pair_10_a_client_may_run_the_syphon_itself(
    primary: Server, secondary: Server, flavour: str
) -> None:
    """R-PAIR-10."""
    ends = primary.connection_string, secondary.connection_string
    pair = PairedBus(flavour, *ends, failover_interval=0, enable_syphon=True)
    await pair.call("pair")
    primary.kill()
    async with pair.sender("orders") as sender:
        await sender.send_messages([sent(n) for n in range(5)])
        primary.start()
        await until(lambda: pair.client.syphon.moved == 5)
        await until(lambda: pair.states[-1] is PathState.HEALTHY)
        await sender.send_messages(sent(5))
    await pair.close()
    assert ids(await drain(primary, "orders")) == [f"id-{n}" for n in range(6)]
    assert await drain(secondary, pair.backlog(0), pair.backlog(1)) == []


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_r_pair_11_a_pair_whose_syphon_is_refused_is_at_fault(
    primary: Server, secondary: Server, flavour: str
) -> None:
    """R-PAIR-11."""
    ends = primary.connection_string, secondary.connection_string
    pair = PairedBus(flavour, *ends, failover_interval=0)
    await divert(pair, primary, ("orders", "queue", sent(1)))
    primary.start()
    wrong = ends[0].replace("SharedAccessKey=", "SharedAccessKey=A")
    faulted = PairedBus(flavour, wrong, ends[1], primary_name=pair.name, enable_syphon=True)
    await faulted.call("pair")
    sender = faulted.sender("orders")
    raised: ServiceBusError | None = None
    async with asyncio.timeout(60):
        while not isinstance(raised, PairFaultedError):
            with pytest.raises(ServiceBusError) as refused:
                await sender.send_messages(sent(2))
            raised = refused.value
    assert "primary" in str(raised)
    await faulted.close()
    with closing(Administration(secondary.connection_string)) as administration:
        assert backlog_size(administration, pair) == 1, "it stays"


async def test_r_pair_12_the_costs_are_those_that_the_page_gives(
    primary: Server, secondary: Server
) -> None:
    """R-PAIR-12: By the broker's own meters; a poll is shortened from 15 minutes to a second."""
    ends = primary.connection_string, secondary.connection_string
    pair = PairedBus("async", *ends, failover_interval=0)
    await pair.call("pair")
    queues = [pair.backlog(0), pair.backlog(1)]
    spaces = parse(ends[0]), parse(ends[1])
    idle = Syphon(*spaces, queues, poll_s=1.0)
    task = asyncio.create_task(idle.run())
    await until(lambda: idle.meter.polls >= 7)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    before = usage(secondary)
    assert sum(before[queue]["emptyReceives"] for queue in queues) == idle.meter.polls
    assert sum(before[queue]["receives"] for queue in queues) == 0
    assert 3_600 / POLL_S * 10 == 40

    primary.kill()
    async with pair.sender("orders") as sender:
        for number in range(5):
            await sender.send_messages(sent(number))
    primary.start()
    await until(lambda: pair.states[-1] is PathState.HEALTHY)
    syphon = Syphon(*spaces, queues)
    task = asyncio.create_task(syphon.run())
    await until(lambda: syphon.meter.moved == 5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await pair.close()
    assert len(await drain(primary, "orders")) == 5
    after, there = usage(secondary), usage(primary)["orders"]
    assert sum(after[queue]["sends"] for queue in queues) == 5
    assert sum(after[queue]["receives"] for queue in queues) == 5
    assert (there["sends"], there["receives"], there["pings"]) == (5, 5, 1)


@pytest.mark.parametrize("wrong", ["primary", "secondary"])
async def test_r_pair_11_a_key_that_is_refused_ends_the_syphon_at_once(
    primary: Server, secondary: Server, wrong: str
) -> None:
    """R-PAIR-11."""
    pair = PairedBus("async", primary.connection_string, secondary.connection_string,
                     failover_interval=0)  # fmt: skip
    await divert(pair, primary, ("orders", "queue", sent(1)))
    primary.start()
    ends = {"primary": primary.connection_string, "secondary": secondary.connection_string}
    ends[wrong] = ends[wrong].replace("SharedAccessKey=", "SharedAccessKey=A")
    syphon = Syphon(parse(ends["primary"]), parse(ends["secondary"]),
                    [pair.backlog(0), pair.backlog(1)])  # fmt: skip
    with pytest.raises(SyphonFault, match=wrong):
        async with asyncio.timeout(30):
            await syphon.run()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--primary", "x", "--secondary", "y"], "unknown part"),
        (["--primary", "{a}", "--secondary", "{b}"], "--primary-name"),
        (["--primary", "{a}", "--secondary", "{a}", "--primary-name", "p"], "the same"),
        (["--primary", "{a}", "--secondary", "{b}", "--primary-name", "p/q"], "no part"),
    ],
)
def test_mistakes_on_the_command_line_are_named(options: list[str], said: str) -> None:
    key = ";SharedAccessKeyName=k;SharedAccessKey=s;UseDevelopmentEmulator=true"
    ends = {"a": f"Endpoint=sb://localhost:1{key}", "b": f"Endpoint=sb://localhost:2{key}"}
    command = [
        sys.executable,
        "-m",
        "postbus",
        "syphon",
        *(each.format(**ends) for each in options),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and said in done.stderr, done.stderr
