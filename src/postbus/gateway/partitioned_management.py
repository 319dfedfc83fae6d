"""`<entity>/$management` of a partitioned entity: requests that several fragments answer.

A request about one fragment, as nearly all are, is decided there as a whole. A request about
several is asked of one after the other, so it is not atomic (docs/partitioning.md).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final

from postbus.broker.browse import RECEIVE_BYTES_MAX
from postbus.errors import MessageSizeExceeded, ServiceBusError
from postbus.gateway.management import ManagementNode, deleted, respond_ok
from postbus.gateway.nodes import NodeRequest
from postbus.gateway.operations import (
    PEEK_BYTES_MAX,
    Cancel,
    Delete,
    Dispose,
    ListSessions,
    Peek,
    Peeked,
    ReceiveDeferred,
    Renew,
    SessionClaim,
)
from postbus.gateway.partitioned_operations import CheckScheduled, Release
from postbus.gateway.response_writer import ResponseWriter, Written
from postbus.messages.batches import BatchReader
from postbus.messages.envelope import Changes
from postbus.model.times import Instant
from postbus.namespace.entity import INDEX_SHIFT
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.operations import Store
from postbus.runtime.requests import Call, Operation

Question = tuple[LoadedFragment, Operation[Any]]
Steps = Generator[Question, Any, None]
"""What is asked of which fragment, one after the other. Each answer, or refusal, comes back."""
COUNTED_AT_ONCE: Final = 1_000
"""Sessions that are counted in one step."""
LISTINGS_MAX: Final = 64
"""Ends of pages of sessions that are remembered."""


class PartitionedNode(ManagementNode):
    """The management node of a partitioned entity, or of one of its subqueues."""

    _listings: dict[tuple[Instant | None, int], tuple[int, int]] | None = None
    """Where pages of sessions ended, by the sessions before: fragment and sessions in it."""

    # -- steps -----------------------------------------------------------------------------

    def _take_steps(self, request: NodeRequest, steps: Steps, size: int = 0) -> None:
        self._go_on(request, steps, size, partial(next, steps))

    def _go_on(
        self, request: NodeRequest, steps: Steps, size: int, advance: Callable[[], Question]
    ) -> None:
        try:
            fragment, operation = advance()
        except StopIteration:
            return
        except ServiceBusError as error:
            self._failed(request, error)
            return

        def done(result: object) -> None:
            self._go_on(request, steps, size, partial(steps.send, result))

        def failed(error: ServiceBusError) -> None:
            self._go_on(request, steps, size, partial(steps.throw, error))

        call = Call(fragment, operation, done, failed, size, grows=size > 0)
        self._gateway.runtime(fragment).submit(call)

    # -- locks -----------------------------------------------------------------------------

    def _renew_locks(self, request: NodeRequest, tokens: list[bytes]) -> None:
        self._take_steps(request, self._renew_each(request, tokens))

    def _renew_each(self, request: NodeRequest, tokens: list[bytes]) -> Steps:
        until: dict[bytes, Instant] = {}
        for fragment, group in self._entity.by_token(tokens).items():
            renewed = yield fragment, Renew(self._subqueue, group)
            until.update(zip(group, renewed, strict=True))
        self._renewed(request, [until[token] for token in tokens])

    def _dispose(
        self,
        request: NodeRequest,
        tokens: list[bytes],
        changes: Changes | None,
        session: SessionClaim | None,
    ) -> None:
        self._take_steps(request, self._dispose_each(request, tokens, changes, session))

    def _dispose_each(
        self,
        request: NodeRequest,
        tokens: list[bytes],
        changes: Changes | None,
        session: SessionClaim | None,
    ) -> Steps:
        for fragment, group in self._entity.by_token(tokens).items():
            yield fragment, Dispose(self._subqueue, group, changes, session)
        respond_ok(request, None)

    # -- looking ---------------------------------------------------------------------------

    def _peek_from(self, request: NodeRequest, peek: Peek) -> None:
        self._take_steps(request, self._peek_on(request, peek))

    def _peek_on(self, request: NodeRequest, peek: Peek) -> Steps:
        """From the fragment of the first number on, in the order of numbers. So a client that
        goes on behind the last number it has seen sees all."""
        fragments = list(self._entity.fragments[min(peek.start >> INDEX_SHIFT, 1 << 16) :])
        if peek.session_id is not None:
            fragments = [self._entity.fragment_for(peek.session_id)]
        found: Peeked = []
        room, start = PEEK_BYTES_MAX, peek.start
        while fragments and len(found) < peek.count and room > 0:
            wanted = peek.count - len(found)
            look = Peek(peek.subqueue, start, wanted, peek.session_id, peek.omit_body)
            part: Peeked = yield fragments[0], look
            if not part:
                del fragments[0]
                continue
            size = sum([len(payload) for _, payload in part])
            if found and size > room:
                break
            found += part
            room -= size
            start = part[-1][0] + 1
        self._peeked(request, found)

    # -- messages by number ----------------------------------------------------------------

    def _receive_numbers(self, request: NodeRequest, receive: ReceiveDeferred) -> None:
        groups = self._entity.by_number(receive.numbers)
        if len(groups) > 1:
            self._take_steps(request, self._receive_each(request, receive, groups))
            return
        fragment = next(iter(groups), self._entity.fragments[0])
        self._ask(request, fragment, receive, partial(self._received, request))

    def _receive_each(
        self,
        request: NodeRequest,
        receive: ReceiveDeferred,
        groups: dict[LoadedFragment, list[int]],
    ) -> Steps:
        """Lock the messages in each fragment. Where one refuses, the others get theirs back: so a
        message that is received and deleted is deleted when all of them are there."""
        writers: dict[LoadedFragment, ResponseWriter] = {}
        try:
            for fragment, numbers in groups.items():
                operation = ReceiveDeferred(
                    receive.subqueue,
                    numbers,
                    False,
                    receive.holder,
                    receive.session_id,
                    receive.session,
                )
                writers[fragment] = yield fragment, operation
                while not writers[fragment].complete:
                    writers[fragment].go_on()
            written = [each for writer in writers.values() for each in writer.written]
            size = sum([len(message) for _, message in written])
            if size > RECEIVE_BYTES_MAX:
                raise MessageSizeExceeded(
                    f"The messages asked for take {size} bytes, {RECEIVE_BYTES_MAX} bytes are "
                    "allowed in one request: ask for fewer at a time."
                )
        except ServiceBusError:
            for fragment, writer in writers.items():
                yield fragment, Release(self._subqueue, _tokens(writer.written))
            raise
        by_number = {
            number: each
            for fragment, numbers in groups.items()
            for number, each in zip(numbers, writers[fragment].written, strict=True)
        }
        answer = [by_number[number] for number in receive.numbers]
        if receive.deletes:
            for fragment, writer in writers.items():
                yield fragment, Dispose(self._subqueue, _tokens(writer.written), None, None)
            answer = [(None, message) for _, message in answer]
        self._respond_received(request, answer)

    def _delete_messages(self, request: NodeRequest, delete: Delete) -> None:
        self._take_steps(request, self._delete_each(request, delete))

    def _delete_each(self, request: NodeRequest, delete: Delete) -> Steps:
        fragments = self._entity.fragments
        if delete.session_id is not None:
            fragments = (self._entity.fragment_for(delete.session_id),)
        count = 0
        for fragment in fragments:
            left = delete.count - count
            if left > 0:
                operation = Delete(delete.subqueue, left, delete.before, delete.session_id)
                try:
                    count += yield fragment, operation
                except ServiceBusError:
                    if not count:
                        raise
                    break  # these are gone, and the client must hear of them
        deleted(request, count)

    # -- scheduling ------------------------------------------------------------------------

    def _schedule_messages(self, request: NodeRequest, batch_reader: BatchReader) -> None:
        if request.transaction is not None:
            super()._schedule_messages(request, batch_reader)  # which refuses it
            return
        size = sum(message.length for message in batch_reader.messages)
        self._take_steps(request, self._store_in_one(request, batch_reader, size), size)

    def _store_in_one(self, request: NodeRequest, batch_reader: BatchReader, size: int) -> Steps:
        spread = self._entity.spread
        key = spread.key_of(batch_reader.messages)
        fragment: LoadedFragment | None = spread.choose(key)
        tried = 0
        while fragment is not None:
            tried |= 1 << fragment.index
            try:
                numbers = yield fragment, Store(batch_reader.messages)
            except ServiceBusError as error:
                if key is None:
                    fragment = spread.choose_again(fragment, error, tried)
                if key is not None or fragment is None:
                    raise
                # Read anew: the refused decision may have changed the messages.
                batch_reader = batch_reader.again()
            else:
                self._scheduled(request, size, numbers)
                return

    def _cancel_numbers(self, request: NodeRequest, numbers: list[int]) -> None:
        self._take_steps(request, self._cancel_each(request, numbers))

    def _cancel_each(self, request: NodeRequest, numbers: list[int]) -> Steps:
        groups = self._entity.by_number(numbers)
        if len(groups) > 1:
            for fragment, group in groups.items():
                yield fragment, CheckScheduled(self._subqueue, group)
        for fragment, group in groups.items():
            yield fragment, Cancel(self._subqueue, group)
        respond_ok(request, None)

    # -- sessions --------------------------------------------------------------------------

    def _list_sessions(
        self, request: NodeRequest, listing: ListSessions, done: Callable[[list[str]], None]
    ) -> None:
        self._take_steps(request, self._list_each(listing, done))

    def _list_each(self, listing: ListSessions, done: Callable[[list[str]], None]) -> Steps:
        """One fragment after the other, in each by id."""
        fragments, after = self._entity.fragments, listing.updated_after
        if self._listings is None:
            self._listings = {}
        index, inner = self._listings.get((after, listing.skip), (0, 0))
        left_out = 0 if (after, listing.skip) in self._listings else listing.skip
        found: list[str] = []
        while index < len(fragments) and len(found) < listing.top:
            wanted = min(left_out, COUNTED_AT_ONCE) or listing.top - len(found)
            ids = yield fragments[index], ListSessions(self._subqueue, after, inner, wanted)
            if left_out:
                left_out -= len(ids)
            else:
                found += ids
            if len(ids) < wanted:
                index, inner = index + 1, 0
            else:
                inner += len(ids)
        if len(self._listings) >= LISTINGS_MAX:
            self._listings.pop(next(iter(self._listings)))
        self._listings[after, listing.skip + len(found)] = index, inner
        done(found)


def _tokens(written: Written) -> list[bytes]:
    return [token for token, _ in written if token is not None]
