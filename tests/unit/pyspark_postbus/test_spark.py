"""The session that pipelines run in, and where it may be."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from pyspark.errors import PySparkAttributeError

from pyspark_postbus import spark as sessions
from pyspark_postbus.pipelines.archive import ArchiveError, archive
from pyspark_postbus.pipelines.inputs import parallelism


class Remote:
    """A session of Spark Connect, which has no context."""

    @property
    def sparkContext(self) -> Any:  # noqa: N802
        raise PySparkAttributeError(
            errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED",
            messageParameters={"attr_name": "sparkContext"},
        )


def test_settings_reach_a_session_over_spark_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = MagicMock()
    kind.getActiveSession.return_value = None
    builder = kind.builder
    builder.config.return_value = builder.remote.return_value = builder
    monkeypatch.setattr(sessions, "SparkSession", kind)
    sessions.session("postbus", "sc://host:15002", {"spark.sql.shuffle.partitions": "3"})
    given = dict(call.args for call in builder.config.call_args_list)
    assert given == {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "3"}
    builder.remote.assert_called_once_with("sc://host:15002")


def test_a_table_is_read_over_spark_connect_too() -> None:
    assert parallelism(cast("Any", Remote())) > 0


def test_an_archive_over_spark_connect_is_refused_by_name() -> None:
    # Its batches would be committed by the server, which has nothing of this process.
    with pytest.raises(ArchiveError, match="Spark Connect"):
        archive(cast("Any", Remote()), "", "lake", ["orders"])
