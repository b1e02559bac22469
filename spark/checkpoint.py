"""The files of a checkpoint, on any file system: how Spark writes them, and the topics in its offset log.

The consumers use it; the job of the view has no checkpoint that lasts.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import reduce
from typing import Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from reconsume.spark.java import classes

__all__ = ["write_plainly"]

WRITTEN_BY = "spark.sql.streaming.checkpointFileManagerClass"
"""The Spark setting that names the class by which checkpoint files are written."""
PACKAGES = ("org.apache.spark.sql.execution.streaming", "org.apache.spark.sql.execution.streaming.checkpointing")
"""The Java packages that have Spark's classes for checkpoint files: in 4.0, and in later versions."""
PLAIN = "FileSystemBasedCheckpointFileManager"
"""The class that uses Hadoop's plainer interface. This package sets it only for a local disk."""
HEAD_LINES = 2
"""Lines of an entry of the offset log before those of its sources: its version, and a line about the batch."""


def write_plainly(spark: SparkSession, checkpoint: str) -> None:
    """Make Spark write a checkpoint on a local disk with two processes for each file instead of ten.

    Call it before the query starts; `checkpoint` is the checkpoint's path or URI. It sets
    `spark.sql.streaming.checkpointFileManagerClass` in the session. A setting that is there already stays.

    The two processes are `chmod`. The others are `readlink`: Spark prefers another interface of Hadoop because of its
    rename, and that interface starts them. They cost some 150 ms of every batch. On a local disk both interfaces rename
    by rename(2). On other file systems, such as HDFS, they differ, and Spark's choice stays.

    A checkpoint that Hadoop cannot reach is no error here: the query reports it when it starts.
    """
    if spark.conf.get(WRITTEN_BY, None) is None and scheme(spark, checkpoint) == "file":
        spark.conf.set(WRITTEN_BY, f"{manager_package(spark)}.{PLAIN}")


def manager_package(spark: SparkSession) -> str:
    """Return the name of the Java package that has the classes for checkpoint files in this version of Spark."""
    former, present = PACKAGES
    return former if isinstance(java_class(spark, f"{former}.{PLAIN}"), JavaClass) else present


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class by its full name; a package of Py4J's if there is no such class."""
    return reduce(getattr, name.split("."), classes(spark))


def scheme(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the scheme (such as `file`) of the checkpoint's file system; None if Hadoop has no such file system."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    try:
        return str(classes(spark).org.apache.hadoop.fs.Path(checkpoint).getFileSystem(settings).getUri().getScheme())
    except (Py4JJavaError, PySparkException):
        return None  # the query that is started there reports the error, with its reason


class OffsetLog:
    """The offset log of a checkpoint: at which offsets the last planned batch ends, and at which it begins.

    It is read and written as Spark does it, each file whole or not at all. `checkpoint` is the checkpoint's path or
    URI. The constructor and all methods raise an error of Java as it is, py4j.protocol.Py4JJavaError or
    pyspark.errors.PySparkException, and ValueError if an entry is not JSON.
    """

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._java, self._folder = classes(spark), f"{checkpoint.rstrip('/')}/offsets"
        settings = spark._jsparkSession.sessionState().newHadoopConf()
        package = manager_package(spark)
        if settings.get(WRITTEN_BY) == f"{package}.{PLAIN}":
            settings.unset(WRITTEN_BY)  # this class never replaces an existing file, and raises no error
        self._files = java_class(spark, f"{package}.CheckpointFileManager").create(self._path(""), settings)

    def topics(self) -> frozenset[str]:
        """Return the topics for which the log has offsets; an empty set if there is no checkpoint."""
        sources = (
            source_of(line) or {} for number in self._last() for line in self._read(number).splitlines()[HEAD_LINES:]
        )
        return frozenset[str]().union(*sources)

    def forget(self, topics: Collection[str]) -> None:
        """Remove the offsets in `topics`. The query must not run."""
        for number in self._last():
            self._write(number, forgotten(self._read(number), topics))

    def _last(self) -> list[int]:
        """Return the numbers of the last planned batch and of the one before it."""
        if not self._files.exists(self._path("")):
            return []
        names = [str(status.getPath().getName()) for status in self._files.list(self._path(""))]
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)[:2]

    def _read(self, number: int) -> str:
        stream = self._files.open(self._path(str(number)))
        try:
            return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _write(self, number: int, text: str) -> None:
        stream = self._files.createAtomic(self._path(str(number)), True)
        try:
            stream.write(bytearray(text.encode()))
        except BaseException:
            stream.cancel()
            raise
        stream.close()

    def _path(self, name: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(f"{self._folder}/{name}")


def forgotten(entry: str, topics: Collection[str]) -> str:
    """Return an entry of the offset log without the offsets in `topics`."""
    lines = entry.split("\n")
    return "\n".join(lines[:HEAD_LINES] + [source_without(line, topics) for line in lines[HEAD_LINES:]])


def source_without(line: str, topics: Collection[str]) -> str:
    """Return the line of one source without the offsets in `topics`."""
    source = source_of(line)
    if source is None or not source.keys() & set(topics):
        return line
    kept = {topic: offsets for topic, offsets in source.items() if topic not in topics}
    return json.dumps(kept, separators=(",", ":"))


def source_of(line: str) -> dict[str, Any] | None:
    """Return the offsets, by topic, in the line of a Kafka source of Spark; None if the line is of another source."""
    source = json.loads(line) if line.strip() not in ("", "-") else None
    # The gated source of a consumer keeps its offsets one level deeper, and checks topic ids itself.
    return source if isinstance(source, dict) and not source.keys() >= {"next", "dropped"} else None
