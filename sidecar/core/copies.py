"""Turn a decision into the records that carry it out: the copy of the record, and the event that reports the change."""

from __future__ import annotations

from typing import assert_never
from zlib import crc32

import msgspec
from msgspec.structs import replace

from sidecar.core.decide import Commit, DeadLetter, Forward, Hop, Retry, Written
from sidecar.core.policy import Policy
from sidecar.core.record import Record
from topics.events import State, encode_event, event_of
from topics.headers import (
    RETRY_POSTPONED_AT,
    RETRY_TRACEPARENT,
    Headers,
    RetryState,
    attempt_before,
    dead_letter_headers,
    render_retry_headers,
    without_ours,
)
from topics.headers_fast import for_topic
from topics.original_headers import kept_originals


class Copy(msgspec.Struct, frozen=True, gc=False):
    """A record to publish.

    `spread` chooses the partition of a record without a key: it is the number of the source partition. With `scattered`
    it also chooses the partition of a record with a key.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    spread: int = 0
    scattered: bool = False


def writes_of(record: Record, decision: Commit | Written, policy: Policy, now: int) -> tuple[Copy, ...]:
    """Return the records to publish for a decision, the copy first; empty if there is nothing to write."""
    match decision:
        case Commit(life=life):
            return () if life is None else (_event(life, State.COMMIT, None, policy, now),)
        case Retry(life=life, level=level):
            copy = _copy(record, policy.retry_topic(level, life), life, policy)
            return (copy, _event(life, State.WAITING_RETRY, level, policy, now))
        case Hop(level=int(level), stray=True):
            return (_passed_on(record, policy.names.level(level, policy.family(record.source.topic)), now),)
        case Hop(life=life, level=level):
            return (_copy(record, policy.retry_topic(level, life), life, policy),)
        case Forward():
            ready = policy.names.ready
            headers = for_topic(record.headers or [], ready)
            return (Copy(ready, record.key, record.value, headers, record.source.number),)
        case DeadLetter(life=life):
            return (_dead_letter(record, decision, policy), _event(life, State.DLQ, None, policy, now))
    assert_never(decision)


def redriven_writes(record: Record, life: RetryState, policy: Policy, now: int) -> tuple[Copy, Copy]:
    """Return the copy on the ready topic that starts a dead letter's retries anew, and the event."""
    letter = replace(record, life=life)  # its headers of ours are of this group, not another's
    return (_copy(letter, policy.names.ready, life, policy), _event(life, State.REDRIVEN, None, policy, now))


def _copy(record: Record, topic: str, life: RetryState, policy: Policy, more: Headers | None = None) -> Copy:
    if record.headers is None:
        headers: Headers = []
    else:
        from_main = record.life is None and not record.fault
        headers = kept_originals(record.headers) if from_main else without_ours(record.headers)
    if policy.traced and (before := attempt_before(record.headers or [])) is not None:
        headers.append((RETRY_TRACEPARENT, before))
    if life.postponed_at:
        headers.append((RETRY_POSTPONED_AT, b"%d" % life.postponed_at))
    headers += render_retry_headers(life, policy.names.group, topic)
    if more is not None:
        headers += more
    return Copy(topic, record.key, record.value, headers, record.source.number)


def _passed_on(record: Record, topic: str, now: int) -> Copy:
    """Return an unchanged copy of a stray: a record of a topic that only other instances consume.

    Each hop chooses another partition. The key alone would keep the record with one owner, and that owner may be an
    instance that does not consume the topic.
    """
    # Not by the offset alone: if a transaction marker follows each record, all offsets of a partition may be even.
    spread = crc32(f"{record.id} {record.offset} {now}".encode())
    return Copy(topic, record.key, record.value, for_topic(record.headers or [], topic), spread, scattered=True)


def _dead_letter(record: Record, decision: DeadLetter, policy: Policy) -> Copy:
    life = decision.life
    more = dead_letter_headers(life, policy.names.group, decision.deliveries)
    found = life.topic if life.topic in policy.topics else record.source.topic
    return _copy(record, policy.dlq_of(found), life, policy, more)


def _event(life: RetryState, state: State, level: int | None, policy: Policy, now: int) -> Copy:
    event = event_of(life, state, level, group=policy.names.group, instance=policy.instance, at=now)
    return Copy(policy.names.events, life.id.encode(), encode_event(event), [])
