"""What a reader does with the records of a turn, and since when its copy is complete.

Good records go into the local copy, bad ones are counted and skipped. Events leave their topic by its retention, so a
copy that begins to read later does not have them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaError, Message

from reconsume.sidecar.clock import now
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.descriptions import PartitionName, Span
from reconsume.sidecar.kafka.few_messages import MOST
from reconsume.sidecar.printable import plural
from reconsume.sidecar.view.forms import Form
from reconsume.sidecar.view.source import Source
from reconsume.sidecar.view.store import BOUND, Bound, Missing, ViewStore
from reconsume.sidecar.view.tables import Item
from reconsume.topics import versions
from reconsume.topics.names import Kind
from reconsume.topics.view_record import Forgotten

# --- what a copy lacks -----------------------------------------------------------------------------------------------


def begins_of(spans: Mapping[PartitionName, Span], most: int | None) -> dict[PartitionName, int]:
    """Return the offset from which each partition is read, so that about `most` records are read; None: all.

    The oldest are left out, in each partition the same part of it.
    """
    total = sum(span.end - span.begin for span in spans.values())
    if most is None or total <= most:
        return {partition: span.begin for partition, span in spans.items()}
    return {partition: span.end - (span.end - span.begin) * most // total for partition, span in spans.items()}


class Gaps:
    """The time since when a copy has every event, learned from the first record after each gap."""

    def __init__(self, since: int) -> None:
        """`since`: what was known before (epoch ms)."""
        self.since = since
        self._open: set[PartitionName] = set()

    def find(self, begins: Mapping[PartitionName, int], stored: Mapping[PartitionName, int]) -> None:
        """Note the partitions that begin behind what was read of them: events between are not in the copy."""
        self._open = {partition for partition, begin in begins.items() if begin > stored.get(partition, 0)}

    def met(self, partition: PartitionName, at: int) -> None:
        """Take the time (epoch ms) of the first record of a partition, or of its end if it has none."""
        if partition in self._open:
            self._open.remove(partition)
            self.since = max(self.since, at)


def shortfall(missing: Missing, skipped: int, bound: Bound = BOUND) -> str:
    """Return one sentence about what a copy lacks, beside what has left the topic; empty if nothing.

    `skipped`: events that were not read because no more were asked for.
    """
    sentences = list(_sentences(missing, skipped))
    if not sentences:
        return ""
    limit = (
        f"the bound of {plural(bound.records, 'record')} or {bound.bytes // 1_000_000_000} GB is reached: "
        if any(missing)
        else ""
    )
    return f"{limit}{' and '.join(sentences)} are left out; Spark's view (`{hint('view run')}`) has no such bound"


def _sentences(missing: Missing, skipped: int) -> Iterable[str]:
    if skipped:
        yield f"{plural(skipped, 'event')}, the oldest,"
    if missing.done:
        yield f"{plural(missing.done, 'done record')}, the oldest,"
    if missing.events:
        yield f"{plural(missing.events, 'event')} of records that had no room"


# --- the records of a turn -------------------------------------------------------------------------------------------


FUTURE = 300_000
"""ms; a timestamp further ahead does not say when Spark wrote last."""
BAD_EVERY = 60.0
"""Seconds between two log lines about skipped records. The metric counts all of them."""
EVENTS_TOGETHER = 2_000
"""Events of one turn. Each turn writes most pages of the file's indexes anew: with 500 an event costs a third more."""
ROOM_EVERY = 10.0
"""Seconds between two times that a copy near its bound makes room."""
AT_ONCE = -1e9

_LOG = logging.getLogger("reconsume.view")


class Batch(NamedTuple):
    """What a turn has read. `moved`: the next offset of each partition. `newer`: versions that cannot be read here."""

    items: list[Item]
    moved: dict[PartitionName, int]
    newer: list[int]
    errors: list[KafkaError]


class Intake:
    """The way of records into a store. `facts`: what is known of the copy, also what is not stored yet."""

    def __init__(self, store: ViewStore, form: Form) -> None:
        self.bad: Counter[Kind] = Counter(dict.fromkeys(form.kinds.values(), 0))
        self._store, self._form = store, form
        self._folds = form.source is Source.EVENTS
        self._bad_at = self._room_at = AT_ONCE
        self.begin_anew()

    def begin_anew(self) -> None:
        """Take what is known from the store again: it was opened, or a topic was made anew."""
        self.facts = self._store.facts()
        self.gaps = Gaps(self.facts.since)

    @property
    def batch_size(self) -> int:
        """How many records a turn should have at most."""
        return EVENTS_TOGETHER if self._folds else MOST

    def read(self, messages: Iterable[Message]) -> Batch:
        """Decode messages. Nothing is stored yet."""
        batch, bad = Batch([], {}, [], []), list[str]()
        for message in messages:
            error, moment = message.error(), now().wall_ms
            partition, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
            if error is None:
                batch.moved[partition] = offset + 1
                self._read(message, partition, moment, batch, bad)
            elif error.code() == KafkaError._PARTITION_EOF:
                batch.moved[partition] = offset  # after the markers and gaps at the end
                self.gaps.met(partition, moment)
            else:
                batch.errors.append(error)
        if bad and time.monotonic() >= self._bad_at:
            self._bad_at = time.monotonic() + BAD_EVERY
            _LOG.warning(
                "%s; the first: %s", plural(len(bad), "bad record"), bad[0], extra={"event": "view-bad-records"}
            )
        return batch

    def _read(self, message: Message, partition: PartitionName, moment: int, batch: Batch, bad: list[str]) -> None:
        stamp = message.timestamp()[1]
        self.gaps.met(partition, stamp if 0 < stamp < moment else moment)
        item = self._form.item(message, moment)
        if isinstance(item, Item):
            batch.items.append(item)
            self._see_newest(item, stamp, moment)
        else:
            bad.append(f"{partition[0]}, partition {partition[1]}, offset {message.offset()}: {item.text}")
            self.bad[self._form.kinds[partition[0]]] += 1
            batch.newer.extend(filter(None, [versions.newer(message.value() or b"")]))

    def _see_newest(self, item: Item, stamp: int, moment: int) -> None:
        is_row = item.kind is Kind.VIEW and not isinstance(item.value, Forgotten)
        if is_row and self.facts.newest < stamp <= moment + FUTURE:
            self.facts = self.facts._replace(newest=stamp)

    def keep(self, batch: Batch) -> list[Item]:
        """Store a batch with its positions. Return what it tells: rows and sums, of events the rows that changed."""
        passed_over = min(batch.newer, default=None)
        if not self._folds:
            self._store.take(batch.items, batch.moved, passed_over)
            return batch.items
        self.facts = self.facts._replace(since=self.gaps.since)
        changed = self._store.take_events(batch.items, batch.moved, self.gaps.since, passed_over)
        if self._store.tight and time.monotonic() >= self._room_at:
            self._room_at = time.monotonic() + ROOM_EVERY
            self._store.make_room()
        return changed
