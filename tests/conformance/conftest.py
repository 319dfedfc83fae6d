"""One server for each test process; fresh entities for each test; the SDK in both its flavours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.support.administration import Administration
from tests.support.bus import FLAVOURS, Bus, Subscription, Topic
from tests.support.carriers import make_local_ca
from tests.support.server import Server

KINDS = ("classic", "partitioned")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    both = metafunc.definition.get_closest_marker("both_kinds") is not None
    if both and "administration" in metafunc.fixturenames:
        metafunc.parametrize("entity_kind", KINDS, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One flavour of the SDK is enough for the second kind."""
    items[:] = [
        item
        for item in items
        if not isinstance(item, pytest.Function)
        or not hasattr(item, "callspec")
        or item.callspec.params.get("entity_kind") != "partitioned"
        or item.callspec.params.get("bus") != "sync"
    ]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("conformance") / "data"
    make_local_ca(data)
    server = Server(data).start()
    yield server
    server.discard()


@pytest.fixture(scope="session")
def the_administration(server: Server) -> Iterator[Administration]:
    administration = Administration(server.connection_string)
    yield administration
    administration.close()


@pytest.fixture
def entity_kind(request: pytest.FixtureRequest) -> str:
    """The kind of queues and topics: tests marked `both_kinds` run on each."""
    chosen: str = getattr(request, "param", KINDS[0])
    return chosen


@pytest.fixture
def administration(the_administration: Administration, entity_kind: str) -> Administration:
    the_administration.partitioned = entity_kind == "partitioned"
    return the_administration


@pytest.fixture
def make_queue(administration: Administration) -> Callable[..., str]:
    return administration.make_queue


@pytest.fixture
def queue(make_queue: Callable[..., str]) -> str:
    """A queue with every property at its default."""
    return make_queue()


@pytest.fixture
def topic(administration: Administration) -> Topic:
    return administration.make_topic()


@pytest.fixture
def subscription(administration: Administration, topic: Topic) -> Subscription:
    """One that takes everything its topic gets."""
    return administration.make_subscription(topic)


@pytest.fixture(params=FLAVOURS)
async def bus(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[Bus]:
    """The SDK's sync client, then its async one."""
    bus = Bus(request.param, server.connection_string)
    yield bus
    await bus.close()


@pytest.fixture
async def open_bus(server: Server) -> AsyncIterator[Callable[..., Bus]]:
    """Makes clients with options of their own; all are closed at the end of the test."""
    opened: list[Bus] = []

    def make(flavour: str = "async", **options: Any) -> Bus:
        connection_string = options.pop("connection_string", server.connection_string)
        opened.append(Bus(flavour, connection_string, **options))
        return opened[-1]

    yield make
    for bus in opened:
        await bus.close()
