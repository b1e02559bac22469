"""Threads on a real client and broker: one that ends for an odd reason is named, one that waits for Kafka is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from reconsume.sidecar.kafka.client_config import consumer_config, producer_config, reader_config
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.sidecar.kafka.committer.committer import Committer
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.consumer import ConsumerThread
from reconsume.sidecar.observability.thread_watch import ThreadWatch, WatchedThread, log_ends
from tests.integration.kafka.test_consumer import Keeper
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import SECONDS

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


class Parts:
    """Something with threads."""

    def __init__(self, *watched: WatchedThread) -> None:
        self._watched = watched

    def watched(self) -> tuple[WatchedThread, ...]:
        return self._watched


class Refused(Assignment):
    """An assignment in whose callback a call of the client fails, as for a partition that has no leader."""

    def on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.get_watermark_offsets(TopicPartition(f"{partitions[0].topic}-gone", 0), timeout=5.0, cached=False)
        raise AssertionError("the client has answered for a partition that is not there")


@pytest.fixture
def told() -> Iterator[None]:
    """What ends a thread is logged, as in the sidecar."""
    kept = threading.excepthook
    log_ends()
    yield
    threading.excepthook = kept


@pytest.mark.usefixtures("told")
def test_a_consumer_that_ends_by_what_comes_out_of_a_callback_is_named(
    kafka: Broker, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Given an error in `on_assign`, which may come out as something that is no exception, then its end is seen."""
    keeper = Keeper()
    config = consumer_config({"bootstrap.servers": kafka.bootstrap}, group, "test")
    thread = ConsumerThread(config, [topic], keeper, Refused(keeper, start_at="earliest", lock_timeout=1.0), None)
    watch = ThreadWatch(
        [Parts(WatchedThread("consumer-main", thread, lambda: thread.last_poll_at, 30.0, lambda: thread.failure))]
    )
    assert watch.check() == []
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive()
    (problem,) = watch.check()
    assert problem.startswith("thread consumer-main has ended")
    # Clients of earlier tests may say something too, as long as they are being destroyed.
    ends = [record for record in caplog.records if vars(record).get("event") == "thread-ended"]
    assert [record.levelname for record in ends] == ["ERROR"]
    assert "_UNKNOWN_PARTITION" in caplog.text
    assert "Traceback" in caplog.text


def test_a_committer_that_waits_for_kafka_turns_on(group: str) -> None:
    """Given a Kafka that is away for longer than the limit, then nobody is to be blamed but Kafka."""
    assignment = Assignment(Keeper(), start_at="earliest", lock_timeout=1.0)
    committer = Committer(
        producer_config(NOWHERE, group, "test"),
        reader_config(NOWHERE, group, "test"),
        assignment,
        lambda result: None,
        lambda label, seconds: None,
        CredentialRegistry(),
    )
    committer.start()
    begun = committer.turned_at
    assert begun is not None
    turned = until(lambda: (committer.turned_at or 0) > begun + 1.0, SECONDS, "it tries again")
    assert turned
    assert ThreadWatch([Parts(WatchedThread("committer-main", committer, lambda: committer.turned_at))]).check() == []
    committer.stop()
    committer.join(SECONDS)
    assert not committer.is_alive()
    (problem,) = ThreadWatch([Parts(WatchedThread("committer-main", committer))]).check(time.monotonic())
    assert problem == "thread committer-main has ended"
