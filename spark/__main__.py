"""`python -m reconsume.spark run …` and `… sql …`; also the file that `spark-submit` is given."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from reconsume.sidecar.files import read_given
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
        file = options.kafka_properties
        properties = "" if file is None else read_given(Path(file), LARGEST_PROPERTIES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        return say(f"{options.kafka_properties}: it cannot be read: {why}", USAGE)
    return start(options, properties)


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
