"""What an instance knows of the group's holds: which are in force, which are left out, and which nobody may lose.

Pure: times come in as epoch ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from reconsume.sidecar.core.holds import Hold, Holds
from reconsume.topics.hold_record import MOST_HOLDS, HoldRecord, lasts_too_long

MOST_KEPT = 1_000
"""Holds and releases that are kept, so that a flood of them takes no memory. The first hundred are in force."""


class InForce(NamedTuple):
    """The holds in force, by id in the order in which they were written; and how many are left out beside them."""

    records: Mapping[str, HoldRecord]
    ignored: int

    @property
    def holds(self) -> Holds:
        """The same, as the lanes obey them."""
        return Holds([Hold(ident, record.topic, record.level, record.key) for ident, record in self.records.items()])

    @property
    def next_end(self) -> int | None:
        """When the first of them ends (epoch ms); None if none is in force."""
        return min((record.until for record in self.records.values()), default=None)


class HoldBook:
    """The holds of one group, as the topic tells of them.

    Invariants: at most MOST_KEPT records are kept, and none whose end is over when another is written.
    """

    def __init__(self) -> None:
        self._records: dict[str, HoldRecord] = {}
        """Holds and releases by id. A release is kept until the hold's end: an instance that was frozen may write the
        hold again."""
        self._present: set[str] = set()
        """The ids that the topic has told of since it was read from its beginning."""
        self._dropped: set[str] = set()
        """Ids beyond MOST_KEPT: those that are left out are counted by them, up to as many again."""

    def begin(self) -> None:
        """Note that the topic is read from its beginning: it may be another one of this name."""
        self._present.clear()

    def hear(self, ident: str, record: HoldRecord | None, wall: int) -> str:
        """Take in what the topic says of a hold; return why it is left out, empty if it is not."""
        self._forget(wall)
        if record is None:
            self._records.pop(ident, None)
            return ""
        if record.until <= wall:  # of the past, or ended: nothing to obey
            self._records.pop(ident, None)
            return ""
        known = self._records.get(ident)
        if known is not None and known.released and not record.released:  # of one that has not heard of the release
            self._present.discard(ident)
            return ""
        self._present.add(ident)
        if lasts_too_long(record, wall):
            return f"hold {ident} by {record.who} would last more than 7 d"
        if ident not in self._records and len(self._records) >= MOST_KEPT:
            if len(self._dropped) < MOST_KEPT:
                self._dropped.add(ident)
            return f"hold {ident} by {record.who}: {MOST_KEPT} holds and releases are known already"
        self._records[ident] = record  # a hold that is told of again keeps its turn
        return ""

    def in_force(self, wall: int) -> InForce:
        """Return the holds in force at this time."""
        self._forget(wall)
        live = {ident: record for ident, record in self._records.items() if not record.released}
        first = dict(list(live.items())[:MOST_HOLDS])
        return InForce(first, len(live) - len(first) + len(self._dropped))

    def absent(self, wall: int) -> Mapping[str, HoldRecord]:
        """Return the holds and releases that this instance knows and the topic has not told of since `begin`.

        The topic was made anew. Whoever obeys a hold writes it again, and whoever knows a release, so that no new
        instance delivers what is held.
        """
        self._forget(wall)
        return {ident: record for ident, record in self._records.items() if ident not in self._present}

    def note_present(self, ident: str) -> None:
        """Note that a hold is on its way to the topic."""
        self._present.add(ident)

    def _forget(self, wall: int) -> None:
        over = [ident for ident, record in self._records.items() if record.until <= wall]
        for ident in over:
            del self._records[ident]
        if over:
            self._present.difference_update(over)
            self._dropped.clear()
