"""Points in time as HTTP writes them: `Tue, 30 Jun 2015 20:53:02 GMT` (RFC 1123, RFC 9110 §5.6.7).

With names of its own for days and months: those of the standard library follow the locale.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from postbus.model.instant import NEVER, Instant

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
    """The text is no date of this form. Whoever read it knows its place and says so."""


def parse_httpdate(text: str) -> Instant:
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
    """Can it be written so?"""
    return EARLIEST <= instant <= NEVER


def format_httpdate(instant: Instant) -> str:
    """In whole seconds, which is all the form has: the rest is cut off."""
    when = _EPOCH + timedelta(milliseconds=instant)
    return (
        f"{_DAYS[when.weekday()]}, {when.day:02d} {_MONTHS[when.month - 1]} {when.year:04d} "
        f"{when.hour:02d}:{when.minute:02d}:{when.second:02d} GMT"
    )
