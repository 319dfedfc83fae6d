"""The broker's HTTP side as Spark's driver and workers use it: change feed, readers, resubmit.

Only the standard library, for a worker need not have more. A request to a broker that is away, busy
or restarting is repeated, with growing pauses, until `retry_s` is over. Every request may be
repeated: none does more the second time.
"""

from __future__ import annotations

import http.client
import json
import logging
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

from postbus.client.connection_string import Namespace, parse

RETRY_S: Final = 120.0
"""How long a broker may be away before a read or a write fails."""
READ_MAX: Final = 8 << 20
"""Bytes that a read may ask for."""

_LOG = logging.getLogger("pyspark_postbus")
_PAUSE_S: Final = 0.1
_PAUSE_MAX_S: Final = 5.0
_TIMEOUT_S: Final = 60.0
_TOKEN_USED_S: Final = 60.0
_TRANSIENT: Final = frozenset({408, 429, 500, 502, 503, 504})
_ERROR_MAX: Final = 65_536
_XML_DETAIL: Final = re.compile(r"<Detail>(.*?)</Detail>", re.DOTALL)


class PostbusError(Exception):
    """The broker refused a request. `transient` says whether it may do it later."""

    def __init__(self, status: int, detail: str, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{detail} (HTTP {status})")
        self.status = status
        self.detail = detail
        self.facts = dict(facts or {})

    @property
    def transient(self) -> bool:
        return self.status in _TRANSIENT

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark carries exceptions between processes.
        return type(self), (self.status, self.detail, self.facts)


class Unauthorized(PostbusError):
    """The key does not open this, or is not known."""


class NotFound(PostbusError):
    """The entity, fragment or reader does not exist."""


class OffsetTrimmed(PostbusError):
    """The retention has removed this offset; `first` is the oldest offset left."""

    @property
    def first(self) -> int:
        return int(self.facts["first"])


class OffsetAhead(PostbusError):
    """The journal ends before this offset, at `next`."""

    @property
    def next(self) -> int:
        return int(self.facts["next"])


class Unavailable(PostbusError):
    """The broker was not reached, or stayed unavailable, until the time to retry was over."""


_BY_STATUS: Final[dict[int, type[PostbusError]]] = {
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    410: OffsetTrimmed,
    416: OffsetAhead,
}


@dataclass(frozen=True, slots=True)
class Fragment:
    """The feed of a fragment."""

    fragment: int
    id: int
    """The id of the journal. An entity that was deleted and created again has another."""
    first: int
    next: int


@dataclass(frozen=True, slots=True)
class Place:
    """The meaning of a subqueue's number."""

    subscription: str | None
    sub_queue: str


@dataclass(frozen=True, slots=True)
class Feed:
    """The feed of an entity at the moment."""

    entity: str
    kind: str
    fragments: tuple[Fragment, ...]
    places: Mapping[int, Place]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Record batches as they are stored, in order."""

    data: bytes
    next: int
    """The offset after the last record in it."""
    head: int
    """The end of the journal when it was read."""


class Client:
    """A connection to the broker, made when it is first needed. Not to be shared by threads."""

    def __init__(self, namespace: Namespace | str, retry_s: float = RETRY_S) -> None:
        self.namespace = parse(namespace) if isinstance(namespace, str) else namespace
        self._retry_s = retry_s
        self._connection: http.client.HTTPConnection | None = None
        self._tokens: dict[str, tuple[float, str]] = {}
        """By purpose, each with the time it was made at."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- the change feed ---------------------------------------------------------------------

    def feed(self, entity: str) -> Feed:
        """The feed of a queue or topic."""
        found = self._json("GET", entity, "$feed")
        fragments = (
            Fragment(int(one["fragment"]), int(one["id"]), int(one["first"]), int(one["next"]))
            for one in found["fragments"]
        )
        places = {
            int(number): Place(one["subscription"], one["subQueue"])
            for number, one in found["subqueues"].items()
        }
        ordered = tuple(sorted(fragments, key=lambda one: one.fragment))
        return Feed(str(found["entity"]), str(found["kind"]), ordered, places)

    def read(
        self, entity: str, fragment: int, start: int, max_bytes: int = READ_MAX, wait_s: int = 0
    ) -> Chunk:
        """Record batches from an offset on; the first may begin before it. Empty when nothing came
        within `wait_s`. Raises OffsetTrimmed, OffsetAhead."""
        query = {"from": start, "max": max_bytes, "timeout": wait_s}
        headers, data = self._request("GET", entity, f"$feed/{fragment}", query, wait_s=wait_s)
        return Chunk(data, int(headers["Postbus-Next"]), int(headers["Postbus-Head"]))

    def offset_at(self, entity: str, fragment: int, at: int) -> int:
        """The first offset that was committed at this time (ms since 1970) or later."""
        headers, _ = self._request("GET", entity, f"$feed/{fragment}", {"at": at, "max": 0})
        return int(headers["Postbus-From"])

    def report(
        self,
        entity: str,
        reader: str,
        offsets: Mapping[int, int],
        query: str | None = None,
        batch: int | None = None,
    ) -> None:
        """Tell how far a reader has come."""
        places = {str(key): value for key, value in offsets.items()}
        said = {"offsets": places, "query": query, "batch": batch}
        self._json("PUT", entity, f"$feed/readers/{quote(reader, safe='')}", said)

    def readers(self, entity: str) -> list[dict[str, Any]]:
        """All readers that have told of themselves lately."""
        found: list[dict[str, Any]] = self._json("GET", entity, "$feed/readers")
        return found

    def forget(self, entity: str, reader: str) -> None:
        """Remove a reader's progress; it will not be missed."""
        self._json("DELETE", entity, f"$feed/readers/{quote(reader, safe='')}")

    # -- dead letters ------------------------------------------------------------------------

    def resubmit(
        self, path: str, messages: Sequence[Mapping[str, Any]], to: str | None = None
    ) -> list[dict[str, Any]]:
        """Send dead letters back; returns the outcome of each. `path` is a queue, or
        `topic/subscriptions/name`. An absent dead letter was moved before, or by somebody else."""
        said = {"to": to, "messages": list(messages)}
        # Another target is another right: a token of this entity alone would not open it.
        is_wide = to is not None and self.namespace.entity_path is None
        found = self._json("POST", path, "$deadletterqueue/$resubmit", said, is_wide)
        results: list[dict[str, Any]] = found["results"]
        return results

    def discard(self, path: str, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Remove dead letters for good; returns the outcome of each."""
        said = {"sequenceNumbers": list(numbers)}
        found = self._json("POST", path, "$deadletterqueue/$discard", said)
        results: list[dict[str, Any]] = found["results"]
        return results

    def get_json(self, entity: str, below: str) -> Any:
        """Any other JSON document of an entity."""
        return self._json("GET", entity, below)

    # -- a request ---------------------------------------------------------------------------

    def _json(
        self, method: str, entity: str, below: str, said: object = None, is_wide: bool = False
    ) -> Any:
        _, data = self._request(method, entity, below, said=said, is_wide=is_wide)
        return json.loads(data) if data else None

    def _request(
        self,
        method: str,
        entity: str,
        below: str,
        query: Mapping[str, object] | None = None,
        said: object = None,
        wait_s: int = 0,
        is_wide: bool = False,
    ) -> tuple[http.client.HTTPMessage, bytes]:
        target = f"/{quote(entity)}/{below}"
        if query:
            target += f"?{urlencode(query)}"
        body = None if said is None else json.dumps(said).encode()
        # A key may be the entity's own: the token is for no more than that.
        owner = re.split(r"/subscriptions/|/\$", entity, maxsplit=1, flags=re.IGNORECASE)[0]
        if is_wide:
            owner = ""
        deadline = time.monotonic() + self._retry_s
        pause_s = _PAUSE_S
        while True:
            try:
                return self._attempt(method, target, owner, body, wait_s)
            except PostbusError as error:
                if not error.transient:
                    raise
                problem: Exception = error
            except (OSError, http.client.HTTPException) as error:
                problem = error
            self.close()
            if time.monotonic() + pause_s > deadline:
                text = f"{method} {target.partition('?')[0]} at {self.namespace.netloc}: {problem}"
                raise Unavailable(503, text) from problem
            _LOG.info("postbus unavailable, again in %.1f s: %s", pause_s, problem)
            # Not all workers at once when the broker is back.
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    def _attempt(
        self, method: str, target: str, owner: str, body: bytes | None, wait_s: int
    ) -> tuple[http.client.HTTPMessage, bytes]:
        connection = self._connected(_TIMEOUT_S + wait_s)
        headers = {"Authorization": self._token(owner)}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        if response.status < 300:
            return response.headers, response.read()
        text = response.read(_ERROR_MAX).decode(errors="replace")
        if response.will_close or not response.isclosed():
            self.close()
        raise _refusal(response.status, text)

    def _token(self, owner: str) -> str:
        """The same token for a while: the broker need not try its keys on it each time."""
        now = time.time()
        made, token = self._tokens.get(owner, (-_TOKEN_USED_S, ""))
        if not 0 <= now - made < _TOKEN_USED_S:
            token = self.namespace.token(owner, now)
            self._tokens[owner] = now, token
        return token

    def _connected(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._connection is None:
            place, context = self.namespace, self.namespace.tls_context()
            if context is None:
                self._connection = http.client.HTTPConnection(place.host, place.port)
            else:
                self._connection = http.client.HTTPSConnection(
                    place.host, place.port, context=context
                )
        self._connection.timeout = timeout_s
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_s)
        return self._connection


def _refusal(status: int, text: str) -> PostbusError:
    facts: dict[str, Any] = {}
    try:
        found = json.loads(text)
    except ValueError:
        within = _XML_DETAIL.search(text)
        detail = within[1] if within else text[:200]
    else:
        facts = found if isinstance(found, dict) else {}
        detail = str(facts.get("detail") or facts.get("error") or text[:200])
    kind = _BY_STATUS.get(status, PostbusError)
    # Other requests have these two statuses as well, and then they say nothing of offsets.
    if kind in (OffsetTrimmed, OffsetAhead) and not {"first", "next"} <= facts.keys():
        kind = PostbusError
    return kind(status, detail, facts)
