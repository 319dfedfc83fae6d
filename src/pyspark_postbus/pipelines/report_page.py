"""The traffic report as a page of HTML that needs nothing else: style, charts, tables within."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any, Final, NamedTuple

from pyspark_postbus.pipelines.charts import COLOURS, column_chart, line_chart, rank_chart
from pyspark_postbus.pipelines.prices import Prices
from pyspark_postbus.pipelines.report_style import STYLE
from pyspark_postbus.pipelines.report_tables import SENT, TAKEN, Tables
from pyspark_postbus.pipelines.scales import bytes_text, millis_text, number_text

Rows = list[dict[str, Any]]


class Meters(NamedTuple):
    """The broker's counts for some entities, as `/$usage` tells them."""

    since: int
    now: int
    rows: Rows


_ROWS_SHOWN: Final = 200
_PERCENTILES: Final = ("p50", "p90", "p99")


def page(
    tables: Tables,
    prices: Prices,
    is_whole: bool,
    meters: Meters | None = None,
    title: str = "Traffic report",
) -> str:
    """The whole page. `is_whole`: the events go back to the beginning, so that counts of messages
    are true and not only differences. `meters`: the broker's own counts (`/$usage`)."""
    sections = [
        _tiles(tables, prices, is_whole),
        _throughput(tables),
        _latency(tables),
        _backlog(tables, is_whole),
        _redeliveries(tables),
        _dead_letters(tables),
        _sessions(tables),
        _fragments(tables),
        _cost(tables, prices, meters),
    ]
    span = f"{_time(tables.start)} to {_time(tables.end)} UTC"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{escape(title)}</h1>\n<p class="span">{span}, in columns of '
        f"{_width(tables.width_s)}</p>\n" + "\n".join(sections) + "\n</main>\n</body>\n</html>\n"
    )


# -- sections ----------------------------------------------------------------------------------


def _tiles(tables: Tables, prices: Prices, is_whole: bool) -> str:
    traffic = tables.traffic.to_pylist()
    sent = _total(traffic, SENT)
    done = _total(traffic, TAKEN)
    again = _total(traffic, ("abandoned", "lock-expired"))
    dead = _total(traffic, ("dead-lettered",))
    whole = _worst(tables.latency_whole.to_pylist())
    waiting = sum(values[-1] or 0 for values in _levels(tables, is_whole, "").values())
    tiles = [
        ("sent", number_text(sent), ""),
        ("completed", number_text(done), ""),
        ("median latency", millis_text(whole["total_p50"]) if whole else "n/a", ""),
        ("99 % within", millis_text(whole["total_p99"]) if whole else "n/a", ""),
        ("waiting at the end", number_text(waiting), "" if is_whole else "at least"),
        ("delivered again", number_text(again), _share(again, done + again)),
        ("dead-lettered", number_text(dead), _share(dead, sent)),
        ("a month like this", _money(_month(tables, prices), prices), "example prices or yours"),
    ]
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><small>{escape(note)}</small></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _throughput(tables: Tables) -> str:
    times = _times(tables)
    rows = tables.traffic.to_pylist()
    groups: dict[str, tuple[str, ...]] = {
        "sent": SENT,
        "completed": TAKEN,
        "distributed to subscriptions": ("distributed",),
        "arrived by forwarding": ("arrived",),
        "expired": ("expired",),
    }
    series = {}
    for name, operations in groups.items():
        values = _by_time(times, (row for row in rows if row["operation"] in operations), "events")
        if any(values):
            series[name] = [value / tables.width_s for value in values]
    by_entity = _sums(rows, ("entity", "operation"), ("events", "bytes"))
    table = _table(
        ("entity", "operation", "events", "bytes"),
        [
            (*key, number_text(events), bytes_text(size))
            for key, (events, size) in by_entity.items()
        ],
    )
    chart = line_chart("messages per second", times, tables.width_s, series)
    return _section("Throughput", "Messages per second.", chart, table)


def _latency(tables: Tables) -> str:
    times = _times(tables)
    rows = [row for row in tables.latency.to_pylist() if row["total_p50"] is not None]
    places: dict[datetime, dict[str, float]] = {}
    for row in rows:
        # Percentiles of several entities cannot be added: users feel the slowest.
        known = places.setdefault(row["time"], {})
        for name in _PERCENTILES:
            known[name] = max(known.get(name, 0), row[f"total_{name}"])
    series = {
        f"{name[1:]} % within": [
            max(places[at][name], 0.5) if at in places else None for at in times
        ]
        for name in _PERCENTILES
    }
    names = [f"total_{one}" for one in (*_PERCENTILES, "max")]
    names += ["waiting_p50", "waiting_p99", "handling_p50", "handling_p99"]
    table = _table(
        ("entity", "messages", *(name.replace("_", " ") for name in names)),
        [
            (
                _place(row),
                number_text(row["messages"]),
                *("n/a" if row[name] is None else millis_text(row[name]) for name in names),
            )
            for row in tables.latency_whole.to_pylist()
        ],
    )  # fmt: skip
    chart = line_chart("latency", times, tables.width_s, series, millis_text, log=True)
    text = (
        "From enqueued to completed, of messages that were completed in that time; where there are "
        "several entities the slowest is drawn. Waiting is the time until the last delivery, "
        "handling the time from there."
    )
    return _section("End-to-end latency", text, chart, table)


def _backlog(tables: Tables, is_whole: bool) -> str:
    times = _times(tables)
    waiting = _largest(_levels(tables, is_whole, ""))
    dead = _largest(_levels(tables, is_whole, "deadletter"))
    text = "Messages that wait, scheduled ones left out."
    if not is_whole:
        text += (
            " The feed does not go back to the beginning, so how many there were at the start is "
            "not known: the least that was there is drawn as none."
        )
    chart = line_chart("backlog", times, tables.width_s, waiting)
    if any(any(values) for values in dead.values()):
        chart += "<h3>In dead-letter queues</h3>"
        chart += line_chart("dead letters that wait", times, tables.width_s, dead)
    ends = [(name, number_text(values[-1] or 0)) for name, values in waiting.items()]
    return _section("Backlog", text, chart, _table(("entity", "at the end"), ends))


def _redeliveries(tables: Tables) -> str:
    times = _times(tables)
    rows = tables.traffic.to_pylist()
    series = {
        name: _by_time(times, (row for row in rows if row["operation"] == operation), "events")
        for name, operation in (("abandoned", "abandoned"), ("lock expired", "lock-expired"))
    }
    attempts = _sums(tables.deliveries.to_pylist(), ("entity", "attempts"), ("messages",))
    table = _table(
        ("entity", "completed at delivery", "messages"),
        [
            (entity, str(number), number_text(count))
            for (entity, number), (count,) in attempts.items()
        ],
    )
    chart = column_chart("redeliveries", times, tables.width_s, series)
    text = "Deliveries that did not lead to completion: given back, or held for too long."
    return _section("Redeliveries and lock expiries", text, chart, table)


def _dead_letters(tables: Tables) -> str:
    times = _times(tables)
    rows = tables.dead_letters.to_pylist()
    totals = _sums(rows, ("reason",), ("letters",))
    first = sorted(totals, key=lambda key: -totals[key][0])[: COLOURS - 1]
    series = {
        reason: _by_time(times, (row for row in rows if row["reason"] == reason), "letters")
        for (reason,) in first
    }
    kinds = _sums(rows, ("entity", "subscription", "reason"), ("letters",))
    table = _table(
        ("entity", "reason", "letters"),
        [
            (_place({"entity": entity, "subscription": subscription}), reason, number_text(count))
            for (entity, subscription, reason), (count,) in kinds.items()
        ],
    )
    chart = column_chart("dead letters", times, tables.width_s, series)
    return _section("Dead letters", "By the reason they were given.", chart, table)


def _sessions(tables: Tables) -> str:
    rows = tables.sessions.to_pylist()
    if not rows:
        return ""
    bars = [(f"{_place(row)} · {row['sessionId']}", float(row["messages"])) for row in rows]
    table = _table(
        ("entity", "session", "messages", "bytes"),
        [
            (_place(row), row["sessionId"], number_text(row["messages"]), bytes_text(row["bytes"]))
            for row in rows
        ],
    )
    text = "The sessions with the most messages: one session is handled by one receiver at a time."
    return _section("Hot sessions", text, rank_chart("messages by session", bars), table)


def _fragments(tables: Tables) -> str:
    rows = tables.fragments.to_pylist()
    bars = [(f"{row['entity']} · {row['partition']}", float(row["events"])) for row in rows]
    skews = []
    for entity in dict.fromkeys(row["entity"] for row in rows):
        counts = [row["events"] for row in rows if row["entity"] == entity]
        mean = sum(counts) / len(counts)
        skews.append((entity, str(len(counts)), f"{max(counts) / mean:.2f}"))
    text = (
        "Events by partition of each entity. Skew is the fullest one over the mean: 1.00 is even."
    )
    table = _table(("entity", "partitions", "skew"), skews)
    shown = sorted(bars, key=lambda bar: -bar[1])[:32]
    return _section("Partitions", text, rank_chart("events by partition", shown), table)


def _cost(tables: Tables, prices: Prices, meters: Meters | None) -> str:
    hours = _hours(tables)
    lines = [
        (
            row["entity"],
            *(number_text(row[name]) for name in ("sends", "send_units", "deliveries",
                                                  "delivery_units")),
            bytes_text(row["bytes_in"]),
            bytes_text(row["bytes_out"]),
        )
        for row in tables.operations.to_pylist()
    ]  # fmt: skip
    table = _table(
        ("entity", "sends", "billable", "deliveries", "billable", "bytes in", "bytes out"), lines
    )
    text = (
        f"A message counts once for each started {prices.unit_kb} KB. This is what the feed shows: "
        "receives that found nothing, and management, leave no trace there. A month that goes on "
        f"like these {hours:.3g} hours would cost {_money(_month(tables, prices), prices)}, of "
        f"which {_money(prices.base_per_month, prices)} is the base price."
    )
    shown = _section("Billable operations and cost", text, "", table, is_open=True)
    return shown + (_meters(meters, prices) if meters else "")


def _meters(meters: Meters, prices: Prices) -> str:
    """The broker's own counts since it was started."""
    columns = {
        "sends": "sends",
        "receives": "receives",
        "empty receives": "emptyReceives",
        "management": "managementRequests",
        "pings": "pings",
    }
    rows = [
        (
            row["entity"],
            *(number_text(row[name]) for name in columns.values()),
            bytes_text(row["bytesIn"]),
            bytes_text(row["bytesOut"]),
        )
        for row in meters.rows
    ]
    hours = max((meters.now - meters.since) / 3_600_000, 1 / 3_600)
    operations = sum(row[name] for row in meters.rows for name in columns.values())
    sizes = [sum(row[name] for row in meters.rows) for name in ("bytesIn", "bytesOut")]
    month = _money(prices.at_rate(hours, operations, *sizes), prices)
    since = datetime.fromtimestamp(meters.since / 1_000, UTC)
    text = (
        f"What the broker itself has counted since it was started, at {_time(since)} UTC, each "
        f"operation once whatever its size. A month that goes on like these {hours:.3g} hours "
        f"would cost {month}."
    )
    table = _table(("entity", *columns, "bytes in", "bytes out"), rows)
    return _section("Meters of the broker", text, "", table, is_open=True)


# -- from tables to series ---------------------------------------------------------------------


def _times(tables: Tables) -> list[datetime]:
    width = tables.width_s
    first = int(tables.start.timestamp()) // width * width
    last = int(tables.end.timestamp()) // width * width
    start = datetime.fromtimestamp(first, tables.start.tzinfo)
    return [start + timedelta(seconds=at) for at in range(0, last - first + 1, width)]


def _by_time(
    times: Sequence[datetime], rows: Iterable[Mapping[str, Any]], name: str
) -> list[float]:
    found: dict[datetime, float] = {}
    for row in rows:
        found[row["time"]] = found.get(row["time"], 0) + row[name]
    return [found.get(at, 0) for at in times]


def _levels(tables: Tables, is_whole: bool, sub_queue: str) -> dict[str, list[float | None]]:
    """How many messages were there at the end of each column, by entity."""
    times = _times(tables)
    known: dict[str, dict[datetime, float]] = {}
    for row in tables.backlog.to_pylist():
        if row["subQueue"] == sub_queue:
            known.setdefault(_place(row), {})[row["time"]] = row["level"]
    levels: dict[str, list[float | None]] = {}
    for name, found in known.items():
        values, level = [], 0.0
        for at in times:
            level = found.get(at, level)
            values.append(level)
        lift = 0.0 if is_whole else -min(0.0, *values)
        levels[name] = [value + lift for value in values]
    return {name: values for name, values in levels.items() if any(values)}


def _largest(levels: Mapping[str, list[float | None]]) -> dict[str, list[float | None]]:
    ordered = sorted(levels, key=lambda name: -max(value or 0 for value in levels[name]))
    return {name: levels[name] for name in ordered[:COLOURS]}


def _sums(
    rows: Rows, by: Sequence[str], names: Sequence[str]
) -> dict[tuple[Any, ...], tuple[float, ...]]:
    sums: dict[tuple[Any, ...], tuple[float, ...]] = {}
    for row in rows:
        key = tuple(row[name] for name in by)
        before = sums.get(key, (0,) * len(names))
        sums[key] = tuple(old + (row[name] or 0) for old, name in zip(before, names, strict=True))
    return sums


def _total(rows: Rows, operations: Sequence[str]) -> float:
    return sum(float(row["events"]) for row in rows if row["operation"] in operations)


def _worst(rows: Rows) -> dict[str, Any] | None:
    known = [row for row in rows if row["total_p99"] is not None]
    return max(known, key=lambda row: float(row["total_p99"]), default=None)


def _hours(tables: Tables) -> float:
    return max((tables.end - tables.start).total_seconds(), tables.width_s) / 3_600


def _month(tables: Tables, prices: Prices) -> float:
    rows = tables.operations.to_pylist()
    operations = sum(row["send_units"] + row["delivery_units"] for row in rows)
    bytes_in = sum(row["bytes_in"] or 0 for row in rows)
    bytes_out = sum(row["bytes_out"] or 0 for row in rows)
    return prices.at_rate(_hours(tables), operations, bytes_in, bytes_out)


# -- words and tags ----------------------------------------------------------------------------


def _place(row: Mapping[str, Any]) -> str:
    subscription = row.get("subscription")
    return str(row["entity"]) if subscription is None else f"{row['entity']} / {subscription}"


def _section(title: str, text: str, chart: str, table: str, is_open: bool = False) -> str:
    shown = f"<details{' open' if is_open else ''}><summary>Numbers</summary>{table}</details>"
    return f"<section><h2>{escape(title)}</h2><p>{escape(text)}</p>{chart}{shown}</section>"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows[:_ROWS_SHOWN]
    )
    left = len(rows) - _ROWS_SHOWN
    more = f"<p>and {left} more, in the Parquet files beside this page</p>" if left > 0 else ""
    return f'<div class="wide"><table><tr>{head}</tr>{lines}</table></div>{more}'


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.2%}" if whole else ""


def _money(value: float, prices: Prices) -> str:
    return f"{value:,.2f} {prices.currency}"


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"


def _width(seconds: int) -> str:
    for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        if seconds % size == 0:
            count = seconds // size
            return f"{count} {name}{'s' if count > 1 else ''}"
    raise AssertionError("unreachable: every number of seconds is divisible by one")
