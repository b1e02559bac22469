"""Who reads the retries of a group: sidecars, or one Spark query. Pure.

Two readers that do not share partitions both read every retry, and both write a copy of each that fails: the copies
double at each level. So whoever reads the retries says so in the control log, and `Readers` is the fold that says who
may. Sidecars, queries, commands and `doctor` all use it, and by the same log all of them see the same.

- A *gated* query reads the level topics itself. Its claim, under the key `retries-owner`, is its heartbeat: renewed
  every 15 s, it counts for 60 s. It tolerates no other reader.
- A *relay* query reads what sidecars in relay mode move to the ready topic, and shares with those alone. It reads the
  whole ready topic, so there is one of them.
- *Sidecars* share among themselves. Their heartbeats, and those of relay queries, count for 180 s.

The first one counts: a heartbeat that meets a live reader with which it may not share counts for nothing, and whoever
wrote it finds that when it reads its own record. It is the one exception to "the last record of a key counts". Of two
starts of one query the later takes the place of the earlier, which finds another nonce.

All times are those at which the log was written (epoch ms), so that no clock of a reader matters.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from reconsume.topics.agreement import SILENT_AFTER
from reconsume.topics.policy_record import (
    OWNER,
    InstanceHeard,
    OwnerHeard,
    QueryTold,
    SubscriptionRecord,
    instance_key,
)

CLAIM_LIVES = 60_000
"""ms for which a gated query's claim counts after its last renewal."""
MOST_READERS = 4_096
"""Readers that are kept. Above that, the oldest are dropped."""


class Kind(enum.StrEnum):
    """How a reader comes to the group's retries."""

    GATED = "gated"
    RELAY_QUERY = "relay-query"
    RELAY_SIDECAR = "relay"
    SIDECAR = "sidecar"
    """A sidecar that delivers, by push or pull."""


SHARING = {
    frozenset({Kind.SIDECAR}),
    frozenset({Kind.RELAY_SIDECAR}),
    frozenset({Kind.SIDECAR, Kind.RELAY_SIDECAR}),
    frozenset({Kind.RELAY_QUERY, Kind.RELAY_SIDECAR}),
}
"""The kinds of two readers that may read the retries at the same time. Different sidecars are `instances-differ`."""


class Reader(NamedTuple):
    """A reader of the group's retries, and when the log has its last heartbeat. `query`: None if it is a sidecar."""

    instance: str
    kind: Kind
    at: int
    record: SubscriptionRecord

    @property
    def query(self) -> QueryTold | None:
        return self.record.query

    @property
    def counts_for_ms(self) -> int:
        """ms for which a heartbeat of it counts."""
        return CLAIM_LIVES if self.kind is Kind.GATED else SILENT_AFTER

    def is_live(self, now_ms: int) -> bool:
        return self.at > now_ms - self.counts_for_ms

    def is_same_start(self, other: Reader) -> bool:
        """Whether both are heartbeats of one start; of a sidecar's starts nobody tells one from another."""
        mine, its = self.query, other.query
        return (mine and mine.nonce) == (its and its.nonce) and self.kind is other.kind

    @property
    def described(self) -> str:
        """The reader for people: what it is, and where."""
        if (query := self.query) is None:
            return f"the sidecar {self.instance}"
        of_application = f", application {query.application}" if query.application else ""
        return f'the Spark query "{query.name}" (host {query.host}{of_application})'


def reader_of(instance: str, record: SubscriptionRecord, at: int) -> Reader:
    """Return the reader whose heartbeat this is."""
    if (query := record.query) is not None:
        return Reader(query.instance, Kind.GATED if query.gated else Kind.RELAY_QUERY, at, record)
    return Reader(instance, Kind.RELAY_SIDECAR if record.mode == "relay" else Kind.SIDECAR, at, record)


def key_of(query: QueryTold) -> bytes:
    """Return the key of a query's heartbeats in the control log."""
    return OWNER if query.gated else instance_key(query.instance)


class Readers:
    """The readers of a group's retries, by the control log. `hear` takes its records in their order."""

    def __init__(self) -> None:
        self._readers: dict[str, Reader] = {}

    def hear(self, news: object, at: int) -> None:
        """Take in what a record says that was written at this time; all but heartbeats changes nothing."""
        match news:
            case InstanceHeard(instance=instance, record=None):
                self._readers.pop(instance, None)
            case InstanceHeard(instance=instance, record=SubscriptionRecord() as record):
                self._take(reader_of(instance, record, at))
            case OwnerHeard(record=SubscriptionRecord(query=QueryTold(gated=True)) as record):
                self._take(reader_of("", record, at))

    def _take(self, reader: Reader) -> None:
        known, query = self._readers.get(reader.instance), reader.query
        is_other = known is not None and not known.is_same_start(reader)
        if query is not None and query.ended:
            if not is_other:
                self._readers.pop(reader.instance, None)
            return
        if is_other and query is not None and query.renewed:
            return  # a later start has taken its place, and it does not know yet
        is_renewal = known is not None and not is_other and known.is_live(reader.at)
        if is_renewal or self.against(reader, reader.at) is None:
            self._readers.pop(reader.instance, None)
            self._readers[reader.instance] = reader
            if len(self._readers) > MOST_READERS:
                del self._readers[next(iter(self._readers))]

    def live(self, now_ms: int) -> list[Reader]:
        """Return the readers that count at this time, by name."""
        return sorted(reader for reader in self._readers.values() if reader.is_live(now_ms))

    def queries(self) -> list[Reader]:
        """Return the Spark queries that have not ended, by name. They may be silent by now."""
        return sorted(reader for reader in self._readers.values() if reader.query is not None)

    def against(self, reader: Reader, now_ms: int) -> Reader | None:
        """Return a live reader next to which this one may not read; None if there is none."""
        for other in self._readers.values():
            if (
                other.instance != reader.instance
                and other.is_live(now_ms)
                and frozenset({reader.kind, other.kind}) not in SHARING
            ):
                return other
        return None

    def in_place_of(self, reader: Reader) -> Reader | None:
        """Return who reads instead of a reader whose heartbeat the log has; None if the reader itself counts."""
        known = self._readers.get(reader.instance)
        if known is not None and known.is_same_start(reader) and known.at >= reader.at:
            return None
        return self.against(reader, reader.at) or known
