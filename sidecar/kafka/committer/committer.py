"""The committer of a lane: one thread that commits batches to Kafka and always finds out whether they were committed.

After an error with an unknown outcome it replaces the producer, which ends what the old one had open. Then it reads the
committed progress (`result_in_doubt`, contract 7.4). Records that the progress covers are done; the others are
committed again from memory. After an abort it reports to the lane what Kafka refuses, and the lane decides what
follows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from math import inf
from queue import Empty, SimpleQueue
from typing import TypeAlias

from confluent_kafka import Consumer, KafkaException, TopicPartition

from reconsume.sidecar.background import ContextThread
from reconsume.sidecar.core.commit_batch import CommitBatch, CommitResult, PartitionCommit, Refusal, SettledRecord
from reconsume.sidecar.core.progress import Progress, is_recreated
from reconsume.sidecar.core.progress_codec import LONGEST, decode, encode
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.kafka.clients import CredentialRegistry, Refresh, make_client
from reconsume.sidecar.kafka.committer.replaceable_producer import ReplaceableProducer
from reconsume.sidecar.kafka.committer.target_topics import KnownOutputs
from reconsume.sidecar.kafka.committer.transaction_outcome import Aborted, OutcomeUnknown, outcome_of
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.membership import Membership
from reconsume.sidecar.kafka.errors import raise_partition_errors
from reconsume.sidecar.observability.thread_watch import StopRequest
from reconsume.sidecar.printable import plural
from reconsume.sidecar.process_memory import trim_memory

AGAIN_AFTER = 0.1
"""Seconds before an aborted batch is tried again, and before the committed progress is asked for again. The cause of an
abort lasts longer than a network round trip."""
ASK_LIMIT = 10.0
"""Seconds for one request for the committed progress."""
SURE_AFTER_S = 2.0
"""For so long Kafka must say that a transaction did not happen. A coordinator that has just taken a group over tells
the progress up to the high watermark of its log (Kafka 4). As KIP-207 says of every new leader, that may be behind what
was confirmed before, until the other replicas have asked it: each 0.5 s (`replica.fetch.wait.max.ms`), or 1 s after an
error (`replica.fetch.backoff.ms`)."""
SLOW = 1.0
"""Seconds that a quota may hold back a transaction. Above it the next one is smaller: after 3 s a request may have been
sent twice, and after 10 s Kafka ends the transaction."""
LARGE, QUIET = 1_000, 0.5
"""Entries of a batch after which memory is given back, and the seconds without work after which that is done: what
waited for transactions of 4 000 copies is 5 MB of small pieces, which the C library keeps otherwise."""
UNNAMED = 3
"""Aborts of one batch in a row that name no cause. After so many, smaller batches must find the entry, or the
partition, that is the cause."""


WrittenProgress: TypeAlias = Mapping[Partition, tuple[int, str]]
"""The offset and the metadata of each partition in a batch."""


def written_progress(batch: CommitBatch) -> WrittenProgress:
    """Return the progress of a batch as it is written."""
    width = LONGEST if batch.padded else 0
    return {
        source: (share.progress.next, encode(source, share.progress).ljust(width))
        for source, share in batch.commits.items()
    }


def offsets_of(written: WrittenProgress) -> list[TopicPartition]:
    """Return the same for the client."""
    return [TopicPartition(*source, offset, text) for source, (offset, text) in written.items()]


class Committer(ContextThread):
    """The thread that commits one lane's batches, one at a time. It calls `report` with each result.

    `outputs`: knows the topics that records of the service go to; None: there are none.
    `member_refused`: is told each time that Kafka refuses a batch as one of no member of the group.
    """

    def __init__(
        self,
        producer_config: Mapping[str, object],
        reader_config: Mapping[str, object],
        assignment: Assignment,
        report: Callable[[CommitResult], None],
        observe: Callable[[str, float], None],
        registry: CredentialRegistry,
        member_refused: Callable[[], None] = lambda: None,
        outputs: KnownOutputs | None = None,
    ) -> None:
        super().__init__(f"committer-{producer_config['transactional.id']}")
        self.ready = threading.Event()
        """Set once the first producer is ready. Nothing may be subscribed before that."""
        self.busy = False
        """Whether a batch or new credentials are in work."""
        self._reader_config = reader_config
        self._assignment = assignment
        self._report, self._member_refused = report, member_refused
        self._observe = observe
        self._batches: SimpleQueue[CommitBatch | Refresh | None] = SimpleQueue()
        self._stopping = StopRequest()
        self._unnamed = 0
        self._was_large = False
        """Whether a large batch was committed since memory was given back."""
        credentials = registry.register(self.name, self._on_new_credentials)
        self._supply = ReplaceableProducer(producer_config, self._stopping, credentials, outputs)

    @property
    def last_error(self) -> str:
        """The last error from Kafka; empty if there was none."""
        return self._supply.last_error

    @property
    def turned_at(self) -> float | None:
        """When the thread last began a try (monotonic seconds), for the liveness probe.

        None while it waits for work.
        """
        return self._stopping.turned_at if self.busy or not self.ready.is_set() else None

    def _on_new_credentials(self) -> None:
        if not self._supply.take_credentials():
            self._batches.put(Refresh.KEYS)

    def submit(self, batch: CommitBatch) -> None:
        """Queue a batch to be committed (port `Commit`)."""
        self._batches.put(batch)

    def look_up_missing(self, wanted: Set[str]) -> frozenset[str] | None:
        """Return which of these topics are missing; None if Kafka does not tell of all. Blocks."""
        return self._supply.topics(wanted)

    def partition_counts(self, wanted: Set[str]) -> dict[str, int]:
        """Return how many partitions these topics have, as far as Kafka tells. Blocks."""
        return self._supply.partition_counts(wanted)

    def stop(self) -> None:
        """End after the batch in work; give up what waits for an unreachable broker."""
        self._stopping.set()
        self._batches.put(None)

    def do_work(self) -> None:
        """Make the producer, then commit batches until stopped."""
        self._supply.replace()
        self.ready.set()
        while (batch := self._next()) is not None:
            self._stopping.is_set()  # counts as a turn: the time before the wait says nothing about this work
            self.busy = True
            if isinstance(batch, Refresh):
                self._supply.refresh()
            else:
                self._report(self._settle(batch))
            self.busy = False

    def _next(self) -> CommitBatch | Refresh | None:
        """Wait for work. If there is none for a while after a large batch, give back what it took."""
        if self._was_large:
            with suppress(Empty):
                return self._batches.get(timeout=QUIET)
            self._was_large = False
            trim_memory()
        return self._batches.get()

    def _settle(self, batch: CommitBatch) -> CommitResult:
        self._unnamed = 0
        self._was_large = self._was_large or len(batch.entries) >= LARGE
        written = written_progress(batch)
        while not self._stopping.is_set():
            started = time.monotonic()
            result, label = self._try(batch, written)
            self._observe(label, time.monotonic() - started)
            if result is not None:
                return result
        return CommitResult(batch, committed=False, again=batch.entries)

    def _try(self, batch: CommitBatch, written: WrittenProgress) -> tuple[CommitResult | None, str]:
        """Try once to commit the batch.

        Returns the result (None: try again) and the label of the transaction's result in the metrics.
        """
        producer = self._supply.usable()
        if producer is not None and (left := producer.throttle.left()) > 0:
            self._stopping.wait(left)  # a transaction that is begun meanwhile may run into its timeout
        if producer is None:  # stopped before there was a producer
            return None, "unknown"
        membership = self._assignment.membership
        if membership is None or (fenced := _fenced(batch, membership)):
            return _without(batch, fenced if membership is not None else frozenset(batch.commits)), "fenced"
        if self._supply.targets.look_up_unlisted(batch.entries):
            self._stopping.wait(AGAIN_AFTER)
            return None, "refused"
        if refusals := self._supply.targets.missing_targets(batch.entries):
            return _refused(batch, refusals), "refused"
        if batch.notes and (why := self._supply.targets.fault_of_notes(batch.notes)):
            return self._refuse_notes(batch, why), "refused"
        partitions = self._supply.targets.partitions
        offsets = offsets_of(written)
        outcome = outcome_of(
            lambda: producer.commit(batch.entries, offsets, membership.metadata, partitions, batch.notes)
        )
        if isinstance(outcome, Aborted):
            return self._after_abort(batch, outcome, membership, written), "aborted"
        if isinstance(outcome, OutcomeUnknown):
            return self._in_doubt(batch, outcome, written), "unknown"
        slow = producer.throttle.longest > SLOW and len(batch.entries) > 1
        made = self._supply.made
        result = CommitResult(batch, True, done=batch.entries, apart=slow, located=outcome, producer=made)
        return result, "committed"

    def _refuse_notes(self, batch: CommitBatch, why: str) -> CommitResult:
        self._supply.warn("notes-refused", "Kafka does not take what is noted of partitions, so it waits: %s", why)
        return CommitResult(batch, committed=False, again=batch.entries, notes_refused=why)

    def _in_doubt(self, batch: CommitBatch, unsure: OutcomeUnknown, written: WrittenProgress) -> CommitResult | None:
        self._supply.warn("transaction-unsure", "a transaction's end is unknown, so Kafka is asked: %s", unsure)
        self._supply.replace()
        return result_in_doubt(batch, written, self._supply, self._reader_config, self._stopping)

    def _after_abort(
        self, batch: CommitBatch, aborted: Aborted, membership: Membership, written: WrittenProgress
    ) -> CommitResult | None:
        adapted = self._supply.adapt(aborted)
        if aborted.producer_unusable or adapted:
            self._supply.replace()
        if adapted:
            return None
        if aborted.throttled:
            self._supply.warn(
                "throttled",
                "a quota of the brokers holds back a transaction of %s, so smaller ones follow",
                plural(len(batch.entries), "record"),
            )
            return _apart(batch, str(aborted)) if len(batch.entries) > 1 else None
        if aborted.refused_notes and not aborted.refusals:
            return self._refuse_notes(batch, aborted.refused_notes)
        return self._after_refusal(batch, aborted, membership, written)

    def _after_refusal(
        self, batch: CommitBatch, aborted: Aborted, membership: Membership, written: WrittenProgress
    ) -> CommitResult | None:
        if aborted.refusals:
            text = "Kafka refuses %d of %s: %s"
            counts = len(aborted.refusals), plural(len(batch.entries), "record")
            self._supply.warn("copies-refused", text, *counts, aborted, about=aborted.about)
            self._supply.targets.refused(aborted.refusals)
            return _refused(batch, aborted.refusals)
        if aborted.metadata_too_long and batch.padded:
            return CommitResult(batch, committed=False, too_long=True)
        named = aborted.refused_offsets & batch.commits.keys()
        if aborted.metadata_too_long:  # Kafka does not say which: the longest is one of them
            named = frozenset({max(written, key=lambda source: len(written[source][1]))})
        if named:
            text = "Kafka refuses the progress of %d of %s: %s"
            self._supply.warn(
                "progress-refused",
                text,
                len(named),
                plural(len(batch.commits), "partition"),
                aborted,
                about=list(map(str, named)),
            )
            return _unwritable(batch, named, str(aborted))
        self._supply.warn("transaction-aborted", "a transaction was aborted and is tried again: %s", aborted)
        if aborted.stale_member:
            self._member_refused()
            self._await_membership(membership)
        else:
            self._stopping.wait(AGAIN_AFTER)
            self._unnamed += 1
            if self._unnamed >= UNNAMED and self._supply.answers():
                return _apart(batch, str(aborted))
        return None

    def _await_membership(self, old: Membership) -> None:
        """Wait until the consumer's thread has renewed the membership: a rebalance is under way."""
        self._assignment.ask_membership()
        end = time.monotonic() + 1.0
        while self._assignment.membership is old and time.monotonic() < end:
            self._stopping.wait(0.01)


def _fenced(batch: CommitBatch, membership: Membership) -> frozenset[Partition]:
    epochs = membership.epochs
    return frozenset(
        source for source, share in batch.commits.items() if epochs.get(share.under or source) != share.epoch
    )


def _without(batch: CommitBatch, fenced: frozenset[Partition]) -> CommitResult:
    again = tuple(entry for entry in batch.entries if entry.record.source not in fenced)
    return CommitResult(batch, committed=False, again=again, fenced=fenced)


def _refused(batch: CommitBatch, refusals: tuple[Refusal, ...]) -> CommitResult:
    by_place = {(refusal.entry.record.source, refusal.entry.record.offset): refusal for refusal in refusals}
    again = tuple(entry for entry in batch.entries if (entry.record.source, entry.record.offset) not in by_place)
    return CommitResult(batch, committed=False, again=again, refused=tuple(by_place.values()))


def _unwritable(batch: CommitBatch, sources: Set[Partition], reason: str) -> CommitResult:
    """Return the result for a batch whose progress Kafka refuses for these partitions."""
    return CommitResult(batch, committed=False, again=batch.entries, unwritable=dict.fromkeys(sources, reason))


def _apart(batch: CommitBatch, reason: str) -> CommitResult:
    """Return the result for a batch that the cluster refuses for a reason that names no cause."""
    if len(batch.entries) == 1:
        return _refused(batch, (Refusal(batch.entries[0], "record", reason),))
    if not batch.entries and len(batch.commits) == 1:
        return _unwritable(batch, batch.commits.keys(), reason)
    return CommitResult(batch, committed=False, again=batch.entries, apart=True)


def result_in_doubt(
    batch: CommitBatch,
    written: Mapping[Partition, tuple[int, str]],
    supply: ReplaceableProducer,
    config: Mapping[str, object],
    stopping: StopRequest,
    sure_after_s: float = SURE_AFTER_S,
) -> CommitResult | None:
    """Return the result of a batch by the committed progress. None if it did not happen, or `stopping` is set.

    `written`: the offsets and metadata that the batch carried. `config`: of a consumer that reads the progress. Asks
    until Kafka answers: to commit again without its word could write every copy twice. The producer was replaced
    before, which ended what the old one had open. That the batch happened is believed at once, and that it did not
    after `sure_after_s` without another answer (`SURE_AFTER_S`).
    """
    credentials = supply.credentials
    pending, reader, denied_since = credentials.pending, None, inf
    topic_partitions = [TopicPartition(*source) for source in batch.commits]
    try:
        while not stopping.is_set():
            try:
                if reader is None:
                    pending, reader = credentials.pending, make_client(Consumer, credentials.newest(config))
                committed = raise_partition_errors(reader.committed(topic_partitions, timeout=ASK_LIMIT))
                result = _result(batch, written, committed)
                denied_since = min(denied_since, now := time.monotonic())
                if (result is not None and result.committed) or now >= denied_since + sure_after_s:
                    return result
                stopping.wait(AGAIN_AFTER)
            except KafkaException as failure:
                denied_since = inf  # the next answer may be another coordinator's
                supply.warn("progress-unanswered", "Kafka does not answer yet which progress is committed: %s", failure)
                stopping.wait(AGAIN_AFTER)
                # Kafka, or the client itself, may refuse the reader's own credentials.
                if reader is not None and credentials.pending is not pending:
                    reader.close()
                    reader = None
    finally:
        if reader is not None:
            reader.close()
    return None


def _result(
    batch: CommitBatch, written: Mapping[Partition, tuple[int, str]], committed: list[TopicPartition]
) -> CommitResult | None:
    if is_written(committed, written):
        return CommitResult(batch, committed=True, done=batch.entries)
    if batch.padded:  # it says what Kafka had before, so only its length is an answer
        return None
    return result_from_progress(batch, _progress(committed))


def is_written(committed: list[TopicPartition], written: Mapping[Partition, tuple[int, str]]) -> bool:
    """Whether the committed offsets and metadata are those of the batch, to the letter."""
    return bool(committed) and all(
        (topic_partition.offset, topic_partition.metadata)
        == written.get(Partition(topic_partition.topic, topic_partition.partition))
        for topic_partition in committed
    )


def _progress(committed: list[TopicPartition]) -> dict[Partition, Progress]:
    sources = {
        Partition(topic_partition.topic, topic_partition.partition): topic_partition for topic_partition in committed
    }
    return {
        source: decode(source, topic_partition.offset, topic_partition.metadata)
        for source, topic_partition in sources.items()
    }


def result_from_progress(batch: CommitBatch, progress: Mapping[Partition, Progress]) -> CommitResult | None:
    """Return what the committed progress says of a batch; None if it covers none of its records."""
    if all(progress[source] == share.progress for source, share in batch.commits.items()):
        return CommitResult(batch, committed=True, done=batch.entries)
    done, again = list[SettledRecord](), list[SettledRecord]()
    for entry in batch.entries:
        source = entry.record.source
        sent = batch.commits[source]
        # Progress with notes is unlike any other, and says nothing of what was settled early.
        is_written = bool(sent.progress.unique) and progress[source] == sent.progress
        is_done = is_written or (not entry.is_early and _covers(progress[source], entry.record, sent))
        (done if is_done else again).append(entry)
    return CommitResult(batch, committed=False, done=tuple(done), again=tuple(again)) if done else None


def _covers(progress: Progress, record: Record, sent: PartitionCommit) -> bool:
    """Whether the progress covers the record. `sent`: its partition's part of the transaction in doubt.

    Progress that was made in a former log of the same name covers no record of this one: it names another log, or all
    of a level's new log is younger than what was read of the old one.
    """
    if is_recreated(progress.log, sent.progress.log):
        return False
    return progress.covers(record.offset) and (progress.last_at_ms is None or progress.last_at_ms >= record.timestamp)


"""Seconds before an aborted batch is tried again. The cause of an abort lasts longer than a network round trip."""
