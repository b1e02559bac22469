"""The model of the client against the real one while a partition has no leader: only that partition stands still."""

import psutil
import pytest
from confluent_kafka import OFFSET_END, TopicPartition

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.dev.kafka.node import Node
from tests.sim.client_questions import leader_of as led_by
from tests.sim.twin import IN_VAIN, Twin, twin
from tests.sim.twin_broker import SECONDS, Broker
from tests.support.deadline import until

pytestmark = [pytest.mark.three, pytest.mark.long]


def leader_of(cluster: EmbeddedKafka, pair: Twin, number: int) -> Node:
    return cluster.node(leader(pair, number))


def leader(pair: Twin, number: int) -> int:
    topic = pair.broker.admin.list_topics(pair.topic, timeout=SECONDS).topics[pair.topic]
    return int(topic.partitions[number].leader)


def lose(cluster: EmbeddedKafka, pair: Twin, number: int) -> Node:
    node = leader_of(cluster, pair, number)
    node.kill()
    until(lambda: leader(pair, number) < 0, SECONDS, "the partition has no leader")
    pair.kafka.logs[pair.places[number]].led = False
    return node


def test_a_leader_that_does_not_answer_fails_a_request_for_all_partitions_and_none_of_the_others_alone(
    three_nodes: EmbeddedKafka,
) -> None:
    broker = Broker(three_nodes.bootstrap)
    with twin(broker) as pair:
        until(lambda: leader(pair, 0) != leader(pair, 1), SECONDS, "two nodes lead them")
        for number in range(2):
            pair.append(number, 12)
            pair.ask(number)
        ends = [TopicPartition(*place, OFFSET_END) for place in pair.places]

        def ask(*numbers: int, seconds: float = SECONDS) -> None:
            asked = [ends[number] for number in numbers]
            pair.both(lambda client: [found.offset for found in client.offsets_for_times(asked, timeout=seconds)])

        ask(0, 1)
        node = leader_of(three_nodes, pair, 0)
        node.pause()
        until(lambda: psutil.Process(node.pid).status() == psutil.STATUS_STOPPED, SECONDS, "the node stands still")
        pair.model.unreached = {led_by(pair.places[0])}
        ask(0, 1, seconds=IN_VAIN)
        ask(1)
        ask(0, seconds=IN_VAIN)
        node.resume()
        pair.model.unreached.clear()
        until(lambda: leader(pair, 0) >= 0, SECONDS, "the partition is led")
        pair.ask(0)
    broker.close()


def test_a_partition_without_a_leader_stands_still_alone_and_obeys_all_the_same(three_nodes: EmbeddedKafka) -> None:
    broker = Broker(three_nodes.bootstrap)
    with twin(broker) as pair:
        for number in range(2):
            pair.append(number, 12)
            pair.assign(number, 0)
        pair.settle()
        node = lose(three_nodes, pair, 0)
        pair.ask_ends(0, IN_VAIN)
        pair.seek(0, 5)
        pair.pause(0)
        pair.seek(0, 7)
        pair.resume(0)
        pair.append(1, 3)
        pair.settle()
        pair.unassign(0)
        pair.assign(0, 9)
        pair.settle()
        node.start()
        pair.kafka.logs[pair.places[0]].led = True
        pair.settle()
        assert [offset for offset, _ in pair.consumed[pair.places[0]]] == [*range(13), 9, 10, 11, 12]
        pair.ask(0)
    broker.close()
