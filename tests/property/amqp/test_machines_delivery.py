"""Two cores with any wire between them deliver every message once, in order, within bounds."""

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from postbus.amqp.events import Disposed, MessageReceived
from postbus.amqp.frames.performatives import ACCEPTED, DeliveryState, Modified
from postbus.amqp.limits import Limits
from tests.unit.amqp.pair import ConnectionPair

TOP = 0xFFFFFFFF

limits = st.builds(
    Limits,
    max_frame_size=st.integers(512, 2048),
    incoming_window=st.integers(2, 20),
    unsettled_outgoing_max=st.integers(1, 10),
)


def body(number: int, size: int) -> bytes:
    return str(number).encode().ljust(size, b".")


@given(
    client_limits=limits,
    server_limits=limits,
    sizes=st.lists(st.integers(4, 3000), min_size=1, max_size=40),
    credit=st.integers(1, 12),
    chunk=st.integers(1, 700),
    from_client=st.booleans(),
    start=st.sampled_from([0, TOP - 5]),
    two_steps=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_every_message_arrives_once_in_order_with_flow_control(
    client_limits: Limits,
    server_limits: Limits,
    sizes: list[int],
    credit: int,
    chunk: int,
    from_client: bool,
    start: int,
    two_steps: bool,
) -> None:
    def chunker(data: bytes) -> Iterator[bytes]:
        for offset in range(0, len(data), chunk):
            yield data[offset : offset + chunk]

    pair = ConnectionPair(client_limits, server_limits, chunker)
    pair.open()
    session = pair.begin()
    sender, receiver = pair.client_sends(session) if from_client else pair.server_sends(session)
    outgoing = sender.session.outgoing
    # The serial numbers may be anywhere, also about to go over the top.
    outgoing.next_delivery_id = outgoing.next_transfer_id = start
    receiver.session._next_incoming_id = start
    receiver.delivery_count = sender.delivery_count = start

    waiting = [body(number, size) for number, size in enumerate(sizes)]
    arrived: list[bytes] = []
    confirmed: dict[bytes, DeliveryState | None] = {}
    while len(confirmed) < len(sizes):
        before = len(arrived), len(confirmed), len(waiting)
        receiver.grant(credit)
        pair.exchange()
        while waiting and sender.sendable:
            assert sender.credit <= credit
            assert len(outgoing.unsettled) < outgoing.unsettled_max
            payload = waiting.pop(0)
            sender.send(b"tag", payload, context=payload)
        pair.exchange()
        heard = [*pair.at_client(object), *pair.at_server(object)]
        for event in heard:
            if isinstance(event, MessageReceived):
                arrived.append(event.delivery.payload)
                state = Modified() if len(arrived) % 3 == 0 else ACCEPTED
                receiver.settle(event.delivery, state, settled=not two_steps)
        assert len(receiver.unsettled) <= credit
        pair.exchange()
        for verdict in [*pair.at_client(Disposed), *pair.at_server(Disposed)]:
            assert isinstance(verdict, Disposed)
            for delivery in verdict.deliveries:
                assert delivery.context not in confirmed
                confirmed[delivery.context] = verdict.state
                sender.settle(delivery, verdict.state)
        pair.exchange()
        assert (len(arrived), len(confirmed), len(waiting)) != before, "it came to a halt"

    assert arrived == [body(number, size) for number, size in enumerate(sizes)]
    assert list(confirmed) == arrived
    expected = [Modified() if number % 3 == 2 else ACCEPTED for number in range(len(sizes))]
    assert list(confirmed.values()) == expected
    assert outgoing.unsettled == receiver.unsettled == {}
    assert pair.client.pending_bytes == pair.server.pending_bytes == 0
    assert pair.client.incoming_unsettled == pair.server.incoming_unsettled == 0
