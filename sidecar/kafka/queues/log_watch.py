"""Find out that a queue is another log than was read: its topic was deleted, and maybe recreated.

The client reads on at the old offset as soon as the new log is that long. What lies before it would never be read, and
what waited in the former log would keep its keys for ever. So a process that has read the former log restarts in place,
and reads the new one from its beginning. Without a new log nothing restarts: the lane goes on without the queue. Three
signs tell of another log:

- the log ends before what was read, which the client itself reports (`QueueIntake`);
- a copy of our own was appended below what was read (`OwnAppends`);
- the times of its records: the log begins with one that is younger than what was read (`log_checks.py`), and did not so
  when it was first looked at.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from math import inf
from typing import NamedTuple

from confluent_kafka import Consumer

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.log_checks import EDGES_WITHIN, begins_of_others, end_of_done, untouched
from reconsume.sidecar.kafka.consumer.offset_lookup import Leaders, OffsetLookup
from reconsume.sidecar.kafka.named_topics import named_topics

LOOK_EVERY = 5.0
"""Seconds between two looks. One request of some ms asks about all logs, and one about each topic."""
LOOK_WITHIN = 1.0
"""Seconds for the answer; a leader that gives none rests for longer and longer (`offset_lookup.py`)."""
GONE_AFTER = 5.0
"""Seconds for which a queue that was read must be missing before it counts as deleted: a broker that has just started
may not know of it yet."""


class ReadSoFar(NamedTuple):
    """How far a queue was read: below `offset`, and no record there is younger than `last_at_ms` (epoch ms)."""

    offset: int
    last_at_ms: int


class LogWatch:
    """Looks at the logs of the queues that are read, on the reader's thread."""

    def __init__(self) -> None:
        self._leaders = Leaders()
        self._known: dict[Partition, ReadSoFar] = {}
        """How far each was read when its log was last looked at."""
        self._same: set[Partition] = set()
        """The queues of which a look has shown that their log is the one that was read."""
        self._gone_since: dict[Partition, float] = {}
        self._next_at = -inf

    def of_these_logs(
        self, client: Consumer, progress: Mapping[Partition, Progress | None]
    ) -> dict[Partition, Progress | None]:
        """Return the group's progress; where it was made in a former log, that of one of which nothing was read.

        Queues whose leader does not answer are left out, if their progress says how far its log was read.
        """
        read = {
            queue: ReadSoFar(end_of_done(one), one.last_at_ms)
            for queue, one in progress.items()
            if one is not None and one.last_at_ms is not None
        }
        begins = self._begins(client, read, EDGES_WITHIN)
        others = {queue: untouched(0) for queue, first in begins.items() if first == 0}
        return {queue: one for queue, one in progress.items() if queue not in read or queue in begins} | others

    def _begins(
        self, client: Consumer, read: Mapping[Partition, ReadSoFar], within: float
    ) -> dict[Partition, int | None]:
        """Return where each log begins that is another one, and None for each that is the same.

        A log that begins behind 0 was cut: what is left may be younger than what was read when it was last looked at.
        """
        begins = begins_of_others(OffsetLookup(client, self._leaders), dict(read), within) if read else {}
        return {queue: 0 if first == 0 else None for queue, first in begins.items()}

    def begin(self, queue: Partition, read: ReadSoFar) -> None:
        """Begin with a queue. `read`: how far the group has read it."""
        self._known.pop(queue, None)
        self._note({queue: read})
        if queue in self._known:  # its progress was believed
            self._same.add(queue)
        else:
            self._same.discard(queue)

    def is_time(self) -> bool:
        """Return whether the logs are to be looked at again; that is then put off."""
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + LOOK_EVERY
        return True

    def others(self, client: Consumer, read: Mapping[Partition, ReadSoFar]) -> list[Partition]:
        """Return the queues whose log is another one than was read. `read`: how far each was read by now.

        One that begins with what is younger is another one only if it did not so before: its first records may be of a
        transaction that was aborted, written by a clock that is ahead. Nobody reads them, and each successor would end
        as well.
        """
        read_before = {queue: known for queue, known in self._known.items() if queue in read}
        begins = self._begins(client, read_before, LOOK_WITHIN)
        # Only what was read before the look is known to be of the log that it saw.
        self._note({queue: now for queue, now in read.items() if queue in begins})
        renewed = [queue for queue, first in begins.items() if first is not None and queue in self._same]
        self._same |= {queue for queue, first in begins.items() if first is None}
        return renewed

    def last_at_ms(self, queue: Partition, read: ReadSoFar) -> int | None:
        """Return the time up to which a queue is known to be one log, for its progress; None if nothing of it was read.

        `read`: how far it was read by now. What was read since the last look may be of another log.
        """
        if queue not in self._known:
            self._note({queue: read})
            if queue not in self._known:
                return None
            self._next_at = -inf  # what its log begins with is looked at before it can be another log
        return self._known[queue].last_at_ms

    def _note(self, read: Mapping[Partition, ReadSoFar]) -> None:
        # Where no record was read, what lies below the offset are markers alone, whose times nobody has seen.
        self._known |= {queue: now for queue, now in read.items() if now.last_at_ms > 0}

    def look_for(self, client: Consumer, queues: Collection[Partition]) -> None:
        """Note which queues Kafka says nothing of: the client reports no topic that was deleted."""
        topics = named_topics(client, sorted({queue.topic for queue in queues}), LOOK_WITHIN)
        for queue in queues:
            topic = topics.described.get(queue.topic)
            narrow = topic is not None and queue.number not in topic.partitions
            if narrow or queue.topic in topics.absent:
                self._gone_since.setdefault(queue, time.monotonic())

    def doubtful(self) -> Collection[Partition]:
        """Return the queues that were missing when they were last heard of."""
        return tuple(self._gone_since)

    def is_gone(self, queue: Partition) -> bool:
        """Return whether a queue that is still missing has been so for long enough."""
        return time.monotonic() >= self._gone_since[queue] + GONE_AFTER

    def is_there(self, queue: Partition) -> None:
        """Note that a queue was not missing after all."""
        self._gone_since.pop(queue, None)

    def forget(self, queue: Partition) -> None:
        """Forget a queue that is read no more."""
        self._gone_since.pop(queue, None)
        self._known.pop(queue, None)
        self._same.discard(queue)
