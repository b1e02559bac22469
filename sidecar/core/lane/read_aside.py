"""Records of a queue that are read although they are not to be delivered: they are settled, or written again.

A person has decided about some, a group that parks no longer gives up what is parked, and copies that lie long are old.
Only one record of a key is out at a time, so these wait until its head is answered, or is written again.
"""

from __future__ import annotations

from collections.abc import Iterable

from reconsume.sidecar.core.lane.from_memory import decision_by_hand, write_again
from reconsume.sidecar.core.lane.ledger_entry import Entry, Identity, Phase
from reconsume.sidecar.core.lane.owned_queue import LaneTies, OwnedQueue
from reconsume.sidecar.core.lane.partition import LanePartition
from reconsume.sidecar.core.lane.settled_by_hand import unparked
from reconsume.sidecar.core.record import Now, Record
from reconsume.topics.attempt import attempt_of, retry_state_of
from reconsume.topics.transitions import Commit, Hop, Written

MOST_OUT = 64
"""Records of one queue that are requested, or in memory, at a time. A read by offset takes a few ms, so this keeps some
thousand a second on their way."""
MOST_HOPS = 16
"""Records of one queue that hop at a time, so that a queue of which much is open does not fill its log with hops."""
OLD_MS, LOOK_FOR_OLD_MS = 4 * 3_600_000, 8 * 3_600_000
"""ms after which a copy is old, and between two looks for old ones. They are written again at the end: so none lies in
a queue for more than 12 h, half of the shortest retention that a queue may have, however long a key stands."""


def read_aside(ties: LaneTies, queue: LanePartition, owned: OwnedQueue, span: int, now: Now) -> None:
    """Have the records read about which somebody has decided, and those whose copies are old.

    `span`: offsets from the first open record within which one can be marked as done.
    """
    ledger, policy = owned.ledger, ties.policy()
    if policy.queued and not policy.parks:
        _request(ties, queue, owned, span, ledger.parked())
    if owned.settling:
        _request(ties, queue, owned, span, _settling(owned))
    if now.steady_ms >= owned.old_at_ms:
        owned.old_at_ms = now.steady_ms + LOOK_FOR_OLD_MS
        aged = [entry for entry in ledger.entries() if entry.written_ms < now.wall_ms - OLD_MS]
        owned.old = {entry.identity for entry in aged if not is_culprit(queue, entry)}
    if owned.old and len(owned.hopping) < MOST_HOPS:
        old = [entry for identity in owned.old if (entry := ledger.entry(identity)) is not None]
        requested = _request(ties, queue, owned, span, old, MOST_HOPS - len(owned.hopping))
        # What follows of its key could not be written again either: one of a key is out at a time.
        written = [one.identity for one in old if one.phase is Phase.TAKEN and write_again(ties, queue, one, now)]
        owned.old = {entry.identity for entry in old}.difference(requested, written)


def _settling(owned: OwnedQueue) -> list[Entry]:
    """Return the records about which somebody has decided; what is meant for another wait of them is forgotten."""
    about = ((owned.ledger.entry(identity), one) for identity, one in owned.settling.items())
    meant = {entry.identity: (entry, one) for entry, one in about if entry and entry.attempt == attempt_of(one)}
    owned.settling = {identity: one for identity, (_, one) in meant.items()}
    return [entry for entry, _ in meant.values()]


def _request(
    ties: LaneTies, queue: LanePartition, owned: OwnedQueue, span: int, entries: Iterable[Entry], most: int = MOST_OUT
) -> list[Identity]:
    """Have records read that need not be heads, `most` of them at most; return which."""
    requested = list[Identity]()
    for entry in entries:
        if len(requested) >= most or len(owned.requested) + len(owned.inside) >= MOST_OUT:
            break
        if queue.tracker.span(entry.offset) >= span:
            owned.out_of_reach = entry.offset  # the first ones hop, until progress reaches it
        elif take_aside(ties, owned, entry):
            requested.append(entry.identity)
    return requested


def take_aside(ties: LaneTies, owned: OwnedQueue, entry: Entry) -> bool:
    """Have a record read that is not to be delivered; return False if another one of its key is out."""
    if taken := owned.ledger.take_aside(entry):
        owned.hopping.add(entry.offset)
        fetch(ties, owned, entry)
    return taken


def fetch(ties: LaneTies, owned: OwnedQueue, entry: Entry) -> None:
    """Have one record read by its offset."""
    owned.requested[entry.offset] = entry.identity
    ties.queues.fetch(owned.source, owned.epoch, entry.offset)


def is_culprit(queue: LanePartition, entry: Entry) -> bool:
    """Return whether a record is the one that crashes its service: it is known by the offset of its copy alone."""
    return queue.suspicion is not None and queue.suspicion.culprit == entry.offset


def coming(owned: OwnedQueue) -> int:
    """Return the bytes of the records that were requested and have not come."""
    entries = (owned.ledger.entry(identity) for identity in owned.requested.values())
    return sum(entry.weight for entry in entries if entry is not None)


def decision_about(ties: LaneTies, owned: OwnedQueue, record: Record, now: Now) -> Commit | Written | None:
    """Return what becomes of a record that was read and is not to be delivered now; None if it is."""
    if (settled := decision_by_hand(owned, record, now)) is not None:
        return settled
    if (end := unparked(record, ties.policy(), now)) is not None:
        return end
    return Hop(retry_state_of(record), None) if record.offset in owned.hopping else None
