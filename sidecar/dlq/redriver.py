"""Redrive dead letters: copy, event and progress are one transaction, so each letter is redriven once.

A redrive that was killed and is run again continues from the progress that Kafka has stored. Of two redrives at once,
the later one fences the earlier (`producer.py`) and only then reads what was done. A record that reaches the DLQ
meanwhile lies beyond the end that was read at the beginning. That is true as well of a redriven letter that has failed
again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress

from confluent_kafka import KafkaException, TopicPartition
from msgspec.structs import replace

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.commit_batch import Refusal
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dlq.copies import with_copies
from reconsume.sidecar.dlq.key_orders import KeyOrders
from reconsume.sidecar.dlq.letters import Eligibility, Letter, RedriveRequest
from reconsume.sidecar.dlq.plan import REFUSED, PlanCounts, Progress, judged, to_read
from reconsume.sidecar.dlq.producer import DlqProducer, SupersededError
from reconsume.sidecar.dlq.redrive_history import LONGEST, MOST_LEFT, RedriveHistory, encode_past, fits, tidied
from reconsume.sidecar.dlq.redrive_target import redrive, target_of
from reconsume.sidecar.dlq.redriven_range import Course
from reconsume.sidecar.dlq.scan import Scan
from reconsume.sidecar.dlq.topics import DlqTopics, Layout
from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.committer.refusing_partitions import RefusingPartitions
from reconsume.sidecar.kafka.committer.transaction_outcome import Aborted, OutcomeUnknown
from reconsume.sidecar.kafka.committer.unknown_outcome import SURE_AFTER_S
from reconsume.sidecar.kafka.committer.write_apart import ApartWriter, Refusals, by_number, copy_sizes
from reconsume.sidecar.printable import plural

MOST_LETTERS = 500
"""Letters in one transaction at most."""
MOST_BYTES = 4 * 1024 * 1024
TRY_FOR = 60.0
"""Seconds during which one transaction is retried: longer than a broker takes to restart."""
RETRY_AFTER_S = 0.2


UNNAMED = 3
"""Aborts in a row that name no letter. After so many, smaller transactions must find the letter that is the cause."""


class Redriver:
    """One redrive, from the moment at which it fences all others. A context manager."""

    def __init__(
        self,
        topics: DlqTopics,
        policy: Policy,
        request: RedriveRequest,
        stop: threading.Event,
        *,
        edit: Callable[[Letter], Letter] | None = None,
        counts: PlanCounts | None = None,
    ) -> None:
        """Fence all other redrives. `edit`: returns what is sent for a letter that the request selects; None: the
        letter itself. `counts`: counts the letters."""
        topics.expect_targets()
        self.counts = counts or PlanCounts()
        self._edit = edit
        self._topics, self._policy, self._stop = topics, policy, stop
        self._request = replace(request, topics=policy.topics)
        self._orders = KeyOrders(topics, policy)
        self._limit = topics.batch_limit({policy.names.ready, policy.names.events, *self._orders.topics})
        self._letters = ApartWriter[Letter](self._sizes, self._limit)
        self._refusing = RefusingPartitions()
        """The partitions of the target topics that take no records."""
        with ExitStack() as made:
            self._reader = topics.reader()
            made.callback(self._reader.close)
            self._metadata = self._reader.consumer_group_metadata()
            self._producer: DlqProducer | None = DlqProducer(topics.kafka, topics.names, self._limit)
            made.callback(self._producer.end)
            self._layout = topics.layout()
            self._pasts = topics.pasts(self._layout, self._reader)
            self._courses = self._begun(self._layout)
            made.pop_all()

    def __enter__(self) -> Redriver:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_producer()
        self._reader.close()
        self._orders.close()

    def _end_producer(self) -> None:
        if self._producer is not None:
            self._producer.end()
            self._producer = None

    @property
    def target(self) -> str:
        """The topic that letters are redriven to."""
        return target_of(self._policy.names, self._orders.topics)

    @property
    def redriven(self) -> int:
        """The number of letters redriven so far."""
        return self.counts.of(Eligibility.READY)

    def run(self, most: int | None, rate: float | None, progress: Progress) -> None:
        """Redrive at most `most` letters, `rate` a second.

        If the stop event is set, the redrive ends early, between two transactions. Raises BrokerError,
        ContractError, SupersededError. Letters that the tally counts as ready by then are redriven.
        """
        request, size = self._request, MOST_LETTERS if rate is None else max(1, min(MOST_LETTERS, int(rate / 2)))
        self._pasts = with_copies(self._topics, self._policy, self._layout, self._pasts, progress)
        began, batch, weight, taken = time.monotonic(), list[Letter](), 0, 0
        stretches = to_read(self._topics, self._layout, request, self._pasts)
        self._courses = self._begun(stretches)
        with Scan(self._topics, stretches) as scan:
            for letter, verdict in judged(scan, request, self._policy, self._pasts):
                self._courses[letter.record.source].note(letter, verdict, self.past_of(letter))
                progress(scan, self.redriven)
                if self._stop.is_set():
                    break
                if verdict is not Eligibility.READY:
                    if verdict is not None:
                        self.counts.count(letter, verdict)
                    continue
                batch.append(letter if self._edit is None else self._edit(letter))
                weight, taken = weight + letter.record.weight, taken + 1
                if len(batch) >= size or weight >= MOST_BYTES or taken == most:
                    self.commit(batch)
                    batch, weight = [], 0
                    self._pace(began, rate)
                if taken == most:
                    break
            if not self._stop.is_set():
                self.commit(batch)
            self.counts.complete, self.counts.scanned = scan.complete and not self._stop.is_set(), scan.read

    def _begun(self, stretches: Layout) -> dict[Partition, Course]:
        return {
            partition: Course(self._request, self._pasts[partition], span.begin)
            for partition, span in stretches.items()
        }

    def past_of(self, letter: Letter) -> RedriveHistory:
        """Return what is known of redrives in the letter's partition."""
        return self._pasts[letter.record.source]

    def commit(self, batch: Sequence[Letter]) -> None:
        """Redrive these letters, in one transaction unless Kafka refuses it. A letter that Kafka refuses is left.

        Raises BrokerError if it is not possible within TRY_FOR, or the stop event is set.
        """
        self._letters.write(batch, self._settle, lambda letter, why: self.counts.count(letter, REFUSED, why.reason))

    def _sizes(self, letter: Letter) -> Iterable[tuple[str, int]]:
        return copy_sizes(redrive(letter, self._policy, 0, self._orders.any).writes)

    def _settle(self, batch: list[Letter], unsent: list[Letter]) -> Refusals | None:
        """Commit the batch, and record the letters `unsent` as refused. Return the letters that Kafka refuses."""
        if (refused := self._takes_none(batch)) or not (batch or unsent):
            return refused or None
        after, deadline, unnamed = self._after(batch, unsent), time.monotonic() + TRY_FOR, 0
        while True:
            why = self._try(batch, after)
            if why is None:
                self._pasts.update(after)
                for partition in after:
                    self._courses[partition].committed(_offsets_in(batch, partition), _offsets_in(unsent, partition))
                for letter in batch:
                    self.counts.count(letter, Eligibility.READY)
                return None
            if not isinstance(why, str):
                return why
            unnamed += 1
            if unnamed >= UNNAMED and len(batch) > 1:
                return {}
            if time.monotonic() > deadline or self._stop.is_set():
                raise BrokerError(f"the redrive cannot go on: {why}; run it again, nothing is redriven twice")
            time.sleep(RETRY_AFTER_S)

    def _takes_none(self, batch: Sequence[Letter]) -> Refusals:
        """Return the letters for a partition that took no records a while ago and has not changed since, and those that
        have no order in a queue."""
        refusals = dict[int, Refusal]()
        for number, letter in enumerate(batch):
            if fault := self._orders.fault_of(letter):
                entry = redrive(letter, self._policy, now().wall_ms, self._orders.any)
                refusals[number] = Refusal(entry, "record", fault)
        if refusals or not self._refusing:
            return refusals
        self._look_at_targets()
        for number, letter in enumerate(batch):
            entry = redrive(letter, self._policy, now().wall_ms, self._orders.any)
            if partition := next(filter(None, map(self._refusing.refuses, entry.writes)), ""):
                refusals[number] = Refusal(entry, "partition", f"{partition} takes no records", partition)
        return refusals

    def _after(self, batch: Sequence[Letter], unsent: Sequence[Letter]) -> dict[Partition, RedriveHistory]:
        """Return the history of every partition of these letters, as it will be after the transaction.

        Raises ContractError if Kafka has no room for it, BrokerError if Kafka refuses too many letters.
        """
        after = {}
        for partition in {letter.record.source for letter in (*batch, *unsent)}:
            taken, kept = _offsets_in(batch, partition), _offsets_in(unsent, partition)
            history = self._courses[partition].advanced(self._pasts[partition], taken, kept)
            after[partition] = tidied(history, self._layout[partition].begin)
            if any(len(claim.left) > MOST_LEFT for claim in history.claims):
                raise BrokerError(
                    f"Kafka refuses more than {MOST_LEFT} dead letters of {partition}: see `{hint('dlq list')}`"
                )
            if not fits(after[partition]):
                raise ContractError(
                    f"the progress of redrives in {partition} would need more than the {LONGEST} characters that Kafka "
                    f"keeps: {plural(len(history.claims), 'filter')}, {plural(len(history.done), 'single letter')} and "
                    f"{plural(len(history.skipped.ranges), 'range')} of copies; a redrive without filters makes the "
                    "filters and letters that it covers needless, and one with --since that begins after the copies "
                    "needs no range of them"
                )
        return after

    def _try(self, batch: Sequence[Letter], after: Mapping[Partition, RedriveHistory]) -> Refusals | str | None:
        """Try the transaction once. Return the letters that Kafka refuses, or why it failed; None if it was committed.

        Raises BrokerError if a target topic cannot be written at all.
        """
        orders = self._orders.of(batch)
        entries = [
            redrive(letter, self._policy, now().wall_ms, order) for letter, order in zip(batch, orders, strict=True)
        ]
        producer = self._producer or self._renewed()
        try:
            producer.redrive(entries, _offsets(after), self._metadata)
        except Aborted as aborted:
            refusals, why, unusable, sure_after_s = aborted.refusals, str(aborted), aborted.producer_unusable, 0.0
        except OutcomeUnknown as unsure:
            refusals, why, unusable, sure_after_s = (), str(unsure), True, SURE_AFTER_S
        else:
            return None
        self._expect_topics(refusals)
        if unusable and self._happened(after, sure_after_s):
            return None
        self._note_refusing(refusals)
        return by_number(entries, refusals) if refusals else why

    def _expect_topics(self, refusals: Iterable[Refusal]) -> None:
        for refusal in refusals:
            if refusal.about == "topic":
                raise BrokerError(f"nothing can be redriven now: {refusal.reason}")

    def _note_refusing(self, refusals: Iterable[Refusal]) -> None:
        partitions = {refusal.where for refusal in refusals if refusal.about == "partition"}
        if partitions:
            self._look_at_targets()  # first: a partition is tried again once its state has changed
        for partition in partitions:
            self._refusing.refuse(partition)

    def _look_at_targets(self) -> None:
        # Without an answer the partitions stay as they are; the transaction will show it.
        with suppress(KafkaException):
            self._refusing.looked((self._producer or self._renewed()).states())

    def _renewed(self) -> DlqProducer:
        """Replace the producer. The new one ends a hanging transaction of the old one."""
        self._end_producer()
        self._producer = DlqProducer(self._topics.kafka, self._topics.names, self._limit)
        return self._producer

    def _happened(self, after: Mapping[Partition, RedriveHistory], sure_after_s: float) -> bool:
        """Replace the producer, and return whether the last transaction was committed.

        That it was not must be so for `sure_after_s`: see `SURE_AFTER_S`. Raises SupersededError if another redrive has
        committed instead.
        """
        self._renewed()
        layout = {partition: self._layout[partition] for partition in after}
        sure_at = time.monotonic() + sure_after_s
        while True:
            pasts = self._topics.pasts(layout, self._reader, dismissals=False)
            if all(_same(pasts[partition], history) for partition, history in after.items()):
                return True
            if not all(_same(pasts[partition], self._pasts[partition]) for partition in after):
                text = "another redrive was at work meanwhile: run this one again, nothing is redriven twice"
                raise SupersededError(text)
            if time.monotonic() >= sure_at:
                return False
            time.sleep(RETRY_AFTER_S)

    def _pace(self, began: float, rate: float | None) -> None:
        if rate is not None:
            self._stop.wait(max(0.0, began + self.redriven / rate - time.monotonic()))


def _offsets_in(letters: Iterable[Letter], partition: Partition) -> list[int]:
    return [letter.record.offset for letter in letters if letter.record.source == partition]


def _same(one: RedriveHistory, other: RedriveHistory) -> bool:
    return (one.claims, one.done, one.skipped) == (other.claims, other.done, other.skipped)


def _offsets(after: Mapping[Partition, RedriveHistory]) -> list[TopicPartition]:
    return [TopicPartition(*partition, history.next, encode_past(history)) for partition, history in after.items()]
