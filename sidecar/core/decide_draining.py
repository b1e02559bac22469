"""Decide what the outcome of a delivery means while the sidecar drains: the service beside it is being stopped too.

Deleting a pod stops both. What a service answers in its last seconds says little about the record: its connection is
cut, or its pools are closed and it answers 500. Contract 9.4: a drain is not an attempt.
"""

from __future__ import annotations

from sidecar.core.decide import LEAVE_UNCOMMITTED, DeadLetter, Decision, decide
from sidecar.core.outcome import CONNECTION_LOST, Failed, Outcome, Rejected
from sidecar.core.policy import Policy
from sidecar.core.record import Record


def decide_draining(record: Record, outcome: Outcome, policy: Policy, now: int) -> Decision:
    """Return the decision of `decide`, but leave the record uncommitted after a lost connection or a last failure.

    A service that has stopped is no failure of the record. No failure leads to the DLQ either, unless the service asked
    for that. The next owner of the partition delivers the record again, and counts the failure if it fails there too.
    """
    if isinstance(outcome, Failed) and outcome.reason == CONNECTION_LOST:
        return LEAVE_UNCOMMITTED
    decision = decide(record, outcome, policy, now)
    return LEAVE_UNCOMMITTED if isinstance(decision, DeadLetter) and not _asked_for(outcome) else decision


def _asked_for(outcome: Outcome) -> bool:
    """Return whether the service itself sent the record to the DLQ."""
    return isinstance(outcome, Rejected) or (isinstance(outcome, Failed) and outcome.level == -1)
