"""Subscriptions of a topic over HTTP."""

import asyncio
from collections.abc import Mapping
from xml.etree.ElementTree import Element

from starlette.responses import Response

from postbus.errors import EntityAlreadyExists, EntityNotFound, InvalidArgument
from postbus.http.atom import Entry, Site, is_nil, read_content
from postbus.http.caller import RequestContext, with_destinations
from postbus.http.description_xml import children, description_xml, form_of, read_values, told_of
from postbus.http.problems import (
    SubordinatePath,
    missing_for_delete,
    missing_topic,
    without_sub_code,
)
from postbus.http.replies import entry_reply, etag_of, feed_reply, require_version, slice_of
from postbus.http.rule_xml import DEFAULT_RULE, read_rule
from postbus.model.address import Address, check_subscription_name
from postbus.model.description import (
    Description,
    QueueCounts,
    QueueDescription,
    SubscriptionDescription,
)
from postbus.model.fields import SUBSCRIPTION, Value, describe, keep_fixed, refuse_changes
from postbus.model.rule import RuleDescription
from postbus.model.times import Instant
from postbus.namespace.entities import SubscriptionEntity
from postbus.namespace.namespace import Namespace


async def list_subscriptions(
    namespace: Namespace, topic: str, query: Mapping[str, str], asked: RequestContext, now: Instant
) -> Response:
    asked.caller.require_below(f"{topic}/Subscriptions", "EnumerateSubscriptions", asked.site)
    found = namespace.topic(topic)
    if found is None:
        raise EntityNotFound(topic)
    part = slice_of(query)
    subscriptions = found.subscriptions()
    shown = part.of(subscriptions)
    counts = await asyncio.gather(*(_counts(namespace, each) for each in shown))
    entries = [_entry(each, count, asked.site) for each, count in zip(shown, counts, strict=True)]
    page = part.page("Subscriptions", f"{found.name}/Subscriptions", len(subscriptions))
    return feed_reply(entries, page, asked.site, now)


class SubscriptionResource:
    """The subscription of a name, under the topic of a name."""

    __slots__ = ("_below", "_defaults", "_name", "_namespace", "_now", "_path", "_topic")

    def __init__(
        self,
        namespace: Namespace,
        defaults: QueueDescription,
        topic: str,
        name: str,
        now: Instant,
    ) -> None:
        """`defaults` are the values of a new queue; their lock duration holds here too."""
        self._namespace = namespace
        self._defaults = SubscriptionDescription(lock_duration_ms=defaults.lock_duration_ms)
        self._topic = topic
        self._name = name
        self._now = now
        self._path = Address(topic, name).path
        self._below = SubordinatePath(namespace.name, (topic, name))

    async def read(self, asked: RequestContext) -> Response:
        asked.caller.require_below(self._path, "GetSubscription", asked.site)
        subscription = self._find()
        if subscription is None:
            raise self._below.missing()
        return _reply(subscription, await _counts(self._namespace, subscription), asked.site)

    async def create(self, body: bytes, asked: RequestContext) -> Response:
        self._require_write(asked)
        with without_sub_code():
            check_subscription_name(self._name)
            content, values = _read(body)
            first = _first_rule(content)
            # semantics A §4: without rules, it takes everything
            rule = RuleDescription(created_at=self._now)
            if first is not None:
                rule = read_rule(first, None, self._now)
            if self._namespace.topic(self._topic) is None:
                raise missing_topic()
            description = await self._describe(values, asked)
            try:
                subscription = await self._namespace.subscriptions.create(
                    self._topic, self._name, description, rule
                )
            except EntityAlreadyExists:
                raise self._below.exists() from None
            except EntityNotFound:
                raise missing_topic() from None
        return _reply(subscription, QueueCounts(), asked.site, status=201)

    async def update(self, body: bytes, etag: str, asked: RequestContext) -> Response:
        self._require_write(asked)
        with without_sub_code():
            content, values = _read(body)
            if self._namespace.topic(self._topic) is None:
                raise missing_topic()
            subscription = self._find()
            if subscription is None:
                raise self._below.missing_for_update()

            def check(there: SubscriptionEntity) -> None:
                require_version(etag, etag_of(there.updated_at), "subscription")

            check(subscription)  # at once, before any other check
            if _first_rule(content) is not None:
                raise InvalidArgument(
                    f"The element '{DEFAULT_RULE}' is only part of a request that creates a "
                    "subscription; rules are changed one by one."
                )
            refuse_changes(SUBSCRIPTION, values, subscription.description)
            description = await self._describe(values, asked, subscription.description)
            try:
                subscription = await self._namespace.subscriptions.update(
                    self._topic, self._name, description, check
                )
            except EntityNotFound:
                raise self._below.missing_for_update() from None
        counts = await _counts(self._namespace, subscription)
        return _reply(subscription, counts, asked.site, published=False)

    async def delete(self, asked: RequestContext) -> Response:
        asked.caller.require_below(self._path, "DeleteSubscription", asked.site)
        if self._namespace.topic(self._topic) is None:
            raise missing_for_delete()
        try:
            await self._namespace.subscriptions.delete(self._topic, self._name)
        except EntityNotFound:
            raise self._below.missing() from None
        return Response()

    def _find(self) -> SubscriptionEntity | None:
        topic = self._namespace.topic(self._topic)
        return None if topic is None else topic.subscription(self._name)

    def _require_write(self, asked: RequestContext) -> None:
        asked.caller.require_below(self._path, "CreateOrUpdateSubscription", asked.site)

    async def _describe(
        self, values: Mapping[str, Value], asked: RequestContext, present: Description | None = None
    ) -> SubscriptionDescription:
        defaults = self._defaults
        if present is not None:
            defaults = keep_fixed(SUBSCRIPTION, defaults, present)
        description = describe(SUBSCRIPTION, values, defaults)
        return await with_destinations(description, self._namespace, asked)


def _read(body: bytes) -> tuple[Element, dict[str, Value]]:
    content = read_content(body)
    return content, read_values(form_of(content, SUBSCRIPTION), content)


def _first_rule(content: Element) -> Element | None:
    described = children(content, SUBSCRIPTION.element).get(DEFAULT_RULE)
    return None if described is None or is_nil(described) else described


async def _counts(namespace: Namespace, subscription: SubscriptionEntity) -> QueueCounts:
    try:
        return await namespace.subscriptions.counts(subscription.topic, subscription.name)
    except EntityNotFound:
        return QueueCounts()  # deleted meanwhile: the page must not get shorter


def _entry(
    subscription: SubscriptionEntity, counts: QueueCounts, site: Site, *, published: bool = True
) -> Entry:
    told = told_of(subscription, counts)
    return Entry(
        path=Address(subscription.topic, subscription.name).path,
        title=subscription.name,
        updated_at=subscription.updated_at,
        published_at=subscription.created_at if published else None,
        content=description_xml(SUBSCRIPTION, subscription.description, told, site),
    )


def _reply(
    subscription: SubscriptionEntity,
    counts: QueueCounts,
    site: Site,
    *,
    status: int = 200,
    published: bool = True,
) -> Response:
    entry = _entry(subscription, counts, site, published=published)
    return entry_reply(entry, site, etag_of(subscription.updated_at), status)
