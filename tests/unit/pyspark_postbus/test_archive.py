"""An archive of several entities: what ends it, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from pyspark_postbus.client import Feed, Fragment
from pyspark_postbus.pipelines.archive import Archive, ArchiveError, _stream, archive
from pyspark_postbus.pipelines.lake import Lake


@dataclass
class Query:
    """A query that ends, with or without an error, when it was waited for so many times."""

    waits: int
    error: Exception | None = None
    others: list[Query] = field(default_factory=list)
    stopped: bool = False

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self.waits > 0 and not self.stopped

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        for one in self.others:
            one.waits -= 1
        assert timeout is not None or not self.isActive, "it would wait for ever"
        if self.isActive:
            return False
        if self.error is not None:
            raise self.error
        return True

    def stop(self) -> None:
        self.stopped = True


def test_the_failure_of_any_entity_ends_an_archive_of_several() -> None:
    failing = Query(1, LookupError("trimmed"))
    # It fails while the last one is waited for: the first would go on for ever.
    queries = [Query(1_000), failing, Query(1_000, others=[failing])]
    running = Archive(Lake("nowhere"), 60, cast("list[Any]", queries))
    with pytest.raises(LookupError, match="trimmed"):
        running.run()
    assert queries[0].stopped
    assert queries[2].stopped


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"compact_every": 0}, "compact_every"),
        ({"every_s": -1.0}, "every_s"),
        ({"events_max": 0}, "events_max"),
    ],
)
def test_a_number_that_cannot_be_is_refused_before_anything_is_started(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ArchiveError, match=problem):
        archive(cast("Any", None), "", "lake", ["orders"], **settings)


def test_an_archive_is_the_same_reader_after_a_restart_and_another_one_of_another_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed("orders", "queue", (Fragment(0, 7, 0, 900),), {})

    def name(table: str, end: int) -> str:
        monkeypatch.setattr(Lake, "ends", lambda *_: {0: end})
        spark = MagicMock()
        _stream(spark, "", feed, Lake(str(tmp_path / table)), {})
        given = spark.readStream.format.return_value.schema.return_value.options.call_args
        assert given.kwargs["startingOffsets"] == f'{{"0": {end}}}'
        return str(given.kwargs["readerName"])

    assert name("lake", 10) == name("lake", 500) != name("other", 10)
