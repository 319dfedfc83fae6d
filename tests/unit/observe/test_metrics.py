"""What a scraper sees is what the meters counted (R-COST-01, R-PRE-05)."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from postbus.model.description import QueueCounts
from postbus.observe.meters import EntityMeter, HistogramMeter
from postbus.observe.metrics import ENTITY_COUNTERS, FAMILIES, EntityReading, Metrics

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def watching(meter: EntityMeter, entity: str = "orders") -> Metrics:
    metrics = Metrics("1.2.3")
    metrics.watch(lambda: [EntityReading(entity, meter, None, 0, 0, 0.0)])
    return metrics


async def scrape(metrics: Metrics) -> Series:
    text, content_type = await metrics.scrape()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def of_orders(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted({"entity": "orders", **labels}.items()))


async def test_what_an_entity_costs_is_counted() -> None:
    meter = EntityMeter()
    meter.sends += 3
    meter.receives += 2
    meter.empty_receives += 1
    meter.bytes_in += 3_072
    meter.bytes_out += 2_048

    series = await scrape(watching(meter))

    assert series[of_orders("postbus_sends_total")] == 3
    assert series[of_orders("postbus_receives_total")] == 2
    assert series[of_orders("postbus_empty_receives_total")] == 1
    assert series[of_orders("postbus_in_bytes_total")] == 3_072
    assert series[of_orders("postbus_out_bytes_total")] == 2_048
    assert series["postbus_info", (("version", "1.2.3"),)] == 1


async def test_every_number_of_a_meter_is_shown() -> None:
    meter = EntityMeter()
    shown = {family.source for family in ENTITY_COUNTERS} | {"dead_letters", "refusals"}
    numbers = {
        name for name in dir(meter) if not (name[0] == "_" or callable(getattr(meter, name)))
    }
    assert shown == numbers
    for value, family in enumerate(ENTITY_COUNTERS, 10):
        setattr(meter, family.source, value)
    series = await scrape(watching(meter))
    for value, family in enumerate(ENTITY_COUNTERS, 10):
        assert series[of_orders(family.name)] == value


async def test_dead_letters_are_counted_by_reason_but_not_by_an_applications_own_words() -> None:
    meter = EntityMeter()
    meter.dead_lettered("TTLExpiredException")
    for number in range(1_000):
        meter.dead_lettered(f"bad order {number}")
    meter.dead_lettered(None)
    series = await scrape(watching(meter))
    name = "postbus_dead_letters_total"
    assert {key: value for key, value in series.items() if key[0] == name} == {
        of_orders(name, reason="TTLExpiredException"): 1,
        of_orders(name, reason="application"): 1_001,
    }


async def test_refusals_are_counted_by_condition() -> None:
    meter = EntityMeter()
    meter.refused("amqp:not-found")
    meter.refused("amqp:not-found")
    series = await scrape(watching(meter))
    assert series[of_orders("postbus_refusals_total", condition="amqp:not-found")] == 2


async def test_how_entities_stand_is_asked_at_each_scrape() -> None:
    metrics = Metrics("1")
    counts = QueueCounts(
        active=5, scheduled=4, dead_letter=3, transfer=2, transfer_dead_letter=1, size_bytes=1_234
    )
    standing = [EntityReading("orders", EntityMeter(), counts, 6, 7, 0.5)]
    metrics.watch(lambda: standing)
    series = await scrape(metrics)
    assert series[of_orders("postbus_messages", state="active")] == 5
    assert series[of_orders("postbus_messages", state="scheduled")] == 4
    assert series[of_orders("postbus_messages", state="dead_letter")] == 3
    assert series[of_orders("postbus_messages", state="transfer")] == 2
    assert series[of_orders("postbus_messages", state="transfer_dead_letter")] == 1
    assert series[of_orders("postbus_size_bytes")] == 1_234
    assert series[of_orders("postbus_links", role="sender")] == 6
    assert series[of_orders("postbus_links", role="receiver")] == 7
    assert series[of_orders("postbus_prefetch_lock_ratio")] == 0.5
    standing.clear()
    assert of_orders("postbus_size_bytes") not in await scrape(metrics)


async def test_an_entity_nothing_has_used_yet_is_not_said_to_be_empty() -> None:
    series = await scrape(watching(EntityMeter()))
    assert of_orders("postbus_sends_total") in series
    assert of_orders("postbus_messages", state="active") not in series
    assert of_orders("postbus_size_bytes") not in series


async def test_commits_are_a_histogram_of_time_and_of_size() -> None:
    metrics = Metrics("1")
    store = metrics.store("0")
    store.committed(0.0004, records=1, size=100)
    store.committed(0.003, records=7, size=900)
    store.committed(60.0, records=100_000, size=1)
    store.failures += 1
    series = await scrape(metrics)
    at = (("store", "0"),)
    assert series["postbus_commit_seconds_count", at] == 3
    assert series["postbus_commit_seconds_bucket", (("le", "0.0005"), *at)] == 1
    assert series["postbus_commit_seconds_bucket", (("le", "0.005"), *at)] == 2
    assert series["postbus_commit_seconds_bucket", (("le", "5.0"), *at)] == 2
    assert series["postbus_commit_seconds_bucket", (("le", "+Inf"), *at)] == 3
    assert series["postbus_commit_records_sum", at] == 100_008
    assert series["postbus_written_bytes_total", at] == 1_001
    assert series["postbus_commit_failures_total", at] == 1


def test_a_value_on_a_bound_counts_below_it() -> None:
    meter = HistogramMeter((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 2.5):
        meter.observe(value)
    assert meter.counts == [1, 2, 1]


async def test_connections_are_counted_by_protocol_and_by_reason_of_refusal() -> None:
    metrics = Metrics("1")
    metrics.connections.open["amqp"] += 2
    metrics.connections.accepted["amqp"] += 5
    metrics.connections.turned_away("tls")
    metrics.connections.http_requests += 9
    series = await scrape(metrics)
    assert series["postbus_connections", (("protocol", "amqp"),)] == 2
    assert series["postbus_connections_accepted_total", (("protocol", "amqp"),)] == 5
    assert series["postbus_connections_refused_total", (("reason", "tls"),)] == 1
    assert series["postbus_http_requests_total", ()] == 9


async def test_a_scraper_that_asks_for_openmetrics_gets_it_and_every_family_is_there() -> None:
    metrics = watching(EntityMeter())
    metrics.store("0")
    metrics.connections.certificate_until = 2_000_000_000
    text, content_type = await metrics.scrape("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    names = {family.name for family in read_openmetrics(text.decode())}
    assert {family.name.removesuffix("_total") for family in FAMILIES} <= names
    assert "process_resident_memory_bytes" in names


async def test_connections_are_shown_by_what_carries_them_and_when_the_certificate_ends() -> None:
    metrics = watching(EntityMeter())
    metrics.connections.carried["websocket_tls"] += 2
    series = await scrape(metrics)
    assert series["postbus_connections_carried", (("transport", "websocket_tls"),)] == 2
    assert series["postbus_connections_carried", (("transport", "tcp"),)] == 0
    assert ("postbus_certificate_expiry_seconds", ()) not in series
    metrics.connections.certificate_until = 2_000_000_000
    series = await scrape(metrics)
    assert series["postbus_certificate_expiry_seconds", ()] == 2_000_000_000


async def test_an_entity_name_is_escaped() -> None:
    meter = EntityMeter()
    meter.sends += 1
    series = await scrape(watching(meter, 'odd"\n\\name'))
    assert series["postbus_sends_total", (("entity", 'odd"\n\\name'),)] == 1
