"""`<entity>/$management`: operations that are asked for by message (wire §6)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from postbus.amqp.codec.types import AmqpArray, Int, Long, Timestamp
from postbus.amqp.faults import DecodeError
from postbus.amqp.frames.outcomes import Accepted
from postbus.auth.authority import Right, missing_claim
from postbus.broker.subqueue_numbers import MAIN, kind_of
from postbus.errors import InvalidArgument, InvalidOperation, ServiceBusError
from postbus.gateway.management_fields import Fields, numbers_of, tokens_of
from postbus.gateway.management_keys import KEYS, SCHEDULED_KEYS
from postbus.gateway.management_rules import RULE_OPERATIONS, RuleNode
from postbus.gateway.management_sessions import SESSION_OPERATIONS, SessionNode
from postbus.gateway.nodes import NodeRequest
from postbus.gateway.operations import (
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
from postbus.gateway.response_writer import ResponseWriter, Written
from postbus.gateway.transactions.enlisting import (
    refuse_partitioned,
    settlements_of,
    transaction_of,
)
from postbus.gateway.transactions.operations import (
    EnlistCancel,
    EnlistDispose,
    Enlistment,
    EnlistSchedule,
)
from postbus.messages.batches import BatchReader
from postbus.messages.envelope import REASON_LENGTH_MAX, Changes, text_keys
from postbus.model.times import NEVER, Instant
from postbus.namespace.entities import SubscriptionEntity
from postbus.namespace.entity import Entity
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.operations import Store
from postbus.runtime.requests import Call, Operation

if TYPE_CHECKING:
    from postbus.gateway.client_connection import ClientConnection

T = TypeVar("T")

_PREFIX: Final = "com.microsoft:"
_OK: Final = 200
_NO_CONTENT: Final = 204
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

    def __init__(self, gateway: ClientConnection, entity: Entity, subqueue: int, path: str) -> None:
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
            sessions = SessionNode(gateway, entity, self._subqueue, self._ask, self._list_sessions)
            for name, operation in sessions.operations().items():
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
        fragment: LoadedFragment,
        operation: Operation[T],
        done: Callable[[T], None],
        size: int = 0,
    ) -> None:
        failed = partial(self._failed, request)
        call = Call(fragment, operation, done, failed, size, grows=size > 0)
        self._gateway.runtime(fragment).submit(call)

    def _enlist(
        self,
        request: NodeRequest,
        enlistment: Enlistment,
        done: Callable[[Any], None],
        size: int = 0,
    ) -> None:
        """Make the request part of the transaction that it names."""
        refuse_partitioned(self._entity)
        transaction = transaction_of(self._gateway, request.transaction)
        fragment = self._entity.only_fragment
        transaction.ask(fragment, enlistment, done, partial(self._failed, request), size)

    def _failed(self, request: NodeRequest, error: ServiceBusError) -> None:
        self._entity.meter.refused(error.condition)
        request.refuse(error, self._entity.path)

    def _list_sessions(
        self, request: NodeRequest, listing: ListSessions, done: Callable[[list[str]], None]
    ) -> None:
        self._ask(request, self._entity.only_fragment, listing, done)

    # -- locks -----------------------------------------------------------------------------

    def _renew(self, request: NodeRequest, fields: Fields) -> None:
        self._renew_locks(request, tokens_of(fields))

    def _renew_locks(self, request: NodeRequest, tokens: list[bytes]) -> None:
        fragment = self._entity.only_fragment
        renew = Renew(self._subqueue, tokens)
        self._ask(request, fragment, renew, partial(self._renewed, request))

    def _renewed(self, request: NodeRequest, until: list[Instant]) -> None:
        self._entity.meter.lock_renewals += len(until)
        request.respond(_OK, "OK", {"expirations": AmqpArray(_TIMESTAMP, [*map(Timestamp, until)])})

    def _update_disposition(self, request: NodeRequest, fields: Fields) -> None:
        tokens = tokens_of(fields)
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
        completes = status == "completed"
        session_id = fields.optional_text("session-id")
        session = None if session_id is None else self._session_claim(session_id)
        if request.transaction is None:
            self._dispose(request, tokens, None if completes else changes, session)
            return
        verdict = Accepted() if completes else changes
        size_max = self._gateway.service.settings.header_size_max_bytes
        settlements, size = settlements_of(self._subqueue, tokens, verdict, size_max)
        enlistment = EnlistDispose(self._subqueue, settlements, session)
        self._enlist(request, enlistment, partial(respond_ok, request), size)

    def _dispose(
        self,
        request: NodeRequest,
        tokens: list[bytes],
        changes: Changes | None,
        session: SessionClaim | None,
    ) -> None:
        dispose = Dispose(self._subqueue, tokens, changes, session)
        self._ask(request, self._entity.only_fragment, dispose, partial(respond_ok, request))

    def _session_claim(self, session_id: str | None) -> SessionClaim | None:
        """A session that the client says it holds; None where the entity has no sessions."""
        if not self._has_sessions:
            return None
        return SessionClaim(session_id, frozenset(self._gateway.session_holders))

    # -- looking ---------------------------------------------------------------------------

    def _peek(self, request: NodeRequest, fields: Fields) -> None:
        start = fields.number("from-sequence-number")
        count = fields.number("message-count")
        if count <= 0:
            raise InvalidArgument("The message-count must be positive.")
        session_id = fields.optional_text("session-id")
        omit_body = fields.flag("omit-message-body")
        self._peek_from(request, Peek(self._subqueue, max(start, 0), count, session_id, omit_body))

    def _peek_from(self, request: NodeRequest, peek: Peek) -> None:
        self._ask(request, self._entity.only_fragment, peek, partial(self._peeked, request))

    def _peeked(self, request: NodeRequest, found: Peeked) -> None:
        self._entity.meter.peeks += 1
        self._entity.meter.bytes_out += sum([len(each) for _, each in found])
        if found:
            request.respond(_OK, "OK", {"messages": [{"message": each} for _, each in found]})
        else:
            request.respond(_NO_CONTENT, "No messages", {}, "com.microsoft:message-not-found")

    def _receive_deferred(self, request: NodeRequest, fields: Fields) -> None:
        numbers = numbers_of(fields)
        mode = fields.number("receiver-settle-mode")
        if mode not in (_DELETE, _LOCK):
            raise InvalidArgument(f"The receiver-settle-mode {mode} is not known.")
        session_id = fields.optional_text("session-id")
        receive = ReceiveDeferred(
            self._subqueue,
            numbers,
            mode == _DELETE,
            self._gateway.id,
            session_id,
            self._session_claim(session_id),
        )
        self._receive_numbers(request, receive)

    def _receive_numbers(self, request: NodeRequest, receive: ReceiveDeferred) -> None:
        fragment = self._entity.only_fragment
        self._ask(request, fragment, receive, partial(self._received, request))

    def _received(self, request: NodeRequest, writer: ResponseWriter) -> None:
        if writer.complete:
            self._respond_received(request, writer.written)
        else:
            go_on = partial(self._write_received, request, writer)
            self._gateway.service.sliced_work.add(go_on)

    def _write_received(self, request: NodeRequest, writer: ResponseWriter) -> bool:
        """Go on with the messages of a response; says whether there are more to write."""
        if writer.go_on():
            return True
        self._respond_received(request, writer.written)
        return False

    def _respond_received(self, request: NodeRequest, written: Written) -> None:
        messages = []
        for token, encoded in written:
            entry: dict[str, Any] = {"message": encoded}
            if token is not None:
                if not self._has_sessions:  # or it goes with the lock of its session
                    fragment = self._entity.fragment_of_token(token)
                    self._gateway.locked(fragment, self._subqueue, token)
                # In a map a lock token is a uuid in network order (wire §4.4).
                entry["lock-token"] = UUID(bytes_le=token)
            messages.append(entry)
        self._entity.meter.receives += len(messages)
        self._entity.meter.bytes_out += sum([len(encoded) for _, encoded in written])
        request.respond(_OK, "OK", {"messages": messages})

    def _delete(self, request: NodeRequest, fields: Fields) -> None:
        count = fields.number("message-count")
        before = fields.optional_number("enqueued-time-utc")
        if count <= 0:
            raise InvalidArgument("The message-count must be positive.")
        session_id = fields.optional_text("session-id")
        delete = Delete(self._subqueue, count, NEVER if before is None else before, session_id)
        self._delete_messages(request, delete)

    def _delete_messages(self, request: NodeRequest, delete: Delete) -> None:
        self._ask(request, self._entity.only_fragment, delete, partial(deleted, request))

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
            if self._subqueue != MAIN:
                raise InvalidOperation(f"Messages cannot be sent to '{self._path}'.")
            self._schedule_messages(request, batch_reader)
        except DecodeError as fault:
            request.fail(InvalidArgument(f"A message cannot be read: {fault}"))
        except ServiceBusError as error:
            request.fail(error)
        return False

    def _schedule_messages(self, request: NodeRequest, batch_reader: BatchReader) -> None:
        if not self._gateway.allows(Right.SEND, self._path):  # any more, after several turns
            raise missing_claim(Right.SEND, self._gateway.uri(self._path))
        messages = batch_reader.messages
        size = sum(message.length for message in messages)
        done = partial(self._scheduled, request, size)
        if request.transaction is not None:
            self._enlist(request, EnlistSchedule(messages), done, size)
            return
        self._ask(request, self._entity.only_fragment, Store(messages), done, size)

    def _scheduled(self, request: NodeRequest, size: int, numbers: list[int]) -> None:
        self._entity.meter.bytes_in += size
        request.respond(_OK, "OK", {"sequence-numbers": AmqpArray(_LONG, list(map(Long, numbers)))})

    def _cancel(self, request: NodeRequest, fields: Fields) -> None:
        numbers = numbers_of(fields)
        if self._subqueue != MAIN:
            # Nothing is scheduled here; the numbers are those of another part of the entity.
            raise InvalidOperation(f"Messages cannot be scheduled at '{self._path}'.")
        if request.transaction is not None:
            self._enlist(request, EnlistCancel(numbers), partial(respond_ok, request))
            return
        self._cancel_numbers(request, numbers)

    def _cancel_numbers(self, request: NodeRequest, numbers: list[int]) -> None:
        cancel = Cancel(self._subqueue, numbers)
        self._ask(request, self._entity.only_fragment, cancel, partial(respond_ok, request))


def respond_ok(request: NodeRequest, _: None) -> None:
    request.respond(_OK, "OK", {})


def deleted(request: NodeRequest, count: int) -> None:
    if count:
        request.respond(_OK, "OK", {"message-count": Int(count)})
    else:
        # JS throws on a bare 204 (wire §6.2).
        request.respond(_NO_CONTENT, "None", {}, "com.microsoft:message-not-found")


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:REASON_LENGTH_MAX]
