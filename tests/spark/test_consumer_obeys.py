"""What a group has agreed on and what operators say applies to both forms of a consumer, on a broker, while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from reconsume.spark.consumer import (
    PolicyFollower,
    Record,
    Rules,
    due_rows,
    for_each_record,
    read_gated,
    rules_from,
    write_rows,
)
from reconsume.topics.agreement import SettingsRecord, digest_of, render_settings, settings_key
from reconsume.topics.hold_record import HoldRecord, hold_key, render_hold
from reconsume.topics.policy_record import SubscriptionRecord, instance_key, render_record
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, fresh_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.policy import set_policy, with_policy, write

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SECONDS = 120.0
HOUR = 3_600_000


class Job:
    """A query of a group that fails what is called `bad…`, in one of the two forms."""

    def __init__(self, spark: SparkSession, group: GroupTopics, folder: Path, form: str) -> None:
        self.group, self._calls = group, folder / "calls"
        self._calls.touch()
        self.file = folder / "reconsume.yaml"
        config = {
            "group": group.group,
            "topics": [{"name": group.main, "tags": "wanted"}],
            "kafka": {"bootstrap.servers": group.bootstrap},
            "deliver": {"mode": "spark"},
            "retry": {"ladder": ["1s"], "levels": ["1s", "5s"], "max_reconsume_times": 1},
        }
        self.file.write_text(yaml.safe_dump(config), encoding="utf-8")
        rules, kafka = rules_from(self.file, name=form), {"bootstrap.servers": group.bootstrap}
        run = for_each_record(self._handler(), rules, kafka) if form == "handler" else self._frames(rules, kafka)
        writer = read_gated(spark, rules, kafka).writeStream.foreachBatch(run)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        self.query: StreamingQuery = writer.trigger(processingTime="1 second").start()

    def _handler(self) -> Callable[[Record], object]:
        calls = self._calls

        def handle(record: Record) -> object:
            value = (record.value or b"").decode()
            with calls.open("a") as file:
                file.write(f"{value}/{record.times}\n")
            if value.startswith("bad"):
                raise LookupError
            return None

        return handle

    def _frames(self, rules: Rules, kafka: dict[str, str]) -> Callable[[DataFrame, int], None]:
        follower = PolicyFollower(rules, kafka)

        def run(batch: DataFrame, _number: int) -> None:
            batch.persist()
            now = follower.rules(batch)
            due = due_rows(batch, now).withColumn("text", f.col("value").cast("string")).persist()
            with self._calls.open("a") as file:
                file.writelines(f"{row['text']}/{row['times']}\n" for row in due.collect())
            is_bad = f.col("text").startswith("bad")
            failed = due.where(is_bad).select(batch.columns).withColumn("reason", f.lit("LookupError"))
            taken = due.where(~is_bad).select(batch.columns)
            write_rows(batch, failed, taken, now, kafka)
            due.unpersist()
            batch.unpersist()

        return run

    def send(self, value: str, tag: bytes = b"wanted") -> None:
        produce(self.group.bootstrap, self.group.main, [Out(value.encode(), b"k", (("TAGS", tag),))])

    def handled(self) -> list[str]:
        assert self.query.exception() is None, str(self.query.exception())
        return self._calls.read_text().splitlines()

    def values_in(self, topic: str) -> list[str]:
        return [(row.value or b"").decode() for row in dump(self.group.bootstrap, topic)]

    def until_handled(self, attempt: str) -> None:
        until(lambda: attempt in self.handled(), SECONDS, f"{attempt} was handled")


@pytest.fixture(params=["handler", "frames"])
def job(spark: SparkSession, kafka: Broker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    group = with_policy(fresh_group(kafka.bootstrap, delays=(1_000, 5_000)))
    started = Job(spark, group, tmp_path, request.param)
    yield started
    started.query.stop()


def test_settings_of_a_sidecar_policy_tags_and_holds_apply_to_both_forms(job: Job) -> None:
    group = job.group
    job.send("unwanted", tag=b"other")
    job.send("bad own")
    job.until_handled("bad own/1")
    until(lambda: job.values_in(group.dlq) == ["bad own"], SECONDS, "after its own one retry it is dead")

    values = {"max_reconsume_times": 0}
    write(group, render_settings(SettingsRecord(values, 3)), settings_key(digest_of(values)))
    write(group, render_record(SubscriptionRecord({}, 1, settings=digest_of(values))), instance_key("pod-0"))
    sent = [f"bad agreed {number}" for number in range(200)]

    def is_agreed() -> bool:
        """The next record that fails is dead at once."""
        job.send(value := sent.pop(0))
        job.until_handled(f"{value}/0")
        until(lambda: value in job.values_in(group.dlq) or f"{value}/1" in job.handled(), SECONDS, "it has an end")
        return f"{value}/1" not in job.handled()

    until(is_agreed, SECONDS, "the settings of the live sidecar apply")
    set_policy(group, max_reconsume_times=1)
    until(lambda: not is_agreed(), SECONDS, "the policy applies above them")

    now = time.time_ns() // 1_000_000
    hold = HoldRecord(now, now + HOUR, "look first", "ann", topic=group.main)
    write(group, render_hold(hold), hold_key("h1"))
    level = f"{group.group}-RETRY-5s"
    fresh = [f"held {number}" for number in range(200)]

    def is_held() -> bool:
        job.send(value := fresh.pop(0))
        until(lambda: value in job.values_in(level) or f"{value}/0" in job.handled(), SECONDS, "it went on")
        return value in job.values_in(level)

    until(is_held, SECONDS, "the hold is obeyed")
    [last] = [value for value in {*job.values_in(level)} if f"{value}/0" not in job.handled()][:1]
    events = len(dump(group.bootstrap, group.names.events))
    shown = reconsume("find", "--in", "value", last, "-c", job.file, "-o", "json")
    assert "held by h1" in shown.stdout, shown.stdout + shown.stderr
    until(lambda: job.values_in(level).count(last) >= 2, SECONDS, "its level was over, and the hold went on")
    assert f"{last}/0" not in job.handled()
    assert len(dump(group.bootstrap, group.names.events)) == events, "nothing is said of it"
    write(
        group,
        render_hold(HoldRecord(now, now + HOUR, "look first", "ann", group.main, released_by="bob")),
        hold_key("h1"),
    )
    job.until_handled(f"{last}/0")
    assert job.handled().count(f"{last}/0") == 1
    assert not [attempt for attempt in job.handled() if attempt.startswith("unwanted")]
