"""Dismiss dead letters: decide by hand that nobody will mend them. The decision is a record in the policy topic, and an
event tells of it.

The command `settle --commit` and the dashboard both do it by these functions.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from reconsume.sidecar.clock import wall
from reconsume.sidecar.dlq.letters import Eligibility, Letter
from reconsume.sidecar.dlq.settlements import (
    MOST,
    LetterKey,
    Settlements,
    SettlementWriter,
    event_of_settlement,
    gone_of,
)
from reconsume.sidecar.dlq.topics import DlqTopics
from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.hints import absent, hint
from reconsume.topics.attempt import attempt_of
from reconsume.topics.policy_record import LONGEST_WHY, SettlementRecord


class Dismissed(NamedTuple):
    """The result of a dismissal: the ids that it has dismissed, those that were dismissed before, and why their events
    are not known to be written (empty: they are)."""

    ids: tuple[str, ...]
    before: tuple[str, ...]
    event_fault: str = ""


def fault_of_why(why: str) -> str:
    """Return why a person's reason cannot be kept; empty if it can."""
    good = why.strip() and len(why) <= LONGEST_WHY and why.isprintable()
    return "" if good else f"the reason must be 1 to {LONGEST_WHY} printable characters"


def fault_of(letter: Letter, verdict: Eligibility) -> str:
    """Return why a letter cannot be dismissed; empty if it can."""
    if verdict is Eligibility.REDRIVEN:
        return f"{letter.position} was redriven: it is no dead letter any more"
    if verdict is Eligibility.COPY:
        return (
            f"{letter.position} is a copy: another dead letter with its id and attempt counts; name the id {letter.id}"
        )
    if letter.retry_state is None:
        return f"{letter.position} has no readable headers, so that nothing names it: `{hint('dlq purge')}` deletes it"
    return ""


def expect_room(there: DlqTopics, more: int) -> Settlements:
    """Return the group's settlements. Raises ContractError if `more` of them may not be added."""
    needed = {there.names.policy, there.names.events}
    if missing := sorted(needed - there.cluster.existing(needed).keys()):
        raise ContractError(absent(missing))
    settlements = there.settlements()
    if more and len(settlements.commits) - len(_gone(there, settlements)) + more > MOST:
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


def dismiss(there: DlqTopics, letters: Sequence[Letter], settlements: Settlements, why: str, by: str) -> Dismissed:
    """Write the decisions, then the events. `settlements`: what `expect_room` has returned.

    Of letters that were dismissed before only the events are written again, with who did it then and why. The letters
    must have no fault. Raises BrokerError if a decision is not known to be in Kafka. Then no event is written, and the
    same call may be made again.
    """
    stays = {stay: letter for letter in letters if (stay := stay_of(letter)) is not None}
    at = wall()
    new = {stay: letter for stay, letter in stays.items() if stay not in settlements.commits}
    records = {
        stay.id: SettlementRecord(
            stay.attempt.redrives,
            stay.attempt.times,
            "commit",
            why,
            by,
            at,
            secrets.token_hex(8),
            letter.position,
            cycle=stay.attempt.cycle,
        )
        for stay, letter in new.items()
    }
    events = [
        event_of_settlement(letter.retry_state, settlements.commits.get(stay) or records[stay.id], there.names.group)
        for stay, letter in stays.items()
        if letter.retry_state is not None
    ]
    before = tuple(stay.id for stay in stays if stay not in new)
    fault = ""
    with SettlementWriter(there.kafka, there.names) as writer:
        writer.write(records)
        try:
            writer.tell(events)
            writer.forget(one for one in _gone(there, settlements) if one not in {stay.id for stay in stays})
        except BrokerError as failure:
            fault = str(failure)
    return Dismissed(tuple(records), before, fault)


def _gone(there: DlqTopics, settlements: Settlements) -> list[str]:
    """Return the ids of the settlements whose letters Kafka has deleted."""
    return gone_of(settlements, there.layout())
