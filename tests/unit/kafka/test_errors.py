"""Requests to a cluster that is busy: asked again within a deadline, and only then."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from reconsume.sidecar.kafka.admin.cluster import settling
from reconsume.sidecar.kafka.errors import committed_of, retry_transient

AT_ONCE = 0.001


class Coordinator:
    """A client whose questions for progress have these answers in turn: error codes, then what is committed."""

    def __init__(self, *codes: int, of_partition: bool = False) -> None:
        self._codes: Iterator[int] = iter(codes)
        self._of_partition = of_partition
        self.asked = 0

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self.asked += 1
        code = next(self._codes, None)
        if code is None:
            return [TopicPartition(place.topic, place.partition, 7) for place in places]
        if not self._of_partition:
            raise KafkaException(KafkaError(code))
        return [Refused(place.topic, place.partition, KafkaError(code)) for place in places]  # type: ignore[misc]


class Refused:
    """A partition with an error of its own, which only the client itself can write into a TopicPartition."""

    def __init__(self, topic: str, partition: int, error: KafkaError) -> None:
        self.topic, self.partition, self.offset, self.error = topic, partition, -1001, error


PLACES = [TopicPartition("orders", 0)]


@pytest.mark.parametrize("of_partition", [False, True])
def test_a_coordinator_that_is_not_there_yet_is_asked_again(of_partition: bool) -> None:
    """Given a fresh broker, whose first group has its topic made, then the audit waits and does not end with 1."""
    busy = Coordinator(KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, of_partition=of_partition)
    assert [place.offset for place in committed_of(busy, PLACES, 30.0, settling, AT_ONCE)] == [7]
    assert busy.asked == 3


def test_a_refusal_is_not_asked_again() -> None:
    refusing = Coordinator(KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
        committed_of(refusing, PLACES, 30.0, settling, AT_ONCE)
    assert refusing.asked == 1


def test_a_partition_that_is_refused_is_no_partition_without_progress() -> None:
    refusing = Coordinator(KafkaError.TOPIC_AUTHORIZATION_FAILED, of_partition=True)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        committed_of(refusing, PLACES, 30.0, settling, AT_ONCE)


def test_a_cluster_that_stays_busy_is_given_up_at_the_deadline() -> None:
    asked = []

    def ask() -> None:
        asked.append(1)
        raise KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))

    with pytest.raises(KafkaException, match="NOT_COORDINATOR"):
        retry_transient(ask, 0.05, settling, 0.01)
    assert 1 < len(asked) <= 6
