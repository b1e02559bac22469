"""How the files of a checkpoint are written, and what we read and keep of one, on whatever file system it is."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark.java import classes
from spark.renewal import forgotten, topics_in

WRITTEN_BY = "spark.sql.streaming.checkpointFileManagerClass"
PLAINLY = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"


def write_plainly(spark: SparkSession, checkpoint: str) -> None:
    """Have a checkpoint on a local disk written with two processes for each file, `chmod`, instead of ten.

    The others are `readlink`, of the interface of Hadoop that Spark takes for the sake of its rename; together they are
    some 150 ms of every batch. On a local disk both rename by rename(2). Elsewhere, as in HDFS, they differ, and what
    Spark takes stays; so does a choice that is set.
    """
    if spark.conf.get(WRITTEN_BY, None) is None and scheme(spark, checkpoint) == "file":
        spark.conf.set(WRITTEN_BY, PLAINLY)


def scheme(spark: SparkSession, checkpoint: str) -> str | None:
    """That of the file system which has the checkpoint; None where there is none."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    try:
        return str(classes(spark).org.apache.hadoop.fs.Path(checkpoint).getFileSystem(settings).getUri().getScheme())
    except (Py4JJavaError, PySparkException):
        return None  # the query that is to be started there says it, with the reason


class Folder:
    """A place with checkpoints, as Spark itself reads and writes them: each file whole or not at all.

    What Java raises is raised.
    """

    def __init__(self, spark: SparkSession, place: str) -> None:
        self._java, self._place = classes(spark), place.rstrip("/")
        settings = spark._jsparkSession.sessionState().newHadoopConf()
        if settings.get(WRITTEN_BY) == PLAINLY:
            settings.unset(WRITTEN_BY)  # it never replaces a file that is there, and does not say so
        manager = self._java.org.apache.spark.sql.execution.streaming.CheckpointFileManager
        self._files = manager.create(self._path(""), settings)

    def placed(self, query: str) -> frozenset[str]:
        """The topics in which the query's checkpoint has a place: in the last batch that was planned, or before it."""
        return frozenset[str]().union(*(topics_in(self.read(entry)) for entry in self._entries(query)))

    def forget(self, query: str, topics: Collection[str]) -> None:
        """Have the query's checkpoint know no place in the topics; the query must not run."""
        for entry in self._entries(query):
            self.write(entry, forgotten(self.read(entry), topics))

    def _entries(self, query: str) -> list[str]:
        """The offsets at which the last batch that was planned ends, and where it begins."""
        folder = f"{query}/offsets"
        if not self._files.exists(self._path(folder)):
            return []
        names = [str(status.getPath().getName()) for status in self._files.list(self._path(folder))]
        last = sorted((int(name) for name in names if name.isdecimal()), reverse=True)[:2]
        return [f"{folder}/{number}" for number in last]

    def read(self, name: str) -> str:
        """A file's text; empty where there is none."""
        if not self._files.exists(self._path(name)):
            return ""
        stream = self._files.open(self._path(name))
        try:
            return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a file, in place of the one that may be there."""
        self._files.mkdirs(self._path(name).getParent())
        stream = self._files.createAtomic(self._path(name), True)
        try:
            stream.write(bytearray(text.encode()))
        except BaseException:
            stream.cancel()
            raise
        stream.close()

    def _path(self, name: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(f"{self._place}/{name}")
