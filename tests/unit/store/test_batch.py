import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.store import batch
from postbus.store.batch import BatchCorrupt

T0 = 1_700_000_000_000


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=200))
def test_what_was_packed_comes_back_with_its_positions(records: list[bytes]) -> None:
    data, positions = batch.pack(3, 7, 1 << 39, T0, records)

    header = batch.unpack(data)
    assert header[:5] == (3, 7, 1 << 39, T0, len(records))
    assert list(batch.records(data)) == list(zip(positions, records, strict=True))
    for position, record in zip(positions, records, strict=True):
        assert data[position : position + len(record)] == record
    assert batch.starts_of(b"before" + data + data, 6, header) == [6 + each for each in positions]


def test_the_bytes_are_the_documented_ones() -> None:
    # Written out by hand: an accidental change of the format would make old journals unreadable.
    data, positions = batch.pack(1, 2, 3, 4, [b"ab", b""])

    assert data == bytes.fromhex(
        "50425242 00000002 bbc983fb"
        "0000000000000001 0000000000000002 0000000000000003 0000000000000004"
        "00000002 0000000a"
        "00000002 6162 00000000"
    )
    assert positions == [56, 62]


@pytest.mark.parametrize("change", [0x01, 0x80, 0xFF])
def test_a_change_of_any_byte_is_found(change: int) -> None:
    data, _ = batch.pack(3, 7, 100, T0, [b"one", b"", b"three"])

    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= change
        with pytest.raises(BatchCorrupt):
            batch.unpack(bytes(damaged))


def test_a_batch_cut_short_or_with_more_behind_it_is_found() -> None:
    data, _ = batch.pack(3, 7, 100, T0, [b"one", b"two"])

    for length in range(len(data)):
        with pytest.raises(BatchCorrupt):
            batch.unpack(data[:length])
    with pytest.raises(BatchCorrupt):
        batch.unpack(data + b"\0")


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_never_a_batch(data: bytes) -> None:
    with pytest.raises(BatchCorrupt):
        batch.unpack(data)


def test_a_format_of_the_future_is_named() -> None:
    data, _ = batch.pack(3, 7, 100, T0, [b"one"])

    with pytest.raises(BatchCorrupt, match="format 3, known is 2"):
        batch.unpack(data[:4] + struct.pack(">I", 3) + data[8:])


@pytest.mark.parametrize(
    ("count", "payload", "text"),
    [
        (2, b"\0\0\0\x01a", "ends before the last"),
        (1, b"\0\0\0\x02a", "past the end"),
        (1, b"\0\0\0\x01ab", "1 bytes follow the last"),
    ],
)
def test_records_that_do_not_fill_their_batch_are_found(
    count: int, payload: bytes, text: str
) -> None:
    # Such a batch has a right checksum: its writer was wrong, not the disk.
    header = struct.pack(">4sIIQQQqII", b"PBRB", 1, 0, 1, 1, 0, T0, count, len(payload))

    with pytest.raises(BatchCorrupt, match=text):
        list(batch.records(header + payload))
    found = batch.Header(1, 1, 0, T0, count, len(payload))
    with pytest.raises(BatchCorrupt, match=r"do not fill it|ends before the last"):
        batch.starts_of(header + payload + payload, 0, found)


def test_a_batch_without_records_is_not_packed() -> None:
    with pytest.raises(ValueError, match="0 records"):
        batch.pack(1, 1, 0, T0, [])


@pytest.mark.interpreted_only
def test_a_batch_larger_than_a_store_takes_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "LENGTH_MAX", 13)

    batch.pack(1, 1, 0, T0, [b"012345678"])
    with pytest.raises(ValueError, match="14 bytes cannot be stored"):
        batch.pack(1, 1, 0, T0, [b"0123456789"])
