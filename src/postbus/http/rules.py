"""Rules of a subscription over HTTP."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Final

from starlette.responses import Response

from postbus.errors import EntityAlreadyExists, EntityNotFound, InvalidArgument
from postbus.http.atom import Entry, Site, local_name, read_content
from postbus.http.caller import RequestContext
from postbus.http.problems import SubordinatePath, missing_for_delete, without_sub_code
from postbus.http.replies import entry_reply, feed_reply, require_version, slice_of
from postbus.http.rule_xml import RULE, read_rule, rule_xml
from postbus.model.address import Address
from postbus.model.rule import RuleDescription, check_rule_name
from postbus.model.times import Instant
from postbus.namespace.entities import SubscriptionEntity
from postbus.namespace.namespace import Namespace

_WRITE: Final = "CreateOrUpdateRule"


async def list_rules(
    namespace: Namespace,
    topic: str,
    subscription: str,
    query: Mapping[str, str],
    asked: RequestContext,
    now: Instant,
) -> Response:
    asked.caller.require_below(_path(topic, subscription), "EnumerateRules", asked.site)
    found = _subscription(namespace, topic, subscription)
    if found is None:
        raise SubordinatePath(namespace.name, (topic, subscription)).missing()
    part = slice_of(query)
    rules = found.rules()
    entries = [_entry(found, rule) for rule in part.of(rules)]
    page = part.page("Rules", _path(found.topic, found.name), len(rules))
    return feed_reply(entries, page, asked.site, now)


class RuleResource:
    """The rule of a name, of the subscription of a name."""

    __slots__ = ("_below", "_name", "_namespace", "_now", "_parent", "_path")

    def __init__(
        self, namespace: Namespace, topic: str, subscription: str, name: str, now: Instant
    ) -> None:
        self._namespace = namespace
        self._parent = (topic, subscription)
        self._name = name
        self._now = now
        self._path = f"{_path(topic, subscription)}/{name}"
        self._below = SubordinatePath(namespace.name, (topic, subscription, name))

    async def read(self, asked: RequestContext) -> Response:
        asked.caller.require_below(self._path, "GetRule", asked.site)
        subscription = _subscription(self._namespace, *self._parent)
        rule = None if subscription is None else subscription.rule(self._name)
        if subscription is None or rule is None:
            raise self._below.missing()
        return _reply(subscription, rule, asked.site)

    async def create(self, body: bytes, asked: RequestContext) -> Response:
        asked.caller.require_below(self._path, _WRITE, asked.site)
        with without_sub_code():
            check_rule_name(self._name)
            rule = self._read(body)
            subscription = self._existing_parent()
            try:
                await self._namespace.subscriptions.create_rule(*self._parent, rule)
            except EntityAlreadyExists:
                raise self._below.exists() from None
            except EntityNotFound:
                raise self._missing_parent() from None
        return _reply(subscription, rule, asked.site, status=201, stored=True)

    async def update(self, body: bytes, etag: str, asked: RequestContext) -> Response:
        asked.caller.require_below(self._path, _WRITE, asked.site)
        with without_sub_code():
            rule = self._read(body)
            subscription = self._existing_parent()
            before = subscription.rule(self._name)
            if before is None:
                raise self._below.missing_for_update()

            def check(there: RuleDescription) -> None:
                require_version(etag, _etag(there), "rule")

            check(before)
            rule = replace(rule, name=before.name, created_at=before.created_at)
            try:
                await self._namespace.subscriptions.update_rule(*self._parent, rule, check)
            except EntityNotFound:
                raise self._below.missing_for_update() from None
        return _reply(subscription, rule, asked.site, stored=True, published=False)

    async def delete(self, asked: RequestContext) -> Response:
        asked.caller.require_below(self._path, "DeleteRule", asked.site)
        if _subscription(self._namespace, *self._parent) is None:
            raise missing_for_delete()
        try:
            await self._namespace.subscriptions.delete_rule(*self._parent, self._name)
        except EntityNotFound:
            raise self._below.missing() from None
        return Response()

    def _read(self, body: bytes) -> RuleDescription:
        content = read_content(body)
        if local_name(content) != RULE:
            raise InvalidArgument(f"The content must be a '{RULE}', not '{local_name(content)}'.")
        return read_rule(content, self._name, self._now)

    def _existing_parent(self) -> SubscriptionEntity:
        subscription = _subscription(self._namespace, *self._parent)
        if subscription is None:
            raise self._missing_parent()
        return subscription

    def _missing_parent(self) -> Exception:
        return SubordinatePath(self._namespace.name, self._parent).missing_for_update()


def _path(topic: str, subscription: str) -> str:
    return f"{Address(topic, subscription).path}/Rules"


def _subscription(namespace: Namespace, topic: str, name: str) -> SubscriptionEntity | None:
    found = namespace.topic(topic)
    return None if found is None else found.subscription(name)


def _etag(rule: RuleDescription) -> str:
    """A number for each content of a rule, because no time of the last change is kept."""
    return str(int.from_bytes(sha256(rule_xml(rule, stored=False).encode()).digest()[:8]))


def _entry(
    subscription: SubscriptionEntity,
    rule: RuleDescription,
    *,
    stored: bool = False,
    published: bool = True,
) -> Entry:
    return Entry(
        path=f"{_path(subscription.topic, subscription.name)}/{rule.name}",
        title=rule.name,
        updated_at=rule.created_at,
        published_at=rule.created_at if published else None,
        content=rule_xml(rule, stored=stored),
    )


def _reply(
    subscription: SubscriptionEntity,
    rule: RuleDescription,
    site: Site,
    *,
    status: int = 200,
    stored: bool = False,
    published: bool = True,
) -> Response:
    entry = _entry(subscription, rule, stored=stored, published=published)
    return entry_reply(entry, site, _etag(rule), status)
