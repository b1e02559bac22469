"""Handle records on a worker: call the handler, say what its answer means, and what is written for it. Pure.

This needs neither Spark nor Kafka: `workers.py` calls it for Spark's rows, and `testing.py` for a test's records. For
each record, in this order:

1. `parse` (`record.py`) reads the retry headers of a copy.
2. `before_handling` says what becomes of a record that may not be handled: its headers are broken, it has not the tags
   that are wanted, it has more than a second to wait, an operator holds it, or only another member of the group
   consumes its topic. All others are handled once they are due.
3. `answer_of` calls a handler with one record, `answers_of` a batch handler with many. An exception is an answer too,
   so nothing that a handler does ends a batch.
4. `Judge` says what an answer means: None for a record that was taken, else what failed and why. A mistake of the
   handler is a failure `verdict-error` (`verdict.py`). The message of an exception is the failure's text, unless
   `Rules.failure_text` is `none`.
5. `after_handling` says what follows. `topics.transitions` decides and `topics.transition_records` writes, as for the
   sidecar; only a wait that is shorter than every level differs, because a micro-batch cannot hold a record back.

A `Judge` belongs to one task. It keeps which classes it has noted, for the first failure of each class takes its stack
along to the driver's log.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from reconsume.spark.consumer.record import ParsedRecord, Read, Record, for_handler, parse
from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.verdict import (
    USUAL_DEAD_LETTER,
    USUAL_RETRY,
    VERDICT_ERROR,
    DeadLetter,
    Mistake,
    Retry,
    Verdict,
    kind_of,
    mistake_in,
    misuse_in,
)
from reconsume.topics import transitions
from reconsume.topics.attempt import retry_state_of, topic_of
from reconsume.topics.durations import render_duration
from reconsume.topics.expiry import Expiry
from reconsume.topics.hold_record import HoldRecord, holds_record
from reconsume.topics.levels import longest_below
from reconsume.topics.masking import text_without_secrets
from reconsume.topics.reasons import one_line, reason_class
from reconsume.topics.tags import TagFilter
from reconsume.topics.transition_records import Copy, writes_of

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.types import Row

NEAR = 1_000
"""ms. The task sleeps through the rest of a wait up to this length. For a longer rest the record is sent to a level."""
CRASHED = "crashed-service"
"""The sidecar's reason for a record that crashes its service."""
ODD_KINDS = (VERDICT_ERROR, "delay", "level")
"""What is odd about an answer: a mistake, or a delay or level that is not allowed, so that the ladder decides."""
FIRST_CHARACTERS = 1_024
"""Characters of an exception's message that are looked at."""
MOST_FRAMES, LONGEST_STACK = 20, 4_096
"""Frames and characters of a stack, the last ones."""
MOST_NOTES, LONGEST_NOTE = 10, 5_000
"""Notes of a task, and characters of each. They reach the driver, and the handler chooses the classes."""

ANSWERS = "a batch handler returns None, or one answer for each row, in their order"

Handler: TypeAlias = Callable[[Record], object]
"""A function that takes a record. It returns or raises a verdict (`verdict`) for a record that it does not take; any
other exception is a failure, and any other value means that the record was taken."""
BatchHandler: TypeAlias = "Callable[[pd.DataFrame], Iterable[object] | None]"
"""A function that takes records as a pandas DataFrame, whose columns are the fields of `Record`, one row each. It
returns one answer for each row, in their order, or None if it took all of them. A verdict in place of the answers is
that of all rows."""


class Note(NamedTuple):
    """A text for the driver's log, about the first record of a task with this class of failure or kind of oddity."""

    key: str
    text: str


class Failed(msgspec.Struct, frozen=True):
    """A record that was not taken, as `topics.transitions` reads it.

    - `reason`, `text`: the class and the text of the failure.
    - `delay`: ms until the next attempt; None: by the level, or by the ladder.
    - `level`: −1 for the DLQ, 0 for the ladder, n > 0 for level n of the table; None: not given.
    - `expires`: when the record is worth no retry any more.
    - `is_counted`: whether it counts towards `stop_share`. A dead letter that the handler asked for does not.
    - `odd`: one of ODD_KINDS; empty if nothing is odd.
    - `note`: what the driver should log.
    """

    reason: str
    text: str = ""
    delay: int | None = None
    level: int | None = None
    expires: Expiry | None = None
    is_counted: bool = True
    odd: str = ""
    note: Note | None = None


Outcome: TypeAlias = Failed | None
"""What a handler's answer means; None: it took the record."""
Ask: TypeAlias = Callable[[Sequence[Record]], Sequence[Outcome]]
"""A function that calls a handler with records and returns the outcome of each. Never raises."""
Written: TypeAlias = tuple[str, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""A record to write: topic, key, value and headers."""


class Result(NamedTuple):
    """The result of handling one row, as a row for Spark; the fields mean for it what they count in `foreach.Counts`.

    `outcome` is one of OUTCOMES, and `odd` one of ODD_KINDS or empty. `labels` are for metrics: the main topic, and the
    delay of a retry or the class of a dead letter's reason. `waited` and `late`: for how many ms a record that was
    handled had waited on a main topic when the batch began, or since its copy was due.
    """

    outcome: str
    labels: tuple[str, str] = ("", "")
    failed: bool = False
    odd: str = ""
    fresh: bool = False
    waited: int = 0
    late: int = 0
    note: Note | None = None
    writes: Sequence[Written] = ()


OUTCOMES: Mapping[type, str] = {
    transitions.Commit: "commit",
    transitions.Retry: "retry",
    transitions.DeadLetter: "dead_letter",
    transitions.Hop: "hop",
}
"""The outcome that each decision is counted as. A record with broken headers is `refused` instead, and one without the
tags that are wanted is PASSED_OVER."""
PASSED_OVER = "passed_over"
OTHER, UNKNOWN = "other", "(unknown)"
"""The labels of reasons that a handler has chosen, and of topics that the query does not consume: a label must hold no
text of a record or a handler."""
REASONS = frozenset(
    {
        VERDICT_ERROR,
        USUAL_RETRY,
        USUAL_DEAD_LETTER,
        CRASHED,
        "bad-header",
        transitions.UNREADABLE,
        transitions.UNKNOWN_TOPIC,
    }
)
"""The classes that are labels."""


# --- the records ------------------------------------------------------------------------------------------------------


def handle_rows(ask: Ask, rows: Sequence[Mapping[str, Any] | Row], rules: Rules) -> list[Result]:
    """Return the result of each row. Those that may be handled are asked about by one call, once all are due."""
    parsed = [parse(read_of(row), rules, row["now"]) for row in rows]
    early = [before_handling(record, rules, row["now"]) for record, row in zip(parsed, rows, strict=True)]
    ready = [record for record, result in zip(parsed, early, strict=True) if result is None]
    for record in ready:
        await_due(record)
    outcomes = iter(ask([for_handler(record) for record in ready]))
    return [
        after_handling(record, next(outcomes), rules, row["now"]) if result is None else result
        for record, result, row in zip(parsed, early, rows, strict=True)
    ]


def before_handling(record: ParsedRecord, rules: Rules, now: int) -> Result | None:
    """Return the result for a record that may not be handled at `now` (epoch ms); None if it may be, once it is due."""
    if record.fault:
        step = transitions.dead_letter_unreadable(record, now)
        return _result(record, step, rules, now)._replace(outcome="refused")
    if rules.tags and record.retry_state is None and not TagFilter(rules.tags, rules.tags_header)(record):
        return Result(PASSED_OVER, (record.source.topic, ""))
    wait = transitions.after_wait(record, rules, now, NEAR)
    is_near = isinstance(wait, transitions.Hop) and not wait.stray and wait.retry_state.due_at - now <= NEAR
    if not is_near and not isinstance(wait, transitions.Wait):
        return _result(record, wait, rules, now)
    hold = hold_on(record, rules)
    return None if hold is None else _result(record, held(record, hold, rules, now), rules, now)


def hold_on(record: ParsedRecord, rules: Rules) -> HoldRecord | None:
    """Return the operators' hold on a record that lasts longest; None if there is none."""
    if not rules.holds:
        return None
    topic, level = topic_of(record), level_of(record.source.topic, rules)
    fitting = [hold for hold in rules.holds if holds_record(hold, topic, level, record.key)]
    return max(fitting, key=lambda hold: hold.until, default=None)


def level_of(topic: str, rules: Rules) -> str:
    """Return the level that a topic is, as operators and metrics name it: a delay, `ready` or `main`."""
    role = rules.names.role(topic, rules.topics)
    return "" if role is None else str(role.kind) if role.delay is None else render_duration(role.delay)


def held(record: ParsedRecord, hold: HoldRecord, rules: Rules, now: int) -> transitions.Hop:
    """Return the copy of a record that an operator holds, uncounted.

    It waits in the longest level that ends before the hold, or else in the shortest one.
    When its level ends, it is asked about again, so that it comes as soon as the hold is released. By then it is in
    another level, though. So a hold that names a level keeps it until the hold's own end.
    """
    level = longest_below(hold.until - now, rules.delays) or rules.delays[0]
    state = retry_state_of(record)
    due_at = hold.until if hold.level is not None else state.due_at or now + level
    return transitions.Hop(replace(state, due_at=due_at), level)


def after_handling(record: ParsedRecord, outcome: Outcome, rules: Rules, now: int) -> Result:
    """Return the result of a record that was handled; `now` (epoch ms) is the time that is written."""
    step = step_after(record, outcome, rules, now)
    state = record.retry_state
    waited = now - record.timestamp if state is None and record.timestamp >= 0 else 0
    late = now - state.due_at if state is not None and state.due_at else 0
    result = _result(record, step, rules, now)._replace(fresh=state is None, waited=waited, late=late)
    return result if outcome is None else result._replace(failed=outcome.is_counted, odd=outcome.odd, note=outcome.note)


def step_after(
    record: ParsedRecord, outcome: Outcome, rules: Rules, now: int
) -> transitions.Commit | transitions.Retry | transitions.DeadLetter:
    """Decide what follows from an outcome at `now` (epoch ms)."""
    if outcome is None:
        return transitions.after_success(record)
    step = transitions.after_failure(record, outcome, rules, now)
    assert not isinstance(step, transitions.Requeue), "a Spark consumer has no queues"
    if isinstance(step, transitions.Retry) and step.level is None:  # shorter than every level
        return replace(step, level=rules.delays[0])
    return step


def await_due(record: ParsedRecord) -> None:
    """Sleep until the record is due, for at most NEAR ms. The clocks of two machines differ by about this much."""
    if record.retry_state is not None:
        remaining = record.retry_state.due_at - time.time_ns() // 1_000_000
        if remaining > 0:
            time.sleep(min(remaining, NEAR) / 1_000)


def read_of(row: Mapping[str, Any] | Row) -> Read:
    """Return Spark's row, or Arrow's, as a `Read`. There is null where there are no headers; Spark's bytes are
    bytearrays."""
    headers = [(header["key"], _bytes(header["value"])) for header in row["headers"] or ()]
    position = (row["topic"], row["partition"], row["offset"], row["timestamp"])
    return Read(*position, _bytes(row["key"]), _bytes(row["value"]), headers)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _result(record: ParsedRecord, step: transitions.Commit | transitions.Written, rules: Rules, now: int) -> Result:
    topic, detail = topic_of(record), ""
    match step:
        case transitions.Retry(level=int(level)):
            detail = render_duration(level)
        case transitions.DeadLetter(reason=reason):
            detail = name if (name := reason_class(reason)) in REASONS else OTHER
    copies: Sequence[Copy] = writes_of(record, step, rules, now)
    writes = [(copy.topic, copy.key, copy.value, copy.headers) for copy in copies]
    return Result(OUTCOMES[type(step)], (topic if topic in rules.topics else UNKNOWN, detail), writes=writes)


# --- the calls --------------------------------------------------------------------------------------------------------


class Raised(NamedTuple):
    """The answer of a handler that raised."""

    error: BaseException


def answer_of(handler: Handler, record: Record) -> object:
    """Call the handler once and return its answer, or what it raised."""
    try:
        return handler(record)
    except Verdict as verdict:
        return verdict
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any failure of the user's code is retried
        return Raised(error)


def answers_of(handler: BatchHandler, records: Sequence[Record]) -> list[object]:
    """Call the batch handler and return the answer to each record.

    If it raises, it is called again with each record alone: only the bad ones fail. A verdict that it raises is that of
    all records.
    """
    if not records:
        return []
    try:
        return _listed(handler(table_of(records)), len(records))
    except Verdict as verdict:
        return [verdict] * len(records)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any failure of the user's code is retried
        if len(records) == 1:
            return [Raised(error)]
    return [answer for record in records for answer in answers_of(handler, [record])]


def _listed(answers: object, count: int) -> list[object]:
    """Return the answers to `count` records one by one. What cannot be such answers is a mistake for each of them."""
    if answers is None or isinstance(answers, Verdict):
        return [answers] * count
    if isinstance(answers, str) or not isinstance(answers, Iterable):
        return [mistake_in(answers) or Mistake(ANSWERS, kind_of(answers))] * count
    # A table or a mapping gives its names, and a set has no order.
    if isinstance(answers, bytes | Mapping | AbstractSet) or hasattr(answers, "columns"):
        return [Mistake(ANSWERS, kind_of(answers))] * count
    listed = list(answers)
    return listed if len(listed) == count else [Mistake(ANSWERS, f"{len(listed)} for {count}")] * count


def table_of(records: Sequence[Record]) -> pd.DataFrame:
    """Return the records as a DataFrame; `key` and `value` are bytes or None."""
    import pandas as pd  # here only: a job without a batch handler needs none

    return pd.DataFrame.from_records(records, columns=list(Record._fields))


# --- what an answer means ---------------------------------------------------------------------------------------------


class Judge:
    """Says what answers mean by the rules of the group. One for each task."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._keeps_text = rules.failure_text == "message"
        self._noted: set[str] = set()

    def outcome(self, answer: object, record: Record) -> Outcome:
        """Return what an answer to the record means. Never raises."""
        match answer:
            case Mistake():
                return self._mistaken(answer, record)
            case Raised(error):
                misuse = misuse_in(error)
                return self._raised(error, record) if misuse is None else self._mistaken(misuse, record)
            case Verdict(mistake=Mistake() as mistake):
                return self._mistaken(mistake, record)
            case Retry():
                reason, text = class_and_text(answer.reason, USUAL_RETRY)
                failed = Failed(reason, text, answer.wait, answer.level, answer.expiry)
                if self._rules.understands(failed.delay, failed.level):
                    return failed
                kind = "level" if failed.delay is None else "delay"
                failed = replace(failed, odd=kind)
                return self._noting(failed, kind, record, f"{answer!r} is not allowed, and the ladder decides")
            case DeadLetter():
                reason, text = class_and_text(answer.reason, USUAL_DEAD_LETTER)
                return Failed(reason, text, level=-1, is_counted=False)
            case _:
                no_verdict = mistake_in(answer)
                return None if no_verdict is None else self._mistaken(no_verdict, record)

    def _mistaken(self, mistake: Mistake, record: Record) -> Failed:
        text = one_line(str(mistake) if self._keeps_text else mistake.rule)
        return self._noting(Failed(VERDICT_ERROR, text, odd=VERDICT_ERROR), VERDICT_ERROR, record, text)

    def _raised(self, error: BaseException, record: Record) -> Failed:
        reason = type(error).__name__
        text = message_of(error) if self._keeps_text else ""
        if not self._has_room(reason):
            return Failed(reason, text)
        return self._noting(Failed(reason, text), reason, record, stack_of(error, with_message=self._keeps_text))

    def _has_room(self, key: str) -> bool:
        return key not in self._noted and len(self._noted) < MOST_NOTES

    def _noting(self, failed: Failed, key: str, record: Record, text: str) -> Failed:
        """Return the failure with a note if it is the first one of its key."""
        if not self._has_room(key):
            return failed
        self._noted.add(key)
        return replace(failed, note=Note(key, f"{record.id} (attempt {record.times + 1}): {text}"[:LONGEST_NOTE]))


def ask_each(handler: Handler, judge: Judge) -> Ask:
    """Return the function that calls a handler with each of the records."""
    return lambda records: [judge.outcome(answer_of(handler, record), record) for record in records]


def ask_all(handler: BatchHandler, judge: Judge) -> Ask:
    """Return the function that calls a batch handler with all of the records."""
    return lambda records: [
        judge.outcome(answer, record) for answer, record in zip(answers_of(handler, records), records, strict=True)
    ]


def message_of(error: BaseException) -> str:
    """Return the message of an exception, on one line and bounded as the sidecar's texts are; empty if it has none."""
    try:
        return one_line(text_without_secrets(str(error)[:FIRST_CHARACTERS]))
    except Exception:  # noqa: BLE001 - an exception of the user's may be unable to say what it is
        return ""


def stack_of(error: BaseException, *, with_message: bool) -> str:
    """Return the end of an exception's stack, without the frame that called the handler. Its lines are indented, so
    that no message can pass for a line of the log."""
    trace = error.__traceback__ and error.__traceback__.tb_next
    if with_message:
        lines = traceback.format_exception(type(error), error, trace, limit=-MOST_FRAMES)
    else:
        lines = [*traceback.format_tb(trace, limit=-MOST_FRAMES), type(error).__name__]
    text = text_without_secrets("".join(lines)[-LONGEST_STACK:])
    clean = "".join(char if char == "\n" or char.isprintable() else " " for char in text)
    return f"{type(error).__name__}\n" + "\n".join(f"    {line}" for line in clean.splitlines())


def class_and_text(reason: str, usual: str) -> tuple[str, str]:
    """Return the class and the text of a reason, which may be `class: text`."""
    name, _, text = reason.partition(": ")
    return name.strip() or usual, text
