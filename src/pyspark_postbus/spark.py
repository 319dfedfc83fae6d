"""The Spark session of a pipeline: the caller's own, a cluster's, or a session on this machine."""

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from pyspark_postbus.java import find_java, own_folder

_QUIET: Final = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n%ex{short}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""
_ZONE: Final = "spark.sql.session.timeZone"
_SETTINGS: Final = {
    _ZONE: "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Times in frames that reach Python are UTC, and Arrow's data is not copied.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A few hundred aggregated rows are not worth two hundred tasks.
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.enabled": "true",
}
_LOCAL: Final = {
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def session(
    name: str = "postbus",
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    quiet: bool = True,
) -> SparkSession:
    """The active session, or a new session, which takes 8 to 15 seconds to start.

    `master` is Spark's address of a cluster (`spark://host:7077`, `yarn`, `local[4]`), or
    `sc://host` for Spark Connect. Without it SPARK_REMOTE and MASTER are asked, and then this
    machine is used.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    master = master or os.environ.get("SPARK_REMOTE") or os.environ.get("MASTER") or "local[*]"
    # Workers must be of the Python that has this package, which need not be the first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder: SparkSession.Builder = SparkSession.builder
    if master.startswith("sc://"):
        # The rest of ours is for a process that is started.
        remote = {_ZONE: _SETTINGS[_ZONE], **(settings or {})}
        for key, value in remote.items():
            builder = builder.config(key, value)
        return builder.remote(master).getOrCreate()
    os.environ["JAVA_HOME"] = str(find_java().home)
    chosen = dict(_SETTINGS)
    if master.startswith("local"):
        chosen |= _LOCAL
    if quiet:
        chosen["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_quiet_logs()}"
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    return builder.appName(name).master(master).getOrCreate()


def _quiet_logs() -> str:
    """A file for log4j by which only errors are told. Spark's own warns of every loopback
    address."""
    place = own_folder() / "log4j2.properties"
    if not place.exists() or place.read_text() != _QUIET:
        new = place.with_name(f"{place.name}.{os.getpid()}")
        new.write_text(_QUIET)
        new.replace(place)
    return place.as_uri()
