"""`topics plan`, `check` and `apply` on a real broker: created once, reported, never altered."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from reconsume.sidecar.kafka.admin.cluster import Cluster
from tests.conftest import MakeTopic
from tests.support.deadline import SOON, until
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import SECONDS, add_partitions, create_topic, delete_topics
from tests.support.sidecar.cli import reconsume

Call = Callable[..., Result]


@pytest.fixture
def main_topic(make_topic: MakeTopic) -> str:
    return make_topic(2, max_message_bytes=2_000_000)


@pytest.fixture
def topics(kafka: Broker, group: str, main_topic: str, tmp_path: Path) -> Call:
    """`topics("plan", …)` for a fresh group over a fresh main topic, with two levels."""
    file = tmp_path / "reconsume.yaml"
    tree = {
        "group": group,
        "topics": [main_topic],
        "kafka": {"bootstrap.servers": kafka.bootstrap},
        "deliver": {"url": "http://127.0.0.1:1/"},
        "retry": {"levels": ["1s", "1m"], "ladder": ["1s", "1m"]},
    }
    file.write_text(json.dumps(tree), encoding="utf-8")  # JSON is YAML
    return lambda *words: reconsume("-c", file, "topics", *words)


def rows(result: Result) -> dict[str, dict[str, Any]]:
    return {row["topic"]: row for row in map(json.loads, result.stdout.splitlines())}


def test_plan_shows_every_topic_and_creates_none(topics: Call, kafka: Broker, group: str) -> None:
    shown = topics("plan")
    found = rows(shown)
    assert shown.exit_code == 0
    kinds = "DLQ RETRY RETRY-1s RETRY-1m RETRY-EVENTS RETRY-POLICY"
    assert set(found) == {f"{group}-{kind}" for kind in kinds.split()}
    assert {row["action"] for row in found.values()} == {"create"}
    level = found[f"{group}-RETRY-1m"]["wanted"]
    assert level["partitions"] == 2
    assert level["config"]["max.message.bytes"] == str(2_000_000 + 16 * 1024)
    assert Cluster({"bootstrap.servers": kafka.bootstrap}).find_topics(found) == {}


def test_only_a_group_whose_view_spark_writes_has_topics_for_rows_and_sums(topics: Call, group: str) -> None:
    assert topics("apply", "--yes").exit_code == 0
    assert topics("check").exit_code == 0
    spark = topics("check", "--set", "view.source=spark")
    missing = {row["topic"] for row in map(json.loads, spark.stdout.splitlines())}
    assert missing == {f"{group}-RETRY-VIEW"}


def test_a_topic_with_more_partitions_than_needed_is_sound(topics: Call, kafka: Broker, group: str) -> None:
    create_topic(kafka.bootstrap, f"{group}-RETRY-EVENTS", 12, {"message.timestamp.type": "LogAppendTime"})
    topics("apply", "--yes")
    assert f"{group}-RETRY-EVENTS" not in rows(topics("check"))


def test_the_plan_ends_with_what_the_topics_and_a_failing_record_cost(topics: Call) -> None:
    default = ("--set", "retry.ladder=rocketmq", "--set", "retry.levels=null")
    told = topics("plan", *default).stderr
    assert "cost: 10 topics, 24 partitions" in told
    assert "a record that uses up its retries is copied 37 times" in told
    assert "is copied 16 times" in topics("plan", *default, "--set", "retry.levels=ladder").stderr
    assert "is copied 0 times" in topics("plan", *default, "--set", "deliver.order=key").stderr


def test_names_that_differ_only_by_dot_and_underscore_are_said_before_kafka_refuses_them(
    topics: Call, kafka: Broker, group: str
) -> None:
    create_topic(kafka.bootstrap, f"{group}_x-DLQ", 1)
    text = f"warning: Kafka will not create {group}.x-DLQ: it and {group}_x-DLQ, which exists, differ only by"
    for command in ("plan", "check"):
        assert text in topics(command, "--set", f"group={group}.x").stderr
        assert "will not create" not in topics(command).stderr


def test_apply_creates_what_check_then_finds_good(topics: Call, group: str) -> None:
    before = topics("check")
    assert before.exit_code == 1
    assert rows(before)[f"{group}-DLQ"] == {
        "topic": f"{group}-DLQ",
        "finding": "it does not exist",
        "repair": rows(before)[f"{group}-DLQ"]["repair"],
    }
    assert rows(before)[f"{group}-DLQ"]["repair"].startswith("reconsume topics apply -c ")
    applied = topics("apply", "--yes")
    assert applied.exit_code == 0
    assert {row["result"] for row in rows(applied).values()} == {"created"}
    after = topics("check")
    assert (after.exit_code, after.stdout) == (0, "")
    assert {row["action"] for row in rows(topics("plan")).values()} == {"ok"}


def test_apply_twice_changes_nothing_and_asks_nothing(topics: Call) -> None:
    topics("apply", "--yes")
    again = topics("apply")
    assert again.exit_code == 0
    assert {row["result"] for row in rows(again).values()} == {"ok"}


def test_apply_gives_a_policy_topic_its_second_partition(topics: Call, kafka: Broker, group: str) -> None:
    """Given a policy topic with one partition, then `apply` grows it, and says so before in a dry run."""
    topics("apply", "--yes")
    name = f"{group}-RETRY-POLICY"
    spec = Cluster({"bootstrap.servers": kafka.bootstrap}).find_topics([name])[name]
    delete_topics(kafka.bootstrap, name)
    kept = (
        "cleanup.policy",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.insync.replicas",
        "segment.ms",
    )
    create_topic(kafka.bootstrap, name, 1, {key: spec.config[key] for key in kept})
    assert rows(topics("plan"))[name]["action"] == "grow"
    assert rows(topics("check"))[name]["repair"].startswith("reconsume topics apply -c ")
    assert rows(topics("apply", "--dry-run"))[name]["result"] == "would be grown"
    assert rows(topics("apply", "--yes"))[name]["result"] == "grown"
    until(lambda: topics("check").exit_code == 0, SECONDS, "the topic is as it must be")


def test_apply_gives_a_queue_topic_the_partitions_that_were_added_to_its_main_topic(
    topics: Call, kafka: Broker, group: str, main_topic: str
) -> None:
    """Without `--widen`: what fails in a partition that the queue lacks would wait in memory."""
    ladder = ("--set", "deliver.order=key", "--set", "retry.ordered_ladder=[1s]", "--set", "retry.levels=null")
    queue, cluster = f"{group}-ORDERED-{main_topic}", Cluster({"bootstrap.servers": kafka.bootstrap})
    assert topics("apply", "--yes", *ladder).exit_code == 0
    add_partitions(kafka.bootstrap, main_topic, 3)
    until(lambda: rows(topics("plan", *ladder))[queue]["action"] == "grow", SECONDS, "the plan says so")
    grown = rows(topics("apply", "--yes", *ladder))
    assert grown[queue]["result"] == "grown"
    assert {row["result"] for name, row in grown.items() if name != queue} <= {"ok", "differs"}
    until(
        lambda: cluster.find_topics([queue])[queue].partitions == 3, SECONDS, "the queue has as many as the main topic"
    )


def test_apply_leaves_a_topic_that_differs_as_it_is(topics: Call, kafka: Broker, group: str) -> None:
    name = f"{group}-RETRY-1m"
    create_topic(kafka.bootstrap, name, 1, {"cleanup.policy": "compact", "retention.ms": "1000"})
    applied = topics("apply", "--yes")
    found = rows(applied)
    assert applied.exit_code == 3, "a Job must not be green while a topic loses records"
    assert found[name]["result"] == "differs"
    assert found[f"{group}-RETRY-1s"]["result"] == "created"
    assert "1 of 6 topics differ" in applied.stderr
    config = Cluster({"bootstrap.servers": kafka.bootstrap}).find_topics([name])[name].config
    assert (config["cleanup.policy"], config["retention.ms"]) == ("compact", "1000")
    assert topics("apply", "--yes").exit_code == 3
    repairs = [row["repair"] for row in map(json.loads, topics("check").stdout.splitlines())]
    begin = ["--bootstrap-server", kafka.bootstrap, "--alter"]
    assert len(repairs) > 3
    assert all(shlex.split(text)[1:4] == begin for text in repairs), "each can be pasted"


def test_apply_widens_what_is_narrow_when_it_is_told_to_and_still_reports_what_else_differs(
    topics: Call, kafka: Broker, group: str
) -> None:
    topics("apply", "--yes")
    cluster = Cluster({"bootstrap.servers": kafka.bootstrap})
    narrow, odd = f"{group}-RETRY-1m", f"{group}-RETRY-1s"
    sound = cluster.find_topics([narrow, odd])
    for name, more in ((narrow, {}), (odd, {"retention.ms": "1000"})):
        kept = ("cleanup.policy", "message.timestamp.type", "retention.ms", "retention.bytes", "max.message.bytes")
        delete_topics(kafka.bootstrap, name)
        create_topic(kafka.bootstrap, name, 1, {key: sound[name].config[key] for key in kept} | more)
    assert topics("apply", "--yes").exit_code == 3
    assert rows(topics("apply", "--widen", "--dry-run"))[narrow]["result"] == "would be grown"
    assert cluster.find_topics([narrow])[narrow].partitions == 1
    widened = topics("apply", "--widen", "--yes")
    assert widened.exit_code == 3, "the retention of the other one still differs"
    assert {name: rows(widened)[name]["result"] for name in (narrow, odd)} == {narrow: "grown", odd: "grown"}
    assert "1 of 6 topics differ" in widened.stderr
    until(lambda: cluster.find_topics([narrow])[narrow].partitions == 2, SECONDS, "the topic has its partitions")
    assert {row["topic"] for row in map(json.loads, topics("check").stdout.splitlines())} == {odd}


def test_check_says_all_that_is_wrong_with_a_topic_and_how_to_mend_it(topics: Call, kafka: Broker, group: str) -> None:
    topics("apply", "--yes")
    other = topics("check", "--set", "retry.levels=[1s, 1m, 2m]")
    assert set(rows(other)) == {f"{group}-RETRY-2m"}
    create_topic(kafka.bootstrap, f"{group}-RETRY-2m", 1, {"cleanup.policy": "compact", "max.message.bytes": "1000"})
    shown = topics("check", "--set", "retry.levels=[1s, 1m, 2m]")
    found = [json.loads(line) for line in shown.stdout.splitlines()]
    assert shown.exit_code == 1
    assert {row["topic"] for row in found} == {f"{group}-RETRY-2m"}
    said = " ".join(row["finding"] for row in found)
    for part in ("1 partition", "compaction", "max.message.bytes is 1000", "message.timestamp.type is CreateTime"):
        assert part in said
    assert all(row["repair"].startswith("kafka-") for row in found)


@pytest.mark.parametrize(("partitions", "count"), [(1, "1 partition, and"), (3, "3 partitions, and")])
def test_check_names_a_queue_topic_that_would_lose_or_stop_what_waits(
    topics: Call, kafka: Broker, group: str, main_topic: str, partitions: int, count: str
) -> None:
    ladder = ("--set", "deliver.order=key", "--set", "retry.ordered_ladder=[1s]")
    queue = f"{group}-ORDERED-{main_topic}"
    bad = {"cleanup.policy": "compact", "retention.ms": "3600000", "max.message.bytes": "1000"}
    create_topic(kafka.bootstrap, queue, partitions, bad)
    found = [row for row in map(json.loads, topics("check", *ladder).stdout.splitlines()) if row["topic"] == queue]
    said = " ".join(row["finding"] for row in found)
    for part in (count, "records that wait behind a key", "retention.ms is 3600000 (1h)", "max.message.bytes is 1000"):
        assert part in said
    assert all(queue in row["repair"] or "topics apply" in row["repair"] for row in found)


def test_dry_run_asks_the_broker_and_creates_nothing(topics: Call) -> None:
    shown = topics("apply", "--dry-run")
    assert shown.exit_code == 0
    assert {row["result"] for row in rows(shown).values()} == {"would be created"}
    assert {row["action"] for row in rows(topics("plan")).values()} == {"create"}


def test_apply_without_a_terminal_needs_yes(topics: Call) -> None:
    shown = topics("apply")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "--yes" in shown.stderr
    assert {row["action"] for row in rows(topics("plan")).values()} == {"create"}


def test_a_topic_that_the_broker_refuses_is_partly_done(topics: Call, kafka: Broker, group: str) -> None:
    """A name in which only . and _ differ from an existing one collides, and Kafka refuses it."""
    create_topic(kafka.bootstrap, f"{group}.x-DLQ", 1, {})
    shown = topics("apply", "--yes", "--set", f"group={group}_x")
    found = rows(shown)
    failed = [row for row in found.values() if row["result"] == "failed"]
    assert shown.exit_code == 3
    assert [row["topic"] for row in failed] == [f"{group}_x-DLQ"]
    assert "collides" in failed[0]["error"]
    assert [row["result"] for row in found.values()].count("created") == len(found) - 1


def test_missing_main_topics_are_named_all_at_once(topics: Call, main_topic: str) -> None:
    shown = topics("plan", "--set", f"topics=[nope-a, {main_topic}, nope-b]")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "no such main topic: nope-a, nope-b; create it first" in shown.stderr
    assert main_topic not in shown.stderr
    misspelt = topics("plan", "--set", f"topics=[{main_topic}x]")
    assert f"no such main topic: {main_topic}x (did you mean {main_topic}?); create it first" in misspelt.stderr
    assert "--create --topic nope-a --partitions 3 && kafka-topics.sh" in shown.stderr


def test_a_broker_that_is_away_is_one_sentence_and_no_long_wait(topics: Call) -> None:
    began = time.monotonic()
    shown = topics("plan", "--set", "kafka.bootstrap.servers=127.0.0.1:1")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert time.monotonic() - began < SOON
    assert shown.stderr.startswith("reconsume: Kafka: no broker of 127.0.0.1:1 answered within 8 s")
    assert shown.stderr.count("\n") == 1
