"""The entities of a namespace as a file, whether or not a server runs on its data folder."""

import asyncio
import json
import time
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from postbus.config.content import Content, Queue, Subscription, Topic
from postbus.config.emulator import write_emulator
from postbus.config.toml import write_toml
from postbus.errors import ServiceBusError
from postbus.model.description import QueueDescription, SubscriptionDescription, TopicDescription
from postbus.model.rule import RuleDescription
from postbus.namespace.namespace import TOPIC
from postbus.ops.control import ControlError, ask
from postbus.runtime.store_thread import StoreThread
from postbus.store.opening import holds_data, open_at_rest
from postbus.store.ports.catalog import Catalog
from postbus.store.ports.namespace_data import DataDamaged, DataInUse, FormatUnknown

EXPORT: Final = "export"
"""The name of the request to a running server."""
EMULATOR: Final = "emulator"

_KEYS_LEFT_OUT: Final = "the keys of authorization rules; --keys writes them"
_REFUSALS = (ControlError, DataDamaged, FormatUnknown, ServiceBusError, OSError)


class ExportRefused(Exception):
    """Nothing was written; the text says why."""


class Exported(NamedTuple):
    text: str
    lost: list[str]
    """One line for each thing that the text cannot hold."""


def export_folder(source: Path, name: str, form: str, *, keys: bool) -> Exported:
    """Write the entities of a folder. `name` is the namespace's where no server gives another.

    Raises ExportRefused.
    """
    if not holds_data(source):
        raise ExportRefused(f"{source} is not a data folder")
    try:
        try:
            data = open_at_rest(source, time.time_ns() // 1_000_000)
        except DataInUse:
            text, lost = ask(source, EXPORT, json.dumps({"format": form, "keys": keys}))
            return Exported(text, lost)
        try:
            if data.is_outdated:
                raise ExportRefused(f"{source} is of an older format: start the server on it once")
            return _write(content_of(data.catalog), name, form, keys=keys)
        finally:
            data.close()
    except _REFUSALS as error:
        raise ExportRefused(str(error)) from error


async def export_running(catalog: Catalog, thread: StoreThread, name: str, argument: str) -> object:
    """The same inside the server that holds the folder."""
    options = json.loads(argument)
    content = await thread.run(partial(content_of, catalog))
    # On another thread: writing megabytes of text must not hold up messages.
    exported = await asyncio.to_thread(
        _write, content, name, options["format"], keys=options["keys"]
    )
    return list(exported)


def _write(content: Content, name: str, form: str, *, keys: bool) -> Exported:
    if form == EMULATOR:
        return Exported(*write_emulator(name, content))
    has_keys = any(each.description.authorization_rules for each in content.entities())
    lost = [_KEYS_LEFT_OUT] if has_keys and not keys else []
    return Exported(write_toml(name, content, keys=keys), lost)


def content_of(catalog: Catalog) -> Content:
    """All entities and rules of the catalog, by name. Call it on the catalog's thread."""
    queues: list[Queue] = []
    topics: list[Topic] = []
    for record in catalog.entities():
        if record.kind == TOPIC:
            described = TopicDescription.from_json(record.description)
            topics.append(Topic(record.name, described, _subscriptions(catalog, record.name)))
        else:
            queues.append(Queue(record.name, QueueDescription.from_json(record.description)))
    return Content(tuple(queues), tuple(topics))


def _subscriptions(catalog: Catalog, topic: str) -> tuple[Subscription, ...]:
    return tuple(
        Subscription(
            record.name,
            SubscriptionDescription.from_json(record.description),
            tuple(map(RuleDescription.from_json, record.rules)),
        )
        for record in catalog.subscriptions.of(topic)
    )
