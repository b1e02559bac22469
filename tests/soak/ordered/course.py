"""Order over long waits at a fixed rate, under kills and roll-outs: the same course with and without keys that fail.

How late the first delivery of a record is, of the keys that never fail, is compared between the two. So what others pay
for keys that fail is seen apart from what they pay for the kills.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from tests.soak.cluster import insist
from tests.soak.faults_pods import roll
from tests.soak.journal import Journal
from tests.soak.ordered.judging import judge_ordered
from tests.soak.ordered.kinds import OrderedKind
from tests.soak.ordered.side import OrderedSide
from tests.support.kafka.topic_io import dump
from tests.support.service.behaviours import Answer, Behaviour, Request

KEYS, RATE, SLOTS = 2_000, 500, 3
FAILING = 10
"""Each so many-th key fails for a while."""
EVENTS = ["kill", "kill", "roll", "kill", "kill", "back", "kill", "kill"]
"""Spread evenly over the course: six kills of a pod, a roll-out of another ladder, and one back."""
DOWN = 1.0
"""Seconds until the container of a pod that was killed is started anew."""
REST = 180.0
"""Seconds beyond the longest failure within which all is at rest."""


class Course(NamedTuple):
    """How long a run is, and for how long a key fails at most; seconds. 0: none fails."""

    seconds: float
    fails_for: float

    @property
    def spells(self) -> Mapping[bytes, tuple[float, float]]:
        """From when to when each key fails, in seconds of the course; the same for the same course."""
        chance = random.Random(f"{self}")
        keys = [b"account %d" % number for number in range(0, KEYS, FAILING)] if self.fails_for else []
        spells = {}
        for key in keys:
            lasts = chance.uniform(self.fails_for / 4, self.fails_for)
            begins = chance.uniform(0, self.seconds - lasts)
            spells[key] = (begins, begins + lasts)
        return spells


class Result(NamedTuple):
    """What a run came to. `late_ms`: p50 and p99 of the keys that never fail."""

    figures: str
    violations: tuple[str, ...]
    late_ms: tuple[int, int]
    rest_s: float


def run(course: Course, kafka: EmbeddedKafka, folder: Path) -> Result:
    """Run a course on a cluster that runs, and judge it."""
    with ExitStack() as stack:
        journal = Journal(folder / "journal.jsonl")
        stack.callback(journal.close)
        begun = time.monotonic() + 1e9  # nothing fails before the load begins
        script = _script(course.spells, lambda: time.monotonic() - begun)
        kind = OrderedKind(
            f"keys{course.fails_for:.0f}",
            {"ordered_ladder": ["1s", "2s", "5s", "10s"], "max_reconsume_times": 200},
            {"ordered_ladder": ["1s", "3s"], "max_reconsume_times": 200},
            script,
            SLOTS,
            KEYS,
            RATE,
        )
        side = OrderedSide(kind, 1, folder, kafka, kafka.bootstrap, journal, stack)
        side.pods.launch_all()
        begun = journal.begun = time.monotonic()
        side.load.start()
        _carry_out(side, course, journal)
        assert side.load.end() == 0, "some records are not confirmed"
        rest_s = _rest(side, course)
        side.pods.end()
        verdict = judge_ordered(side)
        crashes = (*side.pods.crashes, *side.pods.findings)
        return Result(verdict.figures, (*verdict.violations, *crashes), _lateness(side, course), rest_s)


def _script(spells: Mapping[bytes, tuple[float, float]], now: Callable[[], float]) -> Callable[[Request], Behaviour]:
    def script(request: Request) -> Behaviour:
        since, end = spells.get(request.key or b"", (0.0, 0.0))
        return Answer(500 if since <= now() < end else 200, after=0.002)

    return script


def _carry_out(side: OrderedSide, course: Course, journal: Journal) -> None:
    """The events, one after another; then the rest of the time."""
    for number, event in enumerate(EVENTS):
        time.sleep(max(0.0, course.seconds * (number + 1) / (len(EVENTS) + 1) - journal.seconds))
        journal.tell(event, said=_event(side, event, number))
    time.sleep(max(0.0, course.seconds - journal.seconds))


def _event(side: OrderedSide, event: str, number: int) -> str:
    if event != "kill":
        return roll(side.pods, time.sleep, "rolled" if event == "roll" else "base", killed_slot=-1)
    pod = side.pods.pod(number % SLOTS)
    said = side.pods.kill(pod)
    time.sleep(DOWN)
    side.pods.start_again(pod)
    return said


def _rest(side: OrderedSide, course: Course) -> float:
    """Wait until nothing is left; how long it took."""
    begun = time.monotonic()
    insist(lambda: not side.cluster.left(), "all is at rest", course.fails_for + REST)
    return time.monotonic() - begun


def _lateness(side: OrderedSide, course: Course) -> tuple[int, int]:
    """From the record's timestamp to its first delivery."""
    first: dict[str, int] = {}
    for one in side.ledger.deliveries():
        first.setdefault(one.id, one.received)
    others = (row for row in dump(side.group.bootstrap, side.group.main) if row.key not in course.spells)
    late = sorted(first[f"{side.group.main}:{row.partition}:{row.offset}"] - row.timestamp for row in others)
    return late[len(late) // 2], late[len(late) * 99 // 100]
