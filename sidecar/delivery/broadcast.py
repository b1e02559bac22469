"""Broadcast: every instance reads every partition of the main topics, without a group, and commits nothing.

The same lane runs as in every other mode. Only two parts differ. `AllPartitions` replaces the group's
assignment, and `NoCommitter` replaces the committer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.commit_batch import CommitBatch, CommitResult
from reconsume.sidecar.core.partition import WantedFetch
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.client_assignment import OwnedPartition
from reconsume.sidecar.kafka.consumer.log_checks import Edges, OffsetLookup
from reconsume.sidecar.kafka.consumer.start_offsets import Start, Starts
from reconsume.sidecar.kafka.errors import named_topics
from reconsume.sidecar.kafka.listeners import AssignmentListener

LOOK_EVERY = 5.0
"""Seconds between looks for new partitions, and for those whose leader did not answer at the start. No record in them
is missed: the new ones are read from their beginning, the others from the time of the start."""
FIRST_LOOK_EVERY = 0.5
"""Seconds between looks until Kafka has answered. Records that are produced meanwhile are older than the start."""
ANSWER_WITHIN_S = 2.0
CLOCKS_DIFFER = 2_000
"""ms by which the clocks of this machine and of producers or brokers may differ, where a partition starts by time. Each
record of so long before the start may be delivered too; with less, one of a slow clock would be skipped."""

_LOG = logging.getLogger("reconsume.broadcast")


class AllPartitions(Assignment):
    """All partitions of the topics, assigned by the sidecar itself.

    Those that exist at the start are read from their end, later ones from their beginning. One whose leader does not
    answer at the start is read from its first record that was written since: its end is known only later, and what came
    in between would be skipped. So is one of a topic that this user may not see at the start, once it may.
    """

    in_group = False

    def __init__(self, listener: AssignmentListener, *, lock_timeout: float, read_since_ms: int | None = None) -> None:
        """`read_since_ms`: since when (epoch ms) records count that were written before; None: since the start."""
        super().__init__(listener, start_at="latest", lock_timeout=lock_timeout)
        self.gone: frozenset[str] | None = None
        """The topics that the cluster did not have at the last look; None before the first look."""
        self.kept: dict[Partition, Progress] = {}
        """Progress of each partition, for a client that is made again. It is stored nowhere else."""
        self.starts = _Kept(self.kept)
        self._first: frozenset[Partition] | None = None
        """The partitions that existed at the start."""
        self._denied: frozenset[str] = frozenset()
        """The topics that this user may not see, since the start: nobody knows what they had then."""
        self._started_at = read_since_ms
        """When the ends of these partitions were requested first (epoch ms)."""
        self._look_at = 0.0

    @property
    def placed(self) -> bool:
        """Whether every record that is produced from now on is delivered.

        That is so as soon as Kafka has answered: a partition that has no position yet starts by time.
        """
        return self._first is not None and (not self._first or not self._first.isdisjoint(self.owned_partitions))

    def join(self, consumer: Consumer, topics: Sequence[str]) -> None:
        """Take every partition as soon as Kafka answers. A second call continues at each partition's progress."""
        self.topics, self._leave_by, self._closing, self._look_at = topics, None, False, 0.0
        self.answer(consumer)

    def leave(self, consumer: Consumer) -> None:
        """Wait for the deliveries that are out, for at most `lock_timeout`, then give up all partitions."""
        super().leave(consumer)
        # No group revokes these partitions, so it is done here.
        self.on_revoke(consumer, [owned.topic_partition for owned in self.owned_partitions.values()])

    def answer(self, consumer: Consumer) -> None:
        """Look for new partitions if it is time."""
        if self._leave_by is not None or time.monotonic() < self._look_at:
            return
        try:
            self._look_at_partitions(consumer)
        except KafkaException as failure:
            text, extra = "cannot list the partitions of the topics: %s", {"event": "topics-unlisted"}
            _LOG.warning(text, failure, extra=extra)
        self._look_at = time.monotonic() + (LOOK_EVERY if self.placed else FIRST_LOOK_EVERY)

    def _look_at_partitions(self, consumer: Consumer) -> None:
        # The first look decides: partitions that exist then start at their end, later ones at their beginning. One
        # whose leader did not answer starts at the time of that look, and keeps no other from starting.
        listed = named_topics(consumer, self.topics, ANSWER_WITHIN_S)
        if len(listed.described) + len(listed.absent) < len(set(self.topics)):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        described, self.gone = listed.described, listed.absent
        present = frozenset(
            Partition(name, number)
            for name in self.topics
            if name in described
            for number in described[name].partitions
        )
        if self._first is None:
            self._first, self._denied = present, listed.denied
        self._first |= {source for source in present if source.topic in self._denied}
        self._denied &= listed.denied
        new = [source for source in sorted(present) if source not in self.owned_partitions]
        if new:
            self._take_partitions(consumer, new, self._first)
        self._started_at = self._started_at or wall()

    def _take_partitions(self, consumer: Consumer, new: Sequence[Partition], first: Collection[Partition]) -> None:
        unknown = [source for source in new if source not in self.kept]
        late, self._started_at = self._started_at, self._started_at or wall()
        begins = {source: _begin(late) if source in first else OFFSET_BEGINNING for source in unknown}
        self.kept |= {source: Progress(offset) for source, offset in self._offsets(consumer, begins).items()}
        known = [source for source in new if source in self.kept]
        starts = [Start(source, self.kept[source].next, self.kept[source]) for source in known]
        if starts:
            self.client.give(consumer, starts)
        for source in known:
            self.owned_partitions[source] = OwnedPartition(source, WantedFetch(next(self._epochs)))
        self._begin_partitions(starts)

    def _offsets(self, consumer: Consumer, begins: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the offsets where these partitions begin, whose leader answers."""
        logs = self.starts.lookup(consumer)
        offsets = logs.offsets([TopicPartition(*source, begin) for source, begin in begins.items()], ANSWER_WITHIN_S)
        ends = [TopicPartition(*source, OFFSET_END) for source, offset in offsets.items() if offset == OFFSET_END]
        numbers = {source: offset for source, offset in offsets.items() if offset != OFFSET_END}
        return numbers | logs.numbers(ends, ANSWER_WITHIN_S)

    def _take_membership(self, consumer: Consumer) -> None:
        """Do nothing: nothing is committed, so no transaction needs the membership."""


def _begin(started_at: int | None) -> int:
    """Return where a partition of the start begins: a logical offset, or a time (epoch ms).

    `started_at`: when its end was requested first; None if it is requested now for the first time.
    """
    return OFFSET_END if started_at is None else started_at - CLOCKS_DIFFER


class _Kept(Starts):
    """The start positions of partitions whose progress is only in memory."""

    def __init__(self, kept: dict[Partition, Progress]) -> None:
        super().__init__("latest")
        self._kept = kept

    def after_truncation(self, logs: OffsetLookup, edges_of: Mapping[Partition, Edges]) -> dict[Partition, Progress]:
        """Return progress at the present ends of logs, or this instance's own progress where that is before the end."""
        return {source: self._goes_on(source, edge.high) for source, edge in edges_of.items()}

    def _goes_on(self, source: Partition, high: int) -> Progress:
        progress = self._kept.get(source)
        return Progress(high) if progress is None or progress.next > high else progress


class NoCommitter:
    """The committer of broadcast mode: each batch is done at once, and nothing is written."""

    last_error = ""

    def __init__(self, assignment: AllPartitions, report: Callable[[CommitResult], None]) -> None:
        self.ready = threading.Event()
        self._assignment = assignment
        self._report = report

    def start(self) -> None:
        self.ready.set()

    def stop(self) -> None:
        """Do nothing: there is no thread to end."""

    def is_alive(self) -> bool:
        """Return True: there is no thread that could end."""
        return True

    def look_up_missing(self, wanted: Set[str]) -> frozenset[str] | None:
        """Return which of these topics are missing; None if it is not known yet."""
        gone = self._assignment.gone
        return None if gone is None else gone & wanted

    def partition_counts(self, wanted: Set[str]) -> dict[str, int]:
        """Return nothing: what each instance gets as a whole is not divided."""
        return {}

    def submit(self, batch: CommitBatch) -> None:
        """Report the batch as done (port `Commit`). `report` must handle that later, not during this call."""
        self._assignment.kept.update({source: share.progress for source, share in batch.commits.items()})
        self._report(CommitResult(batch, committed=True, done=batch.entries))
