"""`python -m benchmarks.spark_life`: what groups that come and go cost a view job, and how soon it ends.

Groups with a steady trickle of events, and a reader that notes when the rows of one of them come. A group is made and
removed meanwhile: its first row after its first event, and the longest time without a row of the other one. At the end
SIGTERM. With `--groups 200` all of it is of one job that serves so many.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from confluent_kafka import Producer

from benchmarks.spark_freshness import cpu_of, start_job
from benchmarks.spark_groups import PREFIX, Load, Rows, make, make_event, names_of, reading, remove
from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.topics.events import encode_event

MUST_SECONDS, MUST_END_SECONDS = 10, 20
WAIT_SECONDS = 300.0


def wait(predicate: Callable[[], object], what: str) -> float:
    """Wait until it is so; how many seconds that took. Raises TimeoutError."""
    began = time.monotonic()
    while not predicate():
        if time.monotonic() - began > WAIT_SECONDS:
            raise TimeoutError(f"not within {WAIT_SECONDS:g} s: {what}")
        time.sleep(0.05)
    return time.monotonic() - began


def coming(job: subprocess.Popen[bytes], bootstrap: str, others: Rows, number: int) -> tuple[float, float, float]:
    """Make a group and tell of it at once.

    Seconds to its first row, CPU seconds of the job until then, and seconds of the others without a row.
    """
    make(bootstrap, [number])
    began, used = time.monotonic(), cpu_of(job)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(names_of(number).events, encode_event(make_event(0, number)))
    producer.flush(30)
    with reading(bootstrap, number) as rows:
        first = wait(lambda: rows.came, "the first row of the new group")
    used = cpu_of(job) - used
    time.sleep(5)
    return first, used, others.longest_gap(began)


def going(bootstrap: str, others: Rows, number: int) -> float:
    """Remove a group. Seconds of the others without a row."""
    began = time.monotonic()
    remove(bootstrap, number)
    time.sleep(20)
    return others.longest_gap(began)


def steady(job: subprocess.Popen[bytes], load: Load, rows: Rows, seconds: float) -> str:
    """What the job costs and how old rows are while nothing comes or goes."""
    begun, before, first, began = cpu_of(job), load.written, len(rows.ages), time.monotonic()
    time.sleep(seconds)
    used, written, took = cpu_of(job) - begun, load.written - before, time.monotonic() - began
    ages = sorted(rows.ages[first:])
    cost = f"{used / took * 100:.0f} % of a core, {used / written * 1e6:.0f} µs an event, {memory(job)} MB"
    age = f"p50 {statistics.median(ages):.0f}, p99 {ages[int(len(ages) * 0.99)]} ms" if ages else "no row came"
    return f"{written / took:.0f} events/s: {cost}; a row is {age} after its event"


def memory(job: subprocess.Popen[bytes]) -> int:
    """MB of the job and all below it."""
    mother = psutil.Process(job.pid)
    return sum(each.memory_info().rss for each in (mother, *mother.children(recursive=True))) >> 20


def ended(job: subprocess.Popen[bytes]) -> tuple[float, int]:
    """SIGTERM: seconds to the end, and the exit code."""
    began = time.monotonic()
    job.send_signal(signal.SIGTERM)
    code = job.wait(120)
    return time.monotonic() - began, code


def life(bootstrap: str, groups: int, rate: int, times: int, seconds: float, words: list[str]) -> None:
    """Run it and print."""
    make(bootstrap, range(groups))
    folder = Path(tempfile.mkdtemp(prefix="reconsume-bench-"))
    load, began = Load(bootstrap, groups, rate), time.monotonic()
    load.start()
    job = start_job(bootstrap, folder, words, ("--pattern", f"{PREFIX}.*"))
    try:
        with reading(bootstrap, 0) as rows:
            wait(lambda: rows.came, "the first row")
            took = time.monotonic() - began
            print(f"{groups} groups: first row {took:.1f} s after the start ({cpu_of(job):.1f} s of CPU)", flush=True)
            time.sleep(seconds / 2)
            print(f"  {steady(job, load, rows, seconds)}", flush=True)
            for number in range(groups, groups + times):
                first, used, gap = coming(job, bootstrap, rows, number)
                row = f"first row {first:.1f} s ({used:.1f} s of CPU)"
                print(f"  a group comes: {row}, others without a row {gap:.1f} s (must {MUST_SECONDS})", flush=True)
                print(
                    f"  a group goes: others {going(bootstrap, rows, number):.1f} s (must {MUST_SECONDS})", flush=True
                )
        took, code = ended(job)
        print(f"  SIGTERM: ended with {code} after {took:.1f} s (must {MUST_END_SECONDS})", flush=True)
    finally:
        load.end()
        job.kill()
        job.wait()
        shutil.rmtree(folder, ignore_errors=True)  # the driver may still be ending


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_life", description=__doc__)
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument(
        "--rate", type=int, default=100, help="events a second over all groups, beside ten of the first"
    )
    parser.add_argument("--times", type=int, default=3, help="how often a group comes and goes")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the cost is measured")
    options, words = parser.parse_known_args()
    with EmbeddedKafka.start(properties={"broker.session.timeout.ms": 60_000}) as kafka:
        life(kafka.bootstrap, options.groups, options.rate, options.times, options.seconds, words)


if __name__ == "__main__":
    sys.exit(main())
