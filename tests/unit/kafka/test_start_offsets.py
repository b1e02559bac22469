"""Where a partition goes on whose log ends before what was read, and what an answer with an error says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_STORED,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.log_checks import (
    Edges,
    Leaders,
    OffsetLookup,
    checked,
    end_of_done,
    recreated,
    untouched,
)
from reconsume.sidecar.kafka.consumer.start_offsets import Start, Starts, committed

PLACE = Partition("orders", 0)
OTHER = Partition("orders", 1)
READ_AT = 1_795_391_078_015


def answer(offset: int, metadata: str = "", error: KafkaError | None = None, partition: Partition = PLACE) -> Any:
    """What the client answers about one partition."""
    return SimpleNamespace(
        topic=partition.topic, partition=partition.number, offset=offset, metadata=metadata, error=error
    )


class Silent:
    """No broker says who leads a partition."""

    def list_topics(self, topic: str, timeout: float) -> Any:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


class Client(Silent):
    """Answers as it is told, and raises where it is told to."""

    def __init__(self, *answers: Any, refuses: bool = False, later: int | None = None) -> None:
        self.answers = answers
        self.refuses = refuses
        self.later = later

    def committed(self, places: list[TopicPartition], timeout: float) -> list[Any]:
        if self.refuses:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return list(self.answers)

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[Any]:
        if self.later is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        assert [place.offset for place in places] == [READ_AT + 1]
        return [answer(self.later)]


def consumer(*answers: Any, refuses: bool = False, later: int | None = None) -> Consumer:
    return cast("Consumer", Client(*answers, refuses=refuses, later=later))


def lookup(client: Any) -> OffsetLookup:
    return OffsetLookup(client, Leaders())


def goes_on_at(client: Any) -> Progress | None:
    """Where a partition goes on whose log has shrunk to 2 … 8."""
    return Starts("earliest").after_truncation(lookup(client), {PLACE: Edges(2, 8)}).get(PLACE)


@pytest.mark.parametrize(
    ("known", "goes_on"),
    [
        (Progress(5, frozenset({6, 9})), Progress(5, frozenset({6}))),  # the same offset still exists
        (Progress(12), Progress(8, ours=False)),  # it does not
        (None, untouched(2)),  # Kafka forgets the offsets of a deleted topic: it was made anew
    ],
)
def test_after_a_truncation_reading_goes_on_where_the_group_was(known: Progress | None, goes_on: Progress) -> None:
    found = answer(-1001) if known is None else answer(known.next, encode(PLACE, known))
    assert goes_on_at(consumer(found)) == goes_on


@pytest.mark.parametrize(
    ("later", "goes_on"),
    [
        (2, untouched(2)),  # all of it is younger: another topic of that name
        (7, Progress(8, ours=False)),  # its end was lost with a leader, and two records came since
        (OFFSET_END, Progress(8, ours=False)),
        (None, None),  # Kafka does not say
    ],
)
def test_a_log_that_is_younger_than_what_was_read_is_read_from_its_beginning(
    later: int | None, goes_on: Progress | None
) -> None:
    """An owner that has read ahead may commit an offset of a deleted topic in the new one of its name."""
    found = answer(12, encode(PLACE, Progress(12, last_at_ms=READ_AT)))
    assert goes_on_at(consumer(found, later=later)) == goes_on


def test_while_kafka_does_not_say_where_the_group_was_nothing_is_decided() -> None:
    assert goes_on_at(consumer(refuses=True)) is None


def test_an_error_about_one_partition_is_not_taken_for_no_offset() -> None:
    """It would begin at the earliest record, and deliver everything again."""
    broken = answer(-1001, error=KafkaError(KafkaError.NOT_COORDINATOR), partition=OTHER)
    assert committed(consumer(answer(7, encode(PLACE, Progress(7))), broken), [PLACE, OTHER]) == {PLACE: Progress(7)}


@pytest.mark.parametrize("start_at", ["earliest", "latest"])
def test_what_cannot_be_answered_is_left_to_the_client(start_at: str) -> None:
    """No question in a rebalance callback may raise: the thread would end with it."""
    assert Starts(start_at).find_starts(consumer(refuses=True), [PLACE]) == [Start(PLACE, OFFSET_STORED, None)]


class Log(Silent):
    """A partition that begins at `low`, and whose first younger record, or marker, is at `younger`."""

    def __init__(self, low: int | None, younger: int) -> None:
        self.low, self.younger = low, younger

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[Any]:
        (place,) = places
        if place.offset != OFFSET_BEGINNING:
            return [answer(self.younger)]
        if self.low is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return [answer(self.low)]


@pytest.mark.parametrize(
    ("log", "begins"),
    [
        (Log(0, OFFSET_END), {}),
        (Log(0, 9), {}),  # what comes next
        (Log(0, 7), {}),  # the marker of the last transaction, which the place has passed
        (Log(0, 0), {PLACE: 0}),
        (Log(3, 3), {PLACE: 3}),  # another log, of which the front was cut
        (Log(None, 7), {}),  # its leader is away
    ],
)
def test_a_log_is_another_one_if_all_of_it_is_younger_than_what_was_read(
    log: Log, begins: dict[Partition, int]
) -> None:
    assert recreated(lookup(log), {PLACE: (8, READ_AT)}) == begins


class Ends:
    """A client whose logs begin and end at some offsets; those of the others are not known."""

    def __init__(self, ends: dict[Partition, tuple[int, int]]) -> None:
        self._ends = ends

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[Any]:
        asked = [(Partition(place.topic, place.partition), place.offset == OFFSET_END) for place in places]
        return [answer(self._ends[source][end], partition=source) for source, end in asked if source in self._ends]


@pytest.mark.parametrize(
    ("known", "ends", "left"),
    [
        (Progress(0, frozenset({2})), (0, 0), Progress(0)),  # another log, and nothing in it yet
        (Progress(0, frozenset({2, 9})), (0, 5), Progress(0, frozenset({2}))),
        (Progress(0, frozenset({2, 9})), (0, 10), Progress(0, frozenset({2, 9}))),
        (Progress(7), (0, 0), untouched(0)),  # another log: read on at 7, the first of it would be skipped
        (Progress(7), (7, 7), Progress(7)),  # all of it was read, and then deleted
        (Progress(7), (0, 3), Progress(7)),  # the client reports an offset that is not in the log
    ],
)
def test_what_lies_behind_the_end_of_the_log_is_a_former_logs(
    known: Progress, ends: tuple[int, int], left: Progress
) -> None:
    """As soon as the log is that long it would pass over its records."""
    assert checked(lookup(Ends({PLACE: ends})), {PLACE: known}) == {PLACE: left}


@pytest.mark.parametrize("known", [Progress(0, frozenset({2})), None])
def test_where_the_end_of_a_main_topic_is_not_known_all_stays(known: Progress | None) -> None:
    assert checked(lookup(Ends({})), {PLACE: known}) == {PLACE: known}


@pytest.mark.parametrize(("answers", "sure"), [(0, False), (1, False), (2, True)])
def test_a_level_is_not_read_before_it_is_known_that_its_log_is_the_one_that_was_read(answers: int, sure: bool) -> None:
    """Where a retry could be skipped, no answer is no leave: neither about its records' times nor about its end."""

    class Level(Silent):
        def __init__(self) -> None:
            self.left = answers

        def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[Any]:
            self.left -= 1
            if self.left < 0:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return [answer(9 if place.offset == OFFSET_END else OFFSET_END) for place in places]

    known = Progress(9, last_at_ms=READ_AT)
    assert checked(lookup(Level()), {PLACE: known}) == ({PLACE: known} if sure else {})


def test_the_reach_of_progress_is_behind_its_last_mark() -> None:
    assert [end_of_done(progress) for progress in (Progress(4), Progress(4, frozenset({6, 9})))] == [4, 10]
