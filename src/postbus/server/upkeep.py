"""What is done now and then for every entity: trim its journal, look at its prefetch."""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from postbus.errors import ServiceBusError
from postbus.model.instant import Instant
from postbus.server.namespace import Namespace
from postbus.settings import Settings

EVERY_S: Final = 10.0
_HOUR_MS: Final = 3_600_000

log = structlog.get_logger("upkeep")


async def keep_up(namespace: Namespace, settings: Settings, clock: Callable[[], Instant]) -> None:
    """Runs until cancelled."""
    while True:
        await asyncio.sleep(EVERY_S)
        now = clock()
        older_than = now - settings.retention_hours * _HOUR_MS
        for entity in namespace.queues():
            if entity.host.queue is None:
                continue  # not used since the start: nothing has come up
            for finding in entity.findings(now):
                if entity.prefetch.may_warn(now):
                    log.warning("prefetch outlasts locks", entity=entity.name, finding=finding)
            try:
                await namespace.runtime(entity.host).trim(
                    entity.host, older_than, settings.retention_mb << 20
                )
            except ServiceBusError as error:
                log.warning("journal not trimmed", entity=entity.name, error=str(error))
