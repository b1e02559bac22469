"""What heartbeats say of records that are retried in place, in the words of all faces.

Such a record is in no topic of ours, so only the instance that has it knows its attempts; `topics/in_place_told.py` has
what a heartbeat carries. Each sentence says how old the heartbeat is, once that matters: the record may be done since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from reconsume.sidecar.printable import ago, as_of, plural
from reconsume.topics.in_place_told import InPlaceTold
from reconsume.topics.policy_record import SubscriptionRecord
from reconsume.topics.retry_headers import ID


class Blocking(NamedTuple):
    """A record that an instance retries in place. `at`: when its heartbeat said so (epoch ms)."""

    head: InPlaceTold
    at: int

    @property
    def source(self) -> tuple[str, int] | None:
        """Its main topic and partition; None if its id is not one."""
        match = ID.fullmatch(self.head.id.encode(errors="replace"))
        return None if match is None else (match[1].decode(), int(match[2]))

    def fails(self, now: int, *, dated: bool = True) -> str:
        """Return how it fails, seen from `now` (epoch ms)."""
        one = self.head
        last = f", the last with {one.reason}" if one.reason else ""
        wait = one.due - now
        coming = "the next one is due" + (f" in {ago(wait)}" if wait >= 1_000 else "")
        then = "an operator holds it" if one.held else coming
        return f"{plural(one.times, 'attempt')} failed{last}; {then}{as_of(now - self.at) if dated else ''}"

    def is_newer_than(self, due: int) -> bool:
        """Whether this is newer than the record's copy in a queue, which is due at `due` (epoch ms; 0: at once).

        An attempt follows the due time of its copy. So a copy that is due later was written since, by a ladder.
        """
        return self.at >= due

    def fails_in_queue(self, now: int) -> str:
        """Return how it fails, where its copy waits in a queue, seen from `now` (epoch ms)."""
        return f"in a queue and retried in place: {self.fails(now)}"


class Retried(NamedTuple):
    """What the instances retry in place. `records`: how many; `named`: some of them, those first that fail longest.

    `at`: when the oldest heartbeat that counts was written (epoch ms); 0 if none counts.
    """

    records: int
    named: tuple[Blocking, ...]
    at: int

    def by_id(self) -> dict[str, Blocking]:
        """Return the named records by their ids."""
        return {one.head.id: one for one in self.named}

    def in_no_queue(self, queued: Collection[str]) -> list[Blocking]:
        """Return the named records without those of which a copy waits in a queue, `queued` by their ids."""
        return [one for one in self.named if one.head.id not in queued]

    def in_queue(self, ident: str, due: int) -> Blocking | None:
        """Return what is said of a record with a copy in a queue, which is due at `due`; None if nothing is now."""
        one = next((one for one in self.named if one.head.id == ident), None)
        return one if one is not None and one.is_newer_than(due) else None

    def sentence(self, now: int) -> str:
        """Return how many there are, seen from `now` (epoch ms); empty if there are none."""
        are = "is" if self.records == 1 else "are"
        return f"{plural(self.records, 'record')} {are} retried in place{as_of(now - self.at)}" if self.records else ""


def retried_in_place(records: Mapping[str, SubscriptionRecord], alive_after: int) -> Retried:
    """Return what these heartbeats, by instance, say. `alive_after`: epoch ms; an older one says nothing of now."""
    alive = [record for record in records.values() if record.at > alive_after]
    counting = [record for record in alive if record.retried_in_place]
    return Retried(
        sum(record.retried_in_place for record in counting),
        tuple(_newest(alive)),
        min((record.at for record in counting), default=0),
    )


def _newest(records: Iterable[SubscriptionRecord]) -> list[Blocking]:
    """Return the named records, each as it was told last: its partition may have another owner since."""
    by_id: dict[str, Blocking] = {}
    for record in sorted(records, key=lambda record: record.at):
        by_id |= {one.id: Blocking(one, record.at) for one in record.in_place}
    return sorted(by_id.values(), key=lambda one: one.head.since)
