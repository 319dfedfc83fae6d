"""Room that comes free wakes the receivers that were held back for it, and nobody else."""

from __future__ import annotations

from typing import Any, cast

import pytest

from postbus.gateway.client_links import ClientReceiver, wake_all
from postbus.runtime.loaded_fragment import LoadedFragment
from tests.unit.gateway.test_promises import BODY, Connection, Link
from tests.unit.runtime.test_runtime import Bed, settled

# The stand-ins are not the classes that compiled links insist on.
pytestmark = pytest.mark.interpreted_only


class CrampedLink(Link):
    """A link of a session that has room for few unsettled messages, whoever takes it."""

    def __init__(self, session: Any, room: list[int]) -> None:
        super().__init__()
        self.session = session
        self.room = room

    def room_beside(self, promised: int, promised_in_session: int) -> int:
        return max(0, min(self.credit - promised, self.room[0] - promised_in_session))

    def send(self, *_: Any, **__: Any) -> None:
        super().send()
        self.room[0] -= 1


class CrampedConnection(Connection):
    """A connection with several receivers in one session, and room as the test says."""

    def __init__(self, bed: Bed, room: int) -> None:
        super().__init__(bed)
        self.room = [room]
        self.is_full = False
        self.session = Link().session

    def holds_back(self, receiver: ClientReceiver) -> bool:
        if self.is_full:
            self.held_back[receiver] = None
        return self.is_full

    def receive(self, credit: int = 100) -> tuple[ClientReceiver, CrampedLink]:
        self.attach()
        assert self.receiver is not None
        link = CrampedLink(self.session, self.room)
        link.credit = credit
        self.receiver.close()
        receiver = ClientReceiver(
            cast(Any, self), cast(Any, link), self.receiver.entity, self._bed.fragment, 0
        )
        receiver.open()
        receiver.credited()
        return receiver, link


@pytest.fixture
async def bed() -> Any:
    bed = Bed()
    yield bed
    bed.store.open.set()
    await bed.thread.stop()


@pytest.fixture
def woken(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> list[LoadedFragment]:
    """The fragments that the runtime was asked to look at."""
    found: list[LoadedFragment] = []
    wake = bed.runtime.wake

    def noting(fragment: LoadedFragment) -> None:
        found.append(fragment)
        wake(fragment)

    monkeypatch.setattr(bed.runtime, "wake", noting)
    return found


async def test_a_settlement_wakes_the_receiver_that_had_no_room(bed: Bed) -> None:
    await bed.send(*[BODY] * 3)
    connection = CrampedConnection(bed, room=2)
    receiver, link = connection.receive()
    await settled()
    assert link.sent == 2
    connection.room[0] += 1
    receiver.settled([])
    await settled()
    assert link.sent == 3


async def test_and_that_of_another_link_of_the_session(bed: Bed) -> None:
    await bed.send(*[BODY] * 3)
    connection = CrampedConnection(bed, room=2)
    first, link = connection.receive(credit=2)
    await settled()
    _, other = connection.receive()
    await settled()
    assert (link.sent, other.sent) == (2, 0)
    connection.room[0] += 1
    first.settled([])
    await settled()
    assert (link.sent, other.sent) == (2, 1)


async def test_a_settlement_wakes_nobody_who_only_waits_for_messages(
    bed: Bed, woken: list[LoadedFragment]
) -> None:
    """A session may have hundreds of links, each to a queue of its own."""
    await bed.send(BODY)
    connection = CrampedConnection(bed, room=100)
    receiver, link = connection.receive()
    connection.receive()
    await settled()
    assert link.sent == 1
    woken.clear()
    receiver.settled([])
    assert woken == []


async def test_a_link_that_ends_leaves_its_room_to_the_others(bed: Bed) -> None:
    await bed.send(*[BODY] * 3)
    connection = CrampedConnection(bed, room=2)
    first, link = connection.receive(credit=2)
    await settled()
    _, other = connection.receive()
    await settled()
    assert (link.sent, other.sent) == (2, 0)
    link.attached = False
    connection.room[0] += 2
    first.close()
    await settled()
    assert other.sent == 1


async def test_a_connection_with_room_again_wakes_the_receivers_it_held_back(
    bed: Bed, woken: list[LoadedFragment]
) -> None:
    await bed.send(BODY)
    connection = CrampedConnection(bed, room=100)
    connection.is_full = True
    held, link = connection.receive()
    await settled()
    assert (link.sent, list(connection.held_back)) == (0, [held])
    connection.is_full = False
    wake_all(connection.held_back)
    await settled()
    assert (link.sent, list(connection.held_back)) == (1, [])
    woken.clear()
    wake_all(connection.held_back)
    assert woken == []


async def test_a_message_that_is_not_sent_leaves_its_credit_to_the_next(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be written for the client, so it stays locked until the lock runs out."""
    unreadable = BODY + b"no section"
    await bed.send(unreadable, BODY)
    connection = CrampedConnection(bed, room=1)
    _, link = connection.receive(credit=1)
    await settled()
    assert (link.sent, link.credit) == (1, 0), "the next message"


async def test_a_receiver_that_has_left_is_woken_no_more(
    bed: Bed, woken: list[LoadedFragment]
) -> None:
    await bed.send(BODY)
    connection = CrampedConnection(bed, room=0)
    held, _ = connection.receive()
    await settled()
    assert list(connection.session.owner.held_back) == [held]
    held.close()
    woken.clear()
    assert connection.session.owner.held_back == {}
