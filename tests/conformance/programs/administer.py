"""A day in the life of a queue, by the SDK's administration client: python administer.py sync|async

Written once; the sync client's calls are awaited as if they took time.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Any

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError


async def result(answer: Any) -> Any:
    return await answer if isinstance(answer, Awaitable) else answer


async def every(listed: Any) -> list[Any]:
    if isinstance(listed, AsyncIterator):
        return [one async for one in listed]
    assert isinstance(listed, Iterable)
    return list(listed)


async def refused(kind: type[Exception], call: Any, *arguments: Any) -> None:
    try:
        await result(call(*arguments))
    except kind:
        return
    raise AssertionError(f"{call.__name__} was not refused by {kind.__name__}")


async def administer(admin: Any) -> None:
    name = f"administered-{os.getpid()}"
    created = await result(admin.create_queue(name, max_delivery_count=4))
    assert created.name == name
    await refused(ResourceExistsError, admin.create_queue, name)
    print("created")
    queue = await result(admin.get_queue(name))
    assert queue.max_delivery_count == 4
    print("read")
    queue.max_delivery_count = 6
    await result(admin.update_queue(queue))
    assert (await result(admin.get_queue(name))).max_delivery_count == 6
    print("updated")
    assert name in [one.name for one in await every(admin.list_queues())]
    assert (await result(admin.get_namespace_properties())).name
    print("listed")
    assert (await result(admin.get_queue_runtime_properties(name))).total_message_count == 0
    print("counted")
    await result(admin.delete_queue(name))
    await refused(ResourceNotFoundError, admin.get_queue, name)
    print("deleted")


async def main(flavour: str, connection_string: str) -> None:
    if flavour == "sync":
        from azure.servicebus.management import ServiceBusAdministrationClient

        with ServiceBusAdministrationClient.from_connection_string(connection_string) as admin:
            await administer(admin)
    else:
        from azure.servicebus.aio.management import (
            ServiceBusAdministrationClient as AsyncAdministrationClient,
        )

        async with AsyncAdministrationClient.from_connection_string(connection_string) as client:
            await administer(client)


asyncio.run(main(*sys.argv[1:]))
