"""`<entity>/$management`: operations that are asked for by message (wire §6)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postbus.amqp.codec.types import AmqpArray, Int, Long, Timestamp
from postbus.amqp.faults import DecodeError
from postbus.amqp.frames.outcomes import Accepted
from postbus.auth.authority import Right, missing_claim
from postbus.broker import browse
from postbus.broker.engine import Engine
from postbus.broker.message import Message
from postbus.broker.pages import Need, Pages
from postbus.broker.queue import Queue
from postbus.broker.rewriting import Rewriting
from postbus.broker.subqueue import MAIN, kind_of
from postbus.broker.transaction import Transaction
from postbus.errors import (
    InvalidArgument,
    InvalidOperation,
    MessageLockLost,
    ServiceBusError,
    SessionLockLost,
)
from postbus.gateway.enlisting import settlements_of, transaction_of
from postbus.gateway.management_fields import Fields, check_number
from postbus.gateway.management_keys import KEYS, SCHEDULED_KEYS
from postbus.gateway.management_rules import RULE_OPERATIONS, RuleNode
from postbus.gateway.management_sessions import SESSION_OPERATIONS, SessionNode, held_here
from postbus.gateway.nodes import NodeRequest
from postbus.gateway.peeking import peek
from postbus.gateway.response_writer import ResponseWriter
from postbus.gateway.settlement import bodies_needed, rewritten, settle_with
from postbus.gateway.transactions import Operation
from postbus.messages.batches import BatchReader
from postbus.messages.envelope import (
    REASON_LENGTH_MAX,
    Changes,
    text_keys,
)
from postbus.model.times import NEVER, Instant
from postbus.namespace.entities import Entity, SubscriptionEntity
from postbus.runtime.requests import Call

if TYPE_CHECKING:
    from postbus.gateway.connection import Gateway

_PREFIX: Final = "com.microsoft:"
_OK: Final = 200
_NO_CONTENT: Final = 204
TOKENS_MAX: Final = 2_048
NUMBERS_MAX: Final = 2_048
SCHEDULED_AT_ONCE_MAX: Final = 4_500
_DELETE: Final = 0  # receiver-settle-mode `first`
_LOCK: Final = 1  # and `second`
# Constructors of the arrays we write: several SDKs insist on typed ones (wire §6.2).
_TIMESTAMP: Final = 0x83
_LONG: Final = 0x81

TRANSACTIONAL: Final = frozenset(
    {
        "schedule-message",
        "cancel-scheduled-message",
        "update-disposition",
        "renew-lock",
        "renew-session-lock",
    }
)
"""What may be part of a transaction (semantics B §7). A lock is renewed at once, whatever becomes
of the transaction."""

COUNTED_ELSEWHERE: Final = frozenset({"schedule-message", "receive-by-sequence-number"})
"""They send and receive, and count as that (R-COST-01)."""


class ManagementNode:
    """The management node of one entity, or of one of its subqueues."""

    def __init__(self, gateway: Gateway, entity: Entity, subqueue: int, path: str) -> None:
        self._gateway = gateway
        self._entity = entity
        self._subqueue = subqueue
        self._path = path
        self._has_sessions = kind_of(subqueue) == MAIN and entity.policy().requires_session

    def _operations(self) -> dict[str, tuple[Right, Callable[[NodeRequest, Fields], None]]]:
        """Made for each request: kept, they would keep what keeps them."""
        gateway, entity = self._gateway, self._entity
        operations: dict[str, tuple[Right, Callable[[NodeRequest, Fields], None]]] = {
            "renew-lock": (Right.LISTEN, self._renew),
            "peek-message": (Right.LISTEN, self._peek),
            "schedule-message": (Right.SEND, self._schedule),
            "cancel-scheduled-message": (Right.SEND, self._cancel),
            "receive-by-sequence-number": (Right.LISTEN, self._receive_deferred),
            "update-disposition": (Right.LISTEN, self._update_disposition),
            "batch-delete-messages": (Right.LISTEN, self._delete),
        }
        if self._has_sessions:
            for name, operation in SessionNode(gateway, entity, self._ask).operations().items():
                operations[name] = Right.LISTEN, operation
        if isinstance(entity, SubscriptionEntity):
            for name, operation in RuleNode(gateway, entity).operations().items():
                operations[name] = Right.MANAGE, operation
        return operations

    def handle(self, request: NodeRequest) -> None:
        name = request.operation.removeprefix(_PREFIX)
        found = self._operations().get(name)
        if found is None and name in SESSION_OPERATIONS:
            raise InvalidOperation(f"'{self._path}' does not require sessions: it has none.")
        if found is None and name in RULE_OPERATIONS:
            raise InvalidOperation(f"'{self._path}' is no subscription: it has no rules.")
        if found is None:
            raise InvalidArgument(f"The operation '{request.operation}' is not known.")
        if request.transaction is not None and name not in TRANSACTIONAL:
            raise InvalidOperation(
                f"The operation '{request.operation}' cannot be part of a transaction."
            )
        right, operation = found
        if not self._gateway.allows(right, self._path):
            raise missing_claim(right, self._gateway.uri(self._path))
        self._entity.touch(self._gateway.now)
        if name not in COUNTED_ELSEWHERE:
            self._entity.meter.requests += 1
        fields = Fields.of(request.body)
        fields.only(KEYS[name])
        operation(request, fields)

    def _ask(
        self,
        request: NodeRequest,
        call: Callable[[Queue, Instant, Pages], Any],
        done: Callable[[Any], None],
        size: int = 0,
    ) -> None:
        subqueue = self._subqueue

        def on_queue(engine: Engine, now: Instant, pages: Pages) -> Any:
            return call(engine.at(subqueue), now, pages)

        self._ask_engine(request, on_queue, done, size)

    def _ask_engine(
        self,
        request: NodeRequest,
        call: Callable[[Engine, Instant, Pages], Any],
        done: Callable[[Any], None],
        size: int = 0,
    ) -> None:
        fragment = self._entity.fragment

        def failed(error: ServiceBusError) -> None:
            self._entity.meter.refused(error.condition)
            request.refuse(error, self._entity.path)

        self._gateway.runtime(fragment).submit(
            Call(fragment, call, done, failed, size, grows=size > 0)
        )

    def _enlist(
        self,
        request: NodeRequest,
        operation: Operation,
        done: Callable[[Any], None],
        size: int = 0,
    ) -> None:
        """Make the request part of the transaction that it names."""

        def failed(error: ServiceBusError) -> None:
            self._entity.meter.refused(error.condition)
            request.refuse(error, self._entity.path)

        transaction = transaction_of(self._gateway, request.transaction)
        transaction.ask(self._entity.fragment, operation, done, failed, size)

    # -- locks -----------------------------------------------------------------------------

    def _renew(self, request: NodeRequest, fields: Fields) -> None:
        tokens = _tokens(fields)

        def renew(queue: Queue, now: Instant, pages: Pages) -> list[Instant]:
            for token in tokens:
                self._held(queue, token, now)
            return [queue.renew(token, now) for token in tokens]

        def done(until: list[Instant]) -> None:
            self._entity.meter.lock_renewals += len(until)
            expirations = AmqpArray(_TIMESTAMP, [Timestamp(at) for at in until])
            request.respond(_OK, "OK", {"expirations": expirations})

        self._ask(request, renew, done)

    def _held(self, queue: Queue, token: bytes, now: Instant) -> Message:
        message = queue.held(token, now)
        if message.subqueue != self._subqueue:
            # A lock of another part of the entity, for which there may be no right.
            raise MessageLockLost()
        return message

    def _update_disposition(self, request: NodeRequest, fields: Fields) -> None:
        tokens = _tokens(fields)
        status = fields.text("disposition-status")
        changes = Changes(
            dead_letter=status == "suspended",
            defer=status == "defered",
            reason=_cut(fields.optional_text("deadletter-reason")),
            description=_cut(fields.optional_text("deadletter-description")),
            properties=text_keys(fields.optional_map("properties-to-modify")) or None,
        )
        if status not in ("completed", "abandoned", "suspended", "defered"):
            raise InvalidArgument(f"The disposition-status '{status}' is not known.")
        if not changes.dead_letter and (changes.reason, changes.description) != (None, None):
            raise InvalidArgument(f"The disposition-status '{status}' has no reason.")
        if status == "completed" and changes.properties:
            raise InvalidArgument("A message that is completed has no properties to modify.")

        session_id = fields.optional_text("session-id")

        def check_session(queue: Queue, now: Instant) -> None:
            if session_id is not None and self._has_sessions:
                session = held_here(self._gateway, queue, session_id, now)
                if any(token not in session.locks for token in tokens):
                    raise SessionLockLost()

        def settle(queue: Queue, now: Instant, pages: Pages) -> Need | None:
            check_session(queue, now)
            for token in tokens:
                message = self._held(queue, token, now)
                if changes.dead_letter:
                    queue.check_dead_letter(message)
            if changes.properties:
                need = bodies_needed(queue, tokens, now, pages)
                if need is not None:
                    return need
            if status == "completed":
                for token in tokens:
                    queue.complete(token, now)
                return None
            # Whatever is refused is refused before the first of them is settled.
            rewriting = Rewriting()
            properties = []
            for token in tokens:
                made = rewritten(queue, token, changes, now, pages)
                if made is not None:
                    rewriting.add(made)
                properties.append(made)
            for token, made in zip(tokens, properties, strict=True):
                settle_with(queue, token, changes, now, made)
            return None

        def done(result: None) -> None:
            request.respond(_OK, "OK", {})

        if request.transaction is None:
            self._ask(request, settle, done)
            return
        verdict = Accepted() if status == "completed" else changes
        size_max = self._gateway.service.settings.header_size_max_bytes
        settlements, size = settlements_of(self._subqueue, tokens, verdict, size_max)

        def enlist(transaction: Transaction, engine: Engine, now: Instant, pages: Pages) -> None:
            check_session(engine.at(self._subqueue), now)
            transaction.settle(engine, settlements, now)

        self._enlist(request, enlist, done, size)

    # -- looking ---------------------------------------------------------------------------

    def _peek(self, request: NodeRequest, fields: Fields) -> None:
        start = fields.number("from-sequence-number")
        count = fields.number("message-count")
        if count <= 0:
            raise InvalidArgument("The message-count must be positive.")
        session_id = fields.optional_text("session-id")
        omit_body = fields.flag("omit-message-body")
        call = partial(peek, self._subqueue, max(start, 0), count, session_id, omit_body)
        self._ask(request, call, partial(self._peeked, request))

    def _peeked(self, request: NodeRequest, found: list[dict[str, Any]]) -> None:
        self._entity.meter.peeks += 1
        self._entity.meter.bytes_out += sum([len(each["message"]) for each in found])
        if found:
            request.respond(_OK, "OK", {"messages": found})
        else:
            request.respond(_NO_CONTENT, "No messages", {}, "com.microsoft:message-not-found")

    def _receive_deferred(self, request: NodeRequest, fields: Fields) -> None:
        numbers = _numbers(fields)
        mode = fields.number("receiver-settle-mode")
        if mode not in (_DELETE, _LOCK):
            raise InvalidArgument(f"The receiver-settle-mode {mode} is not known.")
        delete = mode == _DELETE
        session_id = fields.optional_text("session-id")
        gateway, fragment, subqueue = self._gateway, self._entity.fragment, self._subqueue
        has_sessions = self._has_sessions

        def receive(queue: Queue, now: Instant, pages: Pages) -> Any:
            if has_sessions:
                held_here(gateway, queue, session_id, now)
            found = browse.receive_deferred(
                queue, subqueue, numbers, delete, gateway.id, now, pages, session_id
            )
            return found if isinstance(found, Need) else ResponseWriter(found, queue.shared)

        def done(writer: ResponseWriter) -> None:
            if writer.complete:
                respond(writer)
            else:
                gateway.service.sliced_work.add(partial(go_on, writer))

        def go_on(writer: ResponseWriter) -> bool:
            if writer.go_on():
                return True
            respond(writer)
            return False

        def respond(writer: ResponseWriter) -> None:
            messages = []
            for token, encoded in writer.written:
                entry: dict[str, Any] = {"message": encoded}
                if token is not None:
                    if not has_sessions:  # or it goes with the lock of its session
                        gateway.locked(fragment, subqueue, token)
                    # In a map a lock token is a uuid in network order (wire §4.4).
                    entry["lock-token"] = UUID(bytes_le=token)
                messages.append(entry)
            self._entity.meter.receives += len(messages)
            self._entity.meter.bytes_out += sum([len(encoded) for _, encoded in writer.written])
            request.respond(_OK, "OK", {"messages": messages})

        self._ask(request, receive, done)

    def _delete(self, request: NodeRequest, fields: Fields) -> None:
        count = fields.number("message-count")
        before = fields.optional_number("enqueued-time-utc")
        if count <= 0:
            raise InvalidArgument("The message-count must be positive.")
        session_id = fields.optional_text("session-id")
        until = NEVER if before is None else before
        delete = partial(_delete, self._subqueue, count, until, session_id)

        def done(deleted: int) -> None:
            if deleted:
                request.respond(_OK, "OK", {"message-count": Int(deleted)})
            else:
                # JS throws on a bare 204 (wire §6.2).
                request.respond(_NO_CONTENT, "None", {}, "com.microsoft:message-not-found")

        self._ask(request, delete, done)

    # -- scheduling ------------------------------------------------------------------------

    def _schedule(self, request: NodeRequest, fields: Fields) -> None:
        entries = fields.list_of_maps("messages", SCHEDULED_AT_ONCE_MAX)
        settings = self._gateway.service.settings
        for entry in entries:
            entry.only(SCHEDULED_KEYS)
        batch_reader = BatchReader(
            [entry.binary("message") for entry in entries],
            settings.property_size_max_bytes,
            settings.header_size_max_bytes,
        )
        if self._unpack(request, batch_reader):
            self._gateway.proceed(partial(self._unpack, request, batch_reader))

    def _unpack(self, request: NodeRequest, batch_reader: BatchReader) -> bool:
        """Go on with the messages of a request; says whether there are more to read."""
        try:
            if not batch_reader.read():
                return True
            self._schedule_messages(request, batch_reader.messages)
        except DecodeError as fault:
            request.fail(InvalidArgument(f"A message cannot be read: {fault}"))
        except ServiceBusError as error:
            request.fail(error)
        return False

    def _schedule_messages(self, request: NodeRequest, messages: list[Message]) -> None:
        if self._subqueue != MAIN:
            raise InvalidOperation(f"Messages cannot be sent to '{self._path}'.")
        size = sum(message.length for message in messages)

        def done(numbers: list[int]) -> None:
            self._entity.meter.bytes_in += size
            array = AmqpArray(_LONG, [Long(number) for number in numbers])
            request.respond(_OK, "OK", {"sequence-numbers": array})

        if request.transaction is not None:
            self._enlist(request, partial(_schedule_in, messages), done, size)
            return
        self._ask_engine(request, partial(_send, messages), done, size)

    def _cancel(self, request: NodeRequest, fields: Fields) -> None:
        numbers = _numbers(fields)
        if self._subqueue != MAIN:
            # Nothing is scheduled here; the numbers are those of another part of the entity.
            raise InvalidOperation(f"Messages cannot be scheduled at '{self._path}'.")

        def cancel(queue: Queue, now: Instant, pages: Pages) -> Need | None:
            return browse.cancel_scheduled(queue, numbers, pages)

        def done(result: None) -> None:
            request.respond(_OK, "OK", {})

        if request.transaction is not None:
            self._enlist(request, partial(_cancel_in, numbers), done)
            return
        self._ask(request, cancel, done)


def _delete(
    subqueue: int,
    count: int,
    before: Instant,
    session_id: str | None,
    queue: Queue,
    now: Instant,
    pages: Pages,
) -> int | Need:
    return browse.delete_batch(queue, subqueue, count, before, pages, session_id)


def _send(messages: list[Message], engine: Engine, now: Instant, pages: Pages) -> list[int] | Need:
    return engine.send(messages, now, pages)


def _schedule_in(
    messages: list[Message], transaction: Transaction, engine: Engine, now: Instant, pages: Pages
) -> list[int]:
    return transaction.schedule(engine, messages)


def _cancel_in(
    numbers: list[int], transaction: Transaction, engine: Engine, now: Instant, pages: Pages
) -> Need | None:
    return transaction.cancel(engine, numbers, pages)


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:REASON_LENGTH_MAX]


def _tokens(fields: Fields) -> list[bytes]:
    tokens = fields.items("lock-tokens", UUID, TOKENS_MAX)
    if len(set(tokens)) != len(tokens):
        raise InvalidArgument("A lock token is named twice.")
    return [token.bytes_le for token in tokens]


def _numbers(fields: Fields) -> list[int]:
    return [check_number(n) for n in fields.items("sequence-numbers", int, NUMBERS_MAX)]
