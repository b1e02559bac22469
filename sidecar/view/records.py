"""What a record of the view's topics is, and what a copy lacks. Pure, but for a log line about bad records.

The events topic has the events of the group. Each counts in the sums; with `view.source: events` each gives a row too.
The Spark job's topic, which exists with `spark` only, has rows and tombstones. Whoever may write to a topic may write
anything: a record that is no event or row is counted and skipped.

Events leave their topic by its retention, so a copy that begins to read later does not have them (`Gaps`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message

from reconsume.sidecar.clock import now, utc
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.descriptions import PartitionName, Span
from reconsume.sidecar.printable import plural
from reconsume.sidecar.view.copy import BOUND, Batch, Bound, Missing, RowRead
from reconsume.sidecar.view.source import Source
from reconsume.topics import versions
from reconsume.topics.events import BadEvent
from reconsume.topics.fold import read_event, row_of
from reconsume.topics.names import Kind, Names
from reconsume.topics.view_record import BadRow, Forgotten, decode_view

BAD_EVERY = 60.0
"""Seconds between two log lines about skipped records. The metric counts all of them."""
AT_ONCE = -1e9

_LOG = logging.getLogger("reconsume.view")


class RecordDecoder:
    """Turns messages into batches. `kinds`: the topics that are read, by name; `bad`: the records that were skipped."""

    def __init__(self, names: Names, source: Source, since: int, *, with_sums: bool = True) -> None:
        """`since`: what is known of gaps (epoch ms). `with_sums`: False leaves out events that give no rows."""
        spark = source is Source.SPARK
        self.kinds = {names.view: Kind.VIEW} if spark else {}
        if with_sums or not spark:
            self.kinds[names.events] = Kind.EVENTS
        self.rows_topic = names.view if spark else names.events
        """The topic that gives the rows."""
        self.gaps = Gaps(since)
        self.bad: Counter[Kind] = Counter(dict.fromkeys(self.kinds.values(), 0))
        self._group, self._folds = names.group, not spark
        self._log_bad_at = AT_ONCE

    def decode(self, messages: Iterable[Message]) -> tuple[Batch, list[KafkaError]]:
        """Return what messages hold, and the errors among them."""
        batch, errors, bad = Batch([], [], {}, []), list[KafkaError](), list[str]()
        for message in messages:
            error, moment = message.error(), now().wall_ms
            partition, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
            if error is None:
                batch.moved[partition] = offset + 1
                stamp = message.timestamp()[1]
                self.gaps.met(partition, stamp if 0 < stamp < moment else moment)
                if fault := self._decode(message, partition, moment, batch):
                    bad.append(f"{partition[0]}, partition {partition[1]}, offset {offset}: {fault}")
                    self.bad[self.kinds[partition[0]]] += 1
                    batch.newer.extend(filter(None, [versions.newer(message.value() or b"")]))
            elif error.code() == KafkaError._PARTITION_EOF:
                batch.moved[partition] = offset  # after the markers and gaps at the end
                self.gaps.met(partition, moment)
            else:
                errors.append(error)
        if bad and time.monotonic() >= self._log_bad_at:
            self._log_bad_at = time.monotonic() + BAD_EVERY
            text = "%s; the first: %s"
            _LOG.warning(text, plural(len(bad), "bad record"), bad[0], extra={"event": "view-bad-records"})
        return batch, errors

    def _decode(self, message: Message, partition: PartitionName, moment: int, batch: Batch) -> str:
        """Add a record to the batch. Return why it is bad; empty if it is good."""
        offset, (stamp_kind, stamp) = message.offset() or 0, message.timestamp()
        if self.kinds[partition[0]] is Kind.VIEW:
            row = decode_view(self._group, message.key(), message.value())
            if isinstance(row, BadRow):
                return row.text
            written = stamp if 0 < stamp < moment else moment
            batch.rows.append(row if isinstance(row, Forgotten) else RowRead(row, row.updated_at, offset, written))
            return ""
        # The brokers' time, where they give it: an instance whose clock is behind refuses no good event.
        clock = stamp if stamp_kind == TIMESTAMP_LOG_APPEND_TIME else moment
        event = read_event(self._group, message.value(), stamp, clock)
        if isinstance(event, BadEvent):
            return event.text
        batch.events.append(event)
        if self._folds:
            row = row_of(event, partition[1], offset, min(stamp, clock)).row
            batch.rows.append(RowRead(row, partition[1], offset, row.updated_at))
        return ""


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
    """The time since when a copy has every event, learned from the first event after each gap."""

    def __init__(self, since: int) -> None:
        """`since`: what was known before (epoch ms)."""
        self.since = since
        self._open: set[PartitionName] = set()

    def note_gaps(self, begins: Mapping[PartitionName, int], stored: Mapping[PartitionName, int]) -> None:
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
    lacks = (
        (skipped, "event", ", the oldest,"),
        (missing.done, "done record", ", the oldest,"),
        (missing.events, "event", " of records that had no room"),
    )
    phrases = [f"{plural(count, word)}{rest}" for count, word, rest in lacks if count]
    if not phrases:
        return ""
    limit = f"the bound of {plural(bound.records, 'record')} or {bound.bytes // 1_000_000_000} GB is reached: "
    begin = limit if missing.done or missing.events else ""
    return f"{begin}{' and '.join(phrases)} are left out; Spark's view (`{hint('view run')}`) has no such bound"


def sums_shortfall(missing: Missing, bound: Bound = BOUND) -> str:
    """Return one sentence about the sums that made room for others; empty if none did."""
    if not missing.minute:
        return ""
    limit = f"the bound of {bound.sums} sums or {bound.sums_bytes // 1_000_000} MB is reached"
    return f"{limit}: those of minutes before {utc(missing.minute)} are left out"
