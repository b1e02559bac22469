"""The job's Prometheus metrics and `/livez`, and the HTTP server of both. The job's main thread sets the values.

`/livez` finds what a restart of the process heals: a query that gets no further, and a main thread that stands still.
The job is alive if its query has ended a batch, had nothing to do, or was started within the last LIVE_SECONDS, or if
there is no group to serve. What no restart heals, such as a group without its topics, is in the metrics and the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app, start_http_server

from reconsume.spark.errors import JobError
from reconsume.spark.job.progress import Batch
from reconsume.spark.names import EVENTS_SUFFIX

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

PREFIX = "reconsume_spark_"
SECONDS = (0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
"""Bounds of the histogram, in seconds. A batch should take less than its trigger, 1 s."""
LIVE_SECONDS = 60.0
"""Seconds without a sign of life after which the job is not alive. A batch of `--max-offsets` events takes some
seconds; with a shorter time, a pause of the machine would become a restart."""


class JobMetrics:
    """The metrics of one process. `now`: seconds of a clock that never goes back."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._alive_at: float | None = None
        self.registry = registry = CollectorRegistry()
        self._rows = Counter(f"{PREFIX}input_rows", "Records read from the events topics.", registry=registry)
        self._bad = Counter(f"{PREFIX}bad_events", "Records that are not events.", registry=registry)
        self._lost = Counter(
            "reconsume_view_events_lost",
            "Events that Kafka deleted before they were read.",
            ["group", "topic"],
            registry=registry,
        )
        self._seconds = Histogram(
            f"{PREFIX}batch_duration_seconds", "How long a micro-batch took.", buckets=SECONDS, registry=registry
        )
        behind = "Records in Kafka that the last micro-batch left unread."
        self._behind = Gauge(f"{PREFIX}offsets_behind_latest", behind, registry=registry)
        self._groups = Gauge(f"{PREFIX}groups", "Groups that are served, and left out.", ["state"], registry=registry)
        self._serves = Gauge(f"{PREFIX}serves", "1 for each group that is served.", ["group"], registry=registry)
        well = "When the query last ended a batch, or had nothing to do."
        self._well_at = Gauge(f"{PREFIX}last_progress_timestamp_seconds", well, registry=registry)
        self._well_at.set(time.time())

    def took(self, batch: Batch) -> None:
        """Count a micro-batch that has ended."""
        self._rows.inc(batch.rows)
        self._bad.inc(batch.bad)
        self._seconds.observe(batch.seconds)
        self._behind.set(batch.behind)
        self.well()

    def lost(self, topic: str, number: int) -> None:
        """Count events that were deleted before they were read."""
        self._lost.labels(topic.removesuffix(EVENTS_SUFFIX), topic).inc(number)

    def groups(self, served: Collection[str], left_out: int) -> None:
        """Set which groups are served, and how many are left out."""
        self._groups.labels("served").set(len(served))
        self._groups.labels("left out").set(left_out)
        self._serves.clear()
        for group in served:
            self._serves.labels(group).set(1)

    def well(self) -> None:
        """Note that the query has ended a batch or has nothing to do."""
        self._well_at.set(time.time())
        self.alive()

    def alive(self) -> None:
        """Note a sign of life. The first one says that Spark has started."""
        self._alive_at = self._now()

    def fault(self) -> str:
        """Return why the job is not alive, as one sentence; an empty text if it is."""
        if self._alive_at is None:
            return "Spark has not started"
        age = self._now() - self._alive_at
        return f"the query has got no further for {age:.0f} s" if age > LIVE_SECONDS else ""

    def serve(self, host: str, port: int) -> tuple[int, Callable[[], None]]:
        """Serve metrics and `/livez`. Return the port, and what ends the server.

        Raises JobError if the address cannot be used.
        """
        try:
            server, _ = start_http_server(port, host, self.registry)
        except OSError as error:
            why = error.strerror or str(error)
            raise JobError(f"cannot listen on {host}:{port} (--metrics-listen): {why}") from error
        metrics: WSGIApplication = make_wsgi_app(self.registry)

        def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            if environ.get("PATH_INFO") != "/livez":
                return metrics(environ, start_response)
            fault = self.fault()
            status = "503 Service Unavailable" if fault else "200 OK"
            start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
            return [f"{fault or 'alive'}\n".encode()]

        server.set_app(app)
        return server.server_port, server.shutdown
