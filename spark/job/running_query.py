"""A query that Spark runs, with the interface that `supervisor` uses."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql.streaming.query import StreamingQuery

from reconsume.spark.errors import first_line
from reconsume.spark.java import raising_gone
from reconsume.spark.job.supervisor import PASSING

STOP_SECONDS = 4.0
"""Seconds that a stop waits for the end of a batch. A batch that is cut off is repeated at the next start, which
changes nothing; and other groups must not wait long for one that comes or goes."""
STEP = 0.02
"""Seconds between two checks whether the batch has ended."""


class SparkQuery:
    """A query that Spark runs. `after` is called when it has ended. An error with a text of `passing` is no failure."""

    def __init__(
        self, query: StreamingQuery, after: Callable[[], None] = lambda: None, passing: tuple[str, ...] = ()
    ) -> None:
        self._query, self._after, self._passing = query, after, passing

    def turn(self) -> str | None:
        """Return why the query has ended, PASSING if that is no failure; None while it runs, by itself.

        Raises GoneError if Java has ended.
        """
        with raising_gone():
            if self._query.isActive:
                return None
            error = self._query.exception()
        self._after()
        if any(text in str(error) for text in self._passing):
            return PASSING
        return "it was stopped from elsewhere" if error is None else first_line(error)

    def stop(self) -> None:
        """Stop the query between two batches, or within a batch after STOP_SECONDS. Raises GoneError if Java has ended.

        A batch that is cut off is repeated at the next start. Raises an error of Java if the query does not stop.
        """
        end = time.monotonic() + STOP_SECONDS
        try:
            with raising_gone():
                while self._query.isActive and self._query.status["isTriggerActive"] and time.monotonic() < end:
                    time.sleep(STEP)
        finally:
            self.cut_off()

    def cut_off(self) -> None:
        """Stop the query, within a batch if one is under way, which is repeated at the next start.

        Raises GoneError if Java has ended, and an error of Java if the query does not stop.
        """
        try:
            with raising_gone():
                self._query.stop()
        finally:
            self._after()
