"""Groups whose sidecars are played: what was ever written of each, and what is still there."""

from __future__ import annotations

import time
from collections.abc import Collection
from random import Random
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from reconsume.topics.events import Event, State
from reconsume.topics.names import Kind, Names
from tests.support.kafka.topic_io import SECONDS, Row, delete_topics, dump
from tests.support.kafka.view_topics import create_view_topics, event, folded, tell

KINDS = (Kind.EVENTS, Kind.VIEW)
LEVELS = ("10s", "1m", "2h")
REASONS = ("http-500", "timeout", "é|😀")
TOLD_AT_ONCE = 10_000


class Group:
    """One group. `complete`: whether the view must be exactly what all events say, as none was ever deleted."""

    def __init__(self, bootstrap: str, name: str, random: Random, kinds: Collection[Kind] = KINDS) -> None:
        self.names, self.complete, self.there = Names(name), True, False
        self.bootstrap, self._random = bootstrap, random
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})  # the broker is killed meanwhile
        self._written: set[Row] = set()
        """Every record that was ever on an events topic of this name."""
        self._first = 0
        self.create(kinds)

    def create(self, kinds: Collection[Kind] = KINDS) -> None:
        """Make its topics, or some of them."""
        create_view_topics(self.bootstrap, self.names.group, kinds)
        self.there = True

    def delete(self) -> None:
        """Delete its topics, and wait until they are gone."""
        self._note()
        delete_topics(self.bootstrap, self.names.events, self.names.view)
        self.there = self.complete = False

    def recreate_view(self) -> None:
        """Delete the VIEW topic and create it again."""
        delete_topics(self.bootstrap, self.names.view)
        self.create([Kind.VIEW])

    def fill(self, events: int) -> None:
        """Tell of so many records, of each that it has failed once."""
        for first in range(0, events, TOLD_AT_ONCE):
            numbers = range(first, min(first + TOLD_AT_ONCE, events))
            tell(self.bootstrap, [event(self.names.group, number) for number in numbers])

    def live(self, records: int) -> None:
        """Let so many records fail: the lives of each, event by event, mixed."""
        lives = [life for number in range(records) if (life := self._life(self._first + number))]
        self._first += records
        while lives:
            batch = [life.pop(0) for life in lives if self._random.random() < 0.5]
            lives = [life for life in lives if life]
            if batch:
                tell(self.bootstrap, batch)

    def _life(self, number: int) -> list[Event]:
        random, told, at = self._random, list[Event](), time.time_ns() // 1_000_000
        fields: dict[str, Any] = {"timestamp": at, "first_failed_at": at, "reason": random.choice(REASONS)}

        def add(state: State, times: int, redrives: int) -> None:
            level = random.choice(LEVELS) if state is State.WAITING_RETRY else None
            told.append(
                event(
                    self.names.group, number, state, times, redrives=redrives, level=level, at=at + len(told), **fields
                )
            )

        for redrives in range(random.choice((1, 1, 1, 2))):
            if redrives:
                add(State.REDRIVEN, 0, redrives)
            retries = random.randint(0, 4)
            for times in range(1, retries + 1):
                add(State.WAITING_RETRY, times, redrives)
            if random.random() < 0.8:
                add(random.choice((State.COMMIT, State.DLQ)), retries, redrives)
        return told

    def widen(self) -> None:
        """Add a partition to its events."""
        count = len(self._admin.list_topics(self.names.events, timeout=SECONDS).topics[self.names.events].partitions)
        request = [NewPartitions(self.names.events, count + 1)]
        self._admin.create_partitions(request)[self.names.events].result(SECONDS)

    def cut(self, read: dict[int, int], share: float) -> int:
        """Delete a part of what lies behind `read` in each partition, as retention does; how many records."""
        self._note()
        gone, places = 0, []
        for number, end in self.ends().items():
            begin = read.get(number, 0)
            before = begin + round((end - begin) * share)
            if before > begin:
                gone += before - begin
                places.append(TopicPartition(self.names.events, number, before))
        self._admin.list_topics(self.names.events, timeout=SECONDS)  # else it does not know partitions that were added
        for future in self._admin.delete_records(places).values() if places else ():
            future.result(SECONDS)
        self.complete = self.complete and not gone
        return gone

    def ends(self) -> dict[int, int]:
        """The end of each partition of its events that is not empty."""
        return {row.partition: row.offset + 1 for row in dump(self.bootstrap, self.names.events)}

    def _note(self) -> None:
        self._written |= set(dump(self.bootstrap, self.names.events))

    def bounds(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The least and the most that the view may say: of what is there, and of all that ever was."""
        there = dump(self.bootstrap, self.names.events)
        self._written |= set(there)
        return dict(folded(there)), dict(folded(self._written))
