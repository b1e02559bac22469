"""Where a partition goes on whose log ends before what was read, and what an answer with an error says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_STORED, Consumer, KafkaError, KafkaException, TopicPartition

from sidecar.core.progress import Progress, encode
from sidecar.core.record import Partition
from sidecar.edges.starts import Edges, Start, Starts, committed

PLACE = Partition("orders", 0)
OTHER = Partition("orders", 1)


def answer(offset: int, metadata: str = "", error: KafkaError | None = None, partition: Partition = PLACE) -> Any:
    """What the client answers about one partition."""
    return SimpleNamespace(
        topic=partition.topic, partition=partition.number, offset=offset, metadata=metadata, error=error
    )


class Client:
    """Answers as it is told, and raises where it is told to."""

    def __init__(self, *answers: Any, refuses: bool = False) -> None:
        self.answers = answers
        self.refuses = refuses

    def committed(self, places: list[TopicPartition], timeout: float) -> list[Any]:
        if self.refuses:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return list(self.answers)

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[Any]:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def consumer(*answers: Any, refuses: bool = False) -> Consumer:
    return cast("Consumer", Client(*answers, refuses=refuses))


@pytest.mark.parametrize(
    ("known", "goes_on"),
    [
        (Progress(5, frozenset({6, 9})), Progress(5, frozenset({6}))),  # the same offset still exists
        (Progress(12), Progress(8, ours=False)),  # it does not
        (None, Progress(2, ours=False)),  # Kafka forgets the offsets of a deleted topic: it was made anew
    ],
)
def test_after_a_truncation_reading_goes_on_where_the_group_was(known: Progress | None, goes_on: Progress) -> None:
    found = answer(-1001) if known is None else answer(known.next, encode(known))
    assert Starts("earliest").after_truncation(consumer(found), PLACE, Edges(2, 8)) == goes_on


def test_while_kafka_does_not_say_where_the_group_was_nothing_is_decided() -> None:
    assert Starts("earliest").after_truncation(consumer(refuses=True), PLACE, Edges(2, 8)) is None


def test_an_error_about_one_partition_is_not_taken_for_no_offset() -> None:
    """It would begin at the earliest record, and deliver everything again."""
    broken = answer(-1001, error=KafkaError(KafkaError.NOT_COORDINATOR), partition=OTHER)
    assert committed(consumer(answer(7, encode(Progress(7))), broken), [PLACE, OTHER]) == {PLACE: Progress(7)}


@pytest.mark.parametrize("start_at", ["earliest", "latest"])
def test_what_cannot_be_answered_is_left_to_the_client(start_at: str) -> None:
    """No question in a rebalance callback may raise: the thread would end with it."""
    assert Starts(start_at).find(consumer(refuses=True), [PLACE]) == [Start(PLACE, OFFSET_STORED, None)]
