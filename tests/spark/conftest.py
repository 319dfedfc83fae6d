"""One Spark session and one broker for all tests of this folder; each test has a queue of its own.

A session takes many seconds to start, and a broker is there for everybody; tests that kill one of
them start their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from postbus.client.connection_string import parse
from pyspark_postbus.rows import encode
from pyspark_postbus.sender import Sender
from tests.support.administration import Administration
from tests.support.server import Server
from tests.support.spark import prepare_environment, session_builder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Tasks are tried up to three times, as on a cluster."""
    prepare_environment()
    session = session_builder("local[2,3]").getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("broker") / "data")
    yield server.start()
    server.discard()


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes servers, not yet started; none outlives the test."""
    made: list[Server] = []

    def make(*arguments: str, data: str = "data") -> Server:
        made.append(Server(tmp_path / data, *arguments))
        return made[-1]

    yield make
    for server in made:
        server.discard()


@pytest.fixture
def queue(broker: Server) -> str:
    return Administration(broker.connection_string).make_queue()


@pytest.fixture
def send() -> Callable[..., None]:
    """Sends numbered messages, from `first` on, whose bodies are their numbers."""

    def send(server: Server, entity: str, count: int, first: int = 0, **values: Any) -> None:
        with Sender(parse(server.connection_string), entity) as sender:
            for number in range(first, first + count):
                row = {"body": str(number), **values}
                sender.send(encode(row, lambda number=number: f"id-{number}"))  # type: ignore[misc]

    return send


@pytest.fixture
def read(spark: SparkSession) -> Callable[..., DataFrame]:
    """A batch DataFrame of a queue."""

    def read(server: Server, queue: str, schema: str = "", **options: str) -> DataFrame:
        reader = spark.read.format("postbus").options(
            connectionString=server.connection_string, queue=queue, **options
        )
        return (reader.schema(schema) if schema else reader).load()

    return read


assert sys.executable, "Spark's workers run the Python that runs the tests"
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
