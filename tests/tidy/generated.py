"""Pages written from the code they describe. `python -m tests.tidy.generated` writes them anew."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from bench.record import kept, newest_whole, read
from postbus import errors
from postbus.observe.metrics import FAMILIES, Family
from postbus.settings import declared, flag_of, variable_of
from tests.tidy.tree import ROOT

_WRITTEN = "<!-- Written by `python -m tests.tidy.generated`; edits are lost. -->"


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        _WRITTEN,
        "",
        "A setting is given as a flag of `postbus serve`, as a variable, or as a key of the",
        "`[settings]` table in the TOML file that `--config` names. Where several are given the",
        "flag wins, then the variable, then the file. A key in the file that is no setting is an",
        "error. `postbus settings` shows the values in force.",
        "",
        "The variable of a setting is its flag in capitals: `--log-level` is `POSTBUS_LOG_LEVEL`,",
        "and in the file `log_level`. A name ends in its unit; one that ends in `max` is a count.",
        "A repeatable flag is a list in the file, and a variable with commas between the names.",
        "",
        "| flag | default | allowed | meaning |",
        "|---|---|---|---|",
    ]
    for name, field in declared().items():
        default = field.get_default()
        lines.append(
            f"| `{flag_of(name)}` | {f'`{_plain(default)}`' if default not in (None, ()) else ''} "
            f"| {_allowed(field)} | {field.description} |"
        )
    lines += [
        "",
        "```toml",
        "# postbus.toml",
        "[settings]",
        "port = 6000",
        "retention_hours = 72",
        "```",
        "",
        f"The same by variables: `{variable_of('port')}=6000 "
        f"{variable_of('retention_hours')}=72 postbus serve`.",
    ]
    return "\n".join(lines) + "\n"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _allowed(field: FieldInfo) -> str:
    kind: Any = field.annotation
    if kind is bool:
        return "true, false"
    if kind is int:
        low = next(bound.ge for bound in field.metadata if isinstance(bound, Ge))
        high = next(bound.le for bound in field.metadata if isinstance(bound, Le))
        return f"{low}…{high}"
    if get_origin(kind) is tuple:
        return "names"
    choices = get_args(kind)
    if choices and all(isinstance(choice, str) for choice in choices):
        return ", ".join(choices)
    return "path" if kind is Path or Path in choices else "text"


def refusals() -> Iterator[type[errors.ServiceBusError]]:
    """Every refusal in the order of its declaration, the base left out."""
    for value in vars(errors).values():
        if inspect.isclass(value) and errors.ServiceBusError in value.__mro__[1:]:
            yield value


def errors_page() -> str:
    lines = [
        "# Errors",
        "",
        _WRITTEN,
        "",
        "Every refusal a client can see. Over AMQP it is the condition and the text of a",
        "rejected delivery, a detach, an end or a close; over HTTP it is the status and an",
        "`<Error>` document. Every text ends with a tracking id, which is in the server's log too.",
        "*Retry* says whether the same request may succeed later; the official SDKs decide by the",
        "condition.",
        "",
        "| refusal | AMQP condition | HTTP | sub-code | retry | when |",
        "|---|---|---|---|---|---|",
    ]
    for refusal in refusals():
        when = " ".join((refusal.__doc__ or "").split())
        lines.append(
            f"| {refusal.__name__} | `{refusal.condition}` | {refusal.http_status} "
            f"| {refusal.sub_code or ''} | {'yes' if refusal.transient else 'no'} | {when} |"
        )
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    lines = [
        "# Metrics",
        "",
        _WRITTEN,
        "",
        "`GET /metrics` on any port of the server, in Prometheus' text form or, when asked for,",
        "OpenMetrics. Counters start at zero with the process. The usual `process_…` metrics are",
        "there too. Whoever asks within a second of somebody else is given the same text.",
        "",
        "What a namespace costs (R-COST-01) is `postbus_sends_total`, `postbus_receives_total`",
        "with `postbus_empty_receives_total`, `postbus_management_requests_total` and the two sums",
        "of bytes; [as JSON](operations.md#costs) it is there for single entities.",
        "",
        "| metric | labels | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| `{one.name}` | {_labels(one)} | {one.text} |" for one in FAMILIES]
    return "\n".join(lines) + "\n"


def _labels(family: Family) -> str:
    return ", ".join(f"`{label}`" for label in family.labels)


_PERFORMANCE = ROOT / "docs" / "performance.md"
_BEGIN = "<!-- Peers: written by `python -m tests.tidy.generated`; edits are lost. -->"
_END = "<!-- Peers: end. -->"


def performance_page() -> str:
    """The page as it is, with the table of the newest run of `make bench` that has all rows."""
    # Each mark is there once, or this fails.
    before, rest = _PERFORMANCE.read_text().split(_BEGIN)
    _, after = rest.split(_END)
    path = newest_whole()
    record = read(path)
    others = ", ".join(f"[{one.stem}]({_from_docs(one)})" for one in kept() if one != path)
    lines = [
        f"{before}{_BEGIN}",
        "",
        f"[The run of {record.facts['date']}]({_from_docs(path)}) has all numbers.",
        *record.remarks,
        "",
        record.tables.summary(),
        "",
        *([f"Other runs: {others}.", ""] if others else []),
        f"{_END}{after}",
    ]
    return "\n".join(lines)


def _from_docs(path: Path) -> str:
    return f"../{path.relative_to(ROOT)}"


PAGES: dict[Path, Callable[[], str]] = {
    ROOT / "docs" / "settings.md": settings_page,
    ROOT / "docs" / "errors.md": errors_page,
    ROOT / "docs" / "metrics.md": metrics_page,
    _PERFORMANCE: performance_page,
}

if __name__ == "__main__":
    for page, write in PAGES.items():
        page.write_text(write())
