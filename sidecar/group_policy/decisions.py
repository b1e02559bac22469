"""Decisions about waiting records in a group's control log: write one, see what owners have made of it, end it.

A decision is one record (`topics/decision_record.py`); the owners of its partitions carry it out, whether or not
anybody follows. What they have done is in partition 1 of the policy topic (`topics/owner_notes.py`). `DecisionStore`
reads both, for commands, calls of the API, the dashboard and `doctor`. Every call blocks, and raises BrokerError if
Kafka does not answer, and ContractError if the policy topic is missing or too narrow.

Finished decisions, those that are over, and what decisions have done longer than a week ago are deleted by the next one
that is written.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import ContractError, RecordError
from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.group_policy.operations import ActionStore
from reconsume.sidecar.group_policy.queries import is_gated, live_queries, name_of
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.policy_topic import NotesLog
from reconsume.sidecar.operation import Row
from reconsume.sidecar.printable import printable
from reconsume.topics.decision_record import DecisionRecord, decision_key, render_decision
from reconsume.topics.names import Names
from reconsume.topics.owner_notes import DONE_KEY, KEPT_FOR, DoneNote, done_key
from reconsume.topics.owner_notes import PARTITION as NOTES
from reconsume.topics.partition import Partition

END = "end-settle"
"""The action that ends a decision."""


class DecisionState(StrEnum):
    """How far a decision is."""

    OPEN = "open"
    FINISHED = "finished"
    ENDED = "ended"
    """An operator has ended it, or its time was over, before all was done."""


class DecisionStatus(NamedTuple):
    """How far a decision is. `record`: None if it ended, and is not known any more. `is_open`: owners go on with it.

    `done`: how many records it has settled. `without_effect`: how many it meant that had ended before. `finished`: the
    partitions in which nothing is left to do, `partitions`: all of them, as far as is known.
    """

    id: str
    record: DecisionRecord | None
    is_open: bool
    done: int
    without_effect: int
    finished: int
    partitions: int

    @property
    def state(self) -> DecisionState:
        """How far it is."""
        if self.partitions and self.finished == self.partitions:
            return DecisionState.FINISHED
        return DecisionState.OPEN if self.is_open else DecisionState.ENDED

    @property
    def row(self) -> Row:
        """It as a row for programs and people."""
        record = self.record
        return {
            "decision": self.id,
            "state": str(self.state),
            "done": self.done,
            "without_effect": self.without_effect,
            "partitions": f"{self.finished} of {self.partitions}",
            "how": None if record is None else record.how,
            "what": None if record is None else what_of(record),
            "rate": None if record is None else record.rate or None,
            "at": None if record is None else record.at,
            "who": None if record is None else record.who,
            "why": None if record is None else record.why,
        }


STATUS_COLUMNS = ("decision", "state", "done", "without_effect", "partitions", "how", "what", "at", "who", "why")


def too_many() -> ContractError:
    """Return the error that the group has no room for another decision."""
    return ContractError(f"too many decisions are open: `{hint('settle --end ID')}` ends one; nothing was decided")


def what_of(record: DecisionRecord) -> str:
    """Return which records a decision is about, in words and without a key, which may be personal data."""
    if record.id:
        return record.id
    named = {"topic": record.topic, "reason": record.reason, "level": record.level}
    words = [f"{name} {text}" for name, text in named.items() if text]
    return ", ".join([*words, *(["one key"] if record.key is not None else [])]) or "all that waits"


class DecisionStore:
    """The decisions of one group."""

    def __init__(self, cluster: Cluster, names: Names) -> None:
        self._log = ControlLog(cluster, names)
        self._notes = NotesLog(cluster, names, DONE_KEY)
        self._followed: ControlState | None = None
        """What the control log said when a decision was followed last."""

    def expect_owner(self) -> None:
        """Raise ContractError if no sidecar may own what waits, or the policy topic cannot have the owners' notes."""
        self._log.expect_notes("settling")
        gated = [name_of(query) for query in live_queries(self._log.read(), wall()) if is_gated(query)]
        if gated:
            raise ContractError(f'the Spark job "{gated[0]}" owns the waiting records, and settles none of them')

    def write(self, record: DecisionRecord) -> str:
        """Write a decision, and return its id. Raises ContractError if nobody would carry it out."""
        state, ident = self._log.read(), secrets.token_hex(4)
        if outdated := self._outdated(state):
            self._log.write(outdated)
            self._log.read_on(state)
        if not state.has_decision_room(len(record.ranges)):
            raise too_many()
        self._log.write({decision_key(ident): render_decision(record)}, "the decision is not known to be written")
        self._log.read_on(state)
        if ident not in state.decisions:  # others have written some at the same time
            self._log.write({decision_key(ident): None})
            raise too_many()
        return ident

    def _outdated(self, state: ControlState) -> dict[bytes, bytes | None]:
        """Return the decisions to delete. What decisions did long ago is deleted here, too."""
        old = {
            done_key(ident, source): None
            for source, notes in self._notes.read_on().partitions.items()
            for ident, note in notes.done.items()
            if note.at < wall() - KEPT_FOR and ident not in state.decisions
        }
        if old:
            self._log.write(old, partition=NOTES)
        ends = [ident for ident in state.decisions if self._status(ident, state, None).state is not DecisionState.OPEN]
        return dict.fromkeys(map(decision_key, ends))

    def status(self, ident: str) -> DecisionStatus:
        """Return how far a decision is. Raises RecordError if it is not known."""
        status = self.follow(ident)
        if status.record is None and not status.partitions:
            raise RecordError(f"there is no decision {printable(ident[:64])}, or it ended more than a week ago")
        return status

    def follow(self, ident: str, written: DecisionRecord | None = None) -> DecisionStatus:
        """Return how far a decision is. Only what is new since the last call is read. `written`: what its writer wrote,
        if that is known."""
        if self._followed is None:
            self._followed = self._log.read()
        else:
            self._log.read_on(self._followed)
        self._notes.read_on()
        return self._status(ident, self._followed, written)

    def open_decisions(self) -> list[DecisionStatus]:
        """Return how far each open decision is."""
        state = self._log.read_if_there()
        if state is None or not state.decisions:
            return []
        self._notes.read_on()
        statuses = [self._status(ident, state, None) for ident in state.decisions]
        return [status for status in statuses if status.state is DecisionState.OPEN]

    def _status(self, ident: str, state: ControlState, written: DecisionRecord | None) -> DecisionStatus:
        notes: dict[Partition, DoneNote] = {
            source: noted.done[ident] for source, noted in self._notes.notes.partitions.items() if ident in noted.done
        }
        record, is_open = state.decisions.get(ident, written), ident in state.decisions
        wanted = set(notes) if record is None else {Partition(one.topic, one.partition) for one in record.ranges}
        finished = sum(source in notes and notes[source].finished for source in wanted)
        if record is None and any((one.action, one.what) == (END, ident) for one in state.actions.values()):
            finished = 0  # of the others nothing is noted
        return DecisionStatus(
            ident,
            record,
            is_open and record is not None and not record.is_over(wall()),
            sum(note.done for note in notes.values()),
            sum(note.without_effect for note in notes.values()),
            finished,
            len(wanted),
        )

    def end(self, ident: str, who: str, warn: Callable[[str], None] = lambda _text: None) -> None:
        """End a decision, and note who has: what it has not settled yet stays as it is. Raises RecordError if it is not
        open."""
        if ident not in self._log.read().decisions:
            raise RecordError(f"no decision {printable(ident[:64])} is open")
        with ActionStore(self._log.cluster, self._log.names, warn).noted(END, who, ident):
            self.delete(ident)

    def delete(self, ident: str) -> None:
        """Delete the record of a decision that has ended."""
        self._log.write({decision_key(ident): None}, f"decision {ident} is not known to be ended")
