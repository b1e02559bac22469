"""Notes of owners about resets, written by hand: what a group's resets of positions have left."""

from __future__ import annotations

from confluent_kafka import Producer

from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.topics.owner_notes import PARTITION as OWNERS_PARTITION
from reconsume.topics.partition import Partition
from reconsume.topics.position_ranges import PartitionResets, render_resets, reset_key, topic_digest
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import SECONDS


def topic_id(group: GroupTopics) -> str:
    """The id of the main topic, as notes have it."""
    described = Cluster({"bootstrap.servers": group.bootstrap}).existing([group.main])
    return topic_digest(described[group.main].id)


def note_resets(group: GroupTopics, partition: int, resets: PartitionResets) -> None:
    """Write what an owner notes of the resets of a partition."""
    producer = Producer({"bootstrap.servers": group.bootstrap})
    key = reset_key(Partition(group.main, partition))
    producer.produce(group.names.policy, render_resets(resets), key, OWNERS_PARTITION)
    assert producer.flush(SECONDS) == 0
