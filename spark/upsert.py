"""The view in a PostgreSQL table, for those who want to ask it in SQL at any time: a function for `foreachBatch`.

The rows go through the driver, in one transaction a batch. Needs the package psycopg, which nothing else here does.
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
COLUMNS = (*VALUE, "rank")
TYPES = dict.fromkeys(("group", "id", "state", "level", "reason", "topic", "instance"), "text") | {
    "times": "integer",
    "redrives": "integer",
    "partition": "integer",
    "rank": "smallint",
}
LEAST = ("first_failed_at",)
GREATEST = ("last_failed_at", "retries", "updated_at")


def upsert(dsn: str, table: str) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` on `view.view` that brings `table` (`name` or `schema.name`) up to date.

    The table is created when it is missing, with the view's columns, `rank`, and the key (group, id). A row is replaced
    only by one that is not older in the order of states, so a replayed batch changes nothing. psycopg.Error ends the
    batch, and Spark tries it again at its next start.
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
    """A column as PostgreSQL takes it: its text cannot hold the character 0, and an event's may."""
    if isinstance(batch.schema[name].dataType, StringType):
        return fn.replace(name, fn.lit("\0"), fn.lit("\ufffd")).alias(name)
    return fn.col(name)


def create(table: str) -> Any:
    """The statement that makes the table where it is missing."""
    from psycopg.sql import SQL, Identifier

    columns = SQL(", ").join(SQL("{} " + TYPES.get(name, "bigint")).format(Identifier(name)) for name in COLUMNS)
    key = SQL('PRIMARY KEY ("group", "id")')
    return SQL("CREATE TABLE IF NOT EXISTS {} ({}, {})").format(Identifier(*table.split(".")), columns, key)


def stage(table: str) -> Any:
    """The statement that makes the place of one batch, gone with its transaction."""
    from psycopg.sql import SQL, Identifier

    name = Identifier(*table.split("."))
    return SQL("CREATE TEMPORARY TABLE incoming ON COMMIT DROP AS SELECT * FROM {} LIMIT 0").format(name)


def merge(table: str) -> Any:
    """The statement that takes the batch over: of two rows of a record the greater, and only if it is not older."""
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
        changes=SQL(", ").join(change(name) for name in COLUMNS if name not in ("group", "id")),
        new=listed(ORDER, "excluded."),
        old=listed(ORDER, "kept."),
    )


def change(name: str) -> Any:
    """How a column takes the new row's value: what is summed only grows, the first failure only goes back."""
    from psycopg.sql import SQL, Identifier

    how = {**dict.fromkeys(LEAST, "LEAST"), **dict.fromkeys(GREATEST, "GREATEST")}.get(name)
    column = Identifier(name)
    if how is None:
        return SQL("{0} = excluded.{0}").format(column)
    return SQL("{0} = " + how + "(kept.{0}, excluded.{0})").format(column)
