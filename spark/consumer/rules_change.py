"""Adapt a checkpoint to changed rules.

Main topics and partitions can be added at any time. A main topic that is removed still has offsets in the checkpoint.
Spark takes a topic that is not read any more for a topic that was lost.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from reconsume.spark.consumer.rules import Rules


def forget_topics(session: SparkSession, checkpoint: str, rules: Rules) -> list[str]:
    """Remove the offsets of main topics that `rules` does not name from a query's checkpoint, and return these topics.

    The result is a sorted list of names. `checkpoint` is the path or URI that the query has as `checkpointLocation`.
    Call it before the query starts, never while it runs. Unread records of a removed topic stay unread; if the topic is
    added again, it is read from its first record. A checkpoint that does not exist yet is not changed.

    Raises py4j.protocol.Py4JJavaError or pyspark.errors.PySparkException if the checkpoint cannot be read or written.
    Raises ValueError if an entry of its offset log is not JSON. Raises ImportError in a client of Spark Connect.
    """
    try:
        from reconsume.spark.checkpoint import OffsetLog  # here only: it needs py4j
    except ImportError as missing:
        raise ImportError("forget_topics needs Java, which a client of Spark Connect does not have") from missing
    log = OffsetLog(session, checkpoint)
    removed = sorted(log.topics() - {*rules.topics, rules.names.ready})
    if removed:
        log.forget(removed)
    return removed
