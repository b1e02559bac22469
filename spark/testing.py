"""Test handlers of Spark consumers without Spark, Kafka and Java.

    from reconsume.spark.consumer import build_rules, dead_letter, retry
    from reconsume.spark.testing import record, try_batch

    assert handle(record(None)) == dead_letter("no-value")
    [tried] = try_batch(handle, [record(b"sold out")], build_rules("billing", ["orders"], name="ship"))
    assert (tried.verdict, tried.level) == (retry(delay="10m", reason="out-of-stock"), "5m")

Verdicts are values: they compare equal if they ask for the same. `try_batch` handles records by the code that workers
run, and says what would be written. It writes nothing, waits for nothing, and needs no PySpark. A batch handler needs
pandas.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from reconsume.spark.consumer.handling import (
    BatchHandler,
    Failed,
    Handler,
    Judge,
    Outcome,
    answer_of,
    answers_of,
    step_after,
)
from reconsume.spark.consumer.record import ParsedRecord, Record
from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.verdict import DeadLetter, Retry, retry
from reconsume.topics import transitions
from reconsume.topics.durations import render_duration
from reconsume.topics.partition import Partition
from reconsume.topics.reasons import reason_class, reason_text
from reconsume.topics.retry_headers import Headers, RetryState

__all__ = ["Tried", "record", "try_batch"]

DLQ = "dlq"
"""The level of a record that is dead-lettered."""


class Tried(NamedTuple):
    """What a record comes to.

    - `verdict`: what the handler returned or raised; None if it took the record. An exception, and a mistake of the
      handler, are a `retry` whose reason is `class: text`.
    - `reason`: the class of the failure, as events and the view have it; empty for a success.
    - `level`: the delay of the level topic in which the record waits next, such as `30s`, or `dlq`; None for a success.
    - `due`: when it is due again, in UTC; None for a success and for a dead letter.
    - `odd`: whether the answer was a mistake, or asked for a delay or level that is not allowed.
    """

    verdict: Retry | DeadLetter | None
    reason: str = ""
    level: str | None = None
    due: datetime | None = None
    odd: bool = False


def record(
    value: bytes | str | None = b"",
    *,
    key: bytes | str | None = None,
    headers: Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | None]] = (),
    topic: str = "test",
    partition: int = 0,
    offset: int = 0,
    timestamp: int = -1,
    times: int = 0,
    redrives: int = 0,
    cycle: int = 0,
) -> Record:
    """Return a record for a handler, `test:0:0` unless told otherwise. Texts are encoded in UTF-8.

    `headers` are a mapping, or pairs of name and bytes. `timestamp` is epoch ms, −1: it has none. `times`, `redrives`
    and `cycle` are as in `Record`.
    """
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    own: Headers = [(name, _bytes(content)) for name, content in pairs]
    position = (f"{topic}:{partition}:{offset}", topic, partition, offset, timestamp)
    return Record(*position, _bytes(key), _bytes(value), own, times, redrives, cycle)


def try_batch(
    handler: Handler | None,
    records: Iterable[Record],
    rules: Rules,
    *,
    batch_handler: BatchHandler | None = None,
    now: datetime | None = None,
) -> list[Tried]:
    """Handle records as one batch and return what each comes to, in their order.

    The arguments are those of `for_each_record`: `batch_handler`, with None as the handler, takes all records in one
    call. `now` is the batch's time (aware), from which waits count; None: the clock's. Never raises what a handler
    raises. Raises ValueError unless there is one of the two handlers.
    """
    taken = list(records)
    if (handler is None) == (batch_handler is None):
        raise ValueError("give either a handler or a batch_handler")
    answers = [answer_of(handler, one) for one in taken] if handler is not None else []
    if batch_handler is not None:
        answers = answers_of(batch_handler, taken)
    judge, at = Judge(rules), time.time_ns() // 1_000_000 if now is None else int(now.timestamp() * 1000)
    return [
        _tried(one, answer, judge.outcome(answer, one), rules, at) for one, answer in zip(taken, answers, strict=True)
    ]


def _tried(record: Record, answer: object, outcome: Outcome, rules: Rules, now: int) -> Tried:
    if outcome is None:
        return Tried(None)
    verdict = _verdict(answer, outcome)
    step = step_after(_parsed(record, now), outcome, rules, now)
    if isinstance(step, transitions.Retry):
        assert step.level is not None, "each wait has a level"
        due = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=step.retry_state.due_at)
        reason = reason_class(step.retry_state.reason)
        return Tried(verdict, reason, render_duration(step.level), due, bool(outcome.odd))
    assert isinstance(step, transitions.DeadLetter), "a failure is a retry or a dead letter"
    return Tried(verdict, reason_class(step.reason), DLQ, None, bool(outcome.odd))


def _verdict(answer: object, outcome: Failed) -> Retry | DeadLetter:
    """Return the verdict of a handler that gave one; else the retry that its answer comes to."""
    if isinstance(answer, Retry | DeadLetter) and answer.mistake is None:
        return answer
    return retry(reason=reason_text(outcome.reason, outcome.text))


def _parsed(record: Record, now: int) -> ParsedRecord:
    """Return the record as its reader knows it; one that has failed or was redriven comes as a copy that is due."""
    source = Partition(record.topic, record.partition)
    parsed = ParsedRecord(source, record.offset, record.timestamp, record.key, record.value, record.headers)
    if not (record.times or record.redrives or record.cycle):
        return parsed
    state = RetryState(
        record.id, record.topic, record.times, record.redrives, now, record.timestamp, now, cycle=record.cycle
    )
    return parsed._replace(retry_state=state)


def _bytes(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
