"""Files of the archive: what a task writes and says of them, whatever zone the session is in."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from pyspark_postbus.pipelines.lake import Lake, NotAnArchive, Source, instant
from pyspark_postbus.pipelines.lake_files import writing


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Pacific/Auckland"])
def test_days_and_bounds_are_of_utc_in_whatever_zone_the_session_is(
    tmp_path: Path, zone: str
) -> None:
    times = [
        datetime(2026, 1, 1, 23, 30, tzinfo=UTC),
        datetime(2026, 1, 2, 0, 30, tzinfo=UTC),
        datetime(2026, 1, 2, 22, 0, tzinfo=UTC),
    ]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["orders"] * 3),
            pa.array([0] * 3, pa.int32()),
            pa.array(range(3), pa.int64()),
            pa.array(times, pa.timestamp("us", zone)),
        ],
        ["entity", "partition", "offset", "timestamp"],
    )
    [said] = writing(str(tmp_path), None, {})(iter([batch]))
    first, second = sorted(said.to_pylist(), key=lambda row: row["date"])
    assert (first["date"], first["rows"]) == ("2026-01-01", 1)
    assert (second["date"], second["rows"]) == ("2026-01-02", 2)
    # Readers pass over files by these: an hour too late, and its events are not found.
    stats = json.loads(second["stats"])
    assert stats["minValues"]["timestamp"] == "2026-01-02T00:30:00.000Z"
    assert stats["maxValues"]["timestamp"] == "2026-01-02T22:00:00.000Z"
    stored = pq.read_table(tmp_path / second["path"], partitioning=None)
    assert stored["timestamp"].type == pa.timestamp("us", "UTC")
    assert stored["timestamp"].to_pylist() == times[1:]


def test_a_time_without_a_zone_is_utc_and_others_are_turned_into_it() -> None:
    noon = datetime(2026, 1, 2, 12, tzinfo=UTC)
    assert instant(datetime.fromisoformat("2026-01-02T12:00:00")) == noon
    assert instant(datetime.fromisoformat("2026-01-03T00:30:00+12:30")) == noon
    assert instant(datetime.fromisoformat("2026-01-03T00:30:00+12:30")).date() == noon.date()


@pytest.mark.parametrize("by", [None, ["entity", "date"]])
def test_a_table_of_something_else_is_left_as_it_is(tmp_path: Path, by: list[str] | None) -> None:
    rows = pa.table({"entity": ["a"], "date": ["2026-01-01"], "cups": [2]})
    write_deltalake(str(tmp_path), rows, partition_by=by)
    (tmp_path / "theirs").touch()
    lake = Lake(str(tmp_path))
    for use in (lambda: lake.ends([Source("a", 0, 1)]), lake.compact, lambda: lake.clean(0)):
        with pytest.raises(NotAnArchive, match="something else"):
            use()
    assert (tmp_path / "theirs").exists()
