"""ATOM: the entries and feeds that carry descriptions (wire §9.3).

Written by hand, because the clients read more than XML says. The JS client takes names from the
`id`; the Python client counts the links of a feed.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import quote
from xml.etree.ElementTree import Element, ParseError

from defusedxml.ElementTree import fromstring

from postbus.errors import InvalidArgument
from postbus.http.problems import xml_text
from postbus.model.times import Instant

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"


def time_text(instant: Instant) -> str:
    """A point in time as ISO 8601 with `Z`."""
    moment = datetime.fromtimestamp(instant // 1_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{instant % 1_000:03d}Z"


ENTRY_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE: Final = "application/atom+xml;type=feed;charset=utf-8"

_PROLOGUE: Final = '<?xml version="1.0" encoding="utf-8"?>'


class Site(NamedTuple):
    """The address of the server as replies show it, and the requested version of the API."""

    base_url: str
    """Scheme, host and port as the client used them, no slash at the end."""
    namespace: str
    api_version: str | None

    def url(self, path: str, query: str = "") -> str:
        """An absolute URL: the JS client takes an entity's name from it."""
        version = f"api-version={self.api_version}" if self.api_version else ""
        whole = "&".join(part for part in (query, version) if part)
        return f"{self.base_url}/{quote(path, safe='/$')}" + (f"?{whole}" if whole else "")

    def address(self, name: str) -> str:
        """An entity's address in the form that forwarding uses."""
        return f"sb://{self.base_url.partition('://')[2]}/{name}"

    def shows(self, since: str) -> bool:
        """Does the requested api-version include what `since` introduced?"""
        return self.api_version is None or self.api_version >= since


class Entry(NamedTuple):
    """One description with its envelope."""

    path: str
    title: str
    updated_at: Instant
    published_at: Instant | None
    """Left out of the reply to an update (semantics A §5.1)."""
    content: str


class Page(NamedTuple):
    """A part of a list."""

    title: str
    path: str
    skip: int
    top: int
    more: bool
    """Are there more entries behind this page?"""


def entry_document(entry: Entry, site: Site) -> str:
    """An entry as a document of its own."""
    return _PROLOGUE + _entry(entry, site)


def feed_document(entries: Iterable[Entry], page: Page, site: Site, now: Instant) -> str:
    """A page of a list."""
    url = site.url(page.path, f"$skip={page.skip}&$top={page.top}")
    links = _self_link(url)
    if page.more:
        # Second of exactly two links, with both numbers: the Python client finds it that way.
        following = site.url(page.path, f"$skip={page.skip + page.top}&$top={page.top}")
        links += f'<link rel="next" href="{xml_text(following)}"/>'
    return (
        f'{_PROLOGUE}<feed xmlns="{ATOM}">'
        + _head(url, page.title, time_text(now))
        + links
        + "".join(_entry(entry, site) for entry in entries)
        + "</feed>"
    )


def listed_document(site: Site, now: Instant) -> str:
    """Azure's feed without entries.

    Strangers get it for the namespace, and others for a missing queue or topic. Go's client
    recognizes the second case by the title.
    """
    return (
        f'{_PROLOGUE}<feed xmlns="{ATOM}"><title type="text">Publicly Listed Services</title>'
        '<subtitle type="text">This is the list of publicly-listed services currently available.'
        "</subtitle>"
        + element("id", f"{site.base_url}/")
        + element("updated", time_text(now))
        + "<generator>Postbus</generator></feed>"
    )


def namespace_document(site: Site, created_at: Instant) -> str:
    """The answer to `$namespaceinfo`."""
    created = time_text(created_at)
    content = service_bus(
        "NamespaceInfo",
        element("CreatedTime", created)
        # The tier that has these limits: messages of 256 KB, entities of 1 to 5 GB.
        + element("MessagingSKU", "Standard")
        + element("ModifiedTime", created)
        + element("Name", site.namespace)
        + element("NamespaceType", "Messaging"),
    )
    return entry_document(Entry("$namespaceinfo", site.namespace, created_at, None, content), site)


def read_content(body: bytes) -> Element:
    """The description in the entry of a request. Raises InvalidArgument."""
    try:
        # DecodeMeter here, so that the document cannot choose which of Python's codecs runs.
        root = fromstring(body.decode("utf-8-sig"))
    except (ParseError, ValueError) as error:
        raise InvalidArgument(f"The body of the request is not valid XML: {error}.") from None
    assert isinstance(root, Element)
    if root.tag != f"{{{ATOM}}}entry":
        raise InvalidArgument(f"The body of the request must be an ATOM 'entry', not '{root.tag}'.")
    contents = root.findall(f"{{{ATOM}}}content")
    if len(contents) != 1 or len(contents[0]) != 1:
        raise InvalidArgument("The entry must have one 'content' with one description in it.")
    return contents[0][0]


def local_name(element: Element) -> str:
    """The name of a Service Bus element without its prefix; any other name with its namespace."""
    return str(element.tag).removeprefix(f"{{{SERVICE_BUS}}}")


def is_nil(element: Element) -> bool:
    """Does the element say that it is nil?"""
    return element.get(f"{{{INSTANCE}}}nil") in ("true", "1")


def service_bus(name: str, content: str) -> str:
    """An element of Service Bus with its namespaces; `content` is XML."""
    return f'<{name} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{content}</{name}>'


def element(name: str, value: str | int) -> str:
    """An element with a value, in the form that the clients read."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"<{name}>{xml_text(text)}</{name}>"


def _entry(entry: Entry, site: Site) -> str:
    url = site.url(entry.path)
    published = None if entry.published_at is None else time_text(entry.published_at)
    return (
        f'<entry xmlns="{ATOM}">'
        + _head(url, entry.title, time_text(entry.updated_at), published)
        + f"<author><name>{xml_text(site.namespace)}</name></author>"
        + _self_link(url)
        + f'<content type="application/xml">{entry.content}</content></entry>'
    )


def _head(url: str, title: str, updated: str, published: str | None = None) -> str:
    return (
        element("id", url)
        + f'<title type="text">{xml_text(title)}</title>'
        + ("" if published is None else element("published", published))
        + element("updated", updated)
    )


def _self_link(url: str) -> str:
    return f'<link rel="self" href="{xml_text(url)}"/>'
