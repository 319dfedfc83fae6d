"""What a store reads is held against what it can have written.

SQLite keeps no checksum, so a page that rotted may still be a page: a number where a blob was, a
blob cut short, nothing at all. Such a value must not reach the engine, nor come out as a TypeError
of whoever trips over it first: it is the store that has failed.
"""

from collections.abc import Iterable
from typing import Any

from postbus.store import batch


class Damaged(Exception):
    """This was not written here. `Database` stops the store for it."""


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
    """The same but for its records, which are left to whoever decodes them: of `data`, the header
    is looked at alone, and `size` is that of the whole batch."""
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
