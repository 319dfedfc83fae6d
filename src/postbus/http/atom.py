"""ATOM: entries and feeds as the admin clients write and read them (wire contract §9.3, §9.4).

Written by hand rather than by a serializer, because the clients read more than XML says: the JS one
wants `CountDetails` with exactly one attribute and its children under that prefix, the Python one
counts the links of a feed.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import quote
from xml.etree.ElementTree import Element, ParseError

from defusedxml.ElementTree import fromstring

from postbus.errors import InvalidArgument, NotSupported
from postbus.http.authorization import read_rules, write_rules
from postbus.http.notation import ATOM, COUNTS, INSTANCE, SERVICE_BUS, time_text
from postbus.http.problems import xml_text
from postbus.model.description import QueueCounts, QueueDescription
from postbus.model.duration import INFINITE, TICKS_PER_MS, format_iso
from postbus.model.fields import QUEUE_FIELDS, READ_ONLY, Kind, Value, read_text
from postbus.model.instant import Instant

ENTRY_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE: Final = "application/atom+xml;type=feed;charset=utf-8"

_NEVER_ACCESSED: Final = "0001-01-01T00:00:00Z"
_OTHER_DESCRIPTIONS: Final = {
    "TopicDescription": "topics",
    "SubscriptionDescription": "topics and their subscriptions",
    "RuleDescription": "topics and the rules of their subscriptions",
}


class Site(NamedTuple):
    """Where a reply says it comes from."""

    base_url: str
    """Scheme, host and port as the client used them, no slash at the end."""
    namespace: str
    api_version: str | None

    def url(self, path: str, query: str = "") -> str:
        """An absolute URL: the JS client takes an entity's name from it."""
        version = f"api-version={self.api_version}" if self.api_version else ""
        whole = "&".join(part for part in (query, version) if part)
        return f"{self.base_url}/{quote(path, safe='/$')}" + (f"?{whole}" if whole else "")


class QueueView(NamedTuple):
    """A queue as a reply shows it."""

    name: str
    description: QueueDescription
    created_at: Instant
    updated_at: Instant
    accessed_at: Instant
    counts: QueueCounts


class Page(NamedTuple):
    """A part of a list."""

    skip: int
    top: int
    more: bool
    """Is there anything behind it?"""


def read_queue(body: bytes) -> dict[str, Value]:
    """The values of a QueueDescription in an entry, by element name.

    Raises InvalidArgument for what is no such entry, NotSupported for another kind of description.
    """
    description = _description(_parse(body))
    values: dict[str, Value] = {}
    seen: set[str] = set()
    for child in description:
        name = _local_name(child)
        if name in seen:
            raise InvalidArgument(f"The element '{name}' is there twice.")
        seen.add(name)
        if name in READ_ONLY:
            continue
        if name not in QUEUE_FIELDS:
            raise InvalidArgument(f"The element '{name}' is not part of a QueueDescription.")
        if child.get(f"{{{INSTANCE}}}nil") in ("true", "1"):
            continue
        field = QUEUE_FIELDS[name]
        if field.kind is Kind.RULES:
            values[name] = read_rules(child)
        elif len(child) > 0:
            raise InvalidArgument(f"The element '{name}' must hold {field.kind.value}.")
        else:
            values[name] = read_text(field, child.text or "")
    return values


def queue_entry(view: QueueView, site: Site, *, published: bool = True) -> str:
    """A queue as a document of its own."""
    return '<?xml version="1.0" encoding="utf-8"?>' + _entry(view, site, published=published)


def queue_feed(views: Iterable[QueueView], page: Page, site: Site, now: Instant) -> str:
    """A page of the list of queues."""
    entries = "".join(_entry(view, site, published=True) for view in views)
    return _feed("Queues", "$Resources/queues", entries, page, site, now)


def topic_feed(page: Page, site: Site, now: Instant) -> str:
    """The list of topics, which is empty."""
    return _feed("Topics", "$Resources/topics", "", page, site, now)


def namespace_entry(site: Site, created_at: Instant) -> str:
    """What `$namespaceinfo` answers."""
    created = time_text(created_at)
    content = (
        f'<NamespaceInfo xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">'
        + _element("CreatedTime", created)
        # Messages of 256 KB, entities of 1 to 5 GB: the tier these limits are those of.
        + _element("MessagingSKU", "Standard")
        + _element("ModifiedTime", created)
        + _element("Name", site.namespace)
        + _element("NamespaceType", "Messaging")
        + "</NamespaceInfo>"
    )
    url = site.url("$namespaceinfo")
    return (
        f'<?xml version="1.0" encoding="utf-8"?><entry xmlns="{ATOM}">'
        + _head(url, site.namespace, created)
        + _self_link(url)
        + f'<content type="application/xml">{content}</content></entry>'
    )


def _parse(body: bytes) -> Element:
    try:
        # Decoded here, so that the document cannot choose which of Python's codecs runs.
        root = fromstring(body.decode("utf-8-sig"))
    except (ParseError, ValueError) as error:
        raise InvalidArgument(f"The body of the request is not valid XML: {error}.") from None
    assert isinstance(root, Element)
    return root


def _description(root: Element) -> Element:
    if root.tag != f"{{{ATOM}}}entry":
        raise InvalidArgument(f"The body of the request must be an ATOM 'entry', not '{root.tag}'.")
    contents = root.findall(f"{{{ATOM}}}content")
    if len(contents) != 1 or len(contents[0]) != 1:
        raise InvalidArgument("The entry must have one 'content' with one description in it.")
    description = contents[0][0]
    name = _local_name(description)
    if name in _OTHER_DESCRIPTIONS:
        raise NotSupported(
            f"A {name} cannot be stored: Postbus does not support {_OTHER_DESCRIPTIONS[name]} yet."
        )
    if name != "QueueDescription":
        raise InvalidArgument(f"The content must be a 'QueueDescription', not '{name}'.")
    return description


def _local_name(element: Element) -> str:
    """The name of an element of the description, whatever its prefix; any other with namespace."""
    tag = str(element.tag)
    return tag.removeprefix(f"{{{SERVICE_BUS}}}")


def _entry(view: QueueView, site: Site, *, published: bool) -> str:
    url = site.url(view.name)
    created = time_text(view.created_at) if published else None
    return (
        f'<entry xmlns="{ATOM}">'
        + _head(url, view.name, time_text(view.updated_at), created)
        + f"<author><name>{xml_text(site.namespace)}</name></author>"
        + _self_link(url)
        + f'<content type="application/xml">{_queue_content(view)}</content></entry>'
    )


def _queue_content(view: QueueView) -> str:
    description, counts = view.description, view.counts
    metadata = description.user_metadata
    return (
        f'<QueueDescription xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">'
        + _element("LockDuration", format_iso(description.lock_duration_ms * TICKS_PER_MS))
        + _element("MaxSizeInMegabytes", description.max_size_mb)
        + _element("RequiresDuplicateDetection", False)
        + _element("RequiresSession", False)
        + _element("DefaultMessageTimeToLive", description.default_ttl_text)
        + _element("DeadLetteringOnMessageExpiration", description.dead_lettering_on_expiration)
        + _element(
            "DuplicateDetectionHistoryTimeWindow",
            format_iso(description.duplicate_window_ms * TICKS_PER_MS),
        )
        + _element("MaxDeliveryCount", description.max_delivery_count)
        + _element("EnableBatchedOperations", description.enable_batched_operations)
        + _element("SizeInBytes", counts.size_bytes)
        + _element("MessageCount", counts.total)
        + _element("IsAnonymousAccessible", False)
        + write_rules(description.authorization_rules)
        + _element("Status", description.status.value)
        + ("" if metadata is None else _element("UserMetadata", metadata))
        + _element("CreatedAt", time_text(view.created_at))
        + _element("UpdatedAt", time_text(view.updated_at))
        + _element(
            "AccessedAt", time_text(view.accessed_at) if view.accessed_at else _NEVER_ACCESSED
        )
        + _element("SupportOrdering", description.support_ordering)
        + _count_details(counts)
        + _element("AutoDeleteOnIdle", INFINITE)
        + _element("EnablePartitioning", False)
        + _element("EntityAvailabilityStatus", "Available")
        + _element("EnableExpress", description.enable_express)
        + _element("MaxMessageSizeInKilobytes", description.max_message_size_kb)
        + "</QueueDescription>"
    )


def _count_details(counts: QueueCounts) -> str:
    return (
        f'<CountDetails xmlns:d2p1="{COUNTS}">'
        + _element("d2p1:ActiveMessageCount", counts.active)
        + _element("d2p1:DeadLetterMessageCount", counts.dead_letter)
        + _element("d2p1:ScheduledMessageCount", counts.scheduled)
        + _element("d2p1:TransferMessageCount", counts.transfer)
        + _element("d2p1:TransferDeadLetterMessageCount", counts.transfer_dead_letter)
        + "</CountDetails>"
    )


def _feed(title: str, path: str, entries: str, page: Page, site: Site, now: Instant) -> str:
    url = site.url(path, f"$skip={page.skip}&$top={page.top}")
    links = _self_link(url)
    if page.more:
        # Second of exactly two, with both numbers: that is how the Python client finds it.
        following = site.url(path, f"$skip={page.skip + page.top}&$top={page.top}")
        links += f'<link rel="next" href="{xml_text(following)}"/>'
    return (
        f'<?xml version="1.0" encoding="utf-8"?><feed xmlns="{ATOM}">'
        + _head(url, title, time_text(now))
        + links
        + entries
        + "</feed>"
    )


def _head(url: str, title: str, updated: str, published: str | None = None) -> str:
    return (
        _element("id", url)
        + f'<title type="text">{xml_text(title)}</title>'
        + ("" if published is None else _element("published", published))
        + _element("updated", updated)
    )


def _self_link(url: str) -> str:
    return f'<link rel="self" href="{xml_text(url)}"/>'


def _element(name: str, value: str | int) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"<{name}>{xml_text(text)}</{name}>"
