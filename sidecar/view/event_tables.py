"""Events folded into the tables of the local copy: a record's row is read, merged and written back.

The caller holds a transaction in which it also stores the positions. So each event counts once in the sums.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from reconsume.sidecar.view.tables import PUT_SUMS, Item, row_values
from reconsume.topics.fold import Folded, added, merged, sums_of
from reconsume.topics.names import Kind
from reconsume.topics.view_record import StatsRow, ViewRow, encode_row, stats_key

MOST_KEYS = 50
"""Records that one query looks for. One by one they would cost a third more."""
FIND = f"SELECT id, number, part, place, value FROM message WHERE id IN ({', '.join('?' * MOST_KEYS)})"
INSERT = "INSERT INTO message VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
UPDATE = """
UPDATE message SET id = ?, state = ?, level = ?, topic = ?, reason = ?, due = ?, last_failed_at = ?, cycle = ?,
    redrives = ?, times = ?, rank = ?, at = ?, updated_at = ?, part = ?, place = ?, written = ?, value = ?
WHERE number = ?
"""

_ROW = msgspec.json.Decoder(ViewRow)
_SUMS = msgspec.json.Decoder(StatsRow)


class Taken(NamedTuple):
    """What a batch of events has changed.

    `rows`: the rows that differ now, as items of the view. `new`: how many of them are new. `left_out`: records that
    had no room.
    """

    rows: list[Item]
    new: int
    left_out: int


def fold_in(run: sqlite3.Connection, items: Sequence[Item], room: int) -> Taken:
    """Fold events into the rows and the sums; take at most `room` new records, and leave out the others.

    The sums count every event. Raises sqlite3.Error.
    """
    _add_sums(run, items)
    folded = _by_record(items)
    kept = _kept(run, list(folded))
    new = [key for key in folded if key not in kept]
    taken = new[: max(0, room)]
    changed = {key: now for key, (_, before) in kept.items() if (now := merged(before, folded[key])) != before}
    run.executemany(INSERT, (_values(folded[key]) for key in taken))
    run.executemany(UPDATE, ((*_values(now), kept[key][0]) for key, now in changed.items()))
    rows = [_item(one) for one in (*(folded[key] for key in taken), *changed.values())]
    return Taken(rows, len(taken), len(new) - len(taken))


def _by_record(items: Iterable[Item]) -> dict[str, Folded]:
    rows: dict[str, Folded] = {}
    for item in items:
        assert isinstance(item.value, ViewRow)
        one = Folded(item.value, item.partition, item.offset)
        known = rows.get(item.key)
        rows[item.key] = one if known is None else merged(known, one)
    return rows


def _kept(run: sqlite3.Connection, keys: Sequence[str]) -> dict[str, tuple[int, Folded]]:
    """Return the number and the row of each of these records that has a row."""
    kept: dict[str, tuple[int, Folded]] = {}
    for begin in range(0, len(keys), MOST_KEYS):
        some: list[str | None] = [*keys[begin : begin + MOST_KEYS]]
        selected = run.execute(FIND, (*some, *[None] * (MOST_KEYS - len(some))))
        kept |= {key: (number, Folded(_ROW.decode(value), *order)) for key, number, *order, value in selected}
    return kept


def _values(one: Folded) -> tuple[object, ...]:
    return row_values(one.row, one.partition, one.offset, one.row.updated_at)


def _item(one: Folded) -> Item:
    return Item(Kind.VIEW, one.row.id, one.row, one.offset, one.row.updated_at, one.partition)


def _add_sums(run: sqlite3.Connection, items: Sequence[Item]) -> None:
    written = max((item.written for item in items), default=0)
    changed = []
    for sums in sums_of(item.event for item in items if item.event is not None).values():
        key = stats_key(sums)
        kept = run.execute("SELECT value FROM sums WHERE key = ?", (key,)).fetchone()
        now = sums if kept is None else added(_SUMS.decode(kept[0]), sums)
        changed.append((key, now.minute, written, encode_row(now)))
    run.executemany(PUT_SUMS, changed)
