"""Decide what follows from the outcome of a delivery, by a pure function: no clock, no write.

What is written, and with which retry state, is decided in `topics/transitions.py`, for redrives and Spark jobs too.
Here is what only a sidecar does: it keeps records in memory, retries in place, postpones and broadcasts.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

import msgspec
from msgspec.structs import replace

from sidecar.core.outcome import (
    CONNECTION_LOST,
    Cancelled,
    Committed,
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
from sidecar.core.policy import InPlace, Policy
from sidecar.core.record import Record
from topics import transitions
from topics.attempt import retry_state_of, topic_of
from topics.due_times import last_time
from topics.retry_headers import RetryState
from topics.transitions import AT_ONCE, DONE, Commit, DeadLetter, Hop, Requeue, Wait, Written


class Postpone(msgspec.Struct, frozen=True):
    """A wait in memory of `ms` milliseconds that the service asked for: nothing is written, and nothing is counted."""

    ms: int


class RetryInPlace(msgspec.Struct, frozen=True):
    """A retry in place after `ms` milliseconds: nothing is written, and the retry is counted in memory."""

    ms: int


class LeaveUncommitted(msgspec.Struct, frozen=True):
    """Nothing is written and nothing is done: the next owner of the partition delivers the record again."""


Decision: TypeAlias = Commit | Written | Wait | Postpone | RetryInPlace | LeaveUncommitted

LEAVE_UNCOMMITTED = LeaveUncommitted()
LEASE_EXPIRED = Failed("lease-expired")
NACKED = "nacked"
"""The reason of a dead letter that the service would not take now once too often."""
POSTPONED_TOO_LONG = Failed("postponed", "the service postponed it for longer than retry.postpone_limit")
LONGEST_IN_MEMORY = 10_000
"""ms. A record that is postponed for as long waits in a level topic: one customer's limit must not fill the room."""


def decide(record: Record, outcome: Outcome, policy: Policy, now: int) -> Decision:
    """Return what follows from the outcome of one delivery, at wall time `now` (epoch ms)."""
    match outcome:
        case Committed():
            return DONE if record.life is None else transitions.after_success(record)
        case Failed():
            return _after_failure(record, outcome, policy, now)
        case Rejected(reason=reason, text=text):
            return DONE if policy.broadcast else transitions.dead_letter(record, reason, text, now)
        case Throttled(after=after):
            return Wait(after)
        case Postponed(after=after):
            return _after_postponement(record, after, policy, now)
        case NotSent() | Withdrawn():
            return AT_ONCE
        case Expired():
            return _after_expiry(record, policy, now)
        case Nacked():
            return _after_nack(record, policy, now)
        case Cancelled():
            return LEAVE_UNCOMMITTED
    assert_never(outcome)


def decide_draining(record: Record, outcome: Outcome, policy: Policy, now: int) -> Decision:
    """Return the decision of `decide` while the sidecar drains: the service beside it is being stopped too.

    What a service answers in its last seconds says little about the record: its connection is cut, or its pools are
    closed and it answers 500. A drain is not an attempt (contract 9.4). So a lost connection leaves the record
    uncommitted, and so does a last failure, unless the service asked for the DLQ. The next owner of the partition
    delivers the record again, and counts the failure if it fails there too.
    """
    if isinstance(outcome, Failed) and outcome.reason == CONNECTION_LOST:
        return LEAVE_UNCOMMITTED
    decision = decide(record, outcome, policy, now)
    asked_for = isinstance(outcome, Rejected) or (isinstance(outcome, Failed) and outcome.level == -1)
    return LEAVE_UNCOMMITTED if isinstance(decision, DeadLetter | Requeue) and not asked_for else decision


def _after_failure(record: Record, failure: Failed, policy: Policy, now: int) -> Decision:
    if policy.in_place is not None:
        return _in_place(record, failure, policy, policy.in_place, now)
    if policy.queued:  # what was tried in place before the ladder began is no retry of the ladder
        record = record.untried()
    return DONE if policy.broadcast else transitions.after_failure(record, failure, policy, now)


def _after_postponement(record: Record, after: int, policy: Policy, now: int) -> Decision:
    since = postponed_since(record) or now
    if now - since >= policy.postpone_limit:
        return _after_failure(record, POSTPONED_TOO_LONG, policy, now)
    if after < LONGEST_IN_MEMORY or not policy.delays or policy.in_place is not None or policy.broadcast:
        return Postpone(after)
    state = replace(retry_state_of(record), times=record.times, due_at=now + after, postponed_at=since)
    return Hop(state, policy.level_for(after))


def postponed_since(record: Record) -> int:
    """Return when the service postponed the record first since its last failure, epoch ms; 0 if it did not."""
    return record.postponed_at or retry_state_of(record).postponed_at


def _in_place(record: Record, failure: Failed, policy: Policy, rules: InPlace, now: int) -> Decision:
    terms = policy.terms_of(topic_of(record), failure.reason)
    used_up = rules.max_times is not None and record.times >= rules.max_times
    if used_up or failure.level == -1 or terms.dead_letter:
        return _dead(record, failure.reason, failure.text, policy, now)
    asked = policy.delay_of(failure.level) if failure.delay is None else failure.delay
    wait = rules.wait(asked)
    last = last_time(record, failure.expires, terms, now)
    return transitions.expired(record, failure, now) if last is not None and now + wait > last else RetryInPlace(wait)


def _after_expiry(record: Record, policy: Policy, now: int) -> Decision:
    return DONE if policy.broadcast else transitions.after_failure(record, LEASE_EXPIRED, policy, now, wait=0)


def _after_nack(record: Record, policy: Policy, now: int) -> Decision:
    terms = policy.terms_of(topic_of(record), NACKED)
    if terms.dead_letter or record.times >= terms.max_reconsume_times:
        return _dead(record, NACKED, "", policy, now)
    return RetryInPlace(nack_wait(policy.nack_delay, now))


def nack_wait(delay: int, now: int) -> int:
    """Return the ms from `now` to the first check that finds `delay` over.

    There is a check every third of `delay` (contract 6.9).
    """
    step = max(1, delay // 3)
    return -(-(now + delay) // step) * step - now


def _dead(record: Record, reason: str, text: str, policy: Policy, now: int) -> DeadLetter | Commit:
    return DONE if policy.broadcast else transitions.dead_letter(record, reason, text, now)


def dead_letter_unreadable(record: Record, policy: Policy, now: int) -> DeadLetter | Commit:
    """Return the dead letter for a record that may not be delivered; in broadcast mode the record is committed."""
    return DONE if policy.broadcast else transitions.dead_letter_unreadable(record, now)


def dead_letter_too_large(record: Record, failed: RetryState, policy: Policy, now: int) -> DeadLetter | Commit:
    """Return the dead letter for a record with too many headers; in broadcast mode the record is committed."""
    return DONE if policy.broadcast else transitions.dead_letter_too_large(record, failed, now)


def dead_letter_crashing(record: Record, deaths: int, policy: Policy, now: int) -> DeadLetter | Commit:
    """Return the dead letter for a record that was in flight alone when its service and its sidecar crashed together.

    `deaths`: how often in a row that happened (contract 1.10).
    """
    return _dead(record, "crashed-service", f"service and sidecar died {deaths} times in a row", policy, now)
