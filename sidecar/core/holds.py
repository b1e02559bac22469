"""What an operator holds: the records that are not delivered for now (contract 10.4).

A hold names a main topic, a level, a key, or several of these: then all of them must fit. A hold that names none is for
all records. When it begins and ends is decided elsewhere (`group_policy/hold_keeper.py`): here are those in force.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from reconsume.sidecar.core.record import Record
from reconsume.topics.attempt import topic_of
from reconsume.topics.hold_record import holds_record


class Hold(msgspec.Struct, frozen=True):
    """One hold.

    `topic`: the main topic of a record, also of its retries and redrives. `level`: as in metrics: `main`, `ready`, a
    delay such as `10s`, or `ordered` (the queue of ordered records). None: any.
    """

    id: str
    topic: str | None = None
    level: str | None = None
    key: bytes | None = None


class Holds:
    """The holds in force at one moment. Values: a change makes new ones."""

    def __init__(self, holds: Iterable[Hold] = ()) -> None:
        self.ids = frozenset(hold.id for hold in holds)
        self._plain = tuple(hold for hold in holds if hold.key is None)
        """Those that name no key. There are up to a hundred in all, so those with a key are found by it."""
        self._keyed: dict[bytes, list[Hold]] = {}
        for hold in holds:
            if hold.key is not None:
                self._keyed.setdefault(hold.key, []).append(hold)

    def __bool__(self) -> bool:
        return bool(self.ids)

    def of(self, record: Record, level: str) -> Hold | None:
        """Return a hold that keeps a record of this level back; None if there is none."""
        return self.fitting(level, topic_of(record), record.key)

    def fitting(self, level: str, topic: str, key: bytes | None) -> Hold | None:
        """Return a hold on records of a level, a main topic and a key; None if there is none."""
        keyed = self._keyed.get(key, ()) if self._keyed and key is not None else ()
        return next((hold for hold in (*self._plain, *keyed) if holds_record(hold, topic, level, key)), None)

    def keys(self, level: str, topic: str) -> list[bytes]:
        """Return the keys whose records of a level and a main topic are held."""
        return [
            key for key, holds in self._keyed.items() if any(holds_record(hold, topic, level, key) for hold in holds)
        ]

    def covers(self, level: str, topic: str | None) -> bool:
        """Return whether every record of a level is held. `topic`: its only main topic; None: it may have any."""
        return any(hold.level in (None, level) and (hold.topic is None or hold.topic == topic) for hold in self._plain)


NO_HOLDS = Holds()
