"""One job at a time on one checkpoint: a lock on a file in it, which Spark's Java process holds as long as it lives.

Spark itself notices two jobs only when both have planned the same batch. Then the query of either may fail, and both
have written the batch's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from reconsume.spark.checkpoint import scheme
from reconsume.spark.errors import TakenError, first_line
from reconsume.spark.java import classes

LOCK = "job.lock"
"""The locked file. It is empty, and stays behind: only the lock counts."""


def claim(spark: SparkSession, checkpoint: str, say: Callable[[str], None]) -> Any:
    """Lock the checkpoint (a path or URI) for this job, and return the lock. Keep it, or Java collects it as garbage.

    The lock belongs to the Java process: it is Java that writes the checkpoint, and it may outlive a driver that was
    killed. Returns None, and locks nothing, if the checkpoint is not in a local file system (NFS is one). It also does
    so, and tells `say`, if the file cannot be locked; the queries will report a folder that cannot be written.

    Raises TakenError if another job holds the lock.
    """
    if scheme(spark, checkpoint) != "file":
        return None
    java = classes(spark)
    folder = java.java.io.File(java.org.apache.hadoop.fs.Path(checkpoint).toUri().getPath())
    try:
        folder.mkdirs()
        lock = java.java.io.RandomAccessFile(java.java.io.File(folder, LOCK), "rw").getChannel().tryLock()
    except Py4JJavaError as error:
        fault = first_line(error.java_exception)
        say(f"{checkpoint} cannot be locked, so a second job on it would go unnoticed: {fault}")
        return None
    if lock is None:
        raise TakenError(f"{checkpoint} is in use by another job; a checkpoint serves one job at a time")
    return lock
