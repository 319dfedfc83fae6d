"""Log lines, and the tracking ids that tie a refusal to its line.

A log line states one change of state; a message has no line above debug. The line begins with what
happened, in the words of the glossary (`listening`, `connection refused`). Everything else is a
key. People read a console, programs read JSON lines.
"""

import logging
import sys
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO
from uuid import uuid4

import structlog

from postbus.model.times import Instant

Logger = structlog.typing.FilteringBoundLogger

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_VALUE_LENGTH_MAX = 500


def configure(
    level: Literal["debug", "info", "warning", "error"] = "info",
    form: Literal["console", "json"] = "console",
    stream: TextIO | None = None,
) -> None:
    """Set up logging for the process; to standard error, because standard output has the ready
    line."""
    out = stream if stream is not None else sys.stderr
    renderer: structlog.typing.Processor
    if form == "json":
        renderer = structlog.processors.JSONRenderer(ensure_ascii=False)
        exceptions = [structlog.processors.format_exc_info]
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=out.isatty(),
            pad_event_to=0,
            exception_formatter=structlog.dev.plain_traceback,
        )
        exceptions = []
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _one_line_each,
            *exceptions,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    _adopt_libraries(_LEVELS[level])


def get_logger(part: str) -> Logger:
    """The logger of one part of the program; each line names the part."""
    logger: Logger = structlog.get_logger(part=part)
    return logger


class Valve:
    """Lets one line through for each interval and counts the rest.

    For lines that a stranger can cause at will: a flood of bad connections must not become a flood
    of log lines.
    """

    __slots__ = ("_held", "_interval_ms", "_until")

    def __init__(self, interval_ms: int = 1_000) -> None:
        self._interval_ms = interval_ms
        self._until: dict[str, Instant] = {}
        self._held: dict[str, int] = {}

    def passes(self, event: str, now: Instant) -> int | None:
        """How many lines of this event were held back since the last; None: hold this one back."""
        if now < self._until.get(event, 0):
            self._held[event] = self._held.get(event, 0) + 1
            return None
        self._until[event] = now + self._interval_ms
        return self._held.pop(event, 0)


def _one_line_each(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    # Names and addresses come from peers. A line break or an escape code in them must not forge a
    # line or paint the operator's terminal.
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _bounded(value if value.isprintable() else ascii(value)[1:-1])
    return event


def _bounded(text: str) -> str:
    return text if len(text) <= _VALUE_LENGTH_MAX else text[: _VALUE_LENGTH_MAX - 1] + "…"


class _Adopted(logging.Handler):
    """Writes the log lines of libraries in our form."""

    def emit(self, record: logging.LogRecord) -> None:
        log = get_logger(record.name).bind(text=record.getMessage())
        log.log(record.levelno, "library", exc_info=record.exc_info)


def _adopt_libraries(level: int) -> None:
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _Adopted):
            root.removeHandler(handler)
    root.addHandler(_Adopted())
    root.setLevel(max(level, logging.WARNING))


# An address in a refusal is the client's own text: it is quoted back, up to a bound.
_TEXT_LENGTH_MAX = 2_048


def _random_id() -> str:
    return str(uuid4())


@dataclass(frozen=True, slots=True)
class Tracking:
    """The id of one refusal, in the client's error and in our log line (R-SETTLE-02).

    A refusal gets its id once, where it leaves the process.
    """

    id: str
    system: str
    at: Instant

    def describe(self, error: BaseException | str) -> str:
        """The text of a refusal with Azure's suffix (wire §7.2)."""
        text = str(error)
        if len(text) > _TEXT_LENGTH_MAX:
            text = text[: _TEXT_LENGTH_MAX - 1] + "…"
        at = datetime.fromtimestamp(self.at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{text} TrackingId:{self.id}, SystemTracker:{self.system}, Timestamp:{at}"


class TrackingIds:
    """Hands out tracking ids for one namespace."""

    __slots__ = ("_clock", "_new_id", "namespace")

    def __init__(
        self,
        namespace: str,
        clock: Callable[[], Instant],
        new_id: Callable[[], str] = _random_id,
    ) -> None:
        self.namespace = namespace
        self._clock = clock
        self._new_id = new_id

    def track(self, entity: str | None = None) -> Tracking:
        """An id for a refusal on `entity`, or on the namespace where no entity is known."""
        # "_G0": gateway 0, the part that speaks to clients (semantics A §6).
        system = f"{self.namespace}:{entity}" if entity else self.namespace
        return Tracking(f"{self._new_id()}_G0", system, self._clock())
