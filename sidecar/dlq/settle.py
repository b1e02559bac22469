"""Settle records by hand: a dead letter, one that waits in a queue, or all that is parked.

A decision is a record of the policy topic, for one attempt of one record (`settlements.py`).

- *Dead letters* are dismissed: nobody will fix them. The decision acts at once, since lists and redrives read it, and
  an event tells of it.
- *A record that waits in a queue* is settled by the owner of its partition, which carries the decision out with an
  event; until then nothing has changed. `Settler` finds the record as its owner knows it, writes the decision, and
  waits for the event.
- *All that is parked* is settled as an operator does once, when what it failed of was fixed. Here the queues themselves
  are read: one reading tells of all decisions that are open, where a look for the events of each would read the group's
  events.

The command `settle`, `POST /v1/settle` and the dashboard call it; every call blocks, and any thread may make it.
"""

from __future__ import annotations

import enum
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.order import OrderBy, line_of
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.core.waiting_keys import WaitingKey
from reconsume.sidecar.core.waiting_keys import WaitingRecord as WaitingCopy
from reconsume.sidecar.dlq.dead_letters import DeadLetters, Scan, Span
from reconsume.sidecar.dlq.letters import Eligibility, Letter
from reconsume.sidecar.dlq.settle_request import Decided, NotWaitingError, SettleRequest
from reconsume.sidecar.dlq.settlements import (
    MOST,
    LetterKey,
    Settlements,
    SettlementWriter,
    event_of_settlement,
    gone_of,
)
from reconsume.sidecar.errors import BrokerError, ContractError, LetterError
from reconsume.sidecar.group_policy.operations import HoldStore
from reconsume.sidecar.group_policy.state import HoldsInForce
from reconsume.sidecar.hints import absent, hint
from reconsume.sidecar.kafka.messages import queue_reading_of
from reconsume.sidecar.kafka.queues.queue_listing import WaitingScan, Wanted, read_waiting
from reconsume.sidecar.operation import Report, no_report
from reconsume.sidecar.printable import plural, printable
from reconsume.topics.attempt import attempt_of, retry_state_of
from reconsume.topics.decision_record import COMMIT, DEAD_LETTER, RETRY_NOW
from reconsume.topics.events import Event, State
from reconsume.topics.group_rules import number_of
from reconsume.topics.names import Kind
from reconsume.topics.policy_record import MOST_OPEN, SettlementRecord
from reconsume.topics.reasons import reason_text, text_of
from reconsume.topics.retry_headers import ID, RetryState
from reconsume.topics.retry_order import Order
from reconsume.topics.transitions import BY_OPERATOR

WAIT_S = 10.0
"""Seconds for the owner of the record to carry a decision out; of many, seconds in which none of the open decisions is
carried out, after which they are left to their owners. In a call this includes the time to find the record."""
SHORTEST_WAIT_S = 0.5
"""Seconds that a call waits at least once it has written: a decision that took long to be made is answered all the
same."""
LOOK_EVERY = 0.3
"""Seconds from the decision to the first look for its event. Each later one comes twice as long after the one before,
since every look reads what the group has told meanwhile."""
LONGEST_PAUSE = 2.0
"""Seconds between two looks at most."""
LOOK_EVERY_S = 1.0
"""Seconds between two readings of the queues. A decision is carried out within some tenths of a second."""
STATES = {COMMIT: State.COMMIT, DEAD_LETTER: State.DLQ, RETRY_NOW: State.WAITING_RETRY}
"""The state of the event that tells of each decision."""

_READING = threading.Lock()
"""One queue of a process is read at a time: its records, without their values, are in memory meanwhile."""

Wait: TypeAlias = RetryState | WaitingCopy
"""What a copy says of the wait of its record: its attempt, and the decision that it has come of."""
ReadEvents: TypeAlias = Callable[[str, int], Sequence[Event]]
"""Returns the events of the record with this id, from some time before a moment (epoch ms)."""


# --- dead letters ---


class Dismissed(NamedTuple):
    """The result of a dismissal: the ids that it has dismissed, those that were dismissed before, and why their events
    are not known to be written (empty: they are)."""

    ids: tuple[str, ...]
    before: tuple[str, ...]
    event_fault: str = ""


def fault_of_dismissal(letter: Letter, verdict: Eligibility) -> str:
    """Return why a letter cannot be dismissed; empty if it can."""
    if verdict is Eligibility.REDRIVEN:
        return f"{letter.position} was redriven: it is no dead letter any more"
    if verdict is Eligibility.SUPERSEDED:
        return f"{letter.position} is superseded: a reset has had the record delivered again"
    if verdict is Eligibility.COPY:
        return (
            f"{letter.position} is a copy: another dead letter with its id and attempt counts; name the id {letter.id}"
        )
    if letter.retry_state is None:
        return f"{letter.position} has no readable headers, so that nothing names it: `{hint('dlq purge')}` deletes it"
    return ""


def expect_topics(there: DeadLetters) -> None:
    """Raise ContractError if a topic that a decision needs does not exist."""
    needed = {there.names.policy, there.names.events}
    if missing := sorted(needed - there.cluster.existing(needed).keys()):
        raise ContractError(absent(missing))


def expect_room(there: DeadLetters, more: int) -> Settlements:
    """Return the group's settlements. Raises ContractError if `more` of them may not be added."""
    expect_topics(there)
    settlements = there.settlements()
    if more and len(settlements.commits) - len(gone_of(settlements, there.layout())) + more > MOST:
        raise ContractError(f"{MOST} letters of the group are dismissed already: make room by `{hint('dlq purge')}`")
    return settlements


def stay_of(letter: Letter) -> LetterKey | None:
    """Return what a decision about a letter is for; None if its headers do not say it."""
    state = letter.retry_state
    return None if state is None else LetterKey(state.id, attempt_of(state))


def decision_of(letter: Letter, settlements: Settlements) -> SettlementRecord | None:
    """Return the decision that was made about this death of a record; None if there is none."""
    stay = stay_of(letter)
    return None if stay is None else settlements.commits.get(stay)


def dismiss(there: DeadLetters, letters: Sequence[Letter], settlements: Settlements, why: str, by: str) -> Dismissed:
    """Write the decisions, then the events. `settlements`: what `expect_room` has returned.

    Of letters that were dismissed before only the events are written again, with who did it then and why. The letters
    must have no fault. Raises BrokerError if a decision is not known to be in Kafka. Then no event is written, and the
    same call may be made again.
    """
    stays = {stay: letter for letter in letters if (stay := stay_of(letter)) is not None}
    records, events = dict[str, SettlementRecord](), list[Event]()
    for stay, letter in stays.items():
        assert letter.retry_state is not None
        record = settlements.commits.get(stay)
        if record is None:
            record = replace(decision_about(letter.retry_state, COMMIT, why, by), position=letter.position)
            records[stay.id] = record
        events.append(event_of_settlement(letter.retry_state, record, there.names.group))
    before, fault = tuple(stay.id for stay in stays if stay in settlements.commits), ""
    gone = gone_of(settlements, there.layout())
    with SettlementWriter(there.kafka, there.names) as writer:
        writer.write(records)
        try:
            writer.tell(events)
            writer.forget(ident for ident in gone if ident not in {stay.id for stay in stays})
        except BrokerError as failure:
            fault = str(failure)
    return Dismissed(tuple(records), before, fault)


def forget_gone(there: DeadLetters) -> None:
    """Delete the settlements of letters that Kafka has deleted, so that others can be dismissed. Raises BrokerError."""
    if gone := gone_of(there.settlements(), there.layout()):
        with SettlementWriter(there.kafka, there.names) as writer:
            writer.forget(gone)


# --- records that wait ---


class WaitingRecord(NamedTuple):
    """A record that waits: its newest copy, without value and headers, and the id of the first record of its key (its
    own, if it is the head)."""

    record: Record
    state: RetryState
    head: str

    @property
    def position(self) -> str:
        """The position of its copy, `topic:partition:offset`."""
        return f"{self.record.source.topic}:{self.record.source.number}:{self.record.offset}"

    @property
    def was(self) -> str:
        """How it waits: parked, behind another of its key, or for its time."""
        if self.state.parked:
            return "parked"
        return "waiting" if self.head == self.state.id else "behind"


def waiting_in(there: DeadLetters, queue: Partition, report: Report) -> dict[str, Record]:
    """Return the newest copy of each record that waits in a queue, by its id; empty if there is no such queue.

    The copies have no value and no headers: a sidecar has memory for no second queue. Raises BrokerError.
    """
    cluster = there.cluster
    topics = cluster.existing([queue.topic]) if there.policy.queued else cluster.visible([queue.topic])
    topic = topics.get(queue.topic)
    if topic is None or queue not in topic.all_partitions:
        return {}
    progress = there.cluster.progress(there.names.group, [queue]).get(queue)
    begin, end = there.cluster.spans([queue])[queue]
    span = Span(begin if progress is None else max(begin, progress.next), end)
    newest: dict[str, Record] = {}
    with Scan(there, {queue: span}, report, queue_reading_of(lambda: there.policy)) as scan:
        for record in scan:
            if record.fault or (progress is not None and progress.covers(record.offset)):
                continue
            state = retry_state_of(record)
            before = newest.get(state.id)
            if before is None or attempt_of(retry_state_of(before)) <= attempt_of(state):
                newest[state.id] = replace(record, value=None, headers=None)
    return newest


def _order_of(record: Record) -> tuple[tuple[int, int], int]:
    state = retry_state_of(record)
    return (state.order or Order(0)).rank, state.timestamp


def fault_of_decision(waiting: WaitingRecord, how: str) -> str:
    """Return why a record cannot be settled so, as one sentence; empty if it can."""
    if how == RETRY_NOW and waiting.was == "behind":
        return f"it waits behind {waiting.head} of its key, which must end first"
    return ""


def has_ended(decision: SettlementRecord, state: Wait | None) -> bool:
    """Return whether nobody will carry out a decision any more. `state`: of the copy that waits, if one does."""
    if state is None or decision.nonce == state.settled:
        return True
    return attempt_of(state) != attempt_of(decision)


def decision_about(state: Wait, how: str, why: str, by: str) -> SettlementRecord:
    """Return a decision about this attempt of a record, by a user's name."""
    return SettlementRecord(
        redrives=state.redrives,
        times=state.times,
        how=how,
        why=why,
        who=by,
        at=wall(),
        nonce=secrets.token_hex(8),
        cycle=state.cycle,
    )


def outcome_of(decision: SettlementRecord, events: Sequence[Event]) -> Decided:
    """Return what the events since a decision say of it."""
    text = text_of(reason_text(BY_OPERATOR, decision.why)) or msgspec.UNSET
    said = (BY_OPERATOR, text, STATES[decision.how])
    as_decided = next((event for event in events if (event.reason, event.text, event.state) == said), None)
    if as_decided is not None:
        return Decided(as_decided, as_decided=True)
    return Decided(events[-1] if events else None)


class Ended(enum.Enum):
    """What became of a decision about one of many records."""

    DONE = "done"
    """It was carried out."""
    OPEN = "decided"
    """It is written, and not carried out yet."""
    OTHERS = "decided by another"
    """Somebody else has decided about the record since."""


class Settler:
    """Settles the records that wait in the queues of one group.

    `order`: as `LaneOptions.order`; None: the group has no queues. `events`: reads the events of a record. Every method
    raises BrokerError if Kafka does not answer, and ContractError if a topic is missing.
    """

    def __init__(
        self, there: DeadLetters, order: OrderBy | None, events: ReadEvents = lambda _ident, _since: ()
    ) -> None:
        self._there, self._order, self._events = there, order, events

    def find(self, ident: str, how: str, within: float | None = None) -> WaitingRecord:
        """Return a record that can be settled so; nothing is written. `within`: seconds, None: as long as it takes.

        Raises NotWaitingError, and LetterError if it waits and cannot be settled so.
        """
        deadline = None if within is None else time.monotonic() + within
        if not _READING.acquire(timeout=-1 if within is None else within):
            raise BrokerError("other queues were read all the time; nothing was decided")
        try:
            waiting = self._find(ident, deadline)
            if waiting is None:
                raise NotWaitingError(f"{printable(ident)} waits in no queue of this group")
            if fault := fault_of_decision(waiting, how):
                raise LetterError(f"{printable(ident)} cannot be settled so: {fault}")
            self.expect_decidable(ident)
            return waiting
        finally:
            _READING.release()

    def _find(self, ident: str, deadline: float | None) -> WaitingRecord | None:
        there, order = self._there, self._order
        if order is None or not there.policy.has_queues or ID.fullmatch(ident.encode(errors="replace")) is None:
            return None
        queue = _queue_of(there, ident)

        def expect_time(_read: int, _of: int) -> None:
            if deadline is not None and time.monotonic() > deadline:
                raise BrokerError(f"{queue} could not be read to its end in time; nothing was decided")

        waiting = waiting_in(there, queue, expect_time)
        if (record := waiting.get(ident)) is None:
            return None
        line = line_of(record, order)
        same_key = [other for other in waiting.values() if line_of(other, order) == line]
        return WaitingRecord(record, retry_state_of(record), retry_state_of(min(same_key, key=_order_of)).id)

    def held_by(self, wanted: SettleRequest, heads: Sequence[tuple[str, bytes | None]]) -> list[str]:
        """Return for each head, by its main topic and key, the id of a hold that keeps it from being tried now; empty
        where none does, or if something else is decided."""
        if wanted.how != RETRY_NOW:
            return [""] * len(heads)
        live = HoldStore(self._there.kafka, self._there.names).read().live
        fitting = HoldsInForce(live).holds.fitting
        holds = (fitting(str(Kind.ORDERED), *head) for head in heads)
        return ["" if hold is None else hold.id for hold in holds]

    def expect_decidable(self, ident: str = "") -> None:
        """Raise ContractError if no record but `ident` may be settled now."""
        expect_topics(self._there)
        open_decisions = self._there.settlements().waiting
        if len(open_decisions.keys() - {ident}) < MOST_OPEN:
            return
        copies = self._copies_of(open_decisions)
        ended = [
            one
            for one, decision in open_decisions.items()
            if copies is not None and has_ended(decision, copies.get(one))
        ]
        if not ended:
            raise ContractError(
                f"{MOST_OPEN} records are settled and not done yet: are the instances of the group well?"
            )
        with SettlementWriter(self._there.kafka, self._there.names) as writer:
            writer.forget(ended)

    def decide(self, record: WaitingRecord, request: SettleRequest, within: float = WAIT_S) -> Decided:
        """Write a decision, and wait `within` seconds for its event. Once carried out it is taken from the topic.

        Raises BrokerError if it is not known to be written; from then on an event that cannot be read is one that has
        not come. Raises LetterError if the record's answer came first: then nothing was settled.
        """
        ident, decision = record.state.id, decision_about(record.state, *request[1:])
        earlier = self._events(ident, decision.at)
        with SettlementWriter(self._there.kafka, self._there.names) as writer:
            writer.write({ident: decision})
            decided = self._awaited(ident, decision, earlier, within)
            if decided.event is not None:
                with suppress(BrokerError):  # it acts no more, and goes when there is no room for others
                    writer.forget([ident])
        if decided.event is not None and not decided.as_decided:
            raise LetterError(
                f"nothing was settled: the answer to {printable(ident)} came first, and it is {decided.event.state} "
                f"after {plural(decided.event.times, 'retry')} now; settle it anew if it still waits"
            )
        return decided

    def _awaited(self, ident: str, decision: SettlementRecord, earlier: Sequence[Event], within: float) -> Decided:
        """Wait `within` seconds for the event of a decision that is written."""
        decided, deadline, pause = Decided(None), time.monotonic() + within, LOOK_EVERY
        while decided.event is None and (remaining_s := deadline - time.monotonic()) > 0:
            time.sleep(min(pause, remaining_s))
            pause = min(LONGEST_PAUSE, 2 * pause)
            with suppress(BrokerError):
                events = self._events(ident, decision.at)
                decided = outcome_of(decision, [event for event in events if event not in earlier])
        return decided

    def settle(self, request: SettleRequest, within: float = WAIT_S) -> Decided:
        """Settle a record in some `within` seconds. Raises as `find` and `decide` do."""
        began = time.monotonic()
        record = self.find(request.id, request.how, within)
        [hold] = self.held_by(request, [(record.state.topic, record.record.key)])
        remaining_s = within - (time.monotonic() - began)
        return self.decide(record, request, max(SHORTEST_WAIT_S, remaining_s))._replace(hold=hold)

    # --- all that is parked ---

    def waiting_keys(self, topics: Iterable[str], report: Report) -> WaitingScan:
        """Return what waits in the queues of some main topics, each key by its first record."""
        return self._read(topics, Wanted(), report)

    def settle_parked(
        self, keys: Sequence[WaitingKey], request: SettleRequest, report: Report, stop: threading.Event
    ) -> dict[str, Ended]:
        """Decide about the first records of keys, and see that it is carried out, until `stop` is set.

        Return what became of each decision that was written, by the record's id. `request`: what is decided about each.

        `report`: called with the number of those that are done, and of all.
        """
        waiting, made, ended = deque(key.first for key in keys), dict[str, SettlementRecord](), dict[str, Ended]()
        moved_at = time.monotonic()
        with SettlementWriter(self._there.kafka, self._there.names) as writer:
            while (waiting or made) and not stop.is_set() and time.monotonic() < moved_at + WAIT_S:
                fresh = {record.id: decision_about(record, *request[1:]) for record in self._taken(waiting, made)}
                writer.write(fresh)
                made |= fresh
                stop.wait(LOOK_EVERY_S)
                look = self._look(made)
                with suppress(BrokerError):  # they act no more, and go when there is no room for others
                    writer.forget(ident for ident, end in look.items() if end is Ended.DONE)
                made = {ident: one for ident, one in made.items() if ident not in look}
                ended |= look
                if look:
                    moved_at = time.monotonic()
                    report(len(ended), len(keys))
        return ended | dict.fromkeys(made, Ended.OPEN)

    def count_parked(self, ids: Collection[str]) -> int:
        """Return how many of these records are parked now; 0 if Kafka does not answer."""
        copies = self._copies_of(ids) or {}
        return sum(copy.parked for copy in copies.values())

    def _taken(self, waiting: deque[WaitingCopy], made: Iterable[str]) -> list[WaitingCopy]:
        """Take out the records to decide about now: as many as there is room for, since owners pass over more, and
        others may decide too. What takes the place of a decision that is open needs no room."""
        open_ids = self._there.settlements().waiting.keys() if waiting else ()
        room, taken = MOST_OPEN - len({*open_ids, *made}), list[WaitingCopy]()
        for record in [waiting.popleft() for _ in range(len(waiting))]:
            is_new = record.id not in open_ids
            if is_new and room <= 0:
                waiting.append(record)
                continue
            room -= is_new
            taken.append(record)
        return taken

    def _look(self, made: Mapping[str, SettlementRecord]) -> dict[str, Ended]:
        """Return which decisions have ended, and how; none if Kafka does not answer.

        The topic is read after the queues, so that what is forgotten as done is ours but for some milliseconds.
        """
        with suppress(BrokerError):
            if made and (copies := self._copies_of(made)) is not None:
                return ended_of(made, copies, self._there.settlements().waiting)
        return {}

    def _copies_of(self, ids: Collection[str]) -> dict[str, WaitingCopy] | None:
        """Return those of some records that wait, by their ids; None if some may not have been read: what was not read
        is not known to be gone."""
        topics = sorted({ident.rsplit(":", 2)[0] for ident in ids})
        with suppress(BrokerError):
            scan = self._read(topics, Wanted(ids=ids, most_kept=MOST_OPEN), no_report)
            if not scan.missing:
                return {record.id: record for key in scan.keys.by_due() for record in key.records}
        return None

    def _read(self, topics: Iterable[str], wanted: Wanted, report: Report) -> WaitingScan:
        assert self._order is not None, "a group without queues has nothing that waits in order"
        return read_waiting(self._there.cluster, self._there.policy, topics, self._order, wanted, report)


def _queue_of(there: DeadLetters, ident: str) -> Partition:
    return Partition(there.names.ordered(ident.rsplit(":", 2)[0]), number_of(ident))


def ended_of(
    made: Mapping[str, SettlementRecord],
    states: Mapping[str, WaitingCopy],
    present: Mapping[str, SettlementRecord],
) -> dict[str, Ended]:
    """Return which decisions have ended, and how, by what waits and by the decisions that are in the topic now.

    A decision that another one has replaced is that one's, whatever became of the record.
    """
    ended = dict[str, Ended]()
    for ident, decision in made.items():
        newest = present.get(ident)
        is_replaced = newest is not None and newest.nonce != decision.nonce
        if has_ended(decision, states.get(ident)) and not is_replaced:
            ended[ident] = Ended.DONE
        elif newest is None or is_replaced:
            ended[ident] = Ended.OTHERS
    return ended
