"""A handler of many rows: each row has its own verdict, and a bad one harms no other. Without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from reconsume.spark.consumer.configuration import build_rules
from reconsume.spark.consumer.handling import BatchHandler, Judge, Result, ask_all, ask_each
from reconsume.spark.consumer.handling import handle_rows as handle_rows_by
from reconsume.spark.consumer.record import Record
from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.transactions import unpack
from reconsume.spark.consumer.verdict import dead_letter, retry
from reconsume.spark.consumer.workers import COLUMNS, Tally, results_of, works_of
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import Headers, RetryState

if TYPE_CHECKING:  # each worker collects all tests, and few use it
    import pandas as pd

RULES = build_rules("billing", ["orders"], ladder=["1s"], max_reconsume_times=3, name="ship")
NOW = time.time_ns() // 1_000_000
VERDICTS: dict[bytes, object] = {b"dead": dead_letter("bad-sku"), b"busy": retry(delay="90s", reason="busy")}


def row(offset: int, value: bytes | None = b"v", topic: str = "orders", headers: Headers | None = None) -> Any:
    listed = None if headers is None else [{"key": key, "value": value} for key, value in headers]
    return dict(zip(COLUMNS, (topic, 0, offset, 1, None, value, listed, NOW), strict=True))


def retried(offset: int, due_in: int) -> Any:
    state = RetryState(f"orders:0:{offset}", "orders", 1, 0, NOW + due_in, 1, 1, "x")
    return row(offset, b"v", RULES.names.ready, [("own", b"1"), *render_retry_headers(state, "billing", "x")])


ROWS = [row(1), row(2, b"dead"), row(3, b"busy"), row(4, None), retried(5, -1), retried(6, 60_000)]
ROWS.append(row(7, b"v", RULES.names.ready, [("REAL_TOPIC", b"x")]))


def by_value(table: pd.DataFrame) -> list[object]:
    return [VERDICTS.get(value) for value in table["value"]]


def by_record(record: Record) -> object:
    return VERDICTS.get(record.value or b"")


def alone(handler: Callable[[Record], object], rows: list[Mapping[str, Any]]) -> list[Result]:
    """What the same records come to when each is handled by a call of its own."""
    ask = ask_each(handler, Judge(RULES))
    return [result for row in rows for result in handle_rows_by(ask, [row], RULES)]


def handle_rows(handler: BatchHandler, rows: list[Mapping[str, Any]], rules: Rules) -> list[Result]:
    """What the rows come to by one call."""
    return handle_rows_by(ask_all(handler, Judge(rules)), rows, rules)


def test_each_row_comes_to_what_it_would_come_to_alone() -> None:
    results = handle_rows(by_value, ROWS, RULES)
    assert results == alone(by_record, ROWS)
    assert [result.outcome for result in results] == [
        *("commit", "dead_letter", "retry", "commit", "commit", "hop", "refused"),
    ]


def test_a_handler_gets_the_records_that_may_be_handled_in_one_table() -> None:
    tables: list[pd.DataFrame] = []
    handle_rows(tables.append, ROWS, RULES)
    [table] = tables
    assert tuple(table.columns) == Record._fields
    assert list(table["offset"]) == [1, 2, 3, 4, 5]
    assert list(table["value"]) == [b"v", b"dead", b"busy", None, b"v"]
    assert (table["times"][4], table["headers"][4]) == (1, [("own", b"1")])


def test_a_batch_without_a_record_to_handle_calls_no_handler() -> None:
    def handler(_table: pd.DataFrame) -> list[object]:
        raise AssertionError("it was called")

    assert [result.outcome for result in handle_rows(handler, ROWS[5:], RULES)] == ["hop", "refused"]
    assert handle_rows(handler, [], RULES) == []


def test_nothing_returned_or_nothing_that_is_a_verdict_is_a_success() -> None:
    answers: list[BatchHandler] = [lambda _table: None, lambda table: table["value"], lambda table: [True] * len(table)]
    for handler in answers:
        assert {result.outcome for result in handle_rows(handler, ROWS[:5], RULES)} == {"commit"}


def test_a_row_that_makes_the_handler_raise_fails_by_itself() -> None:
    calls: list[int] = []

    def handler(table: pd.DataFrame) -> None:
        calls.append(len(table))
        if b"dead" in list(table["value"]):
            raise KeyError("the card number")

    results = handle_rows(handler, ROWS[:4], RULES)
    assert calls == [4, 1, 1, 1, 1]
    assert [result.failed for result in results] == [False, True, False, False]
    assert dict(results[1].writes[0][3])["RETRY_REASON"] == b"KeyError: 'the card number'"
    assert [result.writes for result in handle_rows(handler, ROWS[1:2], RULES)] == [results[1].writes]
    assert calls[5:] == [1], "a row that is handled by itself is not handled again"


def test_one_verdict_in_place_of_the_answers_is_that_of_all_rows() -> None:
    def handler(_table: pd.DataFrame) -> None:
        raise retry(delay="90s", reason="busy")

    expected = alone(lambda _record: VERDICTS[b"busy"], ROWS[:3])
    assert handle_rows(handler, ROWS[:3], RULES) == expected
    assert handle_rows(lambda _table: VERDICTS[b"busy"], ROWS[:3], RULES) == expected  # type: ignore[arg-type, return-value]


def test_a_task_returns_what_is_written_and_one_tally_for_each_source_partition() -> None:
    import pyarrow as pa

    batches = [pa.RecordBatch.from_pylist(rows) for rows in (ROWS[:3], ROWS[3:])]
    batches.append(pa.RecordBatch.from_pylist([], schema=pa.schema([])))
    ask = ask_all(by_value, Judge(RULES))
    written = [
        row
        for batch in results_of(lambda rows: handle_rows_by(ask, rows, RULES), None, False, batches)
        for row in batch.to_pylist()
    ]
    expected = {row["offset"]: one for row, one in zip(ROWS, alone(by_record, ROWS), strict=True) if one.writes}
    results, tallies = written[:-2], [msgspec.msgpack.decode(row["tally"], type=Tally) for row in written[-2:]]
    assert [(row["offset"], row["outcome"], unpack(row["writes"])) for row in results] == [
        (offset, one.outcome, list(one.writes)) for offset, one in expected.items()
    ]
    mains, ready = tallies
    assert (mains.topic, mains.until, mains.at, mains.writes) == ("orders", 5, 1, 4)
    assert mains.numbers == {"fresh": 4, "failed": 1, "fresh_failed": 1}
    assert mains.outcomes == {
        ("commit", "orders", ""): 2,
        ("dead_letter", "orders", "other"): 1,
        ("retry", "orders", "1s"): 1,
    }
    assert (ready.topic, ready.until, ready.numbers) == (RULES.names.ready, 8, {})
    assert ready.outcomes == {
        ("commit", "orders", ""): 1,
        ("hop", "orders", ""): 1,
        ("refused", "(unknown)", "bad-header"): 1,
    }


def test_a_job_has_one_handler() -> None:
    for handler, batch_handler in ((None, None), (by_record, by_value)):
        with pytest.raises(ValueError, match="either a handler or a batch_handler"):
            works_of(handler, batch_handler, RULES)
