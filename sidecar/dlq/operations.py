"""What an operator does about dead letters and records that wait, as operations (`sidecar/operation.py`).

Redrive, dismiss, settle (one record, or all that is parked) and purge: each plans, runs, and says what was done. The
texts and the rows are here, so that a command and a page say the same. An import has its own stream of rows
(`archive.py`). How each is done is in `redriver.py`, `settle.py` and `purge.py`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from reconsume.sidecar.clock import utc
from reconsume.sidecar.core.waiting_keys import WaitingKey
from reconsume.sidecar.dlq.dead_letters import DeadLetters, SearchResult
from reconsume.sidecar.dlq.letters import FILTER_FIELDS, Eligibility, Filter, Letter, RedriveRequest, target_of
from reconsume.sidecar.dlq.purge import Purge
from reconsume.sidecar.dlq.redriver import REFUSED, PlanCounts, Redriver, plan_redrive, why
from reconsume.sidecar.dlq.settle import (
    Dismissed,
    Ended,
    ReadEvents,
    Settler,
    WaitingRecord,
    decision_of,
    dismiss,
    expect_room,
    fault_of_dismissal,
    forget_gone,
)
from reconsume.sidecar.dlq.settle_request import Decided, SettleRequest
from reconsume.sidecar.errors import BrokerError, LetterError
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.queues.queue_listing import WaitingScan
from reconsume.sidecar.operation import Outcome, Plan, Report, Row, Status
from reconsume.sidecar.printable import plural, printable
from reconsume.topics.attempt import attempt_of
from reconsume.topics.decision_record import RETRY_NOW
from reconsume.topics.events import State
from reconsume.topics.reasons import reason_class, text_of
from reconsume.topics.retry_headers import LARGEST_LONG

REDRIVE_COLUMNS = ("action", "reason", "topic", "target", "letters", "why")
SETTLE_COLUMNS = ("id", "place", "reason", "was", "is", "why")
PARKED_COLUMNS = ("id", "key", "behind", "reason", "was", "is", "why")
PURGE_COLUMNS = ("partition", "delete", "never_redriven", "stays_behind", "older", "error")
NOTHING_WRITTEN = "nothing was written"
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
    """Bring dead letters back: at most `most`, `rate` a second. `most_results`: letters whose results are kept."""

    action, why = "redrive", ""

    def __init__(
        self,
        letters: DeadLetters,
        request: RedriveRequest,
        most: int | None = None,
        rate: float | None = None,
        most_results: int = 0,
    ) -> None:
        self._letters, self.request, self.most, self.rate = letters, request, most, rate
        self.target = target_of(letters.policy, queued=letters.policy.queued)
        self.planned, self.counts = PlanCounts(), PlanCounts(most_results)

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
        nothing = f"{ready} of {matching} would be redriven" if ready else "there is nothing to redrive"
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

    With `events`, which reads the events of a record, it is about one letter: one that cannot be dismissed is an error,
    and of one that was dismissed before only the event is written, if it is missing. Without, `kept_counts` counts
    these.
    """

    action = "dismiss"

    def __init__(
        self,
        letters: DeadLetters,
        find: Callable[[Report], SearchResult],
        request: SettleRequest,
        events: ReadEvents | None = None,
    ) -> None:
        self._letters, self._find, self._events = letters, find, events
        self.why, self._by, self.what = request.why, request.by, request.id
        self.good, self.kept_counts = list[Letter](), Counter[Eligibility]()
        self.cut = False
        """Whether older letters were not looked at."""
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
        self.cut, states = search.cut, list[Eligibility]()
        for letter, state in search.letters:
            fault = fault_of_dismissal(letter, state)
            if self._events is None and (fault or state is Eligibility.DISMISSED):
                self.kept_counts[state] += 1
            elif fault:
                raise LetterError(fault)
            else:
                self.good.append(letter)
                states.append(state)
        if not self.good:
            return Plan(SETTLE_COLUMNS, [], "", NOTHING_WRITTEN)
        settlements = expect_room(self._letters, sum(state is not Eligibility.DISMISSED for state in states))
        question, nothing = f"Dismiss {self._named()} for good?", NOTHING_WRITTEN
        if (kept := decision_of(self.good[0], settlements)) is not None and self._events is not None:
            other = "" if kept.why == self.why else ": the new reason is not kept"
            self._before = f"{self.good[0].id} was dismissed before by {kept.who}, because {kept.why}{other}"
            self.why = kept.why
            events = self._events(self.good[0].id, kept.at)
            if any((one.state, attempt_of(one)) == (State.DISMISSED, attempt_of(kept)) for one in events):
                question, nothing = "", self._before
        rows = [self._row(letter, state) for letter, state in zip(self.good, states, strict=True)]
        return Plan(SETTLE_COLUMNS, rows, question, nothing)

    def _named(self) -> str:
        return plural(len(self.good), "dead letter") if self._events is None else printable(self.good[0].id)

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
            return Outcome([], [f"{self._before}; only its event was missing, and is written now"])
        all_of_them = f"`{hint('dlq list --all')}` shows it"
        return Outcome([], [f"dismissed {self._named()}: it is in no list and no redrive any more; {all_of_them}"])


# --- records that wait ---


class SettleWaiting:
    """Settle one record that waits in a queue. `record`: as `Settler.find` has returned it."""

    action = "settle"

    def __init__(self, settler: Settler, record: WaitingRecord, request: SettleRequest) -> None:
        self._settler, self._record, self._request = settler, record, request
        self.what, self.why = f"{request.id}: {request.end}", request.why
        self.decided = Decided(None)
        self._end = request.end

    @property
    def changed(self) -> int:
        """1 once the decision is carried out."""
        return int(self.decided.as_decided)

    def plan(self, _report: Report) -> Plan:
        """Show how the record waits. Raises BrokerError."""
        waiting, request = self._record, self._request
        [hold] = self._settler.held_by(request, [(waiting.state.topic, waiting.record.key)])
        self._end = request.end_under(hold)
        row = {
            "id": request.id,
            "place": waiting.position,
            "reason": reason_class(waiting.state.reason),
            "text": text_of(waiting.state.reason),
            "was": waiting.was,
            "is": self._end,
            "why": request.why,
        }
        question = f"Settle {printable(request.id)}, so that it is {self._end}?"
        return Plan(SETTLE_COLUMNS, [row], question, NOTHING_WRITTEN)

    def run(self, _report: Report, _stop: threading.Event) -> None:
        """Write the decision and wait for its event. Raises BrokerError, and LetterError if its answer came first."""
        self.decided = self._settler.decide(self._record, self._request)

    def outcome(self) -> Outcome:
        """Say what became of the decision: PARTLY if it is not carried out yet."""
        name = printable(self._request.id)
        if self.decided.as_decided:
            return Outcome([], [f"settled {name}: it is {self._end}"])
        text = f"the decision about {name} is written and not carried out yet: its owner does it as soon as it can"
        return Outcome([], [text], Status.PARTLY)


class SettleParked:
    """Settle the first record of every key that is parked, of these main topics and for these reasons (empty: all).

    `request`: what is decided about each; its id is empty. `key_fields`: returns the fields of a row that name a key.
    `remarks_of`: returns what a reading of the queues has left out.
    """

    action = "settle"

    def __init__(
        self,
        settler: Settler,
        topics: Sequence[str],
        reasons: Sequence[str],
        request: SettleRequest,
        key_fields: Callable[[WaitingKey], Row],
        remarks_of: Callable[[WaitingScan], Iterable[str]],
    ) -> None:
        self._settler, self._topics, self._reasons = settler, topics, reasons
        self._key_fields, self._remarks_of = key_fields, remarks_of
        self._request, self.why = request, request.why
        self._keys, self._rows = list[WaitingKey](), list[Row]()
        self._ended: dict[str, Ended] = {}
        self._failing = 0

    @property
    def what(self) -> str:
        """How many records are settled, and how."""
        return f"{plural(len(self._keys), 'parked record')}: {self._request.end}"

    @property
    def changed(self) -> int:
        """How many decisions were carried out."""
        return self._count(Ended.DONE)

    def _count(self, end: Ended) -> int:
        return sum(one is end for one in self._ended.values())

    def plan(self, report: Report) -> Plan:
        """Read which keys are parked. Raises BrokerError, and ContractError if nothing may be settled now."""
        scan = self._settler.waiting_keys(self._topics, report)
        parked = [key for key in scan.keys.by_due() if key.first.parked]
        self._keys = [key for key in parked if not self._reasons or key.first.reason in self._reasons]
        held = self._settler.held_by(self._request, [(key.topic, key.whole) for key in self._keys])
        self._rows = [self._row(key, hold) for key, hold in zip(self._keys, held, strict=True)]
        remarks = [f"warning: {line}" for line in self._remarks_of(scan)]
        if not self._keys:
            return Plan(PARKED_COLUMNS, [], "", NOTHING_WRITTEN, [*remarks, self._nothing_text(parked)])
        self._settler.expect_decidable()
        question = f"Settle {plural(len(self._keys), 'parked record')}, so that each is {self._request.end}?"
        return Plan(PARKED_COLUMNS, self._rows, question, NOTHING_WRITTEN, remarks)

    def _nothing_text(self, parked: Sequence[WaitingKey]) -> str:
        if not parked:
            return "no key is parked"
        others = ", ".join(sorted({key.first.reason for key in parked})[:5])
        return f"no key is parked for {', '.join(self._reasons)}; {plural(len(parked), 'key')} for {others}"

    def _row(self, key: WaitingKey, hold: str) -> Row:
        return {
            "id": key.first.id,
            **self._key_fields(key),
            "behind": key.waiting - 1,
            "reason": key.first.reason,
            "topic": key.topic,
            "partition": key.partition,
            "was": "parked",
            "is": self._request.end_under(hold),
            "why": self.why,
        }

    def run(self, report: Report, stop: threading.Event) -> None:
        """Decide about all of them, and see that it is carried out. Raises BrokerError."""
        self._ended = self._settler.settle_parked(self._keys, self._request, report, stop)
        if self._request.how == RETRY_NOW and self.changed:  # they were tried, and may have failed again
            self._failing = self._settler.count_parked(
                [ident for ident, end in self._ended.items() if end is Ended.DONE]
            )

    def outcome(self) -> Outcome:
        """Return what became of each record: PARTLY if some are not settled."""
        ended = {str(row["id"]): self._ended.get(str(row["id"])) for row in self._rows}
        rows = [{**row, "is": _word(ended[str(row["id"])], str(row["is"]))} for row in self._rows]
        text = f"settled {plural(self.changed, 'parked record')}: {self._request.end}"
        done = [str(row["is"]) for row in self._rows if ended[str(row["id"])] is Ended.DONE]
        if held := sum(word != self._request.end for word in done):
            text += f", but {held} once a hold ends"
        if open_ := self._count(Ended.OPEN):
            text += f"; of {open_} the decision is written and not carried out yet: their owners will do it"
        if others := self._count(Ended.OTHERS):
            text += f"; about {others} somebody else has decided meanwhile, and that counts"
        if undecided := len(rows) - len(self._ended):
            text += f"; {undecided} are as they were, and the same command settles them"
        sentences = [text]
        if self._failing:
            are = "is" if self._failing == 1 else "are"
            sentences.append(f"{self._failing} of these failed again, and {are} parked as before")
        return Outcome(rows, sentences, Status.DONE if self.changed == len(rows) else Status.PARTLY)


def _word(end: Ended | None, done: str) -> str:
    """Return what a parked record is now. `done`: what it is once the decision is carried out."""
    if end is None:
        return "parked"
    return done if end is Ended.DONE else end.value


# --- purge ---


class PurgeLetters:
    """Delete dead letters for good: those that died since `since` and before `until` (epoch ms).

    `warn`: gets a sentence if the decisions about letters that are gone could not be deleted.
    """

    action, why = "purge", ""

    def __init__(self, letters: DeadLetters, conditions: Filter, warn: Callable[[str], None]) -> None:
        self._letters, self._conditions, self._warn = letters, conditions, warn
        self.what = filter_words(conditions)

    def plan(self, report: Report) -> Plan:
        """Look at every letter. Raises BrokerError and ContractError."""
        self._purge = purge = Purge(self._letters, self._conditions.since, self._conditions.until, report)
        deletions = purge.deletions.values()
        verb = "goes" if purge.total == 1 else "go"
        fresh = sum(deletion.open for deletion in deletions)
        remarks = [f"{plural(purge.total, 'dead letter')} {verb}, {fresh} of them never redriven"]
        if behind := sum(deletion.behind for deletion in deletions):
            older = sum(deletion.older for deletion in deletions)
            remarks.append(
                f"{behind} that are meant cannot go: they lie behind {older} older ones or newer ones that stay, and "
                "Kafka deletes only from the beginning"
            )
        group = self._letters.names.group
        question = f"Type {group} to delete {plural(purge.total, 'dead letter')} for good" if purge.total else ""
        return Plan(PURGE_COLUMNS, self._rows(), question, "", remarks, group)

    @property
    def changed(self) -> int:
        """How many letters were deleted."""
        return sum(one.deleted for one in self._purge.deletions.values() if one.is_done)

    def run(self, _report: Report, _stop: threading.Event) -> None:
        """Delete them. Raises BrokerError."""
        self._purge.delete_letters()
        try:
            forget_gone(self._letters)
        except (
            BrokerError
        ) as fault:  # the letters are deleted all the same, and the next purge or settlement tries again
            self._warn(f"warning: {fault}")

    def outcome(self) -> Outcome:
        """Return what was deleted: PARTLY if Kafka refused to delete from some partitions, FAILED if from all."""
        refused = [deletion for deletion in self._purge.deletions.values() if deletion.error]
        status = Status.PARTLY if self.changed else Status.FAILED
        return Outcome(self._rows(), [], status if refused else Status.DONE)

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
            for partition, deletion in sorted(self._purge.deletions.items())
        ]
