"""Run the Spark job as a child process. Its requirements are met before it starts, and it never outlives its parent.

The job's package is started and not imported: users without the view need no Spark.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO

from reconsume.sidecar.errors import ReconsumeError, SetupError
from reconsume.sidecar.files import open_private, write_private
from reconsume.sidecar.java.download_bar import progress_bar
from reconsume.sidecar.java.find_java import find_java
from reconsume.sidecar.java.guarded_folder import GuardedFolder, guarded_folder
from reconsume.sidecar.java.jars import fetch
from reconsume.sidecar.java.kafka_properties import properties_text
from reconsume.sidecar.java.orphan_guard import OrphanGuard

SPARK_LOCK = Path(__file__).with_name("spark.lock")
"""The jars for the Spark that is installed by default; those for older versions are beside it."""
TAIL = 2_000
"""Characters of the job's log that are shown if the job ends without an error message."""


class Cluster(NamedTuple):
    """How Spark reaches Kafka: properties of Kafka's Java client, or the user's own file of them."""

    bootstrap: str
    properties: Mapping[str, str] | Path


def lock_for(pyspark: str) -> Path:
    """Return the file that names the jars for a version of PySpark: a connector works with its own release of Spark.

    Raises SetupError for 4.1, which `reconsume/spark/versions.py` leaves out.
    """
    if pyspark.startswith("4.1."):
        raise SetupError(
            f"PySpark {pyspark} is not supported: with its Kafka connector a query ends each time that it repeats a "
            "batch (SPARK-55271); install PySpark 4.0, 4.2 or 4.3"
        )
    older = SPARK_LOCK.with_name(f"spark-{'.'.join(pyspark.split('.')[:2])}.lock")
    return older if older.exists() else SPARK_LOCK


def prepare() -> list[Path]:
    """Return the jars that Spark needs for Kafka. Download those that are missing.

    Raises SetupError without the job, PySpark or Java, or if a jar cannot be downloaded.
    """
    if importlib.util.find_spec("reconsume.spark") is None:
        raise SetupError(
            "the view's Spark job is not in the sidecar's image: take the image reconsume-spark, or pip install "
            "'.[spark]' in a clone of Reconsume's repository"
        )
    if importlib.util.find_spec("pyspark") is None:
        raise SetupError(
            "the view is a Spark job, and PySpark is not installed: pip install '.[spark]' "
            "in a clone of Reconsume's repository"
        )
    find_java(what="Spark")
    with progress_bar("Spark's Kafka connector") as progress:
        return fetch(lock_for(version("pyspark")), progress=progress)


class Started:
    """The process of the job.

    The guard knows its id only while it runs: afterwards the id may belong to another process.
    """

    def __init__(self, command: Sequence[str], guard: OrphanGuard, **pipes: Any) -> None:
        # A process group of its own: this process passes on Ctrl-C in a terminal.
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, text=True, **pipes)
        self._guard = guard
        # With its group: Java, which outlives a driver for seconds, would fill the folder again while it is removed.
        guard.watch([-self._process.pid])

    @property
    def lines(self) -> Iterator[str]:
        """The lines that the job prints, if its output is a pipe."""
        assert self._process.stdout is not None
        return iter(self._process.stdout)

    def forward_signals(self) -> None:
        """From now on, send SIGTERM to the job on SIGTERM and on Ctrl-C.

        This process goes on until the job has ended.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._process.send_signal(signal.SIGTERM))

    def wait(self) -> int:
        """Wait for the end of the job. Return its exit code, negative for a signal."""
        code = self._process.wait()
        self._guard.watch([])
        return code

    def end(self) -> None:
        """Kill the job if it still runs, and stop reading its output."""
        self._process.kill()
        self.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def start(
    guarded: GuardedFolder, words: Sequence[str], cluster: Cluster, jars: Sequence[Path], **pipes: Any
) -> Started:
    """Start `python -m reconsume.spark` with these arguments.

    The job reads the secrets from a file, because `ps` shows its arguments.
    """
    properties = cluster.properties
    if not isinstance(properties, Path):
        file = guarded.folder / "kafka.properties"
        write_private(file, properties_text(properties))
        properties = file
    # -P: a user's folder with the name spark must not be imported instead of ours.
    command = [sys.executable, "-P", "-m", "reconsume.spark", *words, "--kafka-properties", str(properties)]
    command += ["--bootstrap", cluster.bootstrap, "--jars", ",".join(map(str, jars))]
    # What the driver and its Java process keep for the time of a query goes with the folder, also if they are killed.
    return Started(command, guarded.guard, env={**os.environ, "TMPDIR": str(guarded.folder)}, **pipes)


def run_job(words: Sequence[str], cluster: Cluster) -> int:
    """Run the job until it ends. Return its exit code. Raises SetupError if a signal ended it."""
    jars = prepare()
    with guarded_folder() as guarded:
        started = start(guarded, ["run", *words], cluster, jars)
        started.forward_signals()
        code = started.wait()
    if code < 0:
        raise SetupError(f"the Spark job was ended by {signal.Signals(-code).name}")
    return code


class Answer(NamedTuple):
    """The result of a query."""

    columns: tuple[str, ...]
    rows: Iterator[Mapping[str, object]]


def text_log(path: Path) -> TextIO:
    """Open a new file that a job writes its log to, and from which it is read."""
    return TextIOWrapper(open_private(path, "r+b"), encoding="utf-8", errors="replace")


@contextmanager
def run_query(query: str, group: str, cluster: Cluster) -> Iterator[Answer]:
    """Run one query over a group's present state.

    Raises ReconsumeError with Spark's sentence, also while the rows are read.
    """
    jars = prepare()
    with guarded_folder() as guarded, text_log(guarded.folder / "log") as log:
        words = ["sql", f"--query={query}", "--group", group]
        started = start(guarded, words, cluster, jars, stdout=subprocess.PIPE, stderr=log)
        try:
            lines = read_lines(started, log)
            columns = tuple(map(str, next(lines, ())))
            yield Answer(columns, (dict(zip(columns, row, strict=True)) for row in lines))
        finally:
            started.end()


def read_lines(started: Started, log: IO[str]) -> Iterator[list[object]]:
    """Yield the lists that the job prints. Raises ReconsumeError for its error, or if its exit code is not 0."""
    for line in started.lines:
        value = json.loads(line)
        if isinstance(value, dict):
            raise ReconsumeError(f"the query failed: {value['error']}")
        yield value
    if (code := started.wait()) != 0:
        log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL))
        raise ReconsumeError(f"Spark ended with {code}: {log.read(TAIL).strip()}")
