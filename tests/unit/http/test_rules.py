"""Rules over HTTP: the form of what comes back, and the words of a refusal."""

from __future__ import annotations

import pytest

from postbus.errors import InvalidArgument
from postbus.http.atom import ATOM, SERVICE_BUS
from postbus.model.description import SubscriptionDescription, TopicDescription
from postbus.model.rule import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from postbus.model.values import TypedValue, ValueType
from tests.unit.http.fakes import Client, Reply, application, entry, token
from tests.unit.http.memory import T0, MemoryNamespace

V = "?api-version=2021-05"
KIND = "RuleDescription"
BASE = "/news/Subscriptions/all/Rules"
ONE = f"{BASE}/one{V}"
SCHEMA = "http://www.w3.org/2001/XMLSchema"

# What azure-servicebus 7.15, @azure/service-bus 7.9.5 and Azure.Messaging.ServiceBus send.
PYTHON_BODY = (
    "<?xml version='1.0' encoding='utf-8'?>\n"
    f'<ns0:entry xmlns:ns0="{ATOM}" xmlns="{SERVICE_BUS}" '
    'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><ns0:content type="application/xml">'
    '<RuleDescription><Filter xsi:type="SqlFilter"><SqlExpression>a = @a</SqlExpression>'
    "<CompatibilityLevel>20</CompatibilityLevel><Parameters><KeyValueOfstringanyType>"
    f'<Key>@a</Key><Value xmlns:d6p1="{SCHEMA}" xsi:type="d6p1:int">1</Value>'
    "</KeyValueOfstringanyType></Parameters><RequiresPreprocessing>true</RequiresPreprocessing>"
    '</Filter><Action xsi:type="EmptyRuleAction" /><Name>one</Name></RuleDescription>'
    "</ns0:content></ns0:entry>"
).encode()
JAVASCRIPT_BODY = (
    '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
    f'<entry xmlns="{ATOM}"><updated>2026-11-15T21:17:00.064Z</updated>'
    f'<content type="application/xml"><RuleDescription xmlns="{SERVICE_BUS}" '
    'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><Filter '
    'xmlns:p4="http://www.w3.org/2001/XMLSchema-instance" p4:type="SqlFilter">'
    "<SqlExpression>a = @a</SqlExpression><Parameters><KeyValueOfstringanyType><Key>@a</Key>"
    f'<Value p4:type="l28:int" xmlns:l28="{SCHEMA}">1</Value></KeyValueOfstringanyType>'
    '</Parameters></Filter><Action xmlns:p4="http://www.w3.org/2001/XMLSchema-instance" '
    'p4:type="EmptyRuleAction"></Action><Name>one</Name></RuleDescription></content></entry>'
).encode()


@pytest.fixture
async def namespace() -> MemoryNamespace:
    namespace = MemoryNamespace()
    await namespace.create_topic("news", TopicDescription())
    default = RuleDescription(created_at=T0)
    await namespace.subscriptions.create("news", "all", SubscriptionDescription(), default)
    return namespace


@pytest.fixture
def client(namespace: MemoryNamespace) -> Client:
    return Client(application(namespace))


def held(namespace: MemoryNamespace, name: str = "one") -> RuleDescription:
    rule = namespace.subscription("news", "all").rule(name)
    assert rule is not None
    return rule


def content(reply: Reply) -> str:
    """The inside of the description, as it is on the wire."""
    return reply.text.partition('XMLSchema-instance">')[2].partition("</RuleDescription>")[0]


def sql(kind: str, expression: str) -> str:
    return f'<{kind} i:type="{{}}"><SqlExpression>{expression}</SqlExpression></{kind}>'


@pytest.mark.parametrize("body", [PYTHON_BODY, JAVASCRIPT_BODY])
async def test_a_rule_is_created_as_each_sdk_asks(
    client: Client, namespace: MemoryNamespace, body: bytes
) -> None:
    reply = await client.put(ONE, body)
    assert reply.status == 201
    assert reply.headers["content-type"] == "application/atom+xml;type=entry;charset=utf-8"
    parameters = {"@a": TypedValue(ValueType.INT, "1")}
    expected = RuleDescription("one", SqlFilter("a = @a", parameters), None, T0)
    assert held(namespace) == expected


async def test_a_rule_takes_everything_and_changes_nothing_by_default(
    client: Client, namespace: MemoryNamespace
) -> None:
    # semantics A §4
    for name, body in {
        "one": "",
        "two": '<Filter i:nil="true"/><Action i:nil="true"/>',
        "three": "<CreatedAt>2001-01-01T00:00:00Z</CreatedAt><Name>THREE</Name>",
    }.items():
        assert (await client.put(f"{BASE}/{name}{V}", entry(body, KIND))).status == 201
        assert held(namespace, name) == RuleDescription(name, TrueFilter(), None, T0)


async def test_the_form_of_a_rule(client: Client) -> None:
    tail = "<CreatedAt>2023-11-14T22:13:20.123Z</CreatedAt><Name>one</Name>"
    nothing = '<Action i:type="EmptyRuleAction"></Action>'
    true = "<SqlExpression>1=1</SqlExpression><CompatibilityLevel>20</CompatibilityLevel>"
    stored = await client.put(ONE, entry(kind=KIND))
    # semantics A §4: an empty list is in what is read, not in what was just stored
    assert content(stored) == f'<Filter i:type="TrueFilter">{true}</Filter>{nothing}{tail}'
    read = await client.get(ONE)
    assert content(read) == (
        f'<Filter i:type="TrueFilter">{true}<Parameters></Parameters></Filter>{nothing}{tail}'
    )
    assert read.xml.findtext(f"{{{ATOM}}}id") == f"http://localhost:5300{ONE}"
    assert read.xml.findtext(f"{{{ATOM}}}title") == "one"


async def test_the_form_of_filters_and_actions(client: Client, namespace: MemoryNamespace) -> None:
    values = {
        "s": TypedValue(ValueType.STRING, "<&>"),
        "d": TypedValue(ValueType.DURATION, "P1DT2H"),
    }
    await namespace.subscriptions.create_rule(
        "news",
        "all",
        RuleDescription(
            "c",
            CorrelationFilter("1", "2", "3", "4", "5", "6", "7", "8", values),
            SqlAction("SET a = @t", {"@t": TypedValue(ValueType.DATE_TIME, "2020-07-05T11:12:13")}),
        ),
    )
    pair = "<KeyValueOfstringanyType><Key>{}</Key>{}</KeyValueOfstringanyType>"
    value = '<Value xmlns:d6p1="{}" i:type="d6p1:{}">{}</Value>'
    dotnet = "http://schemas.microsoft.com/2003/10/Serialization/"
    assert content(await client.get(f"{BASE}/c{V}")).startswith(
        '<Filter i:type="CorrelationFilter"><CorrelationId>1</CorrelationId>'
        "<MessageId>2</MessageId><To>3</To><ReplyTo>4</ReplyTo><Label>5</Label>"
        "<SessionId>6</SessionId><ReplyToSessionId>7</ReplyToSessionId>"
        "<ContentType>8</ContentType><Properties>"
        + pair.format("s", value.format(SCHEMA, "string", "&lt;&amp;&gt;"))
        + pair.format("d", value.format(dotnet, "duration", "P1DT2H"))
        + '</Properties></Filter><Action i:type="SqlRuleAction">'
        "<SqlExpression>SET a = @t</SqlExpression><CompatibilityLevel>20</CompatibilityLevel>"
        "<Parameters>"
        + pair.format("@t", value.format(SCHEMA, "dateTime", "2020-07-05T11:12:13"))
        + "</Parameters></Action>"
    )
    await namespace.subscriptions.create_rule("news", "all", RuleDescription("n", FalseFilter()))
    never = await client.get(f"{BASE}/n{V}")
    assert content(never).startswith('<Filter i:type="FalseFilter"><SqlExpression>1=0<')


async def test_an_update_keeps_name_and_age(client: Client, namespace: MemoryNamespace) -> None:
    created = await client.put(f"{BASE}/One{V}", entry(kind=KIND))
    namespace.now += 1_000
    body = entry(sql("Filter", "a=1").format("SqlFilter"), KIND)
    etag = {"If-Match": created.headers["etag"]}
    reply = await client.put(ONE, body, headers=etag)
    assert reply.status == 200
    assert reply.xml.find(f"{{{ATOM}}}published") is None
    assert held(namespace) == RuleDescription("One", SqlFilter("a=1"), None, T0)
    # the version of a rule is what it says
    assert (await client.put(ONE, body, headers=etag)).status == 412
    assert (await client.get(ONE)).headers["etag"] == reply.headers["etag"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "text"),
    [
        ("PUT", f"{BASE}/$default", {}, 409,
         "The messaging entity 'test-namespace:Topic:news|all|$default' already exists."),
        ("PUT", f"{BASE}/absent", {"If-Match": "*"}, 404,
         "Entity 'test-namespace:Topic:news|all|absent' was not found."),
        ("PUT", "/news/Subscriptions/absent/Rules/one", {}, 404,
         "Entity 'test-namespace:Topic:news|absent' was not found."),
        ("PUT", "/absent/Subscriptions/all/Rules/one", {"If-Match": "*"}, 404,
         "Entity 'test-namespace:Topic:absent|all' was not found."),
        ("GET", f"{BASE}/absent", {}, 404,
         "The messaging entity 'test-namespace:Topic:news|all|absent' could not be found."),
        ("GET", "/absent/Subscriptions/all/Rules/one", {}, 404,
         "The messaging entity 'test-namespace:Topic:absent|all|one' could not be found."),
        ("DELETE", f"{BASE}/absent", {}, 404,
         "The messaging entity 'test-namespace:Topic:news|all|absent' could not be found."),
        ("DELETE", "/news/Subscriptions/absent/Rules/one", {}, 404,
         "No service is hosted at the specified address."),
    ],
)  # fmt: skip
async def test_what_is_there_or_not_is_told_in_azures_words(
    client: Client, method: str, path: str, headers: dict[str, str], status: int, text: str
) -> None:
    # semantics A §5.3
    reply = await client.send(method, path + V, entry(kind=KIND), headers)
    assert reply.status == status
    assert reply.detail.startswith(f"{text} TrackingId:")


VALUE = "<KeyValueOfstringanyType>{}</KeyValueOfstringanyType>"


def correlation(inside: str) -> str:
    return f'<Filter i:type="CorrelationFilter">{inside}</Filter>'


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        ("<Colour/>", "The element 'Colour' is not part of a RuleDescription."),
        ("<Filter/>", "The type of a 'Filter' must be SqlFilter, CorrelationFilter, TrueFilter or"),
        ('<Filter i:type="x:DateFilter"/>', "FalseFilter, not 'DateFilter'."),
        ("<Action/>", "The type of an 'Action' must be SqlRuleAction or EmptyRuleAction, not ''."),
        ('<Filter i:type="SqlFilter"/>', "A SqlFilter must have an 'SqlExpression'."),
        (sql("Filter", " ").format("SqlFilter"), "The SQL expression of the filter is empty."),
        (sql("Filter", "x" * 1_025).format("SqlFilter"), "1024 are allowed."),
        (sql("Filter", "<x/>").format("SqlFilter"), "The element 'SqlExpression' must hold text."),
        (sql("Action", "x").format("EmptyRuleAction"), "'SqlExpression' is not part of a Empty"),
        (
            '<Filter i:type="TrueFilter"><Label>a</Label></Filter>',
            "The element 'Label' is not part of a TrueFilter.",
        ),
        (correlation(""), "A correlation filter must have at least one property"),
        (correlation("<Label>a</Label><Label>b</Label>"), "The element 'Label' is there twice"),
        (correlation("<SqlExpression>a</SqlExpression>"), "'SqlExpression' is not part of a Corr"),
        (correlation("<Properties><a/></Properties>"), "'KeyValueOfstringanyType', not 'a'."),
        (
            correlation(f"<Properties>{VALUE.format('<Key>a</Key>')}</Properties>"),
            "must have a 'Key' and a 'Value'",
        ),
        (
            correlation(f"<Properties>{VALUE.format('<Key>a</Key><Value/>') * 2}</Properties>"),
            "The key 'a' is there twice.",
        ),
        (
            correlation(
                "<Properties>"
                + VALUE.format('<Key>a</Key><Value i:type="x:date">2020-01-01</Value>')
                + "</Properties>"
            ),
            "The type 'date' is none that a value of a rule can have",
        ),
        (
            correlation(
                "<Properties>"
                + VALUE.format('<Key>a</Key><Value i:type="x:int">many</Value>')
                + "</Properties>"
            ),
            "The value 'many' is not of the type 'int'.",
        ),
        ("<Name>two</Name>", "called 'one' in the path and 'two' in the description."),
    ],
)
async def test_a_rule_that_is_wrong_is_refused_with_the_reason(
    client: Client, namespace: MemoryNamespace, inside: str, text: str
) -> None:
    reply = await client.put(ONE, entry(inside, KIND))
    assert reply.status == 400
    assert text in reply.detail
    # semantics A §5.3
    assert "SubCode" not in reply.detail
    assert len(namespace.subscription("news", "all").rules()) == 1


async def test_a_value_without_a_type_is_text(client: Client, namespace: MemoryNamespace) -> None:
    pair = VALUE.format("<Key>a</Key><Value>1</Value>")
    await client.put(ONE, entry(correlation(f"<Properties>{pair}</Properties>"), KIND))
    value = TypedValue(ValueType.STRING, "1")
    assert held(namespace).filter == CorrelationFilter(properties={"a": value})


@pytest.mark.parametrize("name", ["x" * 51, "%20", "%00"])
async def test_a_name_no_rule_can_have_is_refused(client: Client, name: str) -> None:
    reply = await client.put(f"{BASE}/{name}{V}", entry(kind=KIND))
    assert reply.status == 400
    assert "name" in reply.detail


async def test_names_with_signs_in_them(client: Client, namespace: MemoryNamespace) -> None:
    path = f"{BASE}/a%3Fb%20%2B%25%C3%A4"
    reply = await client.put(path + V, entry(kind=KIND))
    assert reply.status == 201
    assert reply.xml.findtext(f"{{{ATOM}}}id") == f"http://localhost:5300{path}{V}"
    assert held(namespace, "a?b +%ä").name == "a?b +%ä"
    # a token for another rule, whose name this one's begins with
    other = Client(application(namespace), token(f"https://localhost{BASE}/a"))
    assert (await other.delete(path + V)).status == 401
    own = Client(application(namespace), token(f"https://localhost{path}{V}"))
    assert (await own.delete(path + V)).status == 200


@pytest.mark.parametrize("name", ["$feed", "$usage", "$resubmit", "$discard", "%24feed"])
async def test_a_rule_may_be_called_what_other_paths_end_with(client: Client, name: str) -> None:
    path = f"{BASE}/{name}{V}"
    assert (await client.put(path, entry(kind=KIND))).status == 201
    assert (await client.get(path)).status == 200
    assert (await client.delete(path)).status == 200


async def test_a_rule_is_described_by_nothing_else(client: Client) -> None:
    reply = await client.put(ONE, entry())
    assert reply.status == 400
    text = "The content must be a 'RuleDescription', not 'QueueDescription'."
    assert reply.detail.startswith(text)


async def test_what_the_namespace_cannot_compile_is_refused(
    client: Client, namespace: MemoryNamespace
) -> None:
    namespace.failure = InvalidArgument("There was an error parsing the SQL expression.")
    reply = await client.put(ONE, entry(sql("Filter", "a =").format("SqlFilter"), KIND))
    assert reply.status == 400
    assert reply.detail.startswith("There was an error parsing the SQL expression.")


async def test_every_rule_can_be_deleted(client: Client, namespace: MemoryNamespace) -> None:
    reply = await client.delete(f"{BASE}/%24DEFAULT{V}")
    assert (reply.status, reply.body) == (200, b"")
    assert namespace.subscription("news", "all").rules() == []
