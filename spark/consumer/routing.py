"""Decide which copies and events are written for a record, before and after the handler. Pure functions.

They are byte for byte those that the sidecar writes for the same record, outcome and time. Only a wait that is shorter
than every level differs (`Rules.first_level`).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from spark.consumer.record import UNREADABLE, ParsedRecord
from spark.consumer.rules import Rules
from spark.consumer.verdict import DeadLetter, Retry
from topics.events import State, encode_event, event_of
from topics.headers import Headers, RetryState, dead_letter_headers, render_retry_headers, without_ours
from topics.headers_fast import for_topic
from topics.original_headers import kept_originals
from topics.reasons import reason_text

UNKNOWN_TOPIC = "unknown-topic"
"""The reason of a dead letter whose main topic no job or sidecar of the group consumes."""
NEAR = 1_000
"""ms. The task sleeps through the rest of a wait up to this length. For a longer rest the record is sent to a level."""


class Out(NamedTuple):
    """One record to write."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


class Routed(NamedTuple):
    """The outcome of a record, and the records to write for it, the copy first.

    `outcome` is `commit`, `retry`, `dead_letter`, `hop` or `refused` (not handled, because its headers are not valid).
    """

    outcome: str
    writes: tuple[Out, ...] = ()


Outcome: TypeAlias = Retry | DeadLetter | None
"""The handler's outcome; None means that it took the record."""


def before_handling(taken: ParsedRecord, rules: Rules, now: int) -> Routed | None:
    """Return the result for a record that may not be handled at `now` (epoch ms); None if it may be, once it is due."""
    if taken.fault:
        return _condemned(taken, rules, now)
    life = taken.life
    if life is not None and life.topic not in rules.topics:
        return _stray(taken, life, rules, now)
    if life is None or life.due_at - now <= NEAR:
        return None
    topic = rules.names.level(rules.first_level(life.due_at - now), life.topic)
    return Routed("hop", (_copy(taken, topic, life, rules),))


def after_handling(taken: ParsedRecord, outcome: Outcome, rules: Rules, now: int) -> Routed:
    """Return the result of the handler's outcome; `now` (epoch ms) is the time that is written."""
    if outcome is None:
        life = taken.life
        return Routed("commit", () if life is None else (_event(life, State.COMMIT, None, rules, now),))
    times = taken.times + 1
    if isinstance(outcome, DeadLetter) or outcome.level == -1 or times > rules.max_reconsume_times:
        return _dead(_ended(taken, outcome.reason, now), taken, taken.times + 1, rules, now)
    wait = rules.wait_of(times, outcome.delay, outcome.level)
    level = rules.first_level(wait)
    life = replace(_ended(taken, outcome.reason, now), times=times, due_at=now + wait)
    copy = _copy(taken, rules.names.level(level, life.topic), life, rules)
    return Routed("retry", (copy, _event(life, State.WAITING_RETRY, level, rules, now)))


def _stray(taken: ParsedRecord, life: RetryState, rules: Rules, now: int) -> Routed:
    """Pass on a record of a main topic that another job or sidecar of the group may consume.

    This happens while two configurations are in use. If none of them takes the record within `unknown_topic` after its
    due time, it is dead-lettered with its whole retry state.
    """
    row = taken.row
    if now - (life.due_at or life.first_failed_at) >= rules.unknown_topic:
        kept = replace(life, due_at=now, reason=reason_text(UNKNOWN_TOPIC, life.reason))
        return _dead(kept, taken, life.times, rules, now)
    level = rules.level_for(life.due_at - now)
    passing = rules.passing_level(row.topic) or rules.delays[0]
    topic = rules.names.level(passing if level is None else level, rules.family(row.topic))
    return Routed("hop", (Out(topic, row.key, row.value, for_topic(row.headers, topic)),))


def _ended(taken: ParsedRecord, reason: str, now: int) -> RetryState:
    """Return the retry state of a record whose handling failed at `now`; it is due at once."""
    row, text = taken.row, reason_text(reason, "")
    life = taken.life or RetryState(taken.id, row.topic, timestamp=row.timestamp)
    return replace(life, due_at=now, first_failed_at=life.first_failed_at or now, reason=text)


def _condemned(taken: ParsedRecord, rules: Rules, now: int) -> Routed:
    """Dead-letter a record without handling it.

    Its headers cannot be trusted: its id is its own position, and its count is 0.
    """
    row = taken.row
    life = RetryState(row.position, row.topic, 0, 0, now, row.timestamp, now, taken.fault)
    return _dead(life, taken, 0, rules, now)._replace(outcome="refused")


def _dead(life: RetryState, taken: ParsedRecord, deliveries: int, rules: Rules, now: int) -> Routed:
    more = dead_letter_headers(life, rules.names.group, deliveries)
    topic = life.topic if life.topic in rules.topics else taken.row.topic
    copy = _copy(taken, rules.dlq_of(topic), life, rules)
    copy = copy._replace(headers=[*copy.headers, *more])
    return Routed("dead_letter", (copy, _event(life, State.DLQ, None, rules, now)))


def _copy(taken: ParsedRecord, topic: str, life: RetryState, rules: Rules) -> Out:
    if taken.fault == UNREADABLE:
        own: Headers = []
    else:
        from_main = taken.life is None and not taken.fault
        own = kept_originals(taken.row.headers) if from_main else without_ours(taken.row.headers)
    return Out(topic, taken.row.key, taken.row.value, own + render_retry_headers(life, rules.names.group, topic))


def _event(life: RetryState, state: State, level: int | None, rules: Rules, now: int) -> Out:
    event = event_of(life, state, level, group=rules.names.group, instance=rules.instance, at=now)
    return Out(rules.names.events, life.id.encode(), encode_event(event), [])
