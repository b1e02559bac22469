"""What the committed progress says of a transaction in doubt."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sidecar.core.commit_batch import CommitBatch, PartitionCommit, SettledRecord
from sidecar.core.progress import Progress
from sidecar.core.record import Partition
from sidecar.kafka.committer.unknown_outcome import result_from_progress
from tests.sim.samples import life, record
from topics.retry_headers import RetryState
from topics.retry_order import Order
from topics.transitions import Commit

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


@pytest.mark.parametrize("state", [life(order=Order(9)), None], ids=["a copy", "one with broken headers"])
@pytest.mark.parametrize(
    ("found", "done"),
    [
        (Progress(12, last_at_ms=READ_AT - 500), False),  # of a former log, and as young as a queue's may be
        (Progress(12, last_at_ms=READ_AT + 500), False),
        (Progress(12, last_at_ms=READ_AT), True),
        (Progress(12), True),
        (Progress(2, last_at_ms=READ_AT), False),
    ],
)
def test_progress_of_a_queue_is_of_its_log_if_it_says_the_time_that_was_sent(
    found: Progress, done: bool, state: RetryState | None
) -> None:
    """That time lies before the records that were read since the last look at the log (found by a story)."""
    queued = SettledRecord(record(2, source=QUEUE, timestamp=READ_AT + 50, life=state), Commit(None), ())
    sent = PartitionCommit(1, Progress(1, last_at_ms=READ_AT), under=Partition("orders", 1))
    batch = CommitBatch((queued,), {QUEUE: sent})
    assert (result_from_progress(batch, {QUEUE: found}) is not None) == done
