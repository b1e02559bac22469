"""How far the level topics are due, as arithmetic on offsets: what is due of a partition is always a prefix of it.

Level topics carry their append time and one delay each, so records become due in the order of their offsets. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

Place: TypeAlias = tuple[str, int]
"""A topic and a partition's number."""
Offsets: TypeAlias = Mapping[Place, int]

NO_LATER = -1
"""Kafka's answer to "the first offset from this time on" where no record is that late: all of it is earlier."""


class Reach(NamedTuple):
    """How far the source has come: the next offset of each partition, and how many offsets retention took unread.

    `ids` are those of the topics that the offsets are of; a checkpoint of before has none.
    """

    next: dict[Place, int]
    dropped: int = 0
    ids: Mapping[str, str] = {}


class Range(NamedTuple):
    """The offsets `start` to `end`, without `end`, of one partition."""

    topic: str
    partition: int
    start: int
    end: int


def due_ends(ends: Offsets, cuts: Offsets) -> dict[Place, int]:
    """The end of what is due: `cuts` are the first offsets that are not, as `NO_LATER` where all are.

    `ends` must have been asked before `cuts`: a record that comes between the two questions is not due, and with the
    questions in the other order a partition without a later record would be taken up to an end that includes it.
    """
    return {place: end if cuts[place] == NO_LATER else min(end, cuts[place]) for place, end in ends.items()}


def renewed(reach: Reach, ids: Mapping[str, str]) -> Reach:
    """`reach` among topics of these ids: an offset in a topic that was made anew says nothing, and is forgotten."""
    kept = {place: offset for place, offset in reach.next.items() if not is_anew(place[0], reach.ids, ids)}
    return Reach(kept, reach.dropped, {**reach.ids, **ids})


def is_anew(topic: str, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether the topic is known to have been made anew."""
    return topic in before and topic in after and before[topic] != after[topic]


def still_good(start: Reach, end: Reach) -> dict[Place, int]:
    """The offsets of `start` in topics that are still those of `end`.

    Where no id was kept, a partition that goes back is one of a topic that was made anew.
    """
    kept = renewed(start, end.ids).next
    return {at: offset for at, offset in kept.items() if at[0] in start.ids or end.next.get(at, offset) >= offset}


def begin(reach: Reach, lows: Offsets) -> Reach:
    """`reach` with each partition moved up to its first record: what lies below it is dropped, and counted."""
    moved = {place: max(reach.next.get(place, low), low) for place, low in lows.items()}
    lost = sum(moved[place] - reach.next.get(place, low) for place, low in lows.items())
    # A partition that nobody names any more keeps its place: it may only be out of sight for now.
    return reach._replace(next={**reach.next, **moved}, dropped=reach.dropped + lost)


def cut_short(reach: Reach, ends: Offsets) -> list[Place]:
    """The partitions that end before where we are: their log was cut, or the topic made anew and its id unknown."""
    return sorted(place for place, end in ends.items() if end < reach.next.get(place, 0))


def advance(reach: Reach, ends: Offsets, most: int) -> Reach:
    """`reach` after a batch of at most `most` offsets up to `ends`, shared fairly; never behind `reach`."""
    moved = dict(reach.next)
    waiting = {place: end - moved.get(place, 0) for place, end in ends.items() if end > moved.get(place, 0)}
    left = most
    for rank, (place, count) in enumerate(sorted(waiting.items(), key=lambda item: (item[1], item[0]))):
        share = min(count, left // (len(waiting) - rank))
        moved[place] = moved.get(place, 0) + share
        left -= share
    return reach._replace(next=moved)


def ranges_of(start: Reach, end: Reach, lows: Offsets) -> list[Range]:
    """What is read between two reaches. Nothing of a partition whose log was cut, and which therefore goes back."""
    found, before = [], still_good(start, end)
    for place, last in sorted(end.next.items()):
        # Beyond the end, where retention took the whole range.
        first = max(before.get(place, 0), lows.get(place, 0))
        if first < last:
            found.append(Range(*place, first, last))
    return found


def taken_since(start: Reach, end: Reach, lows: Offsets) -> int:
    """How many offsets between two reaches retention took after `end` was counted."""
    before = still_good(start, end)
    firsts = {place: before.get(place, lows[place]) for place in end.next if place in lows}
    gone = sum(max(0, min(lows[place], end.next[place]) - first) for place, first in firsts.items())
    return max(0, gone - (end.dropped - start.dropped))


def shared_out(ranges: Sequence[Range], tasks: int) -> list[list[Range]]:
    """The ranges in at most `tasks` lists of about the same size."""
    lists: list[list[Range]] = [[] for _ in range(min(tasks, len(ranges)))]
    for found in sorted(ranges, key=lambda range_: range_.start - range_.end):
        min(lists, key=lambda some: sum(part.end - part.start for part in some)).append(found)
    return lists


def to_json(reach: Reach) -> dict[str, Any]:
    """The reach as Spark keeps it, always in the same order: Spark compares two of them as texts."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(reach.next.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return {"next": topics, "dropped": reach.dropped, "ids": dict(sorted(reach.ids.items()))}


def from_json(kept: Mapping[str, Any]) -> Reach:
    """The reach that Spark kept."""
    topics: Mapping[str, Mapping[str, int]] = kept["next"]
    found = {(topic, int(number)): offset for topic, parts in topics.items() for number, offset in parts.items()}
    return Reach(found, kept["dropped"], kept.get("ids", {}))
