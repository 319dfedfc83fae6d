"""A driver that keeps the offsets it has read, one folder for each micro-batch.

    keep_offsets.py CONNECTION QUEUE FOLDER MASTER [--once]

A micro-batch that is read again replaces its folder, so what is there was read exactly once.
Told to be slow by a file `slow` in the folder, it stays within each micro-batch for a while.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame

from tests.support.spark import session_builder

connection, queue, folder, master = sys.argv[1:5]
base = Path(folder)
spark = session_builder(master).getOrCreate()


def keep(batch: DataFrame, number: int) -> None:
    target = base / "batches" / str(number)
    (base / "under-way").write_text(str(number))
    batch.write.mode("overwrite").parquet(str(target))
    if (base / "slow").exists():
        time.sleep(3)


stream = (
    spark.readStream.format("postbus")
    .option("connectionString", connection)
    .option("queue", queue)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", "700")
    .option("minPartitions", "2")
    .option("readerName", "keeper")
    .schema("offset long, operation string, messageId string, body binary")
    .load()
)
writer = stream.writeStream.foreachBatch(keep).option(
    "checkpointLocation", str(base / "checkpoint")
)
if "--once" in sys.argv:
    writer = writer.trigger(availableNow=True)
query = writer.start()
query.awaitTermination()
spark.stop()
