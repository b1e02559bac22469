"""One SQL query over the present state of a group: `view` is the table. Prints JSON lines, the columns first."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from spark import view
from spark.java import end_java
from spark.options import Sql
from spark.session import build

SETTINGS = {
    "spark.log.level": "OFF",
    # A run of seconds: what the second compiler and G1 cost would never be earned back.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def run(options: Sql, master: str, kafka: Mapping[str, str]) -> int:
    """Print the columns as a JSON list, then each row as a list; or `{"error": sentence}`, and the code is 1."""
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
    """One line; what JSON has no form for, as text."""
    sys.stdout.write(f"{json.dumps(value, default=str, ensure_ascii=False)}\n")


def distinct(columns: Sequence[str]) -> list[str]:
    """The columns' names, the second `a` as `a_2`: rows are printed by name."""
    seen: Counter[str] = Counter()
    named: list[str] = []
    for column in columns:
        seen[column] += 1
        named.append(column if seen[column] == 1 else f"{column}_{seen[column]}")
    return named


def sentence(error: PySparkException | Py4JJavaError) -> str:
    """What went wrong, without the plan and the stack that follow it."""
    told = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    text = next((line.strip() for line in told.splitlines() if line.strip()), type(error).__name__)
    return text.split(" SQLSTATE:")[0]
