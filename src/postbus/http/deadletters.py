"""Dead letters over HTTP: send them again, edited or not, or throw them away (R-DLQ-08).

`POST <entity>/$DeadLetterQueue/$resubmit` and `/$discard`, for whoever has Manage on the entity.
Each message of a request has an outcome of its own, and asking again does no harm.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from postbus.auth.authority import Claims, Right, missing_claim
from postbus.errors import InvalidArgument, ServerBusy
from postbus.http.atom import Site
from postbus.http.edits import read_numbers, read_resubmission
from postbus.http.problems import body_too_large, wrong_method
from postbus.model.address import Address, SubQueue, resolve_path
from postbus.model.edits import Edits

REQUEST_MAX_BYTES: Final = 4 << 20
UNDER_WAY_MAX: Final = 8
"""Requests that are read or carried out at once: each may hold some ten times its size."""

_VERBS: Final = ("$resubmit", "$discard")

Outcomes = list[tuple[str, str]]
"""What became of each message, and why it was refused."""


class Ask(NamedTuple):
    """What a path below a dead-letter queue asks for."""

    path: str
    """Of the dead-letter queue."""
    verb: str


class DeadLetterOperations(Protocol):
    """What this needs of a namespace. Raises ServiceBusError for what cannot be done."""

    async def resubmit(
        self, source: Address, to: Address | None, asked: Sequence[tuple[int, Edits]]
    ) -> Outcomes: ...

    async def discard(self, source: Address, numbers: Sequence[int]) -> Outcomes: ...


def find_ask(raw_path: str) -> Ask | None:
    """What a path asks for, percent-encoding and all; None if it is about something else."""
    path, _, verb = raw_path.strip("/").rpartition("/")
    verb = unquote(verb).lower()
    return Ask(unquote(path), verb) if path and verb in _VERBS else None


class DeadLetters:
    """Resubmit and discard, for clients that hold Manage."""

    __slots__ = ("_review", "_under_way", "_undertaker")

    def __init__(
        self, undertaker: DeadLetterOperations, review: Callable[[Claims], Claims | None]
    ) -> None:
        """`review` gives what is left of claims whose keys may be gone by now."""
        self._undertaker = undertaker
        self._review = review
        self._under_way = 0

    async def answer(self, request: Request, ask: Ask, claims: Claims, site: Site) -> Response:
        if request.method != "POST":
            raise wrong_method(request.method, "POST")
        address = resolve_path(ask.path)
        entity = Address(address.entity, address.subscription)
        # Rights before existence: a stranger does not learn what there is (semantics A §6).
        self._check(claims, Right.MANAGE, entity, site)
        if address.subqueue is SubQueue.MAIN or address.management:
            raise InvalidArgument(f"'{address.path}' is no dead-letter queue.")
        if self._under_way >= UNDER_WAY_MAX:
            raise ServerBusy("The broker has as many of these requests as it can hold; try again.")
        self._under_way += 1
        try:
            body = await _read_body(request)
            self._check(claims, Right.MANAGE, entity, site)  # reading it may have taken long
            if ask.verb == "$discard":
                numbers = read_numbers(body)
                outcomes = await self._undertaker.discard(address, numbers)
            else:
                to, asked = read_resubmission(body)
                target = None if to is None else resolve_path(to)
                if target is not None:
                    self._check(claims, Right.SEND, target, site)
                numbers = [number for number, _ in asked]
                outcomes = await self._undertaker.resubmit(address, target, asked)
        finally:
            self._under_way -= 1
        return JSONResponse({"results": _results(numbers, outcomes)})

    def _check(self, claims: Claims, right: Right, address: Address, site: Site) -> None:
        left = self._review(claims)
        if left is None or not left.allows(right, quote(address.path)):
            raise missing_claim(right, site.address(address.path))


def _results(numbers: Sequence[int], outcomes: Outcomes) -> list[dict[str, object]]:
    results: list[dict[str, object]] = []
    for number, (outcome, detail) in zip(numbers, outcomes, strict=True):
        result: dict[str, object] = {"sequenceNumber": number, "outcome": outcome}
        if detail:
            result["detail"] = detail
        results.append(result)
    return results


async def _read_body(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if re.fullmatch("[0-9]{1,18}", declared) and int(declared) > REQUEST_MAX_BYTES:
        raise body_too_large(REQUEST_MAX_BYTES)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > REQUEST_MAX_BYTES:
            raise body_too_large(REQUEST_MAX_BYTES)
    return bytes(body)
