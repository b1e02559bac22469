"""Write the view into a PostgreSQL table, which can be queried in SQL at any time: a function for `foreachBatch`.

The executors write, each task in one transaction. Only this module needs the package psycopg.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as fn
from pyspark.sql.types import StringType

from reconsume.spark.view import VALUE, newest

__all__ = ["upsert"]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

ORDER = ("cycle", "redrives", "times", "rank", "at", "updated_at")
"""The columns that decide which of two rows of a record is the newer one, as in the view's order of states."""
COLUMNS = (*VALUE, "rank")
"""The columns of the table: those of the view, and the rank of the state."""
TYPES = dict.fromkeys(("group", "id", "state", "level", "reason", "topic", "instance"), "text") | {
    "times": "integer",
    "cycle": "integer",
    "redrives": "integer",
    "partition": "integer",
    "rank": "smallint",
}
"""The columns' types in PostgreSQL; a column that is not named here is a `bigint`."""


def upsert(dsn: str, table: str) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that brings a PostgreSQL table up to date with the rows of `view.view`.

    `dsn` is a connection string of libpq, such as `host=db dbname=retries`. `table` is `name` or `schema.name`. The
    function takes the batch's DataFrame and its number, and returns None.

    The table is created if it is missing. It has the columns `view.VALUE` (texts are `text`, numbers `integer` or
    `bigint`, times epoch ms), `rank` (`smallint`), and the primary key (group, id). A row is replaced only by one that
    is not older in the order of states. So a repeated batch changes nothing. The character 0, which PostgreSQL cannot
    store, becomes U+FFFD.

    Each task of the batch opens a connection of its own, at most as many at once as the cluster has cores. Of a batch
    that fails some tasks may have written: the batch that repeats it writes the same rows.

    Raises ImportError if psycopg is not installed. The function raises psycopg.Error if PostgreSQL fails the driver,
    and pyspark.errors.PySparkException (py4j.protocol.Py4JJavaError before Spark 4.2) if it fails an executor: the
    query ends, and Spark repeats the batch at the query's next start.
    """
    import psycopg

    def write(batch: DataFrame, _: int) -> None:
        rows = newest(batch).select(*(clean(batch, name) for name in VALUE), fn.col("place.rank").alias("rank"))
        with psycopg.connect(dsn) as connection:
            connection.execute(create(table))  # here: of several tasks that create it at once all but one would fail
        # In the order of their key: transactions that lock the same rows in another order each would end by a deadlock.
        rows = rows.sortWithinPartitions("group", "id")
        rows.foreachPartition(partial(write_rows, dsn, table))

    return write


def write_rows(dsn: str, table: str, rows: Iterator[Row]) -> None:
    """Write the rows of one task in one transaction; it runs on an executor. Raises psycopg.Error if that fails."""
    import psycopg

    if (first := next(rows, None)) is not None:
        with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
            cursor.executemany(merge(table), chain((first,), rows))


def clean(batch: DataFrame, name: str) -> Any:
    """Return a column without the character 0, which PostgreSQL cannot store in a text and an event may contain."""
    if isinstance(batch.schema[name].dataType, StringType):
        return fn.replace(name, fn.lit("\0"), fn.lit("\ufffd")).alias(name)
    return fn.col(name)


def create(table: str) -> Any:
    """Return the statement that creates the table if it is missing."""
    from psycopg.sql import SQL, Identifier

    columns = SQL(", ").join(SQL("{} " + TYPES.get(name, "bigint")).format(Identifier(name)) for name in COLUMNS)
    key = SQL('PRIMARY KEY ("group", "id")')
    return SQL("CREATE TABLE IF NOT EXISTS {} ({}, {})").format(Identifier(*table.split(".")), columns, key)


def listed(names: tuple[str, ...], prefix: str = "") -> Any:
    """Return the names as a list of SQL, each after the prefix."""
    from psycopg.sql import SQL, Identifier

    return SQL(", ").join(SQL(prefix) + Identifier(name) for name in names)


def merge(table: str) -> Any:
    """Return the statement that writes one row into the table if it is not older than the table's.

    A row is a function of one event, so it replaces the other as a whole.
    """
    from psycopg.sql import SQL, Identifier, Placeholder

    return SQL(
        "INSERT INTO {table} AS kept ({columns}) VALUES ({values}) "
        'ON CONFLICT ("group", "id") DO UPDATE SET {changes} WHERE ({new}) >= ({old})'
    ).format(
        table=Identifier(*table.split(".")),
        columns=listed(COLUMNS),
        values=SQL(", ").join([Placeholder()] * len(COLUMNS)),
        changes=SQL(", ").join(
            SQL("{0} = excluded.{0}").format(Identifier(name)) for name in COLUMNS if name not in ("group", "id")
        ),
        new=listed(ORDER, "excluded."),
        old=listed(ORDER, "kept."),
    )
