"""Hops: the first records of a queue are written again at its end, so that its progress reaches to the end.

Progress holds done offsets up to SPAN. Where the first open record lies further below the end, what is done beyond that
would be delivered again (contract 5.3).
"""

from __future__ import annotations

from typing import NamedTuple

from reconsume.sidecar.core.lane.owned_queue import LaneTies, OwnedQueue
from reconsume.sidecar.core.lane.partition import LanePartition
from reconsume.sidecar.core.lane.read_aside import MOST_HOPS, is_culprit, take_aside
from reconsume.sidecar.core.progress import SPAN
from reconsume.sidecar.core.record import Now

HOP_SPAN = SPAN // 2
"""Offsets between the first open record of a queue and its end, beyond which the first ones are written again at the
end, if most between are done."""
ROUND_MS = 30_000
"""ms between two rounds of hops at least: transactions leave markers, so hops alone may not make a queue short."""


class Spans(NamedTuple):
    """Offsets from the first open record of a queue within which records are delivered, and beyond which it hops."""

    delivered: int
    hop: int


def hop(ties: LaneTies, queue: LanePartition, owned: OwnedQueue, spans: Spans, now: Now) -> None:
    """Write the first records of a queue again at its end, if progress could not reach to the end otherwise."""
    if len(owned.hopping) >= MOST_HOPS or (end := _end_of_hops(queue, owned, spans, now)) <= queue.tracker.first:
        return
    for entry in owned.ledger.lowest(MOST_HOPS - len(owned.hopping)):
        if entry.offset < end and not is_culprit(queue, entry):
            take_aside(ties, owned, entry)


def _end_of_hops(queue: LanePartition, owned: OwnedQueue, spans: Spans, now: Now) -> int:
    """Return the offset below which records of a queue are to hop now."""
    if owned.out_of_reach >= 0:  # each hop brings it nearer, however much between is open
        return owned.out_of_reach - spans.delivered + 1
    tracker = queue.tracker
    span, waiting = tracker.span(tracker.next), len(owned.ledger)
    # Where nearly all between is open, a round of hops would only move the gap.
    gains = 2 * waiting <= span if span < spans.delivered * 7 // 8 else 8 * waiting <= 7 * span
    if span < spans.hop or not gains:
        return 0
    if tracker.first >= owned.round_end:
        if now.steady_ms < owned.round_at_ms + ROUND_MS:
            owned.alarm_ms = min(owned.alarm_ms, owned.round_at_ms + ROUND_MS)
            return 0
        owned.round_at_ms, owned.round_end = now.steady_ms, tracker.next
    return owned.round_end
