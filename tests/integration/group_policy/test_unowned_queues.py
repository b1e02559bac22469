"""Queues of which partitions have no owner: they are named as long as this group has records there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from sidecar.group_policy.unowned_queues import unowned_queues
from sidecar.kafka.admin.cluster import Cluster
from tests.integration.kafka.test_consumer import commit
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import Out, create_topic, produce
from tests.support.sidecar.cli import reconsume
from topics.names import Names


def test_what_waits_beyond_the_partitions_of_the_main_topic_is_named_and_what_is_owned_or_done_is_not(
    kafka: Broker, group: str
) -> None:
    names, main = Names(group, "{group}"), f"orders-{group}"
    queue, cluster = names.ordered(main), Cluster({"bootstrap.servers": kafka.bootstrap})
    create_topic(kafka.bootstrap, main, 1)
    create_topic(kafka.bootstrap, queue, 3)
    assert unowned_queues(cluster, names, [main], read=True) == []
    produce(kafka.bootstrap, queue, [Out(b"waits", b"k", (), number) for number in (0, 1, 1, 2)])
    commit(kafka.bootstrap, group, TopicPartition(queue, 2, 1))
    (unowned,) = unowned_queues(cluster, names, [main], read=True)
    assert (unowned.name, unowned.partitions, unowned.waiting) == (queue, (1,), 2)
    assert f"give {main} 3 partitions again" in unowned.mend


@pytest.mark.parametrize("same_topic", [True, False], ids=["another prefix", "another topic"])
def test_a_queue_that_left_the_configuration_is_named_once_this_group_has_read_it(
    kafka: Broker, group: str, same_topic: bool
) -> None:
    """By its name alone it may be another group's."""
    main, cluster = f"orders-{group}", Cluster({"bootstrap.servers": kafka.bootstrap})
    names, before = Names(group, "{topic}-{group}"), Names(group, "{group}")
    queue = (before if same_topic else names).ordered(main)
    create_topic(kafka.bootstrap, queue, 1)
    produce(kafka.bootstrap, queue, [b"done", b"waits"])
    mains = [main if same_topic else f"other-{group}"]
    assert unowned_queues(cluster, names, mains, read=True) == []
    commit(kafka.bootstrap, group, TopicPartition(queue, 0, 1))
    (unowned,) = unowned_queues(cluster, names, mains, read=True)
    assert (unowned.topic, unowned.waiting) == (main, 1)
    assert ("set topic_prefix back" if same_topic else f"put {main} back into topics") in unowned.mend
    commit(kafka.bootstrap, group, TopicPartition(queue, 0, 2))
    assert unowned_queues(cluster, names, mains, read=True) == []


@pytest.mark.parametrize(
    ("deliver", "is_named"),
    [({}, True), ({"mode": "pull"}, True), ({"order": "key"}, False)],
    ids=["no order", "pull", "ordered without a ladder"],
)
def test_what_waits_in_a_group_that_keeps_no_order_any_more_is_named(
    kafka: Broker, group: str, tmp_path: Path, deliver: dict[str, str], is_named: bool
) -> None:
    """No instance of it reads a queue, so the records of such a key stand for ever."""
    main, file = f"orders-{group}", tmp_path / "group.json"
    queue = Names(group, "{group}").ordered(main)
    create_topic(kafka.bootstrap, main, 2)
    create_topic(kafka.bootstrap, queue, 2)
    produce(kafka.bootstrap, queue, [Out(b"done", b"k", (), 1), Out(b"waits", b"k", (), 1)])
    commit(kafka.bootstrap, group, TopicPartition(queue, 1, 1))
    url = {} if deliver.get("mode") == "pull" else {"url": "http://127.0.0.1:1/"}
    tree = {"group": group, "topics": [main], "kafka": {"bootstrap.servers": kafka.bootstrap}, "deliver": deliver | url}
    file.write_text(json.dumps(tree), encoding="utf-8")
    checked = reconsume("topics", "check", "-o", "json", "-c", file)
    rows = [row for row in json.loads(checked.stdout) if row["topic"] == queue]
    assert [("up to 1 records wait here unread" in row["finding"]) for row in rows] == [True] * is_named, checked.stderr
    doctor = reconsume("doctor", "-o", "json", "-c", file)
    assert (f"wait in {queue}[1], which nobody reads" in doctor.stdout) is is_named, doctor.stderr
