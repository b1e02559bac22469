"""The files of a checkpoint, on any file system: how Spark writes them, and how this package reads and changes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from reconsume.spark.java import classes
from reconsume.spark.renewal import forgotten, topics_in

__all__ = ["write_plainly"]

WRITTEN_BY = "spark.sql.streaming.checkpointFileManagerClass"
"""The Spark setting that names the class by which checkpoint files are written."""
PACKAGES = ("org.apache.spark.sql.execution.streaming", "org.apache.spark.sql.execution.streaming.checkpointing")
"""The Java packages that have Spark's classes for checkpoint files: in 4.0, and in later versions."""
PLAIN = "FileSystemBasedCheckpointFileManager"
"""The class that uses Hadoop's plainer interface. This package sets it only for a local disk."""


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


@contextmanager
def written_plainly(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """Write the checkpoints of queries that are started in the `with` block as `write_plainly` would, and no others."""
    before = spark.conf.get(WRITTEN_BY, None)
    write_plainly(spark, checkpoint)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(WRITTEN_BY)


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


class Folder:
    """A folder that holds checkpoints, read and written as Spark does it.

    Each file is written whole or not at all. `place` is the folder's path or URI. A query's checkpoint is a folder in
    it, whose name is `query`; `.` is the folder itself. The constructor and all methods raise an error of Java as it
    is: py4j.protocol.Py4JJavaError or pyspark.errors.PySparkException.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._java, self._base = classes(spark), path.rstrip("/")
        settings = spark._jsparkSession.sessionState().newHadoopConf()
        package = manager_package(spark)
        if settings.get(WRITTEN_BY) == f"{package}.{PLAIN}":
            settings.unset(WRITTEN_BY)  # this class never replaces an existing file, and raises no error
        self._files = java_class(spark, f"{package}.CheckpointFileManager").create(self._path(""), settings)

    def placed(self, query: str) -> frozenset[str]:
        """Return the topics for which the query's checkpoint has offsets; an empty set if there is no checkpoint.

        These are the offsets at which the last planned batch begins and ends. Raises ValueError if an entry is not
        JSON.
        """
        return frozenset[str]().union(*(topics_in(self.read(entry)) for entry in self._entries(query)))

    def forget(self, query: str, topics: Collection[str]) -> None:
        """Remove the offsets in `topics` from the query's checkpoint. The query must not run.

        Raises ValueError if an entry is not JSON.
        """
        for entry in self._entries(query):
            self.write(entry, forgotten(self.read(entry), topics))

    def drop(self, query: str) -> None:
        """Remove the query's checkpoint. The query must not run."""
        self._files.delete(self._path(query))

    def _entries(self, query: str) -> list[str]:
        """Return the files with the offsets at which the last planned batch ends, and at which it begins."""
        folder = f"{query}/offsets"
        if not self._files.exists(self._path(folder)):
            return []
        names = [str(status.getPath().getName()) for status in self._files.list(self._path(folder))]
        last = sorted((int(name) for name in names if name.isdecimal()), reverse=True)[:2]
        return [f"{folder}/{number}" for number in last]

    def read(self, name: str) -> str:
        """Return the text of a file (UTF-8); an empty text if there is no such file."""
        if not self._files.exists(self._path(name)):
            return ""
        stream = self._files.open(self._path(name))
        try:
            return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a text into a file as UTF-8; a file that is there is replaced."""
        self._files.mkdirs(self._path(name).getParent())
        # Spark's own FileSystemBasedCheckpointFileManager never replaces a file, and raises no error.
        stream = self._files.createAtomic(self._path(name), True)
        try:
            stream.write(bytearray(text.encode()))
        except BaseException:
            stream.cancel()
            raise
        stream.close()

    def _path(self, name: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(f"{self._base}/{name}")
