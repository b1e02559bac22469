"""The view as a table of PostgreSQL. The names of `spark.upsert`."""

from reconsume.spark.upsert import upsert

__all__ = ["upsert"]
