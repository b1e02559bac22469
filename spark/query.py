"""Run one SQL query over the present state of a group, as the table `view`, and print the result as JSON lines."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from reconsume.spark import view
from reconsume.spark.java import end_java
from reconsume.spark.options import Sql
from reconsume.spark.session import build, java_folder

SETTINGS = {
    "spark.log.level": "OFF",
    # The process runs for seconds. The second compiler and G1 would cost more time than they save.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def run(options: Sql, master: str, kafka: Mapping[str, str]) -> int:
    """Run the query, print its result, and return the exit code: 0, or 1 if Spark or Java fails.

    The first line is a JSON list of the column names. Each row follows as a list. After a failure the last line is
    `{"error": sentence}`.
    """
    with java_folder():
        return _run(options, master, kafka)


def _run(options: Sql, master: str, kafka: Mapping[str, str]) -> int:
    jars = [Path(jar) for jar in options.jars]
    spark = build("reconsume-sql", jars=jars, master=master, options=SETTINGS | dict(options.conf))
    try:
        servers = kafka["kafka.bootstrap.servers"]
        view.table(spark, servers, options.group, kafka).createOrReplaceTempView("view")
        result = spark.sql(options.query)
        emit(distinct(result.columns))
        for row in result.toLocalIterator():
            emit(list(row))
    except (PySparkException, Py4JJavaError) as error:
        emit({"error": sentence(error)})
        return 1
    finally:
        end_java(spark)
    return 0


def emit(value: object) -> None:
    """Print a value as one line of JSON; a value that JSON has no type for is printed as text."""
    sys.stdout.write(f"{json.dumps(value, default=str, ensure_ascii=False)}\n")


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


def sentence(error: PySparkException | Py4JJavaError) -> str:
    """Return the first line of an error's text, without the query plan and the stack trace that follow it."""
    message = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    text = next((line.strip() for line in message.splitlines() if line.strip()), type(error).__name__)
    return text.split(" SQLSTATE:")[0]
