"""Dead letters over HTTP: send them again, edited or not, or throw them away (R-DLQ-08).

`POST <entity>/$DeadLetterQueue/$resubmit` and `/$discard`, for clients with Manage on the entity.
Each message of a request has its own outcome, and a repeated request does no harm.
"""

import binascii
import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from postbus.auth.authority import Claims, Right, missing_claim
from postbus.errors import InvalidArgument, ServerBusy
from postbus.http.atom import Site
from postbus.http.broker_properties import read_json
from postbus.http.problems import body_too_large, wrong_method
from postbus.model.address import Address, SubQueue, resolve_path
from postbus.model.plain_message import TEXT_FIELDS, TIME_FIELDS, EditedValue, Edits
from postbus.namespace.resubmit import Resubmission

REQUEST_MAX_BYTES: Final = 4 << 20
UNDER_WAY_MAX: Final = 8
"""Requests that are read or carried out at once: each may hold some ten times its size."""

_VERBS: Final = ("$resubmit", "$discard")

Outcomes = list[tuple[str, str]]
"""The outcome of each message, and the reason of a refusal."""


class Ask(NamedTuple):
    """The request that a path below a dead-letter queue makes."""

    path: str
    """Of the dead-letter queue."""
    verb: str


def find_ask(raw_path: str) -> Ask | None:
    """The request of a percent-encoded path; None where the path is for another request."""
    path, _, verb = raw_path.strip("/").rpartition("/")
    verb = unquote(verb).lower()
    return Ask(unquote(path), verb) if path and verb in _VERBS else None


class DeadLetters:
    """Resubmit and discard, for clients that hold Manage."""

    __slots__ = ("_resubmission", "_review", "_under_way")

    def __init__(
        self, resubmission: Resubmission, review: Callable[[Claims], Claims | None]
    ) -> None:
        """`review` gives the claims that remain, since keys may be gone by now."""
        self._resubmission = resubmission
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
            self._check(claims, Right.MANAGE, entity, site)  # reading the body may have taken long
            if ask.verb == "$discard":
                numbers = read_numbers(body)
                outcomes = await self._resubmission.discard(address, numbers)
            else:
                to, asked = read_resubmission(body)
                target = None if to is None else resolve_path(to)
                if target is not None:
                    self._check(claims, Right.SEND, target, site)
                numbers = [number for number, _ in asked]
                outcomes = await self._resubmission.resubmit(address, target, asked)
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


MESSAGES_MAX: Final = 1_000
"""Dead letters that one request may name."""

_NUMBER_MAX: Final = (1 << 63) - 1
_TIME_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999; also the longest time to live."""
_ASCII: Final = frozenset({"contentType", "contentEncoding"})
"""Symbols in AMQP."""
_NO_EDITS: Final = Edits()


def read_resubmission(body: bytes) -> tuple[str | None, list[tuple[int, Edits]]]:
    """The destination, if it is another entity, and the numbers of the dead letters with their
    edits.

    Raises InvalidArgument that names the mistake.
    """
    asked = _object(read_json(body, "The request"), "The request", {"to", "messages"})
    to = asked.get("to")
    if to is not None and (not isinstance(to, str) or not to.strip("/")):
        raise InvalidArgument("'to' must be the name of an entity, or null.")
    if to is not None:
        _check_text(to, "'to'")
    return to, [
        _read_message(item, f"messages[{place}]") for place, item in enumerate(_list(asked))
    ]


def read_numbers(body: bytes) -> list[int]:
    """The numbers of the dead letters to discard."""
    asked = _object(read_json(body, "The request"), "The request", {"sequenceNumbers"})
    return [
        _number(value, f"sequenceNumbers[{place}]")
        for place, value in enumerate(_list(asked, "sequenceNumbers"))
    ]


def _list(asked: dict[str, Any], name: str = "messages") -> list[Any]:
    items = asked.get(name)
    if not isinstance(items, list) or not items:
        raise InvalidArgument(f"'{name}' must be a list, and not an empty one.")
    if len(items) > MESSAGES_MAX:
        raise InvalidArgument(f"'{name}' has {len(items)} items, {MESSAGES_MAX} are allowed.")
    return items


def _object(value: object, where: str, keys: set[str] | frozenset[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{where} is not a JSON object.")
    unknown = sorted(value.keys() - keys)
    if unknown:
        raise InvalidArgument(f"{where} has '{_shown(unknown[0])}', which is not known.")
    return value


def _read_message(item: object, where: str) -> tuple[int, Edits]:
    message = _object(item, where, {"sequenceNumber", "edits"})
    number = _number(message.get("sequenceNumber"), f"{where}.sequenceNumber")
    edits = message.get("edits")
    return number, _NO_EDITS if edits is None else _read_edits(edits, f"{where}.edits")


def _number(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _NUMBER_MAX:
        raise InvalidArgument(f"{where} must be a whole number of 64 bits.")
    return value


_EDITS: Final = TEXT_FIELDS | TIME_FIELDS | {"body", "properties"}


def _read_edits(value: object, where: str) -> Edits:
    edits = _object(value, where, _EDITS)
    return Edits(
        body=_body(edits["body"], f"{where}.body") if "body" in edits else None,
        properties=_properties(edits.get("properties"), f"{where}.properties"),
        texts=_fields(edits, TEXT_FIELDS, _text, where),
        times=_fields(edits, TIME_FIELDS, _time, where),
    )


def _body(value: object, where: str) -> bytes:
    try:
        return b64decode(value if isinstance(value, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"{where} must be a string in base64.") from None


def _properties(value: object, where: str) -> dict[str, EditedValue | None]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidArgument(f"{where} is not a JSON object.")
    for name, each in value.items():
        place = f"{where}['{_shown(name)}']"
        _check_text(name, place)
        if isinstance(each, str):
            _check_text(each, place)
        elif isinstance(each, (dict, list)):
            raise InvalidArgument(f"{place} must be a string, a number, true, false or null.")
        elif (isinstance(each, int) and not -(1 << 63) <= each < 1 << 63) or (
            isinstance(each, float) and not isfinite(each)
        ):
            raise InvalidArgument(f"{place} must be a number of 64 bits.")
    return value


def _fields(
    edits: dict[str, Any], names: frozenset[str], read: Callable[[str, Any, str], Any], where: str
) -> dict[str, Any]:
    return {name: read(name, edits[name], f"{where}.{name}") for name in edits if name in names}


def _text(name: str, value: object, where: str) -> str | None:
    if value is None and name != "messageId":
        return None
    if not isinstance(value, str) or (name == "messageId" and not value):
        raise InvalidArgument(f"{where} must be a string.")
    if name in _ASCII and not value.isascii():
        raise InvalidArgument(f"{where} must be a string in ASCII.")
    _check_text(value, where)
    return value


def _time(name: str, value: object, where: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _TIME_MAX:
        raise InvalidArgument(f"{where} must be a number of milliseconds from 1 to {_TIME_MAX}.")
    return value


def _check_text(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{where} has half of a surrogate pair.") from None


def _shown(name: str) -> str:
    return name[:64].encode("ascii", "backslashreplace").decode()
