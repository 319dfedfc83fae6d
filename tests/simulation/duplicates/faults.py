"""Faults planted in the detection of duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postbus.broker import duplicates, ledger
from postbus.broker.bloom import Layer, digest_of
from postbus.broker.duplicate_history import History
from postbus.broker.engine import Engine
from postbus.broker.message import Message
from postbus.broker.queue import Queue
from postbus.broker.record_kinds import Meaning, RecordKind
from postbus.runtime.reads import HeldSends, OrderedRequest
from postbus.runtime.requests import Request
from tests.simulation.faults import Fault, patched, says_no
from tests.simulation.promises import DROPPED, DUPLICATE, SENDER


def _not_flushed(flush: Any) -> Any:
    def faulty(history: History) -> None:
        flush(history)

    return faulty


def _flushed_whole(flushed: Any) -> Any:
    """Ids that came while the checkpoint was written are taken for written."""

    def faulty(history: History) -> None:
        flushed(history)
        history.recent = {}

    return faulty


def _seen_again(drop: Any) -> Any:
    def faulty(own: Queue, message: Message, now: int, *rest: Any) -> Any:
        history = own.ledger.history
        if history is not None and message.message_id:
            history.note(digest_of(message.message_id), now)
        return drop(own, message, now, *rest)

    return faulty


def _last_kept(_: Any) -> Any:
    """Of several in one batch the last is stored, and the others are dropped."""

    def faulty(history: History, digests: Sequence[bytes], now: int, pages: Any) -> list[bool]:
        since = now - history.window_ms
        found: list[bool] = []
        for place, digest in enumerate(digests):
            at = history.recent.get(digest)
            if at is None and pages is not None:
                at = pages.seen.get(digest)
            again = bool(digest) and digest in digests[place + 1 :]
            found.append(again or (at is not None and at > since))
        return found

    return faulty


def _overtaken(takes: Any) -> Any:
    """A send that needs no pages does not wait behind the send that reads some."""

    def faulty(held: HeldSends, request: Request, engine: Engine, now: int) -> bool:
        if isinstance(request, OrderedRequest) and request.foresee(engine, now) is None:
            return False
        return bool(takes(held, request, engine, now))

    return faulty


def _without_ids(meanings: dict[RecordKind, Meaning]) -> dict[RecordKind, Meaning]:
    return {kind: meaning._replace(brings_id=False) for kind, meaning in meanings.items()}


DUPLICATE_FAULTS = [
    Fault("ids not in the checkpoint", {DUPLICATE}, patched(History, "flush", _not_flushed)),
    Fault("ids beside a checkpoint lost", {DUPLICATE}, patched(History, "flushed", _flushed_whole)),
    Fault("ids not replayed", {DUPLICATE}, patched(ledger, "MEANINGS", _without_ids)),
    Fault("window that slides", {DROPPED}, patched(duplicates, "drop", _seen_again)),
    Fault("filter that forgets", {DUPLICATE}, patched(Layer, "may_have", says_no)),
    Fault("last of duplicates kept", {DROPPED}, patched(duplicates, "repeated", _last_kept)),
    Fault("send overtaken", {SENDER}, patched(HeldSends, "takes", _overtaken)),
]
