"""One soak of the view: rounds of a fault under load, each followed by rest, in which view and sums are judged."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import NamedTuple

import pyspark
from confluent_kafka import Consumer, TopicPartition

from tests.soak_view.groups import Group
from tests.soak_view.judge import faults
from tests.soak_view.schedule import Round
from tests.support.deadline import until
from tests.support.kafka.topic_io import SECONDS
from tests.support.sidecar.view_process import SELDOM, START_SECONDS, ViewProcess

REST = 120.0
"""Seconds in which view and sums must be what the events say, on an idle machine; Spark starts anew in it."""
WORDS = ("--trigger=500ms", "--slow-trigger=1s", "--sums-delay=2h", "--metrics-listen=127.0.0.1:0")
LOST = "reconsume_view_events_lost_total"
TAKEN = "is in use by another job"


class Verdict(NamedTuple):
    """What a soak has found."""

    rounds: int
    events: int
    lost: int
    slowest: float
    """Seconds from the end of the slowest fault to a view that is right."""
    violations: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.rounds} rounds, {self.events} events, {self.lost} deleted unread and counted, "
            f"at rest {self.slowest:.0f} s after a fault at most, {len(self.violations)} violations"
        )


def spark_home(folder: Path) -> Path:
    """Spark's folder by links: executors of a `local-cluster` keep jars and logs in `work` below their Spark's home."""
    folder.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (folder / entry.name).symlink_to(entry)
    return folder


class ViewSoak:
    """The job, its groups, and the faults. A context manager: the job is killed at its end."""

    def __init__(self, bootstrap: str, folder: Path, seed: int, master: str, say: Callable[[str], None]) -> None:
        self._bootstrap, self._folder, self._say = bootstrap, folder, say
        self._prefix, self._random = f"soak-{os.getpid()}-{seed}", Random(seed)
        self._place = folder / "place"
        home = {"SPARK_HOME": str(spark_home(folder / "spark"))}

        def job(name: str, place: Path) -> ViewProcess:
            words = (*WORDS, f"--master={master}", f"--pattern={self._prefix}-.*", f"--checkpoint={place}")
            return ViewProcess(bootstrap, folder / name, *words, environ=home)

        self._job, self._intruder = job("job", self._place), job("intruder", self._place)
        self._other = job("other", folder / "other-place")
        self.groups = [self._group() for _ in range(2)]
        self._lost = self._lost_before = 0
        """Events that were deleted unread, and of these those that an earlier process of the job has counted."""

    def __enter__(self) -> ViewSoak:
        self._job.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._job.__exit__(None, None, None)

    def _group(self) -> Group:
        return Group(self._bootstrap, f"{self._prefix}-{self._random.randrange(1 << 30):x}", self._random)

    # --- rounds ------------------------------------------------------------------------------------------------------

    def run(self, plan: Iterable[Round], seconds: float) -> Verdict:
        """Play rounds until the time is over, or one has found something."""
        end, slowest, done, events, found = time.monotonic() + seconds, 0.0, 0, 0, list[str]()
        for turn in plan:
            if time.monotonic() > end or found:
                break
            group = self._pick(turn.pick)
            group.live(turn.records // 2)
            getattr(self, f"_{turn.kind.replace('-', '_')}")(group, turn)
            (group if group.there else self._pick(turn.pick)).live(turn.records // 2)
            began = time.monotonic()
            found = self._rest()
            took, done = time.monotonic() - began, done + 1
            slowest = max(slowest, took)
            self._say(f"{turn.number:4}  {turn}: right after {took:.0f} s" if not found else f"{turn}: {found[:5]}")
        events = sum(len(group.bounds()[1]) for group in self.groups if group.there)
        return Verdict(done, events, self._lost, slowest, tuple(found))

    def _pick(self, pick: int) -> Group:
        there = [group for group in self.groups if group.there]
        return there[pick % len(there)]

    def _rest(self) -> list[str]:
        found: list[str] = []

        def right() -> bool:
            found[:] = [fault for group in self.groups for fault in faults(self._bootstrap, group)]
            if not found:
                found.extend(self._miscounted())
            return not found

        try:
            self._job.until(right, REST, "view and sums are what the events say", SELDOM)
        except AssertionError as late:
            return found or [str(late)]
        return []

    def _miscounted(self) -> list[str]:
        try:
            told = self._lost_before + self._counted()
        except OSError as away:  # it has just been started anew
            return [f"its metrics cannot be read: {away}"]
        return [] if told == self._lost else [f"{self._lost} events were deleted unread, and {told} are counted"]

    def _counted(self) -> int:
        lines = (line.rpartition(" ") for line in self._job.metrics().splitlines() if line.startswith(LOST))
        return sum(int(float(value)) for _, _, value in lines)

    # --- the job -----------------------------------------------------------------------------------------------------

    def _driver_killed(self, _group: Group, _turn: Round) -> None:
        self._lost_before += self._counted()
        self._job.crash()
        self._job.start()

    def _java_killed(self, _group: Group, _turn: Round) -> None:
        self._lost_before += self._counted()  # the driver starts itself anew
        os.kill(self._job.java().pid, signal.SIGKILL)

    def _job_stopped(self, group: Group, turn: Round) -> None:
        self._stop()
        group.live(turn.records)
        self._job.start()

    def _stop(self) -> None:
        self._lost_before += self._counted()
        assert self._job.stop() == 0

    def _checkpoint_lost(self, group: Group, turn: Round) -> None:
        self._stop()
        shutil.rmtree(self._place)
        group.live(turn.records)
        self._job.start()

    def _second_job(self, group: Group, turn: Round) -> None:
        """By mistake, with a checkpoint of its own: it writes the same rows."""
        self._other.start()
        group.live(turn.records)
        self._other.until(lambda: "metrics at" in self._other.log(), START_SECONDS, "the second job has begun")
        assert self._other.stop() == 0

    def _second_job_on_the_checkpoint(self, group: Group, turn: Round) -> None:
        """By mistake, on the same checkpoint: it must refuse, and leave it as it is."""
        self._intruder.start()
        group.live(turn.records)
        assert self._intruder.process.wait(START_SECONDS) == 1
        assert TAKEN in self._intruder.log()

    def _executor_killed(self, group: Group, turn: Round) -> None:
        """The process of a task, while tasks run; nothing where the driver itself runs them."""
        group.live(turn.records)
        for executor in self._job.executors()[: 1 + turn.pick % 2]:
            executor.kill()

    # --- the groups --------------------------------------------------------------------------------------------------

    def _group_added(self, _group: Group, turn: Round) -> None:
        self.groups.append(self._group())
        self.groups[-1].live(turn.records)

    def _group_removed(self, group: Group, _turn: Round) -> None:
        if sum(one.there for one in self.groups) > 1:
            group.delete()

    def _group_made_anew(self, group: Group, turn: Round) -> None:
        """It soon has more events than the old one."""
        group.made_anew_while_read()
        self._make_anew(group, turn)

    def _make_anew(self, group: Group, turn: Round) -> None:
        group.delete()
        group.create()
        group.live(2 * turn.records)

    def _group_made_anew_while_stopped(self, group: Group, turn: Round) -> None:
        self._stop()
        self._make_anew(group, turn)
        self._job.start()

    def _partitions_added(self, group: Group, turn: Round) -> None:
        group.widen()
        group.live(turn.records)

    def _events_overtaken(self, group: Group, turn: Round) -> None:
        """The job is away for so long that retention deletes what it has not read."""
        self._await_read(group)
        self._stop()
        group.live(turn.records)
        self._lost += group.cut(self._read(group), turn.pick % 100 / 100)
        self._job.start()

    def _await_read(self, group: Group) -> None:
        until(lambda: group.ends().items() <= self._read(group).items(), REST, "all events so far are read", SELDOM)

    def _read(self, group: Group) -> dict[int, int]:
        """How far the job has read, as it has committed it."""
        with closing(Consumer({"bootstrap.servers": self._bootstrap, "group.id": group.names.view_group})) as consumer:
            numbers = consumer.list_topics(group.names.events, timeout=SECONDS).topics[group.names.events].partitions
            parts = [TopicPartition(group.names.events, number) for number in numbers]
            return {part.partition: max(0, part.offset) for part in consumer.committed(parts, timeout=SECONDS)}
