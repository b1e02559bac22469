"""Progress that the next version may write: what is added is ignored, and what cannot be read is said, not guessed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from reconsume.sidecar.core.partition import AssignedPartition
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import decode, encode, unread
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.delivery.pull.handles import ReceiptHandles
from reconsume.sidecar.delivery.pull.lease_table import HandleStatus
from reconsume.sidecar.kafka.consumer.assignment import Assignment

PART = Progress(
    100, frozenset({101, 7_000}), deaths=2, mark=105, reach=110, width=6, last_at_ms=1_795_391_078_015, cycle=1
)
HERE = Partition("orders", 0)
NEWER = ("rc3..3-100-0a0b0c0d.eJxjAAAAAQAB.2.5.11", "rc10.c", "rc3", "rc1x.eJxjAAAAAQAB", "rc1c.")
FOREIGN = (None, "", "at 12:00 by ann", "{}", "rcc.", "src1c.")


@pytest.mark.parametrize("more", [".", ".8", ".8.x=1.later", "." * 400])
def test_trailing_parts_of_a_newer_version_change_nothing(more: str) -> None:
    written = encode(HERE, PART)
    assert decode(HERE, 100, f"{written}{more}") == decode(HERE, 100, written) == PART
    assert unread(f"{written}{more}") == ""


@pytest.mark.parametrize("metadata", NEWER)
def test_an_unknown_tag_says_where_to_go_on_and_no_more(metadata: str) -> None:
    """A done set of a form that we do not know may name what is not done: that would lose a record."""
    assert decode(HERE, 100, metadata) == Progress(100, ours=False)
    assert "a newer version" in unread(metadata)


@pytest.mark.parametrize("metadata", FOREIGN)
def test_what_was_never_ours_is_no_news(metadata: str | None) -> None:
    """A group that read its topics by another client before has such offsets."""
    assert unread(metadata) == ""


def test_a_done_set_that_cannot_be_read_is_news_too() -> None:
    assert "done set" in unread("rc1..3-100-0a0b0c0d.!!")
    assert "done set" in unread(encode(HERE, PART)[:40])
    assert unread("rc1..3-100-0a0b0c0d") == "", "an empty one is whole"


class Keeper:
    """Takes what it is told."""

    def __init__(self) -> None:
        self.grants: list[AssignedPartition] = []

    def assigned(self, grants: Sequence[AssignedPartition]) -> None:
        self.grants += grants

    def release(self, partitions: Sequence[Partition], done: Callable[[], None]) -> None: ...

    def dropped(self, partitions: Sequence[Partition]) -> None: ...

    def missing(self, topic: str, records: int) -> None: ...


class Client:
    """A client whose group has committed these metadata at offset 100."""

    def __init__(self, *metadata: str) -> None:
        self._metadata = metadata

    def committed(self, places: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        del timeout
        return [TopicPartition(place.topic, place.partition, 100, self._metadata[place.partition]) for place in places]

    def offsets_for_times(self, places: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        """Nothing is younger than what was read, and the log ends behind it."""
        del timeout
        ends = {OFFSET_END: 9_000}
        return [TopicPartition(place.topic, place.partition, ends.get(place.offset, OFFSET_END)) for place in places]

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None: ...

    def resume(self, places: Sequence[TopicPartition]) -> None: ...

    def pause(self, places: Sequence[TopicPartition]) -> None: ...

    def consumer_group_metadata(self) -> Any:
        return object()


def test_a_partition_with_an_unknown_tag_goes_on_at_its_offset_and_is_told_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    keeper = Keeper()
    assignment = Assignment(keeper, start_at="earliest", lock_timeout=1.0)
    with caplog.at_level(logging.WARNING):
        client = cast("Consumer", Client(encode(HERE, PART), NEWER[0]))
        assignment.on_assign(client, [TopicPartition("orders", 0), TopicPartition("orders", 1)])
    assert [grant.progress for grant in keeper.grants] == [PART, Progress(100, ours=False)]
    assert assignment.starts.unread_progress == 1
    (line,) = caplog.records
    assert line.__dict__["event"] == "progress-unread"
    assert "orders[1]" in line.getMessage()


REAL = ReceiptHandles().encode(3, 4711)


@pytest.mark.parametrize(
    "handle", [REAL.replace("h1-", "h2-"), "h2-" + "A" * 90, "h12-" + "A" * 22], ids=["sealed", "long", "h12"]
)
def test_a_handle_of_another_form_is_fenced_as_one_of_another_process(handle: str) -> None:
    """A service that holds it over a roll-out must hear that it came too late, not that it sends rubbish."""
    assert ReceiptHandles().decode(handle) is HandleStatus.FENCED


@pytest.mark.parametrize(
    "handle", ["h2-", "h2-x", "h-" + "A" * 43, "h2-" + "!" * 43, "hh2-" + "A" * 43, "h2-" + "A" * 999]
)
def test_what_no_version_would_make_stays_unknown(handle: str) -> None:
    assert ReceiptHandles().decode(handle) is HandleStatus.UNKNOWN
