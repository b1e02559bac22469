"""What happens to a record: two pure questions and their answers.

`after_wait` answers *may it be delivered now?* for a record whose level is over; `decide` answers *what next?* for the
outcome of a delivery. Nothing here reads a clock or writes anything; `copies.py` turns a decision into records.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

import msgspec
from msgspec.structs import replace

from sidecar.core.outcome import Cancelled, Committed, Expired, Failed, Nacked, NotSent, Outcome, Rejected, Throttled
from sidecar.core.policy import MAX_DELAY, InPlace, Policy
from sidecar.core.record import Record
from topics.headers import RetryState, reason_class, reason_text


class Commit(msgspec.Struct, frozen=True):
    """Done. `life` is what the COMMIT event says; None for a record that never failed, which writes nothing."""

    life: RetryState | None


class Retry(msgspec.Struct, frozen=True):
    """Publish a copy that waits in the level topic of `level` ms (None: the ready topic)."""

    life: RetryState
    level: int | None


class DeadLetter(msgspec.Struct, frozen=True):
    """Publish a copy to the DLQ. `life` keeps the retries made: 16, not 17. `deliveries` is KIP-1191's count."""

    life: RetryState
    reason: str
    deliveries: int
    stray: bool = False  # this instance does not consume its topic


class Hop(msgspec.Struct, frozen=True):
    """Copy on, unchanged and uncounted, to the level topic of `level` ms: its due time is still ahead."""

    life: RetryState
    level: int
    stray: bool = False  # other instances consume its topic; it may be due


class Forward(msgspec.Struct, frozen=True):
    """Copy on, uncounted, to the ready topic: it is due, and the service reads that topic itself (relay)."""

    life: RetryState


class Wait(msgspec.Struct, frozen=True):
    """Nothing is written; the record may be delivered in `ms` milliseconds (0: now)."""

    ms: int


class RetryInPlace(msgspec.Struct, frozen=True):
    """Nothing is written; the record is retried in place in `ms` milliseconds, which is counted in memory."""

    ms: int


class LeaveUncommitted(msgspec.Struct, frozen=True):
    """Nothing is written and nothing is done: the next owner of the partition delivers it again."""


Written: TypeAlias = Retry | DeadLetter | Hop | Forward
Decision: TypeAlias = Commit | Written | Wait | RetryInPlace | LeaveUncommitted

LEAVE_UNCOMMITTED = LeaveUncommitted()
AT_ONCE = Wait(0)
LEASE_EXPIRED = Failed("lease-expired")
UNKNOWN_TOPIC = "unknown-topic"


def life_of(record: Record) -> RetryState:
    """What the record's own headers say, or the beginning of a life for one that comes from a main topic."""
    if record.life is not None:
        return record.life
    return RetryState(
        id=record.id,
        topic=record.source.topic,
        times=0,
        redrives=0,
        due_at=0,
        timestamp=record.timestamp,
        first_failed_at=0,
        reason="",
    )


def decide(record: Record, outcome: Outcome, policy: Policy, now: int) -> Decision:
    """What follows from the outcome of one delivery, at wall time `now` (epoch ms)."""
    match outcome:
        case Committed():
            return Commit(record.life)
        case Failed():
            return _after_failure(record, outcome, policy, now)
        case Rejected(reason=reason, text=text):
            return _dead(record, reason, text, policy, now)
        case Throttled(after=after):
            return Wait(after)
        case NotSent():
            return AT_ONCE
        case Expired():
            return _after_expiry(record, policy, now)
        case Nacked():
            return _after_nack(record, policy, now)
        case Cancelled():
            return LEAVE_UNCOMMITTED
    assert_never(outcome)


def _after_failure(record: Record, failure: Failed, policy: Policy, now: int) -> Decision:
    if policy.in_place is not None:
        return _in_place(record, failure, policy, policy.in_place, now)
    times = record.times + 1
    if failure.level == -1 or times > policy.max_reconsume_times:
        return _dead(record, failure.reason, failure.text, policy, now)
    wait = policy.wait_of(times, failure.delay, failure.level)
    return _retry(record, times, wait, failure, policy, now)


def _in_place(record: Record, failure: Failed, policy: Policy, rules: InPlace, now: int) -> Decision:
    used_up = rules.max_times is not None and record.times >= rules.max_times
    if used_up or failure.level == -1:
        return _dead(record, failure.reason, failure.text, policy, now)
    return RetryInPlace(rules.wait(policy.asked(failure.delay, failure.level)))


def _after_expiry(record: Record, policy: Policy, now: int) -> Decision:
    times = record.times + 1
    if times > policy.max_reconsume_times:
        return _dead(record, LEASE_EXPIRED.reason, "", policy, now)
    return _retry(record, times, 0, LEASE_EXPIRED, policy, now)


def _after_nack(record: Record, policy: Policy, now: int) -> Decision:
    if record.times >= policy.max_reconsume_times:
        return _dead(record, "nacked", "", policy, now)
    return RetryInPlace(nack_wait(policy.nack_delay, now))


def nack_wait(delay: int, now: int) -> int:
    """ms from `now` to the first look, one every third of `delay`, at which the delay is over (contract §6)."""
    step = max(1, delay // 3)
    return -(-(now + delay) // step) * step - now


def _retry(record: Record, times: int, wait: int, failure: Failed, policy: Policy, now: int) -> Decision:
    if policy.broadcast:
        return Commit(None)
    return Retry(_retried(record, times, now + wait, now, failure), policy.level_for(wait))


def _retried(record: Record, times: int, due_at: int, now: int, failure: Failed) -> RetryState:
    """The life of the copy that will be retry `times`."""
    life, reason = record.life, reason_text(failure.reason, failure.text)
    if life is None:
        first = record.failed_at or now
        return RetryState(record.id, record.source.topic, times, 0, due_at, record.timestamp, first, reason)
    first = life.first_failed_at or record.failed_at or now
    return replace(life, times=times, due_at=due_at, first_failed_at=first, reason=reason)


def _dead(record: Record, reason: str, text: str, policy: Policy, now: int) -> DeadLetter | Commit:
    if policy.broadcast:
        return Commit(None)
    life, times = life_of(record), record.times
    first, reason_line = life.first_failed_at or record.failed_at or now, reason_text(reason, text)
    last = replace(life, times=times, due_at=now, first_failed_at=first, reason=reason_line)
    return DeadLetter(last, reason, times + 1)


def dead_letter_unreadable(record: Record, policy: Policy, now: int) -> DeadLetter | Commit:
    """A record that may not be delivered at all, because its headers are broken or unreadable (contract §3).

    Its id is its own place, its topic the one it was found in, its count 0: nothing in it can be trusted.
    """
    if policy.broadcast:
        return Commit(None)
    life = RetryState(
        id=f"{record.source.topic}:{record.source.number}:{record.offset}",
        topic=record.source.topic,
        times=0,
        redrives=0,
        due_at=now,
        timestamp=record.timestamp,
        first_failed_at=now,
        reason=record.fault,
    )
    return DeadLetter(life, reason_class(record.fault), 0)


def quarantine(record: Record, deaths: int, policy: Policy, now: int) -> DeadLetter | Commit:
    """A record that was out alone when its service and its sidecar died together, `deaths` times (contract §5)."""
    return _dead(record, "crashed-service", f"service and sidecar died {deaths} times in a row", policy, now)


def after_wait(
    record: Record, policy: Policy, now: int, patience: int = MAX_DELAY
) -> Hop | Forward | Wait | DeadLetter:
    """Whether a record whose level is over may be delivered, at wall time `now`.

    RETRY_DUE_AT is the truth: while it is ahead, the longest level that still fits takes the record (a hop), and a
    rest that is shorter than every level is waited out in memory; above `patience` ms in the shortest level.
    """
    life = record.life
    if life is None:
        return AT_ONCE
    if life.topic not in policy.topics:
        return _stray(life, record.source.topic, policy, now)
    rest = life.due_at - now
    if rest <= 0:
        return Forward(life) if policy.relay else AT_ONCE
    level = policy.level_for(rest)
    return Wait(rest) if level is None and rest <= patience else Hop(life, level or policy.delays[0])


def _stray(life: RetryState, found: str, policy: Policy, now: int) -> Hop | DeadLetter:
    """Pass a record of another instance's topic on; when no instance has taken it for too long, to the DLQ as it is."""
    rest = life.due_at - now
    if now - (life.due_at or life.first_failed_at) >= policy.unknown_topic:
        kept = replace(life, due_at=now, reason=reason_text(UNKNOWN_TOPIC, life.reason))
        return DeadLetter(kept, UNKNOWN_TOPIC, life.times, stray=True)
    level = policy.level_for(rest)
    return Hop(life, policy.passing_level(found) if level is None else level, stray=True)
