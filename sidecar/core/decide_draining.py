"""What the outcome of a delivery means while the sidecar drains: the service beside it is being stopped too.

A pod that is deleted stops both, and what a service does in its last seconds says little of the record it was given:
its connection is cut, or its pools are closed and it answers 500. Contract §5: a drain is not an attempt.
"""

from __future__ import annotations

from sidecar.core.decide import LEAVE_UNCOMMITTED, DeadLetter, Decision, decide
from sidecar.core.outcome import CONNECTION_LOST, Failed, Outcome, Rejected
from sidecar.core.policy import Policy
from sidecar.core.record import Record


def decide_draining(record: Record, outcome: Outcome, policy: Policy, now: int) -> Decision:
    """As `decide`, but a service that is gone is no failure of the record, and no failure is its last.

    What is forgotten so is delivered again by the next owner of its partition, who counts it if it fails there too.
    """
    if isinstance(outcome, Failed) and outcome.reason == CONNECTION_LOST:
        return LEAVE_UNCOMMITTED
    decision = decide(record, outcome, policy, now)
    return LEAVE_UNCOMMITTED if isinstance(decision, DeadLetter) and not _asked_for(outcome) else decision


def _asked_for(outcome: Outcome) -> bool:
    """Whether the service itself sent the record to the DLQ."""
    return isinstance(outcome, Rejected) or (isinstance(outcome, Failed) and outcome.level == -1)
