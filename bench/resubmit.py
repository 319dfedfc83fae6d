"""How fast dead letters are repaired: `make bench-resubmit`.

A queue has many dead letters, more than memory holds, put straight into the store as the engine
does it. Requests of a thousand numbers each send them again over HTTP, in turns as they are, with
an edited property, with a new body, and to another queue; the rest is thrown away. The table has
the messages per second of each, what one takes of the broker's CPU, and the resident memory of the
broker before and after.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from base64 import b64encode
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from bench.brokers import Postbus
from bench.processes import memory_of, usage_of
from bench.program import add_places, begun, conduct, say, write_json
from bench.report import markdown
from bench.work import RunFailed
from postbus.amqp.sections import (
    Properties,
    encode_application_properties,
    encode_data,
    encode_properties,
)
from postbus.auth.sas import create_sas
from postbus.broker.ledger import Layout, Ledger
from postbus.broker.message import Message
from postbus.broker.record_kinds import RecordKind
from postbus.broker.subqueue_numbers import DEAD_LETTER
from postbus.store import batch
from postbus.store.ports.journal import Part
from postbus.store.sqlite.folder import DataFolder

SOURCE, OTHER = "source", "other"
SIZE_MB = 5_120
AT_ONCE = 1_000
COMMIT_EVERY = 256
CHECKPOINT_EVERY = 16_384


class Cemetery(Postbus):
    """A broker with dead letters, and a queue that they can go to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, [SOURCE, OTHER], max_size_mb=SIZE_MB)

    def fill(self, count: int, size: int) -> list[int]:
        """Bury so many messages; it is started before and after. Returns their numbers."""
        self.stop()
        now = time.time_ns() // 1_000_000
        with closing(DataFolder(self.folder / "data", now)) as folder:
            [entity] = [each for each in folder.catalog.entities() if each.name == SOURCE]
            [fragment] = entity.fragments
            store = folder.stores[fragment.store]
            lease = store.acquire(fragment.id, "bench", 0)
            layout = Layout(batch.HEADER_SIZE, batch.RECORD_PREFIX_SIZE)
            ledger = Ledger(layout, fragment.index << 48, lease.head, lease.state)
            for place in range(1, count + 1):
                _bury(ledger, f"dead {place}", size, now)
                if place % COMMIT_EVERY == 0 or place == count:
                    is_due = place % CHECKPOINT_EVERY == 0 or place == count
                    made = ledger.make_checkpoint() if is_due else None
                    base, records = ledger.head, ledger.seal()
                    data, _ = batch.pack(fragment.id, lease.epoch, base, now, records)
                    store.commit([Part(lease, base, len(records), now, data, made)])
                    if made is not None:
                        ledger.checkpointed(made)
            store.release(lease)
            last = ledger.last_number
        self.start()
        return list(range(last - count + 1, last + 1))


def _bury(ledger: Ledger, name: str, size: int, now: int) -> None:
    raw = (
        encode_properties(Properties(message_id=name, subject="bench"))
        + encode_application_properties({"kind": "order", "tries": 3})
        + encode_data(bytes(size))
    )
    message = Message(raw, name, scheduled_at=now, header_size=len(raw) - size)
    message.number = message.enqueue_number = ledger.next_number()
    message.subqueue = DEAD_LETTER
    message.reason, message.description = "broken", "as in a bench"
    ledger.add(RecordKind.ENQUEUED, message, raw)
    message.raw = None


class Client:
    """Sends requests about the dead letters of the queue, one after the other."""

    def __init__(self, broker: Postbus) -> None:
        self._connection = HTTPConnection("127.0.0.1", broker.port, timeout=120)
        expires_at = time.time_ns() // 1_000_000 + 3_600_000
        self._token = create_sas(broker.user, broker.password, "http://localhost/", expires_at)

    def ask(self, verb: str, body: dict[str, Any], expected: str) -> None:
        path = f"/{SOURCE}/$DeadLetterQueue/{verb}"
        headers = {"Authorization": self._token, "Host": "localhost"}
        self._connection.request("POST", path, json.dumps(body), headers)
        response = self._connection.getresponse()
        reply = response.read()
        if response.status != 200:
            raise RunFailed(f"{response.status}: {reply[:300]!r}")
        others = [each for each in json.loads(reply)["results"] if each["outcome"] != expected]
        if others:
            raise RunFailed(f"{len(others)} were not {expected}: {others[0]}")


def _ways(size: int) -> dict[str, dict[str, Any]]:
    text = b64encode(b"x" * size).decode()
    return {
        "as they are": {},
        "a property edited": {"edits": {"properties": {"repaired": "yes"}}},
        "a new body": {"edits": {"body": text}},
        "to another queue": {},
    }


def measure(given: argparse.Namespace, folder: Path) -> int:
    facts = begun(folder)
    lines = []
    with Cemetery(folder / "broker") as broker:
        facts["broker"] = broker.full_name
        began = time.monotonic()
        numbers = broker.fill(given.count, given.size)
        say(f"{given.count:,} dead letters in {time.monotonic() - began:.0f} s")
        client = Client(broker)
        share = given.count // 5 // AT_ONCE * AT_ONCE
        before = memory_of(broker.pid)
        for name, more in _ways(given.size).items():
            part, numbers = numbers[:share], numbers[share:]
            to = OTHER if name == "to another queue" else None
            spent = usage_of(broker.pid).cpu_s
            took = _send_again(client, part, to, more)
            spent = usage_of(broker.pid).cpu_s - spent
            lines.append([name, f"{share / took:,.0f}", f"{spent / share * 1e6:.0f}"])
            say("  ".join(lines[-1]))
        began, spent = time.monotonic(), usage_of(broker.pid).cpu_s
        for start in range(0, len(numbers), AT_ONCE):
            part = numbers[start : start + AT_ONCE]
            client.ask("$discard", {"sequenceNumbers": part}, "removed")
        rate = len(numbers) / (time.monotonic() - began)
        spent = usage_of(broker.pid).cpu_s - spent
        lines.append(["thrown away", f"{rate:,.0f}", f"{spent / len(numbers) * 1e6:.0f}"])
        after = memory_of(broker.pid)
        facts["logged"] = broker.complaints()
    facts["rates"] = lines
    facts["resident_mb"] = [before.resident_mb, after.resident_mb, after.peak_mb]
    say(f"\n{markdown(['dead letters', 'messages/s', 'CPU µs of the broker'], lines)}\n")
    say(f"resident MB before, after, at most: {facts['resident_mb']}")
    write_json(given.output, facts)
    return 0


def _send_again(client: Client, numbers: list[int], to: str | None, more: dict[str, Any]) -> float:
    began = time.monotonic()
    for start in range(0, len(numbers), AT_ONCE):
        messages = [
            {"sequenceNumber": number, **more} for number in numbers[start : start + AT_ONCE]
        ]
        client.ask("$resubmit", {"to": to, "messages": messages}, "moved")
    return time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.resubmit", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=100_000, help="dead letters")
    parser.add_argument("--size", type=int, default=1_024, help="bytes of a body")
    add_places(parser, "bench-resubmit.json")
    given = parser.parse_args()
    if not 5 * AT_ONCE <= given.count <= 2_000_000:
        parser.error("--count is from 5,000 to 2,000,000")
    return conduct(measure, given)


if __name__ == "__main__":
    sys.exit(main())
