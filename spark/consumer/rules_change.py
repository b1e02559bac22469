"""What a change of the rules needs of the checkpoint. Main topics and partitions may be added at any time; one that is
taken away has places in the checkpoint, and Spark takes a topic that is not read any more for one that was lost."""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark.checkpoint import Folder
from spark.consumer.rules import Rules

QUERY = "."
"""The checkpoint itself, in its own folder."""


def forget_topics(session: SparkSession, checkpoint: str, rules: Rules) -> list[str]:
    """Have the query's checkpoint forget every main topic that `rules` does not name; those that it forgot, sorted.

    Before the query starts, and never while it runs. What was unread of them stays unread: should one come back, it is
    read from its first record. Does nothing to a checkpoint that is not there yet.
    """
    folder = Folder(session, checkpoint)
    removed = sorted(folder.placed(QUERY) - {*rules.topics, rules.names.ready})
    if removed:
        folder.forget(QUERY, removed)
    return removed
