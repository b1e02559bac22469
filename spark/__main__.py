"""`python -m reconsume.spark run …` and `… sql …`; also the file that `spark-submit` is given."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from reconsume.spark.options import Run, Sql, parse
from reconsume.spark.properties import parse_properties

FAILED = 1
USAGE = 2
LARGEST_PROPERTIES = 1024 * 1024
"""Bytes of a file for --kafka-properties, which may hold certificates as PEM."""


def main(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name, and return the exit code."""
    options = parse(arguments)
    if importlib.util.find_spec("pyspark") is None:
        return say("PySpark is not installed: pip install '.[spark]' in a clone of Reconsume's repository", FAILED)
    try:
        kafka = connection(options)
    except (OSError, ValueError) as error:
        return say(f"{options.kafka_properties or '--bootstrap'}: {error}", USAGE)
    return start(options, kafka)


def connection(options: Run | Sql) -> dict[str, str]:
    """Return Spark's options for connecting to Kafka.

    Raises OSError if the properties file cannot be read. Raises ValueError if it is not a properties file, or if no
    address of Kafka is given.
    """
    properties: dict[str, str] = {}
    if options.kafka_properties is not None:
        properties = parse_properties(read_properties(Path(options.kafka_properties)))
    if options.bootstrap is not None:
        properties["bootstrap.servers"] = options.bootstrap
    if not properties.get("bootstrap.servers"):
        raise ValueError("bootstrap.servers is needed, here or in the file of --kafka-properties")
    return {f"kafka.{name}": value for name, value in properties.items()}


def read_properties(file: Path) -> str:
    """Return the text of a properties file.

    Raises OSError if it cannot be read, and ValueError if it is no plain file, or too long.
    """
    if file.exists() and not file.is_file():  # a pipe may keep its reader waiting, and a device has no end
        raise ValueError("it is no plain file")
    with file.open("rb") as opened:
        held = opened.read(LARGEST_PROPERTIES + 1)
    if len(held) > LARGEST_PROPERTIES:
        raise ValueError(f"it has more than {LARGEST_PROPERTIES} bytes")
    return held.decode("utf-8")


def start(options: Run | Sql, kafka: dict[str, str]) -> int:
    """Start Spark and run the command.

    Spark's modules load slowly, so they are imported after the arguments are checked.
    """
    from reconsume.spark import java
    from reconsume.spark.job import run as job

    java.silence_py4j_errors()
    master = options.master or ("" if java.submitted() else job.LOCAL)
    if isinstance(options, Sql):
        from reconsume.spark import query

        return query.run(options, master, kafka)
    stop = job.StopSignal()
    stop.listen()
    return job.run(options, master, kafka, stop)


def say(sentence: str, code: int) -> int:
    """Print why the command cannot run, and return `code`."""
    sys.stderr.write(f"reconsume: {sentence}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
