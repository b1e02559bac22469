"""What an audit reads from a real broker: up to given ends, past what retention took, not past an open transaction."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.audit.facts import Number
from reconsume.sidecar.audit.reader import AuditReader
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import Span
from tests.conftest import MakeTopic
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import Out, produce


def values(reader: AuditReader, place: Number, begin: int, end: int) -> list[bytes | None]:
    return [row.value for row in reader.read({place: Span(begin, end)})]


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
    with AuditReader(properties, "audit") as reader:
        assert values(reader, place, 3, 6) == [b"3", b"4", b"5"]
        assert values(reader, place, 6, 6) == []


def test_a_partition_that_was_read_to_its_end_is_read_on(properties: dict[str, str], make_topic: MakeTopic) -> None:
    """The first one ends before the other, and rests meanwhile."""
    topic = make_topic(2)
    bootstrap = properties["bootstrap.servers"]
    produce(bootstrap, topic, [Out(b"%d" % number, partition=number % 2) for number in range(20_000)])
    first, other = (topic, 0), (topic, 1)
    with AuditReader(properties, "audit", patience=10.0) as reader:
        assert len(list(reader.read({first: Span(0, 1), other: Span(0, 10_000)}))) == 10_001
        assert values(reader, first, 1, 3) == [b"2", b"4"]
        assert reader.stuck == {}


def test_only_what_is_wanted_is_taken(properties: dict[str, str], place: Number) -> None:
    with AuditReader(properties, "audit") as reader:
        found = reader.read({place: Span(0, 10)}, {place: iter([2, 3, 7, 99])})
        assert [row.value for row in found] == [b"2", b"3", b"7"]


def test_reading_goes_on_where_retention_has_stopped_and_says_so(properties: dict[str, str], place: Number) -> None:
    admin = AdminClient({**properties})
    for future in admin.delete_records([TopicPartition(*place, 4)]).values():
        future.result(20)
    with AuditReader(properties, "audit") as reader:
        assert values(reader, place, 0, 6) == [b"4", b"5"]
        assert reader.overtaken == {place: 4}


def test_what_an_open_transaction_holds_back_is_named_and_not_waited_for_for_ever(
    properties: dict[str, str], place: Number
) -> None:
    producer = Producer({**properties, "transactional.id": f"open-{place[0]}"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(place[0], b"open", partition=0)
    assert producer.flush(20) == 0
    with AuditReader(properties, "audit", patience=2.0) as reader:
        assert Cluster(properties).spans([place], committed=False)[place].end == 11
        assert values(reader, place, 0, 11)[-1] == b"9"
        assert reader.stuck == {place: 10}
    producer.abort_transaction(20)


def test_records_from_a_time_on_are_found_and_none_is_the_end(properties: dict[str, str], place: Number) -> None:
    cluster = Cluster(properties)
    spans = cluster.spans([place], committed=False)
    assert cluster.spans_since(spans, None) == {place: (0, 10)}
    assert cluster.spans_since(spans, 1) == {place: (0, 10)}
    assert cluster.spans_since(spans, 2**42) == {place: (10, 10)}
