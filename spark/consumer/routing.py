"""Decide which copies and events are written for a record, before and after the handler, in Spark's words. Pure.

`topics.transitions` decides, and `topics.transition_records` writes, for the sidecar as well. Only a wait that is
shorter than every level differs (`_after_failure`).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from reconsume.spark.consumer.record import ParsedRecord
from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.verdict import DeadLetter, Retry
from reconsume.topics import transitions
from reconsume.topics.transition_records import Copy, writes_of

NEAR = 1_000
"""ms. The task sleeps through the rest of a wait up to this length. For a longer rest the record is sent to a level."""


class Routed(NamedTuple):
    """The outcome of a record, and the records to write for it, the copy first.

    `outcome` is `commit`, `retry`, `dead_letter`, `hop` or `refused` (not handled, because its headers are not valid).
    """

    outcome: str
    writes: tuple[Copy, ...] = ()


Outcome: TypeAlias = Retry | DeadLetter | None
"""The handler's outcome; None means that it took the record."""
NAMES: dict[type, str] = {
    transitions.Commit: "commit",
    transitions.Retry: "retry",
    transitions.DeadLetter: "dead_letter",
    transitions.Hop: "hop",
}


def before_handling(record: ParsedRecord, rules: Rules, now: int) -> Routed | None:
    """Return the result for a record that may not be handled at `now` (epoch ms); None if it may be, once it is due."""
    if record.fault:
        return _routed(record, transitions.dead_letter_unreadable(record, now), rules, now)._replace(outcome="refused")
    step = transitions.after_wait(record, rules, now, NEAR)
    if isinstance(step, transitions.Wait):
        return None
    near = isinstance(step, transitions.Hop) and not step.stray and step.retry_state.due_at - now <= NEAR
    return None if near else _routed(record, step, rules, now)


def after_handling(record: ParsedRecord, outcome: Outcome, rules: Rules, now: int) -> Routed:
    """Return the result of the handler's outcome; `now` (epoch ms) is the time that is written."""
    match outcome:
        case None:
            return _routed(record, transitions.after_success(record), rules, now)
        case Retry():
            return _routed(record, _after_failure(record, outcome, rules, now), rules, now)
        case DeadLetter(reason=reason):
            return _routed(record, transitions.dead_letter(record, reason, "", now), rules, now)


def _after_failure(record: ParsedRecord, verdict: Retry, rules: Rules, now: int) -> transitions.Written:
    """Return what follows from a failure; a wait below the shortest level takes the shortest one.

    A sidecar spends such a wait in memory. A micro-batch cannot hold a record back.
    """
    step = transitions.after_failure(record, verdict, rules, now)
    if isinstance(step, transitions.Retry) and step.level is None:
        return replace(step, level=rules.delays[0])
    return step


def _routed(record: ParsedRecord, step: transitions.Commit | transitions.Written, rules: Rules, now: int) -> Routed:
    return Routed(NAMES[type(step)], writes_of(record, step, rules, now))
