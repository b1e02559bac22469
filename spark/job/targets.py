"""Write rows only to topics that exist; all others are counted and never fail their batch."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from reconsume.spark.job.progress import WRITTEN


def deliverable(records: DataFrame, topics: Sequence[str]) -> DataFrame:
    """Return the records whose `topic` is one of `topics`.

    The number of all other records, and one of their topics, are observed as WRITTEN. A query's state, or a batch that
    was planned before a stop, may hold rows of groups that were removed since.
    """
    is_there = fn.col("topic").isin(list(topics))
    missing = fn.max(fn.when(~is_there, fn.col("topic"))).alias("topic")
    return records.observe(WRITTEN, fn.count_if(~is_there).alias("homeless"), missing).where(is_there)
