"""The straight way of a relay: the records at the head of a run that are due now go into the next batch, all at once.

It is what `intake`, `decide.after_wait` and `copies` say of each of them alone; a relay's speed is what this costs.
Whatever needs a second look (not due, broken, beyond the span) ends the row and goes the usual way.
"""

from __future__ import annotations

from typing import Protocol

from sidecar.core.assigned import Assigned, Run
from sidecar.core.batch import Entry
from sidecar.core.copies import Copy
from sidecar.core.decide import Forward
from sidecar.core.outbox import Outbox
from sidecar.core.policy import Policy
from sidecar.core.progress import SPAN
from sidecar.core.record import Now
from sidecar.core.tally import Tally
from sidecar.core.tenure import Tenure
from topics.rendered import moved


class Stores(Protocol):
    """The parts of a lane that take what is forwarded."""

    outbox: Outbox
    tally: Tally
    tenure: Tenure


def forward_due(part: Assigned, run: Run, policy: Policy, now: Now, lane: Stores) -> Run:
    """Forward the due records at the head of a run; the rest of it."""
    entries: list[Entry] = []
    taken = load = 0
    wait, tracker, ready, lateness = part.wait or 0, part.tracker, policy.names.ready, lane.tally.lateness
    for record in run.records:
        life = record.life  # none where the headers are broken or cannot be read
        if life is None or tracker.span(record.offset) >= SPAN:
            break
        due = max(life.due_at, record.timestamp + wait)
        if due > now.wall:
            break
        taken += 1
        if tracker.begin(record.offset):
            lateness.add(now.wall - due)
            load += record.weight
            copy = Copy(ready, record.key, record.value, moved(record.headers or [], ready), record.source.number)
            entries.append(Entry(record, Forward(life), (copy,)))
    part.unsettled += len(entries)
    lane.tenure.weigh(part, load)
    lane.outbox.extend(entries)
    return run._replace(records=run.records[taken:])
