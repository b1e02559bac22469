"""`python -m tests.soak_spark`: a Spark consumer whose workers and driver are killed counts each attempt once.

The gated query runs as a process of its own (`job`), with a handler that decides by chance each time it is called, so
that a repeated batch comes to something else. By seed, one Python worker, one executor or the whole driver with its JVM
is killed, again and again, each time after records were handled, and the driver is started again. Then the load stops,
the last records come to their end, and `judge` compares events and topics: of each attempt (id, cycle, redrives, times)
there is one event and one copy, no record is lost, and none was handled before its time.

With `--master 'local-cluster[1,2,1024]'` an executor is a process of its own. In local mode it is the driver.

Spark gives a Python process 10 s to start (fixed in `PythonWorkerFactory`), of which each start of the query needs
several. On a machine without idle cores a start may fail, and the query ends with `Python worker failed to connect
back`. A supervisor starts it again, and so does `Driver.look`.

Exit code 0: all is well; 1: it is not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from rich.console import Console

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.java.jars import fetch
from reconsume.sidecar.java.spark_job import lock_for
from reconsume.spark.consumer import Record, build_rules, dead_letter, for_each_record, read_gated
from reconsume.spark.session import build
from reconsume.topics.names import Kind
from tests.soak_view.world import spark_home
from tests.support.deadline import NotInTimeError, until
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import Row, dump
from tests.support.python_path import python_path

LADDER, RETRIES = ("1s", "2s"), 4
RATE = 40
"""Records a second."""
STILL = 180.0
"""Seconds within which the job handles records again, and after the load all of them, on an idle machine."""
QUIET = 10.0
"""Seconds without a call after which nothing is under way in a job that runs: longer than the longest level."""
WORKER, EXECUTOR = "-m pyspark.", "CoarseGrainedExecutorBackend"
"""What is in the commands of the processes that are killed: Python for tasks and for the source, and an executor."""
SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


# --- in the job's process ---------------------------------------------------------------------------------------------


def job(bootstrap: str, group: str, topic: str, folder: Path, master: str) -> None:
    """Run the query until it fails or is killed."""
    ledger = str(folder / "ledger.jsonl")

    def handle(record: Record) -> object:
        line = json.dumps([record.id, record.times, time.time_ns() // 1_000_000]).encode() + b"\n"
        with open(ledger, "ab", buffering=0) as file:  # noqa: PTH123 - one write to the end of a file is whole
            file.write(line)
        chance = random.random()
        if chance < 0.4:
            raise LookupError("by chance")
        return dead_letter("by-chance") if chance < 0.45 else None

    spark = build("soak", jars=fetch(lock_for(version("pyspark"))), master=master)
    spark.sparkContext.setLogLevel("ERROR")
    rules = build_rules(group, [topic], name="soak", ladder=LADDER, levels="ladder", max_reconsume_times=RETRIES)
    kafka = {"bootstrap.servers": bootstrap}
    run = for_each_record(handle, rules, kafka, stop_share=1)
    batches = read_gated(spark, rules, kafka, most=400).writeStream.foreachBatch(run)
    batches.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


# --- in the soak's process --------------------------------------------------------------------------------------------


class Driver:
    """The job's process, which is started again whenever it has ended."""

    def __init__(self, group: GroupTopics, folder: Path, master: str) -> None:
        self._log, self._home = folder / "job.log", spark_home(folder / "spark")
        words = [group.bootstrap, group.group, group.main, str(folder), master]
        self._command = [sys.executable, "-m", "tests.soak_spark", "--job", *words]
        self.process = self._start()
        self.ended = 0
        """How often it has ended on its own, because the query did."""

    def _start(self) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "PYTHONPATH": python_path(), "JAVA_TOOL_OPTIONS": SHORT_LIFE, "MALLOC_ARENA_MAX": "2"}
        environ["SPARK_HOME"] = str(self._home)
        # Compiled anew at each start, PySpark takes twice the CPU of the seconds that Spark gives a worker.
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, env=environ, stdout=log, stderr=log, start_new_session=True)

    def look(self) -> None:
        """Start it again if it has ended."""
        if self.process.poll() is not None:
            self.ended += 1
            self.kill()
            self.process = self._start()

    def below(self, name: str) -> list[psutil.Process]:
        """The processes below the driver that have a name in their command, by their ids."""
        with suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.process.pid).children(recursive=True)
            return sorted((one for one in below if name in named(one)), key=lambda one: one.pid)
        return []

    def moves(self) -> tuple[int, int]:
        """What changes while the query is being started: how often it has ended, and the length of its log."""
        return self.ended, self._log.stat().st_size

    def kill(self) -> None:
        """SIGKILL to the driver, its JVM and its workers."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    def restart(self) -> None:
        """Kill all of it, and start it again."""
        self.kill()
        self.process = self._start()


def named(process: psutil.Process) -> str:
    """The command of a process; empty if it has gone."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def load(group: GroupTopics, stop: threading.Event) -> None:
    """Produce until told to stop."""
    producer = Producer({"bootstrap.servers": group.bootstrap, "enable.idempotence": True, "linger.ms": 5})
    while not stop.wait(1 / RATE):
        producer.produce(group.main, b"v", b"%d" % random.randrange(100))
        producer.poll(0)
    producer.flush(60)


def ledger_of(folder: Path) -> list[tuple[str, int, int]]:
    """Each call of the handler: id, times, and when (epoch ms). A killed worker may have left half a line."""
    calls = []
    for line in (folder / "ledger.jsonl").read_text().splitlines():
        with suppress(ValueError):
            calls.append(tuple(json.loads(line)))
    return calls


def judge(group: GroupTopics, folder: Path) -> tuple[str, list[str]]:
    """What the topics hold, in a line, and what is wrong with it."""
    mains = {f"{group.main}:{row.partition}:{row.offset}" for row in dump(group.bootstrap, group.main)}
    events = [json.loads(row.value or b"") for row in dump(group.bootstrap, group.names.events)]
    copies = [row for topic in (*group.levels, group.dlq) for row in dump(group.bootstrap, topic)]
    calls = ledger_of(folder)
    found = [*wrong_events(mains, events, calls), *wrong_copies(events, copies), *early(copies, calls)]
    repeated = len(calls) - len({(id_, times) for id_, times, _ in calls})
    line = f"{len(mains)} records, {len(events)} events, {len(copies)} copies, {len(calls)} calls ({repeated} repeated)"
    return line, found


def wrong_events(mains: set[str], events: list[dict[str, Any]], calls: list[tuple[str, int, int]]) -> Iterator[str]:
    """What is wrong with the events: each record has one of each wait, one after the other, and then one of its end."""
    told: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for event in events:
        if (event.get("cycle", 0), event["redrives"]) != (0, 0):
            yield f"{event['id']} was redriven by nobody"
        told[event["id"]].append((event["state"], event["times"]))
    called = {id_ for id_, times, _ in calls if times == 0}
    for id_ in sorted(mains):
        waits = sorted(times for state, times in told[id_] if state == "WAITING_RETRY")
        ends = [(state, times) for state, times in told[id_] if state != "WAITING_RETRY"]
        if waits != list(range(1, len(waits) + 1)):
            yield f"{id_}: it waited for the retries {waits}"
        if (waits or ends) and [times for _, times in ends] != [len(waits)]:
            yield f"{id_}: after {len(waits)} waits it ended {len(ends)} times: {ends}"
        if not told[id_] and id_ not in called:
            yield f"{id_} was never handled"
    if strangers := told.keys() - mains:
        yield f"events of {len(strangers)} records that nobody has written"


def wrong_copies(events: list[dict[str, Any]], copies: list[Row]) -> Iterator[str]:
    """Copies without their event, events without their copy, and more than one of either."""
    wanted = Counter((event["id"], event["times"]) for event in events if event["state"] != "COMMIT")
    found = Counter(attempt_of(row) for row in copies)
    # An end by the dead letters has the times of the wait before it.
    for attempt in sorted(wanted.keys() | found.keys()):
        if wanted[attempt] != found[attempt]:
            yield f"{attempt}: {wanted[attempt]} events and {found[attempt]} copies"


def early(copies: list[Row], calls: list[tuple[str, int, int]]) -> Iterator[str]:
    """Retries that were handled before they were due."""
    due = {attempt_of(row): int(dict(row.headers).get("RETRY_DUE_AT") or 0) for row in copies}
    for id_, times, at in calls:
        if times and at < due.get((id_, times), 0):
            yield f"{id_} ({times}) was handled {due[id_, times] - at} ms early"


def attempt_of(row: Row) -> tuple[str, int]:
    """The id and the times of a copy."""
    headers = dict(row.headers)
    return (headers["ORIGIN_MESSAGE_ID"] or b"").decode(), int(headers["RECONSUMETIMES"] or 0)


def soak(kafka: EmbeddedKafka, folder: Path, given: argparse.Namespace, say: Callable[[str], None]) -> list[str]:
    """Kill so often, wait for the end, and return what is wrong."""
    chance = random.Random(given.seed)
    group = create_group(fresh_group(kafka.bootstrap, delays=(1_000, 2_000)), also=(Kind.POLICY,))
    stop = threading.Event()
    loading = threading.Thread(target=load, args=(group, stop), daemon=True)
    driver = Driver(group, folder, given.master)
    done: Counter[str] = Counter()
    loading.start()
    try:
        while done.total() < given.kills:
            await_calls(folder, driver)
            time.sleep(chance.uniform(0, 3))
            if chance.random() < 0.3:
                driver.restart()
                done["driver"] += 1
                continue
            victims = driver.below(EXECUTOR) if chance.random() < 0.5 else []
            kind = "executor" if victims else "worker"
            if victims := victims or driver.below(WORKER):
                with suppress(psutil.NoSuchProcess):
                    chance.choice(victims).kill()
                    done[kind] += 1
        stop.set()
        loading.join()
        rest(group, folder, driver)
    finally:
        stop.set()
        driver.kill()
    line, found = judge(group, folder)
    say(f"{dict(done)} killed, the query ended {driver.ended} times: {line}")
    return found


def calls_in(folder: Path) -> int:
    """How far the ledger goes, in bytes."""
    ledger = folder / "ledger.jsonl"
    return ledger.stat().st_size if ledger.exists() else 0


def await_calls(folder: Path, driver: Driver) -> None:
    """Wait until the handler is called again."""
    before = calls_in(folder)

    def is_called() -> bool:
        driver.look()
        return calls_in(folder) > before

    until(is_called, STILL, "the handler is called", step=0.1, moves=driver.moves)


def rest(group: GroupTopics, folder: Path, driver: Driver) -> None:
    """Wait until nothing is wrong any more, with the job running, and a while longer; the last word is the judge's."""

    def is_over() -> bool:
        driver.look()
        return not judge(group, folder)[1]

    with suppress(NotInTimeError):
        until(is_over, STILL, "every record has come to its end", step=5, moves=lambda: calls_in(folder))
        await_silence(folder)


def await_silence(folder: Path) -> None:
    """Wait until the handler was not called for QUIET seconds."""
    last, since = -1, time.monotonic()
    while time.monotonic() < since + QUIET:
        if (size := calls_in(folder)) != last:
            last, since = size, time.monotonic()
        time.sleep(1)


def main() -> int:
    """Run one soak; the exit code."""
    parser = argparse.ArgumentParser(prog="make soak-spark", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="repeats a run's kills")
    parser.add_argument("--master", default="local[2]", help="local-cluster[1,2,1024] has an executor too")
    parser.add_argument("--job", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        bootstrap, name, topic, place, master = given.job
        job(bootstrap, name, topic, Path(place), master)
        return 0
    seed = given.seed
    folder, begun = Path(tempfile.mkdtemp(prefix=f"soak-spark-{seed}-")), time.monotonic()
    console = Console()
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    with EmbeddedKafka.start() as kafka:
        found = soak(kafka, folder, given, lambda line: say(f"seed {seed}: {line}"))
    say(f"seed {seed}: {len(found)} violations after {time.monotonic() - begun:.0f} s; kept in {folder}")
    for line in found[:25]:
        say(f"  {line}")
    if not found:
        shutil.rmtree(folder)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
