"""The view as a table of PostgreSQL. The names of `spark.upsert`."""

from spark.upsert import upsert

__all__ = ["upsert"]
