"""The producer of redrives: the later one wins, at whatever moment it comes, and the earlier one says so."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Consumer

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.dlq.producer import DlqProducer, SupersededError
from reconsume.sidecar.kafka.client_config import reader_config
from reconsume.topics.transition_records import Copy
from reconsume.topics.transitions import Retry
from tests.sim.samples import life, record
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import dump

ROUNDS = 5


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    return create_group(fresh_group(kafka.bootstrap, delays=(1_000,)), partitions=3)


def entries(group: GroupTopics, size: int) -> list[SettledRecord]:
    copies = [Copy(group.names.ready, b"%d" % number, b"x" * 2_000, []) for number in range(size)]
    return [SettledRecord(record(number), Retry(life(), None), (copy,)) for number, copy in enumerate(copies)]


@pytest.mark.parametrize("pause", [number * 0.006 for number in range(ROUNDS)])
def test_a_producer_that_is_fenced_in_the_midst_of_a_transaction_says_so(group: GroupTopics, pause: float) -> None:
    """Reports, offsets or the commit find it out: after each it must be the same error, and nothing is written."""
    properties = {"bootstrap.servers": group.bootstrap}
    reader = Consumer(reader_config(properties, group.names.redrive_group, "t"))
    earlier, rivals = DlqProducer(properties, group.names), list[DlqProducer]()
    done = threading.Event()

    def rival() -> None:
        done.wait(pause)
        rivals.append(DlqProducer(properties, group.names))

    thread = threading.Thread(target=rival)
    thread.start()
    committed = list[int]()

    def redrives() -> None:
        for number in range(2_000):
            earlier.redrive(entries(group, 200), [], reader.consumer_group_metadata())
            committed.append(number)

    with pytest.raises(SupersededError, match="has begun and goes on, so this one stops"):
        redrives()
    thread.join(20)
    reader.close()
    (later,) = rivals
    later.write(entries(group, 1), later.counts)
    # The commit that the rival came into may have been the earlier one's last, without its answer.
    assert len(dump(group.bootstrap, group.names.ready)) - 1 in (200 * len(committed), 200 * (len(committed) + 1))
