"""The foreachBatch function on real frames: one call a row, the same times when repeated, a stop when most fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from reconsume.spark.consumer import (
    Counts,
    Record,
    TooManyFailuresError,
    build_rules,
    dead_letter,
    retry,
)
from reconsume.spark.consumer.foreach import BatchLog, CurrentWorks, StopAt, Write, batch_function, check_frame
from reconsume.spark.consumer.handling import BatchHandler, Handler, Note
from reconsume.spark.consumer.metrics import QueryMetrics
from reconsume.spark.consumer.streams import with_batch_time
from reconsume.spark.consumer.transactions import Done, End, unpack
from reconsume.spark.consumer.workers import BATCH_TIME, COLUMNS, died, works_of
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import Headers, RetryState, parse_retry_headers

if TYPE_CHECKING:  # each worker collects all tests, and few use it
    import pandas as pd

RULES = build_rules("billing", ["orders"], ladder=["1s", "2s"], max_reconsume_times=2, name="ship")
OWN: Headers = [("trace", b"1"), ("tag", None), ("trace", b"\xff")]
SCHEMA = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
SECONDS = 60
# `collect` leaves its socket to the garbage collector (pyspark 4.0).
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
EVENTS = RULES.names.events

Row: TypeAlias = tuple[str, int, int, int, bytes | None, bytes | None, Headers | None]
Written: TypeAlias = list[dict[str, Any]]


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """Where handlers note each call: they run in other processes."""
    return tmp_path / "calls"


def scripted(calls: Path) -> Callable[[Record], object]:
    """A handler that does what the value says."""

    def handle(record: Record) -> object:
        with calls.open("a") as file:
            file.write(f"{record.id}/{record.times}\n")
        match record.value:
            case b"raise":
                raise LookupError("holds what is in the record")
            case b"raise-retry":
                raise retry(delay="90s", reason="busy")
            case b"retry":
                return retry(level=1)
            case b"odd":
                return retry(delay="1ms")
            case b"dead":
                return dead_letter("bad-sku")
            case _:
                return "anything"

    return handle


def main_row(offset: int, value: bytes | None, headers: Headers | None = OWN) -> Row:
    return ("orders", 0, offset, 1_763_690_000_123, b"\x00k", value, headers)


def due_row(offset: int, value: bytes) -> Row:
    life = RetryState(
        f"orders:0:{offset}", "orders", 1, 0, 1_763_690_001_000, 1_763_690_000_123, 1_763_690_000_500, "busy"
    )
    return (
        RULES.names.ready,
        0,
        offset,
        1_763_690_001_500,
        None,
        value,
        OWN + render_retry_headers(life, "billing", "x"),
    )


def frame_of(spark: SparkSession, rows: list[Row]) -> DataFrame:
    frame = spark.createDataFrame(rows, SCHEMA.replace("timestamp TIMESTAMP", "ms BIGINT")).repartition(2)
    return frame.withColumn("timestamp", f.timestamp_millis("ms")).drop("ms")


def collect(written: Written) -> Write:
    """What writes a batch's results into a list, in the order of the rows."""

    def write(results: DataFrame, ends: Sequence[End]) -> list[Done]:
        rows = results.where("writes is not null").orderBy("topic", "partition", "offset").collect()
        names = ("topic", "key", "value", "headers")
        written.extend(dict(zip(names, one, strict=True)) for row in rows for one in unpack(row.writes))
        return [Done(end.topic, end.partition, end.writes, 0) for end in ends]

    return write


def handling(
    handler: Handler | None,
    write: Write,
    report: Callable[[Counts], None] | None = None,
    stop: StopAt = StopAt(),  # noqa: B008 - a tuple
    batch_handler: BatchHandler | None = None,
) -> Callable[[DataFrame, int], None]:
    """What `for_each_record` returns, but for what writes."""
    follower: Any = SimpleNamespace(rules=lambda _batch: RULES)
    current = CurrentWorks(lambda rules: works_of(handler, batch_handler, rules), RULES, follower)
    return batch_function(current, write, stop, QueryMetrics(RULES), report)


def headers_of(row: dict[str, Any]) -> Headers:
    headers: Headers = row["headers"]
    return headers


def identity_of(row: dict[str, Any]) -> str:
    return (dict(headers_of(row))["ORIGIN_MESSAGE_ID"] or b"").decode()


def life_of(row: dict[str, Any]) -> RetryState:
    life = parse_retry_headers(headers_of(row), RULES.topics, 2**53)
    assert isinstance(life, RetryState)
    return life


def test_each_row_is_handled_once_however_often_the_frame_is_evaluated(spark: SparkSession, calls: Path) -> None:
    rows = [*(main_row(offset, b"raise") for offset in range(4)), *(main_row(offset, b"") for offset in range(4, 9))]
    evaluated: list[list[int]] = []

    def write(results: DataFrame, ends: Sequence[End]) -> list[Done]:
        for _ in range(2):
            evaluated.append(sorted(row.offset for row in results.where("writes is not null").collect()))
        assert ends == [End("orders", 0, 9, 1_763_690_000_123, 8)]
        return []

    handling(scripted(calls), write)(with_batch_time(frame_of(spark, rows)), 0)
    assert evaluated == [[0, 1, 2, 3]] * 2
    assert sorted(calls.read_text().split()) == sorted(f"orders:0:{offset}/0" for offset in range(9))


def test_a_record_that_ends_its_process_is_a_dead_letter_and_the_batch_is_done(spark: SparkSession) -> None:
    def handle(record: Record) -> object:
        if record.value == b"kill":
            os._exit(1)
        return retry() if record.value == b"retry" else None

    written: Written = []
    counts: list[Counts] = []
    rows = [main_row(1, b""), main_row(2, b"kill"), main_row(3, b"retry"), main_row(4, b"")]
    handling(handle, collect(written), counts.append)(with_batch_time(frame_of(spark, rows)), 0)
    assert [(count.commit, count.dead_letter, count.retry) for count in counts] == [(2, 1, 1)]
    [dead] = [row for row in written if row["topic"] == RULES.names.dlq("orders")]
    assert (identity_of(dead), life_of(dead).reason) == ("orders:0:2", "crashed-service")


@pytest.mark.long
def test_a_record_that_ends_the_process_of_a_batch_handler_is_a_dead_letter_too(spark: SparkSession) -> None:
    def handle(table: pd.DataFrame) -> list[object]:
        if b"kill" in list(table["value"]):
            os._exit(1)
        return [retry() if value == b"retry" else None for value in table["value"]]

    written: Written = []
    counts: list[Counts] = []
    rows = [main_row(1, b""), main_row(2, b"kill"), main_row(3, b"retry"), main_row(4, b"")]
    run = handling(None, collect(written), counts.append, batch_handler=handle)
    run(with_batch_time(frame_of(spark, rows)), 0)
    assert [(count.commit, count.dead_letter, count.retry) for count in counts] == [(2, 1, 1)]
    [dead] = [row for row in written if row["topic"] == RULES.names.dlq("orders")]
    assert (identity_of(dead), life_of(dead).reason) == ("orders:0:2", "crashed-service")


def test_what_a_handler_says_decides_where_a_record_goes(spark: SparkSession, calls: Path) -> None:
    values = [b"fine", b"raise", b"raise-retry", b"retry", b"odd", b"dead"]
    rows = [*(main_row(offset, value) for offset, value in enumerate(values)), due_row(7, b"fine"), due_row(8, b"dead")]
    bad = main_row(9, None, [("REAL_TOPIC", b"x")])
    rows += [(RULES.names.ready, *bad[1:]), main_row(10, None, None)]
    written: Written = []
    reports: list[Counts] = []
    run = handling(scripted(calls), collect(written), reports.append)
    run(with_batch_time(frame_of(spark, rows)), 3)
    copies = {identity_of(row): row for row in written if row["topic"] != EVENTS}
    assert {identity: row["topic"] for identity, row in copies.items()} == {
        "orders:0:1": "billing-RETRY-1s",
        "orders:0:2": "billing-RETRY-2s",
        "orders:0:3": "billing-RETRY-1s",
        "orders:0:4": "billing-RETRY-1s",
        "orders:0:5": "billing-DLQ",
        "orders:0:8": "billing-DLQ",
        "billing-RETRY:0:9": "billing-DLQ",
    }
    assert life_of(copies["orders:0:1"]).reason == "LookupError: holds what is in the record"
    assert life_of(copies["orders:0:1"]).timestamp == 1_763_690_000_123
    assert headers_of(copies["orders:0:1"])[:3] == OWN
    assert (bytes(copies["orders:0:1"]["key"]), bytes(copies["orders:0:1"]["value"])) == (b"\x00k", b"raise")
    assert [counts._replace(waited_ms=0, late_ms=0) for counts in reports] == [
        Counts(
            3,
            commit=3,
            retry=4,
            dead_letter=2,
            refused=1,
            failed=4,
            odd=1,
            fresh=7,
            fresh_failed=4,
            writes=15,
            odd_kinds={"delay": 1},
        )
    ]


def test_a_batch_that_mostly_fails_stops_the_job_writes_nothing_and_says_why(
    spark: SparkSession, calls: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written: Written = []
    rows = [*(main_row(offset, b"raise") for offset in range(6)), *(main_row(offset, b"") for offset in range(6, 10))]
    frame = with_batch_time(frame_of(spark, rows))
    with pytest.raises(TooManyFailuresError, match="6 of 10 new records of batch 1 failed"):
        handling(scripted(calls), collect(written), stop=StopAt(least=6))(frame, 1)
    assert written == []
    lines = [
        record.getMessage() for record in caplog.records if "a record failed with LookupError" in record.getMessage()
    ]
    assert len(lines) == 1
    assert "LookupError: holds what is in the record" in lines[0]
    assert "in handle" in lines[0]
    for stop in (StopAt(least=7), StopAt(0.6, 1)):
        written.clear()
        handling(scripted(calls), collect(written), stop=stop)(frame, 1)
        assert len(written) == 12


def test_refused_records_and_retries_that_fail_again_do_not_stop_the_job(spark: SparkSession, calls: Path) -> None:
    written: Written = []
    rows = [*(main_row(offset, b"dead") for offset in range(5)), *(due_row(offset, b"raise") for offset in range(5, 9))]
    frame = with_batch_time(frame_of(spark, rows))
    handling(scripted(calls), collect(written), stop=StopAt(least=1))(frame, 1)
    assert len(written) == 18


def test_a_repeated_batch_writes_the_same_bytes_and_so_the_same_due_times(
    spark: SparkSession, calls: Path, tmp_path: Path
) -> None:
    written: Written = []

    def start(write: Write) -> None:
        stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "rows"))
        run = handling(scripted(calls), write)
        query = (
            with_batch_time(stream)
            .writeStream.foreachBatch(run)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(SECONDS)
        finally:
            query.stop()

    def crash(results: DataFrame, ends: Sequence[End]) -> list[Done]:
        collect(written)(results, ends)
        raise OSError("the driver dies after the write")

    rows = [main_row(0, b"raise"), main_row(1, b"dead"), due_row(2, b"fine"), due_row(3, b"retry"), main_row(4, b"")]
    frame_of(spark, rows).coalesce(1).write.parquet(str(tmp_path / "rows"))
    with pytest.raises(StreamingQueryException, match="the driver dies after the write"):
        start(crash)
    before = list(written)
    written.clear()
    start(collect(written))
    assert len(before) == 7
    assert written == before
    assert len(calls.read_text().split()) == 10


def test_the_driver_logs_the_first_record_of_each_class_and_sums_of_odd_verdicts_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds = [0.0]
    log = BatchLog(lambda: seconds[0])

    def lines_after(wait: float, odd: int, *notes: Note) -> list[str]:
        caplog.clear()
        seconds[0] += wait
        log.take(Counts(1, odd=odd, odd_kinds={"verdict-error": odd} if odd else {}), notes)
        return [record.getMessage() for record in caplog.records]

    with caplog.at_level("WARNING", "reconsume.spark"):
        first = Note("KeyError", "orders:0:1 (attempt 1): KeyError\n    …"), Note("KeyError", "orders:0:2")
        assert lines_after(0, 0, *first) == [f"a record failed with KeyError: {first[0].text}"]
        odd = Note("verdict-error", "orders:0:3 (attempt 1): not False")
        assert lines_after(1, 1, odd, first[1]) == [
            "odd verdicts (verdict-error) of 1 record since the last such line: orders:0:3 (attempt 1): not False"
        ]
        assert lines_after(30, 41, odd) == []
        assert lines_after(31, 0) == [
            "odd verdicts (verdict-error) of 41 records since the last such line: orders:0:3 (attempt 1): not False"
        ]
        assert lines_after(90, 0) == []
        assert lines_after(0, 0, first[1]) == ["a record failed with KeyError: orders:0:2"]


def test_a_frame_without_the_batchs_time_is_refused(spark: SparkSession, calls: Path) -> None:
    run = handling(scripted(calls), collect([]))
    with pytest.raises(ValueError, match="lacks batch_time"):
        run(frame_of(spark, [main_row(0, b"")]), 0)


def test_speculation_is_refused_because_it_calls_handlers_twice() -> None:
    columns = [*COLUMNS, BATCH_TIME]
    check_frame(columns, "false")
    with pytest.raises(ValueError, match="speculation"):
        check_frame(columns, "true")


def test_a_lost_executor_is_no_crash_of_a_record() -> None:
    assert died(RuntimeError("… SparkException: Python worker exited unexpectedly (crashed)"))
    assert not died(RuntimeError("… ExecutorLostFailure (executor 3 exited unrelated to the running tasks)"))


@pytest.fixture(autouse=True)
def _no_query_is_left(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        with suppress(StreamingQueryException):
            query.stop()
