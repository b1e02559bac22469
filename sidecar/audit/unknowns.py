"""Report what an audit cannot know, and from when on it can: deleted records, and progress that is not there.

Plain values come in and sentences go out. The reading is in `reader.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from reconsume.sidecar.audit.facts import Number
from reconsume.sidecar.audit.reader import ReadTimes
from reconsume.sidecar.audit.store import AuditStore
from reconsume.sidecar.clock import utc
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.kafka.admin.descriptions import Span
from reconsume.sidecar.printable import plural

APART = 20_000
"""ms by which the times of records of one transaction may differ. An event has the time of its sidecar's clock, a copy
that of its broker when it arrived. A record this close to a deleted one may have lost its companions."""


class Unknown(NamedTuple):
    """Something that the topics do not show, as one sentence, and where."""

    text: str
    records: tuple[str, ...] = ()


class Horizon(NamedTuple):
    """The offsets that were there (`marks`), those that were to be read (`spans`), and what was read of them.

    `since` is the requested start, `began` the time at which the audit began (epoch ms).
    """

    marks: Mapping[Number, Span]
    spans: Mapping[Number, Span]
    seen: Mapping[Number, ReadTimes]
    overtaken: Mapping[Number, int]
    since: int | None
    began: int

    def deleted(self) -> dict[Number, int]:
        """Return how many offsets are gone at the beginning of each partition that was read from there."""
        read = {
            partition: begin for partition, (begin, _) in self.spans.items() if begin == self.marks[partition].begin
        }
        return {partition: begin for partition, begin in {**read, **self.overtaken}.items() if begin > 0}


def known_of(
    horizon: Horizon, configs: Mapping[str, Mapping[str, str]], purged: Collection[str] = ()
) -> dict[str, int]:
    """Return by topic the epoch ms from which on nothing is missing.

    `purged`: topics that operators may empty as well.
    """
    since: dict[str, int] = {}
    for partition in horizon.deleted():
        topic = partition[0]
        first = horizon.seen.get(partition)
        at = emptied(horizon, configs.get(topic, {}), topic in purged) if first is None else first.first
        since[topic] = max(at + APART, since.get(topic, 0))
    if horizon.since is not None:
        since = {topic: max(horizon.since + APART, since.get(topic, 0)) for topic, _ in horizon.marks}
    return since


def emptied(horizon: Horizon, config: Mapping[str, str], purged: bool) -> int:
    """Return the epoch ms before which the deleted records of an empty partition were written, by its retention."""
    age = int(config.get("retention.ms", -1))
    if age > 0 and int(config.get("retention.bytes", -1)) < 0 and not purged:
        return horizon.began - age
    return horizon.began


def unknown_of(
    horizon: Horizon,
    since: Mapping[str, int],
    lane: Collection[Number],
    before: Mapping[Number, Progress],
    store: AuditStore,
    mains: Mapping[Number, Span],
    stuck: Mapping[Number, int],
) -> Iterator[Unknown]:
    """Yield all that the topics do not show, one sentence each."""
    yield from deleted_of(horizon, since)
    gone = {partition: count for partition, mark in mains.items() if (count := store.deleted(partition, mark.begin))}
    for topic in sorted({topic for topic, _ in gone}):
        count = sum(count for partition, count in gone.items() if partition[0] == topic)
        lie = "that was retried is" if count == 1 else "that were retried are"
        yield Unknown(f"{plural(count, 'record')} {lie} no longer in {topic}: the copies were not compared")
    filled = [partition for partition in lane if horizon.marks[partition].end > horizon.marks[partition].begin]
    if filled and not any(
        partition in before for partition in lane
    ):  # a partition without progress has nothing done yet
        named = tuple(f"{topic}:{number}" for topic, number in filled)
        yield Unknown("the retry group has no committed progress: loss cannot be seen", named)
    for (topic, number), offset in stuck.items():
        yield Unknown("a transaction that does not end holds the rest back", (f"{topic}:{number}:{offset}",))


def deleted_of(horizon: Horizon, since: Mapping[str, int]) -> Iterator[Unknown]:
    """Yield what is deleted of each topic."""
    deleted = horizon.deleted()
    for topic in sorted({topic for topic, _ in deleted}):
        parts = {partition: begin for partition, begin in deleted.items() if partition[0] == topic}
        count = sum(parts.values())
        text = f"{plural(count, 'offset')} of {topic} {'is' if count == 1 else 'are'} deleted, by retention or by hand"
        named = tuple(f"{topic}:{number}:0-{begin - 1}" for (_, number), begin in sorted(parts.items()))
        whole = utc(since[topic])
        yield Unknown(f"{text}; it is whole since {whole}", named)
