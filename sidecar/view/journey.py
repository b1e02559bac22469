"""Find one record's events in the events topic. The reading is bounded, and the result says what may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

from reconsume.sidecar.errors import ContractError
from reconsume.sidecar.hints import absent
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import PartitionName, Topic, unled_text
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS
from reconsume.sidecar.kafka.scan import Bounds, Fetches, Scan, ScanClient, partition_of
from reconsume.sidecar.operation import Report
from reconsume.sidecar.printable import plural
from reconsume.topics.events import Event, decode_event, encode_event, order
from reconsume.topics.names import Names

MARGIN = 60_000
"""ms that clocks may differ. The search for a record's first event begins this long before its first failure."""

MOST_KEPT = 1_000
"""Events of one record that are kept. A record that failed daily for a year has fewer."""
MOST_BYTES = 1024 * 1024
"""Bytes of all kept events of one record; each of Reconsume's events has some 400."""


class Journey(NamedTuple):
    """The events that were found, in the order of the record's life.

    `missing` says why there may be more; it is empty if these are all.
    """

    events: tuple[Event, ...]
    missing: str


class Span(NamedTuple):
    """The offsets of a partition that are read.

    `cut`: whether older events, which may have been the record's, have left the partition.
    """

    begin: int
    end: int
    cut: bool


def read_journey(cluster: Cluster, names: Names, record: str, since: int | None, most: int, report: Report) -> Journey:
    """Return the events of one record; read at most `most` records.

    `since` is the record's first failure (epoch ms), None if unknown. Raises BrokerError, and ContractError if the
    topic does not exist.
    """
    if (topic := cluster.existing([names.events]).get(names.events)) is None:
        raise ContractError(absent([names.events]))
    spans = _spans(cluster, topic, since)
    with ScanClient(cluster.kafka, names.retry_group, cluster.client_id, Fetches.UNTIL_GAP) as client:
        bounds = Bounds(ANSWER_SECONDS, records=most)
        scan = client.scan(spans, bounds, expected="the events", report=report)
        journey = _journey_in(scan, names, record, spans)
    reasons = [journey.missing, unled_text([topic])]
    return journey._replace(missing="; ".join(filter(None, reasons)))


def _spans(cluster: Cluster, topic: Topic, since: int | None) -> dict[PartitionName, Span]:
    spans = cluster.spans(topic.led)
    wanted = cluster.spans_since(spans, None if since is None else since - MARGIN)
    return {
        partition: Span(*wanted[partition], 0 < wanted[partition].begin == begin)
        for partition, (begin, _) in spans.items()
    }


def _journey_in(scan: Scan, names: Names, record: str, spans: Mapping[PartitionName, Span]) -> Journey:
    cut, key, kept = False, record.encode(), Kept()
    for message in scan:
        if message.key() == key:
            event = decode_event(message.value())
            if isinstance(event, Event) and event.group == names.group and event.id == record:
                kept.keep_event(event)
                cut |= spans[partition_of(message)].cut
        if kept.full:
            break
    events, missing = kept.events, scan.missing("the events topic")
    if kept.full:
        first = plural(len(events), "event")
        missing = f"only its first {first} were read: it has more than 1000, or than 1 MiB of them"
    elif not missing and (cut or scan.overtaken or (not events and any(span.cut for span in spans.values()))):
        missing = "older events may have left the topic by its retention"
    return Journey(tuple(sorted(events, key=order)), missing)


class Kept:
    """The events that were found, each once. A repeated event has the same bytes."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.full = False
        """Whether an event was left out."""
        self._known: set[bytes] = set()
        self._bytes_left = MOST_BYTES

    def keep_event(self, event: Event) -> None:
        """Keep an event if it is new and there is room."""
        data = encode_event(event)
        digest = blake2b(data, digest_size=16).digest()
        if digest in self._known:
            return
        self._bytes_left -= len(data)
        self.full = len(self.events) >= MOST_KEPT or self._bytes_left < 0
        if not self.full:
            self._known.add(digest)
            self.events.append(event)
