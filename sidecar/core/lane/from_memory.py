"""Records of a queue that wait in memory, and end or are written again from there, without a delivery.

A head that was read may wait as long as an outage lasts, the service throttles it, or it is tried in place. Meanwhile
its copy grows old, and a person may decide about it. Of a suspect the gate after a crash knows whether it may be out,
and of a blocked queue nothing is written: those take their turn.
"""

from __future__ import annotations

from msgspec.structs import replace

from reconsume.sidecar.core.decide import postponed_since
from reconsume.sidecar.core.lane.ledger_entry import Entry
from reconsume.sidecar.core.lane.owned_queue import LaneTies, OwnedQueue
from reconsume.sidecar.core.lane.partition import LanePartition
from reconsume.sidecar.core.lane.settled_by_hand import decided_by_hand
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Now, Record
from reconsume.topics.attempt import retry_state_of
from reconsume.topics.transitions import Commit, Hop, Written


def decision_by_hand(owned: OwnedQueue, record: Record, now: Now) -> Commit | Written | None:
    """Return what follows from a person's decision about a record that the lane has; None if there is none."""
    identity = owned.inside.get(record.offset)
    settlement = None if identity is None else owned.settling.pop(identity, None)
    # Contract 5.7: a decision acts once, on the copy that it names.
    if settlement is None or settlement.nonce == retry_state_of(record).settled:
        return None
    return decided_by_hand(record, settlement, now)


def settle_from_memory(ties: LaneTies, owned: OwnedQueue, entry: Entry, now: Now) -> None:
    """Carry out a decision about a record, if it waits in memory; one that is out is answered before."""
    queue = ties.ownership.partitions[owned.source]
    record = _waiting(ties, queue, entry)
    if record is not None and (decision := decision_by_hand(owned, record, now)) is not None:
        _pick(ties, queue, record)
        ties.write(queue, record, decision, now)


def write_again(ties: LaneTies, queue: LanePartition, entry: Entry, now: Now) -> bool:
    """Write a record again at the end of its queue, if it waits in memory; return whether it does.

    The retries that were made in place are not counted any more, so one of which they are bounded stays.
    """
    record = _waiting(ties, queue, entry)
    if record is None:
        return False
    state = retry_state_of(record)
    if record.times > state.times and tries_are_bounded(ties.policy()):
        return False
    remaining_ms = _pick(ties, queue, record) - now.steady_ms
    state = replace(state, postponed_at=postponed_since(record))
    if remaining_ms > 0:
        state = replace(state, due_at=now.wall_ms + remaining_ms)
    ties.write(queue, record, Hop(state, None), now)
    return True


def tries_are_bounded(policy: Policy) -> bool:
    """Return whether retries in place end by themselves, and are counted for that in memory."""
    return policy.in_place is not None and policy.in_place.max_times is not None


def _waiting(ties: LaneTies, queue: LanePartition, entry: Entry) -> Record | None:
    if queue.suspicion is not None or queue.blocked:
        return None
    return ties.waiting.waiting_at(queue.source, entry.offset)


def _pick(ties: LaneTies, queue: LanePartition, record: Record) -> int:
    """Take a record out of memory; return the steady time (ms) to which it would have waited, 0 if to none."""
    held, until_ms = ties.waiting.pick(record)
    if held:
        queue.wait_held(-1)
    return until_ms
