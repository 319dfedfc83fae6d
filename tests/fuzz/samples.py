"""The corpus to start from: valid inputs, and some that just are not.

`python -m tests.fuzz.samples` writes the files anew; findings beside them are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from postbus.amqp.codec.types import AmqpArray, Int, Symbol, Timestamp, UInt, ULong
from postbus.amqp.frames.framing import SASL_HEADER, encode_frame
from postbus.amqp.frames.performatives import (
    ACCEPTED,
    Attach,
    Begin,
    Close,
    Composite,
    Coordinator,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Received,
    Rejected,
    Released,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from postbus.amqp.sections import (
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_data,
    encode_delivery_annotations,
    encode_header,
    encode_message_annotations,
    encode_properties,
    encode_sequence,
)
from postbus.auth.sas import create_sas
from postbus.http.rule_xml import rule_xml
from postbus.model.authorization import AuthorizationRule, Right
from postbus.model.description import QueueDescription
from postbus.model.fields import QUEUE
from postbus.model.rule import CorrelationFilter, FalseFilter, RuleDescription, SqlAction, SqlFilter
from postbus.model.times import NEVER
from postbus.model.values import TypedValue, ValueType
from tests.fuzz import pipeline, rest
from tests.fuzz.driver import CORPUS
from tests.fuzz.management import LOCKED
from tests.fuzz.texts import ENTITY_KEY, FORMS, KEY, KEY_NAME, NOW, description_entry, entry_of
from tests.property.amqp.test_machines_chunking import STORY

_SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
_MESSAGE = encode_properties(Properties(message_id="m-1")) + encode_data(b"body")
_NAMESPACE = "sb://localhost/"
_JWT = (
    b"eyJ0eXAiOiJKV1QiLCJhbGciOiJFUzI1NiIsImtpZCI6ImZ1enoifQ.eyJpc3MiOiJpIiwiYXVkIjoiYSIsImV4cCI6N"
    b"DEwMjQ0NDgwMCwibmJmIjoxLCJyb2xlcyI6WyJTZW5kIl19.oMDFm9IfRJslyI7sSpeKyIdaocpSTBzG1EWlyW0TCiBP"
    b"WUaH6g12-JKtazhjR0_cgcqPlyvYfTbX0OVupMeHHA"
)
_RULE_KEY = "A" * 43 + "="

PERFORMATIVES: dict[str, Composite] = {
    "open": Open("client", "localhost", 65_536, 255, 60_000, properties={Symbol("product"): "x"}),
    "begin": Begin(None, 0, 100, 100, 7),
    "attach-in": Attach("in2", 2, False, source=Source("me"), target=Target("orders")),
    "attach-out": Attach("out2", 3, True, source=Source("orders"), target=Target("me")),
    "attach-coordinator": Attach("t", 4, False, source=Source(), target=Coordinator()),
    "flow": Flow(0, 10, 0, 10, 1, 0, 5, drain=True, echo=True),
    "flow-session": Flow(0, 10, 0, 10),
    "transfer": Transfer(0, 0, b"tag", settled=False),
    "transfer-more": Transfer(0, 1, b"tag2", more=True),
    "transfer-rest": Transfer(0),
    "transfer-aborted": Transfer(0, 2, b"t", aborted=True),
    "disposition": Disposition(True, 0, 3, True, ACCEPTED),
    "disposition-rejected": Disposition(
        True, 0, None, False, Rejected(Error("com.microsoft:dead-letter", "no", {"a": 1}))
    ),
    "disposition-modified": Disposition(True, 0, None, False, Modified(True, True, {"a": "b"})),
    "disposition-released": Disposition(True, 0, None, True, Released()),
    "disposition-received": Disposition(True, 0, None, False, Received(0, 5)),
    "disposition-transaction": Disposition(True, 0, 0, True, TransactionalState(b"t", ACCEPTED)),
    "detach": Detach(0, True, Error("amqp:not-found", "gone")),
    "end": End(),
    "close": Close(Error("amqp:connection:forced", "bye")),
    "sasl-init": SaslInit(Symbol("PLAIN"), b"\x00user\x00password", "localhost"),
    "sasl-mechanisms": SaslMechanisms([Symbol("PLAIN"), Symbol("MSSBCBS")]),
    "sasl-outcome": SaslOutcome(0),
}


def performatives() -> Iterator[tuple[str, bytes]]:
    for name, body in PERFORMATIVES.items():
        yield name, encode_frame(0, body, b"payload" if name.startswith("transfer") else b"")[8:]


def streams() -> Iterator[tuple[str, bytes]]:
    story = b"".join(STORY)
    yield "story", b"\x7e" + story
    yield "story-in-small-pieces", b"\x04" + story[:600]
    yield "two-headers", b"\x7f" + SASL_HEADER
    yield "http", b"\x7eGET / HTTP/1.1\r\n\r\n"
    for turn in (1, 2, 3):
        yield f"story-{turn}", b"\x3e" + b"".join(STORY[:turn])


def frames() -> Iterator[tuple[str, bytes]]:
    """A choice of the owner and a length before each body, as `run_frames` reads them."""
    scripts = {
        "send": ["transfer", "transfer-more", "transfer-rest", "transfer", "detach"],
        "receive": ["flow", "disposition", "flow", "disposition-rejected", "flow-session"],
        "links": ["attach-in", "attach-out", "attach-coordinator", "detach", "attach-in", "end"],
        "aborted": ["transfer-more", "transfer-aborted", "transfer", "close"],
        "outcomes": ["flow", "disposition-modified", "disposition-released", "disposition"],
        "transaction": ["attach-coordinator", "transfer", "disposition-transaction"],
        "twice": ["open", "begin", "begin", "end", "end"],
    }
    for name, script in scripts.items():
        for choice in (0, 12):
            data = b""
            for each in script:
                body = encode_frame(0, PERFORMATIVES[each])[8:]
                padded = body + b"\x00" * (len(body) % 2 if "transfer" in each else 0)
                data += bytes((choice, (len(padded) + 1) // 2)) + padded.ljust(
                    2 * ((len(padded) + 1) // 2), b"\x40"
                )
            yield f"{name}-{choice}", data


def sections() -> Iterator[tuple[str, bytes]]:
    properties = Properties(
        message_id="m-1",
        user_id=b"me",
        to="orders",
        subject="label",
        reply_to="answers",
        correlation_id=ULong(7),
        content_type=Symbol("text/plain"),
        absolute_expiry_time=NOW,
        creation_time=NOW,
        group_id="s-1",
        group_sequence=3,
    )
    annotations = {_SCHEDULED: Timestamp(NOW), Symbol("x-opt-partition-key"): "s-1"}
    values = {"text": "é", "number": 1, "uuid": UUID(int=5), "when": Timestamp(NOW), "none": None}
    whole = (
        encode_header(True, 7, 60_000, False, 2)
        + encode_delivery_annotations({Symbol("x-opt-lock-token"): UUID(int=9)})
        + encode_message_annotations(annotations)
        + encode_properties(properties)
        + encode_application_properties(values)
    )
    yield "whole", whole + encode_data(b"body")
    yield "value", whole + encode_amqp_value({"a": [1, {"b": 2.5}]})
    yield "sequence", whole + encode_sequence([1, "two"]) + encode_sequence([])
    yield "footer", whole + encode_data(b"1") + b"\x00\x53\x78" + encode_amqp_value({"f": 1})[3:]
    yield "body-only", encode_data(b"body")
    yield "no-body", whole
    yield "plain", _MESSAGE
    yield "id-uuid", encode_properties(Properties(message_id=UUID(int=3))) + encode_data(b"")
    yield "id-binary", encode_properties(Properties(message_id=b"\xff\x00")) + encode_data(b"")
    yield "ttl", encode_header(ttl=0xFFFFFFFF) + _MESSAGE
    yield "scheduled-long", encode_message_annotations({_SCHEDULED: NOW}) + _MESSAGE
    yield "order", encode_data(b"x") + encode_delivery_annotations({Symbol("a"): 1})
    yield "batch", encode_data(_MESSAGE) + encode_data(whole + encode_data(b"2"))
    yield "long-descriptor", b"\x00\x80" + (0x75).to_bytes(8, "big") + b"\xa0\x01x"
    yield "empty", b""


def management() -> Iterator[tuple[str, bytes]]:
    tokens = AmqpArray(0x98, [LOCKED])
    numbers = AmqpArray(0x81, [1, 2, 4])
    entry = {
        "message-id": "m-9",
        "message": encode_message_annotations({_SCHEDULED: Timestamp(NOW)}),
    }
    entry["message"] += _MESSAGE
    requests: dict[str, tuple[str, Any]] = {
        "renew": ("renew-lock", {"lock-tokens": tokens}),
        "peek": ("peek-message", {"from-sequence-number": 0, "message-count": Int(10)}),
        "schedule": ("schedule-message", {"messages": [entry]}),
        "cancel": ("cancel-scheduled-message", {"sequence-numbers": AmqpArray(0x81, [4])}),
        "deferred": (
            "receive-by-sequence-number",
            {"sequence-numbers": AmqpArray(0x81, [1]), "receiver-settle-mode": UInt(1)},
        ),
        "deferred-delete": (
            "receive-by-sequence-number",
            {"sequence-numbers": numbers, "receiver-settle-mode": UInt(0)},
        ),
        "delete": ("batch-delete-messages", {"message-count": Int(3), "enqueued-time-utc": NOW}),
        "renew-session": ("renew-session-lock", {"session-id": "s"}),
        "set-state": ("set-session-state", {"session-id": "s", "session-state": b"new"}),
        "clear-state": ("set-session-state", {"session-id": "s", "session-state": None}),
        "get-state": ("get-session-state", {"session-id": "s"}),
        "sessions": (
            "get-message-sessions",
            {"last-updated-time": Timestamp(NEVER), "skip": Int(0), "top": Int(10)},
        ),
        "sessions-since": (
            "get-message-sessions",
            {"last-updated-time": Timestamp(NOW), "skip": Int(1), "top": Int(1)},
        ),
        "unknown": ("make-tea", None),
    }
    for status in ("completed", "abandoned", "suspended", "defered"):
        body = {
            "disposition-status": status,
            "lock-tokens": tokens,
            "deadletter-reason": "why",
            "deadletter-description": "because",
            "properties-to-modify": {Symbol("a"): 1},
        }
        requests[f"disposition-{status}"] = "update-disposition", body
    for name, (operation, body) in requests.items():
        yield name, b"\x00" + _request(operation, body)
        within = {**body, "session-id": "s"} if isinstance(body, dict) else body
        yield f"{name}-in-session", b"\x03" + _request(operation, within)
    yield "peek-dead-letters", b"\x01" + _request(*requests["peek"])


def _request(operation: str, body: Any) -> bytes:
    properties = {"operation": f"com.microsoft:{operation}", "com.microsoft:server-timeout": 60_000}
    return (
        encode_properties(Properties(message_id=ULong(1), reply_to="me"))
        + encode_application_properties(properties)
        + encode_amqp_value(body)
    )


def tokens() -> Iterator[tuple[str, bytes]]:
    later = NOW + 3_600_000
    good = create_sas(KEY_NAME, KEY, _NAMESPACE + "orders", later)
    yield "good", good.encode()
    yield "namespace", create_sas(KEY_NAME, KEY, _NAMESPACE, later).encode()
    yield "expired", create_sas(KEY_NAME, KEY, _NAMESPACE, NOW - 1_000).encode()
    yield "other-key", create_sas(KEY_NAME, "other", _NAMESPACE, later).encode()
    yield "other-name", create_sas("é +", KEY, _NAMESPACE, later).encode()
    yield "lower-hex", good.replace("%3A", "%3a").replace("%2F", "%2f").encode()
    yield "twice", (good + "&se=1").encode()
    for name, uri in {"root": "", "queue": "orders", "messages": "orders/messages"}.items():
        yield f"entity-{name}", create_sas("own", ENTITY_KEY, _NAMESPACE + uri, later).encode()
    yield "jwt", b"eyJhbGciOiJub25lIn0.e30."
    yield "jwt-good", _JWT
    yield "jwt-bearer", b"Bearer " + _JWT
    yield "jwt-other-key", _JWT.replace(b"ImZ1enoi", b"ImZ1engi")
    yield "plain", b"\x00" + KEY_NAME.encode() + b"\x00" + KEY.encode()
    yield "audience", b"amqps://localhost:5671/orders/$DeadLetterQueue"


_TOPICS = {
    "Name": "sbemulatorns",
    "Queues": [{"Name": "q"}],
    "Topics": [
        {
            "Name": "a",
            "Properties": {"DefaultMessageTimeToLive": "PT1H"},
            "Subscriptions": [
                {"Name": "s", "Properties": {"ForwardTo": "q"}, "Rules": []},
                {
                    "Name": "t",
                    "Rules": [
                        {
                            "Name": "sql",
                            "Properties": {
                                "FilterType": "Sql",
                                "SqlFilter": {"SqlExpression": "1=1"},
                                "Action": {"SqlExpression": "SET b = 2"},
                            },
                        },
                        {
                            "Name": "correlation",
                            "Properties": {
                                "FilterType": "Correlation",
                                "CorrelationFilter": {
                                    "Label": "x",
                                    "Properties": {"p": 1, "q": 0.5},
                                },
                            },
                        },
                    ],
                },
            ],
        }
    ],
}


def rules() -> Iterator[tuple[str, bytes]]:
    for number, text in enumerate(
        (
            "1=1",
            "color = 'red' AND (a > 10 OR NOT a IN (1, NULL)) OR sys.Label LIKE '%b!%' ESCAPE '!'",
            "EXISTS(a) AND b IS NOT NULL AND user.c NOT LIKE 'x_' + d",
            '[with ]] bracket] <> "with "" quote" OR property(\'a\' + b) = newid()',
            "b - @p <= @q AND -a * 2 % 3 / (1 - a) >= 0.5E-2 AND c = TRUE AND d != @n",
            "-9223372036854775808 = a OR 9223372036854775807 + a = 0",
            "sys.TimeToLive > @q AND sys.SequenceNumber % 2 = 0",
            "SET a = 1; SET b = b + b, REMOVE c SET sys.Label = 'x' + newid();",
            "SET sys.TimeToLive = '00:01:00' SET sys.SessionId = b SET sys.PartitionKey = b",
            "SET f = f + f SET f = f + f SET f = f + f",
            "-" * 90 + "a = 1",
            "(" * 200 + "a = 1" + ")" * 200,
            "NOT " * 200 + "a = 1",
            "f LIKE '" + "%a" * 400 + "b'",
            "a = 1\n AND\t#",
        )
    ):
        yield f"sql-{number:02}", text.encode()


def configs() -> Iterator[tuple[str, bytes]]:
    durations = {"LockDuration": "PT1M", "DefaultMessageTimeToLive": "01:00:00"}
    queue = {"Name": "orders", "Properties": {**durations, "MaxDeliveryCount": 3}}
    for name, queues in {"two": [queue, {"Name": "b"}], "none": [], "same": [queue, queue]}.items():
        namespace = {"Name": "sbemulatorns", "Queues": queues, "Topics": []}
        user = {"Namespaces": [namespace], "Logging": {"Type": "File"}}
        yield f"json-{name}", json.dumps({"UserConfig": user}, indent=1).encode()
    yield "json-topics", json.dumps({"UserConfig": {"Namespaces": [_TOPICS]}}, indent=1).encode()
    yield "json-empty", b"{}"
    yield "json-deep", b'{"a":' * 3_000
    yield (
        "toml",
        (
            b'[namespace]\nname = "ns"\n[settings]\nport = 6000\nlog_level = "info"\n'
            b'[queues."orders"]\nlock_duration = "PT30S"\nmax_delivery_count = 5\n'
            b'default_message_time_to_live = "P1D"\nstatus = "Active"\n[queues.b]\n'
        ),
    )
    rule = f'key_name = "s"\nrights = ["Send"]\nprimary_key = "{_RULE_KEY}"\n'
    yield "toml-namespace-rules", f"[[namespace.authorization_rules]]\n{rule}".encode()
    yield "toml-queue-rules", f"[[queues.a.authorization_rules]]\n{rule}".encode()
    yield "toml-settings", b'[settings]\nretention_hours = 1\nephemeral = true\nhost = "::1"\n'
    yield "toml-wrong-setting", b'[settings]\nprot = 1\nport = "x"\n'
    yield "toml-topics", b"[topics.a]\n"
    yield (
        "toml-rules",
        (
            b'[topics."a"]\ndefault_message_time_to_live = "PT1H"\n'
            b'[topics."a".subscriptions."s"]\nforward_to = "a"\n'
            b'[topics."a".subscriptions."s".rules."$Default"]\n'
            b'filter = { sql = "b > @c", parameters = { "@c" = 1.5 } }\naction = "SET d = 1"\n'
            b'[topics."a".subscriptions."s".rules."r"]\n'
            b'filter = { label = "x", properties = { p = { type = "long", text = "7" } } }\n'
            b'[topics."a".subscriptions."t".rules]\nno = { filter = false }\n'
        ),
    )
    yield (
        "toml-keys",
        b'[[queues.a.authorization_rules]]\nkey_name = "k"\nrights = ["Send", "Listen"]\n'
        b'primary_key = "' + b"A" * 43 + b'="\n',
    )
    yield "toml-date", b"[queues.a]\nlock_duration = 1979-05-27T07:32:00Z\n"
    yield "toml-huge-number", b"a = " + b"1" * 5_000
    yield "toml-deep", b"a = " + b"[" * 3_000
    yield "not-text", b"\xff\xfe\x00"


def atoms() -> Iterator[tuple[str, bytes]]:
    for name, (form, description) in FORMS.items():
        yield name, description_entry(form, description)
    keyed = QueueDescription(
        authorization_rules=(
            AuthorizationRule("own", tuple(Right), _RULE_KEY, _RULE_KEY),
            AuthorizationRule("send", (Right.SEND,)),
        )
    )
    yield "keyed", description_entry(QUEUE, keyed)
    changed = QueueDescription(
        lock_duration_ms=60_000,
        default_ttl_ms=1_000,
        auto_delete_ms=600_000,
        forward_to="eu/orders",
        user_metadata="<&> é",
        max_delivery_count=3,
    )
    entry = description_entry(QUEUE, changed).decode()
    yield "changed", entry.encode()
    yield "prefixed", entry.replace("<LockDuration", "<LockDuration a='b'").encode()
    start = entry.index("<QueueDescription")
    yield "no-entry", entry[start : entry.index("</content>")].encode()
    yield "other-kind", entry.replace("QueueDescription", "TopicDescription").encode()
    yield "session", entry.replace("Session>false", "Session>true").encode()
    yield "nil", entry.replace("<Status>", '<Status i:nil="true">').encode()
    yield "entity", b'<!DOCTYPE a [<!ENTITY b "c">]><entry>&b;</entry>'
    yield "latin", b'<?xml version="1.0" encoding="utf-16"?><entry/>'


def rule_documents() -> Iterator[tuple[str, bytes]]:
    texts = {
        ValueType.STRING: "<&> é",
        ValueType.INT: "-2",
        ValueType.LONG: "2147483650",
        ValueType.BOOLEAN: "true",
        ValueType.DOUBLE: "2.5E3",
        ValueType.DATE_TIME: "2020-07-05T11:12:13",
        ValueType.DURATION: "P1DT2H3M",
    }
    values = {f"@{kind.value}": TypedValue(kind, text) for kind, text in texts.items()}
    for name, rule in {
        "default": RuleDescription(created_at=NOW),
        "false": RuleDescription("none", FalseFilter(), SqlAction("SET a = 1; REMOVE b"), NOW),
        "sql": RuleDescription("sql", SqlFilter("a = @int AND b LIKE 'c%'", values), None, NOW),
        "correlation": RuleDescription("c", CorrelationFilter("1", label="x"), None, NOW),
        "properties": RuleDescription(
            "p", CorrelationFilter(properties=values), SqlAction("SET a = @long", values), NOW
        ),
    }.items():
        entry = entry_of(rule_xml(rule, stored=False))
        yield name, entry
        yield f"{name}-unnamed", entry.replace(f"<Name>{rule.name}</Name>".encode(), b"")
    yield "untyped", entry.replace(b' i:type="CorrelationFilter"', b"")
    yield "nil", entry.replace(b'i:type="CorrelationFilter"', b'i:nil="true"')


SAMPLES = {
    "stream": streams,
    "frames": frames,
    "performatives": performatives,
    "sections": sections,
    "management": management,
    "rules": rules,
    "tokens": tokens,
    "config": configs,
    "atom": atoms,
    "rule-xml": rule_documents,
    "rest-headers": rest.headers,
    "rest-batches": rest.batches,
    "rest-deliveries": sections,
    "resubmissions": pipeline.resubmissions,
    "discards": pipeline.discards,
    "feed": sections,
}

if __name__ == "__main__":
    for target, samples in SAMPLES.items():
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        for name, data in samples():
            (CORPUS / target / name).write_bytes(data)
