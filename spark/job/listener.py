"""Turn Spark's events about each micro-batch into Prometheus metrics and rows of the progress board.

Py4J calls the listener on its own thread and only logs what it raises, so a fault here never stops a query.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.streaming.listener import StreamingQueryListener

from reconsume.spark.errors import first_line
from reconsume.spark.job.java_events import java_listener
from reconsume.spark.job.lost_events import lost
from reconsume.spark.job.meters import COUNTING, Meters
from reconsume.spark.job.positions import PartitionName, Position, ReadPositions
from reconsume.spark.job.progress import ProgressBoard, read_batch

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


RESTS = 9
"""Times as long as a commit took, there is no other while batches come: a job of many groups spends a tenth of its time
on commits, and not more. What was read meanwhile is committed at the latest when there is nothing to read."""


class Kafka(Protocol):
    """The requests of a listener to the brokers."""

    def earliest(self, partitions: Collection[PartitionName]) -> Mapping[PartitionName, int]:
        """Return the first offset that each partition has."""

    def commit(self, groups: Mapping[str, Mapping[PartitionName, Position]]) -> Mapping[str, str]:
        """Commit offsets for consumer groups that have no members. Return why a group's were refused, by group."""


class Listener(StreamingQueryListener):
    """A listener that passes each batch to the metrics and the board, and logs faults that need a sentence."""

    def __init__(
        self,
        meters: Meters,
        say: Callable[[str], None],
        kafka: Kafka,
        positions: ReadPositions,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meters, self._say, self._kafka, self._now = meters, say, kafka, now
        self._positions, self._silent = positions, False
        self._commit_at = 0.0
        self._lock = threading.Lock()
        self._progress = ProgressBoard(now())
        self._names: dict[str, str] = {}
        self._settled: set[str] = set()

    @cached_property
    def _jlistener(self) -> Any:
        """What PySpark gives to Java for this listener."""
        return java_listener(self)

    def settled(self, query: str) -> bool:
        """Whether the query has finished a batch, had nothing to do, or has ended."""
        return query in self._settled

    def rows(self) -> list[tuple[str, ...]]:
        """Return the board's cells; rates are since the last call."""
        with self._lock:
            return self._progress.rows(self._now())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Keep the query's name: later events may carry only the id of its run."""
        self._names[str(event.runId)] = event.name or "?"
        if event.name == COUNTING:
            self._positions.named(str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Take in a batch that has ended."""
        progress = json.loads(event.progress.json)
        batch = read_batch(progress)
        self._settled.add(batch.query)
        self._meters.took(batch)
        if batch.homeless:
            self._say(f"the {batch.query} query did not write {batch.homeless} rows: no topic {batch.missing}")
        with self._lock:
            self._progress.took(batch)
        if batch.query == COUNTING:
            if batch.bad:
                self._say(f"{batch.bad} records are no events, and ignored; one of them: {batch.first_bad[:1_000]}")
            if self._positions.take(progress):
                self._count_lost(progress)
                if self._now() >= self._commit_at:
                    self._commit_positions()

    def _commit_positions(self) -> None:
        """Commit how far the view has read. A failure is logged once, until all commits succeed."""
        began = self._now()
        self._try_commit(began)
        now = self._now()
        self._commit_at = now + (now - began) * RESTS

    def _try_commit(self, now: float) -> None:
        news = self._positions.news(now)
        try:
            refused = dict(self._kafka.commit(news))
        except Exception as error:  # noqa: BLE001 - for the reason below
            refused = dict.fromkeys(news, first_line(error))
        for group, positions in news.items():
            if group not in refused:
                self._positions.committed(positions)
        if refused and not self._silent:
            text = "the view seems older than it is, and these events are read again after a restart"
            group, why = next(iter(refused.items()))
            self._say(f"positions cannot be committed for {len(refused)} groups, so {text}; {group}: {why}")
        self._silent = bool(refused)

    def _count_lost(self, progress: Mapping[str, Any]) -> None:
        try:
            counts = lost(progress, self._positions.begins, self._kafka.earliest)
        except Exception as error:  # noqa: BLE001 - Java's client and Py4J raise many classes
            self._say(f"the first offsets cannot be read, so lost events may be uncounted: {first_line(error)}")
            return
        for topic, number in counts.items():
            self._meters.lost(topic, number)
            self._say(f"{number} events of {topic} were deleted before the view read them")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Note that the query is well, although it had nothing to do for a while."""
        if (name := self._names.get(str(event.runId))) is not None:
            self._meters.alive(name)
            self._settled.add(name)
            if name == COUNTING:
                self._positions.idle(str(event.runId))
                self._commit_positions()  # what was refused, and what must not expire

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Note that the query has ended. The supervisor reports why."""
        if (name := self._names.pop(str(event.runId), None)) is not None:
            self._settled.add(name)
