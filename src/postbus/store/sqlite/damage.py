"""Checks that a store could have written the values it reads.

SQLite keeps no checksum, so a page that rotted may still be a page: a number instead of a blob, a
blob cut short, nothing at all. A damaged value must not reach the engine, nor surface as a
TypeError in code that uses it: the store has failed, and says so.
"""

from collections.abc import Iterable
from typing import Any

from postbus.store import batch


class Damaged(Exception):
    """No store wrote this value. `Database` stops the store for it."""


def check_numbers(values: Iterable[Any], what: str) -> None:
    for value in values:
        if type(value) is not int:
            raise Damaged(f"{what} has {_kind(value)} for a number")


def check_blob(value: Any, what: str) -> None:
    if type(value) is not bytes:
        raise Damaged(f"{what} has {_kind(value)} for its bytes")


def check_batch(fragment: int, base: int, count: Any, data: Any) -> None:
    """Whole, unchanged, of a known format, and in the place it was written for."""
    what = f"the batch at {base} of fragment {fragment}"
    check_blob(data, what)
    try:
        header = batch.unpack(data)
    except batch.BatchCorrupt as error:
        raise Damaged(f"{what}: {error}") from error
    _check_place(what, header, fragment, base, count)


def check_header(fragment: int, base: int, count: Any, data: bytes, size: int) -> None:
    """Check all but the records, which are left to the decoder. Only the header of `data` is looked
    at; `size` is the size of the whole batch."""
    what = f"the batch at {base} of fragment {fragment}"
    try:
        header = batch.header_at(data, 0)
    except batch.BatchCorrupt as error:
        raise Damaged(f"{what}: {error}") from error
    if batch.HEADER_SIZE + header.length != size:
        raise Damaged(f"{what} was written with {header.length} bytes, {size} are there")
    _check_place(what, header, fragment, base, count)


def _check_place(what: str, header: batch.Header, fragment: int, base: int, count: Any) -> None:
    if (header.fragment, header.base) != (fragment, base):
        raise Damaged(
            f"{what} was written as the one at {header.base} of fragment {header.fragment}"
        )
    if count != header.record_count:
        raise Damaged(f"{what} has {header.record_count} records, not {count!r:.40}")


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"
