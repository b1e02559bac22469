"""Write the view into a table of a lakehouse (Delta Lake, Apache Iceberg): a function for `foreachBatch`.

The table is any that takes `MERGE INTO`. Its jars and the settings of its catalog are the session's; this module needs
neither, and no package beside PySpark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn
from pyspark.sql.types import TimestampType

from reconsume.spark import schema, versions, view

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
DAY = "day"
"""The column by which a table may be partitioned: the UTC day of `at`, as DATE."""
DAY_MS = 86_400_000


def merge_into(
    spark: SparkSession, table: str, using: str | None = None, *, partition_by: str | None = None
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that brings a table up to date with the rows of `view.view`.

    `table` is a name such as `catalog.db.retries`; a part that holds a dot is in backticks. `using` is the format of
    the table, `delta` or `iceberg`: with it a missing table is created, without it that is an error. The columns are
    those of `view.view`: `view.VALUE` (texts STRING, numbers BIGINT, times TIMESTAMP), and the STRUCT `place`. In a
    table that exists, times may also be BIGINT: those columns get epoch ms. The table may have other columns, which are
    null in new rows and stay as they are.

    With `partition_by="day"` the table also has the column `day` (DATE), the UTC day on which the record changed last,
    and is partitioned by it if it is created here. Finished rows can then be deleted by whole partitions.

    The table has one row for each `group` and `id`. A row is replaced only by one with a greater `place` (contract
    11.2), so a batch that is repeated, late or of another writer never brings an older state back.

    Raises ValueError if `table` is not a name, the table lacks a column, `partition_by` is another text, or no release
    of the format exists for this Spark. Raises pyspark.errors.PySparkException if the table is missing, or Spark does
    not know the format. The function raises the same if the table takes no MERGE, or if another writer came in between:
    the query ends, and Spark repeats the batch at the query's next start.
    """
    name = quoted(table)
    if partition_by not in (None, DAY):
        raise ValueError(f"a table is partitioned by {DAY} or not at all, and partition_by is {partition_by!r}")
    versions.check_pair(spark.version, (using or table.partition(".")[0]).lower())
    needed = [*view.VALUE, "place", *([DAY] if partition_by else [])]
    if using is not None:
        partitioning = f" PARTITIONED BY ({DAY})" if partition_by else ""
        columns = columns_ddl(is_partitioned=partition_by is not None)
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING {quoted(using)}{partitioning}")
    kept = spark.table(name).schema
    if missing := set(needed) - set(kept.names):
        raise ValueError(f"the table {table} lacks the columns {', '.join(sorted(missing))}")
    times = [time for time in schema.TIMES if isinstance(kept[time].dataType, TimestampType)]
    statement = merge_sql(name, needed)

    def write(batch: DataFrame, _: int) -> None:
        rows = view.newest(batch)
        day = fn.date_from_unix_date(fn.floor(fn.col("at") / DAY_MS).cast("int"))
        rows = rows.withColumns({DAY: day, **{time: schema.moment(time) for time in times}})
        # The batch's own session: the temporary view is that of the query, and the session above cannot be pickled.
        rows.createOrReplaceTempView(INCOMING)
        batch.sparkSession.sql(statement)

    return write


def quoted(name: str) -> str:
    """Return a name with each part in backticks. Raises ValueError if it is not a name."""
    if not re.fullmatch(f"(?:{SEGMENT})(?:\\.(?:{SEGMENT}))*", name):
        raise ValueError(f"{name!r} is not the name of a table")
    return ".".join(each if each.startswith("`") else f"`{each}`" for each in re.findall(SEGMENT, name))


def columns_ddl(*, is_partitioned: bool = False) -> str:
    """Return the columns of a table that is created. `is_partitioned`: it has DAY."""
    fields = ", ".join(f"`{name}`: {POSITION_TYPES.get(name, 'BIGINT')}" for name in view.ORDER_KEY)
    kinds = dict.fromkeys(TEXTS, "STRING") | dict.fromkeys(schema.TIMES, "TIMESTAMP")
    values = [f"`{name}` {kinds.get(name, 'BIGINT')}" for name in view.VALUE]
    return ", ".join([*values, f"`place` STRUCT<{fields}>", *([f"`{DAY}` DATE"] if is_partitioned else [])])


def merge_sql(name: str, needed: Sequence[str]) -> str:
    """Return the statement that takes these columns of INCOMING into the table with this quoted name."""
    columns = [f"`{column}`" for column in needed]
    changes = ", ".join(f"kept.{column} = incoming.{column}" for column in columns)
    values = ", ".join(f"incoming.{column}" for column in columns)
    return (
        f"MERGE INTO {name} AS kept USING {INCOMING} AS incoming "
        "ON kept.`group` = incoming.`group` AND kept.`id` = incoming.`id` "
        f"WHEN MATCHED AND incoming.`place` > kept.`place` THEN UPDATE SET {changes} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({values})"
    )
