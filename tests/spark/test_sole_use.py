"""A checkpoint serves one job at a time: the lock stands between processes, and leaves with the process that has it."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reconsume.spark.errors import TakenError
from reconsume.spark.job.sole_use import LOCK, claim
from tests.support.kafka.broker import Broker
from tests.support.sidecar.view_process import START_SECONDS, ViewProcess


def test_a_checkpoint_that_another_process_has_locked_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    said: list[str] = []
    with (tmp_path / LOCK).open("w") as other:
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(TakenError, match=f"{tmp_path} is in use by another job"):
            claim(spark, str(tmp_path), said.append)
    lock = claim(spark, tmp_path.as_uri(), said.append)  # the other process has let go
    assert lock is not None
    assert said == []
    lock.acquiredBy().close()


def test_a_checkpoint_that_is_claimed_is_locked_for_all_other_processes(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "a folder" / "not yet there"
    lock = claim(spark, str(place), pytest.fail)
    with (place / LOCK).open("r+") as other, pytest.raises(BlockingIOError):
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.acquiredBy().close()


def test_a_folder_that_cannot_be_locked_is_said_and_left_to_the_queries(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    said: list[str] = []
    assert claim(spark, str(tmp_path / "file" / "below"), said.append) is None
    [sentence] = said
    assert "cannot be locked" in sentence
    assert "FileNotFoundException" in sentence


def test_a_checkpoint_elsewhere_than_on_a_disk_is_not_locked(spark: SparkSession) -> None:
    assert claim(spark, "s3a://bucket/place", pytest.fail) is None


@pytest.mark.long
def test_the_second_job_on_a_checkpoint_ends_with_a_sentence_and_the_first_goes_on(
    kafka: Broker, tmp_path: Path
) -> None:
    words = ("--pattern=no-such-group-.*", f"--checkpoint={tmp_path / 'place'}")
    with ViewProcess(kafka.bootstrap, tmp_path / "first", *words) as first:
        first.until(lambda: "reading all groups" in first.log(), START_SECONDS, "the first job runs")
        second = ViewProcess(kafka.bootstrap, tmp_path / "second", *words)
        second.start()
        assert second.process.wait(START_SECONDS) == 1
        assert "in use by another job; a checkpoint serves one job at a time" in second.log()
        assert first.stop() == 0
    with ViewProcess(kafka.bootstrap, tmp_path / "third", *words) as third:
        third.until(lambda: "reading all groups" in third.log(), START_SECONDS, "the checkpoint is free again")
