"""The view as a table of Delta Lake or Iceberg. The names of `spark.tables`."""

from reconsume.spark.tables import merge_into

__all__ = ["merge_into"]
