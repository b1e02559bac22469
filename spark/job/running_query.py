"""A query that Spark runs, as the port that `supervisor` looks at."""

from __future__ import annotations

import time

from pyspark.sql.streaming.query import StreamingQuery

from spark.errors import first_line
from spark.java import raising_gone

STOP_SECONDS = 20.0
"""How long a stop waits for the end of a batch; less than the 30 s after which Kubernetes kills."""
STEP = 0.02


class SparkQuery:
    """A query that Spark runs."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query

    @property
    def fault(self) -> str | None:
        """Why it has ended; None while it runs. Raises GoneError."""
        with raising_gone():
            if self._query.isActive:
                return None
            error = self._query.exception()
        return "it was stopped from elsewhere" if error is None else first_line(error)

    @property
    def batches(self) -> int:
        """How many batches it has ended since it was started, as far as Spark remembers. Raises GoneError."""
        with raising_gone():
            return len({each["batchId"] for each in self._query.recentProgress})

    def stop(self) -> None:
        """End it between two batches, or in one after STOP_SECONDS: that one is done again. Raises GoneError."""
        end = time.monotonic() + STOP_SECONDS
        with raising_gone():
            while self._query.isActive and self._query.status["isTriggerActive"] and time.monotonic() < end:
                time.sleep(STEP)
            self._query.stop()
