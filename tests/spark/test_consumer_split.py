"""A frame is divided into good rows and failed ones: each row is in one of them, and a failed one has its reason."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from reconsume.spark.consumer import build_rules, parsed, split
from reconsume.spark.consumer.rows import all_results
from reconsume.spark.consumer.transactions import unpack

SCHEMA = "id INT, customer STRING"
GOOD = {
    b'{"id": 1, "customer": "ann"}': (1, "ann"),
    b"{}": (None, None),
    b' {"id": null, "more": [1]} ': (None, None),
    b'{"id": 1} and more': (1, None),
}
BAD = [b"", b" ", b"null", b"[]", b'[{"id": 1}]', b"3", b"ship it", b'{"id": 1', b'{"id": "x"}', b'{"id": 1.5}']
BAD += [b"\xff", b'{"customer": "\xff"}', b'{"id": 99999999999}']


def frame_of(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    rows = [("orders", 0, offset, 1, None, value, None) for offset, value in enumerate(values)]
    columns = "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, key BINARY, value BINARY, "
    frame = spark.createDataFrame(rows, columns + "headers ARRAY<STRUCT<key: STRING, value: BINARY>>")
    return frame.withColumn("batch_time", f.timestamp_millis(f.lit(1_763_690_000_000))).coalesce(1)


def test_values_that_are_json_of_the_schema_are_good_and_the_others_say_why_not(spark: SparkSession) -> None:
    frame = frame_of(spark, [*GOOD, *BAD, None])
    good, failed = parsed(frame, SCHEMA)
    assert {bytes(row.value): tuple(row.parsed) for row in good.collect()} == GOOD
    assert good.columns == [*frame.columns, "parsed"]
    assert [(row.value and bytes(row.value), row.reason) for row in failed.collect()] == [
        *((value, "bad-value") for value in BAD),
        (None, "no-value"),
    ]
    assert failed.columns == [*frame.columns, "reason"]


def test_the_first_expectation_that_a_row_does_not_meet_is_its_reason(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, "ann"), (-1, "bob"), (2, None), (-2, None), (None, "eve")], SCHEMA)
    good, failed = split(frame, {"is-positive": f.col("id") > 0, "has-customer": "customer is not null"})
    assert [tuple(row) for row in good.collect()] == [(1, "ann")]
    assert [tuple(row) for row in failed.collect()] == [
        (-1, "bob", "is-positive"),
        (2, None, "has-customer"),
        (-2, None, "is-positive"),
        (None, "eve", "is-positive"),
    ]


def test_what_failed_is_retried_for_its_reason(spark: SparkSession) -> None:
    good, failed = parsed(frame_of(spark, [b"{}", b"ship it", b'{"customer": "ann"}']), SCHEMA)
    _, without = split(good.select("*", "parsed.customer"), {"has-customer": "customer is not null"})
    rules = build_rules("billing", ["orders"], ladder=["1s"], name="ship")
    all_failed = failed.unionByName(without.drop("parsed", "customer"))
    results = all_results(all_failed.drop("reason"), all_failed, all_failed.limit(0), rules).where("handled = 1")
    copies = [copy for row in results.collect() for copy in unpack(row.writes) if copy[0] == "billing-RETRY-1s"]
    reasons = {value for copy in copies for name, value in copy[3] if name == "RETRY_REASON"}
    assert reasons == {b"bad-value", b"has-customer"}


def test_a_column_that_would_be_replaced_is_refused(spark: SparkSession) -> None:
    frame = frame_of(spark, [b"{}"])
    for name in ("parsed", "reason"):
        with pytest.raises(ValueError, match=f"has a column {name} already"):
            parsed(frame.withColumn(name, f.lit(1)), SCHEMA)
    with pytest.raises(ValueError, match="has a column reason already"):
        split(frame.withColumn("reason", f.lit(1)), {"a": "true"})
    with pytest.raises(ValueError, match="at least one expectation"):
        split(frame, {})
    with pytest.raises(ValueError, match="_corrupt_record"):
        parsed(frame, "_corrupt_record STRING")
