"""Find out what a partition's log holds, and whether it is still the log that was read.

A topic that is deleted and created again has a new log, and the client reads on in it at the old offset. Each request
covers all partitions at once (`offset_lookup.py`). Of a partition whose leader does not answer nothing is known: it is
left out of what is returned.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition
from msgspec.structs import replace

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.offset_lookup import OffsetLookup

EDGES_WITHIN = 2.0
"""Seconds for the first or last offsets of all partitions together. A request takes 24 ms for 216 of them (measured).
"""

_LOG = logging.getLogger("reconsume.assignment")


class Edges(NamedTuple):
    """The first offset of a partition's log, and the offset after its last stable record."""

    low: int
    high: int


def untouched(first: int, width: int | None = None) -> Progress:
    """Return the progress in a log of which the group has read nothing; it begins at `first`."""
    return Progress(first, ours=False, width=width, last_at_ms=0)


def edges(logs: OffsetLookup, partitions: Collection[Partition]) -> dict[Partition, Edges]:
    """Return where each partition's log begins and ends now."""
    lows = logs.numbers([TopicPartition(*source, OFFSET_BEGINNING) for source in partitions], EDGES_WITHIN)
    highs = logs.numbers([TopicPartition(*source, OFFSET_END) for source in lows], EDGES_WITHIN)
    return {source: Edges(lows[source], high) for source, high in highs.items()}


def log_loss(partition: Partition, wanted: int, edges_now: Edges) -> None:
    """Log that the next offset of a partition is not in its log."""
    extra = {"event": "offset-lost", "partition": str(partition), "offset": wanted}
    text = "%s: offset %d is not in the log, which holds %d to %d"
    _LOG.error(text, partition, wanted, edges_now.low, edges_now.high, extra=extra)


def log_recreated(partition: Partition) -> None:
    """Log that a partition is read from its beginning, as its log is another one."""
    text = "%s: the topic was deleted and created again; it is read from its beginning"
    _LOG.warning(text, partition, extra={"event": "topic-recreated", "partition": str(partition)})


def checked(logs: OffsetLookup, known: Mapping[Partition, Progress | None]) -> dict[Partition, Progress | None]:
    """Return committed progress without what is of a former log, and without the levels whose leader does not answer.

    Nothing of those may be delivered yet: nobody knows if the offset is one of this log, and a retry may be skipped.
    """
    read = {
        source: (end_of_done(got), got.last_at_ms)
        for source, got in known.items()
        if got and got.last_at_ms is not None
    }
    begins = begins_of_others(logs, read, EDGES_WITHIN)
    sure = {source: got for source, got in known.items() if source not in read or source in begins}
    another = {source: untouched(first) for source, first in begins.items() if first is not None}
    return _within_logs(logs, sure | another)


# Progress carries the greatest broker's time that was read of a level (`last_at_ms`). A log that begins with a younger
# record, below that position, is another one. A younger record after the beginning is a transaction's marker, which a
# search by time finds and no consumer reads: treated as a record, it had whole levels delivered twice. The check must
# come before anything of the new log is read. A main topic's records carry the producers' times, so of a main topic
# only a shorter log shows.
def recreated(
    logs: OffsetLookup, read: Mapping[Partition, tuple[int, int]], within: float = EDGES_WITHIN
) -> dict[Partition, int]:
    """Return the partitions whose log is another one than was read, and where each of these logs begins.

    Their topics were deleted and created again. `read`: for each partition the offset below which it was read, and the
    greatest timestamp (epoch ms) of what was read. The client does not report a new log: it reads on at the old offset
    as soon as the new log is that long.
    """
    return {source: first for source, first in begins_of_others(logs, read, within).items() if first is not None}


def begins_of_others(
    logs: OffsetLookup, read: Mapping[Partition, tuple[int, int]], within: float
) -> dict[Partition, int | None]:
    """As `recreated`, with None for each partition whose log is the one that was read."""
    asked = [TopicPartition(*source, at + 1) for source, (_, at) in read.items()]
    offsets = logs.offsets(asked, within)
    younger = {source: first for source, first in offsets.items() if 0 <= first < read[source][0]}
    # All of another log is younger than what was read. In the same log only a transaction's marker can be younger and
    # lie below the offset: a search by time finds markers too, and what was read lies before it.
    begins = logs.numbers([TopicPartition(*source, OFFSET_BEGINNING) for source in younger], within)
    another = {source: first if first == younger[source] else None for source, first in begins.items()}
    return dict.fromkeys(offsets.keys() - younger.keys()) | another


def end_of_done(progress: Progress) -> int:
    """Return the offset after the last record that the progress says is done."""
    return max(progress.next, OffsetRanges.of(progress.done).end)


def open_in(progress: Progress) -> int:
    """Return how many records may be open between those that are done; a gap in the log counts as records."""
    done = OffsetRanges.of(progress.done)
    return max(0, done.end - progress.next - len(done))


def without_done_from(progress: Progress, end: int) -> Progress:
    """Return the progress without the marks of done records at `end` or behind it."""
    return replace(progress, done=OffsetRanges.of(progress.done).within(0, end))


def _within_logs(logs: OffsetLookup, known: Mapping[Partition, Progress | None]) -> dict[Partition, Progress | None]:
    """Return progress without what lies behind the end of the log; of a main topic all stays if that is not known.

    That is of a former log, and would pass over records of this one as soon as it is that long: marks of done records,
    and the offset itself if the log is still empty. Later, the records themselves show that it is another log.
    """
    reached = {source: got for source, got in known.items() if got is not None and end_of_done(got) > 0}
    ends = logs.numbers([TopicPartition(*source, OFFSET_END) for source in reached], EDGES_WITHIN)
    short = [source for source, end in ends.items() if reached[source].next > end]
    begins = logs.numbers([TopicPartition(*source, OFFSET_BEGINNING) for source in short], EDGES_WITHIN)
    told: dict[Partition, Progress | None] = {
        source: untouched(end) if begins.get(source) == end else without_done_from(reached[source], end)
        for source, end in ends.items()
        if source not in short or source in begins
    }
    silent = {source for source, got in reached.items() if source not in told and got.last_at_ms is not None}
    return {source: told.get(source, got) for source, got in known.items() if source not in silent}


def first_later(logs: OffsetLookup, times: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return each partition's first offset of a record younger than its time (epoch ms); `OFFSET_END` if none is."""
    return logs.offsets([TopicPartition(*source, at + 1) for source, at in times.items()], EDGES_WITHIN)
