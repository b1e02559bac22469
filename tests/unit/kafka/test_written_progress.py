"""Progress as a committer writes it: shorter where Kafka wants it, and still proof of its own transaction."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from zlib import crc32

import pytest
from confluent_kafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.commit_batch import CommitBatch, PartitionCommit
from reconsume.sidecar.core.offset_ranges import NONE, OffsetRanges
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_bounds import LONGEST, SPARE
from reconsume.sidecar.core.progress_codec import Length
from reconsume.sidecar.core.progress_stamp import decode_at, encode_kept_at
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.committer.unknown_outcome import is_written
from reconsume.sidecar.kafka.committer.written_progress import WrittenProgress

SOURCE = Partition("orders", 0)


def batch(*done: int, kept: Iterable[int] = ()) -> CommitBatch:
    return CommitBatch((), {SOURCE: PartitionCommit(1, Progress(7, frozenset(done)), OffsetRanges.of(kept))})


def written(progress: WrittenProgress, *done: int) -> TopicPartition:
    [place] = progress.offsets(batch(*done))
    return place


def test_progress_carries_its_place_and_no_topic_id() -> None:
    """Given a topic that was created again, then an owner that took no note of it does its successor no harm."""
    assert (written(WrittenProgress()).metadata or "").endswith(f".0-7-{crc32(b'orders'):08x}")


def test_refused_metadata_is_shorter_at_each_try_until_nothing_is_left_to_leave_out() -> None:
    progress, far = WrittenProgress(), range(9, 16_000, 7)
    lengths = [len(written(progress, *far).metadata or "")]
    while progress.shorten():
        lengths.append(len(written(progress, *far).metadata or ""))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 0
    assert len(lengths) < 40


def test_a_done_set_that_was_cut_alike_in_two_batches_is_proof_of_its_own_batch_alone() -> None:
    progress = WrittenProgress(140)
    scattered = Random(1).sample(range(9, 9_000), 3_000)
    before = written(progress, *scattered)
    after = written(progress, *scattered, 9_001)
    said = [decode_at(SOURCE, place.offset, place.metadata) for place in (before, after)]
    assert said[0] == said[1], "what the cut sets say is the same"
    assert not is_written([before], progress.last)
    assert is_written([after], progress.last)


@pytest.mark.parametrize("count", [3_000, 30_000])
def test_metadata_that_was_cut_carries_a_part_of_its_own_at_any_limit(count: int) -> None:
    """Given a done set that is longer than any that is written, at the brokers' usual limit too, then each batch is
    told apart: one whose transaction was aborted counted as committed, and its dead letter was lost."""
    progress = WrittenProgress(500 if count < 10_000 else LONGEST)
    scattered = Random(1).sample(range(20_000, 20_000 + 9 * count), count)
    before = written(progress, *scattered)
    after = written(progress, *scattered, 20_000 + 10 * count)
    assert len(after.metadata or "") <= progress.most
    assert not is_written([before], progress.last)
    assert is_written([after], progress.last)


def test_counted_attempts_are_named_first_where_the_brokers_take_little() -> None:
    progress, done = WrittenProgress(160), Random(1).sample(range(9, 9_000), 3_000)
    [place] = progress.offsets(batch(*done, kept=done[:8]))
    found = decode_at(SOURCE, place.offset, place.metadata).done
    assert set(done[:8]) <= found < set(done)
    assert not progress.too_long


def test_progress_that_has_no_room_for_the_counted_attempts_is_not_written() -> None:
    progress, done = WrittenProgress(160), Random(1).sample(range(9, 9_000), 3_000)
    assert progress.offsets(batch(*done, kept=done[:800])) == []
    assert progress.too_long == {SOURCE}
    while progress.too_long:
        place = progress.offsets(batch(*done, kept=done[:800]))
    assert len(place[0].metadata or "") > progress.most, "longer ones are tried: the brokers may take more by now"
    assert len(written(progress, *done).metadata or "") <= progress.most, "but not for what can be shorter"
    progress.offsets(batch(*done, kept=done[:800]))
    assert progress.confirm(), "and if they do, for all"


@given(st.integers(100, 2_900), st.lists(st.sets(st.integers(8, 6_000), max_size=2_000), min_size=1, max_size=30))
def test_after_a_few_refusals_nothing_is_refused_any_more_and_what_must_be_written_is_if_it_fits(
    limit: int, sets: list[set[int]]
) -> None:
    progress, refusals = WrittenProgress(), 0
    for done in sets:
        for kept in ((), done):
            while True:
                places = progress.offsets(batch(*done, kept=kept))
                if not places or len(places[0].metadata or "") <= limit:
                    break
                refusals += 1
                assert progress.shorten()
            if places:
                progress.confirm()
            else:
                whole = encode_kept_at(SOURCE, Progress(7, frozenset(done)), NONE, Length(9_999, 9_999, SPARE))
                assert len(whole or "") + 9 > limit, "it has no room"
    assert refusals < 40


def test_metadata_that_was_left_out_is_no_proof() -> None:
    progress = WrittenProgress(3)
    place = written(progress, 8)
    assert place.metadata == ""
    assert not is_written([place], progress.last)
    assert WrittenProgress().most == LONGEST
