"""A query that Spark runs, with the interface that `supervisor` uses."""

from __future__ import annotations

import time

from pyspark.sql.streaming.query import StreamingQuery

from spark.errors import first_line
from spark.java import raising_gone

STOP_SECONDS = 20.0
"""Seconds that a stop waits for the end of a batch; less than the 30 s after which Kubernetes kills the process."""
STEP = 0.02
"""Seconds between two checks whether the batch has ended."""


class SparkQuery:
    """A query that Spark runs."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query

    def turn(self) -> str | None:
        """Return why the query has ended; None while it runs, by itself. Raises GoneError if Java has ended."""
        with raising_gone():
            if self._query.isActive:
                return None
            error = self._query.exception()
        return "it was stopped from elsewhere" if error is None else first_line(error)

    @property
    def batches(self) -> int:
        """The number of finished batches since the start, as far as Spark keeps them.

        Raises GoneError if Java has ended.
        """
        with raising_gone():
            return len({each["batchId"] for each in self._query.recentProgress})

    def stop(self) -> None:
        """Stop the query between two batches, or within a batch after STOP_SECONDS. Raises GoneError if Java has ended.

        A batch that is cut off is repeated at the next start.
        """
        end = time.monotonic() + STOP_SECONDS
        with raising_gone():
            while self._query.isActive and self._query.status["isTriggerActive"] and time.monotonic() < end:
                time.sleep(STEP)
            self._query.stop()
