"""What resets of a partition say: cycles, what is superseded, and records that say nothing."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis.strategies import binary

from reconsume.sidecar.core.progress import LogId
from reconsume.topics.partition import Partition
from reconsume.topics.position_ranges import (
    KEEP_MS,
    PartitionResets,
    ResetNote,
    ResetRange,
    is_superseded,
    read_resets,
    render_resets,
    reset_key,
    topic_digest,
)

ORDERS = Partition("or.d-ers", 3)
FIRST, SECOND = ResetRange(10, 30, 1, 1_000), ResetRange(20, 40, 2, 2_000)
BOTH = PartitionResets("aa11bb22", 2, (FIRST, SECOND), ("r1", "r2"))


def test_a_record_is_in_the_greatest_cycle_of_the_ranges_that_cover_it() -> None:
    assert [BOTH.cycle_of(offset) for offset in (9, 10, 19, 20, 39, 40)] == [0, 1, 1, 2, 2, 0]


def test_segments_say_the_same_without_overlaps() -> None:
    assert list(BOTH.segments()) == [(10, 20, 1), (20, 30, 2), (30, 40, 2)]
    assert list(PartitionResets("aa11bb22").segments()) == []


def test_a_topic_has_the_same_digest_in_notes_as_in_progress() -> None:
    assert topic_digest("4cuNyAOSQsydmKTQ3sTqyQ") == LogId.of("", "4cuNyAOSQsydmKTQ3sTqyQ").topic


@given(binary(min_size=16, max_size=16))
def test_a_topic_has_the_same_digest_whichever_client_names_its_id(ident: bytes) -> None:
    """Spark's jobs ask Kafka's Java client, and took half of all topics for recreated ones."""
    by_librdkafka, by_java = b64encode(ident).decode(), urlsafe_b64encode(ident).decode()
    assert topic_digest(by_java.rstrip("=")) == LogId.of("", by_librdkafka.rstrip("=")).topic


def test_a_copy_of_an_older_cycle_than_its_range_is_superseded_and_no_other() -> None:
    resets = {ORDERS: BOTH}
    assert is_superseded(resets, "or.d-ers:3:25", 1)
    assert not is_superseded(resets, "or.d-ers:3:25", 2)
    assert not is_superseded(resets, "or.d-ers:3:45", 0)
    assert not is_superseded(resets, "or.d-ers:2:25", 0)
    assert not is_superseded({}, "or.d-ers:3:25", 0)


@pytest.mark.parametrize("name", ["", "or.d-ers", "or.d-ers:3", "or.d-ers:x:25", "or.d-ers:3:y"])
def test_what_names_no_record_is_never_superseded(name: str) -> None:
    assert not is_superseded({ORDERS: BOTH}, name, 0)


def test_a_range_inside_a_later_one_and_one_of_forty_days_ago_are_left_out() -> None:
    later = ResetRange(5, 40, 3, 3_000)
    assert BOTH.with_range(later) == (later,)
    beside = ResetRange(25, 50, 3, 1_500 + KEEP_MS)
    assert BOTH.with_range(beside) == (SECOND, beside)


def test_what_is_written_is_read() -> None:
    forwards = PartitionResets("aa11bb22", 2, (FIRST,), ("r1", "r3"), ((40, 44), (50, 60)))
    for resets in (BOTH, forwards):
        assert read_resets(reset_key(ORDERS), render_resets(resets)) == ResetNote(ORDERS, resets)
    assert read_resets(reset_key(ORDERS), None) == ResetNote(ORDERS, None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"reset/", b"{}"),
        (b"reset/orders", b"{}"),
        (b"reset/orders:01", b"{}"),
        (b"reset/orders:99999999999", b"{}"),
        (b"settle/orders:1", b"{}"),
        (b"reset/orders:1", b"{}"),
        (b"reset/orders:1", b'{"topic": "a", "cycle": -1}'),
        (b"reset/orders:1", b'{"topic": "a", "ranges": [{"start": 1}]}'),
        (b"reset/orders:1", b"\xff"),
        (b"reset/orders:1", b'{"topic": "a", "v": 2}'),
    ],
)
def test_a_record_of_another_form_says_why_it_says_nothing(key: bytes, value: bytes) -> None:
    assert isinstance(read_resets(key, value), str)
