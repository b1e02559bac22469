"""Dismissals of dead letters: an operator has decided that nobody will fix them. What waits is in `settle_waiting.py`.

A dismissal is a record of the control log (`settle/<id>`), for one death of one record: it names the attempt of the
letter, so it never dismisses a later death. It acts at once: lists and redrives read it together with the history of
redrives, so that `eligibility` is one question. An event reports it. The decision is written first, so an event may be
missing after an error; the same command writes it again, and as the event depends on the decision alone, a repeated
event is the same.

A dismissal has the place of its letter, which says when it may be forgotten: once Kafka has deleted the letter. It is
not what the dismissal is about: an imported letter is the same death. Each dismissal and each purge deletes those whose
letters are gone.

The commands `settle` and `dlq purge`, and the dashboard call this; every call blocks, and any thread may make it.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dlq.letters import Eligibility, Letter
from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.group_policy.control_log import ControlLog, RecordWriter
from reconsume.sidecar.hints import absent, hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.scan import HasSpan
from reconsume.topics.attempt import Attempt, attempt_of
from reconsume.topics.decision_record import COMMIT
from reconsume.topics.events import BY_SETTLEMENT, Event, State, encode_event, event_of
from reconsume.topics.names import Names
from reconsume.topics.policy_record import SettlementRecord, render_record, settlement_key
from reconsume.topics.reasons import one_line
from reconsume.topics.retry_headers import RetryState

if TYPE_CHECKING:
    from reconsume.sidecar.dlq.dead_letters import DeadLetters

MOST = 10_000
"""Dismissals of a group: each has some 300 bytes, which every instance reads when it starts."""
BY_KEY = -1
"""The partition that a record's key chooses, as for all events."""


# --- what is dismissed ------------------------------------------------------------------------------------------------


class LetterKey(NamedTuple):
    """One stay of a record in the DLQ: its id, and the attempt that its headers name."""

    id: str
    attempt: Attempt


class Settlements(NamedTuple):
    """What the control log says for whoever reads dead letters.

    `commits`: the dismissals, by the stay that they are for. `has_ladder`: the policy in force has a ladder that keeps
    the order, whatever the configuration says.
    """

    commits: Mapping[LetterKey, SettlementRecord]
    has_ladder: bool = False

    @property
    def dismissed(self) -> dict[LetterKey, int]:
        """The stays that were dismissed, and when (epoch ms)."""
        return {letter: record.at for letter, record in self.commits.items()}


NONE = Settlements({})


def read_settlements(cluster: Cluster, names: Names) -> Settlements:
    """Return the dismissals of the group; none if it has no policy topic. Raises BrokerError."""
    state = ControlLog(cluster, names).read_if_there()
    if state is None:
        return NONE
    commits = {LetterKey(ident, attempt_of(record)): record for ident, record in state.dismissals.items()}
    policy, agreed = state.policies.in_force, next(iter(state.live_settings(wall())), None)
    values = {**({} if agreed is None else agreed.record.values), **({} if policy is None else policy.policy)}
    return Settlements(commits, bool(values.get("ordered_ladder")))


def gone_of(settlements: Settlements, layout: Mapping[Partition, HasSpan]) -> list[str]:
    """Return the ids of the dismissals whose letters are known to be gone. `layout`: the spans that are known now."""
    begins = {f"{source.topic}:{source.number}": span.begin for source, span in layout.items()}
    gone = []
    for letter, record in settlements.commits.items():
        source, _, offset = record.position.rpartition(":")
        # A partition that is not among the spans has no leader now, or is another configuration's: nothing is known.
        if (begin := begins.get(source)) is not None and offset.isdecimal() and int(offset) < begin:
            gone.append(letter.id)
    return gone


def stay_of(letter: Letter) -> LetterKey | None:
    """Return what a dismissal of a letter is for; None if its headers do not say it."""
    state = letter.retry_state
    return None if state is None else LetterKey(state.id, attempt_of(state))


def dismissal_of(letter: Letter, settlements: Settlements) -> SettlementRecord | None:
    """Return the dismissal of this death of a record; None if there is none."""
    stay = stay_of(letter)
    return None if stay is None else settlements.commits.get(stay)


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


# --- dismiss ----------------------------------------------------------------------------------------------------------


class Dismissed(NamedTuple):
    """The result of a dismissal: the ids that it has dismissed, those that were dismissed before, and why their events
    are not known to be written (empty: they are)."""

    ids: tuple[str, ...]
    before: tuple[str, ...]
    event_fault: str = ""


def expect_room(there: DeadLetters, more: int) -> Settlements:
    """Return the group's dismissals. Raises ContractError if `more` of them may not be added, or a topic is missing."""
    needed = {there.names.policy, there.names.events}
    if missing := sorted(needed - there.cluster.existing(needed).keys()):
        raise ContractError(absent(missing))
    settlements = there.settlements()
    if more and len(settlements.commits) - len(gone_of(settlements, there.layout())) + more > MOST:
        raise ContractError(f"{MOST} letters of the group are dismissed already: make room by `{hint('dlq purge')}`")
    return settlements


def dismiss(there: DeadLetters, letters: Sequence[Letter], settlements: Settlements, why: str, by: str) -> Dismissed:
    """Write the decisions, then the events. `settlements`: what `expect_room` has returned.

    Of letters that were dismissed before only the events are written again, with who did it then and why. The letters
    must have no fault. Raises BrokerError if a decision is not known to be in Kafka. Then no event is written, and the
    same call may be made again.
    """
    fresh, before, events = dict[str, SettlementRecord](), list[str](), list[Event]()
    for letter in letters:
        if (state := letter.retry_state) is None:
            continue
        if (record := dismissal_of(letter, settlements)) is None:
            record = fresh[letter.id] = _settlement(state, letter.position, why, by)
        else:
            before.append(letter.id)
        events.append(event_of_settlement(state, record, there.names.group))
    gone = set(gone_of(settlements, there.layout())) - {event.id for event in events}
    with RecordWriter(there.cluster) as writer:
        for ident, record in fresh.items():
            writer.send(there.names.policy, settlement_key(ident), render_record(record))
        writer.confirm(f"the settlement of {_some(fresh)} is not written, as far as is known")
        try:
            for event in events:
                writer.send(there.names.events, event.id.encode(), encode_event(event), BY_KEY)
            writer.confirm(f"the event of {_some([event.id for event in events])} is not written, as far as is known")
            _forget(writer, there.names, gone)
        except BrokerError as failure:
            return Dismissed(tuple(fresh), tuple(before), str(failure))
    return Dismissed(tuple(fresh), tuple(before))


def forget_gone(there: DeadLetters) -> None:
    """Delete the dismissals of letters that Kafka has deleted, so that others can be dismissed. Raises BrokerError."""
    if gone := gone_of(there.settlements(), there.layout()):
        with RecordWriter(there.cluster) as writer:
            _forget(writer, there.names, gone)


def _forget(writer: RecordWriter, names: Names, idents: Collection[str]) -> None:
    for ident in idents:
        writer.send(names.policy, settlement_key(ident), None)
    writer.confirm("settlements of deleted letters are still there")


def _settlement(state: RetryState, position: str, why: str, by: str) -> SettlementRecord:
    """Return the decision that dismisses a letter, by a user's name."""
    nonce = secrets.token_hex(8)
    return SettlementRecord(state.redrives, state.times, COMMIT, why, by, wall(), nonce, position, cycle=state.cycle)


def event_of_settlement(retry_state: RetryState, record: SettlementRecord, group: str) -> Event:
    """Return the event that tells of a dismissal: by whom and why, and nothing of what the letter died of.

    It depends on the dismissal alone, so that written again it is the same.
    """
    instance = f"{BY_SETTLEMENT}{record.who}"
    event = event_of(retry_state, State.DISMISSED, None, group=group, instance=instance, at=record.at)
    return replace(event, due=0, text=one_line(record.why) or msgspec.UNSET)


def _some(idents: Collection[str]) -> str:
    """Name one record, or one of several."""
    return ("one of " if len(idents) > 1 else "") + next(iter(idents), "no record")
