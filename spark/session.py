"""Build the Spark session, and set memory and time zone, each with its reason.

Only this module changes the process's environment, which the JVM and Spark's Python workers inherit.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from reconsume.sidecar.errors import ReconsumeError

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
JARS = ("spark.jars", "spark.jars.packages")
"""The settings by which a user names jars."""
JAVA_OPTIONS = "SPARK_SUBMIT_OPTS"
"""The environment variable with Java options of which Spark's own settings override each."""


def build(
    name: str,
    *,
    jars: Sequence[Path] | None = None,
    master: str = "local[2]",
    options: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the Spark session of this process; start it if there is none.

    `name` is the name of the Spark application. `jars` are the paths of the Kafka connector's jars; None takes the ones
    that `reconsume view run` uses: those of the lock file, downloaded once, checked and cached. `master` is Spark's
    master URL; an empty text leaves the choice to spark-submit. `options` are Spark settings, name to text, and
    override SETTINGS and LOCAL; with `spark.jars` or `spark.jars.packages` among them no jars are looked for.

    A session that is there is returned as it is. Nothing changes in it; a warning names each of `options` and `jars`
    that it does not have. A new session also sets the environment variables MALLOC_ARENA_MAX and PYSPARK_PYTHON if they
    are not set.

    Raises RuntimeError with Spark Connect, or if the jars cannot be had. Raises pyspark.errors.PySparkRuntimeError if
    Java does not start.
    """
    if is_remote():
        raise RuntimeError(
            "build starts Spark with Java in this process, and this is a client of Spark Connect: take the session of "
            "SparkSession.builder.getOrCreate(), whose server has Spark's Kafka connector"
        )
    wanted = dict(options or {})
    # Only here: a client of Spark Connect has no Py4J.
    from reconsume.spark.java import submitted

    if (there := SparkSession.getActiveSession() or SparkSession._instantiatedSession) is not None:
        warn_of_rest(there, wanted, jars or ())
        return there
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
    if jars is None and not submitted() and wanted.keys().isdisjoint(JARS):
        jars = connector_jars()
    if jars:
        settings["spark.jars"] = ",".join(str(jar) for jar in jars)
    for key, value in {**settings, **wanted}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def warn_of_rest(spark: SparkSession, wanted: Mapping[str, str], jars: Sequence[Path]) -> None:
    """Warn once of the settings and jars that a session which was there before does not have."""
    from reconsume.spark.java import connector_of

    loaded = {jar.rpartition("/")[2] for jar in spark.sparkContext.getConf().get("spark.jars", "").split(",")}
    rest = [f"{key}={value}" for key, value in wanted.items() if spark.conf.get(key, None) != value]
    rest += [str(jar) for jar in jars if Path(jar).name not in loaded]
    if connector_of(spark) is None:
        rest.append("Spark's Kafka connector, without which no table can be read")
    if rest:
        text = f"this process has a Spark session already, which stays as it is; it lacks {', '.join(rest)}"
        warnings.warn(text, stacklevel=3)


def connector_jars() -> list[Path]:
    """Return the jars of Spark's Kafka connector from the cache, which is filled if it must be.

    Raises RuntimeError, with the reason, if they cannot be had.
    """
    from reconsume.sidecar.java.spark_job import prepare  # only here: whoever names jars needs none of it

    try:
        return prepare()
    except ReconsumeError as error:
        raise RuntimeError(f"Spark's Kafka connector cannot be had: {error} (jars= names your own)") from error


@contextmanager
def java_folder() -> Iterator[None]:
    """Give the Java process that is started inside a temporary folder of its own, which goes with it.

    Spark's folders in it (blocks, jars) stay where Java is killed or runs out of memory, and Java does
    not read TMPDIR. A `spark.local.dir` of the user's comes before it, and so does `java.io.tmpdir` among the driver's
    options.
    """
    users = os.environ.get(JAVA_OPTIONS, "")
    with tempfile.TemporaryDirectory(prefix="reconsume-java-", ignore_cleanup_errors=True) as folder:
        os.environ[JAVA_OPTIONS] = f"{quoted(f'-Djava.io.tmpdir={folder}')} {users}"
        try:
            yield
        finally:
            os.environ[JAVA_OPTIONS] = users


def quoted(option: str) -> str:
    """Return an option as Spark's launcher reads it: as one, whatever is in it."""
    escaped = option.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'
