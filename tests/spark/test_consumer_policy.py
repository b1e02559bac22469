"""A Spark job follows the policy that the command line sets, on a broker, while it runs and without a restart."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reconsume.spark.consumer import PolicyFollower, Record, Rules, build_rules, for_each_record, read_gated
from reconsume.topics.acls import GroupShape, User, permissions_of
from reconsume.topics.agreement import SettingsRecord, digest_of, render_settings, settings_key
from reconsume.topics.policy_record import SubscriptionRecord, instance_key, render_record
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, fresh_group
from tests.support.kafka.guarded import PLAIN_LOGIN, GuardedKafka
from tests.support.kafka.topic_io import Out, create_topic, delete_topics, dump, produce
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.policy import set_policy, with_policy, write

pytestmark = pytest.mark.long

SECONDS = 120.0
HOSTILE = [b"", b"\xff", b"[" * 50_000, b'{"v": 2, "policy": {}, "who": "x", "at": 1}', b"x" * 100_000, b"null"]


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    return with_policy(fresh_group(kafka.bootstrap, delays=(1_000, 2_000)))


def rules_of(group: GroupTopics) -> Rules:
    return build_rules(group.group, group.mains, ladder=["1s"], levels=["1s", "2s"], max_reconsume_times=2, name="ship")


def following(spark: SparkSession, group: GroupTopics) -> Callable[[], Rules]:
    """The rules of a batch that begins when the last read is old."""
    clock = iter(range(0, 10_000, 100))
    kafka = {"bootstrap.servers": group.bootstrap}
    follower = PolicyFollower(rules_of(group), kafka, clock=lambda: float(next(clock)))
    return lambda: follower.rules(spark.range(0))


def test_hostile_records_stop_nothing_and_the_last_good_policy_holds(
    spark: SparkSession, group: GroupTopics, caplog: pytest.LogCaptureFixture
) -> None:
    rules = following(spark, group)
    assert rules() == rules_of(group)
    set_policy(group, max_reconsume_times=7)
    write(group, b"{}", b"instance/a")
    for value in HOSTILE:
        write(group, value)
    assert rules().max_reconsume_times == 7
    assert following(spark, group)().max_reconsume_times == 7, "a job that starts now"
    write(group, b"{}", b"instance/b")
    assert rules().max_reconsume_times == 7
    set_policy(group, ladder=["1s", "3s"], levels=["1s", "2s", "3s"])
    assert rules().max_reconsume_times == 7
    assert f"{group.group}-RETRY-3s" in caplog.text
    create_topic(group.bootstrap, f"{group.group}-RETRY-3s", config={"message.timestamp.type": "LogAppendTime"})
    changed = rules()
    assert (changed.max_reconsume_times, changed.delays) == (2, (1_000, 2_000, 3_000))
    write(group, None)
    assert rules() == rules_of(group)


def test_a_log_that_was_created_again_is_read_from_its_first_record(spark: SparkSession, group: GroupTopics) -> None:
    rules = following(spark, group)
    for times in (3, 4, 5):
        set_policy(group, max_reconsume_times=times)
    assert rules().max_reconsume_times == 5
    delete_topics(group.bootstrap, group.names.policy)
    create_topic(group.bootstrap, group.names.policy)
    set_policy(group, max_reconsume_times=6)
    assert rules().max_reconsume_times == 6


def test_the_settings_of_a_live_sidecar_apply_below_the_policy_until_it_is_gone(
    spark: SparkSession, group: GroupTopics
) -> None:
    """Given a sidecar among a flood of others without settings, then its values are those of the job."""
    rules, values = following(spark, group), {**rules_of(group).own, "max_reconsume_times": 7, "jitter": "9%"}
    digest = digest_of(values)
    write(group, render_settings(SettingsRecord(values, 3)), settings_key(digest))
    for number in range(50):
        write(group, render_record(SubscriptionRecord({}, 1)), instance_key(f"pod-{number}"))
    write(group, render_record(SubscriptionRecord({}, 1, settings=digest)), instance_key("pod-7"))
    assert (rules().max_reconsume_times, rules().jitter) == (7, 9)
    set_policy(group, jitter="3%")
    assert (rules().max_reconsume_times, rules().jitter) == (7, 3)
    assert following(spark, group)() == rules(), "a job that starts now"
    write(group, None, instance_key("pod-7"))
    assert (rules().max_reconsume_times, rules().jitter) == (2, 3)


def test_a_group_without_a_policy_topic_and_a_broker_that_is_gone_stop_nothing(
    spark: SparkSession, kafka: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    absent = fresh_group(kafka.bootstrap)
    assert following(spark, absent)() == rules_of(absent)
    assert f"{absent.names.policy} does not exist" in caplog.text
    gone = fresh_group("127.0.0.1:9")
    before = time.monotonic()
    assert following(spark, gone)() == rules_of(gone)
    assert time.monotonic() - before < 30


def test_the_rights_that_are_planned_are_enough_to_follow(
    spark: SparkSession, guarded: GuardedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    group = with_policy(fresh_group(guarded.bootstrap, delays=(1_000, 2_000, 3_000)))
    shape = GroupShape(group.names, group.mains, group.delays, mode="relay", direct=True)
    guarded.allow("service", permissions_of(User.SERVICE, shape))
    login = f'username="service" password="{guarded.login("service")["sasl.password"]}"'
    kafka = {
        "bootstrap.servers": guarded.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f"{PLAIN_LOGIN} required {login};",
    }
    clock = iter(range(0, 10_000, 100))
    follower = PolicyFollower(rules_of(group), kafka, clock=lambda: float(next(clock)))
    write(group, b"{}", b"instance/a")
    set_policy(group, ladder=["3s"], levels=["1s", "2s", "3s"])
    changed = follower.rules(spark.range(0))
    assert changed.ladder.delays == (3_000,), "it may write to the new level, and not read it"
    guarded.forbid_all("service")
    set_policy(group, max_reconsume_times=9)
    assert follower.rules(spark.range(0)) is changed
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "cannot be read, the last known one applies" in line


def test_a_running_job_takes_a_ladder_that_the_command_line_sets_and_reads_its_new_level(
    spark: SparkSession, group: GroupTopics, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    calls.touch()

    def handle(record: Record) -> object:
        with calls.open("a") as file:
            file.write(f"{(record.value or b'').decode()}/{record.times} {time.time_ns() // 1_000_000}\n")
        if record.times == 0:
            raise LookupError
        return None

    kafka, rules = {"bootstrap.servers": group.bootstrap}, rules_of(group)
    writer = read_gated(spark, rules, kafka).writeStream.foreachBatch(for_each_record(handle, rules, kafka))
    query = writer.option("checkpointLocation", str(tmp_path / "place")).trigger(processingTime="1 second").start()

    def handled(attempt: str) -> bool:
        assert query.exception() is None, str(query.exception())
        return any(line.startswith(f"{attempt} ") for line in calls.read_text().splitlines())

    try:
        produce(group.bootstrap, group.main, [b"before"])
        until(lambda: handled("before/1"), SECONDS, "a retry by the job's own ladder")
        new = f"{group.group}-RETRY-3s"
        create_topic(group.bootstrap, new, config={"message.timestamp.type": "LogAppendTime"})
        file = tmp_path / "reconsume.yaml"
        tree = {
            "group": group.group,
            "topics": list(group.mains),
            "kafka": {"bootstrap.servers": group.bootstrap},
            "deliver": {"url": "http://127.0.0.1:1/"},
            "retry": {"levels": ["1s", "2s"], "ladder": ["1s"]},
        }
        file.write_text(json.dumps(tree), encoding="utf-8")
        set_ = reconsume("policy", "set", "ladder=[3s]", "levels=[1s, 2s, 3s]", "--yes", "-c", file)
        assert set_.exit_code == 0, set_.stderr

        def followed() -> bool:
            produce(group.bootstrap, group.main, [Out(b"after%d" % time.time_ns())])
            return bool(dump(group.bootstrap, new))

        until(followed, SECONDS, "a failure waits in the new level")
        copy = dump(group.bootstrap, new)[0]
        value = (copy.value or b"").decode()
        until(lambda: handled(f"{value}/1"), SECONDS, "what waits in the new level is handled, without a restart")
    finally:
        query.stop()
    [handled_at] = [line.split()[1] for line in calls.read_text().splitlines() if line.startswith(f"{value}/1 ")]
    assert int(handled_at) >= int(dict(copy.headers)["RETRY_DUE_AT"] or 0), "never early"
