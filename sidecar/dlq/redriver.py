"""Redrive dead letters: plan it, then bring them back, so that each is redriven once.

`plan_redrive` reads every dead letter that a redrive may take and counts them by outcome; it writes nothing and fences
nobody. `Redriver` carries it out. Copy, event and progress are one transaction. A redrive that was killed and is run
again continues from the progress that Kafka has stored. Of two redrives at once, the later one fences the earlier
(`producer.py`) and only then reads what was done. A record that reaches the DLQ meanwhile lies beyond the end that was
read at the beginning. That is true as well of a redriven letter that has failed again.

In a group whose order survives long waits, a letter goes behind everything of its key that was appended before it is
redriven, also what no instance has read yet: its order is where its main partition ends (`KeyOrders`). Of letters with
the same end, those of a later redrive are behind those of an earlier one, because their sequence numbers begin where
the queue ends.

Invariants: the histories are those that Kafka has, plus what this redrive has committed. What a course has noted covers
every letter below the last one that was taken.

The commands `dlq redrive` and `dlq import`, and the dashboard call it; one thread does one redrive.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition
from msgspec.structs import replace

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dlq.dead_letters import CLIENT, QUIET, DeadLetters, LetterScan
from reconsume.sidecar.dlq.letters import Eligibility, Filter, Letter, RedriveRequest, edited, redrive
from reconsume.sidecar.dlq.producer import MOST_LETTERS, RETRY_AFTER_S, DlqProducer, LetterWriter, SupersededError
from reconsume.sidecar.dlq.redrive_history import (
    LONGEST,
    MOST_LEFT,
    MOST_REDRIVES_EVER,
    RedriveCourse,
    RedriveHistory,
    encode_past,
    fits,
    tidied,
)
from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.hints import absent, hint
from reconsume.sidecar.kafka.client_config import follower_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.committer.target_topics import RefusingPartitions
from reconsume.sidecar.kafka.committer.write_apart import Refusals
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS, sentence_of
from reconsume.sidecar.operation import Report
from reconsume.sidecar.printable import plural
from reconsume.topics.group_rules import number_of
from reconsume.topics.retry_order import LARGEST_OFFSET, Order

MOST_BYTES = 4 * 1024 * 1024
"""Bytes of letters in one transaction."""
REFUSED = "refused"
"""Used beside the values of Eligibility: Kafka does not accept the copy."""
MOST_KINDS = 1_000
OTHERS = "(others)"
SAMPLE = 10
"""Ids that are kept of each group of letters."""
ANY = Order(LARGEST_OFFSET, LARGEST_OFFSET)
"""An order that is none: for what a copy weighs, and where it goes."""


class LetterGroup(NamedTuple):
    """The properties by which letters are counted together."""

    verdict: str
    reason: str
    topic: str
    error: str = ""


class LetterResult(NamedTuple):
    """The outcome of one dead letter. `series`: as in `Letter`."""

    id: str
    position: str
    series: tuple[str, str]
    kind: LetterGroup


@dataclass
class PlanCounts:
    """The number of letters in each group. `most_results`: letters whose own results are kept, the first ones."""

    most_results: int = 0
    counts: Counter[LetterGroup] = field(default_factory=Counter)
    samples: dict[LetterGroup, list[str]] = field(default_factory=dict)
    """The ids of the first letters of each group."""
    results: list[LetterResult] = field(default_factory=list)

    def count(self, letter: Letter, verdict: str, error: str = "") -> None:
        """Count one letter; `error` says why it is not redriven."""
        kind = LetterGroup(str(verdict), letter.reason, letter.topic, error or letter.fault)
        if len(self.results) < self.most_results:
            self.results.append(LetterResult(letter.id, letter.position, letter.series, kind))
        # Any reason is allowed, so there may be any number of groups.
        if len(self.counts) >= MOST_KINDS and kind not in self.counts:
            kind = LetterGroup(kind.verdict, OTHERS, "")
        self.counts[kind] += 1
        sample = self.samples.setdefault(kind, [])
        if len(sample) < SAMPLE:
            sample.append(letter.id)

    def of(self, verdict: str) -> int:
        """Return how many letters have this verdict."""
        return sum(count for kind, count in self.counts.items() if kind.verdict == verdict)

    @property
    def redriven(self) -> int:
        """The number of letters that are redriven, or would be."""
        return self.of(Eligibility.READY)


def why(kind: LetterGroup, most_redrives: int) -> str:
    """Return why the letters of this group are not redriven; empty if they are redriven."""
    match kind.verdict:
        case Eligibility.QUARANTINED:
            return f"came back {most_redrives} times or more; --max-redrives takes more"
        case Eligibility.COPY:
            return "another dead letter with its id and attempt counts"
        case Eligibility.DISMISSED:
            return "dismissed by `settle --commit`"
        case Eligibility.SUPERSEDED:
            return "a reset has had the record delivered again"
        case Eligibility.FORGOTTEN:
            return "so old that Kafka no longer knows whether it was redriven; --forgotten takes it too"
        case _:
            return kind.error


def plan_redrive(letters: DeadLetters, request: RedriveRequest, most: int | None, report: Report) -> PlanCounts:
    """Return what a redrive of at most `most` letters would do.

    Raises BrokerError, and ContractError if a topic does not exist.
    """
    counts = PlanCounts(most_results=len(request.filter.ids))
    with LetterScan(letters, replace(request, topics=letters.policy.topics), report, resumed=True) as scan:
        for letter, verdict in scan:
            if verdict is not None:
                counts.count(letter, verdict)
            if verdict is Eligibility.READY and counts.redriven == most:
                break
    return counts


class Edits(NamedTuple):
    """New values of dead letters by their positions in the DLQ, and their author, whom RETRY_EDITED names."""

    values: Mapping[str, bytes | None]
    who: str

    def applied_to(self, letter: Letter) -> Letter:
        """Return a letter with its new value; as it is without one, and where it has that value."""
        value = self.values.get(letter.position, letter.record.value)
        return letter if value == letter.record.value else edited(letter, value, self.who, now().wall_ms)


class KeyOrders:
    """Knows the places of letters among the records of their keys; used by one thread.

    There are none, and letters go to the ready topic, where neither the configuration nor the group's policy has such a
    ladder. Raises ContractError if a queue topic is missing. Its maker calls `close`.
    """

    def __init__(self, letters: DeadLetters) -> None:
        self._letters, policy = letters, letters.policy
        is_kept = letters.is_queued()
        self.topics = tuple(policy.names.queues_of(policy.topics)) if is_kept else ()
        topics = letters.cluster.find_topics((*self.topics, *policy.topics)) if is_kept else {}
        if missing := sorted(set(self.topics) - topics.keys()):
            raise ContractError(absent(missing))
        self._partitions = frozenset(partition for topic in topics.values() for partition in topic.all_partitions)
        self._consumer: Consumer | None = None

    def close(self) -> None:
        """End the client."""
        if self._consumer is not None:
            self._consumer.close()

    @property
    def target(self) -> str:
        """The topics that letters are redriven to, for users."""
        return ", ".join(self.topics) or self._letters.names.ready

    @property
    def any(self) -> Order | None:
        """An order that only says where a copy goes."""
        return ANY if self.topics else None

    def fault_of(self, letter: Letter) -> str:
        """Return why a letter has no order, as one sentence; empty if it has one, or needs none."""
        lacking = [str(one) for one in self._pair(letter) if one not in self._partitions] if self.topics else []
        return f"there is no {' and no '.join(lacking)}" if lacking else ""

    def of(self, letters: Sequence[Letter]) -> list[Order | None]:
        """Return the order of each of these letters, which go in this order. Raises BrokerError."""
        if not self.topics:
            return [None] * len(letters)
        following: dict[Partition, Order] = {}
        orders = list[Order | None]()
        for letter in letters:
            main, queue = self._pair(letter)
            order = following.get(queue) or Order(self._end_of(main), self._end_of(queue) + 1)
            following[queue] = Order(order.offset, order.sequence + 1)
            orders.append(order)
        return orders

    def _pair(self, letter: Letter) -> tuple[Partition, Partition]:
        """Return the partition of the letter's first copy, and its queue."""
        number = number_of(letter.id)
        return Partition(letter.topic, number), Partition(self._letters.names.ordered(letter.topic), number)

    def _end_of(self, partition: Partition) -> int:
        """Return where a partition ends now, whatever of it is committed."""
        if self._consumer is None:
            config = follower_config(self._letters.cluster.kafka, self._letters.names.redrive_group, CLIENT)
            self._consumer = make_client(Consumer, {**config, **QUIET, "isolation.level": "read_uncommitted"})
        try:
            where = TopicPartition(*partition)
            _, end = self._consumer.get_watermark_offsets(where, timeout=ANSWER_SECONDS, cached=False)
        except KafkaException as failure:
            raise BrokerError(f"the end of {partition} cannot be read: {sentence_of(failure)}") from failure
        return end


class Redriver(LetterWriter):
    """One redrive, from the moment at which it fences all others. A context manager.

    `edits`: new values of letters that the request selects. `counts`: counts the letters; those that it counts as ready
    are redriven.
    """

    def __init__(
        self,
        letters: DeadLetters,
        request: RedriveRequest,
        stop: threading.Event,
        *,
        edits: Edits | None = None,
        counts: PlanCounts | None = None,
    ) -> None:
        letters.expect_targets()
        self.counts = counts or PlanCounts()
        self._edits, self._request = edits, replace(request, topics=letters.policy.topics)
        self._orders = KeyOrders(letters)
        self._refusing = RefusingPartitions()
        """The partitions of the target topics that take no records."""
        self._histories: dict[Partition, RedriveHistory] = {}
        self._courses: dict[Partition, RedriveCourse] = {}
        self._after: Mapping[Partition, RedriveHistory] = {}
        """The histories as they are once the transaction in work is committed."""
        super().__init__(
            letters, letters.batch_limit({letters.names.ready, letters.names.events, *self._orders.topics}), stop
        )

    def __enter__(self) -> Redriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._orders.close()

    @property
    def target(self) -> str:
        """The topic that letters are redriven to."""
        return self._orders.target

    def run(self, most: int | None, rate: float | None, report: Report) -> None:
        """Redrive at most `most` letters, `rate` a second.

        If the stop event is set, the redrive ends early, between two transactions. Raises BrokerError, ContractError,
        SupersededError. Letters that were counted as ready by then are redriven.
        """
        self._reader = self._letters.reader()
        with (
            closing(self._reader),
            LetterScan(self._letters, self._request, report, resumed=True, reader=self._reader) as scan,
        ):
            self._layout, self._histories = scan.whole, scan.histories
            self._courses = {
                partition: RedriveCourse(self._request, self._histories[partition], span.begin)
                for partition, span in scan.spans.items()
            }
            self._redrive_all(scan, most, rate)

    def _redrive_all(self, scan: LetterScan, most: int | None, rate: float | None) -> None:
        size = MOST_LETTERS if rate is None else max(1, min(MOST_LETTERS, int(rate / 2)))
        began, batch, weight, taken = time.monotonic(), list[Letter](), 0, 0
        for letter, verdict in scan:
            source = letter.record.source
            self._courses[source].note(letter, verdict, self._histories[source])
            if self._stop.is_set():
                return
            if verdict is not Eligibility.READY:
                if verdict is not None:
                    self.counts.count(letter, verdict)
                continue
            batch.append(letter if self._edits is None else self._edits.applied_to(letter))
            weight, taken = weight + letter.record.weight, taken + 1
            if len(batch) >= size or weight >= MOST_BYTES or taken == most:
                self.write_letters(batch)
                batch, weight = [], 0
                if rate is not None:
                    self._stop.wait(max(0.0, began + self.counts.redriven / rate - time.monotonic()))
            if taken == most:
                return
        if not self._stop.is_set():
            self.write_letters(batch)

    def _refuse(self, letter: Letter, refusal: Refusal) -> None:
        self.counts.count(letter, REFUSED, refusal.reason)

    def _stopped_text(self, cause: str) -> str:
        return f"the redrive cannot go on: {cause}; run it again, nothing is redriven twice"

    def _write_batch(self, batch: list[Letter], unsent: list[Letter]) -> Refusals | None:
        """Redrive the batch, and record the letters `unsent` as refused. Return those that Kafka refuses."""
        if (refused := self._not_taken(batch)) or not (batch or unsent):
            return refused or None
        self._after = after = self._histories_after(batch, unsent)
        refused_now = super()._write_batch(batch, unsent)
        if refused_now is None:
            self._histories.update(after)
            for partition in after:
                self._courses[partition].committed(_offsets_in(batch, partition), _offsets_in(unsent, partition))
            for letter in batch:
                self.counts.count(letter, Eligibility.READY)
        return refused_now

    def _not_taken(self, batch: Sequence[Letter]) -> Refusals:
        """Return the letters for a partition that took no records a while ago and has not changed since, and those that
        have no order in a queue."""
        if self._refusing:
            self._look_at_targets()
        refusals = dict[int, Refusal]()
        for number, letter in enumerate(batch):
            fault = self._orders.fault_of(letter)
            if not fault and not self._refusing:
                continue
            entry = redrive(letter, self._letters.policy, now().wall_ms, self._orders.any)
            if fault:
                refusals[number] = Refusal(entry, "record", fault)
            elif partition := next(filter(None, map(self._refusing.refuses, entry.writes)), ""):
                refusals[number] = Refusal(entry, "partition", f"{partition} takes no records", partition)
        return refusals

    def _histories_after(self, batch: Sequence[Letter], unsent: Sequence[Letter]) -> dict[Partition, RedriveHistory]:
        """Return the history of every partition of these letters, as it will be after the transaction.

        Raises ContractError if Kafka has no room for it, BrokerError if Kafka refuses too many letters.
        """
        after = {}
        for partition in {letter.record.source for letter in (*batch, *unsent)}:
            history = self._courses[partition].advanced(
                self._histories[partition], _offsets_in(batch, partition), _offsets_in(unsent, partition)
            )
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

    def _entries_of(self, batch: Sequence[Letter]) -> list[SettledRecord]:
        orders, policy = self._orders.of(batch), self._letters.policy
        return [redrive(letter, policy, now().wall_ms, order) for letter, order in zip(batch, orders, strict=True)]

    def _send(self, producer: DlqProducer, entries: Sequence[SettledRecord]) -> None:
        offsets = [
            TopicPartition(*partition, history.next, encode_past(history)) for partition, history in self._after.items()
        ]
        producer.redrive(entries, offsets, self._reader.consumer_group_metadata())

    def _note_refusals(self, refusals: Sequence[Refusal]) -> None:
        for refusal in refusals:
            if refusal.about == "topic":
                raise BrokerError(f"nothing can be redriven now: {refusal.reason}")
        partitions = {refusal.where for refusal in refusals if refusal.about == "partition"}
        if partitions:
            self._look_at_targets()  # first: a partition is tried again once its state has changed
        for partition in partitions:
            self._refusing.refuse(partition)

    def _look_at_targets(self) -> None:
        # Without an answer the partitions stay as they are; the transaction will show it.
        with suppress(KafkaException):
            self._refusing.looked((self._producer or self._renewed()).states())

    def _has_happened(self, _batch: Sequence[Letter], sure_after_s: float) -> bool:
        """Return whether the last transaction was committed. Raises SupersededError if another redrive has committed
        instead."""
        layout = {partition: self._layout[partition] for partition in self._after}
        sure_at = time.monotonic() + sure_after_s
        while True:
            stored = self._letters.histories(layout, self._reader, dismissals=False)
            if all(_same(stored[partition], history) for partition, history in self._after.items()):
                return True
            if not all(_same(stored[partition], self._histories[partition]) for partition in self._after):
                text = "another redrive was at work meanwhile: run this one again, nothing is redriven twice"
                raise SupersededError(text)
            if time.monotonic() >= sure_at:
                return False
            time.sleep(RETRY_AFTER_S)


def _offsets_in(letters: Iterable[Letter], partition: Partition) -> list[int]:
    return [letter.record.offset for letter in letters if letter.record.source == partition]


def _same(one: RedriveHistory, other: RedriveHistory) -> bool:
    return (one.claims, one.done, one.skipped) == (other.claims, other.done, other.skipped)


class Positions(tuple[str, ...]):
    """The positions of letters, found by their hash: a filter asks about each letter of the DLQ."""

    def __new__(cls, positions: Iterable[str]) -> Positions:
        """Make them of texts."""
        made = super().__new__(cls, positions)
        made._set = frozenset(made)
        return made

    _set: frozenset[str]

    def __contains__(self, position: object) -> bool:
        return position in self._set


def at_positions(positions: Iterable[str]) -> RedriveRequest:
    """Return the request for the letters at these positions in the DLQ."""
    return RedriveRequest(Filter(ids=Positions(positions)), MOST_REDRIVES_EVER, forgotten=True)
