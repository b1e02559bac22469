"""Run one SQL query over the tables of a group, and print the result as JSON lines.

The tables are `view` (`view.table`), and `dead_letters`, `waiting` and `events` (`tables.py`). Only those are made that
the query may name: so a topic that is missing, or that this user may not see, fails no other query.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from reconsume.spark import tables, view
from reconsume.spark.errors import GroupNotFoundError, JobError, NoAnswerError
from reconsume.spark.java import end_java, kafka_options
from reconsume.spark.options import Sql
from reconsume.spark.session import build, java_folder

TABLES: Mapping[str, Callable[..., DataFrame]] = {
    "view": view.table,
    "dead_letters": tables.dead_letters,
    "waiting": tables.waiting,
    "events": tables.events,
}
"""The tables, by their names in SQL."""
SETTINGS = {
    "spark.log.level": "OFF",
    # The process runs for seconds. The second compiler and G1 would cost more time than they save.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def run(options: Sql, master: str, properties: str) -> int:
    """Run the query, print its result, and return the exit code: 0, or 1 if Spark or Java fails.

    The first line is a JSON list of the column names. Each row follows as a list. After a failure the last line is
    `{"error": sentence}`.
    """
    with java_folder():
        return _run(options, master, properties)


def _run(options: Sql, master: str, properties: str) -> int:
    jars = [Path(jar) for jar in options.jars]
    spark = build("reconsume-sql", jars=jars, master=master, options=SETTINGS | dict(options.conf))
    try:
        kafka = kafka_options(spark, properties, options.bootstrap)
        for name, table in TABLES.items():
            if name in options.query.lower():
                table(spark, kafka["kafka.bootstrap.servers"], options.group, options=kafka).createOrReplaceTempView(
                    name
                )
        result = spark.sql(options.query)
        emit(distinct(result.columns))
        for row in result.toLocalIterator():
            emit(list(row))
    except (PySparkException, Py4JJavaError, GroupNotFoundError, JobError, NoAnswerError, ValueError) as error:
        emit({"error": sentence(error)})
        return 1
    finally:
        end_java(spark)
    return 0


def emit(value: object) -> None:
    """Print a value as one line of JSON; a value that JSON has no type for is printed as text."""
    sys.stdout.write(f"{json.dumps(value, default=text_of, ensure_ascii=False)}\n")


def text_of(value: object) -> str:
    """Return the text for a value that JSON has no type for: a time in UTC and ISO 8601, bytes read as UTF-8."""
    match value:
        case datetime():  # PySpark gives it in the zone of this process
            return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case bytes() | bytearray():
            return value.decode(errors="replace")
        case _:
            return str(value)


def distinct(columns: Sequence[str]) -> list[str]:
    """Return the column names with a number added to a repeated one: the second `a` becomes `a_2`.

    The reader of the output prints rows by column name.
    """
    counts: Counter[str] = Counter()
    named: list[str] = []
    for column in columns:
        counts[column] += 1
        named.append(column if counts[column] == 1 else f"{column}_{counts[column]}")
    return named


def sentence(error: Exception) -> str:
    """Return the first line of an error's text, without the query plan and the stack trace that follow it."""
    message = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    text = next((line.strip() for line in message.splitlines() if line.strip()), type(error).__name__)
    return text.split(" SQLSTATE:")[0]
