"""The partitions of a lane as `/status` shows them, and the words that people read for each state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sidecar.core.lane.facts import LaneFacts, PartitionFacts
from sidecar.core.lane.partition import Because
from sidecar.core.overdue import Standing, overdue
from sidecar.core.record import Now

WORDS: Mapping[Because, str] = {
    Because.NOT_DUE: "not due",
    Because.AT_BOUND: "at its bound",
    Because.SLOWED: "slowed by failures",
    Because.BEHIND_RETRY: "behind a retry",
    Because.CROWDED: "refused copies take the memory",
    Because.BLOCKED: "stopped",
}
"""What people read for each reason of a pause (docs/runbook.md)."""


class PartitionStatus(NamedTuple):
    """One partition as `/status` shows it.

    `next_due_in`: ms, None if nothing is known to wait. `overdue_for`: ms by which its most overdue record is late,
    None if none is (`overdue.py`).
    """

    topic: str
    partition: int
    level: str
    state: str
    position: int
    in_flight: int
    held: int
    next_due_in: int | None
    overdue_for: int | None = None


def statuses(facts: LaneFacts, standing: Standing, now: Now) -> list[PartitionStatus]:
    """Return the present state of every partition, with how late it is; a stuck partition says where."""
    late = overdue(facts, standing, now)
    return [_status(part, facts, standing, now, late.get(source)) for source, part in facts.partitions.items()]


def _status(
    part: PartitionFacts, facts: LaneFacts, standing: Standing, now: Now, overdue_for: int | None
) -> PartitionStatus:
    topic, number = part.source
    waits = part.pause if part.pause is not None and part.pause.because is Because.NOT_DUE else None
    due = None if waits is None else max(0, waits.at - now.steady)
    state = state_of(part)
    # Any other state gives its reason. A record in memory waits for the pace, which has a state of its own.
    if state in ("open", WORDS[Because.NOT_DUE]) and part.source not in facts.due and standing.stuck(part, now.steady):
        state = f"stuck: {where(part)}"
    return PartitionStatus(topic, number, part.level, state, part.first, part.in_flight, part.refused, due, overdue_for)


def state_of(part: PartitionFacts) -> str:
    """Return the state of a partition in the words of docs/runbook.md: what keeps its records most comes first."""
    if part.closing:
        return "closing"
    if part.blocked:
        return f"held: {part.blocked}"
    if part.suspect:
        return "suspect"
    return "open" if part.pause is None else WORDS[part.pause.because]


def where(part: PartitionFacts) -> str:
    """Return where the first due record of a stuck partition must be."""
    if part.pause is not None:
        return "parked"
    if part.first == part.next:
        return "not read"
    return "not committed" if part.unsettled else "no outcome"
