"""Queues of which partitions have no owner: they are named as long as this group has records there."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from reconsume.sidecar.group_policy.levels import unowned_queues
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.topics.names import Names
from tests.integration.kafka.test_consumer import commit
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import Out, create_topic, produce


def test_what_waits_beyond_the_partitions_of_the_main_topic_is_named_and_what_is_owned_or_done_is_not(
    kafka: Broker, group: str
) -> None:
    names, main = Names(group, "{group}"), f"orders-{group}"
    queue, cluster = names.ordered(main), Cluster({"bootstrap.servers": kafka.bootstrap})
    create_topic(kafka.bootstrap, main, 1)
    create_topic(kafka.bootstrap, queue, 3)
    assert unowned_queues(cluster, names, [main], in_order=True) == []
    produce(kafka.bootstrap, queue, [Out(b"waits", b"k", (), number) for number in (0, 1, 1, 2)])
    commit(kafka.bootstrap, group, TopicPartition(queue, 2, 1))
    (unowned,) = unowned_queues(cluster, names, [main], in_order=True)
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
    assert unowned_queues(cluster, names, mains, in_order=True) == []
    commit(kafka.bootstrap, group, TopicPartition(queue, 0, 1))
    (unowned,) = unowned_queues(cluster, names, mains, in_order=True)
    assert (unowned.topic, unowned.waiting) == (main, 1)
    assert ("set topic_prefix back" if same_topic else f"put {main} back into topics") in unowned.mend
    commit(kafka.bootstrap, group, TopicPartition(queue, 0, 2))
    assert unowned_queues(cluster, names, mains, in_order=True) == []


def test_what_waits_in_order_is_named_once_the_group_has_none(kafka: Broker, group: str) -> None:
    """Given a group whose `deliver.order` was taken out while records wait: no instance reads its queue."""
    names, main = Names(group, "{group}"), f"orders-{group}"
    queue, cluster = names.ordered(main), Cluster({"bootstrap.servers": kafka.bootstrap})
    create_topic(kafka.bootstrap, main, 1)
    assert unowned_queues(cluster, names, [main], in_order=False) == []
    create_topic(kafka.bootstrap, queue, 1)
    produce(kafka.bootstrap, queue, [b"done", b"waits"])
    commit(kafka.bootstrap, group, TopicPartition(queue, 0, 1))
    assert unowned_queues(cluster, names, [main], in_order=True) == []
    (unowned,) = unowned_queues(cluster, names, [main], in_order=False)
    assert (unowned.name, unowned.partitions, unowned.waiting) == (queue, (0,), 1)
    assert "set deliver.order back" in unowned.mend
    commit(kafka.bootstrap, group, TopicPartition(queue, 0, 2))
    assert unowned_queues(cluster, names, [main], in_order=False) == []
