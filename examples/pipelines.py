# %% [markdown]
# # The history of a queue, on Spark
#
# Needs `pip install 'postbus[spark]'` and a broker (`make serve`) with a queue `orders`. Open it as
# a notebook (VS Code, Jupytext), or run it as a script with POSTBUS_CONNECTION_STRING set.

# %%
import os
from pathlib import Path

from pyspark_postbus.pipelines import deadletters, replay
from pyspark_postbus.pipelines.archive import archive
from pyspark_postbus.pipelines.inputs import read_dead_letters, read_feed
from pyspark_postbus.pipelines.report import report
from pyspark_postbus.pipelines.triage import triage
from pyspark_postbus.spark import session

connection = os.environ["POSTBUS_CONNECTION_STRING"]
queue = os.environ.get("QUEUE", "orders")
folder = Path(os.environ.get("FOLDER", "pipelines-example"))

# %% [markdown]
# A session takes some seconds. In a notebook of a Spark cluster the session that is there is used.

# %%
spark = session("example", master=os.environ.get("MASTER"))

# %% [markdown]
# ## Some traffic
#
# Rows of any DataFrame can be sent. Here they are orders, some of them without a customer.

# %%
orders = spark.range(200).selectExpr(
    "to_json(named_struct('order', id, 'customer', if(id % 10 = 0, null, 'c'))) AS body",
    "concat('order ', id) AS messageId",
    "'tea' AS subject",
)
orders.write.format("postbus").options(connectionString=connection, queue=queue).mode(
    "append"
).save()

# %% [markdown]
# ## What happened
#
# The change feed has an event for everything that happens to a message; reading it takes nothing
# away.

# %%
events = read_feed(spark, connection, queue)
events.groupBy("operation").count().show()

# %% [markdown]
# ## Keep it
#
# Each event exactly once in a Delta table, however often this is run, and killed.

# %%
table = str(folder / "lake")
kept = archive(spark, connection, table, [queue], once=True, told=print)
kept.lake.read(spark, columns=["offset", "operation"]).groupBy("operation").count().show()

# %% [markdown]
# ## Repair dead letters
#
# First look, then plan, then do. Without `resubmit` nothing is changed.

# %%
letters = read_dead_letters(spark, connection, queue)
triage(letters).kinds.show(truncate=80)
repair = deadletters.prepare(
    letters,
    queue,
    where="get_json_object(cast(body AS string), '$.customer') IS NULL",
    edits={"properties.customer": "'unknown'"},
)
print(repair.outcome)
print(repair.resubmit(connection))

# %% [markdown]
# ## Send some of it again

# %%
again = replay.prepare(spark, queue, table=table, where="messageId LIKE 'order 1%'")
print(f"{again.count()} could be sent again, for instance to where they were:")
print(again.send(connection, queue, rate=500))

# %% [markdown]
# ## See it

# %%
written = report(spark, folder / "report", connection, [queue])
print(f"{written.events} events: {written.page}")
