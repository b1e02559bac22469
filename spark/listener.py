"""What Spark tells of each micro-batch, as Prometheus metrics and for the board of progress.

Called on a thread of py4j; what is raised there is only logged, so that a fault here never stops a query.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark.progress import Batch, Board, read_batch

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

PREFIX = "reconsume_spark_"
COUNTING = "view"
"""Every query sees every bad event; one of them counts."""
SECONDS = (0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
"""Bounds of the histogram: a batch of the view shall take less than its trigger, 1 s."""


class Meters:
    """The metrics, each with the label `query`; what is known of every query starts at 0. Safe on any thread."""

    def __init__(self, queries: tuple[str, ...]) -> None:
        self.registry = CollectorRegistry()
        self._rows = self._counter("input_rows", "Records read from the events topics.")
        self._dropped = self._counter("rows_dropped_by_watermark", "Rows too late for a query's watermark; 0 is right.")
        self._restarts = self._counter("restarts", "Starts of a query after a failure.")
        self._homeless = self._counter("rows_without_topic", "Rows not written, as their group has no topic for them.")
        self._given_up = self._gauge("given_up", "1 where a query failed too often and is not started any more.")
        self._bad = Counter(f"{PREFIX}bad_events", "Records that are no event.", registry=self.registry)
        self._seconds = Histogram(
            f"{PREFIX}batch_duration_seconds",
            "How long a micro-batch took.",
            ["query"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._state = self._gauge("state_rows", "Rows that a query keeps; the view counts them in its sweeps.")
        self._behind = self._gauge("offsets_behind_latest", "Records in Kafka that the last micro-batch left unread.")
        self._watermark = self._gauge("watermark_timestamp_seconds", "Rows older than this are late.")
        self._last = self._gauge("last_progress_timestamp_seconds", "When a query was last known to be well.")
        for query in queries:
            plain = self._rows, self._dropped, self._restarts, self._seconds, self._behind
            for meter in (*plain, self._homeless, self._given_up):
                meter.labels(query)
            self._last.labels(query).set(time.time())

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"{PREFIX}{name}", text, ["query"], registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}{name}", text, ["query"], registry=self.registry)

    def took(self, batch: Batch) -> None:
        """A micro-batch has ended."""
        self._rows.labels(batch.query).inc(batch.rows)
        self._dropped.labels(batch.query).inc(batch.dropped)
        self._homeless.labels(batch.query).inc(batch.homeless)
        self._seconds.labels(batch.query).observe(batch.seconds)
        if batch.state_rows is not None:
            self._state.labels(batch.query).set(batch.state_rows)
        self._behind.labels(batch.query).set(batch.behind)
        if batch.query == COUNTING:
            self._bad.inc(batch.bad)
        if batch.watermark is not None:
            self._watermark.labels(batch.query).set(batch.watermark.timestamp())
        self.lives(batch.query)

    def lives(self, query: str) -> None:
        """A query is well, though there was nothing to do."""
        self._last.labels(query).set(time.time())

    def restarting(self, query: str) -> None:
        """A query is started after a failure."""
        self._restarts.labels(query).inc()

    def giving_up(self, query: str) -> None:
        """A query is not started any more."""
        self._given_up.labels(query).set(1)


class Listener(StreamingQueryListener):
    """Hands each batch to the metrics and the board, and says what must not stay a number."""

    def __init__(self, meters: Meters, say: Callable[[str], None]) -> None:
        self._meters, self._say = meters, say
        self._lock = threading.Lock()
        self._board = Board(time.monotonic())
        self._names: dict[str, str] = {}
        self._settled: set[str] = set()

    def settled(self, query: str) -> bool:
        """Whether the query has ended a batch, had none to do, or failed."""
        return query in self._settled

    def rows(self) -> list[tuple[str, ...]]:
        """The board's cells; rates are since the last call."""
        with self._lock:
            return self._board.rows(time.monotonic())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """A query has started: later events may name its run alone."""
        self._names[str(event.runId)] = event.name or "?"

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A batch has ended."""
        batch = read_batch(json.loads(event.progress.json))
        self._settled.add(batch.query)
        self._meters.took(batch)
        if batch.homeless:
            self._say(f"the {batch.query} query did not write {batch.homeless} rows: no topic {batch.missing}")
        with self._lock:
            self._board.took(batch)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """There was nothing to do for a while."""
        if (name := self._names.get(str(event.runId))) is not None:
            self._meters.lives(name)
            self._settled.add(name)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """A query has ended; why is the supervisor's to say."""
        if (name := self._names.pop(str(event.runId), None)) is not None:
            self._settled.add(name)
