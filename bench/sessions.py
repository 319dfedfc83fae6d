"""What message sessions cost: `make bench-sessions`.

A queue is filled with the messages of a thousand sessions, and twenty connections empty it: each
accepts the next session, receives and completes what is in it, gives it up and accepts another.
Beside it the same messages from a queue without sessions, in alternating rounds.
"""

from __future__ import annotations

import argparse
import select
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.brokers import Broker, Postbus
from bench.caller import Caller, Place
from bench.processes import usage_of, wait_until_quiet
from bench.program import add_places, alternating, begun, conduct, say, write_json
from bench.report import comparison, markdown
from bench.work import QUIET_SHARE, RunFailed
from postbus.amqp.codec.types import Symbol
from postbus.amqp.deliveries import Disposed, MessageReceived
from postbus.amqp.events import LinkAttached, LinkDetached
from postbus.amqp.frames.outcomes import Accepted
from postbus.amqp.frames.performatives import ROLE_RECEIVER, Attach
from postbus.amqp.frames.terminus import Source, Target
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sections import Properties, encode_data, encode_properties

SESSIONS, PLAIN = "bench-sessions", "bench-plain"
SEND_WINDOW = 500
_FILTER = Symbol("com.microsoft:session-filter")
_LIMIT_S = 300.0


class WithSessions(Postbus):
    """A broker with both queues."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, [PLAIN, SESSIONS])
        with self._config.open("a") as file:
            file.write("requires_session = true\n")


class Receiver:
    """One connection that empties one session after the other, or a queue that has none."""

    def __init__(self, place: Place, queue: str, in_each: int) -> None:
        self.caller = Caller(place)
        self._queue = queue
        self._in_each = in_each
        self._left = 0
        self._attached = 0
        self.waits_ms: list[float] = []
        """From asking for a session to having it."""
        self.accept()

    def accept(self) -> None:
        self._attached += 1
        self._left = self._in_each
        self._began = time.perf_counter()
        source = Source(self._queue)
        if self._queue == SESSIONS:
            source.filter = {_FILTER: None}
        name = f"receiver-{self._attached}"
        attach = Attach(name, 0, ROLE_RECEIVER, source=source, target=Target(name))
        self.caller.session.attach(ReceiverLink, attach)

    def step(self) -> int:
        """Read; returns how many messages came."""
        came = 0
        for event in self.caller.read():
            if isinstance(event, MessageReceived):
                came += 1
                self._take(event)
            elif isinstance(event, LinkAttached) and isinstance(event.link, ReceiverLink):
                self.waits_ms.append((time.perf_counter() - self._began) * 1_000)
                event.link.grant(self._in_each)
            elif isinstance(event, LinkDetached):
                if event.error is not None:
                    raise RunFailed(f"a receiver was detached: {event.error}")
                self.accept()
        self.caller.write()
        return came

    def _take(self, event: MessageReceived) -> None:
        link = event.link
        link.settle(event.delivery, Accepted())
        self._left -= 1
        if self._left:
            return
        if self._queue == SESSIONS:
            link.detach()
        else:
            self._left = self._in_each
            link.grant(self._in_each)


@dataclass(frozen=True, slots=True)
class Run:
    rate: float
    """Messages per second."""
    accept_p50_ms: float
    """From asking for a receiver to having it, with its session."""
    accept_p99_ms: float
    broker_us: float
    """CPU of the broker for one message, received and completed."""


def fill(place: Place, queue: str, given: argparse.Namespace) -> None:
    caller = Caller(place)
    link = caller.ready_sender("sender", queue)
    body = encode_data(bytes(given.size))
    count = given.sessions * given.messages
    sent = answered = 0
    deadline = time.monotonic() + _LIMIT_S
    while answered < count:
        while sent < count and sent - answered < SEND_WINDOW and link.sendable:
            properties = Properties(message_id=f"{sent}", group_id=f"s{sent % given.sessions}")
            link.send(sent.to_bytes(4, "big"), encode_properties(properties) + body)
            sent += 1
        caller.write()
        select.select([caller.socket], [], [], 1)
        answered += sum(
            len(event.deliveries) for event in caller.read() if isinstance(event, Disposed)
        )
        if caller.closed or time.monotonic() > deadline:
            raise RunFailed("the queue was not filled")
    caller.close()


def once(broker: Broker, queue: str, given: argparse.Namespace) -> Run:
    place = Place(broker.port, broker.user, broker.password)
    fill(place, queue, given)
    wait_until_quiet(QUIET_SHARE, given.quiet)
    count = given.sessions * given.messages
    broker_s = usage_of(broker.pid).cpu_s
    began = time.monotonic()
    receivers = [Receiver(place, queue, given.messages) for _ in range(given.receivers)]
    for each in receivers:
        each.caller.write()
    by_socket = {each.caller.socket: each for each in receivers}
    received = 0
    while received < count:
        ready, _, _ = select.select(list(by_socket), [], [], 5)
        if not ready or time.monotonic() - began > _LIMIT_S:
            raise RunFailed(f"{received} of {count} messages came")
        for sock in ready:
            received += by_socket[sock].step()
            if by_socket[sock].caller.closed:
                raise RunFailed("the broker closed a connection")
    took_s = time.monotonic() - began
    broker_s = usage_of(broker.pid).cpu_s - broker_s
    for each in receivers:
        each.caller.close()
    waits = sorted(wait for each in receivers for wait in each.waits_ms)
    return Run(
        count / took_s,
        waits[len(waits) // 2],
        waits[len(waits) * 99 // 100],
        broker_s / count * 1e6,
    )


def measure(given: argparse.Namespace, folder: Path) -> int:
    facts = begun(
        folder,
        sessions=given.sessions,
        messages=given.messages,
        receivers=given.receivers,
        size=given.size,
    )
    results: dict[str, list[Run]] = {SESSIONS: [], PLAIN: []}
    with WithSessions(folder / "postbus") as broker:
        facts["broker"] = broker.full_name
        for index, queue in alternating((SESSIONS, PLAIN), given.rounds):
            run = once(broker, queue, given)
            results[queue].append(run)
            say(
                f"round {index}  {queue:14} {run.rate:7.0f} messages/s  accepted in"
                f" {run.accept_p50_ms:5.1f} ms (p99 {run.accept_p99_ms:5.1f})"
                f"  broker {run.broker_us:4.0f} µs"
            )
        facts["logged"] = broker.complaints()
    _tell(facts, results)
    facts["measured"] = {name: [asdict(run) for run in runs] for name, runs in results.items()}
    write_json(given.output, facts)
    return 0


def _tell(facts: dict[str, Any], results: dict[str, list[Run]]) -> None:
    titles = (
        ("messages per second", "rate", 0),
        ("CPU µs of the broker for a message", "broker_us", 0),
        ("ms to a receiver, median", "accept_p50_ms", 1),
    )
    lines = comparison(titles, results[SESSIONS], results[PLAIN])
    what = f"{facts['sessions']:,} x {facts['messages']} messages, {facts['receivers']} receivers"
    say(f"{facts['broker']}\n\n{markdown([what, 'in sessions', 'without', 'ratio'], lines)}\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sessions", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=20, help="messages in each session")
    parser.add_argument("--receivers", type=int, default=20)
    parser.add_argument("--size", type=int, default=1_024, help="bytes of a body")
    parser.add_argument("--quiet", type=float, default=5, help="s to wait for a quiet machine")
    add_places(parser, "bench-sessions.json")
    given = parser.parse_args()
    if not 1 <= given.rounds <= 100 or not 1 <= given.sessions <= 100_000:
        parser.error("--rounds is from 1 to 100, --sessions from 1 to 100,000")
    if not 1 <= given.messages <= 1_000 or not 1 <= given.receivers <= 100:
        parser.error("--messages is from 1 to 1,000, --receivers from 1 to 100")
    return conduct(measure, given)


if __name__ == "__main__":
    sys.exit(main())
