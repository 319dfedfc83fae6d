"""Whatever bytes come, nothing is raised, nothing grows past its bound, and the books balance."""

from hypothesis import given, settings
from hypothesis import strategies as st

from postbus.amqp.connection import Connection, ConnectionState
from postbus.amqp.events import (
    Closed,
    CreditChanged,
    Disposed,
    Event,
    LinkAttached,
    LinkDetached,
    MessageReceived,
    SaslReceived,
    SessionEnded,
)
from postbus.amqp.frames.framing import AMQP_HEADER, SASL_HEADER, FrameReader, encode_frame
from postbus.amqp.frames.performatives import (
    ACCEPTED,
    Attach,
    Begin,
    Close,
    Composite,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Rejected,
    Source,
    Target,
    TransactionalState,
    Transfer,
    decode_performative,
)
from postbus.amqp.limits import Limits
from postbus.amqp.link import Link, LinkState
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sending import SenderLink
from tests.property.amqp.test_machines_chunking import STORY
from tests.unit.amqp.pair import T0

LIMITS = Limits(
    max_frame_size=512,
    channel_max=2,
    handle_max=4,
    incoming_window=4,
    message_size_max=300,
    unsettled_incoming_max=3,
    unsettled_outgoing_max=3,
    links_max=4,
    pending_links_max=2,
    attach_bytes_max=600,
    early_deliveries_max=2,
    assembling_bytes_max=700,
)

SERIALS = st.one_of(st.integers(0, 6), st.sampled_from([0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]))
HANDLES = st.integers(0, 5)
TAGS = st.sampled_from([b"", b"tag", b"t" * 33])
STATES = st.sampled_from([None, ACCEPTED, Rejected(), TransactionalState(b"txn")])

LINK_HANDLES = st.sampled_from([0, 0, 0, 1, 1, 1, 2])


def attaches(handles: st.SearchStrategy[int]) -> st.SearchStrategy[Composite]:
    return st.builds(
        Attach,
        st.sampled_from(["a", "b", "n" * 200]),
        handles,
        st.booleans(),
        source=st.sampled_from([None, Source("here")]),
        target=st.sampled_from([None, Target("there")]),
        initial_delivery_count=st.none() | SERIALS,
    )


def flows(handles: st.SearchStrategy[int]) -> st.SearchStrategy[Composite]:
    return st.builds(
        Flow,
        st.none() | SERIALS,
        st.integers(0, 4),
        SERIALS,
        SERIALS,
        st.none() | handles,
        st.none() | SERIALS,
        st.none() | st.integers(0, 5),
        drain=st.booleans(),
        echo=st.booleans(),
    )


def transfers(
    handles: st.SearchStrategy[int],
    ids: st.SearchStrategy[int | None],
    tags: st.SearchStrategy[bytes | None],
) -> st.SearchStrategy[Composite]:
    return st.builds(
        Transfer,
        handles,
        ids,
        tags,
        settled=st.sampled_from([None, True, False]),
        more=st.booleans(),
        state=STATES,
        resume=st.sampled_from([False] * 19 + [True]),
        aborted=st.sampled_from([False] * 9 + [True]),
    )


dispositions: st.SearchStrategy[Composite] = st.builds(
    Disposition, st.booleans(), SERIALS, st.none() | SERIALS, st.booleans(), STATES
)
begins: st.SearchStrategy[Composite] = st.builds(
    Begin,
    st.none() | st.integers(0, 3),
    SERIALS,
    st.integers(0, 3),
    SERIALS,
    st.integers(0, 6),
)
# Anything, on any channel and handle.
anything = st.one_of(
    begins,
    attaches(HANDLES),
    flows(HANDLES),
    transfers(HANDLES, st.none() | SERIALS, st.none() | TAGS),
    dispositions,
    st.builds(Detach, HANDLES, st.booleans()),
    st.sampled_from([End(), End(), End(), Open("again"), Close()]),
)
# What makes some sense on the two links of PROLOGUE, and so gets further.
sensible = st.one_of(
    flows(LINK_HANDLES),
    transfers(st.just(0), st.integers(0, 40), st.just(b"tag")),
    transfers(st.just(0), st.none(), st.none()),
    dispositions,
    st.builds(Disposition, st.just(True), st.integers(0, 9), st.none(), st.booleans(), STATES),
    st.builds(Detach, LINK_HANDLES, st.booleans()),
    attaches(LINK_HANDLES),
)
payloads = st.sampled_from([b"", b"body", b"x" * 100, b"x" * 250])

Script = list[tuple[list[tuple[int, Composite, bytes]], int]]


def scripts(
    channels: st.SearchStrategy[int], bodies: st.SearchStrategy[Composite]
) -> st.SearchStrategy[Script]:
    """Some turns, each with some frames and a number that says what the owner does."""
    frames = st.tuples(channels, bodies, payloads)
    return st.lists(st.tuples(st.lists(frames, max_size=5), st.integers(0, 100)), max_size=30)


def encoded(script: Script) -> list[tuple[bytes, int]]:
    return [
        (b"".join(encode_frame(channel, body, payload) for channel, body, payload in part), choice)
        for part, choice in script
    ]


# A session with a link in each direction.
PROLOGUE = b"".join(
    encode_frame(0, body)
    for body in (Begin(None, 0, 2, 2), Attach("in", 0, False), Attach("out", 1, True))
)


class Owner:
    """An owner that does, of all that it may do, what a number says."""

    def __init__(self) -> None:
        self.core = Connection(LIMITS, container_id="server", server=True, now=T0)
        self.links: list[Link] = []
        self.events: list[Event] = []

    def hear(self, events: list[Event], choice: int) -> None:
        for event in events:
            self.events.append(event)
            if isinstance(event, SaslReceived):
                self.hear(self.core.sasl_accept(), choice)
            elif isinstance(event, LinkAttached):
                self.links.append(event.link)
                if choice % 3 == 0:
                    self.hear(event.link.accept(), choice)
                elif choice % 3 == 1:
                    event.link.refuse(Error("amqp:not-found", "no"))
            elif isinstance(event, MessageReceived) and choice % 2 == 0:
                event.link.settle(event.delivery, ACCEPTED)
            elif isinstance(event, Disposed) and choice % 2 == 0:
                for delivery in event.deliveries:
                    event.link.settle(delivery, event.state)
            elif isinstance(event, CreditChanged):
                while event.link.sendable:
                    event.link.send(b"tag", b"y" * (choice * 100 % 900), settled=choice % 5 == 0)
                if choice % 4 == 0:
                    event.link.drained()

    def meddle(self, choice: int) -> None:
        """Do something of one's own accord."""
        for link in self.links[choice % 3 :: 3]:
            if choice % 7 == 0:
                self.hear(link.accept(), choice)
            elif choice % 7 == 1:
                link.detach()
            elif choice % 7 == 2 and isinstance(link, ReceiverLink):
                link.grant(choice)
            elif choice % 7 == 3 and isinstance(link, ReceiverLink):
                for delivery in list(link.unsettled.values()):
                    link.settle(delivery, ACCEPTED)
            elif choice % 7 == 4:
                link.refuse(Error("amqp:not-found", "no"))
            elif choice % 7 == 5 and isinstance(link, SenderLink):
                link.drained()
        if choice % 31 == 30 and self.core.sessions:
            self.core.sessions[0].end()


def check_books(core: Connection) -> None:
    """What the connection counts is what there is, and within its limits."""
    usage = core.usage
    links = [link for session in core.sessions for link in session.links if not link.closed]
    pending = [link for link in links if link.state is LinkState.PENDING]
    receivers = [link for link in links if isinstance(link, ReceiverLink)]
    unsettled = [delivery for link in receivers for delivery in link.unsettled.values()]
    assert usage.pending_links == len(pending) <= LIMITS.pending_links_max
    assert len(links) <= usage.link_count <= LIMITS.links_max
    assert usage.handle_count <= 2 * LIMITS.links_max
    assert 0 <= usage.attach_bytes <= LIMITS.attach_bytes_max
    assert 0 <= usage.assembling_bytes <= LIMITS.assembling_bytes_max
    assert core.incoming_unsettled == len(unsettled)
    assert core.incoming_unsettled_bytes == sum(delivery.size for delivery in unsettled)
    assert len(core.sessions) <= LIMITS.channel_max + 1
    assert core._reader.buffered < LIMITS.max_frame_size
    for session in core.sessions:
        assert session.incoming_unsettled <= 2 * LIMITS.unsettled_incoming_max
        assert len(session.links) <= LIMITS.handle_max + 1
        outgoing = session.outgoing
        assert len(outgoing.unsettled) <= LIMITS.unsettled_outgoing_max
        assert len(outgoing.unsettled) == sum(link.unsettled for link in session.senders())
    unsent = [waiting for session in core.sessions for waiting in session.outgoing.unsent]
    assert usage.unsent_bytes == sum(len(w.payload) - w.offset for w in unsent)
    if core.state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
        assert (usage.link_count, usage.handle_count, usage.attach_bytes) == (0, 0, 0)
        assert usage.assembling_bytes == core.incoming_unsettled == len(links) == 0


def check_output(data: bytes, reader: FrameReader) -> None:
    """What was written is what a peer can read, with no frame larger than it may be."""
    reader.feed(data)
    for _, _, body in reader:
        if body:
            decode_performative(body)


def check_events(events: list[Event]) -> None:
    """Nothing is told twice, and nothing is told of what is gone."""
    gone: set[int] = set()
    for event in events:
        match event:
            case LinkDetached(link, _, _):
                assert id(link) not in gone and id(link.session) not in gone
                gone.add(id(link))
            case SessionEnded(session, _):
                assert id(session) not in gone
                gone.add(id(session))
            case LinkAttached(link, _) | MessageReceived(link=link) | CreditChanged(link):
                assert id(link) not in gone and id(link.session) not in gone
            case _:
                pass
    assert not any(isinstance(event, Closed) for event in events[:-1])


def opened() -> Owner:
    owner = Owner()
    greeting = AMQP_HEADER + encode_frame(0, Open("hostile"))
    owner.hear(owner.core.receive_data(greeting, T0), 0)
    owner.core.data_to_send()
    return owner


def run(owner: Owner, steps: list[tuple[bytes, int]]) -> None:
    reader = FrameReader(LIMITS.max_frame_size)
    for data, choice in steps:
        owner.hear(owner.core.receive_data(data, T0), choice)
        check_books(owner.core)
        owner.meddle(choice)
        check_books(owner.core)
        check_output(owner.core.data_to_send(), reader)
        assert owner.core.pending_bytes == owner.core.usage.unsent_bytes
    check_events(owner.events)
    owner.core.receive_eof(T0)
    check_books(owner.core)


@given(scripts(st.integers(0, 3), anything))
@settings(max_examples=100)
def test_valid_frames_in_any_order_keep_every_bound(script: Script) -> None:
    run(opened(), encoded(script))


@given(scripts(st.just(0), sensible))
@settings(max_examples=120)
def test_frames_of_one_session_in_any_order_keep_every_bound(script: Script) -> None:
    run(opened(), [(PROLOGUE, 0), *encoded(script)])


@given(st.lists(st.binary(max_size=600), max_size=10), st.sampled_from([b"", SASL_HEADER]))
@settings(max_examples=100)
def test_arbitrary_bytes_never_raise(chunks: list[bytes], prefix: bytes) -> None:
    owner = Owner()
    for chunk in (prefix, *chunks):
        owner.hear(owner.core.receive_data(chunk, T0), 0)
        assert owner.core._reader.buffered <= LIMITS.max_frame_size
        owner.core.data_to_send()
    owner.hear(owner.core.receive_eof(T0), 0)
    assert owner.core.closed
    assert isinstance(owner.events[-1], Closed)


@given(st.binary(min_size=1, max_size=400), st.integers(0, 3), st.integers(0, 100))
@settings(max_examples=120)
def test_arbitrary_frame_bodies_cost_a_session_or_the_connection(
    body: bytes, channel: int, choice: int
) -> None:
    owner = opened()
    frame = (len(body) + 8).to_bytes(4, "big") + b"\x02\x00\x00" + bytes([channel]) + body
    begin = encode_frame(0, Begin(None, 0, 2, 2))
    run(owner, [(begin, choice), (frame, choice), (frame, choice)])


@given(st.data())
@settings(max_examples=120)
def test_a_real_stream_with_bytes_changed_dropped_and_doubled_never_raises(
    data: st.DataObject,
) -> None:
    stream = bytearray(b"".join(STORY))
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(stream) - 2))
        match data.draw(st.sampled_from(["change", "drop", "double"])):
            case "change":
                stream[place] = data.draw(st.integers(0, 255))
            case "drop":
                del stream[place]
            case _:
                stream[place:place] = stream[place : place + 40]
    owner = Owner()
    size = data.draw(st.integers(50, 500))
    for start in range(0, len(stream), size):
        owner.hear(owner.core.receive_data(bytes(stream[start : start + size]), T0), 0)
        check_books(owner.core)
        owner.core.data_to_send()
    check_events(owner.events)
