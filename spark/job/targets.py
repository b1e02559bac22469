"""Rows go to topics that are there; all others are counted, and never fail the batch that they are in."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from spark.job.progress import WRITTEN


def deliverable(records: DataFrame, topics: Sequence[str]) -> DataFrame:
    """The records whose `topic` is one of `topics`. How many are not, and one such topic, are observed as WRITTEN.

    The state of a query, and a batch that was planned before a stop, may hold rows of groups that have gone since.
    """
    is_there = fn.col("topic").isin(list(topics))
    missing = fn.max(fn.when(~is_there, fn.col("topic"))).alias("topic")
    return records.observe(WRITTEN, fn.count_if(~is_there).alias("homeless"), missing).where(is_there)
