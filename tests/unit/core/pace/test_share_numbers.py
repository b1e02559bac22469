"""How many places each lane, topic and partition may take, by the numbers (contract 8.8)."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from reconsume.sidecar.core.pace.shares import divide, has_share, most_for, most_of_topic, next_flow
from reconsume.sidecar.core.pace.topic_turns import Flow, ReadyFlows
from reconsume.sidecar.core.record import Partition
from tests.sim.samples import record


@pytest.mark.parametrize(
    ("limit", "unit", "topics", "most"),
    [
        (20, 1, 1, 20),
        (1, 1, 2, 1),
        (2, 1, 2, 1),
        (15, 1, 2, 14),
        (16, 1, 2, 14),
        (31, 1, 2, 28),  # of 31 requests three are left free
        (39, 20, 2, 39),  # one whole request
        (40, 20, 2, 20),
        (330, 20, 2, 290),
    ],
)
def test_one_request_in_eight_is_never_taken_by_one_topic_alone(limit: int, unit: int, topics: int, most: int) -> None:
    found = most_of_topic(limit, unit, topics)
    assert (found, type(found)) == (most, int)


def ready(weight: int, **partitions: int) -> ReadyFlows:
    """A lane with a ready record in each of so many partitions of each topic."""
    flows = ReadyFlows()
    flows.weight = weight
    for topic, count in partitions.items():
        for number in range(count):
            flows.append(record(0, source=Partition(topic, number)))
    return flows


def shares(flows: ReadyFlows) -> list[tuple[int, int]]:
    """The share of each topic, and that of each of its partitions."""
    return [(topic.share, topic.each) for topic in flows.turns]


@pytest.mark.parametrize(
    ("flows", "limit", "unit", "topics", "divided"),
    [
        ([ready(50, a=1)], 10, 1, 1, [(10, [(10, 10)])]),
        ([ready(50, a=1, b=1)], 9, 1, 2, [(9, [(4, 4), (4, 4)])]),
        ([ready(50, a=1, b=1)], 10, 1, 2, [(10, [(5, 5), (5, 5)])]),
        ([ready(50, a=2, b=1, c=1)], 33, 1, 3, [(33, [(10, 5), (10, 10), (10, 10)])]),
        ([ready(50, a=1), ready(50, b=1)], 11, 1, 2, [(6, [(6, 6)]), (6, [(6, 6)])]),
        ([ready(70, a=1), ready(30, b=1)], 11, 1, 2, [(8, [(8, 8)]), (4, [(4, 4)])]),
        ([ready(97, a=1), ready(3, b=1)], 16, 1, 2, [(16, [(14, 14)]), (1, [(1, 1)])]),  # the reserve is less
        ([ready(50, a=2)], 8, 1, 1, [(8, [(8, 4)])]),
        ([ready(50, a=3)], 2, 1, 1, [(2, [(2, 1)])]),
        ([ready(50, a=2)], 1, 1, 1, [(1, [(1, 1)])]),
    ],
)
def test_the_places_are_divided_by_lane_topic_and_partition(
    flows: list[ReadyFlows], limit: int, unit: int, topics: int, divided: list[tuple[int, list[tuple[int, int]]]]
) -> None:
    divide(flows, limit, unit, topics)
    assert [(one.share, shares(one)) for one in flows] == divided
    assert {type(number) for one in flows for number in (one.share, one.most, *sum(shares(one), ()))} == {int}


@pytest.mark.parametrize(("limit", "unit", "each"), [(8, 1, 7), (40, 20, 20), (39, 20, 39), (60, 20, 40)])
def test_one_partition_leaves_a_request_to_another_of_its_topic(limit: int, unit: int, each: int) -> None:
    flows = ready(50, a=1)
    flows.own(Partition("a", 1))
    divide([flows], limit, unit, 1)
    assert shares(flows) == [(limit, each)]


def flow_of(out: tuple[int, int, int]) -> Flow:
    """One of two flows of a topic with shares of 4, 6 and 8 places, and what of it, its topic and its lane is out."""
    flows = ready(50, a=2)
    topic = flows.turns[0]
    flow = topic.turns[0]
    topic.each, topic.share, flows.share = 4, 6, 8
    flow.out, topic.out, flows.out = out
    return flow


@pytest.mark.parametrize(
    ("out", "most", "has"),
    [
        ((0, 0, 0), 4, True),
        ((3, 3, 3), 1, True),
        ((1, 4, 4), 2, True),
        ((1, 2, 7), 1, True),
        ((1, 2, 6), 2, True),
        ((4, 4, 4), 1, False),
        ((0, 6, 6), 1, False),
        ((0, 5, 5), 1, True),
    ],
)
def test_a_flow_takes_what_flow_topic_and_lane_leave_and_one_at_least(
    out: tuple[int, int, int], most: int, has: bool
) -> None:
    flow = flow_of(out)
    assert (most_for(flow), has_share(flow)) == (most, has)


class Taken(NamedTuple):
    """What is out of each partition of one topic, and of its lane. A topic may have six places in any case."""

    out: tuple[int, ...]
    lane: int
    share: int = 4
    each: int = 2


def next_number(taken: Taken) -> int | None:
    """The number of the partition that has the next turn."""
    flows = ready(50, a=len(taken.out))
    flows.share, flows.most, flows.out = 8, 6, taken.lane
    topic = flows.turns[0]
    topic.share, topic.each = taken.share, taken.each
    topic.out, topic.busy = sum(taken.out), sum(out > 0 for out in taken.out)
    for flow, out in zip(topic.turns, taken.out, strict=True):
        flow.out = out
    chosen = next_flow(flows)
    return None if chosen is None else chosen.source.number


@pytest.mark.parametrize(
    ("taken", "number"),
    [
        (Taken((0, 0), 0), 0),
        (Taken((2, 1), 3), 1),
        (Taken((2, 2), 3, share=9), None),
        (Taken((2, 1, 1), 4), None),  # above its share it may only begin
        (Taken((3, 1, 0), 4), 2),
        (Taken((1, 1), 7), 0),
        (Taken((1, 1), 8), None),  # and so where its lane has its share
        (Taken((1, 1, 0), 8), 2),
        (Taken((5, 0), 5), 1),
        (Taken((6, 0), 6), None),  # the reserve
        (Taken((2, 0, 0), 2, share=1, each=1), 1),
        (Taken((1, 1, 0), 2, share=1, each=1), None),  # two flows have a place each, a third waits
    ],
)
def test_a_flow_has_a_turn_below_its_share_or_to_begin(taken: Taken, number: int | None) -> None:
    assert next_number(taken) == number


@pytest.mark.parametrize("topics", [{"a": 3}, {"a": 1, "b": 1, "c": 1}])
def test_topics_and_partitions_take_turns(topics: dict[str, int]) -> None:
    flows = ready(50, **topics)
    sources = [flow.source for topic in flows.turns for flow in topic.turns]
    divide([flows], 100, 1, len(topics))
    turns = [flow.source for _ in range(6) if (flow := next_flow(flows)) is not None]
    assert turns == 2 * sources


def test_a_topic_that_has_no_turn_leaves_it_to_the_next() -> None:
    flows = ready(50, a=1, b=1, c=1)
    divide([flows], 9, 1, 3)
    flows.turns[0].out, flows.turns[1].out = flows.most, flows.turns[1].share
    flows.turns[1].busy, flows.turns[1].turns[0].out = 9, 9
    chosen = next_flow(flows)
    assert chosen is not None
    assert chosen.source == Partition("c", 0)
