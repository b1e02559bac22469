"""Decide what follows from the outcome of a delivery, by a pure function: no clock, no write.

What is written, and with which retry state, is decided in `topics/transitions.py`, for redrives and Spark jobs too.
Here is what only a sidecar does: it keeps records in memory, retries in place, postpones and broadcasts.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

import msgspec
from msgspec.structs import replace

from reconsume.sidecar.core.outcome import (
    CONNECTION_LOST,
    Cancelled,
    Committed,
    Died,
    Expired,
    Failed,
    Nacked,
    NotSent,
    Outcome,
    Postponed,
    Rejected,
    Throttled,
    Withdrawn,
)
from reconsume.sidecar.core.policy import InPlace, Policy
from reconsume.sidecar.core.record import Record
from reconsume.topics import transitions
from reconsume.topics.attempt import retry_state_of, topic_of
from reconsume.topics.due_times import last_time
from reconsume.topics.transitions import AT_ONCE, DONE, Commit, DeadLetter, Hop, Requeue, Wait, Written


class Postpone(msgspec.Struct, frozen=True):
    """A wait in memory of `ms` milliseconds that the service asked for: nothing is written, and nothing is counted."""

    ms: int


class NackWait(msgspec.Struct, frozen=True):
    """A wait in memory of `ms` milliseconds after a nack: nothing is written, and the nack is counted in memory."""

    ms: int


class RetryInPlace(msgspec.Struct, frozen=True):
    """A retry in place after `ms` milliseconds: nothing is written, and the retry is counted in memory."""

    ms: int


class LeaveUncommitted(msgspec.Struct, frozen=True):
    """Nothing is written and nothing is done: the next owner of the partition delivers the record again."""


Decision: TypeAlias = Commit | Written | Wait | Postpone | NackWait | RetryInPlace | LeaveUncommitted

LEAVE_UNCOMMITTED = LeaveUncommitted()
NACKED = "nacked"
"""The reason of a dead letter that the service would not take now once too often."""
POSTPONED_TOO_LONG = Failed("postponed", "the service postponed it for longer than retry.postpone_limit")
LONGEST_IN_MEMORY = 10_000
"""ms. A record that is postponed for as long waits in a level topic: one customer's limit must not fill the room."""


def decide(record: Record, outcome: Outcome, policy: Policy, now_ms: int) -> Decision:
    """Return what follows from the outcome of one delivery, at wall time `now_ms` (epoch ms)."""
    match outcome:
        # Contract 11.1: only a record that has failed before, or was redriven, has an event for its end.
        case Committed():
            return DONE if record.retry_state is None else transitions.after_success(record)
        case Failed():
            return _after_failure(record, outcome, policy, now_ms)
        # Contract 1.5: the service refuses the record for good, so no retry is spent. A broadcast (6.11) only counts
        # it.
        case Rejected(reason=reason, text=text):
            return DONE if policy.broadcast else transitions.dead_letter(record, reason, text, now_ms)
        # Contract 8.5: no retry is used up. The pace, which has seen the same outcome, slows down by itself.
        case Throttled(after_ms=after_ms):
            return Wait(after_ms)
        # Contract 8.6: no retry and no slower pace: one customer's limit says nothing about the service.
        case Postponed(after_ms=after_ms):
            return _after_postponement(record, after_ms, policy, now_ms)
        # Contract 1.6, 1.10: nothing reached the service, or its death is no response: no attempt. A broadcast has no
        # suspects, so what the service died with must not come again.
        case NotSent() | Died() | Withdrawn():
            return DONE if policy.broadcast and isinstance(outcome, Died) else AT_ONCE
        # Contract 6.6: a lease that ends is an attempt. Its copy is due when it is over, or by the ladder of a rule.
        case Expired():
            return _after_expiry(record, outcome, policy, now_ms)
        # Contract 6.9: nothing is written, so only memory counts a nack.
        case Nacked():
            return _after_nack(record, policy, now_ms)
        # Contract 9.1, 9.4: the next owner delivers the record again, and counts what comes of it.
        case Cancelled():
            return LEAVE_UNCOMMITTED
    assert_never(outcome)


def decide_draining(record: Record, outcome: Outcome, policy: Policy, now_ms: int) -> Decision:
    """Return the decision of `decide` while the sidecar drains: the service beside it is being stopped too.

    What a service answers in its last seconds says little about the record: its connection is cut, or its pools are
    closed and it answers 500. A drain is not an attempt (contract 9.4). So a lost connection leaves the record
    uncommitted, and so does a last failure, unless the service asked for the DLQ. The next owner of the partition
    delivers the record again, and counts the failure if it fails there too.
    """
    if isinstance(outcome, Died) or (isinstance(outcome, Failed) and outcome.reason == CONNECTION_LOST):
        return LEAVE_UNCOMMITTED
    decision = decide(record, outcome, policy, now_ms)
    asked_for = isinstance(outcome, Rejected) or (isinstance(outcome, Failed) and outcome.level == -1)
    return LEAVE_UNCOMMITTED if isinstance(decision, DeadLetter | Requeue) and not asked_for else decision


def _after_failure(record: Record, failure: Failed, policy: Policy, now_ms: int) -> Decision:
    if policy.in_place is not None:
        return _in_place(record, failure, policy, policy.in_place, now_ms)
    if policy.queued and record.again:  # what was tried in place before the ladder began is no retry of the ladder
        record = record.untried()
    return DONE if policy.broadcast else transitions.after_failure(record, failure, policy, now_ms)


def _after_postponement(record: Record, after_ms: int, policy: Policy, now_ms: int) -> Decision:
    since_ms = postponed_since(record) or now_ms
    if now_ms - since_ms >= policy.postpone_limit:
        return _after_failure(record, POSTPONED_TOO_LONG, policy, now_ms)
    # Contract 8.6: a short wait costs no copy; a long one would keep room in memory for one record's sake.
    wait_ms = policy.sped_up(after_ms)
    if after_ms < LONGEST_IN_MEMORY or not policy.delays or policy.in_place is not None or policy.broadcast:
        return Postpone(wait_ms)
    state = replace(retry_state_of(record), times=record.times, due_at=now_ms + wait_ms, postponed_at=since_ms)
    return Hop(state, policy.level_for(after_ms))


def postponed_since(record: Record) -> int:
    """Return when the service postponed the record first since its last failure, epoch ms; 0 if it did not."""
    return record.postponed_at_ms or retry_state_of(record).postponed_at


def _in_place(record: Record, failure: Failed, policy: Policy, rules: InPlace, now_ms: int) -> Decision:
    terms = policy.terms_of(topic_of(record), failure.reason)
    # Contract 5.2, 2.11: in place a rule may only end a record; level −1 is the service's own wish for the DLQ.
    used_up = rules.max_times is not None and record.times >= rules.max_times
    if used_up or failure.level == -1 or terms.dead_letter:
        return _dead(record, failure.reason, failure.text, policy, now_ms)
    requested_ms = policy.delay_of(failure.level) if failure.delay is None else failure.delay
    # Contract 2.12: a retry that would come after the record's last time is not made.
    wait_ms = rules.wait(requested_ms) if requested_ms is None else policy.sped_up(rules.wait(requested_ms))
    last_ms = last_time(record, failure.expires, terms, now_ms, policy.speed)
    return (
        transitions.expired(record, failure, now_ms)
        if last_ms is not None and now_ms + wait_ms > last_ms
        else RetryInPlace(wait_ms)
    )


def _after_expiry(record: Record, expired: Expired, policy: Policy, now_ms: int) -> Decision:
    if policy.broadcast:
        return DONE
    # The rest of a lease keeps its length at any speed.
    lease_ms = expired.after_ms * policy.speed
    wait_ms = None if policy.terms_of(topic_of(record), expired.reason).has_own_ladder else lease_ms
    return transitions.after_failure(record, Failed(expired.reason), policy, now_ms, wait_ms)


def _after_nack(record: Record, policy: Policy, now_ms: int) -> Decision:
    limit = policy.nack_max_times
    if policy.terms_of(topic_of(record), NACKED).dead_letter or (limit is not None and record.nacks >= limit):
        return _dead(record, NACKED, "", policy, now_ms)
    return NackWait(nack_wait(policy.nack_delay_ms, now_ms))


def nack_wait(delay_ms: int, now_ms: int) -> int:
    """Return the ms from `now_ms` to the first check that finds `delay_ms` over.

    There is a check every third of `delay_ms` (contract 6.9).
    """
    step = max(1, delay_ms // 3)
    return -(-(now_ms + delay_ms) // step) * step - now_ms


def _dead(record: Record, reason: str, text: str, policy: Policy, now_ms: int) -> DeadLetter | Commit:
    return DONE if policy.broadcast else transitions.dead_letter(record, reason, text, now_ms)


def dead_letter_unreadable(record: Record, policy: Policy, now_ms: int) -> DeadLetter | Commit:
    """Return the dead letter for a record that may not be delivered; in broadcast mode the record is committed."""
    return DONE if policy.broadcast else transitions.dead_letter_unreadable(record, now_ms)


def dead_letter_crashing(record: Record, deaths: int, policy: Policy, now_ms: int) -> DeadLetter | Commit:
    """Return the dead letter for a record that was in flight alone at its last death of the service.

    `deaths`: how often it was in flight at one (contract 1.10).
    """
    text = f"it was with the service at {deaths} deaths of it, and alone at the last one"
    return _dead(record, "crashed-service", text, policy, now_ms)
