"""What becomes of a record that always ends its deliveries in the same way, by the functions that decide it. Pure.

`explain` prints this. Nothing of the rules is written here a second time: each step asks `decide` (or the function that
the lane asks instead), moves a clock to the time that the decision says, and makes the record that the next delivery
would have. The way of a copy through topics asks `after_wait` at the end of each level, as the lane does. So a change
of `decide`, of a rule or of a level is a change of the forecast.

Waits have no jitter here, since a forecast is of no record in particular.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from reconsume.sidecar.core.decide import Decision, LeaveUncommitted, NackWait, Postpone, RetryInPlace
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Partition, Record
from reconsume.topics.transitions import DeadLetter, Forward, Hop, Requeue, Retry, Wait, after_wait

START = 1_000_000_000_000
"""Epoch ms of the first delivery, and the record's own timestamp."""
MEMORY = "(memory)"
PARKED = "{} (parked)"

Judge: TypeAlias = Callable[[Record, int], Decision]
"""Says what follows from a delivery of a record that ends at a time (epoch ms)."""


class Step(NamedTuple):
    """One delivery, or the end of the record, where `attempt` is None.

    `wait_ms`: how long the record waits before it. `topics`: where it waits meanwhile, and how often it is written
    there; at the end, where it stays.
    """

    attempt: int | None
    wait_ms: int
    topics: dict[str, int]


def fresh_record(topic: str) -> Record:
    """Return a record of a main topic before its first delivery."""
    return Record(Partition(topic, 0), 0, 0, START, b"", b"", None, None)


def forecast(judge: Judge, policy: Policy, topic: str) -> Iterator[Step]:
    """Yield each delivery of a record of a main topic that always ends as `judge` says, then its end if it has one.

    It ends without a step where nothing is kept of the record. In place it may be endless.
    """
    record, now_ms, attempt = fresh_record(topic), START, 1
    passed_topics: dict[int, dict[str, int]] = {}
    yield Step(attempt, 0, {topic: 1})
    while True:
        decision = judge(record, now_ms)
        match decision:
            case Retry(retry_state=state, level=level_ms):
                wait_ms = state.due_at - now_ms
                record = replace(record, retry_state=state, again=0, failed_at_ms=0, postponed_at_ms=0)
                if wait_ms not in passed_topics:
                    passed_topics[wait_ms] = topics_of_a_wait(record, level_ms, policy, now_ms)
                topics = passed_topics[wait_ms]
            case RetryInPlace(ms=wait_ms):
                record, topics = record.tried(now_ms), {topic: 1}
            case NackWait(ms=wait_ms):
                record, topics = record.nacked(), {topic: 1}
            case DeadLetter():
                yield Step(None, 0, {policy.dlq_of(topic): 1})
                return
            case Requeue():
                yield Step(None, 0, {PARKED.format(policy.names.ordered(topic)): 1})
                return
            case _:
                return
        now_ms += wait_ms
        attempt += 1
        yield Step(attempt, wait_ms, topics)


def topics_of_a_wait(record: Record, level_ms: int | None, policy: Policy, now_ms: int) -> dict[str, int]:
    """Return the topics that a copy passes until it is due, and how often, and MEMORY where the rest is waited there.

    `level_ms`: the delay of its first topic; None: the ready topic.
    """
    state = record.retry_state
    assert state is not None
    topics: Counter[str] = Counter()
    while True:
        topics[policy.retry_topic(level_ms, state)] += 1
        if policy.queued:  # it stays in its queue topic until it is due
            return topics
        now_ms += level_ms or 0
        match after_wait(record, policy, now_ms):
            case Hop(level=level_ms):
                continue
            case Wait(ms=ms) if ms:
                topics[MEMORY] += 1
            case Forward():
                topics[policy.names.ready] = 1
        return topics


def is_no_attempt(decision: Decision) -> bool:
    """Return whether a delivery that ends so spends no retry and ends nothing: the record is delivered again."""
    return isinstance(decision, Wait | Postpone | Hop | LeaveUncommitted)
