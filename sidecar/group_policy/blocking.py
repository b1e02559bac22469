"""What heartbeats say of records that are retried in place, in the words of all faces.

Such a record is in no topic of ours, so only the instance that has it knows its attempts; `topics/in_place_told.py` has
what a heartbeat carries. Each sentence says how old the heartbeat is, once that matters: the record may be done since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
