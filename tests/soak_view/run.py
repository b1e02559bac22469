"""One soak of the view: rounds of a fault under load, each followed by rest, in which the view is judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from tests.soak_view import backlog, faults_cluster, faults_job, faults_topics
from tests.soak_view.groups import Group
from tests.soak_view.judge import faults
from tests.soak_view.schedule import Round
from tests.soak_view.world import World
from tests.support.sidecar.view_process import SELDOM

REST = 120.0
"""Seconds in which the view must be what the events say, on an idle machine; Spark starts anew in it."""
Fault: TypeAlias = Callable[[World, Group, Round], None]
FAULTS: Mapping[str, Fault] = {
    "all-killed": faults_job.all_killed,
    "driver-killed": faults_job.driver_killed,
    "java-killed": faults_job.java_killed,
    "job-stopped": faults_job.stopped,
    "second-job": faults_job.second,
    "group-added": faults_topics.group_added,
    "group-removed": faults_topics.group_removed,
    "group-made-anew": faults_topics.group_made_anew,
    "group-made-anew-while-stopped": faults_topics.group_made_anew_while_stopped,
    "view-recreated": faults_topics.view_recreated,
    "view-recreated-while-stopped": faults_topics.view_recreated_while_stopped,
    "partitions-added": faults_topics.partitions_added,
    "events-overtaken": faults_topics.events_overtaken,
    "first-reading": backlog.first_reading,
    "broker-killed": faults_cluster.broker_killed,
    "broker-paused": faults_cluster.broker_paused,
    "executor-killed": faults_cluster.executor_killed,
    "worker-killed": faults_cluster.worker_killed,
}


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


class ViewSoak:
    """The rounds of a soak. A context manager: the job is killed at its end."""

    def __init__(self, kafka: EmbeddedKafka, folder: Path, seed: int, master: str, say: Callable[[str], None]) -> None:
        self._world, self._say = World(kafka, folder, seed, master, say), say

    def __enter__(self) -> ViewSoak:
        self._world.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._world.__exit__(*error)

    def run(self, plan: Iterable[Round], seconds: float) -> Verdict:
        """Play rounds until the time is over, or one has found something."""
        end, slowest, done, found, rested = time.monotonic() + seconds, 0.0, 0, list[str](), True
        for turn in plan:
            if found or (rested and time.monotonic() > end):
                break
            self._play(turn)
            rested = turn.rests
            if not rested:
                done += 1
                self._say(f"{turn.number:4}  {turn}: and at once")
                continue
            began = time.monotonic()
            found = [*self._world.found, *self._rest()]
            took, done = time.monotonic() - began, done + 1
            slowest = max(slowest, took)
            self._say(f"{turn.number:4}  {turn}: right after {took:.0f} s" if not found else f"{turn}: {found[:5]}")
        events = sum(len(group.bounds()[1]) for group in self._world.groups if group.there)
        return Verdict(done, events, self._world.lost, slowest, tuple(found))

    def _play(self, turn: Round) -> None:
        group = self._world.pick(turn.pick)
        group.live(turn.records // 2)
        FAULTS[turn.kind](self._world, group, turn)
        (group if group.there else self._world.pick(turn.pick)).live(turn.records // 2)

    def _rest(self) -> list[str]:
        found: list[str] = []
        world = self._world

        def right() -> bool:
            found[:] = [fault for group in world.groups for fault in faults(world.bootstrap, group)]
            if not found:
                found.extend(world.miscounted())
            return not found

        try:
            world.until(right, REST, "the view is what the events say", SELDOM)
        except AssertionError as late:
            return found or [str(late)]
        return []
