"""Subscriptions by tag, and that what they pass over is done."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.outcome import COMMITTED
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.topics.tags import TagFilter, parse_tags
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, record

INVOICES = Partition("invoices", 0)


def subscribed(**tags: str) -> TagFilter:
    return TagFilter({topic: parse_tags(text) for topic, text in tags.items()})


@pytest.mark.parametrize(
    ("text", "tags", "wanted"),
    [
        ("*", [], True),
        ("*", [b"A"], True),
        ("A", [b"A"], True),
        ("A", [b"B"], False),
        ("A", [b"a"], False),
        ("A", [b"AB"], False),
        ("A", [], False),
        ("A", [None], False),
        ("A", [b""], False),
        ("A||B", [b"B"], True),
        (" A || B", [b"B"], True),
        ("A||B", [b"A||B"], False),
        ("A||B", [b"C", b"A"], True),
        ("é", ["é".encode()], True),
    ],
)
def test_a_record_is_wanted_for_one_of_its_tags(text: str, tags: list[bytes | None], wanted: bool) -> None:
    assert subscribed(orders=text)(record(headers=[("TAGS", tag) for tag in tags])) is wanted


def test_only_the_header_tags_says_it() -> None:
    assert not subscribed(orders="A")(record(headers=[("tags", b"A"), ("Tag", b"A")]))


def test_each_topic_has_a_subscription_of_its_own() -> None:
    wanted = subscribed(orders="A", invoices="*")
    assert not wanted(record(headers=[("TAGS", b"B")]))
    assert wanted(record(source=INVOICES, headers=[("TAGS", b"B")]))


def test_a_record_that_is_passed_over_is_done_and_counted_and_never_delivered() -> None:
    rig = Rig(wanted=subscribed(orders="A"))
    rig.assign(ORDERS)
    rig.take(*(record(offset, headers=[("TAGS", tag)]) for offset, tag in enumerate((b"B", b"A", b"B", b"B"))))
    assert rig.out_offsets() == [1]
    rig.answer(COMMITTED)
    rig.settle()
    assert rig.kafka[ORDERS] == Progress(4)
    assert rig.lane.counters.passed_over == {"orders": 3}
    assert rig.lane.room.load == 0


def test_progress_over_records_that_nobody_wants_is_committed_although_nothing_is_delivered() -> None:
    rig = Rig(wanted=subscribed(orders="A"))
    rig.assign(ORDERS)
    rig.take(record(0), record(1))
    rig.settle()
    assert rig.kafka[ORDERS] == Progress(2)


def test_in_an_ordered_lane_nobody_waits_for_a_record_that_is_passed_over() -> None:
    rig = Rig(wanted=subscribed(orders="A"), order="key")
    rig.assign(ORDERS)
    rig.take(*(record(offset, headers=[("TAGS", tag)]) for offset, tag in enumerate((b"B", b"A", b"B", b"A"))))
    assert rig.out_offsets() == [1]
    rig.answer(COMMITTED)
    assert rig.out_offsets() == [3]
