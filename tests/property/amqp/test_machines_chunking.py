"""How a byte stream is cut into chunks makes no difference to anybody."""

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from postbus.amqp.connection import Connection
from postbus.amqp.events import (
    CreditChanged,
    Disposed,
    Event,
    LinkAttached,
    LinkDetached,
    MessageReceived,
    SaslReceived,
    SessionBegun,
    SessionEnded,
)
from postbus.amqp.frames.performatives import (
    ACCEPTED,
    ROLE_RECEIVER,
    ROLE_SENDER,
    Attach,
    Error,
    Modified,
    Source,
    Target,
    TransactionalState,
)
from postbus.amqp.limits import Limits
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sending import SenderLink
from tests.unit.amqp.pair import T0

LIMITS = Limits(max_frame_size=512, incoming_window=8)


class Owner:
    """A server that accepts everything, settles what comes, and sends what is asked for."""

    def __init__(self) -> None:
        self.core = Connection(LIMITS, container_id="server", server=True, now=T0)
        self.told: list[str] = []

    def turn(self, chunks: Iterator[bytes]) -> bytes:
        """Let a piece of the stream arrive in chunks, then act on what it said, then answer."""
        events: list[Event] = []
        for chunk in chunks:
            events += self.core.receive_data(chunk, T0)
        self.act(events)
        return self.core.data_to_send()

    def act(self, events: list[Event]) -> None:
        for event in events:
            self.told.append(describe(event))
            if isinstance(event, SaslReceived):
                self.act(self.core.sasl_accept())
            elif isinstance(event, LinkAttached):
                self.act(event.link.accept())
                if isinstance(event.link, ReceiverLink):
                    event.link.grant(10)
            elif isinstance(event, MessageReceived):
                event.link.settle(event.delivery, ACCEPTED)
            elif isinstance(event, CreditChanged):
                while event.link.sendable:
                    event.link.send(b"tag", b"message " * 90)
                if event.link.drain:
                    event.link.drained()
            elif isinstance(event, Disposed) and not event.settled:
                for delivery in event.deliveries:
                    event.link.settle(delivery, event.state)


def describe(event: Event) -> str:
    """Say what an event says, without naming objects of one connection."""
    match event:
        case SessionBegun(session):
            return f"begun {session.channel}"
        case SessionEnded(session, error):
            return f"ended {session.channel} {error}"
        case LinkAttached(link, attach):
            return f"attached {link.role} {attach}"
        case LinkDetached(link, error, closed):
            return f"detached {link.name} {error} {closed}"
        case CreditChanged(link):
            return f"credit {link.name} {link.credit} {link.drain}"
        case MessageReceived(link=link, delivery=delivery):
            return f"message {link.name} {delivery.delivery_id} {delivery.payload!r}"
        case Disposed(link=link, deliveries=deliveries, state=state, settled=settled):
            ids = [delivery.delivery_id for delivery in deliveries]
            return f"disposed {link.name} {ids} {state} {settled}"
        case _:
            return repr(event)


def a_clients_story() -> list[bytes]:
    """Everything a client writes in a busy life, turn by turn."""
    client = Connection(LIMITS, container_id="client", server=False, now=T0)
    server = Owner()
    turns: list[bytes] = []

    def exchange() -> list[Event]:
        heard: list[Event] = []
        while data := client.data_to_send():
            turns.append(data)
            heard += client.receive_data(server.turn(iter([data])), T0)
        return heard

    client.open()
    exchange()
    # Pipelined, as the Python SDK does.
    session, other = client.begin(), client.begin()
    attach = Attach("in", 0, ROLE_SENDER, source=Source("me"), target=Target("orders"))
    sender = session.attach(SenderLink, attach)
    attach = Attach("out", 0, ROLE_RECEIVER, source=Source("orders"), target=Target("me"))
    receiver = other.attach(ReceiverLink, attach)
    exchange()
    for size in (0, 1, 300, 2000):
        sender.send(b"tag", b"x" * size)
    sender.send(b"tag", b"settled", settled=True, state=TransactionalState(b"txn"))
    exchange()
    receiver.grant(4)
    messages = [event for event in exchange() if isinstance(event, MessageReceived)]
    for number, message in enumerate(messages):
        state = Modified(undeliverable_here=True) if number % 2 else ACCEPTED
        receiver.settle(message.delivery, state, settled=number > 2)
    exchange()
    receiver.grant(2)
    receiver.request_drain()
    exchange()
    receiver.detach()
    other.end(Error("amqp:internal-error", "enough"))
    exchange()
    client.close()
    exchange()
    assert any(told.startswith("disposed") for told in server.told)
    assert server.core.closed
    return turns


STORY = a_clients_story()


def cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    """Cut data into chunks of these sizes, and a last one of what is left."""
    start = 0
    for size in sizes:
        yield data[start : start + size]
        start += size
    yield data[start:]


def replay(cuts: list[list[int]]) -> tuple[list[str], list[bytes]]:
    owner = Owner()
    written = [owner.turn(cut(data, cuts[number % len(cuts)])) for number, data in enumerate(STORY)]
    return owner.told, written


WHOLE = replay([[]])


@given(st.lists(st.lists(st.integers(0, 600), max_size=20), min_size=1, max_size=12))
@settings(max_examples=150, deadline=None)
def test_any_chunking_of_a_clients_stream_gives_the_same_events_and_the_same_output(
    cuts: list[list[int]],
) -> None:
    assert replay(cuts) == WHOLE


def test_one_byte_at_a_time_gives_the_same_events_and_the_same_output() -> None:
    longest = max(map(len, STORY))
    assert replay([[1] * longest]) == WHOLE
