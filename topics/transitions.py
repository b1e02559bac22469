"""Decide what follows from the outcome of a delivery: the record's next retry state, and the topic of its copy. Pure.

The sidecar, a redrive, a post of a relay and a Spark job all decide here, so the same record, outcome and time have the
same result. `transition_records.py` turns the result into the records to write. A caller adds only what needs no
write: a wait in memory, a retry in place.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from reconsume.topics.attempt import Failure, ReadRecord, retry_state_of, topic_of
from reconsume.topics.due_times import due_time, last_time
from reconsume.topics.expiry import EXPIRED
from reconsume.topics.group_rules import GroupRules
from reconsume.topics.levels import LONGEST
from reconsume.topics.position_ranges import BY_RESET
from reconsume.topics.reasons import reason_class, reason_text
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.retry_order import Order

UNKNOWN_TOPIC = "unknown-topic"
"""The reason of a dead letter whose main topic no member of the group consumes."""
BY_OPERATOR = "by-operator"
"""The reason of what a person has decided about a record."""
UNREADABLE = "headers-unreadable"
"""The reason of a dead letter with a header key that is not UTF-8."""


class Commit(msgspec.Struct, frozen=True, gc=False):
    """The record is done. `retry_state` is that of the COMMIT event; None, and no event, if the record never failed or
    in broadcast mode. `by`: the operator who decided it; empty if the service did."""

    retry_state: RetryState | None
    by: str = ""


class Retry(msgspec.Struct, frozen=True, gc=False):
    """A copy that waits in the level topic of `level` ms (None: the ready topic)."""

    retry_state: RetryState
    level: int | None


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """A copy for the DLQ. `retry_state` keeps the number of retries made: 16, not 17. `deliveries` is the count of
    KIP-1191. `by`: the operator who decided it; empty if nobody did."""

    retry_state: RetryState
    reason: str
    deliveries: int
    stray: bool = False  # this instance does not consume the record's topic
    by: str = ""


class Hop(msgspec.Struct, frozen=True, gc=False):
    """A copy for the level topic of `level` ms, unchanged and uncounted, because the due time is still ahead.

    `level` None: the ready topic, whose reader waits in memory, or in the shortest level where such waits are many.
    """

    retry_state: RetryState
    level: int | None
    stray: bool = False  # only other instances consume the record's topic; it may be due already


class Forward(msgspec.Struct, frozen=True, gc=False):
    """A copy for the ready topic, uncounted: the record is due, and the service reads that topic itself (relay)."""

    retry_state: RetryState


class Wait(msgspec.Struct, frozen=True, gc=False):
    """A wait in memory: nothing is written; the record may be delivered in `ms` milliseconds (0: now)."""

    ms: int


class Requeue(msgspec.Struct, frozen=True, gc=False):
    """A copy whose count stays, and its event: it is parked in its queue (`retry_state.parked`), or the operator `by`
    has decided that it is tried now. Where records do not wait in a queue, it is for the ready topic."""

    retry_state: RetryState
    by: str = ""


Written: TypeAlias = Retry | Requeue | DeadLetter | Hop | Forward

DONE = Commit(None)
AT_ONCE = Wait(0)
STRAY_WAIT = 10_000
"""ms between two looks whether a record whose topic is not consumed here is to go to the DLQ, without levels."""


def after_success(record: ReadRecord) -> Commit:
    """Return the end of a record that was accepted.

    A copy without retry and redrive waited only because its service had postponed it. No event has reported it, and
    none reports its end.
    """
    retry_state = record.retry_state
    tried_by_hand = retry_state is not None and retry_state.settled and not retry_state.behind
    if retry_state is None or not (retry_state.times or retry_state.redrives or tried_by_hand):
        return DONE
    return Commit(retry_state)


def after_failure(
    record: ReadRecord, failure: Failure, rules: GroupRules, now: int, wait: int | None = None
) -> Retry | Requeue | DeadLetter:
    """Return what follows from a failed attempt at `now` (epoch ms): the next retry, or the end after the last one,
    which is the DLQ, or the queue, for a person.

    `wait`: the ms until the next attempt; None: as the service asked, or by the ladder that applies.
    """
    times = record.times + 1
    terms = rules.terms_of(topic_of(record), failure.reason)
    if failure.level == -1 or terms.dead_letter:
        return dead_letter(record, failure.reason, failure.text, now)
    if times > terms.max_reconsume_times:
        if rules.queued and rules.parks:
            return parked(record, failure, rules, now)
        return dead_letter(record, failure.reason, failure.text, now)
    if wait is None:
        wait = rules.wait_of(times, failure.delay, failure.level, terms.ladder)
    last = last_time(record, failure.expires, terms, now, rules.speed)
    if last is not None and now + rules.sped_up(wait) > last:
        return expired(record, failure, now)
    return retry(record, failure, times, wait, rules, now, last)


def expired(record: ReadRecord, failure: Failure, now: int) -> DeadLetter:
    """Return the dead letter of a record whose next retry would come too late. Its text says how it failed last."""
    return dead_letter(record, EXPIRED, reason_text(failure.reason, failure.text), now)


def retry(
    record: ReadRecord, failure: Failure, times: int, wait: int, rules: GroupRules, now: int, last: int | None = None
) -> Retry:
    """Return retry number `times` of a record, in `wait` ms from `now` (epoch ms), and its jitter; not after `last`."""
    before, reason, ident = record.retry_state, reason_text(failure.reason, failure.text), record.id
    due_at = due_time(ident, times, rules.sped_up(wait), rules.jitter, now, last)
    if before is None:
        first = record.failed_at_ms or now
        topic, stamp = record.source.topic, record.timestamp
        state = RetryState(ident, topic, times, 0, due_at, stamp, first, reason, 0, now)
        if rules.queued:  # its id names this offset
            state = replace(state, order=Order(record.offset))
        if record.cycle:
            state = replace(state, cycle=record.cycle)
    else:
        first = before.first_failed_at or record.failed_at_ms or now
        state = replace(
            before,
            times=times,
            due_at=due_at,
            first_failed_at=first,
            reason=reason,
            postponed_at=0,
            last_failed_at=now,
            order=rules.order_of(before) if rules.queued else before.order,
            behind=False,
            parked=False,
            settled="",
        )
    if failure.expires is not None:
        state = replace(state, expires_at=failure.expires.time(now, rules.speed))
    return Retry(state, rules.level_for(wait))


def parked(record: ReadRecord, failure: Failure, rules: GroupRules, now: int) -> Requeue:
    """Return the copy of a record whose retries are used up: it waits in the queue for a person, and its count stays.

    It counts as failed later than before, whatever the clock says: of two events with one count the later one stands.
    """
    before = retry_state_of(record)
    state = replace(
        before,
        times=record.times,
        due_at=0,
        first_failed_at=before.first_failed_at or record.failed_at_ms or now,
        reason=reason_text(failure.reason, failure.text),
        postponed_at=0,
        last_failed_at=later_than(before, now),
        order=rules.order_of(before),
        behind=False,
        parked=True,
    )
    return Requeue(state)


def tried_now(record: ReadRecord, why: str, nonce: str, now: int, by: str = "") -> Requeue | Hop:
    """Return the copy of a record that waits and that a person has tried now: it is due, with its count.

    One that only waits behind another stays there: nothing else holds it.
    """
    state = replace(retry_state_of(record), settled=nonce)
    if state.behind:
        return Hop(state, None)
    reason = reason_text(BY_OPERATOR, why)
    return Requeue(replace(state, due_at=later_than(retry_state_of(record), now), reason=reason, parked=False), by)


def dead_by_hand(record: ReadRecord, why: str, now: int, by: str = "") -> DeadLetter:
    """Return the dead letter of a record that waits, by a person's decision: it did not fail again."""
    before, text = retry_state_of(record), reason_text(BY_OPERATOR, why)
    ended = replace(before, order=None, behind=False, parked=False, settled="", postponed_at=0)
    state = replace(ended, due_at=now, first_failed_at=before.first_failed_at or now, reason=text)
    return DeadLetter(state, BY_OPERATOR, before.times + before.parked, by=by)


def done_by_hand(record: ReadRecord, why: str, by: str = "") -> Commit:
    """Return the end of a record that waits and that a person has called done; an event tells of it."""
    return Commit(replace(retry_state_of(record), reason=reason_text(BY_OPERATOR, why)), by)


def by_reset(record: ReadRecord) -> Commit:
    """Return the end of a copy that is superseded: its record is delivered again, as the position was reset."""
    return Commit(replace(retry_state_of(record), reason=reason_text(BY_RESET, "")))


def later_than(before: RetryState, now: int) -> int:
    """Return `now` (epoch ms), or just after what the copy says of its last event."""
    return max(now, before.last_failed_at + 1, before.due_at + 1 if before.settled else 0)


def into_queue(state: RetryState, rules: GroupRules) -> Hop:
    """Return the copy that brings a retry from another topic of the group into the queue, uncounted."""
    return Hop(replace(state, order=rules.order_of(state), parked=False, settled=""), None)


def put_behind(record: ReadRecord, rules: GroupRules) -> Hop:
    """Return the copy of a record that waits in the queue behind an earlier one of its key: it was not delivered."""
    state = retry_state_of(record)
    return Hop(replace(state, order=rules.order_of(state), behind=True), None)


def dead_letter(record: ReadRecord, reason: str, text: str, now: int) -> DeadLetter:
    """Return the dead letter of a record whose last attempt ended at `now` (epoch ms)."""
    before, times = retry_state_of(record), record.times
    first, line = before.first_failed_at or record.failed_at_ms or now, reason_text(reason, text)
    last = replace(
        before,
        times=times,
        due_at=now,
        first_failed_at=first,
        reason=line,
        postponed_at=0,
        last_failed_at=now,
        order=None,
        behind=False,
        parked=False,
        settled="",
    )
    return DeadLetter(last, reason, times + 1)


def dead_letter_unreadable(record: ReadRecord, now: int) -> DeadLetter:
    """Return the dead letter for a record that may not be delivered: its headers are broken or unreadable (contract
    3.6, 3.7).

    Its id is its own partition and offset, its topic is the one it was read from, or the one that is drained into, and
    its count is 0: nothing in its headers can be trusted.
    """
    topic, number = record.source
    state = RetryState(
        id=f"{topic}:{number}:{record.offset}",
        topic=topic_of(record),
        due_at=now,
        timestamp=record.timestamp,
        first_failed_at=now,
        reason=reason_text(record.fault, ""),
        last_failed_at=now,
        cycle=record.cycle,
    )
    return DeadLetter(state, reason_class(record.fault), 0)


def redriven(dead: RetryState, now: int, order: Order | None = None) -> Retry:
    """Return the first retry of a dead letter that is redriven at `now` (epoch ms): its retries begin again.

    `order`: its new order among the records of its key, where it waits in a queue for those before it.
    """
    most = max(dead.most_times, dead.times)
    last = dead.last_failed_at or dead.first_failed_at
    state = replace(
        dead, times=0, redrives=dead.redrives + 1, due_at=now, most_times=most, last_failed_at=last, expires_at=0
    )
    return Retry(replace(state, order=order, behind=False, parked=False, settled=""), None)


def after_wait(
    record: ReadRecord, rules: GroupRules, now: int, patience: int = LONGEST
) -> Hop | Forward | Wait | DeadLetter:
    """Decide whether a record whose level delay is over may be delivered, at wall time `now` (epoch ms).

    RETRY_DUE_AT decides. While it is ahead, the record hops to the longest level that fits. If the remaining wait is
    shorter than every level, it is spent in memory. If that wait is longer than `patience` ms, it is spent in the
    shortest level.
    """
    state = record.retry_state
    if state is None:
        return AT_ONCE
    if state.topic not in rules.topics:
        return _stray(state, record.source.topic, rules, now)
    if rules.queued:  # only who reads the queue knows what else of its key is out
        return into_queue(state, rules)
    remaining = state.due_at - now
    if remaining <= 0:
        return Forward(state) if rules.relay else AT_ONCE
    level = rules.level_for(remaining * rules.speed)
    if level is None and (remaining <= patience or not rules.delays):
        return Wait(remaining)
    return Hop(state, level or rules.delays[0])


def _stray(state: RetryState, source_topic: str, rules: GroupRules, now: int) -> Hop | Wait | DeadLetter:
    """Return the hop that passes on a record whose topic this instance does not consume (contract 2.9).

    If no instance has taken the record for `rules.unknown_topic` ms, it goes to the DLQ with its counts unchanged. In a
    group without levels it waits here until the partition is another's.
    """
    if now - (state.due_at or state.first_failed_at) >= rules.unknown_topic:
        kept = replace(state, due_at=now, reason=reason_text(UNKNOWN_TOPIC, state.reason))
        return DeadLetter(kept, UNKNOWN_TOPIC, state.times, stray=True)
    level = rules.level_for((state.due_at - now) * rules.speed) or rules.passing_level(source_topic)
    return Wait(STRAY_WAIT) if level is None else Hop(state, level, stray=True)
