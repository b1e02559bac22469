"""The view of a command, read once to its end, and rows of it: of records, the sums and a record's journey."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from reconsume.sidecar.cli.terminal.output import Format, Row, clock, talk
from reconsume.sidecar.cli.terminal.progress import progress_bar
from reconsume.sidecar.clock import wall
from reconsume.sidecar.group_policy.blocking import Blocking, Retried
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.view.source import Source
from reconsume.topics.durations import render_duration
from reconsume.topics.events import Event, State, author_of

if TYPE_CHECKING:
    from reconsume.sidecar.view.reader import ViewSnapshot

LIST = ("id", "state", "times", "level", "due", "reason", "text", "topic", "last_failed_at")
STATS = ("minute", "topic", "level", "reason", "retries", "committed", "dead", "redriven")
JOURNEY = ("at", "state", "times", "after", "waits", "reason", "text", "who", "level", "due", "redrives", "instance")
"""What tells the story stands first: a narrow terminal leaves out columns from the end."""
CUT = ("reason", "text", "instance")
"""Columns of long texts, which a narrow table cuts."""
TIMES = ("due", "last_failed_at", "first_failed_at", "minute", "at", "updated_at", "timestamp", "oldest_at")
OPTIONAL = ("due", "state")
"""Facts that a record need not have."""
OLD = 60_000
"""ms after which the user is warned that the view is behind."""


@contextmanager
def whole_view(
    settings: Settings, source: Source, most: int | None, *, with_sums: bool = False
) -> Iterator[ViewSnapshot]:
    """Yield the view, read to its end; print what it is made from, how old it is, and what it lacks.

    `most`: the events to read at most; the bound of a copy where it is not given. `with_sums`: whether the sums are
    wanted, for which the events are read also where a Spark job writes the rows.
    """
    # The Kafka client is slow to import, and --help needs none.
    from reconsume.sidecar.view.copy import BOUND
    from reconsume.sidecar.view.reader import looking

    limit = BOUND.records if most is None else most
    with looking(settings.kafka, settings.names, source, limit, with_sums=with_sums) as look:
        what = "events" if source is Source.EVENTS else "records of the view"
        with progress_bar(what) as progress:
            look.read_all(progress)
        since = look.copy.sums_since(look.facts) if with_sums else look.copy.rows_since(look.facts)
        for line in source_lines(source, look.facts.as_of or 0, since, look.shortfall, wall()):
            talk(line)
        if bad := sum(look.decoder.bad.values()):
            talk(f"warning: {bad} {what} are no such, and passed over")
        yield look


def row_of(value: bytes) -> dict[str, Any]:
    """Return a value of the view or of the sums as a row."""
    row: dict[str, Any] = msgspec.json.decode(value)
    return row


def for_people(row: Row, form: Format, retried: Retried | None = None) -> Row:
    """Return the row; for a table with its times in readable form. All other formats keep it as it is in the
    topic. `retried`: of an ordered group, whose records wait in the queues of their keys, what is retried in place."""
    if form is not Format.TABLE:
        return row
    people = {key: shown(row, key) for key in row}
    if row.get("superseded"):
        return people | {"state": "SUPERSEDED", "level": None, "due": ""}
    if retried is None or row.get("state") != State.WAITING_RETRY or row.get("level") is not None:
        return people
    if (one := tried_of(row, retried)) is None:
        return people | {"level": "queue"}
    head = one.head
    return people | {
        "level": "in place",
        "times": head.times,
        "due": "held" if head.held else moment(head.due),
        "reason": head.reason,
    }


def tried_of(row: Row, retried: Retried) -> Blocking | None:
    """Return what is said of a record of the view that waits in a queue and is retried in place; None of others."""
    waits, due = row.get("state") == State.WAITING_RETRY and row.get("level") is None, row.get("due")
    return retried.in_queue(str(row.get("id")), due if isinstance(due, int) else 0) if waits else None


def shown(row: Row, key: str) -> object:
    """Return a field of a row for people. Of the records of the view, only those that wait are due."""
    value, state = row[key], str(row.get("state") or "")
    if key == "due" and state in list(State) and (state != State.WAITING_RETRY or not value):
        return "parked" if state == State.WAITING_RETRY else ""
    return moment(value) if key in TIMES and isinstance(value, int) else value


def sums_row(value: bytes) -> dict[str, Any]:
    """Return a minute's sums as a row. `waiting`, which counts the retries that were made in that minute, is `retries`
    there."""
    row = row_of(value)
    return {**row, "retries": row.pop("waiting", None)}


def moment(at: int) -> str:
    """Format epoch ms for people; an empty text for 0, which means no time."""
    return "" if at <= 0 else clock(at)


def age_text(source: Source, as_of: int, now: int) -> str:
    """Return a sentence about what the view is made from and its age, with a warning if it is old."""
    age = max(0, now - as_of)
    text = f"as of {clock(as_of)}, {render_duration(age // 1000 * 1000)} ago" if as_of > 0 else "of unknown age"
    whence = "from Spark's view" if source is Source.SPARK else "from the events"
    hint = ": is the Spark job running?" if source is Source.SPARK else ""
    return f"warning: {whence}, {text}{hint}" if age > OLD else f"{whence}, {text}"


def source_lines(source: Source, as_of: int, since: int, shortfall: str, now: int) -> Iterator[str]:
    """Yield sentences about what the view is made from, how old it is, and what it lacks."""
    yield age_text(source, as_of, now)
    if since:
        yield f"complete since {clock(since)}: older events have left the topic, or were not read"
    if shortfall:
        yield f"warning: {shortfall}"


def journey(events: Sequence[Event]) -> Iterator[Row]:
    """Yield a row for each event: the record's new state, the time since the previous event, and the delay that
    follows."""
    before: int | None = None
    for event in events:
        yield {
            "at": event.at,
            "state": str(event.state),
            "times": event.times,
            "redrives": event.redrives,
            "cycle": event.cycle,
            "after": None if before is None else span(event.at - before),
            "level": event.level,
            "waits": span(event.due - event.at) if event.due > 0 and event.state is State.WAITING_RETRY else None,
            "due": event.due,
            "reason": event.reason,
            "text": event.text or "",
            "who": author_of(event),
            "instance": event.instance,
        }
        before = event.at


def span(length: int) -> str:
    """Format a length of time in ms. It may be negative, because the clocks of two instances differ."""
    return render_duration(length) if length >= 0 else f"-{render_duration(-length)}"


def facts(row: Row) -> Iterable[Row]:
    """Return a view value as rows, one field each; without a due time or a state where it has none."""
    fields = ((key, shown(row, key)) for key in row)
    return [{"field": key, "value": value} for key, value in fields if value not in ("", None) or key not in OPTIONAL]
