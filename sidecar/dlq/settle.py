"""Dismiss dead letters by hand: nobody will fix them.

A dismissal is a record of the policy topic, for one death of one record (`settlements.py`). It acts at once: lists
and redrives read it, and an event reports it. What waits is settled by its owner (`settle_waiting.py`).

The command `settle`, and the dashboard call it; every call blocks, and any thread may make it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from reconsume.sidecar.clock import wall
from reconsume.sidecar.dlq.dead_letters import DeadLetters
from reconsume.sidecar.dlq.letters import Eligibility, Letter
from reconsume.sidecar.dlq.settlements import (
    MOST,
    LetterKey,
    Settlements,
    SettlementWriter,
    event_of_settlement,
    gone_of,
)
from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.hints import absent, hint
from reconsume.topics.attempt import attempt_of
from reconsume.topics.decision_record import COMMIT
from reconsume.topics.events import Event
from reconsume.topics.policy_record import SettlementRecord

ReadEvents: TypeAlias = Callable[[str, int], Sequence[Event]]
"""Returns the events of the record with this id, from some time before a moment (epoch ms)."""


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
            record = settlement_of(letter, why, by)
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


def settlement_of(letter: Letter, why: str, by: str) -> SettlementRecord:
    """Return the decision that dismisses a letter, by a user's name."""
    state = letter.retry_state
    assert state is not None
    return SettlementRecord(
        redrives=state.redrives,
        times=state.times,
        how=COMMIT,
        why=why,
        who=by,
        at=wall(),
        nonce=secrets.token_hex(8),
        position=letter.position,
        cycle=state.cycle,
    )
