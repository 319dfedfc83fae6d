"""What is fuzzed, and what each may refuse by."""

from __future__ import annotations

from postbus.amqp.faults import DecodeError, ProtocolError
from postbus.errors import ServiceBusError, Unauthorized
from postbus.model.fields import QUEUE, SUBSCRIPTION, TOPIC
from postbus.model.values import ValueType
from tests.fuzz.driver import Target
from tests.fuzz.management import LOCKED, run_management
from tests.fuzz.mutation import after, mutate_frames, mutate_values
from tests.fuzz.pipeline import WORDS as PIPELINE_WORDS
from tests.fuzz.pipeline import run_discard, run_feed, run_resubmission
from tests.fuzz.rest import WORDS as REST_WORDS
from tests.fuzz.rest import run_batch, run_delivery, run_headers
from tests.fuzz.rules import WORDS, mutate_tokens, run_rules
from tests.fuzz.texts import CONFIG_REFUSALS, run_atom, run_config, run_rule, run_token
from tests.fuzz.wire import run_frames, run_performative, run_sections, run_stream

_ELEMENTS = sorted(
    {field.element.encode() for form in (QUEUE, TOPIC, SUBSCRIPTION) for field in form.order}
)
_DURATIONS = [b"PT1M", b"P10675199DT2H48M5.4775807S", b"-P1D", b"00:01:00", b"P999999999999D"]

_RULE_WORDS = [
    *(b"Rules", b"FilterType", b"Sql", b"Correlation", b"SqlFilter", b"SqlExpression", b"Action"),
    *(b"subscriptions", b"rules", b"filter", b"properties", b"parameters", b"$Default", b"\\u0000"),
    *(b"1e400", b"nan", b"true", b"9223372036854775808", b'{ type = "double", text = "1" }'),
]

_MARKUP = [b"<", b"/>", b"<!DOCTYPE a>", b"&#x0;", b"&#xD800;", b"&lt;"]

_ALL = (
    Target("stream", run_stream, words=(b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00")),
    Target("frames", run_frames, mutators=(mutate_frames,)),
    Target("performatives", run_performative, (ProtocolError,), mutators=(mutate_values,)),
    Target("sections", run_sections, (DecodeError, ServiceBusError), mutators=(mutate_values,)),
    Target(
        "management",
        run_management,
        (DecodeError,),
        words=(LOCKED.bytes, b"lock-tokens", b"sequence-numbers", b"message-count"),
        mutators=(after(1, mutate_values),),
    ),
    Target("rules", run_rules, (ServiceBusError,), words=WORDS, mutators=(mutate_tokens,)),
    Target(
        "tokens",
        run_token,
        (Unauthorized,),
        words=(
            *(b"SharedAccessSignature ", b"&sr=", b"&sig=", b"&se=", b"&skn=", b"%", b"%25", b"+"),
            *(b"Bearer ", b"eyJ", b".", b"e30", b"bnVsbA", b"W10"),
        ),
    ),
    Target(
        "config",
        run_config,
        CONFIG_REFUSALS,
        words=[
            *(*_ELEMENTS, *_DURATIONS, *_RULE_WORDS),
            *(b'"', b"{", b"[", b"]", b"}", b"=", b"\n", b"1" * 5_000),
        ],
    ),
    Target(
        "atom",
        run_atom,
        (ServiceBusError,),
        words=[*_ELEMENTS, *_DURATIONS, *_MARKUP],
    ),
    Target(
        "rule-xml",
        run_rule,
        (ServiceBusError,),
        words=[
            *(b'i:type="d6p1:' + kind.value.encode() + b'"' for kind in ValueType),
            *(b"SqlFilter", b"CorrelationFilter", b"TrueFilter", b"EmptyRuleAction"),
            *(b"2020-07-05T11:12:13", b"INF", b"-1", b"9" * 19, b"1" * 1_025),
            *_MARKUP,
        ],
    ),
    Target("rest-headers", run_headers, (ServiceBusError,), words=REST_WORDS),
    Target("rest-batches", run_batch, (ServiceBusError,), words=REST_WORDS),
    Target(
        "rest-deliveries",
        run_delivery,
        (DecodeError, ServiceBusError),
        mutators=(mutate_values,),
    ),
    Target("resubmissions", run_resubmission, (ServiceBusError,), words=PIPELINE_WORDS),
    Target("discards", run_discard, (ServiceBusError,), words=PIPELINE_WORDS),
    Target("feed", run_feed, (DecodeError, ServiceBusError), mutators=(mutate_values,)),
)
TARGETS = {target.name: target for target in _ALL}
