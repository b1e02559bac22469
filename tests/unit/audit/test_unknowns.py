"""From when on an audit knows everything, from what is deleted and what was read."""

from __future__ import annotations

from reconsume.sidecar.audit.reader import ReadTimes
from reconsume.sidecar.audit.unknowns import APART, Horizon, deleted_of, known_of
from reconsume.sidecar.kafka.admin.descriptions import Span

LEVEL, DLQ, NOW = "billing-RETRY-1s", "billing-DLQ", 1_763_690_000_000
PLACE = (LEVEL, 0)
WEEK = {"retention.ms": "604800000", "retention.bytes": "-1"}


def horizon(begin: int, seen: int | None = None, since: int | None = None, topic: str = LEVEL) -> Horizon:
    place = (topic, 0)
    read = {} if seen is None else {place: ReadTimes(seen, seen + 5)}
    spans = {place: Span(begin, begin + 9)}
    return Horizon(spans, spans, read, {}, since, NOW)


def test_a_topic_that_still_has_its_beginning_is_known_from_it() -> None:
    assert known_of(horizon(0, 7), {LEVEL: WEEK}) == {}


def test_a_topic_that_lost_its_beginning_is_known_from_soon_after_its_first_record() -> None:
    """Not at once: a record's companions carry the times of other clocks."""
    assert known_of(horizon(3, 7), {LEVEL: WEEK}) == {LEVEL: 7 + APART}


def test_an_emptied_partition_lost_what_its_retention_says() -> None:
    assert known_of(horizon(3), {LEVEL: WEEK}) == {LEVEL: NOW - 604_800_000 + APART}
    assert known_of(horizon(3), {LEVEL: WEEK | {"retention.bytes": "1"}}) == {LEVEL: NOW + APART}
    assert known_of(horizon(3), {LEVEL: {}}) == {LEVEL: NOW + APART}


def test_an_emptied_dlq_may_have_been_purged_just_now() -> None:
    assert known_of(horizon(3, topic=DLQ), {DLQ: WEEK}, {DLQ}) == {DLQ: NOW + APART}


def test_what_was_overtaken_while_it_was_read_counts_as_deleted() -> None:
    overtaken = horizon(0, 7)._replace(overtaken={PLACE: 4})
    assert known_of(overtaken, {LEVEL: WEEK}) == {LEVEL: 7 + APART}
    [said] = deleted_of(overtaken, {LEVEL: 8})
    assert said.text.startswith(f"4 offsets of {LEVEL} are deleted")
    assert said.records == (f"{LEVEL}:0:0-3",)


def test_what_was_asked_for_is_the_earliest_that_is_known() -> None:
    later = horizon(3, 7, since=100)._replace(spans={PLACE: Span(5, 12)})
    assert known_of(later, {LEVEL: WEEK}) == {LEVEL: 100 + APART}
    assert list(deleted_of(later, {LEVEL: 100})) == []
