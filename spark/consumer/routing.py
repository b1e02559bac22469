"""What is written about a record: two pure questions, before the handler and after it.

The copies and events are byte for byte what the sidecar writes for the same record, outcome and time; only a wait that
is shorter than every level differs (`VerdictRules.level_for`).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from spark.consumer.record import UNREADABLE, ParsedRecord
from spark.consumer.rules import Rules
from spark.consumer.verdict import DeadLetter, Retry
from topics.events import State, encode_event, event_of
from topics.headers import Headers, RetryState, dead_letter_headers, reason_text, render_retry_headers, without_ours
from topics.headers_fast import for_topic

UNKNOWN_TOPIC = "unknown-topic"
NEAR = 1_000
"""ms that may be left of a wait and be waited out in the task; for more the record is sent on to a level."""


class Out(NamedTuple):
    """One record to write."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


class Routed(NamedTuple):
    """What became of a record, and what is written about it, the copy first.

    `outcome` is `commit`, `retry`, `dead_letter`, `hop` or `refused` (not handled: its headers are not in their form).
    """

    outcome: str
    writes: tuple[Out, ...] = ()


Outcome: TypeAlias = Retry | DeadLetter | None
"""What a handler came to; None: it took the record."""


def before_handling(taken: ParsedRecord, rules: Rules, now: int) -> Routed | None:
    """What is done with a record that may not be handled at `now` (epoch ms); None: it may, once it is due."""
    if taken.fault:
        return _condemned(taken, rules, now)
    life = taken.life
    if life is not None and life.topic not in rules.topics:
        return _stray(taken, life, rules, now)
    if life is None or life.due_at - now <= NEAR:
        return None
    topic = rules.names.level(rules.level_for(life.due_at - now), life.topic)
    return Routed("hop", (_copy(taken, topic, life, rules),))


def after_handling(taken: ParsedRecord, outcome: Outcome, rules: Rules, now: int) -> Routed:
    """What follows from what the handler said; `now` (epoch ms) is the time that is written."""
    if outcome is None:
        life = taken.life
        return Routed("commit", () if life is None else (_event(life, State.COMMIT, None, rules, now),))
    times = taken.times + 1
    if isinstance(outcome, DeadLetter) or outcome.level == -1 or times > rules.max_reconsume_times:
        return _dead(_ended(taken, outcome.reason, now), taken, taken.times + 1, rules, now)
    wait = rules.asked(outcome.delay, outcome.level)
    wait = rules.ladder.delay(times) if wait is None else wait
    level = rules.level_for(wait)
    life = replace(_ended(taken, outcome.reason, now), times=times, due_at=now + wait)
    copy = _copy(taken, rules.names.level(level, life.topic), life, rules)
    return Routed("retry", (copy, _event(life, State.WAITING_RETRY, level, rules, now)))


def _stray(taken: ParsedRecord, life: RetryState, rules: Rules, now: int) -> Routed:
    """Pass on a record of a main topic that another job or sidecar of the group consumes: during a change there are two
    configurations. When nobody has taken it for too long, to the DLQ with its whole life."""
    row = taken.row
    if now - (life.due_at or life.first_failed_at) >= rules.unknown_topic:
        kept = replace(life, due_at=now, reason=reason_text(UNKNOWN_TOPIC, life.reason))
        return _dead(kept, taken, life.times, rules, now)
    topic = rules.names.level(rules.passing_level(row.topic, life.due_at - now), rules.family(row.topic))
    return Routed("hop", (Out(topic, row.key, row.value, for_topic(row.headers, topic)),))


def _ended(taken: ParsedRecord, reason: str, now: int) -> RetryState:
    """The life of a record whose handling has failed at `now`, due at once."""
    row, text = taken.row, reason_text(reason, "")
    life = taken.life or RetryState(taken.id, row.topic, timestamp=row.timestamp)
    return replace(life, due_at=now, first_failed_at=life.first_failed_at or now, reason=text)


def _condemned(taken: ParsedRecord, rules: Rules, now: int) -> Routed:
    """To the DLQ unseen: its id is its own place, its count 0, nothing in it can be trusted."""
    row = taken.row
    life = RetryState(row.place, row.topic, 0, 0, now, row.timestamp, now, taken.fault)
    return _dead(life, taken, 0, rules, now)._replace(outcome="refused")


def _dead(life: RetryState, taken: ParsedRecord, deliveries: int, rules: Rules, now: int) -> Routed:
    more = dead_letter_headers(life, rules.names.group, deliveries)
    found = life.topic if life.topic in rules.topics else taken.row.topic
    copy = _copy(taken, rules.dlq_of(found), life, rules)
    copy = copy._replace(headers=[*copy.headers, *more])
    return Routed("dead_letter", (copy, _event(life, State.DLQ, None, rules, now)))


def _copy(taken: ParsedRecord, topic: str, life: RetryState, rules: Rules) -> Out:
    own = [] if taken.fault == UNREADABLE else without_ours(taken.row.headers)
    return Out(topic, taken.row.key, taken.row.value, own + render_retry_headers(life, rules.names.group, topic))


def _event(life: RetryState, state: State, level: int | None, rules: Rules, now: int) -> Out:
    event = event_of(life, state, level, group=rules.names.group, instance=rules.instance, at=now)
    return Out(rules.names.events, life.id.encode(), encode_event(event), [])
