"""The sums of events by minute, topic, level and reason. The names of `spark.stats`."""

from reconsume.spark.stats import records, sums

__all__ = ["records", "sums"]
