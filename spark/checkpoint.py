"""How the files of a checkpoint are written."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark.java import classes

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
