"""A stream that is cut into batches, stopped, started again and made to fail between a batch's output and its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from tests.spark.frames import put, stream
from tests.support.event_histories import Record

TIMEOUT = 90


class TornError(Exception):
    """The driver dies behind a batch's output."""


class Played:
    """One query over files: `play` adds batches, `rows` is all that came out, in order."""

    def __init__(self, spark: SparkSession, folder: Path, query: Callable[[DataFrame], DataFrame], mode: str) -> None:
        self._spark, self._query, self._mode = spark, query, mode
        self._input, self._checkpoint = folder / "input", folder / "checkpoint"
        self._input.mkdir(parents=True)
        self._put = 0
        self._torn: Collection[int] = ()
        self._calls = 0
        self.rows: list[Row] = []
        self.progress: list[dict[str, Any]] = []

    def play(self, *parts: Sequence[Record], torn: Collection[int] = ()) -> None:
        """Start the query, which reads each part as a batch; it dies behind the outputs of the numbers in `torn`."""
        for part in parts:
            put(self._spark, self._input, self._put, part)
            self._put += 1
        self._torn, self._calls = torn, 0
        while self._ends_early():
            pass

    def _ends_early(self) -> bool:
        frame = self._query(stream(self._spark, self._input))
        options = {"checkpointLocation": str(self._checkpoint)}
        writer = frame.writeStream.outputMode(self._mode).options(**options).foreachBatch(self._take)
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(TIMEOUT), "the query did not end"
        except StreamingQueryException as end:
            if TornError.__name__ not in str(end):
                raise
            return True
        finally:
            self.progress += [json.loads(each.json) for each in query.recentProgress]
            query.stop()
        return False

    def _take(self, batch: DataFrame, _: int) -> None:
        self.rows += batch.collect()
        self._calls += 1
        if self._calls - 1 in self._torn:
            raise TornError
