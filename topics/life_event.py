"""From a record's headers to the event that tells of it: the one place where the two forms meet. No clock here."""

from __future__ import annotations

from topics.durations import render_duration
from topics.events import Event, State
from topics.headers import Life, reason_class


def event_of(life: Life, state: State, level: int | None, *, group: str, instance: str, at: int) -> Event:
    """The event that says that a record stands so at `at` (epoch ms); `level`: the delay (ms) of where it waits."""
    topic, partition, offset = life.id.rsplit(":", 2)
    return Event(
        group=group,
        id=life.id,
        state=state,
        times=life.times,
        redrives=life.redrives,
        level=None if level is None else render_duration(level),
        due=life.due_at,
        at=at,
        reason=reason_class(life.reason),
        topic=topic,
        partition=int(partition),
        offset=int(offset),
        timestamp=life.timestamp,
        first_failed_at=life.first_failed_at,
        instance=instance,
    )
