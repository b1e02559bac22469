"""What a bounded read takes and where it ends, whatever the client hands over."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.connection import DeniedError
from reconsume.sidecar.kafka.admin.descriptions import Span
from reconsume.sidecar.kafka.gaps import UntilGap
from reconsume.sidecar.kafka.range_reader import RangeReader, partition_of

EOF = KafkaError._PARTITION_EOF
A, B = ("orders", 0), ("orders", 1)


class Client:
    """Hands over what it was given, one message at a time, and notes what it is told to do."""

    def __init__(self, *messages: Any, begin: int = 0) -> None:
        self.messages = list(messages)
        self.begin = begin
        self.told: list[tuple[str, int, int]] = []
        self.closed = False

    def consume(self, most: int, timeout: float) -> list[Any]:
        return [self.messages.pop(0)] if self.messages and most == 1 else []

    def close(self) -> None:
        self.closed = True

    def get_watermark_offsets(self, _place: TopicPartition, timeout: float, cached: bool) -> tuple[int, int]:
        return self.begin, 1_000

    def __getattr__(self, name: str) -> Any:
        return lambda places=(): self.told.extend((name, place.partition, place.offset) for place in places)


def message(offset: int = -1, code: int | None = None, partition: int = 0) -> Any:
    error = None if code is None else KafkaError(code)
    return SimpleNamespace(
        topic=lambda: "orders", partition=lambda: partition, offset=lambda: offset, error=lambda: error
    )


def reader_of(client: Client, **spans: tuple[int, int]) -> RangeReader:
    return RangeReader(
        cast("Consumer", client), {("orders", int(name[1])): Span(*span) for name, span in spans.items()}
    )


def offsets(reader: RangeReader, patience: float = 5.0) -> list[int]:
    return [found.offset() or 0 for found in reader.records(patience)]


def test_each_partition_is_read_to_its_end_and_rests_then() -> None:
    client = Client(message(3), message(7, partition=1), message(4), message(5), message(8, partition=1))
    reader = reader_of(client, p0=(3, 5), p1=(7, 9), p2=(4, 4))
    assert offsets(reader) == [3, 7, 4, 8]
    assert client.told[:2] == [("assign", 0, 3), ("assign", 1, 7)]
    assert [(what, number) for what, number, _ in client.told[2:]] == [("pause", 0), ("pause", 1)]
    assert not reader.left


def test_where_no_record_is_last_the_end_of_the_partition_is_the_end() -> None:
    """A marker or compaction may have its place. An earlier end of the partition is not the end of the span."""
    reader = reader_of(Client(message(0), message(1, EOF), message(5), message(9, EOF), message(9)), p0=(0, 9))
    assert offsets(reader) == [0, 5]
    assert not reader.left


def test_a_record_behind_the_span_is_not_taken_and_ends_it() -> None:
    assert offsets(reader_of(Client(message(0), message(3)), p0=(0, 2))) == [0]


def test_no_right_on_the_group_and_no_connection_for_a_while_are_no_errors() -> None:
    passing = (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
    assert offsets(reader_of(Client(*(message(code=code) for code in passing), message(0)), p0=(0, 1))) == [0]


def test_an_error_that_lasts_is_raised_and_a_missing_right_named() -> None:
    with pytest.raises(DeniedError, match="a right is missing: READ on topic orders"):
        offsets(reader_of(Client(message(code=KafkaError.TOPIC_AUTHORIZATION_FAILED)), p0=(0, 1)))
    with pytest.raises(BrokerError, match="topic orders cannot be read"):
        offsets(reader_of(Client(message(code=KafkaError.UNKNOWN_TOPIC_OR_PART)), p0=(0, 1)))


def test_silence_and_the_deadline_end_it_and_what_is_left_is_known() -> None:
    silent = reader_of(Client(message(0)), p0=(0, 2), p1=(0, 1))
    assert offsets(silent, patience=0.05) == [0]
    assert silent.left == {A: 2, B: 1}
    late = reader_of(Client(message(0), message(1)), p0=(0, 9))
    assert [found.offset() for found in late.records(deadline=time.monotonic() - 1)] == [0]
    assert late.left == {A: 9}


def test_a_caller_who_takes_long_is_not_silence() -> None:
    read = []
    for found in (reader := reader_of(Client(message(0), message(1)), p0=(0, 2))).records(patience=0.05):
        read.append(found)
        time.sleep(0.1)
    assert len(read) == 2
    assert not reader.left


def test_a_partition_may_be_left_early() -> None:
    reader = reader_of(Client(message(0), message(1), message(0, partition=1)), p0=(0, 9), p1=(0, 1))
    read = []
    for found in reader.records(5.0):
        read.append(partition_of(found))
        reader.finish(A)
    assert read == [A, B]


@pytest.mark.parametrize(("begin", "read"), [(4, [0, 4, 5]), (6, [0])])
def test_what_retention_took_is_passed_over_and_named(begin: int, read: list[int]) -> None:
    lost = message(code=KafkaError._AUTO_OFFSET_RESET)
    client = Client(message(0), lost, message(4), message(5), begin=begin)
    reader = reader_of(client, p0=(0, 6))
    assert offsets(reader) == read
    assert reader.overtaken == {A: begin}
    assert (("incremental_assign", 0, begin) in client.told) is (begin < 6)


GAPS = {
    "only the last record": ([3, 5, 6], 99),
    "an aborted transaction": ([3, 6, 7], 6),
    "an aborted transaction before the first record": ([5, 6], 5),
    "many offsets": ([3, 4, 90], 90),
}


@pytest.mark.parametrize(("there", "behind"), GAPS.values(), ids=GAPS)
def test_a_reader_of_little_reads_anew_with_more_what_is_behind_a_gap(there: list[int], behind: int) -> None:
    """Small fetches may bring aborted records there; larger ones do not, so that here all others are left out."""
    small = Client(*map(message, there), message(99))
    large = Client(*map(message, sorted({behind, 99})))
    made = []

    def widen() -> Consumer:
        made.append(large)
        return cast("Consumer", large)

    reader = RangeReader(cast("Consumer", small), {A: Span(3, 100)}, widen)
    before = [offset for offset in there if offset < behind]
    assert offsets(reader) == [*before, *sorted({behind, 99})]
    assert len(made) == 1
    assert large.told[0] == ("assign", 0, before[-1] + 1 if before else 3)
    assert large.closed


def test_until_the_first_gap_messages_pass_one_reader_as_they_come() -> None:
    taken = UntilGap([message(4), message(6, EOF), message(7), message(9), message(10)], {A: 4})
    assert [found.offset() for found in taken] == [4, 6]
    assert taken.met
    whole = UntilGap([message(4), message(6), message(2, partition=1)], {A: 4})
    assert len(list(whole)) == 3
    assert not whole.met
