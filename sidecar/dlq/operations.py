"""What an operator does about dead letters, as operations (`sidecar/operation.py`).

Redrive, dismiss and purge: each plans, runs, and says what was done. The texts and the rows are here, so that a command
and a page say the same. An import has its own stream of rows (`archive.py`), and what waits is settled in
`settle_waiting.py`. How a redrive and a dismissal are done is in `redriver.py` and `dismissals.py`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from reconsume.sidecar.clock import utc
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dlq.dead_letters import DeadLetters, LetterScan, SearchResult
from reconsume.sidecar.dlq.dismissals import (
    Dismissed,
    dismiss,
    dismissal_of,
    expect_room,
    fault_of_dismissal,
    forget_gone,
)
from reconsume.sidecar.dlq.letters import FILTER_FIELDS, OPEN, Eligibility, Filter, Letter, RedriveRequest, target_of
from reconsume.sidecar.dlq.redrive_history import MOST_REDRIVES_EVER
from reconsume.sidecar.dlq.redriver import REFUSED, PlanCounts, Redriver, plan_redrive, why
from reconsume.sidecar.dlq.settle_request import NOTHING_WRITTEN, ONE_COLUMNS, SettleRequest
from reconsume.sidecar.errors import BrokerError, LetterError
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.changes import TopicAdmin
from reconsume.sidecar.kafka.admin.descriptions import PartitionName
from reconsume.sidecar.operation import Outcome, Plan, Report, Row, Status
from reconsume.sidecar.printable import plural, printable
from reconsume.topics.retry_headers import LARGEST_LONG

REDRIVE_COLUMNS = ("action", "reason", "topic", "target", "letters", "why")
PURGE_COLUMNS = ("partition", "delete", "never_redriven", "stays_behind", "older", "error")
NO_LETTERS = "there are no such dead letters"
NOT_DISMISSED = {
    Eligibility.REDRIVEN: ("dead letter", "redriven before"),
    Eligibility.COPY: ("copy", "of another one"),
    Eligibility.DISMISSED: ("dead letter", "dismissed before"),
    Eligibility.SUPERSEDED: ("dead letter", "superseded by a reset"),
    Eligibility.UNFIT: ("dead letter", "without readable headers"),
}
"""What a dismissal of many leaves: the noun that is counted, in the singular, and why."""
PLANNED = {Eligibility.READY: "redrive", Eligibility.REDRIVEN: "redriven before"}
REDRIVEN = {**PLANNED, Eligibility.READY: "redriven"}
"""What happens to a letter, in words; of others it is their state."""


def filter_words(conditions: Filter) -> str:
    """Return the conditions of a filter in words, for the list of actions; `all` if it has none.

    Keys, headers and texts of values are counted and not named: they may be personal data.
    """
    words = list[str]()
    for field in FILTER_FIELDS:
        if texts := getattr(conditions, field.member):
            words.append(plural(len(texts), field.noun) if field.noun else f"{field.name} {' or '.join(texts)}")
    words += [f"since {utc(conditions.since)}"] if conditions.since else []
    words += [f"until {utc(conditions.until)}"] if conditions.until < LARGEST_LONG else []
    return ", ".join(words) or "all"


class Redrive:
    """Bring dead letters back: at most `most`, `rate` a second."""

    action, why = "redrive", ""

    def __init__(
        self,
        letters: DeadLetters,
        request: RedriveRequest,
        most: int | None = None,
        rate: float | None = None,
    ) -> None:
        self._letters, self.request, self.most, self.rate = letters, request, most, rate
        self.target = target_of(letters.policy, queued=letters.policy.queued)
        self.planned, self.counts = PlanCounts(), PlanCounts()

    @property
    def what(self) -> str:
        """Which dead letters are meant, in words."""
        return filter_words(self.request.filter)

    @property
    def changed(self) -> int:
        """How many letters were redriven so far."""
        return self.counts.redriven

    def plan(self, report: Report) -> Plan:
        """Count what a redrive would take. Raises BrokerError, ContractError, and LetterError if no id is known."""
        self.planned = planned = plan_redrive(self._letters, self.request, self.most, report)
        self.target = target_of(self._letters.policy, queued=self._letters.is_queued())
        ids = self.request.filter.ids
        if ids and not planned.counts:
            more = "" if self.request.filter == Filter(ids=ids) else " that meets the other conditions"
            raise LetterError(f"there is no dead letter {printable(' or '.join(ids))}{more}")
        ready = planned.redriven
        question = f"Redrive {plural(ready, 'dead letter')} to {self.target}?" if ready else ""
        matching = plural(planned.counts.total(), "dead letter")
        none_ready = "none of them can be redriven" if planned.counts else NO_LETTERS
        nothing = f"{ready} of {matching} would be redriven" if ready else none_ready
        return Plan(REDRIVE_COLUMNS, self._rows(planned, PLANNED), question, nothing)

    def run(self, report: Report, stop: threading.Event) -> None:
        """Redrive them. Raises BrokerError, ContractError and SupersededError."""
        with Redriver(self._letters, self.request, stop, counts=self.counts) as redriver:
            self.target = redriver.target
            redriver.run(self.most, self.rate, report)

    def outcome(self) -> Outcome:
        """Return what became of each kind of letter: PARTLY if Kafka has refused some, FAILED if it has refused all."""
        counts = self.counts
        sentences = [f"{counts.redriven} redriven to {self.target}"]
        status = Status.DONE
        if refused := counts.of(REFUSED):
            sentences.append(f"{refused} were refused by Kafka and stay in the DLQ; the next run tries them again")
            status = Status.PARTLY if counts.redriven else Status.FAILED
        return Outcome(self._rows(counts, REDRIVEN), sentences, status)

    def _rows(self, counts: PlanCounts, words: dict[Eligibility, str]) -> list[Row]:
        """Return a row for each kind of letter, the redriven ones first."""
        kinds = sorted(
            counts.counts.items(), key=lambda item: (item[0].verdict != Eligibility.READY, -item[1], item[0])
        )
        return [
            {
                "action": words.get(kind.verdict, kind.verdict),  # type: ignore[call-overload]  # a StrEnum is its value
                "reason": kind.reason,
                "topic": kind.topic,
                "target": self.target if kind.verdict == Eligibility.READY else "",
                "letters": count,
                "why": why(kind, self.request.most_redrives),
                "ids": counts.samples[kind],
            }
            for kind, count in kinds
        ]


# --- dismissals ---


class Dismissal:
    """Dismiss dead letters for good: those that `find` returns, with their states. `request`: why, and who decides.

    Where it `is_of_one` letter, one that cannot be dismissed is an error, and of one that was dismissed before only the
    event is written again: it may be missing. Otherwise the plan counts these.
    """

    action = "dismiss"

    def __init__(
        self,
        letters: DeadLetters,
        find: Callable[[Report], SearchResult],
        request: SettleRequest,
        *,
        is_of_one: bool = False,
    ) -> None:
        self._letters, self._find, self._is_of_one = letters, find, is_of_one
        self.why, self._by, self.what = request.why, request.by, request.id
        self.good = list[Letter]()
        self.done = Dismissed((), ())
        self._before = ""
        """Who dismissed the letter before, as one sentence; empty if nobody did."""

    @property
    def changed(self) -> int:
        """How many letters were dismissed."""
        return len(self.done.ids)

    def plan(self, report: Report) -> Plan:
        """Find what can be dismissed. Raises BrokerError, LetterError, and ContractError if there is no room."""
        search = self._find(report)
        states, kept_counts = list[Eligibility](), Counter[Eligibility]()
        for letter, state in search.letters:
            fault = fault_of_dismissal(letter, state)
            if not self._is_of_one and (fault or state is Eligibility.DISMISSED):
                kept_counts[state] += 1
            elif fault:
                raise LetterError(fault)
            else:
                self.good.append(letter)
                states.append(state)
        remaining = [
            f"{plural(count, noun)} {why_left}"
            for state, count in kept_counts.most_common()
            for noun, why_left in [NOT_DISMISSED.get(state, NOT_DISMISSED[Eligibility.UNFIT])]
        ]
        remarks = [f"left: {', '.join(remaining)}"] if remaining else []
        if search.cut:
            remarks.append("older dead letters that match were not looked at: they stay")
        if not self.good:
            return Plan(ONE_COLUMNS, [], "", "none of them can be dismissed" if remaining else NO_LETTERS, remarks)
        settlements = expect_room(self._letters, sum(state is not Eligibility.DISMISSED for state in states))
        question, nothing = f"Dismiss {self._named()} for good?", NOTHING_WRITTEN
        if self._is_of_one and (kept := dismissal_of(self.good[0], settlements)) is not None:
            other = "" if kept.why == self.why else ": the new reason is not kept"
            self._before = f"{self.good[0].id} was dismissed before by {kept.who}, because {kept.why}{other}"
            self.why, question, nothing = kept.why, "Write its event again?", self._before
        rows = [self._row(letter, state) for letter, state in zip(self.good, states, strict=True)]
        return Plan(ONE_COLUMNS, rows, question, nothing, remarks)

    def _named(self) -> str:
        return printable(self.good[0].id) if self._is_of_one else plural(len(self.good), "dead letter")

    def _row(self, letter: Letter, state: Eligibility) -> Row:
        return {
            "id": letter.id,
            "place": letter.position,
            "reason": letter.reason,
            "text": letter.text,
            "was": str(state),
            "is": str(Eligibility.DISMISSED),
            "why": self.why,
        }

    def run(self, _report: Report, _stop: threading.Event) -> None:
        """Dismiss what the plan has search. Raises BrokerError."""
        if self.good:
            self.done = dismiss(self._letters, self.good, self._letters.settlements(), self.why, self._by)

    def outcome(self) -> Outcome:
        """Say what was dismissed: PARTLY if the decisions are written and their events are not."""
        if self.done.event_fault:
            sentence = f"dismissed, but {self.done.event_fault}; the same command tries it again"
            return Outcome([], [sentence], Status.PARTLY)
        if self._before:
            return Outcome([], [f"{self._before}; only its event is written again"])
        where = f"only `{hint('dlq list --all')}` has what is dismissed, and no redrive takes it"
        return Outcome([], [f"dismissed {self._named()}: {where}"])


# --- purge ---

EVERY_LETTER = RedriveRequest(Filter(), MOST_REDRIVES_EVER, forgotten=True)
"""A request that selects every letter. With it, each letter is checked for an earlier redrive."""


@dataclass
class Deletion:
    """The deletion in one partition. All records below the offset `before` are deleted."""

    before: int
    deleted: int = 0
    open: int = 0
    """The number of deleted letters that were never redriven."""
    older: int = 0
    """Letters before the time range. They stay, and keep the letters behind them from being deleted."""
    behind: int = 0
    """Selected letters that stay because they lie behind one that stays."""
    error: str = ""


class PurgeLetters:
    """Delete dead letters for good: those that died since `since` and before `until` (epoch ms).

    Kafka deletes only from the beginning of a partition. So in each partition the letters before the first one that
    must stay are deleted, and selected letters behind that one stay too. `warn`: gets a sentence if the decisions about
    letters that are gone could not be deleted.
    """

    action, why = "purge", ""

    def __init__(self, letters: DeadLetters, conditions: Filter, warn: Callable[[str], None]) -> None:
        self._letters, self._conditions, self._warn = letters, conditions, warn
        self.what = filter_words(conditions)
        self._deletions: dict[Partition, Deletion] = {}

    def plan(self, report: Report) -> Plan:
        """Look at every letter. Raises BrokerError and ContractError."""
        since, until, keeping = self._conditions.since, self._conditions.until, set[Partition]()
        with LetterScan(self._letters, EVERY_LETTER, report) as scan:
            self._deletions = {
                partition: Deletion(span.begin) for partition, span in scan.whole.items() if span.begin < span.end
            }
            for letter, state in scan:
                partition, timestamp = letter.record.source, letter.record.timestamp
                deletion = self._deletions[partition]
                deletion.older += timestamp < since
                if not since <= timestamp < until:
                    keeping.add(partition)
                elif partition in keeping:
                    deletion.behind += 1
                else:
                    deletion.deleted, deletion.before = deletion.deleted + 1, letter.record.offset + 1
                    deletion.open += state in OPEN
        total, never_redriven = self._count("deleted"), self._count("open")
        verb = "goes" if total == 1 else "go"
        remarks = [f"{plural(total, 'dead letter')} {verb}, {never_redriven} of them never redriven"]
        if behind := self._count("behind"):
            remarks.append(
                f"{behind} that are meant cannot go: they lie behind {self._count('older')} older ones or newer ones "
                "that stay, and Kafka deletes only from the beginning"
            )
        group = self._letters.names.group
        question = f"Type {group} to delete {plural(total, 'dead letter')} for good" if total else ""
        return Plan(PURGE_COLUMNS, self._rows(), question, "", remarks, group)

    def _count(self, what: str) -> int:
        return sum(getattr(deletion, what) for deletion in self._deletions.values())

    @property
    def changed(self) -> int:
        """How many letters were deleted."""
        return sum(deletion.deleted for deletion in self._deletions.values() if not deletion.error)

    def run(self, _report: Report, _stop: threading.Event) -> None:
        """Delete them. Raises BrokerError."""
        before: dict[PartitionName, int] = {
            partition: deletion.before for partition, deletion in self._deletions.items() if deletion.deleted
        }
        for partition, error in TopicAdmin(self._letters.cluster).delete_records(before).items():
            self._deletions[Partition(*partition)].error = error
        try:
            forget_gone(self._letters)
        except BrokerError as fault:  # the letters are deleted all the same, and the next purge tries again
            self._warn(f"warning: {fault}")

    def outcome(self) -> Outcome:
        """Return what was deleted: PARTLY if Kafka refused to delete from some partitions, FAILED if from all."""
        is_refused = any(deletion.error for deletion in self._deletions.values())
        status = Status.PARTLY if self.changed else Status.FAILED
        return Outcome(self._rows(), [], status if is_refused else Status.DONE)

    def _rows(self) -> list[Row]:
        """Return a row for each partition that is not empty."""
        return [
            {
                "partition": str(partition),
                "delete": deletion.deleted,
                "never_redriven": deletion.open,
                "stays_behind": deletion.behind,
                "older": deletion.older,
                "error": deletion.error,
            }
            for partition, deletion in sorted(self._deletions.items())
        ]
