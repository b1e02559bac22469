"""Turn Spark's events about each micro-batch into Prometheus metrics and rows of the progress board.

Py4J calls the listener on its own thread and only logs what it raises, so a fault here never stops a query.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark.errors import first_line
from spark.job.lost_events import PartitionName, lost
from spark.job.meters import COUNTING, Meters
from spark.job.progress import ProgressBoard, read_batch
from spark.job.read_positions import ReadPositions
from topics.names import Names

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


class Kafka(Protocol):
    """The requests of a listener to the brokers."""

    def earliest(self, partitions: Collection[PartitionName]) -> Mapping[PartitionName, int]:
        """Return the first offset that each partition has."""

    def commit(self, groups: Mapping[str, Mapping[PartitionName, int]]) -> None:
        """Commit offsets for consumer groups that have no members."""


class Listener(StreamingQueryListener):
    """A listener that passes each batch to the metrics and the board, and logs faults that need a sentence."""

    def __init__(self, meters: Meters, say: Callable[[str], None], kafka: Kafka) -> None:
        self._meters, self._say, self._kafka = meters, say, kafka
        self._positions, self._silent = ReadPositions(time.monotonic()), False
        self._lock = threading.Lock()
        self._progress = ProgressBoard(time.monotonic())
        self._names: dict[str, str] = {}
        self._settled: set[str] = set()

    def settled(self, query: str) -> bool:
        """Whether the query has finished a batch, had nothing to do, or has ended."""
        return query in self._settled

    def rows(self) -> list[tuple[str, ...]]:
        """Return the board's cells; rates are since the last call."""
        with self._lock:
            return self._progress.rows(time.monotonic())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Keep the query's name: later events may carry only the id of its run."""
        self._names[str(event.runId)] = event.name or "?"

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
            self._count_lost(progress)
            self._commit_positions(progress)

    def _commit_positions(self, progress: Mapping[str, Any]) -> None:
        """Commit how far the view has read, for its readers. A failure is logged once, until a commit succeeds."""
        try:
            news = self._positions.news(progress, time.monotonic())
            self._kafka.commit({Names(group).view_group: positions for group, positions in news.items()})
            for positions in news.values():
                self._positions.committed(positions)
        except Exception as error:  # noqa: BLE001 - for the reason below
            if not self._silent:
                why = first_line(error)
                self._say(f"the view's position cannot be committed, so readers can only estimate its age: {why}")
            self._silent = True
        else:
            self._silent = False

    def _count_lost(self, progress: Mapping[str, Any]) -> None:
        try:
            counts = lost(progress, self._kafka.earliest)
        except Exception as error:  # noqa: BLE001 - Java's client and Py4J raise many classes
            self._say(f"the first offsets cannot be read, so lost events may be uncounted: {first_line(error)}")
            return
        for topic, number in counts.items():
            self._meters.lost(topic, number)
            text = f"{number} events of {topic} were deleted before the view read them"
            self._say(f"{text}; `reconsume view repair` writes what the view lacks")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Note that the query is well, although it had nothing to do for a while."""
        if (name := self._names.get(str(event.runId))) is not None:
            self._meters.alive(name)
            self._settled.add(name)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Note that the query has ended. The supervisor reports why."""
        if (name := self._names.pop(str(event.runId), None)) is not None:
            self._settled.add(name)
