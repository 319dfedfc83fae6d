"""The application behind a real port, for clients that know nothing else."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from threading import Thread

import pytest
import uvicorn
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.support.administration import administration_client
from tests.unit.http.fakes import KEY, KEY_NAME, application
from tests.unit.http.memory import MemoryNamespace


@pytest.fixture
def namespace() -> MemoryNamespace:
    return MemoryNamespace(now=int(time.time() * 1_000))


@pytest.fixture
def port(namespace: MemoryNamespace) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(application(namespace), ws="none", log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, args=([listener],))
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()


def connection_string(port: int, name: str = KEY_NAME, key: str = KEY) -> str:
    return (
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName={name};SharedAccessKey={key};"
        "UseDevelopmentEmulator=true"
    )


@pytest.fixture
def admin(port: int) -> Iterator[ServiceBusAdministrationClient]:
    with administration_client(connection_string(port), retry_total=0) as client:
        yield client
