"""Points in time and spans of time, and their spellings on the wire.

An Instant is an `int` of milliseconds since the Unix epoch, the resolution of an AMQP timestamp. A
span is an `int` of .NET ticks. A tick is 100 ns. Azure keeps every duration as a .NET TimeSpan, a
signed 64-bit count of ticks. So a count of ticks keeps an ISO 8601 text without loss. The largest
TimeSpan means "for ever".
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

Instant = int

NEVER: Final[Instant] = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the last instant .NET can name; stands for "does not happen"."""


TICKS_PER_MS: Final = 10_000
TICKS_PER_SECOND: Final = 1_000 * TICKS_PER_MS
TICKS_PER_MINUTE: Final = 60 * TICKS_PER_SECOND
TICKS_PER_HOUR: Final = 60 * TICKS_PER_MINUTE
TICKS_PER_DAY: Final = 24 * TICKS_PER_HOUR

MAX_TICKS: Final = 2**63 - 1
INFINITE: Final = "P10675199DT2H48M5.4775807S"
"""TimeSpan.MaxValue, which means "for ever"."""

UNIX_EPOCH_TICKS: Final = 621_355_968_000_000_000
# Python's SDK reads INFINITE in microseconds and sends back ...5.477539S (semantics A §5.2). So
# every TimeSpan within a day of the largest means the same.
_INFINITE_FROM: Final = MAX_TICKS // TICKS_PER_DAY * TICKS_PER_DAY

_ISO: Final = re.compile(
    r"(?P<sign>-?)P(?:(?P<years>\d{1,7})Y)?(?:(?P<months>\d{1,7})M)?(?:(?P<days>\d{1,8})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,10})H)?(?:(?P<minutes>\d{1,11})M)?"
    r"(?:(?P<seconds>\d{1,12})(?:\.(?P<fraction>\d{1,12}))?S)?)?",
    re.ASCII,
)
_TIMESPAN: Final = re.compile(
    r"(?P<sign>-?)(?:(?P<days>\d{1,8})\.)?(?P<hours>\d{1,2}):(?P<minutes>\d{1,2})"
    r"(?::(?P<seconds>\d{1,2})(?:\.(?P<fraction>\d{1,7}))?)?",
    re.ASCII,
)


class BadDuration(ValueError):
    """The text is no duration. The caller knows its place and says so."""


def parse_iso(text: str) -> int:
    """Ticks of an ISO 8601 duration. Years and months count as .NET counts them: 365 and 30 days.

    Digits below a tick are cut off.
    """
    match = _ISO.fullmatch(text)
    if match is None or text.endswith("P"):
        raise BadDuration(f"'{_shortened(text)}' is not an ISO 8601 duration such as 'PT1M'")
    number = {name: int(value or 0) for name, value in match.groupdict().items() if name in _UNITS}
    ticks = sum(count * _UNITS[name] for name, count in number.items())
    return _signed(ticks + _fraction_ticks(match["fraction"]), match["sign"], text)


def parse_timespan(text: str) -> int:
    """Ticks of a .NET TimeSpan: `[d.]hh:mm[:ss[.fffffff]]`."""
    match = _TIMESPAN.fullmatch(text)
    if match is None:
        raise BadDuration(f"'{_shortened(text)}' is not a time span such as '00:01:00'")
    days, hours, minutes, seconds = (
        int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds")
    )
    if hours > 23 or minutes > 59 or seconds > 59:
        raise BadDuration(f"'{text}' has more hours, minutes or seconds than a clock shows")
    ticks = (
        days * TICKS_PER_DAY
        + hours * TICKS_PER_HOUR
        + minutes * TICKS_PER_MINUTE
        + seconds * TICKS_PER_SECOND
        + _fraction_ticks(match["fraction"])
    )
    return _signed(ticks, match["sign"], text)


def parse_duration(text: str) -> int:
    """Ticks of either form; the emulator's Config.json takes both."""
    return parse_iso(text) if text.lstrip("-").startswith("P") else parse_timespan(text)


def format_iso(ticks: int) -> str:
    """The shortest ISO 8601 duration with days as the largest unit, as .NET writes it."""
    sign, rest = ("-", -ticks) if ticks < 0 else ("", ticks)
    days, rest = divmod(rest, TICKS_PER_DAY)
    hours, rest = divmod(rest, TICKS_PER_HOUR)
    minutes, rest = divmod(rest, TICKS_PER_MINUTE)
    seconds, fraction = divmod(rest, TICKS_PER_SECOND)
    clock = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if fraction:
        clock += f"{seconds}.{fraction:07d}".rstrip("0") + "S"
    elif seconds or not (days or clock):
        clock += f"{seconds}S"
    return f"{sign}P" + (f"{days}D" if days else "") + (f"T{clock}" if clock else "")


def format_timespan(ticks: int) -> str:
    """.NET's own form, which Azure uses inside error texts: `25.00:00:00`."""
    sign, rest = ("-", -ticks) if ticks < 0 else ("", ticks)
    days, rest = divmod(rest, TICKS_PER_DAY)
    hours, rest = divmod(rest, TICKS_PER_HOUR)
    minutes, rest = divmod(rest, TICKS_PER_MINUTE)
    seconds, fraction = divmod(rest, TICKS_PER_SECOND)
    text = f"{sign}{days}." if days else sign
    text += f"{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{text}.{fraction:07d}" if fraction else text


def is_infinite(ticks: int) -> bool:
    """Does this span mean "for ever"?"""
    return ticks >= _INFINITE_FROM


def ticks_of_instant(instant: Instant) -> int:
    """The .NET DateTime ticks of a point in time: counted from 0001-01-01T00:00:00Z."""
    return UNIX_EPOCH_TICKS + min(instant, NEVER) * TICKS_PER_MS


def instant_of_ticks(ticks: int) -> Instant:
    """The point in time of .NET DateTime ticks; the part below a millisecond is cut off."""
    return (ticks - UNIX_EPOCH_TICKS) // TICKS_PER_MS


_UNITS: Final = {
    "years": 365 * TICKS_PER_DAY,
    "months": 30 * TICKS_PER_DAY,
    "days": TICKS_PER_DAY,
    "hours": TICKS_PER_HOUR,
    "minutes": TICKS_PER_MINUTE,
    "seconds": TICKS_PER_SECOND,
}


def _fraction_ticks(digits: str | None) -> int:
    return int(digits[:7].ljust(7, "0")) if digits else 0


def _signed(ticks: int, sign: str, text: str) -> int:
    if ticks > MAX_TICKS:
        raise BadDuration(f"'{_shortened(text)}' is longer than the longest duration, {INFINITE}")
    return -ticks if sign else ticks


def _shortened(text: str) -> str:
    return text if len(text) <= 64 else text[:63] + "…"


# The names of days and months in the standard library follow the locale; HTTP's do not.
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)
_FORM: Final = re.compile(
    rf"({'|'.join(_DAYS)}), (\d\d) ({'|'.join(_MONTHS)}) (\d{{4}}) (\d\d):(\d\d):(\d\d) GMT",
    re.ASCII,
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST: Final[Instant] = -62_135_596_800_000
"""0001-01-01T00:00:00Z, the first instant that can be written."""


class BadDate(ValueError):
    """The text is no date of this form. The caller knows its place and says so."""


def parse_httpdate(text: str) -> Instant:
    """Reads `Tue, 30 Jun 2015 20:53:02 GMT` (RFC 1123, RFC 9110 §5.6.7)."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise BadDate(f"'{text[:64]}' is not a date such as 'Tue, 30 Jun 2015 20:53:02 GMT'")
    day, month, year, hour, minute, second = (
        int(match[2]),
        _MONTHS.index(match[3]) + 1,
        *map(int, match.group(4, 5, 6, 7)),
    )
    try:
        when = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError as error:
        raise BadDate(f"'{text}' is not a date: {error}") from None
    if _DAYS[when.weekday()] != match[1]:
        raise BadDate(f"'{text}' is not a date: that day is a {_DAYS[when.weekday()]}")
    return (when - _EPOCH) // timedelta(milliseconds=1)


def is_httpdate(instant: Instant) -> bool:
    """Can this instant be written in this form?"""
    return EARLIEST <= instant <= NEVER


def format_httpdate(instant: Instant) -> str:
    """The text in whole seconds, because the form has no more; the rest is cut off."""
    when = _EPOCH + timedelta(milliseconds=instant)
    return (
        f"{_DAYS[when.weekday()]}, {when.day:02d} {_MONTHS[when.month - 1]} {when.year:04d} "
        f"{when.hour:02d}:{when.minute:02d}:{when.second:02d} GMT"
    )
