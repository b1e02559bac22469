"""The DataFrame form writes what a handler's verdicts would, whatever stands in the columns by which a row asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import Row

from reconsume.spark.consumer import due_rows, write_rows
from reconsume.spark.consumer.configuration import build_rules
from reconsume.spark.consumer.handling import Judge, ask_each, handle_rows
from reconsume.spark.consumer.record import Record
from reconsume.spark.consumer.rows import all_results, check_complete
from reconsume.spark.consumer.verdict import retry
from reconsume.spark.consumer.workers import COLUMNS, failure_of, result_after, works_of
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import Headers, RetryState

if TYPE_CHECKING:  # each worker collects all tests, and few use it
    import pandas as pd

RULES = build_rules("billing", ["orders"], ladder=["1s", "1m"], max_reconsume_times=3, name="ship")
NOW = 1_763_690_000_000
SCHEMA = (
    "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
ASKED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"reason": "busy", "delay": "90s"}, {"reason": "busy", "delay": "90s"}),
    ({"level": -1, "reason": "bad-sku"}, {"level": -1, "reason": "bad-sku"}),
    ({"level": 1}, {"level": 1}),
    ({"delay": "soon", "reason": ""}, {}),
    ({"delay": "9999d"}, {}),
    ({"level": 99}, {"level": 99}),
]
"""What a row has in its three columns, and what a handler would have asked for."""


def waiting(offset: int, due_in: int) -> tuple[Any, ...]:
    state = RetryState(f"orders:0:{offset}", "orders", 1, 0, NOW + due_in, 1, 1, "x")
    headers: Headers = [("own", None), *render_retry_headers(state, "billing", "x")]
    return (RULES.names.ready, 0, offset, 1, b"k", b"v", headers)


def main(offset: int) -> tuple[Any, ...]:
    return ("orders", 0, offset, 1, None, b"v", [])


RECORDS = [main(1), waiting(2, -1), main(3), waiting(4, -1), waiting(5, 60_000)]
RECORDS.append((RULES.names.ready, 0, 6, 1, None, None, [("REAL_TOPIC", b"x")]))


def row(record: tuple[Any, ...], **more: Any) -> Row:
    headers = [Row(key=key, value=value) for key, value in record[6]]
    own = dict(zip(COLUMNS, (*record[:6], headers, NOW), strict=True))
    return Row(**own, **{"reason": None, "delay": None, "level": None, **more})


@pytest.mark.parametrize(("columns", "verdict"), ASKED, ids=str)
def test_a_row_asks_as_a_verdict_does(columns: dict[str, Any], verdict: dict[str, Any]) -> None:
    for record in RECORDS[:4]:
        [by_handler] = handle_rows(ask_each(lambda _record: retry(**verdict), Judge(RULES)), [row(record)], RULES)
        [by_row] = result_after(RULES, failure_of)([row(record, **columns)])
        assert by_row is not None
        assert (by_row.outcome, by_row.writes) == (by_handler.outcome, by_handler.writes)


def test_what_may_not_be_handled_is_not_written_as_handled() -> None:
    for record in RECORDS[4:]:
        assert list(result_after(RULES, failure_of)([row(record)])) == [None]


@pytest.fixture(scope="module")
def batch(spark: SparkSession) -> DataFrame:
    frame = spark.createDataFrame(RECORDS, SCHEMA)
    return frame.withColumn("batch_time", f.timestamp_millis(f.lit(NOW))).coalesce(1).persist()


def rows_of(results: DataFrame) -> list[str]:
    written = results.where("writes is not null").collect()
    return sorted(repr((row.topic, row.offset, row.outcome, row.writes)) for row in written)


@pytest.mark.long
def test_a_batch_comes_to_the_same_by_a_handler_by_tables_and_by_frames(batch: DataFrame) -> None:
    def bad(offset: int) -> bool:
        return offset in (3, 4)

    def handler(record: Record) -> object:
        return retry(delay="90s", reason="busy") if bad(record.offset) else None

    def batch_handler(table: pd.DataFrame) -> list[object]:
        return [retry(delay="90s", reason="busy") if bad(offset) else None for offset in table["offset"]]

    by_call = [
        rows_of(works.usual(batch)) for works in (works_of(handler, None, RULES), works_of(None, batch_handler, RULES))
    ]
    due = due_rows(batch, RULES)
    assert [(r.offset, r.id, r.times) for r in due.collect()] == [
        (1, "orders:0:1", 0),
        (2, "orders:0:2", 1),
        (3, "orders:0:3", 0),
        (4, "orders:0:4", 1),
    ]
    results = all_results(batch, asking(due), due.where("offset in (1, 2)"), RULES)
    check_complete(results)
    frames = rows_of(results)
    assert by_call == [frames] * 2
    assert len(frames) == len(RECORDS) - 1, "a main record that was taken writes nothing"


def asking(due: DataFrame) -> DataFrame:
    """The rows that failed, with what they ask for."""
    return due.where("offset in (3, 4)").withColumns({"delay": f.lit("90s"), "reason": f.lit("busy")})


@pytest.mark.long
def test_a_row_that_is_in_no_frame_or_in_two_is_named_before_anything_is_written(batch: DataFrame) -> None:
    due = due_rows(batch, RULES)
    taken = due.where("offset in (1, 2)")
    for wrong, one, times in (
        (taken.where("offset = 1"), "billing-RETRY:0:2", 0),
        (taken.unionByName(taken.where("offset = 1")), "orders:0:1", 2),
        (due.where("offset in (1, 2, 3)"), "orders:0:3", 2),
    ):
        with pytest.raises(ValueError, match=f"1 of the batch's rows .* one, {one}, is there {times} times"):
            # No broker is there: it would be asked for by what writes.
            write_rows(batch, asking(due), wrong, RULES, {"bootstrap.servers": "127.0.0.1:1"})


@pytest.mark.long
def test_a_column_of_another_type_is_refused_where_it_is_written(batch: DataFrame) -> None:
    for name, value in (("delay", 90), ("reason", 1), ("level", "1")):
        with pytest.raises(ValueError, match=f"the column {name} must be"):
            all_results(batch, batch.withColumn(name, f.lit(value)), batch, RULES)
