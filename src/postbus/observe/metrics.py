"""The metrics of `/metrics`: every family declared once, filled from the meters by a scrape.

docs/metrics.md is written from these declarations, and tests/tidy compares the two.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from postbus.model.description import QueueCounts
from postbus.observe.meters import ConnectionMeter, EntityMeter, HistogramMeter, StoreMeter
from postbus.observe.turns import TurnMeter


class Family(NamedTuple):
    """One metric: its name, the labels of its series and what it counts."""

    name: str
    labels: tuple[str, ...]
    text: str
    source: str = ""
    """The field of the meter that it shows, where it shows only that field."""


class EntityReading(NamedTuple):
    """One entity at the moment of a scrape."""

    entity: str
    meter: EntityMeter
    counts: QueueCounts | None
    """None for a moment after the start, and while its engine cannot be loaded."""
    senders: int
    receivers: int
    prefetch_lock_ratio: float
    sessions_held: int | None = None
    """None for an entity without sessions."""
    feed_lags: Mapping[str, int] = {}
    """By name of the feed's reader."""


_ENTITY = ("entity",)

ENTITY_COUNTERS: Final = (
    Family("postbus_sends_total", _ENTITY, "Messages accepted, scheduled ones too", "sends"),
    Family(
        "postbus_receives_total",
        _ENTITY,
        "Messages handed to receivers, in either mode, deferred ones too",
        "receives",
    ),
    Family(
        "postbus_empty_receives_total",
        _ENTITY,
        "Receives whose wait ended without a message",
        "empty_receives",
    ),
    Family(
        "postbus_pings_total",
        _ENTITY,
        "Pings accepted: messages that only ask whether the entity takes any, and that nobody "
        "receives. Their content type is `application/vnd.ms-servicebus-ping`",
        "pings",
    ),
    Family(
        "postbus_management_requests_total",
        _ENTITY,
        "Requests to its management node and over HTTP that neither send nor receive: peeks, "
        "renewals, session state, rules, descriptions, dead letters sent again",
        "requests",
    ),
    Family("postbus_in_bytes_total", _ENTITY, "Size of the messages accepted", "bytes_in"),
    Family("postbus_out_bytes_total", _ENTITY, "Size of the messages handed out", "bytes_out"),
    Family("postbus_schedules_total", _ENTITY, "Messages scheduled for later", "schedules"),
    Family("postbus_cancellations_total", _ENTITY, "Scheduled messages cancelled", "cancellations"),
    Family("postbus_peeks_total", _ENTITY, "Peek requests", "peeks"),
    Family("postbus_completions_total", _ENTITY, "Messages completed", "completions"),
    Family("postbus_abandons_total", _ENTITY, "Messages abandoned or released", "abandons"),
    Family("postbus_deferrals_total", _ENTITY, "Messages deferred", "deferrals"),
    Family(
        "postbus_deletions_total",
        _ENTITY,
        "Messages removed by batch delete and purge",
        "deletions",
    ),
    Family(
        "postbus_resubmissions_total",
        _ENTITY,
        "Dead letters sent again over HTTP, back to the entity or elsewhere",
        "resubmissions",
    ),
    Family(
        "postbus_expirations_total", _ENTITY, "Messages whose time to live ended", "expirations"
    ),
    Family("postbus_lock_losses_total", _ENTITY, "Locks that ran out", "lock_losses"),
    Family("postbus_lock_renewals_total", _ENTITY, "Locks renewed", "lock_renewals"),
    Family(
        "postbus_copies_total", _ENTITY, "Messages that a subscription got of its topic", "copies"
    ),
    Family(
        "postbus_arrivals_total", _ENTITY, "Messages that other entities forwarded here", "arrivals"
    ),
    Family(
        "postbus_duplicates_total",
        _ENTITY,
        "Messages accepted and dropped, since their ids had been seen",
        "duplicates",
    ),
    Family("postbus_forwards_total", _ENTITY, "Messages forwarded to other entities", "forwards"),
    Family("postbus_feed_reads_total", _ENTITY, "Answers to readers of the feed", "feed_reads"),
    Family(
        "postbus_feed_bytes_total", _ENTITY, "Journal given to readers of the feed", "feed_bytes"
    ),
    Family(
        "postbus_session_accepts_total", _ENTITY, "Sessions given to receivers", "session_accepts"
    ),
    Family(
        "postbus_session_timeouts_total",
        _ENTITY,
        "Receivers that waited for the next session in vain",
        "session_timeouts",
    ),
    Family(
        "postbus_transactions_committed_total",
        _ENTITY,
        "Transactions on the queue or topic that were committed",
        "transactions_committed",
    ),
    Family(
        "postbus_transactions_rolled_back_total",
        _ENTITY,
        "Transactions on it that were not: by their client, by a refusal, a lost link or time",
        "transactions_rolled_back",
    ),
)
DEAD_LETTERS: Final = Family(
    "postbus_dead_letters_total",
    ("entity", "reason"),
    "Messages moved to the dead-letter queue; a reason that is not the broker's own counts as "
    "`application`",
)
REFUSALS: Final = Family(
    "postbus_refusals_total", ("entity", "condition"), "Requests refused, by AMQP condition"
)
MESSAGE_STATES: Final = ("active", "scheduled", "dead_letter", "transfer", "transfer_dead_letter")
MESSAGES: Final = Family(
    "postbus_messages",
    ("entity", "state"),
    "Messages there now: `active` (with locked and deferred), `scheduled`, `dead_letter`, "
    "`transfer`, `transfer_dead_letter`; absent until something has used the entity",
)
SIZE: Final = Family("postbus_size_bytes", _ENTITY, "Size of the messages there now")
SESSIONS: Final = Family(
    "postbus_sessions_held", _ENTITY, "Sessions that have a receiver now; absent without sessions"
)
FEED_LAG: Final = Family(
    "postbus_feed_reader_lag_records",
    ("entity", "reader"),
    "Records that a reader of the feed has not dealt with, by its own word; absent until its "
    "journal was used",
)
LINKS: Final = Family(
    "postbus_links",
    ("entity", "role"),
    "Links attached now; `sender` and `receiver` as the client sees itself",
)
PREFETCH: Final = Family(
    "postbus_prefetch_lock_ratio",
    _ENTITY,
    "Time the fullest prefetch buffer needs to be settled, as a share of the lock duration; above "
    "1, locks run out in the buffer (R-PRE-05)",
)
CONNECTIONS: Final = Family(
    "postbus_connections", ("protocol",), "Connections open now: `amqp`, `http`, `undecided`"
)
CARRIED: Final = Family(
    "postbus_connections_carried",
    ("transport",),
    "Connections open now whose protocol is known, by what carries it: `tcp`, `tls`, `websocket`, "
    "`websocket_tls`",
)
CERTIFICATE: Final = Family(
    "postbus_certificate_expiry_seconds",
    (),
    "Until when the TLS certificate is valid, in seconds since 1970; absent without TLS",
)
ACCEPTED: Final = Family(
    "postbus_connections_accepted_total", ("protocol",), "Connections taken, by protocol"
)
TURNED_AWAY: Final = Family(
    "postbus_connections_refused_total", ("reason",), "Connections cut off by the listener"
)
_BUDGET = ("budget",)
HELD: Final = Family(
    "postbus_held_bytes",
    _BUDGET,
    "Kept for all connections together: `strangers` have shown no token, `unfinished` are messages "
    "and frames that are not whole, `replies` are not taken by their peers",
)
HELD_MAX: Final = Family("postbus_held_max_bytes", _BUDGET, "The bound of each of these")
HELD_CLOSINGS: Final = Family(
    "postbus_held_closings_total", _BUDGET, "Connections closed because the bound was passed"
)
HTTP_REQUESTS: Final = Family("postbus_http_requests_total", (), "HTTP requests answered")
COMMIT_SECONDS: Final = Family(
    "postbus_commit_seconds", ("store",), "Time of a commit, until the disk has it"
)
COMMIT_RECORDS: Final = Family(
    "postbus_commit_records", ("store",), "Records that shared one commit"
)
WRITTEN: Final = Family("postbus_written_bytes_total", ("store",), "Record batches written")
FAILURES: Final = Family("postbus_commit_failures_total", ("store",), "Commits that failed")
HAS_ROOM: Final = Family(
    "postbus_store_has_room",
    ("store",),
    "1 while the disk has room for new messages, 0 while they are refused",
)
LONGEST_TURN: Final = Family(
    "postbus_longest_turn_seconds",
    ("by",),
    "The longest that one thing kept the event loop, and everybody waiting, in this minute or the "
    "one before: `engine`, a turn of the engines; `client`, bytes of one client; `other`, whatever "
    "made a tick come late",
)
INFO: Final = Family("postbus_info", ("version",), "Always 1; the label is the running version")

FAMILIES: Final = (
    *ENTITY_COUNTERS,
    *(DEAD_LETTERS, REFUSALS, MESSAGES, SIZE, SESSIONS, FEED_LAG, LINKS, PREFETCH),
    *(CONNECTIONS, CARRIED, CERTIFICATE, ACCEPTED, TURNED_AWAY, HTTP_REQUESTS),
    *(HELD, HELD_MAX, HELD_CLOSINGS),
    *(COMMIT_SECONDS, COMMIT_RECORDS, WRITTEN, FAILURES, HAS_ROOM, LONGEST_TURN, INFO),
)


class Metrics:
    """All meters of the process, and their form for Prometheus."""

    def __init__(self, version: str) -> None:
        self.connections = ConnectionMeter()
        self.turns = TurnMeter()
        self._version = version
        self._stores: dict[str, StoreMeter] = {}
        self._entities: Callable[[], Iterable[EntityReading]] = tuple
        self._process = ProcessCollector(registry=None)

    def store(self, name: str) -> StoreMeter:
        """The meter of one store; made when it is new."""
        return self._stores.setdefault(name, StoreMeter(self.turns))

    def watch(self, entities: Callable[[], Iterable[EntityReading]]) -> None:
        """Set the source of the entities. Each scrape calls it, on the event loop."""
        self._entities = entities

    async def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """The text for a scraper that sent this `Accept`, and its content type.

        State is read here, on the event loop. The text is written on a thread, because ten thousand
        entities take more than a second.
        """
        readings = list(self._entities())
        return await asyncio.to_thread(self._text, readings, accept)

    def _text(self, readings: list[EntityReading], accept: str) -> tuple[bytes, str]:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Scrape(self._collect(readings)))
        registry.register(self._process)
        encode, content_type = encoder_for(accept)
        return encode(registry), content_type

    def _collect(self, readings: list[EntityReading]) -> Iterator[Metric]:
        yield from _entity_counters(readings)
        yield from _entity_gauges(readings)
        yield from _connections(self.connections)
        yield from _stores(list(self._stores.items()))
        turns = _gauge(LONGEST_TURN)
        for kind, seconds in self.turns.longest().items():
            turns.add_metric([kind], seconds)
        yield turns
        info = _gauge(INFO)
        info.add_metric([self._version], 1)
        yield info


def encoder_for(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """The encoder for the form that an `Accept` asks for, and its content type."""
    try:
        return choose_encoder(accept)
    except ValueError:  # an invalid version: use the form that every scraper reads
        return choose_encoder("")


class _Scrape:
    """The families of one scrape, in the form of a registry's collector."""

    def __init__(self, families: Iterator[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families


def _counter(family: Family) -> CounterMetricFamily:
    return CounterMetricFamily(family.name, family.text, labels=family.labels)


def _gauge(family: Family) -> GaugeMetricFamily:
    return GaugeMetricFamily(family.name, family.text, labels=family.labels)


def _entity_counters(readings: list[EntityReading]) -> Iterator[Metric]:
    for family in ENTITY_COUNTERS:
        metric = _counter(family)
        for one in readings:
            metric.add_metric([one.entity], getattr(one.meter, family.source))
        yield metric
    dead_letters, refusals = _counter(DEAD_LETTERS), _counter(REFUSALS)
    for one in readings:
        # Copies, because the loop goes on counting while this thread reads.
        for reason, count in dict(one.meter.dead_letters).items():
            dead_letters.add_metric([one.entity, reason], count)
        for condition, count in dict(one.meter.refusals).items():
            refusals.add_metric([one.entity, condition], count)
    yield dead_letters
    yield refusals


def _entity_gauges(readings: list[EntityReading]) -> Iterator[Metric]:
    messages, size, sessions = _gauge(MESSAGES), _gauge(SIZE), _gauge(SESSIONS)
    links, prefetch, lag = _gauge(LINKS), _gauge(PREFETCH), _gauge(FEED_LAG)
    for one in readings:
        if one.counts is not None:
            for state in MESSAGE_STATES:
                messages.add_metric([one.entity, state], getattr(one.counts, state))
            size.add_metric([one.entity], one.counts.size_bytes)
        if one.sessions_held is not None:
            sessions.add_metric([one.entity], one.sessions_held)
        for reader, records in one.feed_lags.items():
            lag.add_metric([one.entity, reader], records)
        links.add_metric([one.entity, "sender"], one.senders)
        links.add_metric([one.entity, "receiver"], one.receivers)
        prefetch.add_metric([one.entity], one.prefetch_lock_ratio)
    yield from (messages, size, sessions, lag, links, prefetch)


def _connections(meter: ConnectionMeter) -> Iterator[Metric]:
    for metric, values in (
        (_gauge(CONNECTIONS), meter.open),
        (_gauge(CARRIED), meter.carried),
        (_counter(ACCEPTED), meter.accepted),
        (_counter(TURNED_AWAY), meter.refused),
    ):
        for label, value in dict(values).items():
            metric.add_metric([label], value)
        yield metric
    if meter.certificate_until is not None:
        certificate = _gauge(CERTIFICATE)
        certificate.add_metric([], meter.certificate_until)
        yield certificate
    held, held_max, closings = _gauge(HELD), _gauge(HELD_MAX), _counter(HELD_CLOSINGS)
    for budget in meter.budgets:
        held.add_metric([budget.name], budget.used_bytes)
        held_max.add_metric([budget.name], budget.max_bytes)
        closings.add_metric([budget.name], budget.closings)
    yield from (held, held_max, closings)
    requests = _counter(HTTP_REQUESTS)
    requests.add_metric([], meter.http_requests)
    yield requests


def _stores(stores: list[tuple[str, StoreMeter]]) -> Iterator[Metric]:
    seconds = HistogramMetricFamily(
        COMMIT_SECONDS.name, COMMIT_SECONDS.text, labels=COMMIT_SECONDS.labels
    )
    records = HistogramMetricFamily(
        COMMIT_RECORDS.name, COMMIT_RECORDS.text, labels=COMMIT_RECORDS.labels
    )
    written, failures, has_room = _counter(WRITTEN), _counter(FAILURES), _gauge(HAS_ROOM)
    for name, meter in stores:
        seconds.add_metric([name], _buckets(meter.commit_seconds), meter.commit_seconds.sum)
        records.add_metric([name], _buckets(meter.commit_records), meter.commit_records.sum)
        written.add_metric([name], meter.bytes_written)
        failures.add_metric([name], meter.failures)
        has_room.add_metric([name], int(meter.has_room))
    yield from (seconds, records, written, failures, has_room)


def _buckets(meter: HistogramMeter) -> list[tuple[str, float]]:
    """Counts below each bound, cumulative as Prometheus wants them."""
    total, buckets = 0, []
    for bound, count in zip((*meter.bounds, float("inf")), list(meter.counts), strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
    return buckets
