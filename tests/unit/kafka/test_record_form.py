"""What is no record's fault is mended by the next producer, and what nobody knows is blamed on no record."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, Producer

from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord
from reconsume.sidecar.kafka.client_config import producer_config, teller_config
from reconsume.sidecar.kafka.committer.replaceable_producer import FIRST_STEP, LEAST_BATCH, Change, RecordForm
from reconsume.sidecar.kafka.committer.transaction_outcome import refusal_of
from reconsume.topics.transition_records import Copy
from reconsume.topics.transitions import Commit
from tests.sim.samples import record

TOO_LARGE = KafkaError.MSG_SIZE_TOO_LARGE


def form(**user: str) -> RecordForm:
    return RecordForm(producer_config({"bootstrap.servers": "b:1", **user}, "t", "c"))


def refused(size: int) -> Refusal:
    entry = SettledRecord(record(0), Commit(None), (Copy("dead", None, b"x" * size, []),))
    return Refusal(entry, "record", "too large", "dead[0]", too_large=True)


def test_small_copies_that_are_refused_together_go_in_smaller_batches_and_then_packed() -> None:
    shape, events = form(), []
    while (change := shape.adapt(TOO_LARGE, (refused(100), refused(200)))) is not None:
        events.append(change)
    assert events == [Change.SMALLER] * 7 + [Change.PACKED]
    assert shape.applied({})["batch.size"] == LEAST_BATCH


def test_a_copy_that_is_larger_than_a_batch_is_packed_at_once() -> None:
    shape = form()
    assert shape.adapt(TOO_LARGE, (refused(3_000_000),)) is Change.PACKED
    assert shape.applied({"a": 1}) == {"a": 1, "compression.type": "zstd"}
    assert shape.adapt(TOO_LARGE, (refused(3_000_000),)) is None, "now the record alone is to blame"


@pytest.mark.parametrize("name", ["compression.type", "compression.codec"])
def test_a_users_own_compression_is_kept(name: str) -> None:
    assert form(**{name: "none"}).adapt(TOO_LARGE, (refused(3_000_000),)) is None


def test_a_clock_that_is_ahead_gives_earlier_times_until_it_is_put_back() -> None:
    ahead = [5 * FIRST_STEP / 1_000]
    shape = RecordForm({}, lambda: time.time() + ahead[0])
    assert shape.timestamp() == 0, "the client's own"
    for _ in range(4):
        assert shape.adapt(KafkaError.INVALID_TIMESTAMP, ()) is Change.EARLIER
    assert abs(shape.timestamp() - (time.time() * 1_000 - 3 * FIRST_STEP)) < 5_000
    ahead[0] = 0.0
    assert shape.timestamp() == 0


def test_times_are_put_back_by_a_bounded_amount() -> None:
    shape = form()
    steps = 0
    while shape.adapt(KafkaError.INVALID_TIMESTAMP, ()):
        steps += 1
    assert steps < 14


@pytest.mark.parametrize(
    "name",
    [
        *("OUT_OF_ORDER_SEQUENCE_NUMBER", "_GAPLESS_GUARANTEE", "INVALID_PRODUCER_EPOCH", "_PURGE_QUEUE", "_SSL"),
        *("THROTTLING_QUOTA_EXCEEDED", "TRANSACTION_COORDINATOR_FENCED", "UNKNOWN", "CONCURRENT_TRANSACTIONS"),
    ],
)
def test_an_error_that_is_not_known_to_be_about_a_record_names_none(name: str) -> None:
    entry = SettledRecord(record(0), Commit(None), ())
    assert refusal_of(entry, KafkaError(getattr(KafkaError, name)), "dead[0]") is None


def test_a_users_limit_of_the_client_holds_no_copy() -> None:
    """The topic's limit decides: this one is on bytes before they are packed."""
    config = producer_config({"bootstrap.servers": "b:1", "message.max.bytes": "1000"}, "t", "c")
    assert config["message.max.bytes"] == 100_000_000


@pytest.mark.parametrize("kbytes", ["1", "1024", "2097151"])
def test_a_users_small_queue_of_the_client_takes_each_record_that_a_topic_may_take(kbytes: str) -> None:
    """It was full for ever: the copy was tried again and again, its partition stood, and no line told of it."""
    given = {"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.kbytes": kbytes}
    for config in (producer_config(given, "t", "c"), teller_config(given, "c")):
        size = int(str(config["queue.buffering.max.kbytes"])) * 1024
        assert size >= max(int(kbytes) * 1024, int(str(config.get("message.max.bytes", 1_000_000))))
    producer = Producer(config | {"log_level": 0})
    producer.produce("orders", b"x" * 900_000)
    producer.purge()
    producer.flush(1)
