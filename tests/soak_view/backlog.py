"""A group that the job has never read, with a backlog: what its readers are told meanwhile is true of what they see."""

from __future__ import annotations

import bisect
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path

from reconsume.sidecar.view.follower import CopyStatus, ViewFollower
from reconsume.sidecar.view.query import questions
from reconsume.sidecar.view.source import Source
from reconsume.topics.names import Kind
from tests.soak_view.groups import Group
from tests.soak_view.judge import faults
from tests.soak_view.schedule import Round
from tests.soak_view.world import World
from tests.support.kafka.topic_io import Row, dump

EVENTS = 200_000
ASKED_EVERY = 0.25
"""Seconds between two questions how new the view is."""
READ_SECONDS = 300.0


def first_reading(world: World, _group: Group, _turn: Round) -> None:
    """A new group of 200 000 events, asked for its age four times a second until it has them all; then it goes."""
    group = world.group([Kind.EVENTS])
    group.fill(EVENTS)
    answers = Answers(dump(world.bootstrap, group.names.events))
    with followed(group) as follower:
        group.create([Kind.VIEW])
        world.until(lambda: answers.take(follower.status), READ_SECONDS, "the view says that it is complete")
    world.say(f"      {answers}")
    world.found += answers.wrong
    world.until(lambda: not list(faults(world.bootstrap, group)), READ_SECONDS, "the backlog is right", 1.0)
    group.delete()


@contextmanager
def followed(group: Group) -> Iterator[ViewFollower]:
    """A sidecar's own copy of the view, as it follows it."""
    kafka = {"bootstrap.servers": group.bootstrap}
    with tempfile.TemporaryDirectory(prefix="soak-view-copy-") as folder:
        # It checks more often than a sidecar does: then its answers differ from one question to the next.
        follower = ViewFollower(kafka, group.names, Path(folder), "soak", check_every=0.1, source=Source.SPARK)
        follower.start()
        try:
            yield follower
        finally:
            follower.stop()
            follower.join()


class Answers:
    """What readers were told, and which of it was wrong: an event older than the answer has no row."""

    def __init__(self, rows: list[Row]) -> None:
        appended = ((row.timestamp, json.loads(row.value or b"null")["id"]) for row in rows)
        self._appended = sorted(appended, key=itemgetter(0))
        self._checked = self._count = 0
        """Events that have been seen to have a row, from the oldest on, and the number of answers."""
        self._seen: set[int] = set()
        self.wrong: list[str] = []

    def take(self, status: CopyStatus) -> bool:
        """Check one answer. Return whether it says that all events have their rows."""
        time.sleep(ASKED_EVERY)
        if status.as_of is None or status.path is None:
            return False
        self._count += 1
        self._seen.add(status.as_of // 1_000)
        older = bisect.bisect_left(self._appended, status.as_of, key=itemgetter(0))
        with questions(status.path, READ_SECONDS) as ask:
            lacking = [name for _, name in self._appended[self._checked : older] if ask.message(name) is None]
        if lacking:
            self.wrong.append(f"as_of {status.as_of}: {len(lacking)} older events have no row, such as {lacking[0]}")
        self._checked = max(self._checked, older)
        return older == len(self._appended)

    def __str__(self) -> str:
        return f"{self._count} answers, {len(self._seen)} seconds told, {len(self.wrong)} wrong"
