"""How many of the places in flight a lane, a topic and a partition may take, so that no flow waits for another's end.

    share    while others of its kind have ready records too, it takes no new place above its share; at least one
    reserve  some places are never taken by one topic alone, nor all places of a topic by one partition alone

What is out keeps its places for as long as it takes; a share only decides who takes the next one. The reserve is there
before a second flow comes, so a topic or partition whose every request hangs leaves a way for others. A flow that has
nothing out may take a place although its topic, or lane, has more than its share: what others of it hold too much keeps
it from nothing. This runs for every few records, and at a small `concurrency` for each: it has no loop beside the one
over the flows that have no place to take.
"""

from __future__ import annotations

from typing import NamedTuple

from sidecar.core.pace.flows import Flow, ReadyFlows, TopicFlows

RESERVE = 8
"""One place in this many is never taken by one topic alone. With a smaller part, one hung topic would leave the others
too few places to matter; with a larger one, a topic that is alone would be slower than it could be."""
FEWEST = 2
"""Flows of a topic, and topics of a lane, that may have a place each although the share is smaller: with one place a
second flow would wait for the end of the first one."""


class Allowed(NamedTuple):
    """The places that a lane may take now.

    `share`: records that it may have out while the other lane waits too. `most`: records that one topic may have out.
    `unit`: records of one request. `shared`: whether the other lane waits too.
    """

    share: int
    most: int
    unit: int
    shared: bool


def most_of_topic(limit: int, unit: int, topics: int) -> int:
    """Return how many of `limit` places one of so many owned topics may take alone."""
    requests = limit // unit
    return limit if topics < 2 or requests < 2 else limit - max(1, requests // RESERVE) * unit


def next_flow(ready: ReadyFlows, allowed: Allowed) -> tuple[Flow, int] | None:
    """Give the turn to the next flow of a lane that may take a place; return it and how many, None if there is none."""
    turns, topics = ready.turns, len(ready.turns)
    topic_share = min(allowed.share, allowed.most)
    if topics > 1:
        topic_share = -(-topic_share // topics)
    for _ in range(topics):
        topic = turns[0]
        turns.rotate(-1)
        _set_bounds(topic, topic_share, allowed)
        if topic.out < allowed.most and (chosen := _next_of(topic, ready, allowed)) is not None:
            return chosen
    return None


def _set_bounds(topic: TopicFlows, share: int, allowed: Allowed) -> None:
    """Note the places that a topic and each of its flows may have now; rounded down, some would stay empty."""
    topic.most, flows = share, len(topic.turns)
    topic.each = -(-share // flows) if flows > 1 else share
    if topic.owned > 1:  # all but one request
        topic.each = min(topic.each, _beside(allowed))


def _beside(allowed: Allowed) -> int:
    return allowed.most - allowed.unit if allowed.most >= 2 * allowed.unit else allowed.most


def _next_of(topic: TopicFlows, ready: ReadyFlows, allowed: Allowed) -> tuple[Flow, int] | None:
    """Give the turn within a topic to its next flow that may take a place."""
    free = topic.most - topic.out
    if allowed.shared:
        free = min(free, allowed.share - ready.out)
    flows = topic.turns
    for _ in range(len(flows)):
        flow = flows[0]
        flows.rotate(-1)
        most = min(free, topic.each - flow.out)
        if most > 0:
            return flow, most
        if not flow.out and _may_begin(topic, ready, allowed):
            return flow, 1
    return None


def _may_begin(topic: TopicFlows, ready: ReadyFlows, allowed: Allowed) -> bool:
    """Return whether a flow with nothing out may take a place: so few others of its topic, or lane, have one."""
    if topic.out:
        return topic.busy < max(FEWEST, topic.most)
    return ready.busy < max(FEWEST, allowed.share)
