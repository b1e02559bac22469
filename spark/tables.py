"""Write the view into a table of a lakehouse (Delta Lake, Apache Iceberg): a function for `foreachBatch`.

The table is any that takes `MERGE INTO`. Its jars and the settings of its catalog are the session's; this module needs
neither, and no package beside PySpark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from reconsume.spark import view

__all__ = ["merge_into"]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INCOMING = "reconsume_incoming"
"""The temporary view that holds the rows of one batch, in the session of its query."""
SEGMENT = r"`(?:[^`]|``)+`|[^`.]+"
"""A part of a table's name: in backticks, or as it is."""
TEXTS = ("group", "id", "state", "level", "reason", "topic", "instance")
POSITION_TYPES = {"rank": "INT", "from_view": "BOOLEAN", "from_partition": "INT"}
"""The types of `place`, of which all others are BIGINT."""


def merge_into(spark: SparkSession, table: str, using: str | None = None) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that brings a table up to date with the rows of `view.view`.

    `table` is a name such as `catalog.db.retries`; a part that holds a dot is in backticks. `using` is the format of
    the table, `delta` or `iceberg`: with it a missing table is created, without it that is an error. The columns are
    those of `view.view`: `view.VALUE` (texts STRING, numbers and times in epoch ms BIGINT), and the STRUCT `place`.
    The table may have others, which are null in new rows and stay as they are.

    The table has one row for each `group` and `id`. A row is replaced only by one with a greater `place` (contract
    11.2), so a batch that is repeated, late or of another writer never brings an older state back.

    Raises ValueError if `table` is not a name, or the table lacks a column. Raises pyspark.errors.PySparkException if
    it is missing, or Spark does not know the format. The function raises the same if the table takes no MERGE, or if
    another writer came in between: the query ends, and Spark repeats the batch at the query's next start.
    """
    name = quoted(table)
    if using is not None:
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({columns_ddl()}) USING {quoted(using)}")
    if missing := {*view.VALUE, "place"} - set(spark.table(name).columns):
        raise ValueError(f"the table {table} lacks the columns {', '.join(sorted(missing))}")
    statement = merge_sql(name)

    def write(batch: DataFrame, _: int) -> None:
        # The batch's own session: the temporary view is that of the query, and the session above cannot be pickled.
        view.newest(batch).createOrReplaceTempView(INCOMING)
        batch.sparkSession.sql(statement)

    return write


def quoted(name: str) -> str:
    """Return a name with each part in backticks. Raises ValueError if it is not a name."""
    if not re.fullmatch(f"(?:{SEGMENT})(?:\\.(?:{SEGMENT}))*", name):
        raise ValueError(f"{name!r} is not the name of a table")
    return ".".join(each if each.startswith("`") else f"`{each}`" for each in re.findall(SEGMENT, name))


def columns_ddl() -> str:
    """Return the columns of a table that is created."""
    fields = ", ".join(f"`{name}`: {POSITION_TYPES.get(name, 'BIGINT')}" for name in view.ORDER_KEY)
    values = [f"`{name}` {'STRING' if name in TEXTS else 'BIGINT'}" for name in view.VALUE]
    return ", ".join([*values, f"`place` STRUCT<{fields}>"])


def merge_sql(name: str) -> str:
    """Return the statement that takes the rows of INCOMING into the table with this quoted name."""
    columns = [f"`{column}`" for column in (*view.VALUE, "place")]
    changes = ", ".join(f"kept.{column} = incoming.{column}" for column in columns)
    values = ", ".join(f"incoming.{column}" for column in columns)
    return (
        f"MERGE INTO {name} AS kept USING {INCOMING} AS incoming "
        "ON kept.`group` = incoming.`group` AND kept.`id` = incoming.`id` "
        f"WHEN MATCHED AND incoming.`place` > kept.`place` THEN UPDATE SET {changes} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({values})"
    )
