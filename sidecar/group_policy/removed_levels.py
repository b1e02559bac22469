"""Find the level topics outside the policy that still hold waiting records.

A level that left the policy is read until it is empty. To find out, the committed offset of the retry group is compared
with the end of the log. The end counts transaction markers. So does the lane's progress, once it has read to the end.
Each level is compared by itself: one whose leader does not answer says nothing of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.committed_offsets import committed
from reconsume.sidecar.kafka.consumer.log_checks import edges
from reconsume.sidecar.kafka.consumer.offset_lookup import OffsetLookup
from reconsume.topics.names import Kind, Names


class Undrained(NamedTuple):
    """The levels that the group has not processed to their end, and those of which Kafka does not say it."""

    holding: frozenset[str]
    unknown: frozenset[str]


def unlisted_levels(
    names: Names, mains: Collection[str], there: Iterable[str], wanted: Collection[str]
) -> frozenset[str]:
    """Return the group's level topics that exist and are not wanted. Names match exactly, never by a pattern."""
    levels = set()
    for name in there:
        if "-RETRY-" in name and name not in wanted:  # most topics of a cluster are not ours
            role = names.role(name, mains)
            if role is not None and role.kind is Kind.LEVEL:
                levels.add(name)
    return frozenset(levels)


def undrained_levels(logs: OffsetLookup, partitions: Mapping[str, int]) -> Undrained:
    """Return which topics hold records that the consumer's group has not processed.

    `partitions`: the number of partitions by topic.
    """
    sources = [Partition(topic, number) for topic, count in partitions.items() for number in range(count)]
    if not sources:
        return Undrained(frozenset(), frozenset())
    # In this order, records processed meanwhile make a topic look fuller than it is, never emptier.
    done = committed(logs.consumer, sources)
    edges_of = edges(logs, done)
    begun = {source: edge.low if (got := done[source]) is None else got.next for source, edge in edges_of.items()}
    holding = {source.topic for source, edge in edges_of.items() if edge.high > max(edge.low, begun[source])}
    return Undrained(
        frozenset(holding), frozenset(source.topic for source in sources if source not in edges_of) - holding
    )
