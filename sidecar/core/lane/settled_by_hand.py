"""What people have decided about records that wait in queues: each decision acts once, on the copy that it names.

A decision names the attempt that it is meant for. It is a record of the policy topic, which every instance
reads; the owner of the partition carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping

from reconsume.sidecar.core.lane.ledger_entry import Identity
from reconsume.sidecar.core.lane.owned_queue import OwnedQueue
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Now, Record
from reconsume.topics import transitions
from reconsume.topics.attempt import attempt_of, retry_state_of
from reconsume.topics.policy_record import COMMIT, DEAD_LETTER, SettlementRecord
from reconsume.topics.reasons import reason_class, text_of
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.transitions import Commit, Written


class OpenSettlements:
    """What people have decided about records that wait, by the ids of these; who tells it bounds their number."""

    def __init__(self) -> None:
        self._by_id: dict[str, SettlementRecord] = {}

    def hear(self, ident: str, settlement: SettlementRecord | None) -> bool:
        """Take in the decision about the record `ident`; None: it was withdrawn, or is done.

        Return whether it is one that was not heard before: the policy topic tells each of them more than once.
        """
        before = self._by_id.pop(ident, None)
        if settlement is None:
            return False
        self._by_id[ident] = settlement
        return before is None or before.nonce != settlement.nonce

    def bind(self, owned: OwnedQueue, identity: Identity, state: RetryState) -> None:
        """Have a copy that came into a queue settled, if a decision is meant for it."""
        if self._by_id and (settlement := meant_for(self._by_id, state)) is not None:
            owned.settling[identity] = settlement


def meant_for(settlements: Mapping[str, SettlementRecord], state: RetryState) -> SettlementRecord | None:
    """Return the decision about a copy, unless it is meant for another one, or was carried out on it.

    `settlements`: those that are open, by the id of the record.
    """
    settlement = settlements.get(state.id)
    # Contract 5.7: it is meant for this attempt alone; a later copy of the record is another question.
    if settlement is None or attempt_of(settlement) != attempt_of(state):
        return None
    return None if settlement.nonce == state.settled else settlement


def decided_by_hand(record: Record, settlement: SettlementRecord, now: Now) -> Commit | Written:
    """Return what follows for a record that waits in a queue from a person's decision about it."""
    if settlement.how == DEAD_LETTER:
        return transitions.dead_by_hand(record, settlement.why, now.wall_ms, settlement.who)
    if settlement.how == COMMIT:
        return transitions.done_by_hand(record, settlement.why, settlement.who)
    return transitions.tried_now(record, settlement.why, settlement.nonce, now.wall_ms, settlement.who)


def unparked(record: Record, policy: Policy, now: Now) -> Written | None:
    """Return the dead letter of a parked record in a group that parks no longer; None if it is to stay as it is."""
    state = retry_state_of(record)
    if not (state.parked and policy.queued and not policy.parks):
        return None
    return transitions.dead_letter(record, reason_class(state.reason), text_of(state.reason), now.wall_ms)
