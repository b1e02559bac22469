"""How Spark writes the files of a checkpoint on a local disk."""

from __future__ import annotations

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
