"""What the committed progress says of a transaction in doubt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import CommitBatch, PartitionCommit, SettledRecord
from reconsume.sidecar.core.progress import LogId, Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.committer import committer
from reconsume.sidecar.kafka.committer.committer import result_from_progress, result_in_doubt
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.retry_order import Order
from reconsume.topics.transitions import Commit
from tests.sim.samples import life, record

LEVEL = Partition("billing-RETRY-5s", 1)
QUEUE = Partition("billing-ORDERED-orders", 1)
READ_AT = 1_000_000


def entry(offset: int, at: int) -> SettledRecord:
    """A record of a level, and its decision."""
    return SettledRecord(replace(record(offset=offset), source=LEVEL, timestamp=at), Commit(None), ())


def doubt(*entries: SettledRecord) -> CommitBatch:
    """A batch of which nobody knows what became."""
    return CommitBatch(entries, {LEVEL: PartitionCommit(1, Progress(50, last_at_ms=READ_AT + 50))})


def test_progress_that_was_made_in_a_former_log_of_the_name_covers_nothing_of_this_one() -> None:
    """The level was deleted and created again, and a former owner committed its place in the old one meanwhile."""
    batch = doubt(entry(2, READ_AT + 1), entry(3, READ_AT + 9))
    assert result_from_progress(batch, {LEVEL: Progress(12, last_at_ms=READ_AT)}) is None


def test_progress_of_the_same_log_says_which_records_are_done() -> None:
    batch = doubt(entry(2, READ_AT - 1), entry(12, READ_AT), entry(30, READ_AT + 5))
    found = result_from_progress(batch, {LEVEL: Progress(4, frozenset({12}), last_at_ms=READ_AT)})
    assert found is not None
    assert ([one.record.offset for one in found.done], [one.record.offset for one in found.again]) == ([2, 12], [30])


def test_progress_without_a_time_covers_what_its_offsets_say() -> None:
    found = result_from_progress(doubt(entry(2, READ_AT)), {LEVEL: Progress(4)})
    assert found is not None
    assert len(found.done) == 1


FORMER, PRESENT = LogId("cluster", "former"), LogId("cluster", "present")


@pytest.mark.parametrize("state", [life(order=Order(9)), None], ids=["a copy", "one with broken headers"])
@pytest.mark.parametrize(
    ("found", "done"),
    [
        (Progress(12, log=FORMER), False),
        (Progress(12, log=PRESENT), True),
        (Progress(12), True),
        (Progress(2, log=PRESENT), False),
    ],
)
def test_progress_that_names_another_log_covers_no_record_of_this_one(
    found: Progress, done: bool, state: RetryState | None
) -> None:
    queued = SettledRecord(record(2, source=QUEUE, timestamp=READ_AT + 50, life=state), Commit(None), ())
    sent = PartitionCommit(1, Progress(1, log=PRESENT), under=Partition("orders", 1))
    batch = CommitBatch((queued,), {QUEUE: sent})
    assert (result_from_progress(batch, {QUEUE: found}) is not None) == done


# --- when Kafka's word is believed ------------------------------------------------------------------------------------

BEFORE, AFTER = (4, "before"), (50, "after")
"""Offset and metadata that the group had before the transaction, and those of the transaction."""
AWAY = KafkaError(KafkaError.NOT_COORDINATOR)


class Waits:
    """A request to stop that never comes; each wait for it takes its time on this clock alone."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float) -> None:
        self.seconds += timeout

    def monotonic(self) -> float:
        return self.seconds


def is_committed(monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, str] | KafkaError) -> bool | None:
    """Return whether a transaction counts as committed when Kafka answers so, the last time again and again."""
    left = list(answers)

    def committed(topic_partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, KafkaError):
            raise KafkaException(answer)
        return [TopicPartition(one.topic, one.partition, *answer) for one in topic_partitions]

    reader = SimpleNamespace(committed=committed, close=lambda: None)
    monkeypatch.setattr(committer, "Consumer", lambda _config: reader)
    credentials = SimpleNamespace(pending=None, newest=lambda config: config)
    supply: Any = SimpleNamespace(credentials=credentials, warn=lambda *_: None)
    waits: Any = Waits()
    monkeypatch.setattr(committer, "time", waits)
    result = result_in_doubt(doubt(entry(12, READ_AT)), {LEVEL: AFTER}, supply, {}, waits)
    return None if result is None else result.committed


@pytest.mark.parametrize(
    ("answers", "happened"),
    [
        ((AFTER, BEFORE), True),  # believed at once: the second is never heard
        ((*[BEFORE] * 19, AFTER), True),  # the coordinator has just taken over, and its watermark lags (Kafka 4)
        ((AWAY, BEFORE, AFTER), True),
        ((*[BEFORE] * 19, AWAY, *[BEFORE] * 19, AFTER), True),  # it moves: what the one before it said counts no more
        ((BEFORE,), None),
    ],
)
def test_that_a_transaction_did_not_happen_is_believed_only_when_kafka_goes_on_saying_so(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[tuple[int, str] | KafkaError, ...], happened: bool | None
) -> None:
    assert is_committed(monkeypatch, *answers) is happened
