"""The view: rows of events, as pure functions from DataFrame to DataFrame. The names of `spark.view`."""

from reconsume.spark.view import VALUE, events, newest, outputs, present, records, table, view

__all__ = ["VALUE", "events", "newest", "outputs", "present", "records", "table", "view"]
