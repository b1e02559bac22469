"""The session: a new one finds the connector by itself, one that is there stays as it is, Connect's is refused."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reconsume.spark.session import build

CHILD = """
from reconsume.spark.session import build

with build("report", options={"spark.log.level": "OFF"}) as spark:
    table = spark.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:1").option("subscribe", "a").load()
    print(",".join(table.columns))
"""


def test_a_new_session_has_the_connector_without_a_word_about_jars() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["key,value,topic,partition,offset,timestamp,timestampType"], done.stderr


def test_a_session_that_is_there_stays_as_it_is_and_what_it_lacks_is_named_once(spark: SparkSession) -> None:
    before = spark.conf.getAll
    asked = {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.shuffle.partitions": "2"}
    with pytest.warns(UserWarning, match="stays as it is; it lacks ") as warned:
        again = build("another", jars=[Path("/nonexistent.jar")], options=asked)
    assert again is spark
    assert [str(each.message).partition("lacks ")[2] for each in warned] == [
        "spark.sql.session.timeZone=Asia/Tokyo, /nonexistent.jar"
    ]
    assert spark.conf.getAll == before


def test_a_session_that_has_all_that_is_asked_for_is_returned_in_silence(spark: SparkSession) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build("another") is spark


def test_with_spark_connect_it_says_what_to_call_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(RuntimeError, match=r"client of Spark Connect: take the session of SparkSession.builder.getOr"):
        build("report")
