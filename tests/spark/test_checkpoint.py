"""Files of a checkpoint are written as cheaply as their disk allows, and nowhere otherwise than Spark would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reconsume.spark import schema, view
from reconsume.spark.checkpoint import PLAIN, WRITTEN_BY, manager_package, write_plainly
from reconsume.spark.java import java_process
from tests.spark.streams import Played
from tests.support.event_histories import EVENT, written


@pytest.fixture
def unset(spark: SparkSession) -> Iterator[SparkSession]:
    """The session without the setting, which is given back."""
    before = spark.conf.get(WRITTEN_BY)
    spark.conf.unset(WRITTEN_BY)
    yield spark
    spark.conf.set(WRITTEN_BY, str(before))


def started(spark: SparkSession, folder: Path) -> int:
    """Page faults, some hundreds each, of the processes that Java starts for one batch."""
    java = java_process()
    assert java is not None
    played = Played(spark, folder, lambda raw: view.view(schema.events(raw).good), "update")
    played.play(written([EVENT]))
    before = faults_of_children(java.pid)
    played.play(written([EVENT]))
    assert len(played.rows) == 2
    return faults_of_children(java.pid) - before


def faults_of_children(pid: int) -> int:
    """Those of processes that the process has started and that have ended."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[8])


@pytest.mark.long
def test_for_a_checkpoint_on_a_local_disk_few_processes_are_started(unset: SparkSession, tmp_path: Path) -> None:
    many = started(unset, tmp_path / "as-spark-does")
    write_plainly(unset, str(tmp_path))
    assert started(unset, tmp_path / "plainly") < many / 2


def test_a_local_checkpoint_is_known_with_and_without_a_scheme(unset: SparkSession, tmp_path: Path) -> None:
    for place in str(tmp_path), tmp_path.as_uri(), str(tmp_path / "not" / "yet"):
        unset.conf.unset(WRITTEN_BY)
        write_plainly(unset, place)
        assert unset.conf.get(WRITTEN_BY) == f"{manager_package(unset)}.{PLAIN}"


@pytest.mark.parametrize("place", ["nosuch://bucket/view", "hdfs://127.0.0.1:1/view", "", "a:b:c"])
def test_elsewhere_the_choice_is_sparks(unset: SparkSession, place: str) -> None:
    write_plainly(unset, place)
    assert unset.conf.get(WRITTEN_BY, None) is None


def test_a_choice_that_is_set_stays(unset: SparkSession, tmp_path: Path) -> None:
    unset.conf.set(WRITTEN_BY, "mine")
    write_plainly(unset, str(tmp_path))
    assert unset.conf.get(WRITTEN_BY) == "mine"
