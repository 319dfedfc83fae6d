"""Who is told what entities cost, and which requests count (R-COST-01)."""

from __future__ import annotations

import json

import pytest

from postbus.auth.sas import create_sas
from tests.unit.http import fakes
from tests.unit.http.fakes import KEY, KEY_NAME, LISTENER, T0, Client, MemoryNamespace
from tests.unit.http.usage import MemoryUsage


def client_of(
    usage: MemoryUsage, resource: str = "", key: tuple[str, str] = (KEY_NAME, KEY)
) -> Client:
    token = create_sas(*key, f"http://localhost:5300/{resource}", T0 + 3_600_000)
    return Client(fakes.application(MemoryNamespace(), usage=usage), token)


@pytest.mark.parametrize(
    ("resource", "path", "status"),
    [
        ("", "/$usage", 200),
        ("", "/orders/$usage", 200),
        ("", "/orders/%24Usage/", 200),
        ("orders", "/orders/$USAGE", 200),
        ("orders", "/$usage", 401),
        ("orders", "/other/$usage", 401),
        ("", "/other/$usage", 404),
    ],
)
async def test_usage_is_told_to_who_manages(resource: str, path: str, status: int) -> None:
    reply = await client_of(MemoryUsage(), resource).get(path)
    assert reply.status == status
    if status == 200:
        assert json.loads(reply.body) == {"entities": ["orders"]}


@pytest.mark.parametrize("path", ["/$usage", "/orders/$usage"])
async def test_who_may_only_listen_is_not_told(path: str) -> None:
    client = client_of(MemoryUsage(), key=(LISTENER.name, LISTENER.keys[0]))
    reply = await client.get(path)
    assert reply.status == 401 and "'Manage' claim(s) are required" in reply.detail


async def test_usage_is_only_read() -> None:
    reply = await client_of(MemoryUsage()).send("POST", "/orders/$usage")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


async def test_requests_about_an_entity_count_where_they_are_carried_out() -> None:
    usage = MemoryUsage()
    client = client_of(usage)
    await client.put("/orders", fakes.entry())
    await client.get("/orders")
    await client.delete("/none")
    await client.get("/orders/$usage")
    await client.delete("/orders")
    body = json.dumps({"sequenceNumbers": [1]}).encode()
    await client.send("POST", "/orders/$DeadLetterQueue/$discard", body)
    assert usage.counted == ["orders", "orders", "orders", "orders/$DeadLetterQueue"]
