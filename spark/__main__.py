"""`python -m reconsume.spark run …` and `… sql …`; also the file that `spark-submit` is given."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from reconsume.spark.options import Run, Sql, parse

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
        properties = "" if options.kafka_properties is None else read_properties(Path(options.kafka_properties))
    except (OSError, ValueError) as error:
        return say(f"{options.kafka_properties}: {error}", USAGE)
    return start(options, properties)


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


def start(options: Run | Sql, properties: str) -> int:
    """Start Spark and run the command. `properties` are those of Kafka's Java client, as in their file.

    Spark's modules load slowly, so they are imported after the arguments are checked.
    """
    from reconsume.spark import java
    from reconsume.spark.job import run as job

    java.silence_py4j_errors()
    master = options.master or ("" if java.submitted() else job.LOCAL)
    if isinstance(options, Sql):
        from reconsume.spark import query

        return query.run(options, master, properties)
    stop = job.StopSignal()
    stop.listen()
    return job.run(options, master, properties, stop)


def say(sentence: str, code: int) -> int:
    """Print why the command cannot run, and return `code`."""
    sys.stderr.write(f"reconsume: {sentence}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
