"""The gated source is a format that Spark finds by itself, and one that is registered where Spark does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from reconsume.spark.consumer.configuration import build_rules
from reconsume.spark.consumer.source import NAME, LevelsSource
from reconsume.spark.consumer.streams import COLUMNS, make_known, read_gated
from reconsume.topics.names import Kind
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import create_group, fresh_group

OPTIONS = {
    "client.bootstrap.servers": "localhost:1",
    "group": "a",
    "name": "ship",
    "topics": '["orders"]',
    "levels": '{"a-RETRY-10s": 10000}',
}


def test_the_format_is_known_without_being_registered(spark: SparkSession) -> None:
    assert tuple(spark.readStream.format(NAME).options(**OPTIONS).load().columns) == COLUMNS
    by_java = spark._jsparkSession.readStream().format(NAME).options(OPTIONS).load()  # what Scala calls
    assert tuple(by_java.columns()) == COLUMNS
    listed = ", ".join(f"`{name}` '{value}'" for name, value in OPTIONS.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW levels USING {NAME} OPTIONS ({listed})")
    assert tuple(spark.table("levels").columns) == COLUMNS


def test_what_is_known_can_still_be_read_by_the_function(spark: SparkSession, kafka: Broker) -> None:
    group = create_group(fresh_group(kafka.bootstrap, delays=(1_000,)), also=(Kind.POLICY,))
    rules = build_rules(group.group, group.mains, name="ship", ladder=["1s"])
    frame = read_gated(spark, rules, {"bootstrap.servers": kafka.bootstrap})
    assert tuple(frame.columns) == (*COLUMNS, "batch_time")


class RefusedError(PySparkException):
    """What a version of Spark raises for a name that it knows, and for others."""

    def __init__(self, condition: str) -> None:
        super().__init__(condition)
        self.condition = condition

    def getCondition(self) -> str:  # noqa: N802 - Spark's name
        return self.condition


@pytest.mark.parametrize("refused", [None, "DATA_SOURCE_ALREADY_EXISTS", "DATA_SOURCE_NOT_FOUND"])
def test_a_source_is_registered_and_only_one_that_is_there_is_no_error(refused: str | None) -> None:
    registered: list[object] = []

    def register(source: object) -> None:
        registered.append(source)
        if refused is not None:
            raise RefusedError(refused)

    session = cast(Any, SimpleNamespace(dataSource=SimpleNamespace(register=register)))
    if refused == "DATA_SOURCE_NOT_FOUND":
        with pytest.raises(RefusedError):
            make_known(session, LevelsSource)
    else:
        make_known(session, LevelsSource)
    assert registered == [LevelsSource]
