"""The data source `postbus` as Spark sees it: the reader or writer that the options ask for.

Spark finds an installed package by itself, by the name `DefaultSource` in a package whose own name
begins with `pyspark_`. Each step of its planning may be a Python process of its own. So readers and
writers are imported only where they are used.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_postbus import columns
from pyspark_postbus.options import (
    BadOption,
    ReadOptions,
    WriteOptions,
    read_options,
    write_options,
)


class PostbusDataSource(DataSource):
    """`spark.read.format("postbus")`, `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "postbus"

    def schema(self) -> str:
        # Batch and stream have the same schema; options for only one of them are checked there.
        include = str(self.options.get("includeBody", "true")).strip().lower() != "false"
        return columns.ddl(name for name in columns.ALL if include or name != "body")

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, streaming=False)
        names = _names(schema, options)
        if options.mode == "messages":
            from pyspark_postbus.messages_reader import MessagesReader

            return MessagesReader(options, names)
        from pyspark_postbus.batch_reader import FeedReader, FilteringFeedReader

        return (FilteringFeedReader if options.push_filters else FeedReader)(options, names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from pyspark_postbus.stream_reader import FeedStreamReader

        options = read_options(self.options, streaming=True)
        return FeedStreamReader(options, _names(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_postbus.writers import BatchWriter

        return BatchWriter(_writable(self, overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from pyspark_postbus.writers import StreamWriter

        return StreamWriter(_writable(self, overwrite), schema)


def _names(schema: StructType, options: ReadOptions) -> tuple[str, ...]:
    given = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    names = columns.check(given)
    if not options.include_body and "body" in names:
        raise BadOption("the schema has a column 'body', and includeBody is false")
    return names


def _writable(source: PostbusDataSource, overwrite: bool) -> WriteOptions:
    if overwrite:
        raise BadOption("a queue or topic cannot be overwritten: use mode('append')")
    options = write_options(source.options)
    from pyspark_postbus.writers import check_target

    check_target(options)
    return options
