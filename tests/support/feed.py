"""A reader of the change feed: raw batches and JSON lines, over plain HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from postbus.store import batch
from tests.support.rest import Reply, RestClient

LINES = {"Accept": "application/x-ndjson"}


class Stored(NamedTuple):
    """One record as it lies in the journal."""

    offset: int
    at: int
    data: bytes


def described(client: RestClient, entity: str) -> dict[str, Any]:
    reply = client.request("GET", f"/{entity}/$feed")
    assert reply.status == 200, reply.body
    found: dict[str, Any] = json.loads(reply.body)
    return found


def fragment_of(client: RestClient, entity: str) -> dict[str, Any]:
    """What is kept of the first fragment."""
    [found] = described(client, entity)["fragments"]
    return dict(found)


def read(client: RestClient, entity: str, start: int, **options: int) -> Reply:
    asked = "".join(f"&{name}={value}" for name, value in options.items())
    return client.request("GET", f"/{entity}/$feed/0?from={start}{asked}")


def split(body: bytes) -> Iterator[bytes]:
    """The batches in a reply, one after the other."""
    at = 0
    while at < len(body):
        length = int.from_bytes(body[at + batch.HEADER_SIZE - 4 : at + batch.HEADER_SIZE], "big")
        end = at + batch.HEADER_SIZE + length
        yield body[at:end]
        at = end


def records(body: bytes) -> list[Stored]:
    found: list[Stored] = []
    for data in split(body):
        header = batch.unpack(data)
        for offset, (_, record) in enumerate(batch.records(data), header.base):
            found.append(Stored(offset, header.at, record))
    return found


def read_all(client: RestClient, entity: str, start: int = 0, **options: int) -> list[Stored]:
    """Everything from an offset on, in as many questions as it takes."""
    found: list[Stored] = []
    while True:
        reply = read(client, entity, start, **options)
        assert reply.status == 200, reply.body
        found += [each for each in records(reply.body) if each.offset >= start]
        start = int(reply.headers["postbus-next"])
        if start == int(reply.headers["postbus-head"]):
            return found


def events(client: RestClient, entity: str, start: int = 0) -> list[dict[str, Any]]:
    """Likewise, in words."""
    found: list[dict[str, Any]] = []
    while True:
        reply = client.request("GET", f"/{entity}/$feed/0?from={start}", headers=LINES)
        assert reply.status == 200, reply.body
        found += [json.loads(line) for line in reply.body.splitlines()]
        start = int(reply.headers["postbus-next"])
        if start == int(reply.headers["postbus-head"]):
            return found
