"""Events: one small JSON record for each change of state, and their order (contract 11.1, 11.2).

The order makes repeated events harmless. The view, the audit and the lists are all computed from events. Only this
module decides the order of two events.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

import msgspec

from reconsume.topics import json_bounds as bounds
from reconsume.topics import versions
from reconsume.topics.attempt import Attempt, attempt_of
from reconsume.topics.durations import render_duration
from reconsume.topics.reasons import reason_class, text_of
from reconsume.topics.retry_headers import RetryState, capped


class State(enum.StrEnum):
    """The state of a record that has failed at least once."""

    WAITING_RETRY = "WAITING_RETRY"
    COMMIT = "COMMIT"
    DLQ = "DLQ"
    REDRIVEN = "REDRIVEN"
    DISMISSED = "DISMISSED"
    """A dead letter that a person has seen, and that nobody will mend."""


RANKS: dict[State, int] = {
    State.REDRIVEN: 0,
    State.WAITING_RETRY: 1,
    State.COMMIT: 2,
    State.DLQ: 3,
    State.DISMISSED: 4,
}
"""The rank of each state. Among events of the same attempt, the higher rank is the later state. REDRIVEN
is the lowest, because the retries start anew with it. DISMISSED is above DLQ, whose counts it has."""
FAILURES = (State.WAITING_RETRY, State.DLQ)
"""The states that a failure causes."""

LARGEST = 64 * 1024
"""Bytes of an event. Ours have about 400."""
AHEAD = 5 * 60_000
"""ms that an event may be ahead of the clock that it is compared with. A later time would stand above all others."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Long: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
# Kafka's −1, "no timestamp", may arrive here unchanged.
Timestamp: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Event(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One change of state. Times are epoch ms; topic, partition and offset are those of the first copy.

    `level` is the level's delay as it is written (`10s`), None without a level. `due` is 0 if nothing is due. `reason`
    is the class alone. `text` is what a person should know beside it, on one line. No sum and no metric has it.

    `retries`: the most retries that the record had in one life so far. `last_failed_at`: when it failed last; in a life
    without a failure, the last one of the life before. With both, a row of the view is a function of one event. To be
    short, an event leaves out `retries` where it is its `times`, and `last_failed_at` where it is its `at`, if a
    failure caused it, else its `first_failed_at` (`fold.row_of`). `parked`: its retries are used up, nothing is due,
    and its key waits for a person. `cycle` is left out when it is 0. A reader may find null for an optional field that
    is left out.
    """

    group: str
    id: str
    state: State
    times: Count
    redrives: Count
    level: str | None
    due: Long
    at: Long
    reason: str
    topic: str
    partition: Count
    offset: Long
    timestamp: Timestamp
    first_failed_at: Long
    instance: str
    v: Literal[1] = msgspec.field(default_factory=lambda: 1)  # a default would be omitted
    text: str | msgspec.UnsetType | None = msgspec.UNSET
    retries: Count | msgspec.UnsetType | None = msgspec.UNSET
    last_failed_at: Long | msgspec.UnsetType | None = msgspec.UNSET
    parked: bool | msgspec.UnsetType | None = msgspec.UNSET
    cycle: Count = 0


Order: TypeAlias = tuple[Attempt, int, int]


BY_REDRIVE, BY_SETTLEMENT = "redrive:", "settle:"
"""What is before the author's name in `instance` of an event that an operator caused. No pod's name has a colon."""


class BadEvent(msgspec.Struct, frozen=True):
    """The reason why a record of the events topic is not an event, as one sentence for people."""

    text: str


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Event)


def encode_event(event: Event) -> bytes:
    """Return the event as JSON."""
    return _ENCODER.encode(event)


def decode_event(data: bytes | None) -> Event | BadEvent:
    """Return the event in a record's value, or BadEvent for everything else. Never raises.

    Unknown fields are ignored.
    """
    if data is None:
        return BadEvent("the value is null")
    if why := bounds.excess(data, LARGEST):
        return BadEvent(why)
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeError) as fault:
        v = versions.newer(data)
        return BadEvent(f"not an event: {fault}"[:300] if v is None else versions.sentence(v))


def order(event: Event) -> Order:
    """Return the sort key of an event among those of its record: its attempt, rank of state, event time."""
    return attempt_of(event), RANKS[event.state], event.at


def author_of(event: Event) -> str:
    """Return who redrove, dismissed or settled the record, as its event says; empty for all other events."""
    for prefix in (BY_REDRIVE, BY_SETTLEMENT):
        if event.instance.startswith(prefix):
            return event.instance.removeprefix(prefix)
    return ""


def latest(events: Iterable[Event]) -> Event | None:
    """Return the greatest of one record's events, whatever their order and repetition. None if there are none.

    Two different events with the same sort key are compared by their bytes, so that all readers agree.
    """
    return max(events, key=lambda event: (order(event), encode_event(event)), default=None)


def event_of(retry_state: RetryState, state: State, level: int | None, *, group: str, instance: str, at: int) -> Event:
    """Return the event that says that a record is in `state` at `at` (epoch ms).

    `level`: the delay (ms) of the level where the record waits. The counts are those that the headers carry. What a
    reader takes for `last_failed_at` and `retries` in any case is left out.
    """
    _, partition, offset = retry_state.id.rsplit(":", 2)
    most, failed_at = retry_state.most_times, retry_state.last_failed_at
    if failed_at == (at if state in FAILURES else retry_state.first_failed_at):
        failed_at = 0  # what a reader takes it for in any case
    # By position, in the order of the fields: twenty names cost more than all the rest of an event, its JSON included.
    return Event(
        group,
        retry_state.id,
        state,
        capped(retry_state.times),
        capped(retry_state.redrives),
        None if level is None else render_duration(level),
        retry_state.due_at,
        at,
        reason_class(retry_state.reason),
        retry_state.topic,
        int(partition),
        int(offset),
        retry_state.timestamp,
        retry_state.first_failed_at,
        instance,
        1,
        text_of(retry_state.reason) or msgspec.UNSET,
        capped(most) if most > retry_state.times else msgspec.UNSET,
        failed_at or msgspec.UNSET,
        (retry_state.parked and state is State.WAITING_RETRY) or msgspec.UNSET,
        capped(retry_state.cycle),
    )
