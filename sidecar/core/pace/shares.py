"""How many of the places in flight a lane, a topic and a partition may take, so that no flow waits for another's end.

    share    while others of its kind have ready records too, it takes no new place above its share; at least one
    reserve  some places are never taken by one topic alone, nor all places of a topic by one partition alone

What is out keeps its places for as long as it takes; a share only decides who takes the next one. The reserve is there
before a second flow comes, so a topic or partition whose every request hangs leaves a way for others. A flow that has
nothing out may take a place although its topic, or lane, has more than its share: what others of it hold too much keeps
it from nothing.

`divide` computes the shares when a flow begins or ends to have ready records. `next_flow` only compares: it runs for
every few records, and at a small `concurrency` for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reconsume.sidecar.core.pace.topic_turns import Flow, ReadyFlows, TopicFlows

RESERVE = 8
"""One place in this many is never taken by one topic alone. With a smaller part, one hung topic would leave the others
too few places to matter; with a larger one, a topic that is alone would be slower than it could be."""
FEWEST = 2
"""Flows of a topic, and topics of a lane, that may have a place each although the share is smaller: with one place a
second flow would wait for the end of the first one."""


class MostPlaces(NamedTuple):
    """The places of `limit` that one topic may take alone (`topic`), and that one of its partitions may (`partition`).
    What is left of them is the reserve; there may be none."""

    limit: int
    topic: int
    partition: int

    def leaves_reserve(self, flow: Flow) -> bool:
        """Return whether a flow may take one more place, and the reserve of the others stays free."""
        topic = flow.topic
        if topic.out >= self.topic < self.limit:
            return False
        return topic.owned < 2 or not flow.out >= self.partition < self.topic


def most_places(limit: int, unit: int, topics: int) -> MostPlaces:
    """Return how many of `limit` places a topic, one of so many owned, may take alone. `unit`: records of a request."""
    most = most_of_topic(limit, unit, topics)
    # What leaves one request to another partition of the topic.
    return MostPlaces(limit, most, most - unit if most >= 2 * unit else most)


def most_of_topic(limit: int, unit: int, topics: int) -> int:
    """Return how many of `limit` places one of so many owned topics may take alone; `unit`: records of a request."""
    requests = limit // unit
    return limit if topics < 2 or requests < 2 else limit - max(1, requests // RESERVE) * unit


def divide(waiting: Sequence[ReadyFlows], limit: int, unit: int, topics: int) -> None:
    """Note the shares of the lanes that have ready records, and those of their topics.

    Shares are rounded up: rounded down, some places would stay empty.
    """
    _, most, beside = most_places(limit, unit, topics)
    weights = sum(ready.weight for ready in waiting)
    for ready in waiting:
        ready.most, ready.share = most, -(-limit * ready.weight // weights)
        share = -(-(ready.share if ready.share < most else most) // len(ready.turns))
        for topic in ready.turns:
            topic.share = share
            topic.each = -(-share // len(topic.turns))
            if topic.owned > 1 and topic.each > beside:
                topic.each = beside


def next_flow(ready: ReadyFlows) -> Flow | None:
    """Give the turn to the next flow of a lane that may take a place, and return it; None if there is none."""
    turns, most = ready.turns, ready.most
    for _ in range(len(turns)):
        topic = turns[0]
        turns.rotate(-1)
        if topic.out >= most:
            continue
        if topic.out < topic.share and ready.out < ready.share:
            below = topic.each
        elif _may_begin(topic, ready):
            below = 1
        else:
            continue
        flows = topic.turns
        for _ in range(len(flows)):
            flow = flows[0]
            flows.rotate(-1)
            if flow.out < below:
                return flow
    return None


def has_share(flow: Flow) -> bool:
    """Return whether a flow has less out than its share, and so has its topic."""
    topic = flow.topic
    # Contract 8.8: while others have records, no flow takes a place above its share.
    return flow.out < topic.each and topic.out < topic.share


def most_for(flow: Flow) -> int:
    """Return how many places a flow that `next_flow` has returned may take now: at least one."""
    topic, ready = flow.topic, flow.ready
    return max(1, min(topic.each - flow.out, topic.share - topic.out, ready.share - ready.out))


def _may_begin(topic: TopicFlows, ready: ReadyFlows) -> bool:
    """Return whether a flow with nothing out may take a place: so few others of its topic, or lane, have one."""
    # The topic has places already: how many of its flows may have one is for its own share to say.
    if topic.out:
        return topic.busy < max(FEWEST, topic.share)
    return sum(other.out > 0 for other in ready.topics.values()) < max(FEWEST, ready.share)
