"""A Spark session with the settings that the jobs need. The names of `spark.session`."""

from reconsume.spark.session import build

__all__ = ["build"]
