"""The gated source against a broker, without Spark: what is due, what is read, what is refused."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.errors import BrokerError
from reconsume.spark.consumer.brokers import LevelTopicError, Lookup, Row
from reconsume.spark.consumer.offsets import PartitionName
from reconsume.spark.consumer.record import REPLACED
from reconsume.spark.consumer.source import NEEDED, LevelsReader, Options, options_of
from reconsume.spark.consumer.start import Query
from reconsume.topics.client_rules import NATIVE
from reconsume.topics.names import Names
from tests.conftest import MakeTopic
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.raw_producer import produce_raw
from tests.support.kafka.topic_io import SECONDS, Out, create_topic, delete_topics, produce

HOUR = 3_600_000
OWN = (("a", b"1"), ("b", None), ("a", b"\xff"))


def now() -> int:
    return time.time_ns() // 1_000_000


FREE: Any = SimpleNamespace(hold=lambda: None, withdraw=lambda: None)
"""A claim of a group that nobody else reads."""


def options(kafka: Broker, levels: dict[str, int], most: int = 1_000, tasks: int = 2) -> Options:
    query = Query(Names(f"gate-{uuid.uuid4().hex[:8]}"), "ship", ())
    return Options({"bootstrap.servers": kafka.bootstrap}, levels, query, most, tasks)


@pytest.fixture
def level(make_topic: MakeTopic) -> str:
    """A level topic of one partition."""
    return make_topic(message_timestamp_type="LogAppendTime")


def reader_of(kafka: Broker, level: str, delay: int, most: int = 1_000) -> LevelsReader:
    return LevelsReader(options(kafka, {level: delay}, most), claim=FREE)


def next_of(offset: dict[str, Any], level: str) -> int:
    found: int = offset["next"][level]["0"]
    return found


def read_all(reader: LevelsReader, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
    return [row for part in reader.partitions(start, end) for row in reader.read(part)]


@contextmanager
def transaction(kafka: Broker, topic: str, values: list[bytes]) -> Iterator[Producer]:
    """An open transaction with records that have reached the topic."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.flush(SECONDS)
    yield producer


def test_a_record_is_passed_on_when_its_level_is_over_and_not_a_moment_sooner(kafka: Broker, level: str) -> None:
    delay = 1_500
    reader = reader_of(kafka, level, delay)
    start = reader.initialOffset()
    produce(kafka.bootstrap, level, [b"one"])
    # The next comes when the first is due: the gate must part them.
    until(lambda: next_of(reader.latestOffset(), level) == 1, SECONDS, "the first is due")
    produce(kafka.bootstrap, level, [b"two"])
    first = reader.latestOffset()
    assert next_of(first, level) == 1
    until(lambda: next_of(reader.latestOffset(), level) == 2, SECONDS, "the second is due")
    passed = now()
    rows = read_all(reader, start, reader.latestOffset())
    assert [(row[2], row[5]) for row in rows] == [(0, b"one"), (1, b"two")]
    assert passed >= rows[1][3] + delay


def test_a_record_that_comes_between_the_two_questions_is_not_passed_on(kafka: Broker, level: str) -> None:
    asked: list[str] = []

    class Between(Lookup):
        """A record is written after the first of the two questions, whichever that is."""

        def ends(self, places: Any) -> dict[PartitionName, int]:
            return self._then_write(super().ends(places))

        def cuts(self, places: Any, now: int) -> dict[PartitionName, int]:
            return self._then_write(super().cuts(places, now))

        def _then_write(self, answer: dict[PartitionName, int]) -> dict[PartitionName, int]:
            if not asked:
                produce(kafka.bootstrap, level, [b"just now"])
            asked.append("")
            return answer

    given = options(kafka, {level: HOUR})
    reader = LevelsReader(given, Between(given.client, given.levels), claim=FREE)
    asked.append("before a batch")
    reader.initialOffset()
    asked.clear()
    assert next_of(reader.latestOffset(), level) == 0
    assert len(asked) == 2


def test_nothing_of_an_open_transaction_is_passed_on_and_of_an_aborted_one_nothing_is_read(
    kafka: Broker, level: str
) -> None:
    reader = reader_of(kafka, level, 1)
    start = reader.initialOffset()
    produce(kafka.bootstrap, level, [Out(b"committed", b"k", OWN)])
    with transaction(kafka, level, [b"open", b"open"]) as producer:
        written = now()
        until(lambda: now() > written + 10, SECONDS, "all would be due")
        assert next_of(reader.latestOffset(), level) == 1
        producer.abort_transaction(SECONDS)
    until(lambda: next_of(reader.latestOffset(), level) == 4, SECONDS, "the abort is passed")
    end = reader.latestOffset()
    (row,) = read_all(reader, start, end)  # of which the last is a marker
    produce(kafka.bootstrap, level, [b"behind the range"])
    assert read_all(reader, start, end) == [row]
    assert (*row[:3], *row[4:]) == (level, 0, 0, b"k", b"committed", list(OWN))


def test_a_batch_is_bounded_and_a_new_reader_goes_on_where_spark_says(kafka: Broker, level: str) -> None:
    produce(kafka.bootstrap, level, [b"%d" % number for number in range(10)])
    unbound = reader_of(kafka, level, 1)
    until(lambda: next_of(unbound.latestOffset(), level) == 10, SECONDS, "all are due")
    reader = reader_of(kafka, level, 1, most=4)
    start = reader.initialOffset()
    assert next_of(reader.latestOffset(), level) == 4
    end = json.loads(json.dumps(reader.latestOffset()))
    assert next_of(end, level) == 8
    after = reader_of(kafka, level, 1, most=4)
    assert after.partitions(end, end) == []
    last = after.latestOffset()
    assert next_of(last, level) == 10
    read = [row[5] for row in read_all(reader, start, end) + read_all(after, end, last)]
    assert read == [b"%d" % number for number in range(10)]


def test_where_spark_says_how_far_it_is_and_how_much_it_takes_that_decides(kafka: Broker, level: str) -> None:
    """As Spark 4.2 and newer call it: a batch that was not begun, a new reader, and a query that takes all and ends."""
    produce(kafka.bootstrap, level, [b"%d" % number for number in range(10)])
    unbound = reader_of(kafka, level, 1)
    until(lambda: next_of(unbound.latestOffset(), level) == 10, SECONDS, "all are due")
    bound: Any = SimpleNamespace(max_rows=4)
    unlimited: Any = SimpleNamespace()
    reader = reader_of(kafka, level, 1, most=4)
    start = reader.initialOffset()
    ends = [reader.latestOffset(start, bound) for _ in range(2)]
    assert [next_of(end, level) for end in ends] == [4, 4]
    after = reader_of(kafka, level, 1, most=4)
    assert next_of(after.latestOffset(ends[0], bound), level) == 8
    assert next_of(after.latestOffset(ends[0], unlimited), level) == 10


def test_what_retention_took_is_dropped_and_counted_in_the_offsets(
    kafka: Broker, level: str, capfd: pytest.CaptureFixture[str]
) -> None:
    produce(kafka.bootstrap, level, [b"%d" % number for number in range(10)])
    reader = reader_of(kafka, level, 1)
    start = reader.initialOffset()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    place = TopicPartition(level, 0, 6)
    admin.delete_records([place])[place].result(SECONDS)
    end = until(lambda: due if next_of(due := reader.latestOffset(), level) == 10 else None, SECONDS, "all are due")
    assert end is not None
    assert end["dropped"] == 6
    assert "retention took 6 offsets" in capfd.readouterr().err
    assert [row[2] for row in read_all(reader, start, end)] == [6, 7, 8, 9]
    after = reader_of(kafka, level, 1)
    after.partitions(end, end)
    assert after.latestOffset() == end


def test_a_first_batch_begins_where_its_end_was_counted_from(kafka: Broker, level: str) -> None:
    produce(kafka.bootstrap, level, [b"%d" % number for number in range(10)])
    unbound = reader_of(kafka, level, 1)
    until(lambda: next_of(unbound.latestOffset(), level) == 10, SECONDS, "all are due")
    reader = reader_of(kafka, level, 1, most=4)
    end = reader.latestOffset()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    place = TopicPartition(level, 0, 6)
    admin.delete_records([place])[place].result(SECONDS)
    assert next_of(reader.initialOffset(), level) == 0
    assert read_all(reader, reader.initialOffset(), end) == []
    assert {**reader.latestOffset(), "ids": {}} == {"next": {level: {"0": 10}}, "dropped": 6, "ids": {}}


def test_a_range_that_is_deleted_under_the_task_is_an_error(kafka: Broker, level: str) -> None:
    produce(kafka.bootstrap, level, [b"%d" % number for number in range(10)])
    reader = reader_of(kafka, level, 1)
    start = reader.initialOffset()
    until(lambda: next_of(reader.latestOffset(), level) == 10, SECONDS, "all are due")
    (part,) = reader.partitions(start, reader.latestOffset())
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    place = TopicPartition(level, 0, 6)
    admin.delete_records([place])[place].result(SECONDS)
    with pytest.raises(BrokerError, match="deleted"):
        list(reader.read(part))


def test_a_topic_that_is_not_stamped_by_its_broker_is_refused(kafka: Broker, level: str, topic: str) -> None:
    with pytest.raises(LevelTopicError, match=f"must be LogAppendTime, and it is not for {topic}:"):
        LevelsReader(options(kafka, {level: 1, topic: 1}), claim=FREE).latestOffset()


def test_a_topic_that_was_made_anew_and_has_grown_past_our_place_is_read_from_its_first_record(
    kafka: Broker, level: str, capfd: pytest.CaptureFixture[str]
) -> None:
    produce(kafka.bootstrap, level, [b"old"] * 3)
    reader = reader_of(kafka, level, 1)
    start = reader.initialOffset()
    until(lambda: next_of(reader.latestOffset(), level) == 3, SECONDS, "all are due")
    before = json.loads(json.dumps(reader.latestOffset()))
    delete_topics(kafka.bootstrap, level)
    create_topic(kafka.bootstrap, level, 1, {"message.timestamp.type": "LogAppendTime"})
    produce(kafka.bootstrap, level, [b"%d" % number for number in range(5)])
    again = reader_of(kafka, level, 1)
    assert again.partitions(start, before) == [], "a batch of the old topic that is repeated has nothing to read"
    until(lambda: next_of(again.latestOffset(), level) == 5, SECONDS, "all of the new one are due")
    assert [row[5] for row in read_all(again, before, again.latestOffset())] == [b"0", b"1", b"2", b"3", b"4"]
    assert f"made anew, and read from the first record: {level}" in capfd.readouterr().err


def test_a_log_that_was_cut_is_read_on_at_its_end(kafka: Broker, level: str) -> None:
    reader = reader_of(kafka, level, 1)
    known = {**reader.latestOffset(), "next": {level: {"0": 7}}}
    reader.partitions(known, known)
    assert next_of(reader.latestOffset(), level) == 0


def test_a_missing_level_topic_is_refused(kafka: Broker, level: str) -> None:
    with pytest.raises(LevelTopicError, match="missing level topics: billing-RETRY-7s;"):
        LevelsReader(options(kafka, {level: 1, "billing-RETRY-7s": 7_000}), claim=FREE).initialOffset()


def test_another_level_of_the_group_is_read_from_its_first_record_as_soon_as_it_exists(
    kafka: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    group, stamped = f"levels-{uuid.uuid4().hex[:8]}", {"message.timestamp.type": "LogAppendTime"}
    one, two, wrong = (f"{group}-RETRY-{delay}" for delay in ("1s", "2ms", "3ms"))
    create_topic(kafka.bootstrap, one, config=stamped)
    given = options(kafka, {one: 1_000})._replace(prefixes=(f"{group}-RETRY-",))
    reader = LevelsReader(given, look_every=0, claim=FREE)
    start = reader.latestOffset()
    assert set(start["next"]) == {one}
    for name in ("EVENTS", "60s", "2ms-x"):
        create_topic(kafka.bootstrap, f"{group}-RETRY-{name}", config=stamped)
    create_topic(kafka.bootstrap, wrong)
    create_topic(kafka.bootstrap, two, config=stamped)
    produce(kafka.bootstrap, two, [b"first", b"second"])
    until(lambda: reader.latestOffset()["next"].get(two, {}).get("0") == 2, SECONDS, "the other level is due")
    end = reader.latestOffset()
    assert set(end["next"]) == {one, two}
    assert [row[5] for row in read_all(reader, start, end)] == [b"first", b"second"]
    assert capfd.readouterr().err.count(f"{wrong} is not read") == 1
    produce(kafka.bootstrap, two, [b"third"])
    after = LevelsReader(given, claim=FREE)
    after.partitions(end, end)
    until(lambda: next_of(after.latestOffset(), two) == 3, SECONDS, "a new reader knows it too")
    delete_topics(kafka.bootstrap, two)
    until(lambda: next_of(reader.latestOffset(), two) >= 2, SECONDS, "that it is gone stops nothing")


def test_a_header_key_that_is_not_utf_8_is_read_as_such_after_thousands_of_good_ones(kafka: Broker, level: str) -> None:
    produce(kafka.bootstrap, level, [Out(b"v", None, OWN)] * 3_000)
    produce_raw(kafka.bootstrap, level, 0, b"bad", b"k", [(b"\xff", b"1")])
    reader = reader_of(kafka, level, 1, most=10_000)
    start = reader.initialOffset()
    until(lambda: next_of(reader.latestOffset(), level) == 3_001, SECONDS, "all are due")
    rows = read_all(reader, start, reader.latestOffset())
    assert (rows[-1][5], rows[-1][6]) == (b"bad", [(REPLACED, None)])
    assert {(row[5], tuple(row[6])) for row in rows[:-1]} == {(b"v", OWN)}


GIVEN = {
    "client.bootstrap.servers": "h:1",
    "client.sasl.username": "me",
    "group": "billing",
    "name": "ship",
    "topics": '["orders"]',
    "levels": '{"l": 5}',
}


def test_options_are_read_and_what_is_missing_is_said() -> None:
    query = Query(Names("billing"), "ship", ("orders",))
    read = options_of({**GIVEN, "most": "7"})
    assert read == Options({"bootstrap.servers": "h:1", "sasl.username": "me"}, {"l": 5}, query, 7, 8)
    assert options_of({**GIVEN, "prefixes": '["b-RETRY-"]'}).prefixes == ("b-RETRY-",)
    more = options_of({**GIVEN, "start": "now", "main": '{"orders": {"0": 7}}', "gated": "false"}).query
    assert more == query._replace(start="now", main={("orders", 0): 7}, gated=False)
    for missing in NEEDED:
        with pytest.raises(ValueError, match=f"needs the options .*: {missing} missing"):
            options_of({name: value for name, value in GIVEN.items() if name != missing})
    for wrong in ({"levels": "{}"}, {"most": "0"}, {"tasks": "0"}):
        with pytest.raises(ValueError, match="at least 1"):
            options_of({**GIVEN, **wrong})


@pytest.mark.parametrize("prefix", ["client.", "CLIENT.", "Client."])
@pytest.mark.parametrize("name", sorted(NATIVE))
def test_an_option_that_brings_code_along_is_refused_in_every_spelling(name: str, prefix: str) -> None:
    """Spark hands on what SQL, Scala and Python gave as options, in any case (contract 14.6)."""
    for spelled in (name, name.upper(), f"{name} "):
        with pytest.raises(ValueError, match="may not bring code along"):
            options_of({**GIVEN, f"{prefix}{spelled}": "/tmp/evil"})
