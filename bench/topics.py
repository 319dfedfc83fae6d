"""What many rules cost: `make bench-topics`.

One topic has 1,000 subscriptions with filters of every kind, of which each message matches ten;
another has ten that match every message. The same messages are sent to both, in alternating
rounds: as many copies are made and received, so the ratio is the price of the other 990.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from bench.brokers import Broker, Postbus
from bench.caller import Caller, Place
from bench.processes import usage_of, wait_until_quiet
from bench.program import add_places, alternating, begun, conduct, say, write_json
from bench.report import comparison, markdown
from bench.work import QUIET_SHARE, RunFailed
from postbus.amqp.events import Disposed, LinkAttached, MessageReceived
from postbus.amqp.frames.outcomes import Accepted
from postbus.amqp.sections import (
    Properties,
    encode_application_properties,
    encode_data,
    encode_properties,
)
from postbus.auth.sas import create_sas

MATCHES = 10
WINDOW = 500
_FORK = multiprocessing.get_context("fork")
_NS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_XSI = "http://www.w3.org/2001/XMLSchema-instance"
_XSD = "http://www.w3.org/2001/XMLSchema"
_LIMIT_S = 300.0
FLAGS = ("--links-per-connection-max", "3000", "--outgoing-unsettled-max", "2048")


def filters(group: str) -> list[str]:
    """Ten filters, all true for a message of this group: correlation and SQL, with and without an
    equality that an index could use."""
    key = (
        f'<KeyValueOfstringanyType><Key>region</Key><Value i:type="d:string" xmlns:d="{_XSD}">'
        f"{group}</Value></KeyValueOfstringanyType>"
    )
    sql = [
        f"region = '{group}'",
        f"region = '{group}' AND weight > 1",
        f"region IN ('{group}', 'nowhere') AND weight <= 5",
        f"sys.Label = '{group}'",
        f"sys.Label = '{group}' AND color LIKE 'r%'",
        f"weight < 10 AND region = '{group}' AND EXISTS(color)",
    ]
    return [
        f'<Filter i:type="CorrelationFilter"><Properties>{key}</Properties></Filter>',
        f'<Filter i:type="CorrelationFilter"><Label>{group}</Label></Filter>',
        f'<Filter i:type="CorrelationFilter"><Label>{group}</Label><Properties>{key}</Properties>'
        "</Filter>",
        f'<Filter i:type="CorrelationFilter"><CorrelationId>{group}</CorrelationId></Filter>',
        *(
            f'<Filter i:type="SqlFilter"><SqlExpression>{escape(each)}</SqlExpression>'
            "<CompatibilityLevel>20</CompatibilityLevel></Filter>"
            for each in sql
        ),
    ]


def message(number: int, group: str, body: bytes) -> bytes:
    properties = Properties(message_id=f"m{number}", subject=group, correlation_id=group)
    return (
        encode_properties(properties)
        + encode_application_properties({"region": group, "weight": 5, "color": "red"})
        + encode_data(body)
    )


class Manager:
    """Creates topics and subscriptions over HTTP."""

    def __init__(self, broker: Broker) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", broker.port, timeout=60)
        uri = f"http://localhost:{broker.port}"
        expiry = int(time.time() * 1_000) + 3_600_000
        token = create_sas(broker.user, broker.password, uri, expiry)
        self._headers = {"Authorization": token, "Content-Type": "application/atom+xml"}

    def put(self, path: str, content: str) -> None:
        entry = (
            f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">{content}'
            "</content></entry>"
        )
        self._http.request("PUT", f"/{path}?api-version=2021-05", entry, self._headers)
        reply = self._http.getresponse()
        said = reply.read()
        if reply.status != 201:
            raise RunFailed(f"{path}: {reply.status} {said[:300]!r}")

    def topic(self, name: str, groups: list[str]) -> None:
        """A topic with ten subscriptions for each group of messages."""
        self.put(name, f'<TopicDescription xmlns="{_NS}"/>')
        for group in groups:
            for number, each in enumerate(filters(group)):
                rule = (
                    f"<DefaultRuleDescription>{each}<Name>$Default</Name></DefaultRuleDescription>"
                )
                self.put(
                    f"{name}/Subscriptions/{group}-{number}",
                    f'<SubscriptionDescription xmlns="{_NS}" xmlns:i="{_XSI}">{rule}'
                    "</SubscriptionDescription>",
                )


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    topic: str
    groups: list[str]

    @property
    def subscriptions(self) -> Iterator[str]:
        for group in self.groups:
            for number in range(MATCHES):
                yield f"{self.topic}/Subscriptions/{group}-{number}"


@dataclass(frozen=True, slots=True)
class Run:
    """Messages per second until all were accepted, and until all copies had been received."""

    sent_rate: float
    received_rate: float
    broker_us: float


def _receive(place: Place, case: Case, count: int, pipe: Pipe) -> None:
    """Take every copy from every subscription, as it comes, and say when that was."""
    callers: list[Caller] = []
    names = list(case.subscriptions)
    for start in range(0, len(names), 250):
        caller = Caller(place)
        links = [caller.receiver(name, name, settled=True) for name in names[start : start + 250]]
        _attach(caller, len(links))
        for link in links:
            link.grant(200)
        caller.write()
        callers.append(caller)
    pipe.send(None)
    got, deadline = 0, time.monotonic() + _LIMIT_S
    while got < count and time.monotonic() < deadline:
        idle = True
        for caller in callers:
            events = caller.read()
            idle = idle and not events
            for event in events:
                if isinstance(event, MessageReceived):
                    got += 1
                    if event.link.credit < 100:
                        event.link.grant(200)
            caller.write()
        if idle:
            time.sleep(0.001)
    pipe.send((got, time.monotonic()))
    for caller in callers:
        caller.close()


def _attach(caller: Caller, links: int) -> None:
    """Wait until so many links are attached."""
    deadline = time.monotonic() + _LIMIT_S
    caller.write()
    while links > 0:
        if caller.closed or time.monotonic() > deadline:
            raise RunFailed("receivers could not be attached")
        links -= sum(isinstance(event, LinkAttached) for event in caller.read())
        caller.write()
        time.sleep(0.001)


def _send(place: Place, case: Case, count: int, body: bytes) -> float:
    """Send to the topic, at most WINDOW unanswered; returns when the last was accepted."""
    caller = Caller(place)
    link = caller.ready_sender("sender", case.topic)
    payloads = [message(0, group, body) for group in case.groups]
    sent = settled = 0
    deadline = time.monotonic() + _LIMIT_S
    while settled < count:
        if caller.closed or time.monotonic() > deadline:
            raise RunFailed(f"{case.name}: {settled} of {count} were accepted")
        room = min(link.sendable, count - sent, WINDOW - (sent - settled))
        for _ in range(room):
            link.send(sent.to_bytes(4, "big"), payloads[sent % len(payloads)])
            sent += 1
        caller.write()
        events = caller.read()
        for event in events:
            if isinstance(event, Disposed):
                if not isinstance(event.state, Accepted):
                    raise RunFailed(f"{case.name}: {event.state}")
                settled += len(event.deliveries)
        if not events and not room:
            time.sleep(0.0005)
    done = time.monotonic()
    caller.close()
    return done


def once(broker: Broker, case: Case, count: int, body: bytes) -> Run:
    place = Place(broker.port, broker.user, broker.password)
    ours, theirs = _FORK.Pipe()
    receiver = _FORK.Process(
        target=_receive, args=(place, case, count * MATCHES, theirs), daemon=True
    )
    receiver.start()
    try:
        if not ours.poll(_LIMIT_S):
            raise RunFailed(f"{case.name}: receivers do not attach")
        ours.recv()
        broker_s = usage_of(broker.pid).cpu_s
        began = time.monotonic()
        sent_at = _send(place, case, count, body)
        if not ours.poll(_LIMIT_S):
            raise RunFailed(f"{case.name}: not all copies came")
        got, received_at = ours.recv()
        if got != count * MATCHES:
            raise RunFailed(f"{case.name}: {got} of {count * MATCHES} copies came")
        broker_s = usage_of(broker.pid).cpu_s - broker_s
        took_s = received_at - began
        return Run(count / (sent_at - began), count / took_s, broker_s / count * 1e6)
    finally:
        receiver.join(5)
        if receiver.is_alive():
            receiver.kill()


def measure(given: argparse.Namespace, folder: Path) -> int:
    groups = [f"g{number:03}" for number in range(given.subscriptions // MATCHES)]
    cases = [
        Case(f"{len(groups) * MATCHES} subscriptions, 10 match", "many", groups),
        Case("10 subscriptions, 10 match", "few", ["g000"]),
    ]
    facts = begun(folder, size=given.size)
    results: dict[str, list[Run]] = {case.name: [] for case in cases}
    with ExitStack() as running:
        broker = running.enter_context(Postbus(folder / "postbus", (), FLAGS))
        facts["broker"] = broker.full_name
        manager = Manager(broker)
        for case in cases:
            manager.topic(case.topic, case.groups)
        for index, case in alternating(cases, given.rounds):
            wait_until_quiet(QUIET_SHARE, given.quiet)
            run = once(broker, case, given.count, bytes(given.size))
            results[case.name].append(run)
            say(
                f"round {index}  {case.name:32} accepted {run.sent_rate:7.0f}/s"
                f"  received by all {run.received_rate:7.0f}/s  broker {run.broker_us:6.0f} µs"
            )
        facts["logged"] = broker.complaints()
    _tell(facts, results, cases)
    facts["measured"] = {name: [asdict(run) for run in runs] for name, runs in results.items()}
    write_json(given.output, facts)
    return 0


def _tell(facts: dict[str, Any], results: dict[str, list[Run]], cases: list[Case]) -> None:
    many, few = (results[case.name] for case in cases)
    titles = (
        ("messages accepted per second", "sent_rate", 0),
        ("messages received by all who match, per second", "received_rate", 0),
        ("CPU µs of the broker for a message and its 10 copies", "broker_us", 0),
    )
    lines = comparison(titles, many, few)
    heads = [f"{facts['size']} B", *(case.name for case in cases), "ratio"]
    say(f"{facts['broker']}\n\n{markdown(heads, lines)}\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.topics", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=5_000, help="messages in a run")
    parser.add_argument("--subscriptions", type=int, default=1_000)
    parser.add_argument("--size", type=int, default=1_024, help="bytes of a body")
    parser.add_argument("--quiet", type=float, default=5, help="s to wait for a quiet machine")
    add_places(parser, "bench-topics.json")
    given = parser.parse_args()
    if not 1 <= given.rounds <= 100 or not 1 <= given.count <= 100_000:
        parser.error("--rounds is from 1 to 100, --count from 1 to 100,000")
    if not MATCHES <= given.subscriptions <= 2_000 or given.subscriptions % MATCHES:
        parser.error("--subscriptions is from 10 to 2,000, a multiple of 10")
    return conduct(measure, given)


if __name__ == "__main__":
    sys.exit(main())
