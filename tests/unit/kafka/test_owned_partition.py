"""Which ends of a main topic's log the lane must be told of."""

from __future__ import annotations

from reconsume.sidecar.core.partition import WantedFetch
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.client_assignment import OwnedPartition


def an_owned(last: int) -> OwnedPartition:
    """Return a partition of which `last` was read last."""
    return OwnedPartition(Partition("orders", 0), WantedFetch(1), last=last)


def test_the_first_end_of_an_assignment_is_news() -> None:
    """Given a partition of which nothing was said yet, when its log ends behind its last record, then that is news."""
    assert not an_owned(41).note_end(42)


def test_an_end_right_behind_the_last_record_is_news_once() -> None:
    """Given a partition whose end was told, when the end comes after each record, then it is no news."""
    owned = an_owned(41)
    owned.note_end(42)
    owned.last = 42
    assert owned.note_end(43)


def test_an_end_behind_markers_is_always_news() -> None:
    """Given markers of a transaction behind the last record, when the log ends behind them, then progress can move."""
    owned = an_owned(41)
    owned.note_end(42)
    assert not owned.note_end(44)


def test_the_position_is_behind_what_was_read_or_sought_and_behind_markers() -> None:
    """Given what came last, then the position is behind it, also if only markers of transactions follow the records."""
    owned = an_owned(41)
    assert owned.position == 42
    owned.note_end(44)
    assert owned.position == 44
    owned.sought = 7
    assert owned.position == 7
    owned.begin_run()
    owned.last = 8
    assert owned.position == 9, "what was said of the end is of before the seek"


def test_an_end_after_a_seek_is_news() -> None:
    """Given a seek that no message has followed, when the log ends there, then the lane is told."""
    owned = an_owned(41)
    owned.note_end(42)
    owned.sought = 42
    assert not owned.note_end(42)
