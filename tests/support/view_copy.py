"""Rows put into a local copy of the view."""

from __future__ import annotations

from reconsume.sidecar.view.store import ViewStore
from reconsume.sidecar.view.tables import Item
from reconsume.topics.names import Kind
from reconsume.topics.view_record import Forgotten, StatsRow, ViewRow, stats_key
from tests.support.view_rows import GROUP

PLACE = (f"{GROUP}-RETRY-VIEW", 0)


def item(heard: ViewRow | StatsRow | Forgotten, offset: int = 0, written: int = 1) -> Item:
    match heard:
        case ViewRow():
            return Item(Kind.VIEW, heard.id, heard, offset, written)
        case StatsRow():
            return Item(Kind.STATS, stats_key(heard), heard, offset, written)
    return Item(Kind.VIEW, heard.key, heard, offset, written)


def take(store: ViewStore, *rows: ViewRow | StatsRow | Forgotten) -> None:
    store.take([item(row, offset) for offset, row in enumerate(rows)], {PLACE: len(rows)})
