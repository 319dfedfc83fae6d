"""Messages as they are peeked at: without a lock and, where that is asked, without their bodies."""

from typing import Any, Final

from postbus.amqp.codec.types import Long, Symbol
from postbus.amqp.sections import encode_delivery_annotations, scan
from postbus.broker import browse
from postbus.broker.pages import Need, Pages
from postbus.broker.queue import Queue
from postbus.messages.envelope import write_delivery
from postbus.model.times import Instant
from postbus.runtime.receivers import LOOK_TOIL_MAX, TOIL_OF_A_SHARE, share_of

PEEK_BYTES_MAX: Final = 256 * 1024
"""A response is cut where it would grow past this, or `LOOK_TOIL_MAX`; fewer than asked is legal
(wire §6.4)."""
_OMITTED_SIZE: Final = Symbol("omitted-message-body-size")


def peek(
    subqueue: int,
    start: int,
    count: int,
    session_id: str | None,
    omit_body: bool,
    queue: Queue,
    now: Instant,
    pages: Pages,
) -> list[dict[str, Any]] | Need:
    """The entries of the response, in the order of their numbers."""
    found = browse.peek(queue, subqueue, start, count, PEEK_BYTES_MAX, pages, session_id)
    if isinstance(found, Need):
        return found
    entries: list[dict[str, Any]] = []
    toil = 0
    for message, raw in found:
        if toil >= LOOK_TOIL_MAX:
            break
        parts = write_delivery(message, raw, with_state=True, with_lock=False)
        toil += share_of(message, parts) * TOIL_OF_A_SHARE
        payload = b"".join(parts)
        entries.append({"message": _without_body(payload) if omit_body else payload})
    queue.shared.toil += toil
    return entries


def _without_body(payload: bytes) -> bytes:
    """The message with the size of its body in place of the body, as Azure has it."""
    sections = scan(payload)
    size = sections.footer - sections.body
    return b"".join(
        (
            payload[: sections.delivery_annotations],
            encode_delivery_annotations({_OMITTED_SIZE: Long(size)}),
            payload[sections.message_annotations : sections.body],
            payload[sections.footer :],
        )
    )
