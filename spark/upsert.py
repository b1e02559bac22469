"""Write the view into a PostgreSQL table, which can be queried in SQL at any time: a function for `foreachBatch`.

The rows go through the driver, in one transaction for each batch. Only this module needs the package psycopg.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as fn
from pyspark.sql.types import StringType

from spark.view import VALUE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDER = ("redrives", "times", "rank", "at", "updated_at")
"""The columns that decide which of two rows of a record is the newer one, as in the view's order of states."""
COLUMNS = (*VALUE, "rank")
"""The columns of the table: those of the view, and the rank of the state."""
TYPES = dict.fromkeys(("group", "id", "state", "level", "reason", "topic", "instance"), "text") | {
    "times": "integer",
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

    Raises ImportError if psycopg is not installed. The function raises psycopg.Error if PostgreSQL fails: the query
    ends, and Spark repeats the batch at the query's next start.
    """
    import psycopg

    def write(batch: DataFrame, _: int) -> None:
        rows = batch.select(*(clean(batch, name) for name in VALUE), fn.col("place.rank").alias("rank"))
        with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
            cursor.execute(create(table))
            cursor.execute(stage(table))
            with cursor.copy(psycopg.sql.SQL("COPY incoming FROM STDIN")) as copy:
                for row in rows.toLocalIterator(prefetchPartitions=True):
                    copy.write_row(row)
            cursor.execute(merge(table))

    return write


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


def stage(table: str) -> Any:
    """Return the statement that creates the temporary table for one batch; PostgreSQL drops it with the transaction."""
    from psycopg.sql import SQL, Identifier

    name = Identifier(*table.split("."))
    return SQL("CREATE TEMPORARY TABLE incoming ON COMMIT DROP AS SELECT * FROM {} LIMIT 0").format(name)


def merge(table: str) -> Any:
    """Return the statement that moves a batch into the table.

    Of two rows of a record in the batch it takes the greater one, and only if that is not older than the table's row. A
    row is a function of one event, so it replaces the other as a whole.
    """
    from psycopg.sql import SQL, Identifier

    def listed(names: tuple[str, ...], prefix: str = "") -> Any:
        return SQL(", ").join(SQL(prefix) + Identifier(name) for name in names)

    return SQL(
        "INSERT INTO {table} AS kept ({columns}) "
        'SELECT DISTINCT ON ("group", "id") {columns} FROM incoming ORDER BY "group", "id", {newest} '
        'ON CONFLICT ("group", "id") DO UPDATE SET {changes} WHERE ({new}) >= ({old})'
    ).format(
        table=Identifier(*table.split(".")),
        columns=listed(COLUMNS),
        newest=SQL(", ").join(SQL("{} DESC").format(Identifier(name)) for name in ORDER),
        changes=SQL(", ").join(
            SQL("{0} = excluded.{0}").format(Identifier(name)) for name in COLUMNS if name not in ("group", "id")
        ),
        new=listed(ORDER, "excluded."),
        old=listed(ORDER, "kept."),
    )
