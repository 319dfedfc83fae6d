"""The Spark data source `postbus`: change feed and messages in, messages out (docs/spark.md)."""

from pyspark_postbus.source import PostbusDataSource as DefaultSource

__all__ = ["DefaultSource"]
