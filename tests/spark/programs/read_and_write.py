"""A driver that writes rows to a queue, and says how many its history has; for any master.

read_and_write.py CONNECTION QUEUE MASTER FILE
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.spark import session_builder

connection, queue, master, file = sys.argv[1:5]
options = {"connectionString": connection, "queue": queue}
builder = session_builder(master)
if master.startswith("sc://"):
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(master)
elif master.startswith("spark://"):
    builder = builder.config("spark.executor.memory", "512m").config("spark.cores.max", "2")
spark = builder.getOrCreate()
rows = spark.range(0, 2_000, 1, 4).selectExpr("cast(id as string) as body")
rows.write.format("postbus").mode("append").options(**options).save()
feed = spark.read.format("postbus").options(**options, minPartitions="4").load()
total = feed.where("operation = 'enqueued'").selectExpr("sum(cast(cast(body as string) as long))")
Path(file).write_text(f"{feed.count()} {total.collect()[0][0]}")
stream = spark.readStream.format("postbus").options(**options, startingOffsets="earliest").load()
query = (
    stream.select("offset")
    .writeStream.format("parquet")
    .option("path", f"{file}.rows")
    .option("checkpointLocation", f"{file}.checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination(200)
assert query.exception() is None
streamed = spark.read.parquet(f"{file}.rows").distinct().count()
Path(file).write_text(f"{Path(file).read_text()} {streamed}")
spark.stop()
