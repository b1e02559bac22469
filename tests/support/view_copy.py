"""Rows and events put into a local copy of the view."""

from __future__ import annotations

from collections.abc import Sequence

from reconsume.sidecar.view.copy import Batch, RowRead, ViewCopy
from reconsume.topics.events import Event
from reconsume.topics.fold import row_of
from reconsume.topics.view_record import Forgotten, ViewRow
from tests.support.view_rows import GROUP

PLACE = (f"{GROUP}-RETRY-VIEW", 0)
EVENTS = (f"{GROUP}-RETRY-EVENTS", 0)


def read(heard: ViewRow | Forgotten, offset: int = 0, written: int = 1) -> RowRead | Forgotten:
    """A record of the Spark job's topic."""
    return heard if isinstance(heard, Forgotten) else RowRead(heard, heard.updated_at, offset, written)


def take(copy: ViewCopy, *rows: ViewRow | Forgotten) -> None:
    """Rows of the Spark job."""
    copy.store_batch(Batch([read(row, offset) for offset, row in enumerate(rows)], [], {PLACE: len(rows)}, []))


def folded(event: Event, offset: int, partition: int = 0, written: int | None = None) -> RowRead:
    """The row that an event gives."""
    moment = event.at if written is None else written
    return RowRead(row_of(event, partition, offset, moment).row, partition, offset, moment)


def take_events(copy: ViewCopy, events: Sequence[Event], first: int = 0) -> None:
    """Events, which give rows and count."""
    rows: list[RowRead | Forgotten] = [folded(event, first + number) for number, event in enumerate(events)]
    copy.store_batch(Batch(rows, [*events], {EVENTS: first + len(events)}, []))


def take_counts(copy: ViewCopy, *events: Event) -> None:
    """Events that only count, as beside the rows of a Spark job."""
    copy.store_batch(Batch([], [*events], {}, []))
