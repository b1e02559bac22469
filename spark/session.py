"""Build the Spark session, and set memory and time zone, each with its reason.

Only this module changes the process's environment, which the JVM and Spark's Python workers inherit.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

__all__ = ["build"]

SETTINGS: dict[str, str] = {
    # A checkpoint fixes this number, so it is set before the first start. With 200, Spark's default, a batch of
    # 200 events takes 5 s instead of 0.4 s.
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
}
"""The settings of every session; the caller's options override them."""
LOCAL: dict[str, str] = {
    # Driver and executor are one process: no other machine needs to reach it.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""The settings of a session whose master is local."""
JAVA_OPTIONS = "SPARK_SUBMIT_OPTS"
"""The environment variable with Java options of which Spark's own settings override each."""


def build(
    name: str, *, jars: Sequence[Path] = (), master: str = "local[2]", options: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the Spark session of this process; start it if there is none.

    `name` is the name of the Spark application. `jars` are the paths of the Kafka connector's jars; Spark resolves and
    downloads nothing. `master` is Spark's master URL; an empty text leaves the choice to spark-submit. `options` are
    Spark settings, name to text, and override SETTINGS and LOCAL.

    It also sets the environment variables MALLOC_ARENA_MAX and PYSPARK_PYTHON if they are not set.

    Raises pyspark.errors.PySparkRuntimeError if Java does not start.
    """
    # glibc gives each thread an arena of its own, which makes the driver's memory grow.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    # Otherwise Spark's workers run the `python3` of PATH, not the Python of this process.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    settings = dict(SETTINGS)
    if master:
        builder = builder.master(master)
    if master.startswith("local"):
        settings |= LOCAL
    if jars:
        settings["spark.jars"] = ",".join(str(jar) for jar in jars)
    for key, value in {**settings, **(options or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def java_folder(*options: str) -> Iterator[None]:
    """Give the Java process that is started inside a temporary folder of its own, which goes with it.

    Spark's folders in it (blocks, jars) stay where Java is killed or runs out of memory, and Java does
    not read TMPDIR. A `spark.local.dir` of the user's comes before it, and so does `java.io.tmpdir` among the driver's
    options. `options` are more options of Java, which are overridden in the same way.
    """
    users = os.environ.get(JAVA_OPTIONS, "")
    with tempfile.TemporaryDirectory(prefix="reconsume-java-", ignore_cleanup_errors=True) as folder:
        os.environ[JAVA_OPTIONS] = " ".join([*map(quoted, (f"-Djava.io.tmpdir={folder}", *options)), users])
        try:
            yield
        finally:
            os.environ[JAVA_OPTIONS] = users


def quoted(option: str) -> str:
    """Return an option as Spark's launcher reads it: as one, whatever is in it."""
    escaped = option.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'
