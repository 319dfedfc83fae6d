"""What a transaction costs: `make bench-transactions`.

Many connections send messages to one queue, ten at a time: in a transaction that is declared
before and committed behind them, and without one. The same number of messages, in alternating
rounds; the ratio is the price of having all ten or none.
"""

from __future__ import annotations

import argparse
import select
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.brokers import Broker, Postbus
from bench.caller import Caller, Place
from bench.processes import usage_of, wait_until_quiet
from bench.program import add_places, alternating, begun, conduct, say, write_json
from bench.report import comparison, markdown
from bench.work import QUIET_SHARE, RunFailed
from postbus.amqp.codec.types import Described, ULong
from postbus.amqp.events import Disposed
from postbus.amqp.frames.outcomes import Accepted
from postbus.amqp.frames.performatives import ROLE_SENDER, Attach
from postbus.amqp.frames.terminus import Source
from postbus.amqp.frames.transactions import (
    Coordinator,
    Declare,
    Declared,
    Discharge,
    TransactionalState,
)
from postbus.amqp.sections import Properties, encode_amqp_value, encode_data, encode_properties
from postbus.amqp.sending import SenderLink

MESSAGES = 10
QUEUE = "bench-transactions"
_DECLARE = encode_amqp_value(Described(ULong(Declare.CODE), []))
_LIMIT_S = 300.0


class Client:
    """One connection, and what it does again and again: ten messages, all of them or none."""

    def __init__(self, place: Place, body: bytes, transacts: bool) -> None:
        self.caller = Caller(place)
        self._link = self.caller.ready_sender("sender", QUEUE)
        self._payload = encode_properties(Properties(message_id="m")) + encode_data(body)
        self._coordinator: SenderLink | None = None
        if transacts:
            attach = Attach("c", 0, ROLE_SENDER, source=Source("c"), target=Coordinator())
            self._coordinator = self.caller.session.attach(SenderLink, attach)
            self.caller.write()
            deadline = time.monotonic() + _LIMIT_S
            while not self._coordinator.sendable and time.monotonic() < deadline:
                self.caller.read()
        self._sent = 0
        self._open = 0
        self._began = 0.0
        self.latencies: list[float] = []

    def begin(self) -> None:
        self._began = time.perf_counter()
        if self._coordinator is None:
            self._send(None)
        else:
            self._transfer(self._coordinator, _DECLARE, None)
        self.caller.write()

    def _transfer(self, link: SenderLink, payload: bytes, transaction: bytes | None) -> None:
        self._sent += 1
        self._open += 1
        state = None if transaction is None else TransactionalState(transaction)
        link.send(self._sent.to_bytes(4, "big"), payload, state=state)

    def _send(self, transaction: bytes | None) -> None:
        for _ in range(MESSAGES):
            self._transfer(self._link, self._payload, transaction)
        if transaction is not None and self._coordinator is not None:
            discharge = Described(ULong(Discharge.CODE), [transaction, False])
            self._transfer(self._coordinator, encode_amqp_value(discharge), None)

    def step(self) -> bool:
        """Read; say whether the ten are done."""
        done = False
        for event in self.caller.read():
            if isinstance(event, Disposed):
                self._open -= len(event.deliveries)
                state = event.state
                if isinstance(state, Declared):
                    self._send(state.txn_id)
                elif not isinstance(state, (Accepted, TransactionalState)):
                    raise RunFailed(f"refused: {state}")
                if self._open == 0:
                    self.latencies.append(time.perf_counter() - self._began)
                    done = True
        self.caller.write()
        return done


@dataclass(frozen=True, slots=True)
class Run:
    rate: float
    """Messages per second."""
    p50_ms: float
    """From the first frame for ten messages to the answer to the last."""
    p99_ms: float
    broker_us: float
    """CPU of the broker for one message."""


def once(broker: Broker, transacts: bool, given: argparse.Namespace) -> Run:
    place = Place(broker.port, broker.user, broker.password)
    body = bytes(given.size)
    clients = [Client(place, body, transacts) for _ in range(given.connections)]
    by_socket = {client.caller.socket: client for client in clients}
    tens = given.count // MESSAGES
    broker_s = usage_of(broker.pid).cpu_s
    began = time.monotonic()
    left = tens - len(clients)
    running = len(clients)
    for client in clients:
        client.begin()
    while running:
        ready, _, _ = select.select(list(by_socket), [], [], 5)
        if not ready or time.monotonic() - began > _LIMIT_S:
            raise RunFailed("the broker does not answer")
        for each in ready:
            client = by_socket[each]
            if client.step():
                if left > 0:
                    left -= 1
                    client.begin()
                else:
                    running -= 1
            if client.caller.closed:
                raise RunFailed("the broker closed a connection")
    took_s = time.monotonic() - began
    broker_s = usage_of(broker.pid).cpu_s - broker_s
    for client in clients:
        client.caller.close()
    latencies = sorted(each for client in clients for each in client.latencies)
    count = len(latencies) * MESSAGES
    return Run(
        count / took_s,
        latencies[len(latencies) // 2] * 1_000,
        latencies[len(latencies) * 99 // 100] * 1_000,
        broker_s / count * 1e6,
    )


def measure(given: argparse.Namespace, folder: Path) -> int:
    cases = {"in a transaction": True, "without": False}
    facts = begun(folder, size=given.size, connections=given.connections)
    results: dict[str, list[Run]] = {name: [] for name in cases}
    with ExitStack() as running:
        broker = running.enter_context(Postbus(folder / "postbus", (QUEUE,)))
        facts["broker"] = broker.full_name
        for index, name in alternating(list(cases), given.rounds):
            wait_until_quiet(QUIET_SHARE, given.quiet)
            run = once(broker, cases[name], given)
            results[name].append(run)
            say(
                f"round {index}  {name:18} {run.rate:7.0f} messages/s"
                f"  ten in {run.p50_ms:5.1f} ms (p99 {run.p99_ms:5.1f})"
                f"  broker {run.broker_us:4.0f} µs"
            )
        facts["logged"] = broker.complaints()
    _tell(facts, results)
    facts["measured"] = {name: [asdict(run) for run in runs] for name, runs in results.items()}
    write_json(given.output, facts)
    return 0


def _tell(facts: dict[str, Any], results: dict[str, list[Run]]) -> None:
    within, without = results.values()
    titles = (
        ("messages per second", "rate", 0),
        ("ms for ten messages, median", "p50_ms", 1),
        ("CPU µs of the broker for a message", "broker_us", 0),
    )
    lines = comparison(titles, within, without)
    heads = [f"{facts['size']} B, {facts['connections']} connections", *results, "ratio"]
    say(f"{facts['broker']}\n\n{markdown(heads, lines)}\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.transactions", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=30_000, help="messages in a run")
    parser.add_argument("--connections", type=int, default=20)
    parser.add_argument("--size", type=int, default=1_024, help="bytes of a body")
    parser.add_argument("--quiet", type=float, default=5, help="s to wait for a quiet machine")
    add_places(parser, "bench-transactions.json")
    given = parser.parse_args()
    if not 1 <= given.rounds <= 100 or not 1_000 <= given.count <= 1_000_000:
        parser.error("--rounds is from 1 to 100, --count from 1,000 to 1,000,000")
    if not 1 <= given.connections <= 100:
        parser.error("--connections is from 1 to 100")
    return conduct(measure, given)


if __name__ == "__main__":
    sys.exit(main())
