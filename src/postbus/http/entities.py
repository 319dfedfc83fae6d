"""Queues and topics over HTTP, and the description of the namespace (wire §9.2).

Decides nothing about messages. It reads a request, checks the claims, calls the namespace and
writes the reply.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, TypeGuard

from starlette.responses import Response

from postbus.errors import EntityNotFound, InvalidArgument
from postbus.http.atom import ENTRY_TYPE, Entry, Site, namespace_document, read_content
from postbus.http.caller import DELETE, READ, WRITE, RequestContext, with_destinations
from postbus.http.description_xml import (
    description_xml,
    form_of,
    read_values,
    told_of,
    told_of_topic,
)
from postbus.http.problems import missing_for_delete, missing_for_update
from postbus.http.replies import (
    entry_reply,
    etag_of,
    feed_reply,
    listed_reply,
    require_version,
    slice_of,
)
from postbus.model.address import check_entity_name
from postbus.model.description import Description, QueueCounts, QueueDescription, TopicDescription
from postbus.model.fields import QUEUE, TOPIC, Form, Value, describe, keep_fixed, refuse_changes
from postbus.model.times import Instant
from postbus.namespace.entities import QueueEntity, TopicEntity
from postbus.namespace.namespace import Namespace

_INFO: Final = "$namespaceinfo"


def namespace_info(namespace: Namespace, asked: RequestContext) -> Response:
    asked.caller.require(_INFO, READ)
    return Response(namespace_document(asked.site, namespace.created_at), media_type=ENTRY_TYPE)


async def list_entities(
    form: Form, namespace: Namespace, query: Mapping[str, str], asked: RequestContext, now: Instant
) -> Response:
    """A page of all queues, or of all topics."""
    path = f"$Resources/{form.word.lower()}s"
    asked.caller.require(path, READ)
    part = slice_of(query)
    entities: Sequence[QueueEntity | TopicEntity]
    entities = namespace.queues() if form is QUEUE else namespace.topics()
    shown: Sequence[QueueEntity | TopicEntity] = part.of(entities)
    counts = await asyncio.gather(*(_counts(namespace, each.name) for each in shown))
    entries = [
        _entry(entity, count, asked.site) for entity, count in zip(shown, counts, strict=True)
    ]
    page = part.page(f"{form.word}s", path, len(entities))
    return feed_reply(entries, page, asked.site, now)


class EntityResource:
    """The queue or topic of a name. The element in a body tells which of the two it describes."""

    __slots__ = ("_defaults", "_name", "_namespace", "_now")

    def __init__(
        self, namespace: Namespace, defaults: QueueDescription, name: str, now: Instant
    ) -> None:
        """`defaults` are the values of a new queue."""
        self._now = now
        self._namespace = namespace
        self._defaults = defaults
        self._name = name

    async def read(self, asked: RequestContext) -> Response:
        asked.caller.require(self._name, READ)
        entity = self._namespace.entity(self._name)
        if entity is None:
            # As in Azure; all SDKs take it for "not found" (wire §9.2).
            return listed_reply(asked.site, self._now)
        return _reply(entity, await _counts(self._namespace, entity.name), asked.site)

    async def create(self, body: bytes, asked: RequestContext) -> Response:
        asked.caller.require(self._name, WRITE)
        check_entity_name(self._name)
        form, values = _read(body, asked.site)
        entity: QueueEntity | TopicEntity
        if form is QUEUE:
            description = await self._queue(values, asked)
            entity = await self._namespace.create_queue(self._name, description)
        else:
            entity = await self._namespace.create_topic(self._name, self._topic(values))
        return _reply(entity, QueueCounts(), asked.site, status=201)

    async def update(self, body: bytes, etag: str, asked: RequestContext) -> Response:
        asked.caller.require(self._name, WRITE)
        form, values = _read(body, asked.site)
        entity = self._namespace.entity(self._name)
        if entity is None:
            raise missing_for_update()
        if form is not _form(entity):
            raise InvalidArgument(
                f"The entity '{entity.name}' is a {_form(entity).word}, not a {form.word}."
            )

        def check(there: QueueEntity | TopicEntity) -> None:
            require_version(etag, etag_of(there.updated_at), form.word.lower())

        check(entity)  # at once, before any other check
        refuse_changes(form, values, entity.description)
        try:
            if form is QUEUE:
                description = await self._queue(values, asked, entity.description)
                entity = await self._namespace.update_queue(self._name, description, check)
            else:
                topic = self._topic(values, entity.description)
                entity = await self._namespace.update_topic(self._name, topic, check)
        except EntityNotFound:
            raise missing_for_update() from None
        counts = await _counts(self._namespace, self._name)
        return _reply(entity, counts, asked.site, published=False)

    async def delete(self, asked: RequestContext) -> Response:
        asked.caller.require(self._name, DELETE)
        try:
            await self._namespace.delete_entity(self._name)
        except EntityNotFound:
            raise missing_for_delete() from None
        return Response()

    async def _queue(
        self, values: Mapping[str, Value], asked: RequestContext, present: Description | None = None
    ) -> QueueDescription:
        defaults = self._defaults if present is None else keep_fixed(QUEUE, self._defaults, present)
        description = describe(QUEUE, values, defaults, present)
        return await with_destinations(description, self._namespace, asked)

    def _topic(
        self, values: Mapping[str, Value], present: Description | None = None
    ) -> TopicDescription:
        defaults = TopicDescription(max_message_size_kb=self._defaults.max_message_size_kb)
        if present is not None:
            defaults = keep_fixed(TOPIC, defaults, present)
        return describe(TOPIC, values, defaults, present)


def _read(body: bytes, site: Site) -> tuple[Form, dict[str, Value]]:
    content = read_content(body)
    form = form_of(content, QUEUE, TOPIC)
    values = read_values(form, content)
    for field in form.fields.values():
        if field.attribute and field.element in values and not site.shows(field.since):
            # As in Azure: a client of that version could not see its own choice.
            raise InvalidArgument(
                f"The property '{field.element}' can be set by api-version={field.since} or later."
            )
    return form, values


def _is_topic(entity: QueueEntity | TopicEntity) -> TypeGuard[TopicEntity]:
    return isinstance(entity.description, TopicDescription)


def _form(entity: QueueEntity | TopicEntity) -> Form:
    return TOPIC if _is_topic(entity) else QUEUE


async def _counts(namespace: Namespace, name: str) -> QueueCounts:
    try:
        return await namespace.counts(name)
    except EntityNotFound:
        # Deleted since it was looked up. The page must not get shorter: .NET's client takes a short
        # page for the last one (wire §9.3).
        return QueueCounts()


def _entry(
    entity: QueueEntity | TopicEntity, counts: QueueCounts, site: Site, *, published: bool = True
) -> Entry:
    form = _form(entity)
    told = told_of_topic(entity, counts) if _is_topic(entity) else told_of(entity, counts)
    return Entry(
        path=entity.name,
        title=entity.name,
        updated_at=entity.updated_at,
        published_at=entity.created_at if published else None,
        content=description_xml(form, entity.description, told, site),
    )


def _reply(
    entity: QueueEntity | TopicEntity,
    counts: QueueCounts,
    site: Site,
    *,
    status: int = 200,
    published: bool = True,
) -> Response:
    entry = _entry(entity, counts, site, published=published)
    return entry_reply(entry, site, etag_of(entity.updated_at), status)
