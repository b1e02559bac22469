"""`python -m benchmarks.spark_bench`: what an event costs the Spark view, and what the driver needs, at many keys.

File source → parse → view → JSON → nowhere, in a session as the job starts it. Each measurement is a process of its
own; its CPU is that of the whole tree, Java included, after every key was there once and one more batch. Small batches
follow, as a job has them that keeps up.

`--before FOLDER` measures the view of another working tree of this repository in the same run, on the same input, and
`--before-spark FOLDER` on another PySpark.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyspark
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from reconsume.spark import schema, session, view
from reconsume.spark.job import run

PERIOD = 0.1
"""Seconds between two looks at the processes."""
BATCH, SMALL = 100_000, 1_000
"""Events in a large batch and in a small one."""
ROOT = Path(__file__).parents[1]


class Usage(NamedTuple):
    """The process tree at one moment; `written` are bytes that its JVM has written."""

    seconds: float
    cpu: float
    rss: int
    written: int


class Result(NamedTuple):
    """What one measurement found; memory in bytes, of the driver's JVM, at its highest. `small_…`: of a small batch."""

    query: str
    keys: int
    events: int
    cpu_us: float
    rate: float
    rss: int
    small_cpu_ms: float
    small_written: float


def tree() -> Usage:
    """What this process and its children have used, and what its JVM holds."""
    me = psutil.Process()
    cpu, jvm, written = 0.0, 0, 0
    for each in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # Spark starts small helpers that end at once
            # With those of children that have ended: a checkpoint has a `chmod` for each file.
            cpu += sum(each.cpu_times()[:4])
            if each.name() == "java":
                jvm, written = max(jvm, each.memory_info().rss), written + each.io_counters().write_chars
    return Usage(time.monotonic(), cpu, jvm, written)


class Peak:
    """The highest memory of the JVM, looked at all the time."""

    def __init__(self) -> None:
        self.rss = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(PERIOD):
            self.rss = max(self.rss, tree().rss)


QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "view": (view.outputs, "append"),
    "parse": (lambda raw: schema.events(raw).good.select(fn.to_json(fn.struct(*schema.FIELDS))), "append"),
}


def measure(query: str, folder: Path, keys: int, batches: int, small: int) -> Result:
    """Run one query over the input and take the figures of all batches but the first ones."""
    spark = session.build("bench", jars=(), options=run.settings(pyspark.__version__))
    source = spark.read.option("recursiveFileLookup", "true").parquet(str(folder)).schema
    options = {"maxFilesPerTrigger": "1", "recursiveFileLookup": "true"}
    raw = spark.readStream.schema(source).options(**options).parquet(str(folder))
    build, mode = QUERIES[query]
    warm = max(1, keys // BATCH) + 1
    with tempfile.TemporaryDirectory() as checkpoint, Peak() as peak:
        writer = build(raw).writeStream.outputMode(mode).format("noop")
        running = writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start()
        before, first = when_done(running, warm)
        after, last = when_done(running, warm + batches - 1)
        begin, fewest = when_done(running, last + max(1, small // 4))
        end, most = when_done(running, warm + batches - 1 + small)
        running.stop()
    count, few = (last - first) * BATCH, max(1, most - fewest)
    spark.stop()
    seconds = after.seconds - before.seconds
    cpu_us = (after.cpu - before.cpu) / count * 1e6
    small_cpu_ms, small_written = (end.cpu - begin.cpu) / few * 1e3, (end.written - begin.written) / few
    return Result(query, keys, count, cpu_us, count / seconds, peak.rss, small_cpu_ms, small_written)


def when_done(running: Any, batches: int) -> tuple[Usage, int]:
    """What had been used when that many batches were done, and how many were."""
    end = time.monotonic() + 600
    while time.monotonic() < end:
        if (failure := running.exception()) is not None:
            raise failure
        done = sum(1 for each in running.recentProgress if each.numInputRows > 0)
        if done >= batches:
            return tree(), done
        time.sleep(PERIOD)
    raise TimeoutError(f"{batches} batches were not done in 10 minutes")


def child(paths: Sequence[Path], *arguments: str) -> str:
    """What another process of Python prints, which imports from `paths` first."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=1800, env=environ).stdout


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--queries", nargs="+", default=["view"], choices=list(QUERIES))
    parser.add_argument("--batches", type=int, default=8, help="batches of 100 000 events that are measured")
    parser.add_argument("--small", type=int, default=16, help="batches of 1 000 events that follow")
    parser.add_argument("--before", type=Path, help="another working tree, whose view is measured too")
    parser.add_argument("--before-spark", type=Path, help="a folder with the PySpark that it runs on")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        print(json.dumps(measure(given.queries[0], given.measure, given.keys[0], given.batches, given.small)))
    else:
        report(given)


def report(given: argparse.Namespace) -> None:
    """Measure all and print a table."""
    runs = [(query, query, [ROOT]) for query in given.queries]
    if given.before is not None:
        paths = [path.absolute() for path in (given.before, given.before_spark) if path is not None]
        runs.append(("view", f"view of {given.before.name}", paths))
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()}")
    print("| query | keys | CPU µs an event | events/s | MB, peak | small batch: CPU ms | MB written |")
    print("|---|---|---|---|---|---|---|")
    for keys in given.keys:
        with tempfile.TemporaryDirectory() as folder:
            size = ("--keys", str(keys), "--batches", str(given.batches), "--small", str(given.small))
            child([ROOT], "-m", "benchmarks.spark_input", "--folder", folder, *size)
            for query, name, paths in runs:
                # `-P`, without this file's folder: the imports are those of the working tree that is measured.
                line = child(paths, "-P", __file__, "--measure", folder, "--queries", query, *size)
                print(row(name, Result(*json.loads(line))), flush=True)


def row(name: str, found: Result) -> str:
    """One line of the table."""
    large = (f"{found.cpu_us:.1f}", f"{found.rate:,.0f}", f"{found.rss / 2**20:,.0f}")
    small = (f"{found.small_cpu_ms:.0f}", f"{found.small_written / 1e6:.2f}")
    return f"| {name} | {found.keys:,} | " + " | ".join((*large, *small)) + " |"


if __name__ == "__main__":
    main()
