"""The examples as a process of their own, with a handler that keeps a ledger and a place where it can be killed.

`python -m tests.flow.view.spark_job JSON` runs them in one session; `SparkProcess` starts, kills and watches it.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from reconsume.spark.consumer import Counts, Record, build_rules, dead_letter, retry
from reconsume.spark.session import build
from reconsume.topics.durations import render_duration
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics
from tests.support.proof.evidence import PartitionName, Progress
from tests.support.proof.ledger import FAILED, TOOK, Delivery
from tests.support.python_path import python_path

HELD = 240.0
"""Seconds that a held job waits to be killed before it fails."""
SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM of half a minute: less time is spent on compiling than is gained."""
LATE_WORKER = "to connect back"
"""What Spark says when a Python process of its own has not started within 10 s, which no setting changes. On a machine
that is so busy the driver ends, and is started again as whatever runs it would."""


# --- in the job's process --------------------------------------------------------------------------------------------


def scripted(folder: Path) -> Callable[[Record], object]:
    """A handler that does what the value says, and writes down each call and its end."""

    def write(line: dict[str, object]) -> None:
        with (folder / "ledger.jsonl").open("ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")

    def handle(record: Record) -> object:
        row = record._asdict() | {"received": now(), "headers": None}
        row |= {name: text(row[name]) for name in ("key", "value")}
        script = (record.value or b"").split(b" ")[0]
        took = script == b"fine" or (script in (b"flaky", b"patient") and record.times >= 1)
        if record.times:
            (folder / "retried").touch()
        write(row | {"took": took, "answered": now()})
        match script:
            case b"dead":
                return dead_letter("bad-sku")
            case b"patient" if not took:
                return retry(delay="12s", reason="busy")  # longer than every level: it hops
            case _ if not took:
                raise LookupError
        return None

    return handle


def holding(folder: Path) -> Callable[[Counts], None]:
    """Stops the job between the first copies that it writes of a retried record, and the commit of their batch."""

    def report(counts: Counts) -> None:
        if counts.retry and (folder / "retried").exists() and not (folder / "killed").exists():
            (folder / "held").touch()
            time.sleep(HELD)
            raise TimeoutError("nobody has killed the job")

    return report


def main(given: dict[str, Any]) -> None:
    """Run the examples until they are killed, or one of them ends."""
    session = build("test", jars=[Path(jar) for jar in given["jars"]])
    for job in given["jobs"]:
        folder = Path(job["folder"])
        rules = build_rules(job["group"], job["topics"], **given["rules"], name="ship")
        start = importlib.import_module(job["example"]).start
        start(session, rules, given["bootstrap"], folder / "checkpoint", scripted(folder), holding(folder))
    session.streams.awaitAnyTermination()


def now() -> int:
    """Epoch ms."""
    return time.time_ns() // 1_000_000


def text(data: object) -> str | None:
    """Bytes as base64."""
    return base64.b64encode(data).decode() if isinstance(data, bytes) else None


# --- in the test's process -------------------------------------------------------------------------------------------


class SparkJob(NamedTuple):
    """An example at work for a group, and where it leaves its traces."""

    example: str
    group: GroupTopics
    folder: Path

    @property
    def held(self) -> bool:
        """Whether it stands between the writes of a batch and its commit."""
        return (self.folder / "held").exists()

    def deliveries(self) -> tuple[Delivery, ...]:
        """Every call of the handler, in order."""
        file = self.folder / "ledger.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return tuple(_delivery(self.group.group, number, line) for number, line in enumerate(lines))

    def progress(self) -> dict[PartitionName, Progress]:
        """How far it has come, by its checkpoint: the offsets of the last batch that is committed."""
        checkpoint = self.folder / "checkpoint"
        batches = [int(file.name) for file in (checkpoint / "commits").glob("[0-9]*")]
        if not batches:
            return {}
        sources = (checkpoint / "offsets" / str(max(batches))).read_text().splitlines()[2:]
        found: dict[PartitionName, Progress] = {}
        for source in sources:
            kept = json.loads(source)
            for topic, parts in kept.get("next", kept).items():
                found.update({(topic, int(number)): Progress(offset) for number, offset in parts.items()})
        return found


class SparkProcess:
    """One driver that runs jobs. A context manager: leaving it kills what still runs."""

    def __init__(self, jobs: Sequence[SparkJob], jars: Sequence[Path], **rules: object) -> None:
        self._jobs = jobs
        self._log = jobs[0].folder / "spark.log"
        levels = [render_duration(delay) for delay in jobs[0].group.delays]
        self._given: dict[str, object] = {
            "bootstrap": jobs[0].group.bootstrap,
            "jars": list(map(str, jars)),
            "rules": {**rules, "ladder": ["1s", "2s"], "levels": levels},
            "jobs": [
                {"example": example, "group": group.group, "topics": group.mains, "folder": str(folder)}
                for example, group, folder in jobs
            ],
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._said = 0

    def __enter__(self) -> SparkProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if error is not None:
            # Without the frames of the JVM's stacks: after a failure they push everything else out of sight.
            lines = self._log.read_text(errors="replace").splitlines()
            said = "\n".join(line for line in lines if not line.lstrip().startswith(("at ", "... ")))
            error.add_note(f"--- the end of {self._log} ---\n{said[-8_000:]}")

    def start(self) -> None:
        """Start the process; returns at once."""
        environ = {
            **os.environ,
            "PYTHONPATH": python_path(),
            "MALLOC_ARENA_MAX": "2",
            "JAVA_TOOL_OPTIONS": SHORT_LIFE,
        }
        command = [sys.executable, "-m", "tests.flow.view.spark_job", json.dumps(self._given)]
        with self._log.open("ab") as log:
            self._said = log.tell()
            # A session of its own: a machine that dies takes the driver, its JVM and its workers with it.
            self._process = subprocess.Popen(
                command, cwd=self._log.parent, env=environ, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """SIGKILL to the driver, its JVM and its workers; held jobs go on when it is started again."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)
        for job in self._jobs:
            (job.folder / "killed").touch()

    def until(self, predicate: Callable[[], object], seconds: float, what: str) -> None:
        """As `deadline.until`, but fails at once when the process has ended for any reason but a late worker."""

        def asked() -> object:
            assert self._process is not None
            if self._process.poll() is not None:
                assert LATE_WORKER in self._new_lines(), f"the driver has ended, waiting for: {what}"
                self.start()
            return predicate()

        until(asked, seconds, what)

    def _new_lines(self) -> str:
        """What the process that ran last has said."""
        return self._log.read_bytes()[self._said :].decode(errors="replace")


def _delivery(group: str, number: int, line: dict[str, Any]) -> Delivery:
    key, value = (None if line[name] is None else base64.b64decode(line[name]) for name in ("key", "value"))
    idempotency_key = f"{group}/{line['id']}/{line['redrives']}"
    means = TOOK if line["took"] else FAILED
    place = (number, line["received"], line["id"], line["times"], line["redrives"])
    return Delivery(*place, idempotency_key, key, value, (), means, means, line["answered"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
