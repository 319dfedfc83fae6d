"""Backlog queues in the secondary namespace: made where they are missing (R-PAIR-02, R-PAIR-03).

Plain HTTP by hand: the administration client of the Python SDK insists on TLS.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import time
from collections.abc import Sequence
from typing import Final, Protocol
from urllib.parse import quote, urlsplit

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
)
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from postbus.client.connection_string import Namespace, parse
from postbus.paired.failures import BacklogUnavailableError

log = logging.getLogger("postbus.paired")

API_VERSION: Final = "2021-05"
HTTPS_PORT: Final = 443
REQUEST_TIMEOUT_S: Final = 15.0
TRIES: Final = 3
PAUSE_S: Final = 1.0
FOREVER: Final = "P10675199DT2H48M5.4775807S"
SIZE_MB: Final = 5_120
DELIVERIES_MAX: Final = 2**31 - 1

_DENIED: Final = (401, 403)
_LATER: Final = frozenset({408, 429, 500, 502, 503, 504})
_ENTRY: Final = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    "<LockDuration>PT1M</LockDuration>"
    f"<MaxSizeInMegabytes>{SIZE_MB}</MaxSizeInMegabytes>"
    f"<DefaultMessageTimeToLive>{FOREVER}</DefaultMessageTimeToLive>"
    "<DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>"
    f"<MaxDeliveryCount>{DELIVERIES_MAX}</MaxDeliveryCount>"
    "<EnableBatchedOperations>true</EnableBatchedOperations>"
    f"<AutoDeleteOnIdle>{FOREVER}</AutoDeleteOnIdle>"
    "</QueueDescription></content></entry>"
)


class PairingDeniedError(BacklogUnavailableError):
    """The key of the secondary namespace may not make queues."""


class _NotMade(Exception):
    """A queue is neither there nor could it be made; `again` says whether to try once more."""

    def __init__(self, reason: str, again: bool = False) -> None:
        super().__init__(reason)
        self.again = again


class QueueMaker(Protocol):
    """Makes queues in the secondary namespace."""

    async def make(self, path: str) -> None:
        """Make the backlog queue, unless there is a queue of this path."""


class HttpQueueMaker:
    """Makes queues over HTTP, with the key of a connection string."""

    def __init__(self, connection_string: str) -> None:
        self._namespace = parse(connection_string)
        fields = (field.partition("=") for field in connection_string.split(";"))
        [endpoint] = [value for name, _, value in fields if name.strip().lower() == "endpoint"]
        explicit = urlsplit(endpoint).port is not None or not self._namespace.tls
        port = self._namespace.port
        # Azure has its management on 443, Postbus has everything on one port.
        self._ports = [port] if explicit else [HTTPS_PORT, port]

    async def make(self, path: str) -> None:
        await asyncio.to_thread(self._make, path)

    def _make(self, path: str) -> None:
        status, body = self._ask("PUT", path, _ENTRY)
        if status == http.client.CONFLICT:
            # It is used as it is, if it is a queue.
            status, body = self._ask("GET", path, None)
            if status == http.client.OK and b"QueueDescription" not in body:
                raise _NotMade("another kind of entity has this name")
        if status in _DENIED:
            raise PairingDeniedError(f"The secondary namespace refuses to make '{path}': {status}.")
        if status not in (http.client.OK, http.client.CREATED):
            raise _NotMade(f"status {status}", status in _LATER)

    def _ask(self, method: str, path: str, entry: str | None) -> tuple[int, bytes]:
        for port in self._ports[:-1]:
            try:
                return self._ask_at(port, method, path, entry)
            except ConnectionRefusedError:
                continue
        try:
            return self._ask_at(self._ports[-1], method, path, entry)
        except (OSError, http.client.HTTPException) as error:
            raise _NotMade(str(error) or type(error).__name__, again=True) from error

    def _ask_at(self, port: int, method: str, path: str, entry: str | None) -> tuple[int, bytes]:
        namespace = self._namespace
        connection = _connect(namespace, port)
        try:
            headers = {"Authorization": namespace.token("", time.time())}
            if entry is not None:
                headers["Content-Type"] = "application/atom+xml;type=entry;charset=utf-8"
            target = f"/{quote(path)}?api-version={API_VERSION}"
            connection.request(method, target, entry, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def _connect(namespace: Namespace, port: int) -> http.client.HTTPConnection:
    if not namespace.tls:
        return http.client.HTTPConnection(namespace.host, port, timeout=REQUEST_TIMEOUT_S)
    context = namespace.tls_context()
    return http.client.HTTPSConnection(
        namespace.host, port, timeout=REQUEST_TIMEOUT_S, context=context
    )


class AzureQueueMaker:
    """Makes queues with the SDK's administration client, and so with any of its credentials."""

    def __init__(self, client: ServiceBusAdministrationClient) -> None:
        self._client = client

    async def make(self, path: str) -> None:
        # Without an end by default: the SDK would round the longest time to one that is too long.
        try:
            await self._client.create_queue(
                path,
                lock_duration="PT1M",
                max_size_in_megabytes=SIZE_MB,
                dead_lettering_on_message_expiration=True,
                max_delivery_count=DELIVERIES_MAX,
                enable_batched_operations=True,
            )
        except ResourceExistsError:
            await self._check(path)
        except ClientAuthenticationError as error:
            raise PairingDeniedError(
                f"The secondary namespace refuses to make '{path}'.", error=error
            ) from error
        except HttpResponseError as error:
            raise _NotMade(str(error), error.status_code in _LATER) from error
        except AzureError as error:
            raise _NotMade(str(error), again=True) from error

    async def _check(self, path: str) -> None:
        try:
            await self._client.get_queue(path)
        except AzureError as error:
            raise _NotMade(str(error)) from error


async def provide(maker: QueueMaker, paths: Sequence[str]) -> list[str]:
    """Make the backlog queues that are missing; returns those that can be used, at least one."""
    made = await asyncio.gather(*(_provide(maker, path) for path in paths))
    usable = [path for path, is_made in zip(paths, made, strict=True) if is_made]
    if not usable:
        raise BacklogUnavailableError(
            f"None of the {len(paths)} backlog queues exists or could be made: '{paths[0]}', ..."
        )
    return usable


async def _provide(maker: QueueMaker, path: str) -> bool:
    for left in reversed(range(TRIES)):
        try:
            await maker.make(path)
        except _NotMade as problem:
            if left and problem.again:
                await asyncio.sleep(PAUSE_S)
                continue
            log.warning("backlog queue %s is left out: %s", path, problem)
            return False
        return True
    return False
