"""Queues over HTTP: create, read, update, delete, and the form of what comes back."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from postbus.http.atom import ATOM, COUNTS, SERVICE_BUS
from postbus.model.description import EntityStatus, QueueCounts, QueueDescription
from postbus.model.times import INFINITE
from tests.unit.http.fakes import Client, application, entry
from tests.unit.http.memory import T0, MemoryNamespace, Queue

V = "?api-version=2021-05"

# What azure-servicebus 7.15 and @azure/service-bus 7.9.5 send to create a queue.
PYTHON_BODY = (
    "<?xml version='1.0' encoding='utf-8'?>\n"
    f'<ns0:entry xmlns:ns0="{ATOM}" xmlns="{SERVICE_BUS}"><ns0:content type="application/xml">'
    "<QueueDescription><LockDuration>PT1M</LockDuration><RequiresSession>false</RequiresSession>"
    "<UserMetadata>x</UserMetadata></QueueDescription></ns0:content></ns0:entry>"
).encode()
JAVASCRIPT_BODY = (
    '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
    f'<entry xmlns="{ATOM}"><updated>2026-11-15T21:17:00.064Z</updated>'
    f'<content type="application/xml"><QueueDescription xmlns="{SERVICE_BUS}" '
    'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><LockDuration>PT1M</LockDuration>'
    "<UserMetadata>x</UserMetadata></QueueDescription></content></entry>"
).encode()
PREFIXED_BODY = (
    f'<a:entry xmlns:a="{ATOM}" xmlns:b="{SERVICE_BUS}"><a:content><b:QueueDescription>'
    "<b:UserMetadata>x</b:UserMetadata><b:LockDuration>PT1M</b:LockDuration>"
    "</b:QueueDescription></a:content></a:entry>"
).encode()

ELEMENTS = [
    "LockDuration", "MaxSizeInMegabytes", "RequiresDuplicateDetection", "RequiresSession",
    "DefaultMessageTimeToLive", "DeadLetteringOnMessageExpiration",
    "DuplicateDetectionHistoryTimeWindow", "MaxDeliveryCount", "EnableBatchedOperations",
    "SizeInBytes", "MessageCount", "IsAnonymousAccessible", "AuthorizationRules", "Status",
    "UserMetadata", "CreatedAt", "UpdatedAt", "AccessedAt", "SupportOrdering", "CountDetails",
    "AutoDeleteOnIdle", "EnablePartitioning", "EntityAvailabilityStatus", "EnableExpress",
    "MaxMessageSizeInKilobytes",
]  # fmt: skip


@pytest.fixture
def namespace() -> MemoryNamespace:
    return MemoryNamespace()


@pytest.fixture
def client(namespace: MemoryNamespace) -> Client:
    return Client(application(namespace))


def existing(namespace: MemoryNamespace, name: str = "orders") -> Queue:
    queue = namespace.queue(name)
    assert queue is not None
    return queue


@pytest.mark.parametrize("body", [PYTHON_BODY, JAVASCRIPT_BODY, PREFIXED_BODY])
async def test_a_queue_is_created_as_each_sdk_asks(
    client: Client, namespace: MemoryNamespace, body: bytes
) -> None:
    reply = await client.put("/orders" + V, body)
    assert reply.status == 201
    assert reply.headers["content-type"] == "application/atom+xml;type=entry;charset=utf-8"
    assert reply.headers["etag"] == str(621_355_968_000_000_000 + T0 * 10_000)
    expected = QueueDescription(lock_duration_ms=60_000, user_metadata="x")
    assert existing(namespace).description == expected


async def test_an_empty_description_takes_the_defaults() -> None:
    namespace = MemoryNamespace()
    defaults = QueueDescription(lock_duration_ms=45_000, max_message_size_kb=1_024)
    client = Client(application(namespace, defaults=defaults))
    reply = await client.put("/orders", entry())
    assert reply.value("LockDuration") == "PT45S"
    assert reply.value("MaxMessageSizeInKilobytes") == "1024"
    assert existing(namespace).description == defaults


async def test_a_reply_has_every_element_in_azures_order(client: Client) -> None:
    # wire §9.4: the JS client throws when one is missing
    reply = await client.put("/orders" + V, entry("<UserMetadata>x</UserMetadata>"))
    description = reply.xml.find(f"{{{ATOM}}}content/{{{SERVICE_BUS}}}QueueDescription")
    assert description is not None
    assert [child.tag.removeprefix(f"{{{SERVICE_BUS}}}") for child in description] == ELEMENTS


async def test_what_a_reply_says_of_a_queue(client: Client, namespace: MemoryNamespace) -> None:
    await client.put("/orders" + V, entry())
    namespace.all_counts["orders"] = QueueCounts(1, 2, 3, 4, 5, size_bytes=6_000)
    existing(namespace).accessed_at = T0 + 1
    reply = await client.get("/Orders" + V)
    assert reply.status == 200
    said = {element: reply.value(element) for element in ELEMENTS if element != "CountDetails"}
    assert said == {
        "LockDuration": "PT30S",
        "MaxSizeInMegabytes": "1024",
        "RequiresDuplicateDetection": "false",
        "RequiresSession": "false",
        "DefaultMessageTimeToLive": INFINITE,
        "DeadLetteringOnMessageExpiration": "false",
        "DuplicateDetectionHistoryTimeWindow": "PT10M",
        "MaxDeliveryCount": "10",
        "EnableBatchedOperations": "true",
        "SizeInBytes": "6000",
        "MessageCount": "15",
        "IsAnonymousAccessible": "false",
        "AuthorizationRules": "",
        "Status": "Active",
        "UserMetadata": None,
        "CreatedAt": "2023-11-14T22:13:20.123Z",
        "UpdatedAt": "2023-11-14T22:13:20.123Z",
        "AccessedAt": "2023-11-14T22:13:20.124Z",
        "SupportOrdering": "true",
        "AutoDeleteOnIdle": INFINITE,
        "EnablePartitioning": "false",
        "EntityAvailabilityStatus": "Available",
        "EnableExpress": "false",
        "MaxMessageSizeInKilobytes": "256",
    }


async def test_counts_are_written_as_the_javascript_client_reads_them(
    client: Client, namespace: MemoryNamespace
) -> None:
    # wire §10.32: exactly one attribute xmlns:<p>, children under that prefix
    await client.put("/orders" + V, entry())
    namespace.all_counts["orders"] = QueueCounts(1, 2, 3, 4, 5)
    text = (await client.get("/orders" + V)).text
    match = re.search(r"<CountDetails ([^>]*)>(.*)</CountDetails>", text)
    assert match is not None
    prefix = re.fullmatch(f'xmlns:(\\w+)="{COUNTS}"', match[1])
    assert prefix is not None
    assert re.findall(rf"<{prefix[1]}:(\w+)>(\d+)<", match[2]) == [
        ("ActiveMessageCount", "1"),
        ("DeadLetterMessageCount", "2"),
        ("ScheduledMessageCount", "3"),
        ("TransferMessageCount", "4"),
        ("TransferDeadLetterMessageCount", "5"),
    ]


async def test_an_entry_names_its_queue_by_an_absolute_url(client: Client) -> None:
    reply = await client.put("/Txt%2F.-_123" + V, entry())
    root = reply.xml
    assert root.findtext(f"{{{ATOM}}}id") == f"http://localhost:5300/Txt/.-_123{V}"
    assert root.findtext(f"{{{ATOM}}}title") == "Txt/.-_123"
    assert root.findtext(f"{{{ATOM}}}author/{{{ATOM}}}name") == "test-namespace"
    link = root.find(f"{{{ATOM}}}link")
    assert link is not None and link.attrib == {
        "rel": "self",
        "href": f"http://localhost:5300/Txt/.-_123{V}",
    }
    assert root.findtext(f"{{{ATOM}}}published") == "2023-11-14T22:13:20.123Z"


async def test_a_host_that_is_none_is_not_written_into_urls(client: Client) -> None:
    reply = await client.put("/q" + V, entry(), headers={"host": 'x"><script>'})
    assert reply.xml.findtext(f"{{{ATOM}}}id") == f"http://127.0.0.1:5300/q{V}"


async def test_a_queue_never_used_says_so(client: Client) -> None:
    await client.put("/orders" + V, entry())
    assert (await client.get("/orders" + V)).value("AccessedAt") == "0001-01-01T00:00:00Z"


async def test_metadata_comes_back_character_for_character(client: Client) -> None:
    elements = '<UserMetadata>a &lt;b&gt; &amp; "c"&#13;&#10;d \U0001f680 ]]&gt;</UserMetadata>'
    await client.put("/orders" + V, entry(elements))
    reply = await client.get("/orders" + V)
    assert reply.value("UserMetadata") == 'a <b> & "c"\r\nd \U0001f680 ]]>'


async def test_the_time_to_live_that_python_rounds_comes_back_as_sent(client: Client) -> None:
    sent = "P10675199DT2H48M5.477539S"
    for headers in ({}, {"if-match": "*"}):
        elements = f"<DefaultMessageTimeToLive>{sent}</DefaultMessageTimeToLive>"
        reply = await client.put("/orders" + V, entry(elements), headers=headers)
        assert reply.value("DefaultMessageTimeToLive") == sent


async def test_a_queue_that_is_there_is_not_created_again(client: Client) -> None:
    await client.put("/orders" + V, entry())
    reply = await client.put("/ORDERS" + V, entry())
    assert reply.status == 409
    assert reply.detail.startswith("SubCode=40900. Conflict.")


async def test_an_update_replaces_the_description(
    client: Client, namespace: MemoryNamespace
) -> None:
    await client.put("/orders" + V, entry("<UserMetadata>x</UserMetadata>"))
    namespace.now += 1_000
    elements = "<LockDuration>PT1M</LockDuration><Status>ReceiveDisabled</Status>"
    reply = await client.put("/orders" + V, entry(elements), headers={"If-Match": "*"})
    assert reply.status == 200
    # what was left out is back at its default
    assert existing(namespace).description == QueueDescription(
        lock_duration_ms=60_000, status=EntityStatus.RECEIVE_DISABLED
    )
    assert reply.value("UpdatedAt") == "2023-11-14T22:13:21.123Z"
    assert reply.value("CreatedAt") == "2023-11-14T22:13:20.123Z"
    # semantics A §5.1
    assert reply.xml.find(f"{{{ATOM}}}published") is None


async def test_an_update_may_insist_on_the_version_it_read(
    client: Client, namespace: MemoryNamespace
) -> None:
    etag = (await client.put("/orders" + V, entry())).headers["etag"]
    namespace.now += 1_000
    first = await client.put("/orders" + V, entry(), headers={"If-Match": f'"{etag}"'})
    second = await client.put("/orders" + V, entry(), headers={"If-Match": etag})
    assert (first.status, second.status) == (200, 412)


async def test_an_update_of_a_queue_that_is_not_there(client: Client) -> None:
    reply = await client.put("/orders" + V, entry(), headers={"If-Match": "*"})
    assert reply.status == 404
    assert reply.detail.startswith("SubCode=40400. Not Found. The Operation doesn't exist.")


@pytest.mark.parametrize(
    ("elements", "text"),
    [
        (
            "<RequiresSession>true</RequiresSession>",
            "The value for the RequiresSession property of an existing Queue cannot be changed",
        ),
        (
            "<RequiresDuplicateDetection>true</RequiresDuplicateDetection>",
            "The value for the RequiresDuplicateDetection property of an existing Queue cannot be",
        ),
        # R-PART-09
        ("<EnablePartitioning>true</EnablePartitioning>", "Partitioning cannot be changed"),
        ("<LockDuration>P25D</LockDuration>", "Actual value was 25.00:00:00."),
    ],
)
async def test_a_refused_update_changes_nothing(
    client: Client, namespace: MemoryNamespace, elements: str, text: str
) -> None:
    await client.put("/orders" + V, entry())
    before = replace(existing(namespace).description)
    reply = await client.put("/orders" + V, entry(elements), headers={"If-Match": "*"})
    assert reply.status == 400
    assert reply.detail.startswith("SubCode=40000. ") and text in reply.detail
    assert existing(namespace).description == before


async def test_a_queue_with_sessions_keeps_them_through_an_update(client: Client) -> None:
    sessions = "<RequiresSession>true</RequiresSession>"
    created = await client.put("/orders" + V, entry(sessions))
    assert created.status == 201 and sessions in created.text
    reply = await client.put(
        "/orders" + V, entry("<LockDuration>PT30S</LockDuration>"), headers={"If-Match": "*"}
    )
    assert reply.status == 200 and sessions in reply.text
    no_more = entry("<RequiresSession>false</RequiresSession>")
    refused = await client.put("/orders" + V, no_more, headers={"If-Match": "*"})
    assert refused.status == 400
    assert "RequiresSession property of an existing Queue cannot be changed" in refused.detail


async def test_a_queue_with_sessions_does_not_forward(
    client: Client, namespace: MemoryNamespace
) -> None:
    await client.put("/other" + V, entry())
    both = "<RequiresSession>true</RequiresSession><ForwardTo>other</ForwardTo>"
    reply = await client.put("/orders" + V, entry(both))
    assert reply.status == 400
    assert reply.detail.startswith("SubCode=40000. The property 'ForwardTo' cannot be set")
    assert [queue.name for queue in namespace.queues()] == ["other"]


async def test_duplicate_detection_stays_through_an_update_and_its_window_changes(
    client: Client,
) -> None:
    detection = "<RequiresDuplicateDetection>true</RequiresDuplicateDetection>"
    window = "<DuplicateDetectionHistoryTimeWindow>{}</DuplicateDetectionHistoryTimeWindow>"
    created = await client.put("/orders" + V, entry(detection + window.format("PT20S")))
    assert created.status == 201 and detection in created.text
    for elements in (window.format("P7D"), detection + window.format("P7D")):
        reply = await client.put("/orders" + V, entry(elements), headers={"If-Match": "*"})
        assert reply.status == 200 and detection in reply.text
        assert window.format("P7D") in reply.text
    off = entry("<RequiresDuplicateDetection>false</RequiresDuplicateDetection>")
    refused = await client.put("/orders" + V, off, headers={"If-Match": "*"})
    assert refused.status == 400
    assert "RequiresDuplicateDetection property of an existing Queue cannot" in refused.detail


async def test_what_is_written_later_cannot_be_known_to_be_seen(client: Client) -> None:
    """semantics A §5.3: express entities have no duplicate detection."""
    both = (
        "<RequiresDuplicateDetection>true</RequiresDuplicateDetection>"
        "<EnableExpress>true</EnableExpress>"
    )
    reply = await client.put("/orders" + V, entry(both))
    assert reply.status == 400
    assert "DelayedPersistence" in reply.detail
    assert "'RequiresDuplicateDetection'" in reply.detail


@pytest.mark.parametrize(
    ("elements", "text"),
    [
        ("<IsAnonymousAccessible>true</IsAnonymousAccessible>", "anonymous access"),
    ],
)
async def test_what_is_not_there_yet_is_refused_by_name_and_not_stored(
    client: Client, namespace: MemoryNamespace, elements: str, text: str
) -> None:
    reply = await client.put("/orders" + V, entry(elements))
    name = elements[1 : elements.index(">")]
    assert reply.status == 400
    assert f"'{name}'" in reply.detail and text in reply.detail
    assert namespace.queues() == []


@pytest.mark.parametrize("kind", ["SubscriptionDescription", "RuleDescription", "Queue"])
async def test_only_a_queue_or_a_topic_has_a_path_of_its_own(client: Client, kind: str) -> None:
    reply = await client.put("/news" + V, entry(kind=kind))
    assert reply.status == 400
    text = f"The content must be a 'QueueDescription' or a 'TopicDescription', not '{kind}'."
    assert text in reply.detail


async def test_what_only_the_server_knows_is_ignored(client: Client) -> None:
    reply = await client.put(
        "/orders" + V,
        entry(
            "<SizeInBytes>7</SizeInBytes><MessageCount>7</MessageCount>"
            "<CreatedAt>2001-01-01T00:00:00Z</CreatedAt><UpdatedAt/><AccessedAt>x</AccessedAt>"
            "<CountDetails><x/></CountDetails><EntityAvailabilityStatus>No"
            "</EntityAvailabilityStatus>"
        ),
    )
    assert reply.status == 201
    assert reply.value("MessageCount") == "0"
    assert reply.value("CreatedAt") == "2023-11-14T22:13:20.123Z"


async def test_a_nil_element_counts_as_left_out(client: Client) -> None:
    nil = 'xmlns:i="http://www.w3.org/2001/XMLSchema-instance" i:nil="true"'
    reply = await client.put("/orders" + V, entry(f"<ForwardTo {nil}/><LockDuration {nil}/>"))
    assert reply.value("LockDuration") == "PT30S"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not valid XML"),
        (b"<entry", "not valid XML"),
        (b"\xff\xfe", "not valid XML"),
        (b'{"name": "orders"}', "not valid XML"),
        (b"<!DOCTYPE x [<!ENTITY a 'b'>]><x>&a;</x>", "not valid XML"),
        (b"<!DOCTYPE x SYSTEM 'file:///etc/passwd'><x/>", "must be an ATOM 'entry'"),
        (b"<entry/>", "must be an ATOM 'entry'"),
        (f'<entry xmlns="{ATOM}"/>'.encode(), "one 'content'"),
        (f'<entry xmlns="{ATOM}"><content/></entry>'.encode(), "one 'content'"),
        (entry("<Colour>red</Colour>"), "'Colour'"),
        (entry('<LockDuration xmlns="urn:x">PT1M</LockDuration>'), "'{urn:x}LockDuration'"),
        (entry("<Status>Active</Status><Status>Active</Status>"), "'Status' is there twice"),
        (entry("<Status>Sleeping</Status>"), "'Status'"),
        (entry("<LockDuration><x/></LockDuration>"), "'LockDuration'"),
        (entry("<LockDuration/>"), "'LockDuration'"),
        (entry("<LockDuration>PT6M</LockDuration>"), "maximum of '5' minutes.\r\nParameter name:"),
        (entry("<MaxSizeInMegabytes>1</MaxSizeInMegabytes>"), "1024;2048;3072;4096;5120"),
        (entry("<AutoDeleteOnIdle>PT4M59S</AutoDeleteOnIdle>"), "Actual value was 00:04:59."),
        (entry("<ForwardTo>a b</ForwardTo>"), "'ForwardTo' is not valid: 'URI_PATH'"),
        (entry("<ForwardTo>q/$DeadLetterQueue</ForwardTo>"), "must name a queue or a topic"),
        (
            entry("<MaxMessageSizeInKilobytes>1023</MaxMessageSizeInKilobytes>"),
            "'MaxMessageSizeInKilobytes'",
        ),
    ],
)
async def test_a_body_that_is_wrong_is_refused_with_the_reason(
    client: Client, namespace: MemoryNamespace, body: bytes, text: str
) -> None:
    reply = await client.put("/orders" + V, body)
    assert reply.status == 400
    assert text in reply.detail
    assert namespace.queues() == []


@pytest.mark.parametrize("name", ["a%20b", "a%3Fb", "a%23", "%C3%A4", "a//b", "x" * 261])
async def test_a_name_no_queue_can_have_is_refused(client: Client, name: str) -> None:
    reply = await client.put(f"/{name}" + V, entry())
    assert reply.status == 400
    assert "URI_PATH" in reply.detail


async def test_a_queue_is_deleted(client: Client, namespace: MemoryNamespace) -> None:
    await client.put("/orders" + V, entry())
    reply = await client.delete("/orders" + V)
    assert (reply.status, reply.body, reply.headers["content-length"]) == (200, b"", "0")
    assert namespace.queues() == []


async def test_a_queue_that_is_not_there(client: Client) -> None:
    read, deleted = await client.get("/orders" + V), await client.delete("/orders" + V)
    # as Azure does; all SDKs take the feed for "not found"
    assert (read.status, deleted.status) == (200, 404)
    assert b"Publicly Listed Services" in read.body
    assert deleted.detail.startswith("No service is hosted at the specified address.")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@pytest.mark.parametrize(
    "path",
    ["orders/$DeadLetterQueue", "orders/$Transfer/$DeadLetterQueue", "orders/$management"],
)
async def test_a_subqueue_is_not_managed_on_its_own(client: Client, method: str, path: str) -> None:
    # R-DLQ-01
    await client.put("/orders" + V, entry())
    reply = await client.send(method, f"/{path}{V}", entry())
    assert reply.status == 400
    assert f"The specified HTTP verb ({method}) is not valid." in reply.detail
