"""Heads whose places lie behind the end of their main partition.

A head waits until the main partition is read up to its place, so that it overtakes nothing of its key. Where the main
topic was deleted and made anew, or lost its end by an unclean election, the record of that place is no more, and the
partition may never be so long again. Once all of it was read, nothing can come before such a head.
"""

from __future__ import annotations

from collections.abc import Callable

from reconsume.sidecar.core.lane.owned_queue import OwnedQueue
from reconsume.sidecar.core.record import NEVER

SURE_AFTER_MS = 60_000
"""ms for which a main partition must end before a place: just after an election a leader may tell an end that lies
before what was read already."""


def look_for_former(owned: OwnedQueue, unread: int, steady_ms: int, under_way: Callable[[bytes], bool]) -> None:
    """Let heads go that wait for offsets which their main partition does not have, at a steady time.

    `unread`: the first offset that was not read. `under_way`: as in `DueHeads.advance`.
    """
    lowest = owned.ledger.heads.lowest_ahead_of_main()
    if lowest == NEVER or unread != owned.main_end:
        return
    if lowest != owned.short_of:
        owned.short_of, owned.short_since_ms = lowest, steady_ms
    if steady_ms >= owned.short_since_ms + SURE_AFTER_MS:
        owned.ledger.heads.take_as_former(lowest, under_way)
    else:
        owned.alarm_ms = min(owned.alarm_ms, owned.short_since_ms + SURE_AFTER_MS)
