"""What an audit reads from a real broker: up to given ends, past what retention took, not past an open transaction."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.audit.facts import Number
from reconsume.sidecar.audit.reader import AuditKafka, Offsets, Wanted
from tests.conftest import MakeTopic
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import Out, produce


def values(reader: AuditKafka, starts: Offsets, ends: Offsets, wanted: Wanted | None = None) -> list[bytes | None]:
    return [row.value for row in reader.read(starts, ends, wanted)]


@pytest.fixture
def place(kafka: Broker, make_topic: MakeTopic) -> Number:
    """A partition with ten records."""
    topic = make_topic(1)
    produce(kafka.bootstrap, topic, [Out(b"%d" % number) for number in range(10)])
    return topic, 0


@pytest.fixture
def properties(kafka: Broker) -> dict[str, str]:
    return {"bootstrap.servers": kafka.bootstrap}


def test_records_are_read_between_two_offsets(properties: dict[str, str], place: Number) -> None:
    with AuditKafka(properties, "audit") as reader:
        assert reader.marks([place])[place] == (0, 10)
        assert values(reader, {place: 3}, {place: 6}) == [b"3", b"4", b"5"]
        assert values(reader, {place: 6}, {place: 6}) == []


def test_a_partition_that_was_read_to_its_end_is_read_on(properties: dict[str, str], make_topic: MakeTopic) -> None:
    """The first one ends before the other, and rests meanwhile."""
    topic = make_topic(2)
    bootstrap = properties["bootstrap.servers"]
    produce(bootstrap, topic, [Out(b"%d" % number, partition=number % 2) for number in range(20_000)])
    first, other = (topic, 0), (topic, 1)
    with AuditKafka(properties, "audit", patience=10.0) as reader:
        ends = {first: 1, other: 10_000}
        assert len(values(reader, {first: 0, other: 0}, ends)) == 10_001
        assert values(reader, ends, {first: 3, other: 10_000}) == [b"2", b"4"]
        assert reader.stuck == {}


def test_only_what_is_wanted_is_taken(properties: dict[str, str], place: Number) -> None:
    with AuditKafka(properties, "audit") as reader:
        assert values(reader, {place: 0}, {place: 10}, {place: iter([2, 3, 7, 99])}) == [b"2", b"3", b"7"]


def test_reading_goes_on_where_retention_has_stopped_and_says_so(properties: dict[str, str], place: Number) -> None:
    admin = AdminClient({**properties})
    for future in admin.delete_records([TopicPartition(*place, 4)]).values():
        future.result(20)
    with AuditKafka(properties, "audit") as reader:
        assert values(reader, {place: 0}, {place: 6}) == [b"4", b"5"]
        assert reader.overtaken == {place: 4}


def test_what_an_open_transaction_holds_back_is_named_and_not_waited_for_for_ever(
    properties: dict[str, str], place: Number
) -> None:
    producer = Producer({**properties, "transactional.id": f"open-{place[0]}"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(place[0], b"open", partition=0)
    assert producer.flush(20) == 0
    with AuditKafka(properties, "audit", patience=2.0) as reader:
        end = reader.marks([place])[place].end
        assert end == 11
        assert values(reader, {place: 0}, {place: end})[-1] == b"9"
        assert reader.stuck == {place: 10}
    producer.abort_transaction(20)


def test_records_from_a_time_on_are_found_and_none_is_the_end(properties: dict[str, str], place: Number) -> None:
    with AuditKafka(properties, "audit") as reader:
        marks = reader.marks([place])
        assert reader.starts(marks, None) == {place: 0}
        assert reader.starts(marks, 1) == {place: 0}
        assert reader.starts(marks, 2**42) == {place: 10}
