"""Read a micro-batch from Spark's progress JSON, and make the operator's line from it.

Pure: `listener` gets the JSON from Spark, and `display` shows the line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

OBSERVED = "events"
"""The name of the values (`read`, `bad`, `first`) that `schema` makes each query report."""
WRITTEN = "written"
"""The name of the values that `targets` makes a query report: `homeless`, the rows without a topic, and `topic`, one
such topic."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One finished micro-batch.

    `seconds` is its duration. `behind` counts the records that were in Kafka when it began and that it did not read.
    `state_rows` and `watermark` are None if the query has no state. `homeless` counts rows that were not written,
    because their topic, such as `missing`, does not exist. `first_bad` is one of the `bad` records as JSON.
    """

    query: str
    number: int
    rows: int
    seconds: float
    behind: int
    state_rows: int | None
    dropped: int
    bad: int
    watermark: datetime | None
    homeless: int = 0
    missing: str = ""
    first_bad: str = ""


def read_batch(progress: Mapping[str, Any]) -> Batch:
    """Return the batch in a progress of Spark; a missing number counts as 0."""
    operators = progress.get("stateOperators") or ()
    metrics = progress.get("observedMetrics") or {}
    observed, written = metrics.get(OBSERVED) or {}, metrics.get(WRITTEN) or {}
    return Batch(
        query=str(progress.get("name") or "?"),
        number=int(progress.get("batchId") or 0),
        rows=int(progress.get("numInputRows") or 0),
        seconds=int((progress.get("durationMs") or {}).get("triggerExecution") or 0) / 1000,
        behind=sum(behind(source) for source in progress.get("sources") or ()),
        state_rows=state_rows(progress),
        dropped=sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in operators),
        bad=int(observed.get("bad") or 0),
        watermark=read_time((progress.get("eventTime") or {}).get("watermark")),
        homeless=int(written.get("homeless") or 0),
        missing=str(written.get("topic") or ""),
        first_bad=str(observed.get("first") or ""),
    )


def state_rows(progress: Mapping[str, Any]) -> int | None:
    """Return the number of rows in the query's state; None if it has none."""
    operators = progress.get("stateOperators") or ()
    return None if not operators else sum(int(operator.get("numRowsTotal") or 0) for operator in operators)


def behind(source: Mapping[str, Any]) -> int:
    """Return the number of offsets between the end of the batch and the end of the topics."""
    ends, latest = offsets(source.get("endOffset")), offsets(source.get("latestOffset"))
    return sum(max(0, end - ends.get(partition, 0)) for partition, end in latest.items())


def offsets(value: object) -> dict[tuple[str, str], int]:
    """Return offsets by topic and partition. Spark gives them as JSON, or as JSON in a text."""
    parsed = json.loads(value) if isinstance(value, str) else value
    if not isinstance(parsed, Mapping):
        return {}
    return {
        (topic, number): int(offset)
        for topic, partitions in parsed.items()
        if isinstance(partitions, Mapping)
        for number, offset in partitions.items()
    }


def read_time(text: object) -> datetime | None:
    """Parse a time that Spark wrote; None if there is none, or if no event has moved it yet."""
    if not isinstance(text, str):
        return None
    time = datetime.fromisoformat(text)
    return time if time.year > 1970 else None


class ProgressBoard:
    """The last batch of each query, and its rows since the last line."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._rows: dict[str, int] = {}
        self._last: dict[str, Batch] = {}

    def took(self, batch: Batch) -> None:
        """Take in a batch that has ended. A watermark that it does not know keeps its last known value."""
        if (last := self._last.get(batch.query)) is not None:
            batch = replace(batch, watermark=batch.watermark or last.watermark)
        self._last[batch.query] = batch
        self._rows[batch.query] = self._rows.get(batch.query, 0) + batch.rows

    def rows(self, now: float) -> list[tuple[str, ...]]:
        """Return the cells of each query, in the order of COLUMNS; rows/s are since the last call."""
        seconds = max(now - self._since, 0.001)
        counts, self._rows, self._since = self._rows, {}, now
        return [cells(batch, counts.get(name, 0) / seconds) for name, batch in sorted(self._last.items())]


COLUMNS = ("query", "rows/s", "behind", "state rows", "watermark", "last batch")


def cells(batch: Batch, rate: float) -> tuple[str, ...]:
    """Return one query's cells, in the order of COLUMNS."""
    watermark = "-" if batch.watermark is None else batch.watermark.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return (
        batch.query,
        f"{rate:,.0f}",
        f"{batch.behind:,}",
        "-" if batch.state_rows is None else f"{batch.state_rows:,}",
        watermark,
        f"{batch.seconds:.1f} s",
    )


def line(rows: Iterable[tuple[str, ...]]) -> str:
    """Return all queries in one line, for a log."""
    text = (
        f"{name} {rate} rows/s, {behind} behind, {state} state rows, watermark {watermark}, batch {took}"
        for name, rate, behind, state, watermark, took in rows
    )
    return "; ".join(text)
