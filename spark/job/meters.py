"""The job's Prometheus metrics; `listener` sets their values."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from reconsume.spark.job.liveness import Liveness
from reconsume.spark.job.progress import Batch
from reconsume.spark.names import EVENTS_SUFFIX

PREFIX = "reconsume_spark_"
COUNTING = "view"
"""The query that counts bad events, because every query sees every bad event."""
SECONDS = (0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
"""Bounds of the histogram, in seconds. A batch of the view should take less than its trigger, 1 s."""


class Meters:
    """The metrics, with the label `query`; bad events have no label, and lost events have `group` and `topic`.

    A count that every query has starts at 0. Methods may be called on any thread. `liveness` learns each sign of life.
    """

    def __init__(self, queries: tuple[str, ...], liveness: Liveness) -> None:
        self.liveness = liveness
        self.registry = CollectorRegistry()
        self._rows = self._counter("input_rows", "Records read from the events topics.")
        self._dropped = self._counter("rows_dropped_by_watermark", "Rows too late for a query's watermark; 0 is right.")
        self._restarts = self._counter("restarts", "Starts of a query after a failure.")
        self._homeless = self._counter("rows_without_topic", "Rows not written, as their group has no topic for them.")
        self._given_up = self._gauge("given_up", "1 where a query failed too often and is not started any more.")
        self._bad = Counter(f"{PREFIX}bad_events", "Records that are no event.", registry=self.registry)
        lost = "Events that Kafka deleted before they were read."
        self._lost = Counter("reconsume_view_events_lost", lost, ["group", "topic"], registry=self.registry)
        self._seconds = Histogram(
            f"{PREFIX}batch_duration_seconds",
            "How long a micro-batch took.",
            ["query"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._state = self._gauge("state_rows", "Rows that the sums keep.")
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
        """Count a micro-batch that has ended."""
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
        self.alive(batch.query)

    def alive(self, query: str) -> None:
        """Note that a query is well, although it has nothing to do."""
        self.liveness.alive(query)
        self._last.labels(query).set(time.time())

    def restarting(self, query: str) -> None:
        """Count the start of a query after a failure."""
        self._restarts.labels(query).inc()

    def lost(self, topic: str, number: int) -> None:
        """Count events that were deleted before they were read."""
        self._lost.labels(topic.removesuffix(EVENTS_SUFFIX), topic).inc(number)

    def giving_up(self, query: str) -> None:
        """Note that a query is not started any more."""
        self.liveness.given_up(query)
        self._given_up.labels(query).set(1)
