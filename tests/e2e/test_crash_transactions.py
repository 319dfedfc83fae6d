"""kill -9 under transactions that move messages from one queue to another: none lost, none twice.

Each is received from the first, completed there, and sent through it to the second, as one step.
What is not known when the server dies is whether that has happened; that it happened by half is
what must not be.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from postbus.amqp.frames.performatives import SND_SETTLED
from tests.support.administration import Administration
from tests.support.server import Server
from tests.support.transacting import Refused, Transacting, body_of
from tests.support.waiting import until_blocking

MESSAGES = 400


class Mover(threading.Thread):
    """Moves messages until it is told to stop, over as many connections as it takes."""

    def __init__(self, server: Server, source: str, end: str, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._source, self._end = source, end
        self._chance = chance
        self._stopped = threading.Event()
        self.committed = 0
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                # A server that is not there, or goes, or has lost the locks: begin anew.
                with suppress(OSError, Refused):
                    self._move()
                time.sleep(0.02)
        except BaseException as problem:
            self.problem = problem
            raise

    def _move(self) -> None:
        with Transacting(self._server) as client:
            client.socket.settimeout(2)
            coordinator, receiver = client.coordinator(), client.receiver(self._source)
            sender = client.sender(self._source, destination=self._end)
            while not self._stopped.is_set():
                delivery = client.next(receiver)
                transaction = client.declare(coordinator)
                completes_first = self._chance.random() < 0.5
                if completes_first:
                    client.complete(delivery, transaction)
                client.send(sender, body_of(delivery), transaction)
                if not completes_first:
                    client.complete(delivery, transaction)
                if self._chance.random() < 0.1:
                    client.roll_back(coordinator, transaction)
                    return  # and with the connection its locks go
                client.commit(coordinator, transaction)
                self.committed += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join(30)
        assert self.problem is None


def bodies(server: Server, queue: str, count: int) -> list[str]:
    with Transacting(server) as client:
        receiver = client.receiver(queue, SND_SETTLED)
        return [body_of(client.next(receiver)) for _ in range(count)]


@pytest.mark.parametrize(
    "kills", [4, pytest.param(40, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_a_move_by_transaction_happens_whole_or_not_at_all_whatever_is_killed_when(
    make_server: Callable[..., Server], kills: int
) -> None:
    seed = int(os.environ.get("POSTBUS_SEED", random.randrange(1 << 32)))
    print(f"POSTBUS_SEED={seed}")
    chance = random.Random(seed)
    server = make_server().start()
    administration = Administration(server.connection_string)
    source = administration.make_queue("source", max_delivery_count=1_000)
    end = administration.make_queue("end")
    count = MESSAGES * kills // 4
    names = [f"m{n}" for n in range(count)]
    with Transacting(server) as client:
        sender = client.sender(source)
        for name in names:
            client.send(sender, name)
    movers = [Mover(server, source, end, random.Random(chance.random())) for _ in range(3)]
    for mover in movers:
        mover.start()
    for _ in range(kills):
        time.sleep(chance.uniform(0.1, 0.7))
        server.kill()
        server.start()

    def left() -> int:
        counts = administration.counts(source)
        return counts.active_message_count + counts.transfer_message_count

    until_blocking("everything has moved", lambda: left() == 0, within_s=120)
    for mover in movers:
        mover.stop()
    assert sum(mover.committed for mover in movers) > 0
    assert administration.counts(source).total_message_count == 0
    assert administration.counts(end).total_message_count == count
    twice = [name for name, n in Counter(bodies(server, end, count)).items() if n > 1]
    assert not twice, f"seed {seed}"
