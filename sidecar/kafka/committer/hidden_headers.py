"""Find the records of a batch whose headers must not be copied: the client reads no more than 100 000.

Of a record with more headers the client gives none, and says nothing about it. So a failed record without any header is
read once more, in a way that tells the two apart. Copies that would pass the limit with our own headers would be
unreadable later.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError

from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord
from reconsume.sidecar.core.record import Partition, Record, RecordId
from reconsume.sidecar.kafka.credentials.registry import ClientCredentials
from reconsume.sidecar.kafka.native_reader import NativeReader, UnreadRecord
from reconsume.topics.retry_headers import MOST_HEADERS, MOST_OF_OURS
from reconsume.topics.transitions import Commit

SECONDS = 3.0
"""How long the records of one batch are looked for. Those that are not read by then are tried again later: nobody leads
their partition, or a quota lets this client read little. What was read meanwhile goes on."""
NEAR = 500
"""Records between two that are wanted which are read over. To begin anew costs as much."""
SURE_AFTER_S = 60.0
"""For so long the log of a partition must end before a record until the record counts as gone, and its copy has the
headers that it was read with. A leader that was elected just now may not know yet that the record is committed
(KIP-207): until the other replicas have asked it, or for `replica.lag.time.max.ms` (30 s) are no longer waited for."""
_TO_THE_END: Mapping[str, object] = {"auto.offset.reset": "earliest", "enable.partition.eof": True}
"""Where the first records are deleted, read from what is left on; and hear where a partition ends."""


class Looked(NamedTuple):
    """The records with hidden headers, and those that could not be read."""

    hidden: frozenset[RecordId]
    unread: frozenset[RecordId]


class ShortLogs:
    """The logs that end before a record that is looked for. `sure_after_s`: as SURE_AFTER_S."""

    def __init__(self, sure_after_s: float) -> None:
        self._sure_after_s = sure_after_s
        self._short_between: dict[Partition, tuple[float, float]] = {}
        """When each was seen so first, and last (monotonic seconds)."""

    def reach(self, partition: Partition) -> None:
        """Note that a log reaches as far as what was looked for."""
        self._short_between.pop(partition, None)

    def may_grow(self, partition: Partition, now: float) -> bool:
        """Note that a log is short; return whether it may still be that its leader knows less than is committed."""
        first, last = self._short_between.get(partition, (now, now))
        # A partition that is refused is tried again within seconds. Where nobody looked for so long, it was another
        # owner's meanwhile, and its leader may be another one by now.
        first = first if now <= last + self._sure_after_s else now
        self._short_between[partition] = first, now
        return now < first + self._sure_after_s


class HiddenHeaders:
    """The look at the headers of one committer's records. Its client is made at the first record without headers.

    `config`: of a client that reads topics. `sure_after_s`: as SURE_AFTER_S. All calls come from one thread.
    """

    def __init__(
        self, config: Mapping[str, object], credentials: ClientCredentials, sure_after_s: float = SURE_AFTER_S
    ) -> None:
        self._config, self._credentials, self._short = {**config, **_TO_THE_END}, credentials, ShortLogs(sure_after_s)
        self._reader: NativeReader | None = None
        self._made_of = 0
        """The number of the credentials that the client was made of."""

    def refusals(self, entries: Sequence[SettledRecord]) -> tuple[Refusal, ...]:
        """Return a refusal for each entry that must not be copied with its headers, or of which that is not known."""
        suspects = [entry for entry in entries if _is_suspect(entry)]
        if not suspects:
            return ()
        looked = self.look(entry.record for entry in suspects if not entry.record.headers)
        return tuple(refusal for entry in suspects if (refusal := _judged(entry, looked)) is not None)

    def look(self, records: Iterable[Record]) -> Looked:
        """Read the records once more. Blocks for SECONDS at most."""
        pending: dict[Partition, deque[int]] = {}
        for partition, offset in sorted({(record.source, record.offset) for record in records}):
            pending.setdefault(partition, deque()).append(offset)
        if not pending:
            return Looked(frozenset(), frozenset())
        reader, hidden, deadline = self._opened(), set[RecordId](), time.monotonic() + SECONDS
        ended: dict[Partition, deque[int]] = {}
        began = {partition: offsets[0] for partition, offsets in pending.items()}
        for partition, offset in began.items():
            reader.start(partition, offset)
        while pending and (record := reader.take(deadline)) is not None:
            wanted = pending.get(record.partition)
            if wanted is None or record.error not in (0, KafkaError._PARTITION_EOF):
                continue
            if _is_among(wanted, record) and record.hides:
                hidden.add((record.partition, record.offset))
            # Where the log ends before an offset, the client tells its end, or begins again where the log begins.
            if not wanted or record.error or record.offset < began[record.partition]:
                reader.stop(record.partition)
                ended[record.partition] = pending.pop(record.partition)
            elif wanted[0] > record.offset + NEAR:
                began[record.partition] = wanted[0]
                reader.start(record.partition, wanted[0])
        pending |= {partition: offsets for partition, offsets in ended.items() if self._may_come(partition, offsets)}
        if pending:  # a client may be of no more use, as after its topic was made anew: the next look has another one
            self.close()
        unread = frozenset((partition, offset) for partition, offsets in pending.items() for offset in offsets)
        return Looked(frozenset(hidden), unread)

    def _may_come(self, partition: Partition, behind: Collection[int]) -> bool:
        """Return whether records may come yet that lie behind the end of a log. `behind`: their offsets, if any."""
        if not behind:
            self._short.reach(partition)
            return False
        return self._short.may_grow(partition, time.monotonic())

    def _opened(self) -> NativeReader:
        number = self._credentials.newest_number
        if self._reader is None or number != self._made_of:
            self.close()
            self._reader, self._made_of = NativeReader(self._credentials.newest(self._config)), number
        return self._reader

    def close(self) -> None:
        """Free the client."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _is_among(wanted: deque[int], record: UnreadRecord) -> bool:
    """Whether what was found is wanted. Take it out, and what comes before it: that is gone, and nobody knows more.

    The end of a log is found at the offset behind its last record.
    """
    last, end = -1, record.offset + (not record.error)
    while wanted and wanted[0] < end:
        last = wanted.popleft()
    return last == record.offset


def _is_suspect(entry: SettledRecord) -> bool:
    """Whether the entry is a copy of a record whose headers are none, or too many together with ours."""
    headers = entry.record.headers
    if headers is None or (headers and len(headers) <= MOST_HEADERS - MOST_OF_OURS):
        return False
    too_many = any(len(copy.headers) > MOST_HEADERS for copy in entry.writes)
    return (not headers or too_many) and not isinstance(entry.decision, Commit)


def _judged(entry: SettledRecord, looked: Looked) -> Refusal | None:
    record = entry.record
    if record.headers or (record.source, record.offset) in looked.hidden:
        return Refusal(entry, "record", f"it has more than {MOST_HEADERS:_} headers".replace("_", " "), unreadable=True)
    if (record.source, record.offset) in looked.unread:
        return Refusal(entry, "partition", f"{record.source} cannot be read, to see the headers", str(record.source))
    return None
