"""Copies that a queue has lost before they were read back.

A copy that was committed is awaited from the queue, and its key is blocked until it comes. If the log is cut
meanwhile, by retention or by hand, it never comes. So what is awaited at a cut, and was not read long after all that
the log held then, is lost. The client reports no end of the log while more comes without a pause, so it is not needed.
"""

from __future__ import annotations

from reconsume.sidecar.core.lane.ledger_entry import Identity, Phase
from reconsume.sidecar.core.lane.owned_queue import OwnedQueue

SURE_AFTER_MS = 60_000
"""ms from a cut until a copy that was not read is held lost: one that was committed just then is read by then."""
AWAITED = (Phase.WRITING, Phase.EXPECTED)


def await_unseen(owned: OwnedQueue, end: int, steady_ms: int) -> None:
    """Note which copies are awaited while the log is cut, at a steady time. `end`: where it ends then."""
    ledger = owned.ledger
    awaited = (entry for entry in ledger.entries() if entry.phase in AWAITED and entry.number not in ledger.early)
    owned.unseen.update(entry.identity for entry in awaited)
    owned.unseen_until_ms, owned.end_seen = steady_ms + SURE_AFTER_MS, False
    owned.unseen_end = end


def take_lost(owned: OwnedQueue, read_to: int, steady_ms: int) -> list[Identity]:
    """Return the records whose copies are lost, once that is sure; a copy that is still being written has more time.

    `read_to`: the offset below which the queue was read.
    """
    if steady_ms < owned.unseen_until_ms:
        owned.alarm_ms = min(owned.alarm_ms, owned.unseen_until_ms)
        return []
    if not owned.end_seen and read_to < owned.unseen_end:  # what is read has it looked at again
        return []
    waiting = {identity: entry for identity in owned.unseen if (entry := owned.ledger.entry(identity)) is not None}
    owned.unseen = {identity for identity, entry in waiting.items() if entry.phase is Phase.WRITING}
    if owned.unseen:
        owned.unseen_until_ms = steady_ms + SURE_AFTER_MS
        owned.alarm_ms = min(owned.alarm_ms, owned.unseen_until_ms)
    return [identity for identity, entry in waiting.items() if entry.phase is Phase.EXPECTED]
