"""What the committer makes of a batch that Kafka refuses without saying which record it is about."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import pytest
from confluent_kafka import KafkaError

from reconsume.sidecar.core.commit_batch import CommitBatch, CommitResult, PartitionCommit, Refusal, SettledRecord
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import LONGEST, decode
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.sidecar.kafka.committer.client_reports import Throttle
from reconsume.sidecar.kafka.committer.committer import UNNAMED, Committer, written_progress
from reconsume.sidecar.kafka.committer.transaction_outcome import Aborted
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.membership import Membership
from reconsume.topics.transitions import Commit
from tests.sim.samples import record

SOURCE = Partition("orders", 0)
SECONDS = 20.0
OTHER = Partition("orders", 1)
INVALID = KafkaError(KafkaError.INVALID_RECORD)
NOWHERE: Mapping[str, object] = {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "t", "group.id": "g"}


class Refusing:
    """In the place of the supply and its producer: each transaction is aborted, and no record is named."""

    def __init__(self, topics: frozenset[str] | None, error: KafkaError = INVALID) -> None:
        self.last_error = ""
        self.throttle = Throttle()
        self.partitions: Mapping[str, int] = {}
        self.tries = 0
        self.most = 50
        self.stop: Any = None
        self._topics, self._error = topics, error

    @property
    def targets(self) -> Refusing:
        """It is its own list of topics."""
        return self

    def usable(self) -> Refusing:
        return self

    def replace(self) -> None:
        """There is always one."""

    def missing_targets(self, entries: Sequence[SettledRecord]) -> tuple[Refusal, ...]:
        return ()

    def adapt(self, aborted: Aborted) -> bool:
        return False

    def look_up_unlisted(self, entries: Sequence[SettledRecord]) -> bool:
        return False

    def answers(self) -> bool:
        return self._topics is not None

    def warn(self, event: str, text: str, *args: object, about: object = ()) -> None:
        self.last_error = text % args

    def commit(
        self, entries: object, offsets: object, metadata: object, partitions: Mapping[str, int], notes: object = ()
    ) -> None:
        self.tries += 1
        if self.tries >= self.most:
            self.stop()
        raise Aborted(self._error, (), producer_unusable=False)


def settled(
    supply: Refusing,
    entries: int,
    *others: Partition,
    long: Partition | None = None,
    padded: bool = False,
) -> CommitResult:
    """What comes of a batch of so many entries, with the progress of their partition and of others.

    `long`: the partition whose progress has most to say.
    """
    assignment: Any = Assignment(None, start_at="earliest", lock_timeout=1.0)  # type: ignore[arg-type]  # tells nobody
    assignment.group.current = Membership(None, dict.fromkeys((SOURCE, *others), 1))
    results: SimpleQueue[CommitResult] = SimpleQueue()
    committer = Committer(NOWHERE, NOWHERE, assignment, results.put, lambda label, seconds: None, CredentialRegistry())
    committer._supply = supply  # type: ignore[assignment]
    supply.stop = committer.stop
    batch = tuple(SettledRecord(record(offset=offset), Commit(None), ()) for offset in range(entries))
    committer.start()
    done = {source: {entries + 1} if source == long else set[int]() for source in (SOURCE, *others)}
    commits = {source: PartitionCommit(1, Progress(entries, offsets)) for source, offsets in done.items()}
    committer.submit(CommitBatch(batch, commits, padded=padded))
    result = results.get(timeout=SECONDS)
    committer.stop()
    committer.join(SECONDS)
    assert not committer.is_alive()
    return result


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def test_a_batch_that_is_refused_three_times_without_a_name_comes_back_to_be_split() -> None:
    supply = Refusing(frozenset({"orders"}))
    result = settled(supply, 2)
    assert (result.apart, result.committed, len(result.again), result.refused) == (True, False, 2, ())
    assert supply.tries == UNNAMED


def test_a_record_that_is_refused_so_by_itself_is_held_with_kafkas_reason() -> None:
    result = settled(Refusing(frozenset({"orders"})), 1)
    (refusal,) = result.refused
    assert (refusal.about, result.again, result.apart) == ("record", (), False)
    assert refusal.reason


def test_while_the_cluster_does_not_answer_no_record_is_blamed() -> None:
    supply = Refusing(None)
    result = settled(supply, 1)
    assert (result.apart, result.refused, len(result.again)) == (False, (), 1)
    assert supply.tries == supply.most


NAMED = "Failed to commit offsets to transaction on broker b:1/0: orders((null))[1](Broker: {}) (after 5ms)"


@pytest.mark.parametrize("entries", [0, 1, 3])
def test_progress_that_kafka_refuses_by_name_comes_back_at_once(entries: int) -> None:
    text = NAMED.format("Topic authorization failed")
    supply = Refusing(frozenset(), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, text))
    result = settled(supply, entries, OTHER)
    assert dict(result.unwritable) == {OTHER: text}
    assert (supply.tries, len(result.again), result.refused, result.apart) == (1, entries, (), False)


def test_progress_of_one_partition_that_is_refused_without_a_name_is_this_partitions() -> None:
    supply = Refusing(frozenset({"orders"}))
    result = settled(supply, 0)
    assert (list(result.unwritable), result.apart, supply.tries) == ([SOURCE], False, UNNAMED)


def test_progress_of_many_partitions_that_is_refused_without_a_name_comes_back_to_be_split() -> None:
    result = settled(Refusing(frozenset({"orders"})), 0, OTHER)
    assert (result.unwritable, result.apart) == ({}, True)


def test_a_refused_member_is_no_refused_partition_although_the_client_names_all() -> None:
    assert not Aborted(KafkaError(KafkaError.UNKNOWN_MEMBER_ID, NAMED), (), producer_unusable=False).refused_offsets


TOO_LONG = KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE, NAMED.format("Offset metadata string too large"))


def test_of_metadata_that_the_brokers_find_too_long_the_longest_is_kept_apart() -> None:
    """The client names every partition of the batch, and Kafka none."""
    supply = Refusing(frozenset({"orders"}), TOO_LONG)
    result = settled(supply, 1, OTHER, long=OTHER)
    assert (supply.tries, len(result.again), list(result.unwritable)) == (1, 1, [OTHER])


def test_a_padded_position_that_is_too_long_says_that_the_brokers_lack_room() -> None:
    supply = Refusing(frozenset({"orders"}), TOO_LONG)
    result = settled(supply, 0, padded=True)
    assert (supply.tries, result.too_long, result.committed, result.unwritable) == (1, True, False, {})


def test_a_padded_batch_fills_the_position_up_to_what_each_broker_must_take() -> None:
    batch = CommitBatch((), {SOURCE: PartitionCommit(1, Progress(7, {9}, clean=True))}, padded=True)
    offset, text = written_progress(batch)[SOURCE]
    assert (offset, len(text)) == (7, LONGEST)
    assert decode(SOURCE, 7, text) == Progress(7, {9}, clean=True)
