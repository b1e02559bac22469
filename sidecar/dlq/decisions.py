"""Decide by hand about a record that waits in a queue: write the decision, and see whether its owner carries it out.

The decision is a record of the policy topic. Who owns the record's partition carries it out, with an event; until then
nothing has changed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import msgspec

from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.core.waiting_keys import WaitingRecord as WaitingCopy
from reconsume.sidecar.dlq.settlements import Settlements, SettlementWriter
from reconsume.sidecar.dlq.topics import DlqTopics
from reconsume.sidecar.dlq.waiting import WaitingRecord, waiting_in
from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.hints import absent
from reconsume.topics.attempt import attempt_of, retry_state_of
from reconsume.topics.events import Event, State
from reconsume.topics.group_rules import number_of
from reconsume.topics.policy_record import COMMIT, DEAD_LETTER, MOST_OPEN, RETRY_NOW, SettlementRecord
from reconsume.topics.reasons import reason_text, text_of
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.transitions import BY_OPERATOR

LOOK_EVERY = 0.3
"""Seconds from the decision to the first look for its event. Each later one comes twice as long after the one before,
since every look reads what the group has told meanwhile."""
LONGEST_PAUSE = 2.0
"""Seconds between two looks at most."""
STATES = {COMMIT: State.COMMIT, DEAD_LETTER: State.DLQ, RETRY_NOW: State.WAITING_RETRY}
"""The state of the event that tells of each decision."""

Wait: TypeAlias = RetryState | WaitingCopy
"""What a copy says of the wait of its record: its attempt, and the decision that it has come of."""
Look: TypeAlias = Callable[[], tuple[Event, ...]]


class Decided(NamedTuple):
    """What became of a decision: the event that tells of its end, None if none has come; and whether it says what was
    decided, or that the record's answer came first."""

    event: Event | None
    as_decided: bool = False


def fault_of_decision(waiting: WaitingRecord, how: str) -> str:
    """Return why a record cannot be settled so, as one sentence; empty if it can."""
    if how == RETRY_NOW and waiting.was == "behind":
        return f"it waits behind {waiting.head} of its key, which must end first"
    return ""


def expect_decidable(there: DlqTopics, policy: Policy, ident: str = "") -> None:
    """Raise ContractError if no record but `ident` may be settled now."""
    needed = {there.names.policy, there.names.events}
    if missing := sorted(needed - there.cluster.existing(needed).keys()):
        raise ContractError(absent(missing))
    settlements = there.settlements()
    if len(settlements.waiting.keys() - {ident}) < MOST_OPEN:
        return
    ended = ended_of(there, policy, settlements)
    if not ended:
        raise ContractError(f"{MOST_OPEN} records are settled and not done yet: are the instances of the group well?")
    with SettlementWriter(there.kafka, there.names) as writer:
        writer.forget(ended)


def ended_of(there: DlqTopics, policy: Policy, settlements: Settlements) -> list[str]:
    """Return the ids of the settlements that nobody will carry out any more: their records do not wait so now."""
    by_queue: dict[Partition, list[str]] = {}
    for ident in settlements.waiting:
        queue = Partition(there.names.ordered(ident.rsplit(":", 2)[0]), number_of(ident))
        by_queue.setdefault(queue, []).append(ident)
    ended = list[str]()
    for queue, idents in by_queue.items():
        states = {ident: retry_state_of(record) for ident, record in waiting_in(there, policy, queue).items()}
        ended += (ident for ident in idents if has_ended(settlements.waiting[ident], states.get(ident)))
    return ended


def has_ended(decision: SettlementRecord, state: Wait | None) -> bool:
    """Return whether nobody will carry out a decision any more. `state`: of the copy that waits, if one does."""
    if state is None or decision.nonce == state.settled:
        return True
    return attempt_of(state) != attempt_of(decision)


def decide(there: DlqTopics, waiting: WaitingRecord, decision: SettlementRecord, look: Look, within: float) -> Decided:
    """Write a decision, and wait `within` seconds for its event. `look`: returns the record's events so far.

    Once it was carried out it is taken from the topic. Raises BrokerError if it is not known to be written; from then
    on an event that cannot be read is one that has not come.
    """
    earlier, ident = look(), waiting.state.id
    with SettlementWriter(there.kafka, there.names) as writer:
        writer.write({ident: decision})
        decided = _awaited(decision, look, earlier, within)
        if decided.event is not None:
            with suppress(BrokerError):  # it acts no more, and goes when there is no room for others
                writer.forget([ident])
    return decided


def _awaited(decision: SettlementRecord, look: Look, earlier: Sequence[Event], within: float) -> Decided:
    """Wait `within` seconds for the event of a decision that is written."""
    decided, deadline, pause = Decided(None), time.monotonic() + within, LOOK_EVERY
    while decided.event is None and (remaining_s := deadline - time.monotonic()) > 0:
        time.sleep(min(pause, remaining_s))
        pause = min(LONGEST_PAUSE, 2 * pause)
        with suppress(BrokerError):
            decided = outcome_of(decision, [event for event in look() if event not in earlier])
    return decided


def decision_about(state: Wait, how: str, why: str, by: str) -> SettlementRecord:
    """Return a decision about this wait of a record, by a person's name."""
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
