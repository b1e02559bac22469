"""Decide what happens to a record, by two pure functions.

`after_wait` decides whether a record whose level delay is over may be delivered now. `decide` decides what follows from
the outcome of a delivery. Nothing here reads a clock or writes anything; `copies.py` turns a decision into records.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

import msgspec
from msgspec.structs import replace

from sidecar.core.outcome import (
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
)
from sidecar.core.policy import InPlace, Policy
from sidecar.core.record import Record
from topics.headers import MOST_HEADERS, RetryState
from topics.levels import LONGEST
from topics.reasons import reason_class, reason_text


class Commit(msgspec.Struct, frozen=True):
    """The record is done. `life` is the retry state for the COMMIT event; None, and no event, if the record never
    failed or in broadcast mode."""

    life: RetryState | None


class Retry(msgspec.Struct, frozen=True):
    """A copy that waits in the level topic of `level` ms (None: the ready topic)."""

    life: RetryState
    level: int | None


class DeadLetter(msgspec.Struct, frozen=True):
    """A copy for the DLQ. `life` keeps the number of retries made: 16, not 17. `deliveries` is the count of
    KIP-1191."""

    life: RetryState
    reason: str
    deliveries: int
    stray: bool = False  # this instance does not consume the record's topic


class Hop(msgspec.Struct, frozen=True):
    """A copy for the level topic of `level` ms, unchanged and uncounted, because the due time is still ahead.

    `level` None: the ready topic, whose reader waits in memory, or in the shortest level where such waits are many.
    """

    life: RetryState
    level: int | None
    stray: bool = False  # only other instances consume the record's topic; it may be due already


class Forward(msgspec.Struct, frozen=True):
    """A copy for the ready topic, uncounted: the record is due, and the service reads that topic itself (relay)."""

    life: RetryState


class Wait(msgspec.Struct, frozen=True):
    """A wait in memory: nothing is written; the record may be delivered in `ms` milliseconds (0: now)."""

    ms: int


class Postpone(msgspec.Struct, frozen=True):
    """A wait in memory of `ms` milliseconds that the service asked for: nothing is written, and nothing is counted."""

    ms: int


class RetryInPlace(msgspec.Struct, frozen=True):
    """A retry in place after `ms` milliseconds: nothing is written, and the retry is counted in memory."""

    ms: int


class LeaveUncommitted(msgspec.Struct, frozen=True):
    """Nothing is written and nothing is done: the next owner of the partition delivers the record again."""


Written: TypeAlias = Retry | DeadLetter | Hop | Forward
Decision: TypeAlias = Commit | Written | Wait | Postpone | RetryInPlace | LeaveUncommitted

LEAVE_UNCOMMITTED = LeaveUncommitted()
AT_ONCE = Wait(0)
LEASE_EXPIRED = Failed("lease-expired")
POSTPONED_TOO_LONG = Failed("postponed", "the service postponed it for longer than retry.postpone_limit")
LONGEST_IN_MEMORY = 10_000
"""ms. A record that is postponed for as long waits in a level topic: one customer's limit must not fill the room."""
UNKNOWN_TOPIC = "unknown-topic"
STRAY_WAIT = 10_000
"""ms between two looks whether a record whose topic is not consumed here is to go to the DLQ, without levels."""


def life_of(record: Record) -> RetryState:
    """Return the retry state from the record's headers, or a new one if it has none (it comes from a main topic)."""
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
    """Return what follows from the outcome of one delivery, at wall time `now` (epoch ms)."""
    match outcome:
        case Committed():
            return Commit(None if record.life is None or _never_failed(record.life) else record.life)
        case Failed():
            return _after_failure(record, outcome, policy, now)
        case Rejected(reason=reason, text=text):
            return _dead(record, reason, text, policy, now)
        case Throttled(after=after):
            return Wait(after)
        case Postponed(after=after):
            return _after_postponement(record, after, policy, now)
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


def _after_postponement(record: Record, after: int, policy: Policy, now: int) -> Decision:
    since = postponed_since(record) or now
    if now - since >= policy.postpone_limit:
        return _after_failure(record, POSTPONED_TOO_LONG, policy, now)
    if after < LONGEST_IN_MEMORY or not policy.delays or policy.in_place is not None or policy.broadcast:
        return Postpone(after)
    life = replace(life_of(record), times=record.times, due_at=now + after, postponed_at=since)
    return Hop(life, policy.level_for(after))


def postponed_since(record: Record) -> int:
    """Return when the service postponed the record first since its last failure, epoch ms; 0 if it did not."""
    return record.postponed_at or (record.life.postponed_at if record.life is not None else 0)


def _never_failed(life: RetryState) -> bool:
    """Return whether a copy waited only because its service had postponed it: nothing was told of it before."""
    return life.times == 0 and life.redrives == 0


def _in_place(record: Record, failure: Failed, policy: Policy, rules: InPlace, now: int) -> Decision:
    used_up = rules.max_times is not None and record.times >= rules.max_times
    if used_up or failure.level == -1:
        return _dead(record, failure.reason, failure.text, policy, now)
    asked = policy.delay_of(failure.level) if failure.delay is None else failure.delay
    return RetryInPlace(rules.wait(asked))


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
    """Return the ms from `now` to the first check that finds `delay` over.

    There is a check every third of `delay` (contract 6.9).
    """
    step = max(1, delay // 3)
    return -(-(now + delay) // step) * step - now


def _retry(record: Record, times: int, wait: int, failure: Failed, policy: Policy, now: int) -> Decision:
    if policy.broadcast:
        return Commit(None)
    return Retry(_retried(record, times, now + wait, now, failure), policy.level_for(wait))


def _retried(record: Record, times: int, due_at: int, now: int, failure: Failed) -> RetryState:
    """Return the retry state of the copy that will be retry number `times`."""
    life, reason = record.life, reason_text(failure.reason, failure.text)
    if life is None:
        first = record.failed_at or now
        return RetryState(record.id, record.source.topic, times, 0, due_at, record.timestamp, first, reason)
    first = life.first_failed_at or record.failed_at or now
    return replace(life, times=times, due_at=due_at, first_failed_at=first, reason=reason, postponed_at=0)


def _dead(record: Record, reason: str, text: str, policy: Policy, now: int) -> DeadLetter | Commit:
    if policy.broadcast:
        return Commit(None)
    life, times = life_of(record), record.times
    first, reason_line = life.first_failed_at or record.failed_at or now, reason_text(reason, text)
    last = replace(life, times=times, due_at=now, first_failed_at=first, reason=reason_line, postponed_at=0)
    return DeadLetter(last, reason, times + 1)


def dead_letter_unreadable(record: Record, policy: Policy, now: int) -> DeadLetter | Commit:
    """Return the dead letter for a record that may not be delivered: its headers are broken or unreadable (contract
    3.6, 3.7).

    Its id is its own partition and offset, its topic is the one it was read from, and its count is 0: nothing in its
    headers can be trusted. In broadcast mode the record is committed instead.
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
        reason=reason_text(record.fault, ""),
    )
    return DeadLetter(life, reason_class(record.fault), 0)


def dead_letter_too_large(entry: Record, failed: RetryState, policy: Policy, now: int) -> DeadLetter | Commit:
    """Return the dead letter for a record that has failed, and that has more headers than Kafka's client reads.

    `failed`: what would have been written of it. The letter has none of its headers: ORIGIN_MESSAGE_ID tells where they
    are.
    """
    text = f"it has more than {MOST_HEADERS} headers; before that: {failed.reason}"
    return _dead(entry, "too-large", text, policy, now)


def quarantine(record: Record, deaths: int, policy: Policy, now: int) -> DeadLetter | Commit:
    """Return the dead letter for a record that was in flight alone when its service and its sidecar crashed together.

    `deaths`: how often in a row that happened (contract 1.10).
    """
    return _dead(record, "crashed-service", f"service and sidecar died {deaths} times in a row", policy, now)


def after_wait(record: Record, policy: Policy, now: int, patience: int = LONGEST) -> Hop | Forward | Wait | DeadLetter:
    """Decide whether a record whose level delay is over may be delivered, at wall time `now` (epoch ms).

    RETRY_DUE_AT decides. While it is ahead, the record hops to the longest level that fits. If the remaining wait is
    shorter than every level, it is spent in memory. If that wait is longer than `patience` ms, it is spent in the
    shortest level.
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
    if level is None and (rest <= patience or not policy.delays):
        return Wait(rest)
    return Hop(life, level or policy.delays[0])


def _stray(life: RetryState, found: str, policy: Policy, now: int) -> Hop | Wait | DeadLetter:
    """Return the hop that passes on a record whose topic this instance does not consume.

    If no instance has taken the record for `policy.unknown_topic` ms, it goes to the DLQ with its counts unchanged. In
    a group without levels it waits here until the partition is another's.
    """
    rest = life.due_at - now
    if now - (life.due_at or life.first_failed_at) >= policy.unknown_topic:
        kept = replace(life, due_at=now, reason=reason_text(UNKNOWN_TOPIC, life.reason))
        return DeadLetter(kept, UNKNOWN_TOPIC, life.times, stray=True)
    level = policy.level_for(rest) or policy.passing_level(found)
    return Wait(STRAY_WAIT) if level is None else Hop(life, level, stray=True)
