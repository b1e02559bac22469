"""Turn a transition into the records that carry it out: the copy of the record, and the event that reports the change.

Sidecar and Spark jobs write the same bytes for the same record, outcome and time, because both call this. Pure.
"""

from __future__ import annotations

from typing import assert_never
from zlib import crc32

import msgspec
from msgspec.structs import replace

from reconsume.topics.attempt import ReadRecord
from reconsume.topics.dead_letter_headers import dead_letter_headers
from reconsume.topics.events import BY_SETTLEMENT, State, encode_event, event_of
from reconsume.topics.group_rules import GroupRules, number_of
from reconsume.topics.headers_fast import for_topic
from reconsume.topics.other_group_headers import kept_originals
from reconsume.topics.render_headers import RETRY_TRACEPARENT, attempt_before, render_retry_headers, without_ours
from reconsume.topics.retry_headers import MOST_HEADERS, MOST_OF_OURS, RETRY_HEADERS_DROPPED, Headers, RetryState
from reconsume.topics.transitions import Commit, DeadLetter, Forward, Hop, Requeue, Retry, Written


class Copy(msgspec.Struct, frozen=True, gc=False):
    """A record to publish.

    `spread` chooses the partition of a record without a key: it is the number of the source partition. With `scattered`
    it also chooses the partition of a record with a key. A Spark job follows neither: no partition has an owner there.
    `exact`: `spread` is the partition itself, and there must be one of this number. `timestamp`: epoch ms; 0: the time
    of writing.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    spread: int = 0
    scattered: bool = False
    exact: bool = False
    timestamp: int = 0


def writes_of(record: ReadRecord, decision: Commit | Written, rules: GroupRules, now: int) -> tuple[Copy, ...]:
    """Return the records to publish for a decision, the copy first; empty if there is nothing to write."""
    match decision:
        case Commit(retry_state=state, by=by):
            return () if state is None else (_event(state, State.COMMIT, None, rules, now, by),)
        case Retry(retry_state=state, level=level):
            copy = _copy(record, rules.retry_topic(level, state), state, rules)
            return (copy, _event(state, State.WAITING_RETRY, level, rules, now))
        case Requeue(retry_state=state, by=by):
            copy = _copy(record, rules.retry_topic(None, state), state, rules)
            return (copy, _event(state, State.WAITING_RETRY, None, rules, state.due_at or state.last_failed_at, by))
        case Hop(level=int(level), stray=True):
            return (_passed_on(record, rules.names.level(level, rules.family(record.source.topic)), now),)
        case Hop(retry_state=state, level=level):
            return (_copy(record, rules.retry_topic(level, state), state, rules),)
        case Forward():
            ready = rules.names.ready
            headers = for_topic(record.headers or [], ready)
            return (Copy(ready, record.key, record.value, headers, record.source.number),)
        case DeadLetter(retry_state=state, by=by):
            return (_dead_letter(record, decision, rules), _event(state, State.DLQ, None, rules, now, by))
    assert_never(decision)


def redriven_writes(record: ReadRecord, state: RetryState, rules: GroupRules, now: int) -> tuple[Copy, Copy]:
    """Return the copy that starts a dead letter's retries anew, and the event.

    It goes to the ready topic, or to the queue of its main topic if it has an order there.
    """
    topic = rules.names.ready if state.order is None else rules.names.ordered(state.topic)
    copy = _copy(record, topic, state, rules, from_main=False)
    return (copy, _event(state, State.REDRIVEN, None, rules, now))


def _copy(
    record: ReadRecord, topic: str, state: RetryState, rules: GroupRules, *, from_main: bool | None = None
) -> Copy:
    """Return the copy with the record's own headers and ours.

    `from_main`: whether headers of ours mean nothing on the record; None: as its retry state tells. A dead letter's are
    those of this group, though the DLQ has no retry lane that reads them.
    """
    if from_main is None:
        from_main = record.retry_state is None and not record.fault
    headers = record.headers or []
    headers = kept_originals(headers) if from_main else without_ours(headers)
    if len(headers) > MOST_HEADERS - MOST_OF_OURS:  # nobody could read the copy's headers, ours included
        headers = [(RETRY_HEADERS_DROPPED, b"%d" % len(headers))]
    if rules.traced and (before := attempt_before(record.headers or [])) is not None:
        headers.append((RETRY_TRACEPARENT, before))
    headers += render_retry_headers(state, rules.names.group, topic)
    if rules.has_queues and topic == rules.names.ordered(state.topic):  # who owns the main partition reads the copy
        number = record.source.number if from_main else number_of(state.id)
        return Copy(topic, record.key, record.value, headers, number, scattered=True, exact=True)
    return Copy(topic, record.key, record.value, headers, record.source.number)


def _passed_on(record: ReadRecord, topic: str, now: int) -> Copy:
    """Return an unchanged copy of a stray: a record of a topic that only other instances consume.

    Each hop chooses another partition. The key alone would keep the record with one owner, and that owner may be an
    instance that does not consume the topic.
    """
    # Not by the offset alone: if a transaction marker follows each record, all offsets of a partition may be even.
    spread = crc32(f"{record.id} {record.offset} {now}".encode())
    return Copy(topic, record.key, record.value, for_topic(record.headers or [], topic), spread, scattered=True)


def _dead_letter(record: ReadRecord, decision: DeadLetter, rules: GroupRules) -> Copy:
    state = decision.retry_state
    family = state.topic if state.topic in rules.topics else record.source.topic
    copy = _copy(record, rules.dlq_of(family), state, rules)
    more = dead_letter_headers(state, rules.names.group, decision.deliveries)
    return replace(copy, headers=[*copy.headers, *more])


def _event(state: RetryState, name: State, level: int | None, rules: GroupRules, now: int, by: str = "") -> Copy:
    """Return the event. `by`: the operator who decided it, who then stands for the instance; empty if nobody did."""
    instance = f"{BY_SETTLEMENT}{by}" if by else rules.instance
    event = event_of(state, name, level, group=rules.names.group, instance=instance, at=now)
    return Copy(rules.names.events, state.id.encode(), encode_event(event), [])
