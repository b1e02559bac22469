"""Redrive dead letters: copy, event and progress are one transaction, so each letter is redriven once.

A redrive that was killed and is run again continues from the progress that Kafka has stored. Of two redrives at once,
the later one fences the earlier (`producer.py`) and only then reads what was done. A record that reaches the DLQ
meanwhile lies beyond the end that was read at the beginning. That is true as well of a redriven letter that has failed
again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from confluent_kafka import TopicPartition
from msgspec.structs import replace

from sidecar.clock import now
from sidecar.core.commit_batch import Refusal
from sidecar.core.policy import Policy
from sidecar.core.record import Partition
from sidecar.dlq.letters import Eligibility, Letter, RedriveRequest, redrive
from sidecar.dlq.plan import REFUSED, PlanCounts, Told, judged, to_read
from sidecar.dlq.producer import DlqProducer, SupersededError
from sidecar.dlq.redrive_course import Course
from sidecar.dlq.redrive_history import LONGEST, MOST_LEFT, RedriveHistory, encode_past, fits, tidied
from sidecar.dlq.scan import Scan
from sidecar.dlq.topics import DlqTopics, Layout
from sidecar.errors import BrokerError, ContractError
from sidecar.kafka.committer.transaction import Aborted, OutcomeUnknown

TOGETHER = 500
"""Letters in one transaction at most."""
MOST_BYTES = 4 * 1024 * 1024
TRY_FOR = 60.0
"""Seconds during which one transaction is retried: longer than a broker takes to restart."""
AGAIN_AFTER = 0.2


class Redriver:
    """One redrive, from the moment at which it fences all others. A context manager."""

    def __init__(self, topics: DlqTopics, policy: Policy, request: RedriveRequest, stop: threading.Event) -> None:
        topics.expect_targets()
        self.counts = PlanCounts()
        self._topics, self._policy, self._stop = topics, policy, stop
        self._request = replace(request, topics=policy.topics)
        self._reader = topics.reader()
        self._metadata = self._reader.consumer_group_metadata()
        self._graveyard: list[DlqProducer] = []
        """Producers that may have a call under way. They are kept because destroying one may block for ever."""
        try:
            self._producer = DlqProducer(topics.kafka, topics.names)
            self._layout = topics.layout()
            self._pasts = topics.pasts(self._layout, self._reader)
            self._courses = self._begun(self._layout)
        except BaseException:
            self._reader.close()
            raise

    def __enter__(self) -> Redriver:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.end()
        self._reader.close()

    @property
    def target(self) -> str:
        """The topic that letters are redriven to."""
        return self._policy.names.ready

    @property
    def redriven(self) -> int:
        """The number of letters redriven so far."""
        return self.counts.of(Eligibility.READY)

    def run(self, most: int | None, rate: float | None, told: Told) -> None:
        """Redrive at most `most` letters, `rate` a second.

        If the stop event is set, the redrive ends early, between two transactions. Raises BrokerError,
        ContractError, SupersededError. Letters that the tally counts as ready by then are redriven.
        """
        request, size = self._request, TOGETHER if rate is None else max(1, min(TOGETHER, int(rate / 2)))
        began, batch, weight, taken = time.monotonic(), list[Letter](), 0, 0
        stretches = to_read(self._topics, self._layout, request, self._pasts)
        self._courses = self._begun(stretches)
        with Scan(self._topics, stretches) as scan:
            for letter, verdict in judged(scan, request, self._policy, self._pasts):
                self._courses[letter.record.source].note(letter, verdict, self.past_of(letter))
                told(scan, self.redriven)
                if self._stop.is_set():
                    break
                if verdict is not Eligibility.READY:
                    if verdict is not None:
                        self.counts.count(letter, verdict)
                    continue
                batch.append(letter)
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
        return {place: Course(self._request, self._pasts[place], span.begin) for place, span in stretches.items()}

    def past_of(self, letter: Letter) -> RedriveHistory:
        """Return what is known of redrives in the letter's partition."""
        return self._pasts[letter.record.source]

    def commit(self, batch: Sequence[Letter]) -> None:
        """Redrive these letters, in one transaction unless Kafka refuses it.

        A letter that Kafka refuses when it is sent alone is left.
        """
        if not batch:
            return
        reason = self._settle(batch, ())
        if reason is None:
            for letter in batch:
                self.counts.count(letter, Eligibility.READY)
        elif len(batch) == 1:
            self._settle((), batch)
            self.counts.count(batch[0], REFUSED, reason)
        else:  # in halves: with one record that is too large, Kafka refuses those sent together with it
            self.commit(batch[: len(batch) // 2])
            self.commit(batch[len(batch) // 2 :])

    def _settle(self, batch: Sequence[Letter], left: Sequence[Letter]) -> str | None:
        """Commit the batch, and record the letters `left` as refused. Return why Kafka refuses it; None if it does not.

        Raises BrokerError if this is not possible within TRY_FOR, or the stop event is set.
        """
        after, deadline = self._after(batch, left), time.monotonic() + TRY_FOR
        while True:
            done, why = self._try(batch, after)
            if done:
                self._pasts.update(after)
                return None
            if isinstance(why, Refusal):
                return why.reason
            if time.monotonic() > deadline or self._stop.is_set():
                raise BrokerError(f"the redrive cannot go on: {why}; run it again, nothing is redriven twice")
            time.sleep(AGAIN_AFTER)

    def _after(self, batch: Sequence[Letter], unsent: Sequence[Letter]) -> dict[Partition, RedriveHistory]:
        """Return the history of every partition of these letters, as it will be after the transaction.

        Raises ContractError if Kafka has no room for it, BrokerError if Kafka refuses too many letters.
        """
        after = {}
        for place in {letter.record.source for letter in (*batch, *unsent)}:
            taken = [letter.record.offset for letter in batch if letter.record.source == place]
            left = [letter.record.offset for letter in unsent if letter.record.source == place]
            history = self._courses[place].advanced(self._pasts[place], taken, left)
            after[place] = tidied(history, self._layout[place].begin)
            if any(len(claim.left) > MOST_LEFT for claim in history.claims):
                raise BrokerError(f"Kafka refuses more than {MOST_LEFT} dead letters of {place}: see `dlq list`")
            if not fits(after[place]):
                raise ContractError(
                    f"the progress of redrives in {place} would need more than the {LONGEST} characters that Kafka "
                    f"keeps: {len(history.claims)} filters and {len(history.done)} single letters; a redrive without "
                    "filters makes those it covers needless"
                )
        return after

    def _try(self, batch: Sequence[Letter], after: Mapping[Partition, RedriveHistory]) -> tuple[bool, Refusal | str]:
        """Try the transaction once. Return whether it was committed, and if not, why.

        Raises BrokerError if a target topic cannot be written at all.
        """
        entries = [redrive(letter, self._policy, now().wall) for letter in batch]
        try:
            self._producer.redrive(entries, _offsets(after), self._metadata)
        except Aborted as aborted:
            refusals = aborted.refusals
            if refusals and refusals[0].about != "record":
                raise BrokerError(f"nothing can be redriven now: {refusals[0].reason}") from aborted
            if aborted.producer_unusable:
                self._producer.end()
                return self._renewed(after), str(aborted)
            return False, refusals[0] if refusals else str(aborted)
        except OutcomeUnknown as unsure:
            self._graveyard.append(self._producer)
            return self._renewed(after), str(unsure)
        return True, ""

    def _renewed(self, after: Mapping[Partition, RedriveHistory]) -> bool:
        """Replace the producer, which ends a hanging transaction. Return whether the transaction was committed.

        Raises SupersededError if another redrive has committed instead.
        """
        self._producer = DlqProducer(self._topics.kafka, self._topics.names)
        found = self._topics.pasts({place: self._layout[place] for place in after}, self._reader)
        if all(_same(found[place], history) for place, history in after.items()):
            return True
        if all(_same(found[place], self._pasts[place]) for place in after):
            return False
        raise SupersededError("another redrive was at work meanwhile: run this one again, nothing is redriven twice")

    def _pace(self, began: float, rate: float | None) -> None:
        if rate is not None:
            self._stop.wait(max(0.0, began + self.redriven / rate - time.monotonic()))


def _same(one: RedriveHistory, other: RedriveHistory) -> bool:
    return (one.claims, one.done) == (other.claims, other.done)


def _offsets(after: Mapping[Partition, RedriveHistory]) -> list[TopicPartition]:
    return [TopicPartition(*place, history.next, encode_past(history)) for place, history in after.items()]
