"""A server with nothing behind it: the measure of how fast an official client can be.

It does the least such a client needs: lets everybody in, answers put-token with yes, accepts each
transfer when it comes, keeps messages in a deque, delivers them in order and confirms every
settlement. One queue, whatever the address, emptied when the last client has left; no locks, no
checks and, unless it is told to sync, no disk. What it tells the client about frames, sizes and
messages is what Postbus tells it, so that the client's own work is the same.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import deque
from typing import Final, cast

import uvloop

from postbus.amqp.codec.types import Int, Long, Symbol, Timestamp
from postbus.amqp.frames.composites import Composite
from postbus.amqp.frames.framing import (
    AMQP_HEADER,
    EMPTY_FRAME,
    FRAME_SASL,
    SASL_HEADER,
    FrameReader,
    encode_frame,
)
from postbus.amqp.frames.performatives import (
    ACCEPTED,
    ROLE_RECEIVER,
    ROLE_SENDER,
    SND_SETTLED,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
    decode_performative,
    encode_disposition_frame,
    encode_flow_frame,
    encode_transfer_frame,
)
from postbus.amqp.sections import (
    AnnotationLayout,
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_header,
    encode_properties,
    read_properties,
    scan,
    split_batch,
)

FRAME_SIZE: Final = 65_536
MESSAGE_SIZE_MAX: Final = 262_144
# Plenty, so that neither has to be renewed in the middle of a measurement.
_WINDOW: Final = 0x7FFFFFFF
_BATCH_FORMAT: Final = 0x80013700
_BATCH_COUNT_MAX: Final = 4_500
_CBS: Final = "$cbs"
_HEADER_SECTION: Final = b"\x00\x53\x70\xc0"
# The year 2100 in ms: no lock runs out.
_LOCKED_UNTIL: Final = 4_102_444_800_000
_ENQUEUED_AT: Final = 1_700_000_000_000
_BLOCK: Final = 4_096
_BLOCKS: Final = 4_096

_GREETING: Final = SASL_HEADER + encode_frame(
    0, SaslMechanisms([Symbol("ANONYMOUS")]), kind=FRAME_SASL
)
_OUTCOME: Final = encode_frame(0, SaslOutcome(0), kind=FRAME_SASL)
_OPEN: Final = AMQP_HEADER + encode_frame(0, Open("stub", None, FRAME_SIZE, 255, 240_000))
_LOCKED: Final = AnnotationLayout(
    ("x-opt-enqueued-time", Timestamp),
    ("x-opt-sequence-number", Long),
    ("x-opt-locked-until", Timestamp),
)
# In front of every message, as Postbus puts it there: header, lock token, annotations.
_BEFORE: Final = (
    encode_header()
    + b"\x00\x53\x71\xc1\x24\x02\xa3\x10x-opt-lock-token\x98"
    + bytes(16)
    + _LOCKED.encode((_ENQUEUED_AT, 1, _LOCKED_UNTIL), None)
)


class ClientReceiver:
    """A link on which messages go out."""

    __slots__ = ("channel", "credit", "delivery_count", "drain", "handle", "settled")

    def __init__(self, channel: int, handle: int, settled: bool) -> None:
        self.channel = channel
        self.handle = handle
        self.settled = settled
        self.credit = 0
        self.delivery_count = 0
        self.drain = False


class Journal:
    """A file that each answer waits for, in the thread that gives it: a block is written where one
    was before, and synced. No durable server can answer a lone client sooner on this disk."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.write(self._file, bytes(_BLOCK * _BLOCKS))
        os.fsync(self._file)
        self._next = 0

    def write(self) -> None:
        os.pwrite(self._file, bytes(_BLOCK), _BLOCK * (self._next % _BLOCKS))
        os.fdatasync(self._file)
        self._next += 1


class Store:
    """What the connections share."""

    def __init__(self, journal: Journal | None = None) -> None:
        self.journal = journal
        self.messages: deque[bytes] = deque()
        self.waiting: dict[ClientReceiver, Stub] = {}
        """Links with credit and nothing to send."""
        self.connections = 0


class Stub(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._messages = store.messages
        self._waiting = store.waiting
        self._reader = FrameReader(1_048_576)
        self._greeted = 0
        self._partial: dict[int, tuple[Transfer, list[bytes]]] = {}
        self._outlets: dict[tuple[int, int], ClientReceiver] = {}
        self._token_inlets: set[tuple[int, int]] = set()
        self._token_outlets: dict[int, int] = {}
        self._delivery_ids: dict[int, int] = {}
        self._out: list[bytes] = []
        self._changed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A TCP transport by contract; uvloop's does not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._store.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        for outlet in self._outlets.values():
            self._waiting.pop(outlet, None)
        self._store.connections -= 1
        if not self._store.connections:
            self._messages.clear()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        while self._greeted < 3 and self._greet():
            pass
        if self._greeted == 3:
            while (frame := reader.next_frame()) is not None:
                _, channel, body = frame
                if body:
                    self._on_frame(channel, body)
        self.flush()

    def flush(self) -> None:
        """Write what this turn brought, in one piece."""
        if self._changed and self._store.journal is not None:
            self._store.journal.write()
        self._changed = False
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def _greet(self) -> bool:
        """SASL header, SASL, AMQP header; say whether it went on."""
        if self._greeted == 1:
            if self._reader.next_frame() is None:
                return False
            self._out.append(_OUTCOME)
        else:
            if self._reader.next_header() is None:
                return False
            self._out.append(_GREETING if self._greeted == 0 else _OPEN)
        self._greeted += 1
        return True

    def _on_frame(self, channel: int, body: bytes) -> None:
        performative, end = decode_performative(body)
        kind = type(performative)
        if kind is Transfer:
            self._on_transfer(channel, cast(Transfer, performative), body[end:])
        elif kind is Disposition:
            self._on_disposition(channel, cast(Disposition, performative))
        elif kind is Flow:
            self._on_flow(channel, cast(Flow, performative))
        else:
            self._on_rare_frame(channel, performative)

    # Messages in

    def _on_transfer(self, channel: int, transfer: Transfer, payload: bytes) -> None:
        begun = self._partial.get(channel)
        if begun is not None:
            begun[1].append(payload)
            if transfer.more:
                return
            del self._partial[channel]
            transfer, payload = begun[0], b"".join(begun[1])
        elif transfer.more:
            self._partial[channel] = transfer, [payload]
            return
        delivery_id = transfer.delivery_id
        assert delivery_id is not None
        if not transfer.settled:
            self._out.append(
                encode_disposition_frame(
                    channel, ROLE_RECEIVER, delivery_id, delivery_id, True, ACCEPTED
                )
            )
        if (channel, transfer.handle) in self._token_inlets:
            self._answer_token(channel, payload)
            return
        self._changed = True
        if transfer.message_format == _BATCH_FORMAT:
            self._messages.extend(split_batch(payload, _BATCH_COUNT_MAX))
        else:
            self._messages.append(payload)
        for outlet, owner in list(self._waiting.items()):
            owner.deliver(outlet)
            owner.flush()

    def _answer_token(self, channel: int, payload: bytes) -> None:
        asked = read_properties(payload, scan(payload))
        answer = (
            encode_properties(Properties(correlation_id=asked.message_id)),
            encode_application_properties(
                {"status-code": Int(202), "status-description": "Accepted"}
            ),
            encode_amqp_value(None),
        )
        self._send(channel, self._token_outlets[channel], False, answer)

    # Messages out

    def _on_flow(self, channel: int, flow: Flow) -> None:
        if flow.handle is None or flow.link_credit is None:
            return
        outlet = self._outlets.get((channel, flow.handle))
        if outlet is not None:
            heard = flow.delivery_count or 0
            outlet.credit = max(heard + flow.link_credit - outlet.delivery_count, 0)
            outlet.drain = flow.drain
            self.deliver(outlet)

    def deliver(self, outlet: ClientReceiver) -> None:
        """Send what the client has credit for and what there is."""
        messages = self._messages
        count = min(outlet.credit, len(messages))
        outlet.credit -= count
        outlet.delivery_count += count
        self._changed |= count > 0 and outlet.settled
        for _ in range(count):
            payload = messages.popleft()
            if payload.startswith(_HEADER_SECTION):
                # The client's own header makes way for ours: its size is in its fifth byte.
                payload = payload[5 + payload[4] :]
            self._send(outlet.channel, outlet.handle, outlet.settled, (_BEFORE, payload))
        if outlet.drain:
            outlet.delivery_count += outlet.credit
            outlet.credit = 0
            self._flow(outlet.channel, outlet.handle, outlet.delivery_count, 0, True)
            outlet.drain = False
        if outlet.credit:
            self._waiting[outlet] = self
        else:
            self._waiting.pop(outlet, None)

    def _send(self, channel: int, handle: int, settled: bool, parts: tuple[bytes, ...]) -> None:
        delivery_id = self._delivery_ids[channel]
        self._delivery_ids[channel] = delivery_id + 1
        tag = delivery_id.to_bytes(16, "big")
        self._out.append(
            encode_transfer_frame(channel, handle, delivery_id, tag, 0, settled, False, parts)
        )

    def _on_disposition(self, channel: int, disposition: Disposition) -> None:
        if disposition.role == ROLE_RECEIVER and not disposition.settled:
            self._changed = True
            first = disposition.first
            last = first if disposition.last is None else disposition.last
            self._out.append(
                encode_disposition_frame(channel, ROLE_SENDER, first, last, True, ACCEPTED)
            )

    # Coming and going

    def _on_rare_frame(self, channel: int, performative: Composite) -> None:
        match performative:
            case Open():
                pass  # answered with the protocol header, before it came
            case Begin():
                self._delivery_ids[channel] = 0
                answer = Begin(channel, 0, _WINDOW, _WINDOW, 1_023)
                self._out.append(encode_frame(channel, answer))
            case Attach():
                self._on_attach(channel, performative)
            case Detach():
                outlet = self._outlets.pop((channel, performative.handle), None)
                if outlet is not None:
                    self._waiting.pop(outlet, None)
                detached = Detach(performative.handle, closed=True)
                self._out.append(encode_frame(channel, detached))
            case End():
                self._out.append(encode_frame(channel, End()))
            case Close():
                self._out.append(encode_frame(0, Close()))
                self.flush()
                self._transport.close()
            case _:
                self._out.append(EMPTY_FRAME)

    def _on_attach(self, channel: int, attach: Attach) -> None:
        sends = attach.role == ROLE_RECEIVER
        answer = Attach(
            attach.name,
            attach.handle,
            ROLE_SENDER if sends else ROLE_RECEIVER,
            attach.snd_settle_mode,
            attach.rcv_settle_mode,
            attach.source,
            attach.target,
            initial_delivery_count=0 if sends else None,
            max_message_size=MESSAGE_SIZE_MAX,
            properties={Symbol("com.microsoft:max-message-batch-size"): MESSAGE_SIZE_MAX},
        )
        self._out.append(encode_frame(channel, answer))
        place = channel, attach.handle
        terminus = attach.source if sends else attach.target
        is_token_link = getattr(terminus, "address", None) == _CBS
        if sends:
            if is_token_link:
                self._token_outlets[channel] = attach.handle
            else:
                settled = attach.snd_settle_mode == SND_SETTLED
                self._outlets[place] = ClientReceiver(channel, attach.handle, settled)
        else:
            if is_token_link:
                self._token_inlets.add(place)
            self._flow(channel, attach.handle, attach.initial_delivery_count or 0, 1_000_000, False)

    def _flow(self, channel: int, handle: int, count: int, credit: int, drain: bool) -> None:
        sent = self._delivery_ids[channel]
        self._out.append(
            encode_flow_frame(channel, 0, _WINDOW, sent, _WINDOW, handle, count, credit, 0, drain)
        )


async def serve(port: int, journal: str | None) -> None:
    """Serve on loopback until the process is ended."""
    store = Store(None if journal is None else Journal(journal))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stub(store), "127.0.0.1", port)
    await server.serve_forever()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.stub", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--journal", help="a file to sync for each answer")
    given = parser.parse_args()
    try:
        uvloop.run(serve(given.port, given.journal))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
