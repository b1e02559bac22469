"""Which event a record's row of the view lacks, judged by the copies of the record that are there. Pure.

A copy that waits, or a dead letter, says in its headers how often the record was retried and redriven. If that is later
than the row, an event was lost. If the row says that the record waits, and no copy waits, then the record is done, and
the event of its commit was lost.

An event that is written again, or that comes too late, changes no row (`topics.events.order`). So a mistake about a
record that moves meanwhile is corrected by the record's next event.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from reconsume.sidecar.audit.facts import Fact, FactKind
from reconsume.topics.events import Event, State, event_of, latest, order
from reconsume.topics.names import Names
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.specs import OUTAGE_MARGIN
from reconsume.topics.view_record import ViewRow

WRITER = "view-repair"
"""The `instance` of the events that are written here."""
WAITING = (State.WAITING_RETRY, State.REDRIVEN)


def missing_event(row: ViewRow | None, copies: Iterable[Fact], names: Names, now: int) -> Event | None:
    """Return the event that the view lacks of a record; None if it lacks none, or if that cannot be known.

    `row`: the record's row of the view, None if it has none. `copies`: its copies that wait, and its dead letters.
    `now`: epoch ms. The copies must have been read after the row.
    """
    candidates = list(copies)
    newest = latest(event_of_copy(fact, names) for fact in candidates)
    if row is None or (newest is not None and order(newest)[:3] > order(row)[:3]):
        return newest if row is None or newest is None else with_most(newest, row)
    if row.state not in WAITING or any(fact.what is FactKind.COPY for fact in candidates):
        return None
    # A copy that is older than the retention of its level may have been deleted unread, and its end is not known.
    return commit_of(row) if row.due + OUTAGE_MARGIN > now else None


def event_of_copy(fact: Fact, names: Names) -> Event:
    """Return the event that was written with a copy. Its time is when the copy was appended."""
    waits = State.WAITING_RETRY if fact.times else State.REDRIVEN
    state = State.DLQ if fact.what is FactKind.DEAD else waits
    topic = fact.id.rsplit(":", 2)[0]
    retry_state = RetryState(
        fact.id, topic, fact.times, fact.redrives, fact.due, fact.timestamp, fact.first_failed_at, fact.reason
    )
    role = names.role(fact.topic, (topic,))
    level = None if role is None else role.delay or None
    return event_of(retry_state, state, level, group=names.group, instance=WRITER, at=fact.at)


def with_most(event: Event, row: ViewRow) -> Event:
    """Return the event with the most retries of any life: a copy may not say those of the lives before."""
    return replace(event, retries=row.retries) if row.retries > event.times else event


def commit_of(row: ViewRow) -> Event:
    """Return the event of the commit of a record that waits no more, at the earliest time that is possible."""
    fields = {name: getattr(row, name) for name in Event.__struct_fields__}
    return Event(**{**fields, "state": State.COMMIT, "level": None, "at": max(row.due, row.at), "instance": WRITER})
