"""Evidence with an operator in it: what was destroyed on purpose excuses a record, by its id, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from reconsume.topics import retry_headers as wire
from reconsume.topics.durations import parse_duration
from tests.soak.book import MARK, Book, Window, name_of
from tests.soak.cluster import Cluster, insist
from tests.soak.history import NEVER, History, done_between
from tests.support.kafka.topic_io import Row, dump
from tests.support.proof.evidence import Copy, Evidence, LifeKey, place_of
from tests.support.proof.ledger import KEPT, TOOK, Delivery, Ledger


class Told(NamedTuple):
    """What an event says, as far as it is asked here."""

    key: LifeKey
    times: int
    state: str
    topic: str
    at: int


@dataclass(frozen=True)
class SoakEvidence(Evidence):
    """Topics that were deleted and made again stand here under a name for each of their lives."""

    cut: frozenset[tuple[str, int, int]] = frozenset()
    windows: tuple[Window, ...] = ()
    history: History = field(default_factory=dict)

    def covers(self, topic: str, row: Row) -> bool:
        """What was destroyed waits no more."""
        return MARK in topic or (topic, row.partition, row.offset) in self.cut or super().covers(topic, row)

    def delay_of(self, topic: str) -> int:
        return super().delay_of(name_of(topic))

    def name_of(self, topic: str) -> str:
        return name_of(topic)

    def sent_at(self, delivery: Delivery) -> int:
        """Under load a service reads a request long after the sidecar has given up on it."""
        return 0

    def unseen(self, copy: Copy) -> bool:
        """A service that goes away closes connections whose requests it has not read."""
        return copy.ours[wire.RETRY_REASON].startswith(b"connection-lost")

    @cached_property
    def dead(self) -> tuple[Copy, ...]:
        """The dead letters of main records; nothing else may be there, which is another rule's (`report.condemned`)."""
        return tuple(copy for copy in super().dead if copy.id in self.sources)

    @cached_property
    def foreign(self) -> dict[str, tuple[str, Row]]:
        """Nobody writes anything foreign in a soak."""
        return {}

    def first_topic(self, chain: Sequence[Copy]) -> str:
        """Where its event says, if that topic was about to be deleted: only a copy that hopped on in time is left."""
        copy = chain[0]
        return self._first_topics.get(((copy.id, copy.redrives), copy.times), copy.topic)

    def destroyed(self, key: LifeKey, times: int) -> bool:
        """Whether what is known last of an attempt was destroyed: the record, or the copy that should follow it."""
        if any(gone >= times for gone in self._vanished.get(key, ())) or key in self._dead_unseen:
            return True
        chain = self.lives.get(key, {}).get(times)
        if chain is None:
            source = self.sources.get(key[0]) if times == 0 and key[1] == 0 else None
            return source is not None and self._is_cut(*source)
        return self._is_cut(chain[-1].topic, chain[-1].row) or self._hop_unseen(chain[-1].topic, chain[-1].row)

    @cached_property
    def touched(self) -> frozenset[LifeKey]:
        """The lives of which something was destroyed."""
        cut = {(place_of(topic, row), 0) for topic, row in self.sources.values() if self._is_cut(topic, row)}
        cut |= {
            key
            for key, life in self.lives.items()
            if any(self._is_cut(copy.topic, copy.row) for chain in life.values() for copy in chain)
        }
        return frozenset(cut | self._vanished.keys() | self._dead_unseen | set(self._hops_unseen()))

    def _hops_unseen(self) -> Iterator[LifeKey]:
        """The lives whose last copy may have hopped into a topic that was about to be deleted.

        If its record was taken there before that, its end may have gone with the topic: no progress, and no event.
        """
        took = {(d.id, d.redrives, d.times): d.received for d in self.deliveries if d.means == TOOK}
        for key, life in self.lives.items():
            last = life[max(life)][-1]
            if self.covers(last.topic, last.row):
                taken = took.get((*key, last.times), -NEVER)
                if any(taken <= window.until for window in self._hop_windows(last.topic, last.row)):
                    yield key

    @cached_property
    def kept(self) -> frozenset[tuple[str, int, int]]:
        """A copy that vanished with its topic is told of by its event alone."""
        vanished = {(*key, gone - 1) for key, times in self._vanished.items() for gone in times}
        return frozenset(vanished | {(d.id, d.redrives, d.times) for d in self.deliveries if d.means == KEPT})

    @cached_property
    def _vanished(self) -> dict[LifeKey, set[int]]:
        found: dict[LifeKey, set[int]] = {}
        for told in self._told_in_windows:
            if told.state == "WAITING_RETRY" and told.times not in self.lives.get(told.key, {}):
                found.setdefault(told.key, set()).add(told.times)
        return found

    @cached_property
    def _first_topics(self) -> dict[tuple[LifeKey, int], str]:
        return {(told.key, told.times): told.topic for told in self._told_in_windows if told.state == "WAITING_RETRY"}

    @cached_property
    def _dead_unseen(self) -> frozenset[LifeKey]:
        there = {(copy.id, copy.redrives) for copy in self.dead}
        return frozenset(told.key for told in self._told_in_windows if told.state == "DLQ" and told.key not in there)

    @cached_property
    def _told_in_windows(self) -> tuple[Told, ...]:
        if not self.windows:
            return ()
        told = (self._told(row) for row in self.events)
        return tuple(one for one in told if self._in_window(one.topic, one.at))

    def _told(self, row: Row) -> Told:
        event = json.loads(row.value or b"{}")
        level = event["level"]
        topic = self.group.dlq if event["state"] == "DLQ" else self.group.names.ready
        if event["state"] == "WAITING_RETRY" and level is not None:
            topic = self.group.names.level(parse_duration(level), self.group.main)
        return Told((event["id"], event["redrives"]), event["times"], event["state"], topic, event["at"])

    def _in_window(self, topic: str, at: int) -> bool:
        return any(window.topic == topic and window.since <= at <= window.until for window in self.windows)

    def _hop_unseen(self, topic: str, row: Row) -> bool:
        return any(self._hop_windows(topic, row))

    def _hop_windows(self, topic: str, row: Row) -> Iterator[Window]:
        """The deletions that a hop may have gone with: no event tells of hops, but progress covers what has hopped.

        A hop may be late: its topic may have refused it for a while.
        """
        due = row.timestamp + self.delay_of(topic)
        after, before = done_between(self.history.get((topic, row.partition), ()), row.offset)
        since, until = max(due, after), due if before == NEVER else max(due, before)
        for window in self.windows:
            if window.topic != topic and window.since <= until and since <= window.until:
                yield window

    def _is_cut(self, topic: str, row: Row) -> bool:
        return (topic, row.partition, row.offset) in self.cut


def collect(cluster: Cluster, book: Book, ledger: Ledger) -> SoakEvidence:
    """Read everything that is left, and add what was destroyed. The sidecars have stopped."""
    group = cluster.group
    topics = (*group.mains, *group.retries, group.dlq, group.names.events)
    progress = {
        place: done
        for asked in cluster.lanes.values()
        for place, done in insist(lambda asked=asked: cluster.progress(*asked), "the progress is known").items()
    }
    with ThreadPoolExecutor(2) as pool:
        read = pool.map(lambda topic: dump(group.bootstrap, topic), topics)
        rows = dict(zip(topics, read, strict=True))
    for topic, gone in book.archive().items():
        there = {(row.partition, row.offset) for row in rows.get(topic, ())}
        rows[topic] = [*(row for row in gone if (row.partition, row.offset) not in there), *rows.get(topic, ())]
    dlqs = [topic for topic in rows if name_of(topic) == group.dlq]
    return SoakEvidence(
        group=group,
        mains={topic: tuple(rows[topic]) for topic in group.mains},
        retries={topic: tuple(found) for topic, found in rows.items() if name_of(topic) in group.retries},
        dlq=tuple(row for topic in dlqs for row in rows[topic]),
        events=tuple(rows[group.names.events]),
        progress=progress,
        deliveries=ledger.deliveries(),
        cut=book.undone(),
        windows=tuple(book.windows),
        history=book.history(),
    )
